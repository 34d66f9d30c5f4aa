//! The steps of operations on rows, for the lanes of one vector.
//!
//! **Basic blocks.** A vector goes through the basic blocks of a loop as a block of lanes does: the
//! first basic block for which lanes wait runs next. Lanes that all go on at one place are passed
//! on as the current ones, and only where lanes are sent apart does a mask hold those that wait.
//!
//! **Rows.** Rows that basic blocks pass on to each other are loaded before the first one and
//! stored after the last one. Between both a row has one place, which changes at the ends of basic
//! blocks, in the current lanes alone, so the others keep their elements. Within a basic block, the
//! values of rows are those that were computed last. Both arms of a branch compute in all lanes,
//! and then the condition chooses, so masks count only where operations may fail.

use super::liveness::{RowLiveness, Rows};
use super::scalar::{Functions, has_eight_bytes, is_supported};
use super::steps::{
    CodeStep, CodeSteps, LaneElement, Lifetime, RegisterGroup, StepTarget, ValueId, VectorAccess, VectorPart,
    VectorStep,
};
use super::{CodeSource, LaneBody, LaneCount, LaneInstructions, LoopBlocks};
use crate::cpu::kernels::ScalarOp;
use crate::cpu::lanes::program::{BlockEnd, ElementIndex, ElementSource, LaneOp, RowId, RowStart, StackPlace};
use crate::cpu::x86::encode::{self as x86, MaskOp};
use anabranch_dsl::DType;
use anabranch_dsl::ops::{OpClass, ScalarForm, prim};
use anabranch_dsl::scalars::ScalarExpr;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Arms of a branch with more steps are jumped over if no lane takes them.
const MANY_STEPS: usize = 12;

/// The steps of some operations, and the rows that they load and store by their index.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) steps: CodeSteps,
    pub(super) rows: Vec<RowId>,
    /// The tensors that the steps read.
    pub(super) tensors: Vec<ReadTensor>,
    pub(super) stacks: Vec<UsedStack>,
    pub(super) groups: Vec<StackGroup>,
    pub(super) lanes: LaneCount,
}

/// A stack that code changes or reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedStack {
    /// Its index in the program.
    pub(super) of_program: u16,
    pub(super) group: u16,
    /// The size of an element in bytes.
    pub(super) size: usize,
}

/// Stacks with the same number of elements in each lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackGroup {
    depth: RowId,
    /// The room that lanes without elements need.
    pub(super) min_room: u32,
}

/// A tensor of which code reads elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTensor {
    pub(super) source: CodeSource,
    /// The size of an element in bytes.
    pub(super) size: usize,
    /// The number of elements that the steps read without a check.
    pub(super) n: usize,
}

/// Returns the recorded form of a function, or `None` if it has none. A function that returns its
/// operand has the form of a conversion to the same type.
fn form(op: ScalarOp) -> Option<ScalarExpr> {
    if ![op.operand, op.result].into_iter().all(is_supported) {
        return None;
    }
    match op.op.class {
        OpClass::Scalar(ScalarForm::Identity) => Some(ScalarExpr::conversion(op.operand, op.operand)),
        _ if op.op == prim::SELECT => Some(ScalarExpr::select(op.operand)),
        _ => op.op.scalar_form_to(op.operand, op.result),
    }
}

/// Returns the size of the largest elements of operations, 4 or 8 bytes.
fn largest<'a>(body: LaneBody<'_>, ops: impl Iterator<Item = &'a LaneOp>) -> usize {
    let has_large = |row: RowId| body.rows[usize::from(row)].size == 8;
    let has_large_index = |index: Option<ElementIndex>| index.is_some_and(|index| index.dtype == DType::I64);
    let is_large = |op: &LaneOp| match op {
        LaneOp::Function { op, dst, args, .. } => {
            args.iter().chain([dst]).any(|&row| has_large(row)) || form(*op).is_some_and(|form| has_eight_bytes(&form))
        }
        LaneOp::DividePower { dst: row, .. } | LaneOp::Move { dst: row, .. } | LaneOp::RequireIndex { a: row, .. } => {
            has_large(*row)
        }
        LaneOp::ReadElement { dst, index, .. } => has_large(*dst) || has_large_index(*index),
        LaneOp::Push { src: row, .. } | LaneOp::Pop { dst: row, .. } => has_large(*row),
        LaneOp::PushPlace { index, .. } => has_large_index(*index),
        LaneOp::Branches { arms, .. } => arms.iter().any(|arm| largest(body, arm.iter()) == 8),
        _ => false,
    };
    if ops.into_iter().any(is_large) { 8 } else { 4 }
}

