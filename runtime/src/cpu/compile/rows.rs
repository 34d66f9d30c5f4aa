//! Fusion of tensor operations over the same rows.
//!
//! Lowering emits one operation per reduction and per elementwise chain between reductions. This
//! pass fuses operations of straight-line code over the same rows, which then run row by row (see
//! `cpu::kernels::rows`). A layer norm, for example, consists of two reductions, two chains over
//! reduced values, and a chain over all elements; its gradient also has column sums. Fused, each
//! tensor is read once, and values used only inside the group are never written to memory.
//!
//! A group has `r` rows of width `w`. An operation may belong to it if it cannot fail and is
//!
//! - an elementwise chain over `r * w` or `r` elements;
//! - a reduction or softmax of each row;
//! - a reduction over the rows, which yields columns;
//!
//! and if it reads values written by the group only row by row: all elements of each row in order,
//! or the value reduced from the row. Columns are complete only at the end of the group. The group
//! is placed where its last operation was. No item in between reads what it writes or writes what
//! it reads.
//!
//! A group pays off if a tensor that one of its operations reads in full is read or written by
//! another operation.

use super::draft::{AccessKind, Draft, Item, Storage};
use super::{Base, BufferId, Instr, Out, TensorOp, TensorOpId, TensorOperand, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::map_reduce::ReducedLayout;
use crate::cpu::kernels::rows::{
    MAX_STAGES, MAX_WIDTH, RowKernel, RowStage, RowStageDest, RowStageInput, RowStageKind,
};
use crate::cpu::memory::MAX_WRITTEN;
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of operands of a group.
const MAX_OPERANDS: usize = 48;

/// Fuses operations into groups. `last` is read after all items.
pub(super) fn join_rows<'a>(draft: &mut Draft, last: impl Iterator<Item = &'a TensorOperand>) {
    let mut reads: FxHashMap<BufferId, usize> = FxHashMap::default();
    let mut writes: FxHashMap<BufferId, usize> = FxHashMap::default();
    for item in &draft.items {
        draft.touches(item, &mut |storage, touch| {
            if let Storage::Buffer(b) = storage {
                *if touch == AccessKind::Read { &mut reads } else { &mut writes }.entry(b).or_default() += 1;
            }
        });
    }
    for operand in last {
        if let Some(Storage::Buffer(b)) = operand.storage() {
            *reads.entry(b).or_default() += 1;
        }
    }
    let mut labeled = vec![false; draft.items.len() + 1];
    draft.labels.iter().for_each(|&l| labeled[l as usize] = true);
    let mut group = Group::default();
    for (p, &is_labeled) in labeled.iter().enumerate().take(draft.items.len()) {
        let is_jump =
            matches!(draft.items[p], Item::Instr(Instr::Jump { .. } | Instr::JumpIf { .. } | Instr::JumpUnless { .. }));
        if is_labeled || is_jump {
            group.close(draft, &reads);
        }
        let member = match draft.items[p] {
            Item::Instr(Instr::Run(op)) => Member::of(draft, p, op, &writes),
            _ => None,
        };
        if let Some(member) = member {
            if let Some(member) = group.add(draft, member)
                && (group.conflicts(draft, p) || !group.has_reduction())
            {
                group.close(draft, &reads);
                let left = group.add(draft, member);
                debug_assert!(left.is_none(), "the first one fits");
            }
        } else if group.conflicts(draft, p) {
            group.close(draft, &reads);
        }
    }
    group.close(draft, &reads);
}

/// The way in which an operation of a group accesses rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Computes `n` elements independently.
    Elements { n: usize },
    /// Computes `result` elements per row.
    PerRow { rows: usize, width: usize, result: usize },
    /// Reduces over the rows.
    Columns { rows: usize, width: usize },
}

/// A tensor operation that may belong to a group.
#[derive(Clone, Debug)]
struct Member {
    item: usize,
    op: TensorOpId,
    role: Role,
    out: View,
    /// The operands it reads.
    views: Vec<View>,
}

