//! In-place updates of variables.
//!
//! An optimizer step ends in elementwise maps whose results are assigned to variables, such as
//! `w - rate * g`. Maps without other users are moved to the end of the plan, when no instruction
//! can fail any more, and write the variables directly. This saves a copy, and a failing step still
//! leaves all variables unmodified.
//!
//! A map becomes an update if
//!
//! - it is outside loops and branches, cannot fail, and is the only writer of its buffer, which
//!   is the whole new value of the variable;
//! - its operands keep their values to the end;
//! - the new value is not an output, and only later updates read it;
//! - no later update reads the old value, and the map itself reads the old value only at the
//!   elements it writes.
//!
//! Consecutive updates that share operands are fused: for example, the two moments and the value of
//! Adam. The fused updates are computed block by block, so each may read a result of another update
//! only at the same elements.

use super::draft::{AccessKind, Draft, Item};
use super::{Assign, Base, BufferId, Instr, Out, TensorOpId, TensorOperand, Update, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::elementwise::{Arg, MAX_OPERANDS, MAX_OPS, MAX_RESULTS, Map, MapOp};
use crate::cpu::memory::Storage;
use anabranch_dsl::{DType, Loc, TensorType};
use rustc_hash::{FxHashMap, FxHashSet};

/// A map that may become an update.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    item: usize,
    op: TensorOpId,
    buffer: BufferId,
    var: usize,
}

/// Moves in-place updates out of the code of a draft and out of the assignments.
pub(super) fn updates(
    draft: &mut Draft,
    outputs: &[(TensorOperand, TensorType)],
    assigns: &mut Vec<Assign>,
) -> Vec<Update> {
    let mut uses = StorageUses::new(draft, outputs, assigns);
    let mut candidates: Vec<Candidate> = assigns.iter().filter_map(|assign| uses.candidate(draft, assign)).collect();
    candidates.sort_by_key(|c| c.item);
    while let Some(bad) = (0..candidates.len()).find(|&i| !uses.may_update(draft, &candidates, i)) {
        candidates.remove(bad);
    }
    let new_values: FxHashMap<BufferId, usize> = candidates.iter().map(|c| (c.buffer, c.var)).collect();
    assigns.retain(|a| candidates.iter().all(|c| c.var != a.var));
    let mut passes: Vec<FusedUpdates> = Vec::new();
    for c in &candidates {
        let pass = FusedUpdates::new(draft, c, &new_values);
        draft.items[c.item] = Item::Moves(Vec::new());
        let op = &mut draft.tensor_ops[c.op.index()];
        (op.kernel, op.operands, op.out) = (Kernel::Data, Vec::new(), Out::Nothing);
        let rest = match passes.last_mut() {
            Some(last) => last.join(pass),
            None => Some(pass),
        };
        passes.extend(rest);
    }
    passes.into_iter().map(FusedUpdates::update).collect()
}

/// The readers and writers of storage.
struct StorageUses {
    /// The last item that writes each piece of storage, and the number of writers.
    written: FxHashMap<Storage, (usize, usize)>,
    /// The items that read each buffer. `usize::MAX` stands for reads after all items.
    readers: FxHashMap<BufferId, Vec<usize>>,
}

impl StorageUses {
    fn new(draft: &Draft, outputs: &[(TensorOperand, TensorType)], assigns: &[Assign]) -> StorageUses {
        let mut uses = StorageUses { written: FxHashMap::default(), readers: FxHashMap::default() };
        if assigns.is_empty() {
            return uses;
        }
        for (p, item) in draft.items.iter().enumerate() {
            draft.touches(item, &mut |storage, touch| match (touch, storage) {
                (AccessKind::Write, _) => {
                    let (last, n) = uses.written.entry(storage).or_insert((p, 0));
                    (*last, *n) = (p, *n + 1);
                }
                (AccessKind::Read, Storage::Buffer(b)) => uses.readers.entry(b).or_default().push(p),
                (AccessKind::Read, _) => {}
            });
        }
        let mut assigned = FxHashSet::default();
        let again = assigns.iter().filter_map(|a| a.value.storage()).filter(|&s| !assigned.insert(s));
        for storage in outputs.iter().filter_map(|(o, _)| o.storage()).chain(again) {
            if let Storage::Buffer(b) = storage {
                uses.readers.entry(b).or_default().push(usize::MAX);
            }
        }
        uses
    }

    /// Returns the map that computes the new value of a variable, if it qualifies on its own.
    fn candidate(&mut self, draft: &Draft, assign: &Assign) -> Option<Candidate> {
        let TensorOperand::View(value) = &assign.value else { return None };
        let Base::Buffer(buffer) = value.base else { return None };
        let &(item, 1) = self.written.get(&Storage::Buffer(buffer))? else { return None };
        let Item::Instr(Instr::Run(op)) = draft.items[item] else { return None };
        let (Kernel::Map(map), Out::View(out)) = (&draft.op(op).kernel, &draft.op(op).out) else { return None };
        let is_whole = value.is_contiguous() && value.offset == 0 && value.size() == out.size();
        let is_outside = draft.item_loops[item].is_none() && draft.item_arms[item].is_none();
        let stay = |operand: &TensorOperand| {
            operand.storage().is_none_or(|s| self.written.get(&s).is_none_or(|&(last, _)| last < item))
        };
        let fits = is_whole && is_outside && map.is_total() && out.dtype != DType::Bool && out.size() > 0;
        (fits && draft.op(op).operands.iter().all(stay)).then_some(Candidate { item, op, buffer, var: assign.var })
    }

