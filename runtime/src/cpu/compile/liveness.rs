//! Liveness analysis and coalescing of storage.
//!
//! Points in time are twice the index of an item. An item reads at `2 p`. Registers, stacks and
//! slots are written at `2 p + 1`, because a scalar instruction reads all operands before it
//! writes. An item writes buffers at `2 p`, because a kernel reads while it writes. The live range
//! of storage is a sorted list of closed intervals.
//!
//! Live ranges follow the order of the items with two additions. Storage that is written before a
//! loop and read inside it is live to the end of the loop, because the next iteration reads it
//! again. Three kinds of live ranges have holes: a loop variable between its last use in the body
//! and the back edge; the result of a conditional while the other branch runs; and storage whose
//! last uses are in both branches, between the last use in the first branch and the start of the
//! second. Without the last hole, a branch could not modify in place a value that the other branch
//! only reads.
//!
//! **Coalescing** merges two pieces of storage that are never live together. The live ranges of two
//! values may meet at a move between them, or at an elementwise map or row kernel that computes
//! each element of one value from the same element of the other value. Loop variables are thus
//! updated in place, branches write their results directly, and maps overwrite operands at their
//! last use.

use super::draft::{AccessKind, Draft, Item, Move, StorageIds};
use super::{Base, Instr, Out, TensorOp, TensorOpId, TensorOperand, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::Storage;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Index of a piece of storage, or of its class.
type Id = usize;

/// The live ranges and coalescing classes of all storage.
pub(crate) struct Liveness {
    ids: StorageIds,
    class: Vec<u32>,
    /// The live range of each class, as sorted closed intervals.
    ranges: Vec<Vec<(u32, u32)>>,
    /// Storage that is always live and is never coalesced.
    pinned: Vec<bool>,
}

/// The two items that write the result of a conditional.
#[derive(Clone, Copy, Debug)]
struct BranchWrites {
    then: u32,
    otherwise: u32,
}

impl Liveness {
    /// Computes all live ranges. `last` is read after all items.
    pub(crate) fn new<'a>(draft: &Draft, last: impl Iterator<Item = &'a TensorOperand>) -> Liveness {
        let ids = draft.storage_ids();
        let n = ids.len();
        let mut live =
            Liveness { ids, class: (0..n as u32).collect(), ranges: vec![Vec::new(); n], pinned: vec![false; n] };
        for &(r, _) in &draft.constant_regs {
            live.pinned[r.index()] = true;
        }
        let carried: FxHashMap<Id, u32> = draft.carried.iter().map(|&(s, l)| (ids.of(s), l)).collect();

        // The first write of each piece and all moves into it, then its last read, extended to the
        // ends of the enclosing loops.
        let mut first = vec![u32::MAX; n];
        let mut end = vec![0u32; n];
        let mut written = vec![Vec::new(); n];
        let mut last_in_body = vec![None::<u32>; n];
        // Storage written before a conditional: its last read in the first branch, and whether the
        // second branch reads it.
        let mut last_in_first: FxHashMap<(u32, Id), u32> = FxHashMap::default();
        let mut in_second: BTreeSet<(u32, Id)> = BTreeSet::new();
        for (p, item) in draft.items.iter().enumerate() {
            let p = p as u32;
            draft.touches(item, &mut |storage, touch| {
                let id = ids.of(storage);
                if touch == AccessKind::Write {
                    first[id] = first[id].min(p);
                    end[id] = end[id].max(2 * p + live.write_offset(id));
                    if matches!(item, Item::Moves(_)) {
                        written[id].push(p);
                    }
                    return;
                }
                let mut until = p;
                let mut at = draft.item_loops[p as usize];
                while let Some(l) = at {
                    let range = &draft.loops[l as usize];
                    if carried.get(&id) == Some(&l) && p <= range.back_edge {
                        last_in_body[id] = Some(last_in_body[id].unwrap_or(0).max(until));
                    }
                    if range.start <= first[id] && first[id] <= range.end {
                        break;
                    }
                    until = range.end;
                    at = range.parent;
                }
                end[id] = end[id].max(2 * until);
                let mut at = draft.item_arms[p as usize];
                while let Some(a) = at {
                    let arm = draft.arms[a as usize];
                    if first[id] < arm.start {
                        if arm.side == 1 {
                            in_second.insert((a, id));
                        } else {
                            let last = last_in_first.entry((a, id)).or_insert(0);
                            *last = (*last).max(until_in(draft, arm.start, p));
                        }
                    }
                    at = arm.parent;
                }
            });
        }
        for operand in last {
            if let Some(s) = operand.storage() {
                let id = ids.of(s);
                end[id] = 2 * draft.items.len() as u32;
            }
        }
        for id in 0..n {
            if first[id] == u32::MAX || live.pinned[id] {
                continue;
            }
            let offset = live.write_offset(id);
            let start = 2 * first[id] + offset;
            live.ranges[id] = match (carried.get(&id), &written[id][..]) {
                (Some(&l), _) => {
                    let l = &draft.loops[l as usize];
                    let pause = last_in_body[id].map_or(2 * l.start - 1, |p| 2 * p);
                    let resume = 2 * l.back_edge + offset;
                    let end = end[id].max(2 * l.end);
                    if pause < resume { vec![(start, pause), (resume, end)] } else { vec![(start, end)] }
                }
                (None, &[then, otherwise]) => {
                    let b = BranchWrites { then, otherwise };
                    // The jump after the first branch is the last point before the second branch.
                    vec![(start, 2 * b.then + 2), (2 * b.otherwise + offset, end[id])]
                }
                _ => vec![(start, end[id])],
            };
        }
        // Outer branches come first, so that an inner branch finds the interval that ends in it.
        for (second, id) in in_second {
            let (first, second_arm) = (draft.arms[second as usize - 1], draft.arms[second as usize]);
            let dies_here =
                |&(a, b): &(u32, u32)| a < 2 * first.start && 2 * second_arm.start <= b && b < 2 * second_arm.end;
            let Some(i) = live.ranges[id].iter().position(dies_here) else {
                continue;
            };
            let (a, b) = live.ranges[id][i];
            let jump = 2 * first.start - 1;
            let pause = last_in_first.get(&(second - 1, id)).map_or(jump, |p| 2 * p);
            live.ranges[id].splice(i..=i, [(a, pause.max(jump)), (2 * second_arm.start, b)]);
        }
        live
    }

    fn write_offset(&self, id: Id) -> u32 {
        u32::from(!matches!(self.ids.storage(id), Storage::Buffer(_)))
    }

    fn find(&self, mut id: Id) -> Id {
        while self.class[id] as usize != id {
            id = self.class[id] as usize;
        }
        id
    }

    fn class_of(&self, storage: Storage) -> Id {
        self.find(self.ids.of(storage))
    }

    /// Returns whether two pieces of storage are coalesced.
    pub(crate) fn same(&self, a: Storage, b: Storage) -> bool {
        self.class_of(a) == self.class_of(b)
    }

    /// Returns whether storage is live after item `p`.
    pub(crate) fn is_live_after(&self, storage: Storage, p: usize) -> bool {
        let (id, point) = (self.class_of(storage), 2 * p as u32 + 1);
        self.pinned[id] || self.ranges[id].iter().any(|&(a, b)| a <= point && point <= b)
    }

    /// Returns the first and last point at which a class is live, or `None` if it never is.
    pub(crate) fn live_range(&self, storage: Storage) -> Option<(u32, u32)> {
        let ranges = &self.ranges[self.class_of(storage)];
        Some((ranges.first()?.0, ranges.last()?.1))
    }

    /// Returns the representative of a class as storage.
    pub(crate) fn representative(&self, storage: Storage) -> Storage {
        self.ids.storage(self.class_of(storage))
    }

    /// Coalesces storage where that saves a move or memory: first loop variables, then other moves,
    /// then in-place maps and row kernels.
    pub(crate) fn coalesce(&mut self, draft: &Draft) {
        let back_edges: Vec<usize> = draft.loops.iter().map(|l| l.back_edge as usize).collect();
        for &p in &back_edges {
            self.coalesce_moves(draft, p);
        }
        for p in 0..draft.items.len() {
            self.coalesce_moves(draft, p);
        }
        for op in draft.items.iter().flat_map(ops_of) {
            let op = draft.op(*op);
            if let (Kernel::Rows(rows), Out::Views(outs)) = (&op.kernel, &op.out) {
                for (o, out) in outs.iter().enumerate() {
                    (0..op.operands.len()).any(|i| {
                        let operand = op.operands[i].view().storage();
                        let fits = matches!(operand, Some(Storage::Buffer(_))) && rows.may_lie_in(i, o);
                        fits && self.union(draft, operand.expect("a buffer"), out.storage().expect("a buffer"))
                    });
                }
            }
            let Out::View(out) = &op.out else { continue };
            for v in overwritten(op) {
                if matches!(v.base, Base::Buffer(_))
                    && self.union(draft, v.storage().expect("a buffer"), out.storage().expect("a buffer"))
                {
                    break;
                }
            }
        }
    }

    fn coalesce_moves(&mut self, draft: &Draft, p: usize) {
        let Item::Moves(moves) = &draft.items[p] else {
            return;
        };
        for m in moves {
            match m {
                Move::Reg { dst, src } => self.union(draft, Storage::Reg(*src), Storage::Reg(*dst)),
                Move::Tensor { dst, src } if is_all_of(src, dst) => {
                    self.union(draft, src.storage().expect("a buffer"), dst.storage().expect("a buffer"))
                }
                Move::Tensor { .. } => false,
                Move::Stack { dst, src } => self.union(draft, Storage::Stack(*src), Storage::Stack(*dst)),
                Move::Slot { dst, src } => self.union(draft, Storage::Slot(*src), Storage::Slot(*dst)),
            };
        }
    }

    /// Merges two classes if they are never live together. Returns whether they are now the same
    /// class.
    fn union(&mut self, draft: &Draft, a: Storage, b: Storage) -> bool {
        let (x, y) = (self.class_of(a), self.class_of(b));
        if x == y {
            return true;
        }
        if self.pinned[x] || self.pinned[y] || !self.alike(draft, a, b) {
            return false;
        }
        // Live ranges may overlap only in a point where one ends, the other begins, and the item
        // permits it.
        let (mut i, mut j) = (0, 0);
        let (rx, ry) = (&self.ranges[x], &self.ranges[y]);
        while i < rx.len() && j < ry.len() {
            let (from, to) = (rx[i].0.max(ry[j].0), rx[i].1.min(ry[j].1));
            if from < to {
                return false;
            }
            if from == to {
                let ok = if rx[i].1 == from && ry[j].0 == from {
                    self.may_touch(draft, from, x, y)
                } else if ry[j].1 == from && rx[i].0 == from {
                    self.may_touch(draft, from, y, x)
                } else {
                    false
                };
                if !ok {
                    return false;
                }
            }
            if rx[i].1 <= ry[j].1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        let mut all = std::mem::take(&mut self.ranges[x]);
        all.append(&mut self.ranges[y]);
        all.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (a, b) in all {
            match merged.last_mut() {
                Some(last) if a <= last.1 + 1 => last.1 = last.1.max(b),
                _ => merged.push((a, b)),
            }
        }
        self.ranges[x] = merged;
        self.class[y] = x as u32;
        true
    }

    /// Returns whether the item at a point may read `ends` and write `begins` in the same storage.
    fn may_touch(&self, draft: &Draft, point: u32, ends: Id, begins: Id) -> bool {
        if point % 2 == 1 {
            return false;
        }
        let class = |v: &View| v.storage().map(|s| self.class_of(s));
        match draft.items.get(point as usize / 2) {
            Some(Item::Moves(moves)) => moves.iter().any(|m| match m {
                Move::Tensor { dst, src } => {
                    class(dst) == Some(begins) && class(src) == Some(ends) && is_all_of(src, dst)
                }
                _ => false,
            }),
            Some(item) => {
                let writes = |op: &&TensorOpId| draft.op(**op).out.storage().any(|out| self.class_of(out) == begins);
                let Some(writer) = ops_of(item).iter().find(writes) else { return false };
                let others = ops_of(item).iter().filter(|&op| op != writer);
                self.may_write_over(draft.op(*writer), ends, begins)
                    && others.map(|&op| draft.op(op)).all(|other| {
                        let mut all =
                            other.operands.iter().filter_map(TensorOperand::storage).chain(other.out.storage());
                        all.all(|s| self.class_of(s) != ends)
                    })
            }
            None => false,
        }
    }

    /// Returns whether an operation may read `ends` and write `begins` in the same storage.
    fn may_write_over(&self, op: &TensorOp, ends: Id, begins: Id) -> bool {
        let class = |v: &View| v.storage().map(|s| self.class_of(s));
        if let (Kernel::Rows(rows), Out::Views(outs)) = (&op.kernel, &op.out) {
            let Some(o) = outs.iter().position(|out| class(out) == Some(begins)) else { return false };
            return op.operands.iter().enumerate().all(|(i, operand)| {
                let view = operand.view();
                class(view) != Some(ends) || (rows.may_lie_in(i, o) && is_all_of(view, &outs[o]))
            });
        }
        let Out::View(out) = &op.out else { return false };
        overwritten(op).next().is_some()
            && class(out) == Some(begins)
            && op.operands.iter().all(|operand| match operand {
                TensorOperand::View(v) => {
                    class(v) != Some(ends) || is_all_of(v, out) && overwritten(op).any(|o| std::ptr::eq(o, v))
                }
                TensorOperand::Slot(_) => false,
            })
    }

    /// Returns whether two pieces of storage have the same kind and size.
    fn alike(&self, draft: &Draft, a: Storage, b: Storage) -> bool {
        match (a, b) {
            (Storage::Buffer(a), Storage::Buffer(b)) => draft.buffers[a.index()] == draft.buffers[b.index()],
            (Storage::Stack(a), Storage::Stack(b)) => draft.stacks[a.index()] == draft.stacks[b.index()],
            (Storage::Reg(_), Storage::Reg(_)) | (Storage::Slot(_), Storage::Slot(_)) => true,
            _ => false,
        }
    }
}

/// Returns the tensor operations of an item.
fn ops_of(item: &Item) -> &[TensorOpId] {
    match item {
        Item::Instr(Instr::Run(op)) => std::slice::from_ref(op),
        Item::Ops(ops) => ops,
        _ => &[],
    }
}

/// Returns the operands that an operation may overwrite if they are laid out like its result.
fn overwritten(op: &TensorOp) -> impl Iterator<Item = &View> {
    let (all, addend) = match &op.kernel {
        Kernel::Map(_) => (&op.operands[..], None),
        Kernel::Matmul(product) => (&[][..], product.addend(&op.operands)),
        _ => (&[][..], None),
    };
    let views = all.iter().filter_map(|operand| if let TensorOperand::View(v) = operand { Some(v) } else { None });
    views.chain(addend)
}

/// Returns the last item of the outermost loop around `p` that begins at or after item `start`, or
/// `p` if there is none. Such a loop reads again at `p` in its next iteration.
fn until_in(draft: &Draft, start: u32, p: u32) -> u32 {
    let mut until = p;
    let mut at = draft.item_loops[p as usize];
    while let Some(l) = at {
        let range = &draft.loops[l as usize];
        if range.start < start {
            break;
        }
        until = range.end;
        at = range.parent;
    }
    until
}

/// Returns whether a view covers its buffer in the same element order as `dst`, a whole buffer.
fn is_all_of(view: &View, dst: &View) -> bool {
    matches!(view.base, Base::Buffer(_))
        && view.offset == 0
        && dst.offset == 0
        && view.n_bytes() == dst.n_bytes()
        && view.dtype.size() == dst.dtype.size()
        && view.is_contiguous()
        && dst.is_contiguous()
}