/// Returns whether there are steps for an operation.
pub(super) fn has_steps(body: LaneBody<'_>, set: LaneInstructions, op: &LaneOp) -> bool {
    let mut lowering = Lowering::new(body, set.lanes(largest(body, std::iter::once(op))), true);
    lowering.op(op).is_some() && lowering.f.steps.are_possible_with(set)
}

/// Lowers operations that follow each other. Elements of the rows that are live after them are
/// stored, if they change.
pub(super) fn lower_run(body: LaneBody<'_>, set: LaneInstructions, ops: &[LaneOp], live: &Rows) -> Option<Lowered> {
    let mut lowering = Lowering::new(body, set.lanes(largest(body, ops.iter())), true);
    ops.iter().try_for_each(|op| lowering.op(op))?;
    let brief = lowering.values.iter().filter(|&(row, _)| live.contains(row) && !lowering.is_passed_on(*row));
    let mut stored: Vec<(RowId, ValueId)> = brief.map(|(&row, &value)| (row, value)).collect();
    stored.sort_unstable();
    for (row, value) in &mut stored {
        // The place of another row may change before it is stored.
        if lowering.passed_on.values().any(|place| place == value) {
            *value = lowering.copied(*value, lowering.size(*row));
        }
    }
    lowering.assign(live);
    let lowered = lowering.finish(stored, |_| true, |row| live.contains(&row));
    lowered.steps.are_possible_with(set).then_some(lowered)
}

/// Lowers the basic blocks of a loop.
pub(super) fn lower_loop(
    body: LaneBody<'_>,
    set: LaneInstructions,
    blocks: &LoopBlocks,
    liveness: &RowLiveness,
) -> Option<Lowered> {
    let ops = blocks.range.clone().flat_map(|i| &body.blocks[usize::from(i)].ops);
    let mut lowering = Lowering::new(body, set.lanes(largest(body, ops)), false);
    lowering.blocks(blocks, liveness)?;
    let (before, after) = (liveness.before(blocks.entry), liveness.before(blocks.exit));
    let lowered = lowering.finish(Vec::new(), |row| before.contains(&row), |row| after.contains(&row));
    lowered.steps.are_possible_with(set).then_some(lowered)
}

/// Where lanes go from the end of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneWay {
    /// To the end of the loop.
    Exit,
    /// To this or an earlier basic block.
    Back(u16),
    Forward(u16),
}

fn way(blocks: &LoopBlocks, here: u16, to: u16) -> LaneWay {
    match to {
        to if !blocks.range.contains(&to) => LaneWay::Exit,
        to if to <= here => LaneWay::Back(to),
        to => LaneWay::Forward(to),
    }
}

/// Returns the basic blocks for which lanes may wait while others go on.
fn with_waiting(body: LaneBody<'_>, blocks: &LoopBlocks) -> FxHashSet<u16> {
    let mut waiting = FxHashSet::default();
    loop {
        let n = waiting.len();
        for here in blocks.range.clone() {
            waiting.extend(body.blocks[usize::from(here)].aligned.map(|(_, wait_at)| wait_at));
            match body.blocks[usize::from(here)].end {
                BlockEnd::Jump(to) => {
                    if let LaneWay::Forward(to) = way(blocks, here, to)
                        && (here + 1..=to).any(|block| waiting.contains(&block))
                    {
                        waiting.insert(to);
                    }
                }
                BlockEnd::Branch { to, otherwise, .. } => match (way(blocks, here, to), way(blocks, here, otherwise)) {
                    (LaneWay::Forward(a), LaneWay::Forward(b)) => waiting.extend([a, b]),
                    (LaneWay::Back(_), LaneWay::Forward(to)) | (LaneWay::Forward(to), LaneWay::Back(_)) => {
                        waiting.insert(to);
                    }
                    (LaneWay::Exit, LaneWay::Forward(to)) | (LaneWay::Forward(to), LaneWay::Exit)
                        if (here + 1..=to).any(|block| waiting.contains(&block)) =>
                    {
                        waiting.insert(to);
                    }
                    _ => {}
                },
            }
        }
        if waiting.len() == n {
            return waiting;
        }
    }
}

