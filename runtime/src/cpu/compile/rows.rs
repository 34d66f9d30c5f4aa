//! The operations of a kernel of rows as one tensor operation.
//!
//! Fusion finds the kernels (`dsl/src/fusion/rows.rs`), and lowering emits an operation for each of
//! their parts. This pass replaces these by one that runs row by row (see `cpu::kernels::rows`),
//! where the last of them was: `r` rows of `w` contiguous elements. Each operation is
//!
//! - an elementwise map of `r * w` or `r` elements;
//! - a reduction or softmax of each row;
//! - a reduction over the rows, which yields columns.
//!
//! The layout of a tensor is known only now. If the rows of a kernel are not contiguous in memory,
//! or if one of its operations reads a copy of the result of another, its operations stay as they
//! are. An update of a variable may have taken one out of the code.

use super::draft::{AccessKind, Draft, Item};
use super::{Base, BufferId, Instr, Out, TensorOp, TensorOpId, TensorOperand, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::map_reduce::ReducedLayout;
use crate::cpu::kernels::rows::{RowKernel, RowStage, RowStageDest, RowStageInput, RowStageKind};
use crate::cpu::memory::MAX_WRITTEN;
use crate::cpu::memory::Storage;
use anabranch_dsl::ops::OpCost;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Joins the operations of the kernels of rows. `last` is read after all items.
pub(super) fn join_rows<'a>(draft: &mut Draft, last: impl Iterator<Item = &'a TensorOperand>) {
    let kernels = std::mem::take(&mut draft.row_kernels);
    if kernels.is_empty() {
        return;
    }
    let mut reads: FxHashMap<BufferId, usize> = FxHashMap::default();
    for item in &draft.items {
        draft.touches(item, &mut |storage, touch| {
            if let (Storage::Buffer(b), AccessKind::Read) = (storage, touch) {
                *reads.entry(b).or_default() += 1;
            }
        });
    }
    for operand in last {
        if let Some(Storage::Buffer(b)) = operand.storage() {
            *reads.entry(b).or_default() += 1;
        }
    }
    for items in kernels {
        if let Some(rows) = JoinedRows::of(draft, items) {
            rows.join(draft, &reads);
        }
    }
}

/// The way in which an operation accesses rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Computes `n` elements independently.
    Elements { n: usize },
    /// Computes `result` elements per row.
    PerRow { rows: usize, width: usize, result: usize },
    /// Reduces over the rows.
    Columns { rows: usize, width: usize },
}

/// The operation of a part.
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
    /// Returns the operation of an item as a member. An operation that is no part, such as a copy
    /// of an operand, is not one, and a part that is not computed row by row is an error.
    fn of(draft: &Draft, item: usize) -> Option<Result<Member, NotInRows>> {
        let Item::Instr(Instr::Run(id)) = draft.items[item] else { return None };
        let op = draft.op(id);
        let Out::View(out) = &op.out else { return Some(Err(NotInRows)) };
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
                let Some([width, result]) = softmax.row_lengths() else { return Some(Err(NotInRows)) };
                (Role::PerRow { rows: out.size() / result.max(1), width, result }, 1)
            }
            Kernel::Copy(_) | Kernel::FromSlot => return None,
            _ => return Some(Err(NotInRows)),
        };
        let Base::Buffer(b) = out.base else { return Some(Err(NotInRows)) };
        let is_whole = out.is_contiguous() && out.offset == 0 && out.n_bytes() == draft.buffers[b.index()];
        let views: Vec<View> = op.operands[..n_read].iter().map(|o| o.view().clone()).collect();
        Some(if is_whole { Ok(Member { item, op: id, role, out: out.clone(), views }) } else { Err(NotInRows) })
    }

    /// Returns the number of result elements per row, or `None` if the operation does not fit rows
    /// of this number and width.
    fn fits(&self, rows: usize, width: usize) -> Option<usize> {
        match self.role {
            Role::Elements { n } if n == rows * width => Some(width),
            Role::Elements { n } if n == rows => Some(1),
            Role::PerRow { rows: r, width: w, result } if (r, w) == (rows, width) => Some(result),
            Role::Columns { rows: r, width: w } if (r, w) == (rows, width) => Some(width),
            _ => None,
        }
    }

    /// Returns whether the operation accesses all rows at full width.
    fn is_wide(&self, rows: usize, width: usize) -> bool {
        !matches!(self.role, Role::Elements { n } if n != rows * width)
    }
}

/// The reason why a kernel stays in parts: memory has no rows for one of them.
#[derive(Clone, Copy, Debug)]
struct NotInRows;

/// The operations of a kernel, which memory has rows for.
struct JoinedRows {
    members: Vec<Member>,
    rows: usize,
    width: usize,
    /// The storage that members write, with the index of the member.
    written: FxHashMap<Storage, usize>,
}

impl JoinedRows {
    /// Returns the operations of a kernel, unless they stay as they are.
    fn of(draft: &Draft, items: Range<usize>) -> Option<JoinedRows> {
        let members: Result<Vec<Member>, NotInRows> = items.clone().filter_map(|p| Member::of(draft, p)).collect();
        let members = members.ok().filter(|members| members.len() > 1)?;
        let (rows, width) = members.iter().find_map(|member| match member.role {
            Role::PerRow { rows, width, .. } | Role::Columns { rows, width } => Some((rows, width)),
            Role::Elements { .. } => None,
        })?;
        let mut joined = JoinedRows { members: Vec::new(), rows, width, written: FxHashMap::default() };
        for member in members {
            member.fits(rows, width)?;
            if !member.views.iter().all(|view| joined.may_read(&member, view)) {
                return None;
            }
            joined.written.insert(member.out.storage().expect("a buffer"), joined.members.len());
            joined.members.push(member);
        }
        items.into_iter().all(|item| joined.may_stay_before(draft, item)).then_some(joined)
    }