    /// Returns whether a candidate can be an update together with the other updates, which are in
    /// order.
    fn may_update(&self, draft: &Draft, candidates: &[Candidate], i: usize) -> bool {
        let this = candidates[i];
        let is_later = |p: &usize| candidates[i + 1..].binary_search_by_key(p, |c| c.item).is_ok();
        let old = |o: &&TensorOperand| o.view().base == Base::Var(this.var as u32);
        let op = draft.op(this.op);
        let Out::View(out) = &op.out else { panic!("the result of a map is a tensor") };
        let place = View { base: Base::Var(this.var as u32), ..out.clone() };
        self.readers.get(&this.buffer).is_none_or(|items| items.iter().all(is_later))
            && op.operands.iter().filter(old).all(|o| o.view().same_places(&place))
            && candidates[i + 1..].iter().all(|c| !draft.op(c.op).operands.iter().any(|o| old(&o)))
    }
}

/// Updates fused into one pass.
struct FusedUpdates {
    ops: Vec<MapOp>,
    operands: Vec<View>,
    /// The operations that compute new values, and the variables they overwrite.
    results: Vec<(usize, View)>,
    /// The variables among the operands that earlier updates have written.
    new_values: Vec<usize>,
    loc: Loc,
}

impl FusedUpdates {
    fn new(draft: &Draft, c: &Candidate, new_values: &FxHashMap<BufferId, usize>) -> FusedUpdates {
        let op = draft.op(c.op);
        let (Kernel::Map(map), Out::View(out)) = (&op.kernel, &op.out) else { panic!("only maps are updates") };
        // Earlier updates have already written the variables whose new values this update reads.
        let written = |base: Base| if let Base::Buffer(b) = base { new_values.get(&b).copied() } else { None };
        let present = |operand: &TensorOperand| {
            let view = operand.view().clone();
            let base = written(view.base).map_or(view.base, |var| Base::Var(var as u32));
            View { base, ..view }
        };
        FusedUpdates {
            ops: map.ops().to_vec(),
            operands: op.operands.iter().map(present).collect(),
            results: vec![(map.ops().len() - 1, View { base: Base::Var(c.var as u32), ..out.clone() })],
            new_values: op.operands.iter().filter_map(|operand| written(operand.view().base)).collect(),
            loc: op.loc,
        }
    }

    /// Fuses a later update of one result if that saves reads. Returns it if it cannot be fused.
    fn join(&mut self, later: FusedUpdates) -> Option<FusedUpdates> {
        let (_, place) = &later.results[0];
        let elsewhere = |read: &View, place: &View| read.base == place.base && !read.same_places(place);
        let new: Vec<&View> = later.operands.iter().filter(|v| !self.operands.contains(v)).collect();
        let written = |v: &View| self.results.iter().find(|(_, place)| place.base == v.base);
        let fits = self.results.len() < MAX_RESULTS
            && self.results[0].1.shape == place.shape
            && self.operands.len() + new.len() <= MAX_OPERANDS
            && self.ops.len() + later.ops.len() <= MAX_OPS
            && self.operands.iter().all(|v| !elsewhere(v, place))
            && later.operands.iter().all(|v| self.results.iter().all(|(_, place)| !elsewhere(v, place)));
        let shares = |v: &View| !matches!(v.base, Base::Reg(_)) && self.operands.contains(v);
        if !fits || !later.operands.iter().any(|v| shares(v) || written(v).is_some()) {
            return Some(later);
        }
        let mut args: Vec<Arg> = Vec::new();
        for view in later.operands {
            let result = self.results.iter().find(|(_, place)| place.base == view.base);
            args.push(match (result, self.operands.iter().position(|v| *v == view)) {
                (Some((op, _)), _) => Arg::Result(*op as u8),
                (None, Some(i)) => Arg::Operand(i as u8),
                (None, None) => {
                    self.operands.push(view);
                    Arg::Operand(self.operands.len() as u8 - 1)
                }
            });
        }
        let first = self.ops.len() as u8;
        self.ops.extend(later.ops.into_iter().map(|mut op| {
            op.args = op.args.map(|a| match a {
                Arg::Operand(i) => args[i as usize],
                Arg::Result(i) => Arg::Result(first + i),
            });
            op
        }));
        // The new values that the update itself computes are no operands of it.
        let is_own = |var: &usize| self.results.iter().any(|(_, place)| place.base == Base::Var(*var as u32));
        self.new_values.extend(later.new_values.into_iter().filter(|var| !is_own(var)));
        self.results.extend(later.results.into_iter().map(|(op, place)| (first as usize + op, place)));
        None
    }

    fn update(self) -> Update {
        let operands: Vec<TensorOperand> = self.operands.into_iter().map(TensorOperand::View).collect();
        let results: Vec<(usize, &View)> = self.results.iter().map(|(op, place)| (*op, place)).collect();
        let var =
            |view: &View| if let Base::Var(i) = view.base { i as usize } else { panic!("only variables are updated") };
        Update {
            map: Map::with_results(self.ops, &operands, &results),
            vars: self.results.iter().map(|(_, place)| var(place)).collect(),
            new_values: self.new_values,
            operands,
            loc: self.loc,
        }
    }
}