struct Lowering<'a> {
    body: LaneBody<'a>,
    f: Functions,
    /// The lanes in which operations must not fail.
    mask: ValueId,
    /// The places of rows that basic blocks pass on, or that earlier operations have computed.
    passed_on: BTreeMap<RowId, ValueId>,
    /// Those of them that change.
    changed: FxHashSet<RowId>,
    /// The values of rows that operations of the current basic block have computed.
    values: FxHashMap<RowId, ValueId>,
    /// Whether earlier operations may have computed elements of a basic block.
    has_inputs: bool,
    tensors: Vec<ReadTensor>,
    stacks: Vec<UsedStack>,
    groups: Vec<StackGroup>,
    /// The depths for which steps have found the elements of groups, and the room that they need.
    stack_rows: FxHashMap<u16, (ValueId, u32, VectorAccess)>,
    /// The number of loops around the current steps.
    depth: u32,
}

impl<'a> Lowering<'a> {
    fn new(body: LaneBody<'a>, lanes: LaneCount, has_inputs: bool) -> Lowering<'a> {
        Lowering {
            body,
            f: Functions::new(lanes),
            mask: ValueId::CURRENT,
            passed_on: BTreeMap::new(),
            changed: FxHashSet::default(),
            values: FxHashMap::default(),
            has_inputs,
            tensors: Vec::new(),
            stacks: Vec::new(),
            groups: Vec::new(),
            stack_rows: FxHashMap::default(),
            depth: 0,
        }
    }

    fn steps(&mut self) -> &mut CodeSteps {
        &mut self.f.steps
    }

    fn size(&self, row: RowId) -> usize {
        self.body.rows[usize::from(row)].size
    }

    fn is_passed_on(&self, row: RowId) -> bool {
        let info = self.body.rows[usize::from(row)];
        info.is_kept || info.start != RowStart::Nothing
    }

    /// Returns the value of a row that is loaded before all steps.
    fn loaded(&mut self, row: RowId) -> ValueId {
        let group = if self.size(row) == 1 { RegisterGroup::Masks } else { RegisterGroup::Vectors };
        let steps = &mut self.f.steps;
        *self.passed_on.entry(row).or_insert_with(|| steps.value(group, Lifetime::Throughout))
    }

    fn read(&mut self, row: RowId) -> Option<ValueId> {
        let info = self.body.rows[usize::from(row)];
        if let (RowStart::Constant(bits), false) = (info.start, info.is_kept) {
            return matches!(info.size, 1 | 4 | 8).then(|| self.f.constant(bits, info.size));
        }
        if let Some(&value) = self.values.get(&row) {
            return Some(value);
        }
        ((self.is_passed_on(row) || self.has_inputs) && info.size != 2).then(|| self.loaded(row))
    }

    /// Sets the places of rows that are live and that operations have computed, in the current
    /// lanes.
    fn assign(&mut self, live: &Rows) {
        let computed = self.values.iter().filter(|&(row, _)| live.contains(row) && self.is_passed_on(*row));
        let mut computed: Vec<(RowId, ValueId)> = computed.map(|(&row, &value)| (row, value)).collect();
        computed.sort_unstable();
        // A value may be that of the place of another row, which must not change before.
        let places: Vec<ValueId> = computed.iter().map(|&(row, _)| self.loaded(row)).collect();
        for (row, value) in &mut computed {
            if places.contains(value) && self.passed_on.get(row) != Some(value) {
                *value = self.copied(*value, self.size(*row));
            }
        }
        for (row, value) in computed {
            if self.passed_on.get(&row) != Some(&value) {
                self.changed.insert(row);
                self.assign_one(row, value);
            }
        }
    }

    fn assign_one(&mut self, row: RowId, value: ValueId) {
        let (to, mask, size) = (self.loaded(row), ValueId::CURRENT, self.size(row));
        if size == 1 {
            let others = self.steps().mask(MaskOp::AndNot, mask, to);
            let new = self.steps().mask(MaskOp::And, mask, value);
            self.steps().push(CodeStep::Mask { op: MaskOp::Or, dst: to, a: others, b: new });
            return;
        }
        let op = if size == 8 { &x86::COPY_64 } else { &x86::COPY_32 };
        let length = self.f.lanes.length(size);
        self.steps().push(CodeStep::Vector(VectorStep {
            op,
            length,
            dst: to,
            sources: [Some(value), None],
            before: Some(to),
            mask: Some(mask),
            zeroing: false,
            immediate: None,
        }));
    }

    /// Returns a copy of a value.
    fn copied(&mut self, value: ValueId, size: usize) -> ValueId {
        if size == 1 {
            let dst = self.steps().value(RegisterGroup::Masks, Lifetime::Brief);
            self.steps().push(CodeStep::MaskCopy { dst, src: value });
            return dst;
        }
        let op = if size == 8 { &x86::COPY_64 } else { &x86::COPY_32 };
        let length = self.f.lanes.length(size);
        self.steps().vector(op, length, &[value], None)
    }

    /// Adds the steps of an operation, if there are any for it.
    fn op(&mut self, op: &LaneOp) -> Option<()> {
        match *op {
            LaneOp::Function { op, dst, args, .. } => {
                let form = form(op)?;
                let mut arguments = [ValueId::CURRENT; 3];
                for (argument, row) in arguments.iter_mut().zip(args) {
                    *argument = self.read(row)?;
                }
                let value = self.f.function(&form, &arguments)?;
                self.values.insert(dst, value);
            }
            LaneOp::DividePower { dst, a, dtype, shift, wants_remainder } => {
                let x = self.read(a)?;
                let value = self.f.divided_by_power(x, dtype, shift, wants_remainder)?;
                self.values.insert(dst, value);
            }
            LaneOp::Move { dst, src } => {
                if self.size(src) == 1 && self.body.has_byte_numbers {
                    return None;
                }
                let value = self.read(src)?;
                self.values.insert(dst, value);
            }
            LaneOp::RequireIndex { a, dtype, n } => {
                let x = self.read(a)?;
                let is_valid = self.f.are_below(x, dtype, n)?;
                self.require(is_valid);
            }
            LaneOp::Assert { cond } => {
                let cond = self.read(cond)?;
                self.require(cond);
            }
            LaneOp::Branches { cond, ref arms } => self.branches(cond, arms)?,
            LaneOp::ReadElement { from, offset, index, dst } => {
                let value = self.element(from, offset, index, self.size(dst))?;
                self.values.insert(dst, value);
            }
            LaneOp::Push { stack, at, src } => {
                let src_size = self.stack_size(src)?;
                let src = self.read(src)?;
                self.push(stack, at, src, src_size)?;
            }
            LaneOp::Pop { stack, at, dst } => {
                let size = self.stack_size(dst)?;
                let from = self.stack_element(stack, at, size, VectorAccess::Masked)?;
                let group = if size == 1 { RegisterGroup::Masks } else { RegisterGroup::Vectors };
                let value = self.steps().value(group, Lifetime::Brief);
                self.steps().push(CodeStep::Pop { from, dst: value });
                self.values.insert(dst, value);
            }
            LaneOp::PushPlace { stack, at, offset, index } => {
                let place = self.added_place(offset, index)?;
                self.push(stack, at, place, size_of::<u32>())?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the size of elements of a stack in a row. Those of one byte are bools.
    fn stack_size(&self, row: RowId) -> Option<usize> {
        let size = self.size(row);
        (matches!(size, 4 | 8) || (size == 1 && !self.body.has_byte_numbers)).then_some(size)
    }

    fn push(&mut self, stack: u16, at: StackPlace, src: ValueId, size: usize) -> Option<()> {
        // In an arm of a branch, lanes of the other arm may have more elements than their depths.
        let access = if self.mask == ValueId::CURRENT { VectorAccess::Whole } else { VectorAccess::Masked };
        let to = self.stack_element(stack, at, size, access)?;
        self.steps().push(CodeStep::Push { to, src });
        Some(())
    }

    /// Returns an element of a stack, after a step that finds it.
    fn stack_element(&mut self, stack: u16, at: StackPlace, size: usize, access: VectorAccess) -> Option<LaneElement> {
        let depth = self.read(at.depth)?;
        let group = self.groups.iter().position(|group| group.depth == at.depth).unwrap_or_else(|| {
            self.groups.push(StackGroup { depth: at.depth, min_room: 0 });
            self.groups.len() - 1
        });
        self.groups[group].min_room = self.groups[group].min_room.max(at.n);
        let group = u16::try_from(group).ok()?;
        let (part, mask) = (VectorPart::First, self.mask);
        let row = (depth, at.n, access);
        if self.stack_rows.insert(group, row) != Some(row) {
            self.steps().push(CodeStep::StackRow { group, part, depth, mask, n: at.n, access });
        }
        let index = self.stacks.iter().position(|known| known.of_program == stack).unwrap_or_else(|| {
            self.stacks.push(UsedStack { of_program: stack, group, size });
            self.stacks.len() - 1
        });
        Some(LaneElement { stack: u16::try_from(index).ok()?, group, part, size, depth, above: at.above, mask, access })
    }

    /// Returns the place of the element of a tensor to which lanes add.
    fn added_place(&mut self, offset: usize, index: Option<ElementIndex>) -> Option<ValueId> {
        let span = index.map_or(0, |index| index.stride.unsigned_abs() * index.n);
        // Places have 31 bits.
        offset.checked_add(span).filter(|&end| end < i32::MAX as usize)?;
        let Some(ElementIndex { row, dtype, n, stride }) = index else {
            return Some(self.f.constant(offset as u64, 4));
        };
        let start = (offset > 0).then(|| self.f.constant(offset as u64, 4));
        let x = self.read(row)?;
        let is_valid = self.f.are_below(x, dtype, n as u64)?;
        self.require(is_valid);
        let x = if dtype == DType::I64 { self.f.lower_halves(x) } else { x };
        Some(self.f.place(x, stride as i32, start))
    }

    /// Returns elements of a tensor that is the same for all lanes, or an element of a list.
    fn element(
        &mut self,
        from: ElementSource,
        offset: usize,
        index: Option<ElementIndex>,
        size: usize,
    ) -> Option<ValueId> {
        let (source, of) = match from {
            ElementSource::Outside(base) => (CodeSource::Tensor(base), None),
            ElementSource::OfList { list, index, n } => (CodeSource::List(list), Some((index, n))),
            ElementSource::Own(_) => return None,
        };
        // Elements that follow each other are copied faster by the operation.
        let may_be_run = self.has_inputs && of.is_none() && index.is_some_and(|index| index.stride == 1);
        if may_be_run || !matches!(size, 4 | 8) {
            return None;
        }
        let stride = index.map_or(0, |index| index.stride);
        let span = index.map_or(0, |index| stride.unsigned_abs() * index.n);
        // Places have 31 bits.
        offset.checked_add(span).filter(|&end| end < i32::MAX as usize / 8)?;
        if let (None, None) = (of, index) {
            let tensor = self.tensor(source, size, offset + 1);
            let dst = self.steps().value(RegisterGroup::Vectors, Lifetime::Brief);
            self.steps().push(CodeStep::ReadForAll { tensor, size, place: offset, dst });
            return Some(dst);
        }
        let start = (offset > 0).then(|| self.f.constant(offset as u64, 4));
        let (place, is_valid) = match index {
            Some(ElementIndex { row, dtype, n, stride }) => {
                let x = self.read(row)?;
                let is_valid = self.f.are_below(x, dtype, n as u64)?;
                let x = if dtype == DType::I64 { self.f.lower_halves(x) } else { x };
                (Some(self.f.place(x, stride as i32, start)), Some(is_valid))
            }
            None => (start, None),
        };
        let place = match of {
            Some((row, n)) => {
                let x = self.read(row)?;
                self.f.place(x, i32::try_from(n).ok()?, place)
            }
            None => place.expect("there is an index"),
        };
        let tensor = self.tensor(source, size, 0);
        let mut is_within = self.steps().value(RegisterGroup::Masks, Lifetime::Brief);
        self.steps().push(CodeStep::WithinTensor { tensor, places: place, dst: is_within });
        if let Some(is_valid) = is_valid {
            is_within = self.steps().mask(MaskOp::And, is_within, is_valid);
        }
        self.require(is_within);
        let (mask, dst) = (self.mask, self.steps().value(RegisterGroup::Vectors, Lifetime::Brief));
        self.steps().push(CodeStep::Gather { tensor, size, places: place, mask, dst });
        Some(dst)
    }

    /// Returns the index of a tensor of which the code reads the first `n` elements without a
    /// check.
    fn tensor(&mut self, source: CodeSource, size: usize, n: usize) -> u16 {
        let known = self.tensors.iter().position(|tensor| tensor.source == source && tensor.size == size);
        let i = known.unwrap_or_else(|| {
            self.tensors.push(ReadTensor { source, size, n: 0 });
            self.tensors.len() - 1
        });
        self.tensors[i].n = self.tensors[i].n.max(n);
        i as u16
    }

    fn branches(&mut self, cond: RowId, arms: &[Box<[LaneOp]>; 2]) -> Option<()> {
        let cond = self.read(cond)?;
        let (around, before) = (self.mask, self.values.clone());
        let stack_rows = self.stack_rows.clone();
        let mut of_arms = [before.clone(), before.clone()];
        for ((arm, values), op) in arms.iter().zip(&mut of_arms).zip([MaskOp::And, MaskOp::AndNot]) {
            // The mask is needed only by operations that may fail, and where there are many steps.
            self.mask = self.steps().mask(op, cond, around);
            let start = self.f.steps.steps.len();
            self.values = std::mem::take(values);
            arm.iter().try_for_each(|op| self.op(op))?;
            *values = std::mem::replace(&mut self.values, before.clone());
            if self.f.steps.steps.len() - start > MANY_STEPS {
                let (over, mask, depth) = (self.steps().target(), self.mask, self.depth);
                self.steps().steps.insert(start, CodeStep::JumpIfNone { mask, to: over });
                self.steps().push(CodeStep::Label { target: over, depth });
            }
            self.mask = around;
            // The steps of an arm may be jumped over.
            self.stack_rows.clone_from(&stack_rows);
        }
        let [first, second] = of_arms;
        let rows = first.keys().chain(second.keys()).copied();
        // Rows of one basic block are not read after their arm.
        let mut rows: Vec<RowId> = rows.filter(|&row| self.is_passed_on(row)).collect();
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            let mut value_in = |values: &FxHashMap<RowId, ValueId>| match values.get(&row) {
                Some(&value) => value,
                None => self.loaded(row),
            };
            let (x, y) = (value_in(&first), value_in(&second));
            let value = if x == y { x } else { self.f.select(cond, x, y, self.size(row)) };
            self.values.insert(row, value);
        }
        Some(())
    }

    /// Returns the value of the condition of a branch, in a place that no row has.
    fn branch_condition(&mut self, cond: RowId) -> Option<ValueId> {
        let value = self.read(cond)?;
        let is_place = self.passed_on.values().any(|&place| place == value);
        Some(if is_place { self.copied(value, 1) } else { value })
    }

    /// Declines if a condition is false in any of the lanes.
    fn require(&mut self, is_valid: ValueId) {
        let mask = self.mask;
        let failed = self.steps().mask(MaskOp::AndNot, is_valid, mask);
        self.steps().push(CodeStep::DeclineIfAny(failed));
    }

    fn blocks(&mut self, blocks: &LoopBlocks, liveness: &RowLiveness) -> Option<()> {
        let body = self.body;
        let waiting = with_waiting(body, blocks);
        let range = blocks.range.clone();
        let depth_of = |block: u16| {
            let goes_around = |&from: &u16| {
                let (to, otherwise) = match body.blocks[usize::from(from)].end {
                    BlockEnd::Jump(to) => (to, to),
                    BlockEnd::Branch { to, otherwise, .. } => (to, otherwise),
                };
                let is_around = |to: u16| (to..=from).contains(&block) && range.contains(&to);
                is_around(to) || is_around(otherwise)
            };
            range.clone().filter(goes_around).count() as u32
        };
        let n = range.len();
        let index = |block: u16| usize::from(block - range.start);
        // Where lanes that have waited begin with a basic block, the last one being the end, and
        // where others do.
        let dispatches: Vec<StepTarget> = (0..=n).map(|_| self.steps().target()).collect();
        let starts: Vec<StepTarget> = (0..n).map(|_| self.steps().target()).collect();
        let dispatch = |from: usize| {
            let next = (from..n).find(|&i| waiting.contains(&(range.start + i as u16)));
            next.unwrap_or(n)
        };
        let masks: FxHashMap<u16, ValueId> = {
            let mut sorted: Vec<u16> = waiting.iter().copied().collect();
            sorted.sort_unstable();
            let steps = self.steps();
            sorted.into_iter().map(|b| (b, steps.value(RegisterGroup::Masks, Lifetime::Throughout))).collect()
        };
        for here in range.clone() {
            if let Some(&mask) = masks.get(&here) {
                self.steps().push(CodeStep::Mask { op: MaskOp::Xor, dst: mask, a: mask, b: mask });
            }
        }
        if blocks.entry != range.start || waiting.contains(&range.start) {
            self.steps().push(CodeStep::Jump(starts[index(blocks.entry)]));
        }
        for here in range.clone() {
            let i = index(here);
            self.depth = depth_of(here);
            let depth = self.depth;
            if let Some(&mask) = masks.get(&here) {
                self.steps().push(CodeStep::Label { target: dispatches[i], depth });
                self.steps().push(CodeStep::MaskCopy { dst: ValueId::CURRENT, src: mask });
                self.steps().push(CodeStep::Mask { op: MaskOp::Xor, dst: mask, a: mask, b: mask });
                self.steps().push(CodeStep::JumpIfNone { mask: ValueId::CURRENT, to: dispatches[dispatch(i + 1)] });
            }
            self.steps().push(CodeStep::Label { target: starts[i], depth });
            self.values.clear();
            self.stack_rows.clear();
            let block = &body.blocks[usize::from(here)];
            if let Some((depth, wait_at)) = block.aligned {
                let (depth, current) = (self.read(depth)?, ValueId::CURRENT);
                let dst = self.steps().value(RegisterGroup::Masks, Lifetime::Brief);
                self.steps().push(CodeStep::Deepest { depth, dst });
                let others = self.steps().mask(MaskOp::AndNot, dst, current);
                let wait = *masks.get(&wait_at).filter(|_| range.contains(&wait_at))?;
                self.steps().push(CodeStep::Mask { op: MaskOp::Or, dst: wait, a: wait, b: others });
                self.steps().push(CodeStep::Mask { op: MaskOp::And, dst: current, a: dst, b: current });
            }
            block.ops.iter().try_for_each(|op| self.op(op))?;
            let cond = match block.end {
                // The place of the row may change before lanes are sent apart by it.
                BlockEnd::Branch { cond, .. } => Some(self.branch_condition(cond)?),
                BlockEnd::Jump(_) => None,
            };
            self.assign(&liveness.after_end(block));
            // Whether the current lanes go on at once.
            let mut goes_on = false;
            let mut go_on = |t: &mut Self, to: u16| {
                goes_on = true;
                if to != here + 1 {
                    t.steps().push(CodeStep::Jump(starts[index(to)]));
                }
            };
            let passes = |to: u16| (here + 1..=to).all(|block| !waiting.contains(&block));
            let wait = |t: &mut Self, to: u16, lanes: ValueId| {
                let mask = masks[&to];
                t.steps().push(CodeStep::Mask { op: MaskOp::Or, dst: mask, a: mask, b: lanes });
            };
            match block.end {
                BlockEnd::Jump(to) => match way(blocks, here, to) {
                    LaneWay::Exit => {}
                    LaneWay::Back(to) => self.steps().push(CodeStep::Repeat(starts[index(to)])),
                    LaneWay::Forward(to) if passes(to) => go_on(self, to),
                    LaneWay::Forward(to) => wait(self, to, ValueId::CURRENT),
                },
                BlockEnd::Branch { when, to, otherwise, .. } => {
                    let cond = cond.expect("a branch has a condition");
                    let ways = [way(blocks, here, to), way(blocks, here, otherwise)];
                    let op = |is_first: bool| if is_first == when { MaskOp::And } else { MaskOp::AndNot };
                    let current = ValueId::CURRENT;
                    // Leaves those lanes current that go the first way or the other one.
                    let keep = |t: &mut Self, is_first: bool| {
                        t.steps().push(CodeStep::Mask { op: op(is_first), dst: current, a: cond, b: current });
                    };
                    match ways {
                        [LaneWay::Back(a), LaneWay::Back(b)] if a == b => {
                            self.steps().push(CodeStep::Repeat(starts[index(a)]))
                        }
                        [LaneWay::Back(_), LaneWay::Back(_)] => return None,
                        [LaneWay::Exit, LaneWay::Exit] => {}
                        [LaneWay::Back(to), other] | [other, LaneWay::Back(to)] => {
                            let is_first = matches!(ways[0], LaneWay::Back(_));
                            if let LaneWay::Forward(next) = other {
                                let lanes = self.steps().mask(op(!is_first), cond, current);
                                wait(self, next, lanes);
                            }
                            keep(self, is_first);
                            self.steps().push(CodeStep::Repeat(starts[index(to)]));
                        }
                        [LaneWay::Forward(a), LaneWay::Forward(b)] => {
                            for (to, is_first) in [(a, true), (b, false)] {
                                let lanes = self.steps().mask(op(is_first), cond, current);
                                wait(self, to, lanes);
                            }
                        }
                        [LaneWay::Forward(to), LaneWay::Exit] | [LaneWay::Exit, LaneWay::Forward(to)] => {
                            keep(self, ways[1] == LaneWay::Exit);
                            if passes(to) {
                                let to_dispatch = dispatches[dispatch(i + 1)];
                                self.steps().push(CodeStep::JumpIfNone { mask: current, to: to_dispatch });
                                go_on(self, to);
                            } else {
                                wait(self, to, current);
                            }
                        }
                    }
                }
            }
            let next = dispatch(i + 1);
            if !goes_on && next != i + 1 {
                self.steps().push(CodeStep::Jump(dispatches[next]));
            }
        }
        self.depth = 0;
        self.steps().push(CodeStep::Label { target: dispatches[n], depth: 0 });
        // Those of basic blocks for which no lanes wait lead nowhere, and nothing jumps to them.
        Some(())
    }

    /// Adds the loads and stores of rows around the steps.
    ///
    /// `is_loaded` returns whether elements of a row that basic blocks pass on are read before they
    /// change, and `is_stored` whether they are read afterwards.
    fn finish(
        self,
        stored: Vec<(RowId, ValueId)>,
        is_loaded: impl Fn(RowId) -> bool,
        is_stored: impl Fn(RowId) -> bool,
    ) -> Lowered {
        let Lowering { body, f, passed_on, changed, tensors, stacks, groups, .. } = self;
        // Elements of lanes that are not active are stored as they were.
        let is_stored = |row: RowId| changed.contains(&row) && is_stored(row);
        let Functions { mut steps, lanes, .. } = f;
        steps.merge_assignments(stored.iter().map(|&(_, value)| value));
        let mut rows: Vec<RowId> = Vec::new();
        let mut index = |row: RowId| {
            rows.iter().position(|&known| known == row).unwrap_or_else(|| {
                rows.push(row);
                rows.len() - 1
            }) as u16
        };
        let size = |row: RowId| body.rows[usize::from(row)].size;
        let part = VectorPart::First;
        let mut loads = Vec::new();
        let mut stores = Vec::new();
        for (&row, &value) in &passed_on {
            if is_loaded(row) || is_stored(row) {
                loads.push(CodeStep::LoadRow { row: index(row), part, size: size(row), dst: value });
            }
            if is_stored(row) {
                stores.push(CodeStep::StoreRow { row: index(row), part, size: size(row), src: value });
            }
        }
        stores.extend(stored.into_iter().map(|(row, src)| CodeStep::StoreRow {
            row: index(row),
            part,
            size: size(row),
            src,
        }));
        steps.steps.splice(0..0, loads);
        steps.steps.extend(stores);
        steps.remove_unused();
        Lowered { steps, rows, tensors, stacks, groups, lanes }
    }
}