    /// Returns whether an item may run before all members: whether it is one, or uses nothing that
    /// members write. The copy of a member's result does.
    fn may_stay_before(&self, draft: &Draft, item: usize) -> bool {
        let mut uses_result = false;
        draft.touches(&draft.items[item], &mut |storage, _| uses_result |= self.written.contains_key(&storage));
        !uses_result || self.members.iter().any(|member| member.item == item)
    }

    /// Returns whether a view of what another member writes shows the rows in order, or the value
    /// of each row.
    fn may_read(&self, member: &Member, view: &View) -> bool {
        let Some(writer) = view.storage().and_then(|s| self.written.get(&s)) else { return true };
        let JoinedRows { rows, width, .. } = *self;
        let is_all = view.is_contiguous() && view.offset == 0;
        let writer = &self.members[*writer];
        let is_wide = member.is_wide(rows, width);
        match writer.fits(rows, width) {
            _ if matches!(writer.role, Role::Columns { .. }) => false,
            Some(1) if is_wide => is_per_row(view, rows, width),
            Some(1) => is_all && view.size() == rows,
            _ => is_wide && is_all && view.size() == rows * width,
        }
    }

    /// Returns for each member whether only members read its result.
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

    fn join(self, draft: &mut Draft, reads: &FxHashMap<BufferId, usize>) {
        let JoinedRows { rows, width, .. } = self;
        let inside = self.inside(draft, reads);
        let n_outs = self.members.iter().zip(&inside).map(|(member, &inside)| match member.role {
            Role::Columns { .. } => 2,
            _ => usize::from(!inside),
        });
        if n_outs.sum::<usize>() > MAX_WRITTEN {
            return;
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
        draft.tensor_ops[last.op.index()] =
            TensorOp { kernel, operands, out, meaning: None, cost: OpCost::default(), name, loc };
    }
}

/// Returns whether a view of all elements shows one element per row, that of the row.
fn is_per_row(view: &View, rows: usize, width: usize) -> bool {
    use crate::cpu::kernels::walk::{Axis, merged};
    let axes = merged(&view.shape, [&view.strides]);
    let inner = Axis { n: width, strides: [0] };
    view.offset == 0 && (axes == [Axis { n: rows, strides: [1] }, inner.clone()] || (rows == 1 && axes == [inner]))
}

#[cfg(test)]
mod tests {
    use crate::cpu::compile::{LowerOptions, lower};
    use crate::cpu::kernels::Kernel;
    use anabranch_dsl::Graph;

    /// Returns the number of operations of rows in the plan of a graph, and of operations.
    fn counts(text: &str) -> [usize; 2] {
        let graph = Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
        let plan = lower(&graph, LowerOptions::default()).unwrap();
        let is_rows = |op: &&crate::cpu::kernels::TensorOp| matches!(op.kernel, Kernel::Rows(_));
        [plan.tensor_ops.iter().filter(is_rows).count(), plan.code.len()]
    }

    /// Returns the sums over all but the channels of `y` and of its square.
    fn moments(y: &str) -> String {
        format!(
            "graph @f(%x: f32[8, 64, 14, 14], %w: f32[64, 64, 3, 3], %z: f32[8, 64, 14, 14]) -> (f32[64], f32[64]) {{
                {y}
                %q = mul %y, %z
                %a = sum %y {{axes=[0, 2, 3], keepdim=false}}
                %b = sum %q {{axes=[0, 2, 3], keepdim=false}}
                return %a, %b
            }}"
        )
    }

    #[test]
    fn rows_of_images_are_joined_where_channels_are_last_in_memory() {
        let conv = "%y = conv %x, %w {strides=[1, 1], padding=[1, 1, 1, 1], dilation=[1, 1], groups=1}";
        assert_eq!(counts(&moments(conv))[0], 1);
        assert_eq!(counts(&moments("%y = mul %x, %x"))[0], 0);
    }

    #[test]
    fn the_kernel_of_a_layer_norm_is_shown_stage_by_stage() {
        let text = "graph @f(%x: f32[16, 32]) -> f32[16, 32] {
            %s = sum %x {axes=[1], keepdim=true}
            %m = broadcast_to %s {shape=[16, 32]}
            %d = sub %x, %m
            %q = mul %d, %d
            %v = sum %q {axes=[1], keepdim=true}
            %r = rsqrt %v
            %b = broadcast_to %r {shape=[16, 32]}
            %y = mul %d, %b
            return %y
        }";
        let graph = Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
        let expected = "  fused kernels:
    kernel [16, 32]
      in x f32[16, 32] at [a0, a1]
      s f32 [a0] = sum of x over a1
      d f32 [a0, a1] = sub x, s
      q f32 [a0, a1] = mul d, d
      v f32 [a0] = sum of q over a1
      r f32 [a0] = rsqrt v
      out y f32 [a0, a1] = mul d, r
";
        let options = LowerOptions::default();
        assert_eq!(crate::cpu::compile::kernels_text(&graph, options), expected);
        assert_eq!(counts(text), [1, 1]);
    }

    #[test]
    fn a_view_between_parts_is_made_after_the_operation_of_rows() {
        let text = "graph @f(%x: f32[16, 32]) -> (f32[16, 32], f32[32, 16]) {
            %y = exp %x
            %t = permute %y {axes=[1, 0]}
            %s = sum %y {axes=[1], keepdim=true}
            %b = broadcast_to %s {shape=[16, 32]}
            %z = div %y, %b
            %u = neg %t
            return %z, %u
        }";
        assert_eq!(counts(text), [1, 2]);
    }
}