impl Member {
    fn of(draft: &Draft, item: usize, id: TensorOpId, writes: &FxHashMap<BufferId, usize>) -> Option<Member> {
        let op = draft.op(id);
        let Out::View(out) = &op.out else { return None };
        let (role, n_read) = match &op.kernel {
            Kernel::Map(map) if map.is_total() => (Role::Elements { n: out.size() }, op.operands.len()),
            Kernel::MapReduce(reduce) => {
                let role = match reduce.layout() {
                    ReducedLayout::Trailing { n } => Role::PerRow { rows: out.size(), width: n, result: 1 },
                    ReducedLayout::Leading { n, row } => Role::Columns { rows: n, width: row },
                };
                (role, reduce.n_read())
            }
            Kernel::Softmax(softmax) => {
                let [width, result] = softmax.row_lengths()?;
                (Role::PerRow { rows: out.size() / result.max(1), width, result }, 1)
            }
            _ => return None,
        };
        let fits = match role {
            Role::Elements { n } => n > 1,
            Role::PerRow { rows, width, .. } | Role::Columns { rows, width } => {
                rows > 0 && (2..=MAX_WIDTH).contains(&width)
            }
        };
        let Base::Buffer(b) = out.base else { return None };
        let is_whole = out.is_contiguous() && out.offset == 0 && out.n_bytes() == draft.buffers[b.index()];
        let views: Vec<View> = op.operands[..n_read].iter().map(|o| o.view().clone()).collect();
        // Values modified in a loop have several writers.
        (fits && is_whole && writes.get(&b) == Some(&1)).then(|| Member { item, op: id, role, out: out.clone(), views })
    }

    /// Returns the number of result elements per row, or `None` if the operation does not fit a
    /// group of this size.
    fn fits(&self, rows: usize, width: usize) -> Option<usize> {
        match self.role {
            Role::Elements { n } if n == rows * width => Some(width),
            Role::Elements { n } if n == rows => Some(1),
            Role::PerRow { rows: r, width: w, result } if (r, w) == (rows, width) => Some(result),
            Role::Columns { rows: r, width: w } if (r, w) == (rows, width) => Some(width),
            _ => None,
        }
    }

    fn is_reduction(&self) -> bool {
        !matches!(self.role, Role::Elements { .. })
    }

    /// Returns whether the operation accesses all rows at full width.
    fn is_wide(&self, rows: usize, width: usize) -> bool {
        !matches!(self.role, Role::Elements { n } if n != rows * width)
    }
}

/// A group of operations to be fused.
#[derive(Default)]
struct Group {
    members: Vec<Member>,
    /// The number and width of the rows, once a reduction determines them.
    key: Option<(usize, usize)>,
    /// The storage that members write, with the index of the member.
    written: FxHashMap<Storage, usize>,
    read: FxHashSet<Storage>,
    /// The full-size tensors that members read.
    full: FxHashSet<(Base, usize)>,
    n_operands: usize,
    /// Whether members share a full-size tensor.
    shares: bool,
}

impl Group {
    fn has_reduction(&self) -> bool {
        self.key.is_some()
    }

    /// Returns whether an item outside the group accesses what the group writes, or writes what it
    /// reads.
    fn conflicts(&self, draft: &Draft, p: usize) -> bool {
        let mut conflicts = false;
        draft.touches(&draft.items[p], &mut |storage, touch| {
            conflicts |=
                self.written.contains_key(&storage) || (touch == AccessKind::Write && self.read.contains(&storage));
        });
        conflicts
    }

    /// Returns the key of the group with another member, or `None` if they do not fit together.
    fn key_with(&self, member: &Member) -> Option<Option<(usize, usize)>> {
        let all = || self.members.iter().chain([member]);
        if let Some((rows, width)) = self.key {
            return member.fits(rows, width).map(|_| self.key);
        }
        match member.role {
            Role::PerRow { rows, width, .. } | Role::Columns { rows, width } => {
                // Only chains over all elements may precede the first reduction.
                let fits = all().all(|m| m.is_reduction() || m.role == Role::Elements { n: rows * width });
                fits.then_some(Some((rows, width)))
            }
            role => all().all(|m| m.role == role).then_some(None),
        }
    }

    /// Returns whether a member may read a view, and whether that is a full-size tensor that other
    /// members read or write.
    fn may_read(&self, member: &Member, view: &View, key: Option<(usize, usize)>) -> (bool, bool) {
        let is_all = view.is_contiguous() && view.offset == 0;
        let Some(writer) = view.storage().and_then(|s| self.written.get(&s)) else {
            return (true, self.full.contains(&(view.base, view.offset)) && view.is_contiguous());
        };
        let Some((rows, width)) = key else { return (is_all && view.size() == member.out.size(), true) };
        let writer = &self.members[*writer];
        if matches!(writer.role, Role::Columns { .. }) {
            return (false, false);
        }
        let is_wide = member.is_wide(rows, width);
        match writer.fits(rows, width) {
            Some(1) if is_wide => (is_per_row(view, rows, width), false),
            Some(1) => (is_all && view.size() == rows, false),
            Some(_) => (is_wide && is_all && view.size() == rows * width, true),
            None => (false, false),
        }
    }

    /// Adds an operation. Returns it if it does not belong to the group.
    fn add(&mut self, draft: &Draft, member: Member) -> Option<Member> {
        let Some(key) = self.key_with(&member) else { return Some(member) };
        let reads: Vec<(bool, bool)> = member.views.iter().map(|v| self.may_read(&member, v, key)).collect();
        let shares = reads.iter().any(|&(_, shares)| shares);
        let uses = member.views.iter().any(|v| v.storage().is_some_and(|s| self.written.contains_key(&s)));
        let has_room = self.members.len() < MAX_STAGES && self.n_operands + member.views.len() <= MAX_OPERANDS;
        let belongs = self.members.is_empty() || uses || shares || member.is_reduction();
        let writes_what_is_read = self.read.contains(&member.out.storage().expect("a buffer"));
        if !has_room || !belongs || writes_what_is_read || !reads.iter().all(|&(may, _)| may) {
            return Some(member);
        }
        self.key = key;
        self.shares |= shares;
        self.n_operands += member.views.len();
        let size = match (key, member.role) {
            (Some((rows, width)), _) => rows * width,
            (None, Role::Elements { n }) => n,
            _ => 0,
        };
        for view in &member.views {
            self.read.extend(view.storage());
            if view.size() == size && view.is_contiguous() {
                self.full.insert((view.base, view.offset));
            }
        }
        self.written.insert(member.out.storage().expect("a buffer"), self.members.len());
        debug_assert!(matches!(draft.items[member.item], Item::Instr(Instr::Run(_))));
        self.members.push(member);
        None
    }

    /// Ends the group and fuses its operations if that pays off.
    fn close(&mut self, draft: &mut Draft, reads: &FxHashMap<BufferId, usize>) {
        let group = std::mem::take(self);
        if let (Some((rows, width)), true) = (group.key, group.shares && group.members.len() > 1) {
            group.join(draft, reads, rows, width);
        }
    }

    /// Returns for each member whether only the group reads its result.
    fn inside(&self, draft: &Draft, reads: &FxHashMap<BufferId, usize>) -> Vec<bool> {
        let mut reads_inside: FxHashMap<BufferId, usize> = FxHashMap::default();
        for member in &self.members {
            // Unused operands count too, as in `reads`.
            for operand in &draft.op(member.op).operands {
                if let Some(Storage::Buffer(b)) = operand.storage() {
                    *reads_inside.entry(b).or_default() += 1;
                }
            }
        }
        let is_inside = |member: &Member| {
            let Base::Buffer(b) = member.out.base else { panic!("a member writes a buffer") };
            reads.get(&b) == reads_inside.get(&b)
        };
        self.members.iter().map(is_inside).collect()
    }

    fn join(mut self, draft: &mut Draft, reads: &FxHashMap<BufferId, usize>, rows: usize, width: usize) {
        let mut inside = self.inside(draft, reads);
        loop {
            let outs = self.members.iter().zip(&inside).map(|(member, &inside)| match member.role {
                Role::Columns { .. } => 2,
                _ => usize::from(!inside),
            });
            if outs.sum::<usize>() <= MAX_WRITTEN {
                break;
            }
            // Operations at the end may stay separate.
            self.members.pop();
            inside = self.inside(draft, reads);
        }
        let (mut outs, mut operands, mut stages): (Vec<View>, Vec<View>, Vec<RowStage>) = Default::default();
        for (member, &inside) in self.members.iter().zip(&inside) {
            let input = |view: &View| match view.storage().and_then(|s| self.written.get(&s)) {
                Some(&stage) => RowStageInput::Value(stage as u8),
                None => {
                    let i = operands.iter().position(|v| v == view).unwrap_or_else(|| {
                        operands.push(view.clone());
                        operands.len() - 1
                    });
                    RowStageInput::Operand(i as u8)
                }
            };
            let inputs = member.views.iter().map(input).collect();
            let work = match &draft.op(member.op).kernel {
                Kernel::Map(map) => RowStageKind::Map(map.clone()),
                Kernel::MapReduce(reduce) => RowStageKind::Reduce(reduce.clone()),
                Kernel::Softmax(softmax) => RowStageKind::Softmax(*softmax),
                other => panic!("{other:?} is not a member of a group"),
            };
            let to = if let Role::Columns { .. } = member.role {
                let chunks = vec![RowKernel::n_chunks(rows, width), width];
                let b = BufferId(draft.buffers.len() as u32);
                let chunks = View::whole(Base::Buffer(b), member.out.dtype, chunks);
                draft.buffers.push(chunks.n_bytes());
                outs.extend([chunks, member.out.clone()]);
                RowStageDest::Columns { chunks: outs.len() as u8 - 2, out: outs.len() as u8 - 1 }
            } else if inside {
                RowStageDest::Scratch
            } else {
                outs.push(member.out.clone());
                RowStageDest::Out(outs.len() as u8 - 1)
            };
            stages.push(RowStage {
                work,
                views: member.views.clone(),
                inputs,
                to,
                width: member.fits(rows, width).expect("the width of a member was checked"),
                size: member.out.dtype.size(),
            });
        }
        let last = &self.members[self.members.len() - 1];
        let TensorOp { name, loc, .. } = *draft.op(last.op);
        let kernel = Kernel::Rows(RowKernel::new(rows, width, stages));
        let operands = operands.into_iter().map(TensorOperand::View).collect();
        for member in &self.members {
            draft.items[member.item] = Item::Moves(Vec::new());
            draft.scalar_ops[member.item] = None;
            let op = &mut draft.tensor_ops[member.op.index()];
            (op.kernel, op.operands, op.out) = (Kernel::Data, Vec::new(), Out::Nothing);
        }
        draft.items[last.item] = Item::Instr(Instr::Run(last.op));
        let out = Out::Views(outs);
        draft.tensor_ops[last.op.index()] = TensorOp { kernel, operands, out, meaning: None, name, loc };
    }
}

/// Returns whether a view of all elements shows one element per row, that of the row.
fn is_per_row(view: &View, rows: usize, width: usize) -> bool {
    use crate::cpu::kernels::walk::{Axis, merged};
    let axes = merged(&view.shape, [&view.strides]);
    let inner = Axis { n: width, strides: [0] };
    view.offset == 0 && (axes == [Axis { n: rows, strides: [1] }, inner.clone()] || (rows == 1 && axes == [inner]))
}
