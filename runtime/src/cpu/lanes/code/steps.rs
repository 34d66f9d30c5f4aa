//! Lane code before it has registers: a list of steps on values.
//!
//! Invariants:
//!
//! - A value that [passes on](Lifetime::Throughout) has one place for the whole code. It may be
//!   changed.
//! - Another value is set by one step, and used by later ones up to the next label of a basic
//!   block, so that no jump leads back between both.

use super::LaneInstructions;
use crate::cpu::x86::encode::{MaskOp, VectorLength, VectorOp, Widths};

/// A vector or a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ValueId(u32);

impl ValueId {
    /// The lanes that the current basic block computes.
    pub(super) const CURRENT: ValueId = ValueId(0);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The group of registers that can hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RegisterGroup {
    Vectors,
    Masks,
}

/// How long a value is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// From the step that sets it to the last one that uses it.
    Brief,
    /// Everywhere.
    Throughout,
    /// Everywhere: an element with these bits, for all lanes.
    Constant { bits: u64, size: usize },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ValueInfo {
    pub(super) group: RegisterGroup,
    pub(super) lifetime: Lifetime,
}

/// A place to which steps jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepTarget(u16);

impl StepTarget {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// An instruction on vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct VectorStep {
    pub(super) op: &'static VectorOp,
    pub(super) length: VectorLength,
    pub(super) dst: ValueId,
    /// The sources. The last one may be in memory.
    pub(super) sources: [Option<ValueId>; 2],
    /// The value that the elements of the result have before, if they count.
    pub(super) before: Option<ValueId>,
    /// The elements that are computed, or by which a blend chooses.
    pub(super) mask: Option<ValueId>,
    /// Whether the others become zero.
    pub(super) zeroing: bool,
    pub(super) immediate: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CodeStep {
    Vector(VectorStep),
    Mask {
        op: MaskOp,
        dst: ValueId,
        a: ValueId,
        b: ValueId,
    },
    MaskNot {
        dst: ValueId,
        src: ValueId,
    },
    MaskCopy {
        dst: ValueId,
        src: ValueId,
    },
    /// Loads the elements of the lanes of a row, by its index among those of the code.
    LoadRow {
        row: u16,
        part: VectorPart,
        size: usize,
        dst: ValueId,
    },
    StoreRow {
        row: u16,
        part: VectorPart,
        size: usize,
        src: ValueId,
    },
    /// Returns where places, numbers of 4 bytes, are within a tensor, by its index among those of
    /// the code.
    WithinTensor {
        tensor: u16,
        places: ValueId,
        dst: ValueId,
    },
    /// Reads the elements at places of a tensor, in the lanes of the mask.
    Gather {
        tensor: u16,
        size: usize,
        places: ValueId,
        mask: ValueId,
        dst: ValueId,
    },
    /// Reads one element of a tensor for all lanes.
    ReadForAll {
        tensor: u16,
        size: usize,
        place: usize,
        dst: ValueId,
    },
    /// Finds the elements that the lanes of a mask push to the stacks of a group, or pop from them,
    /// for the steps that do. The group has room for `n` elements above the depths.
    StackRow {
        group: u16,
        part: VectorPart,
        depth: ValueId,
        mask: ValueId,
        n: u32,
        access: VectorAccess,
    },
    /// Writes elements of the lanes of the mask to a stack.
    Push {
        to: LaneElement,
        src: ValueId,
    },
    /// Reads elements of the lanes of the mask from a stack. Those of others may be any.
    Pop {
        from: LaneElement,
        dst: ValueId,
    },
    /// Returns the current lanes with the largest depth.
    Deepest {
        depth: ValueId,
        dst: ValueId,
    },
    /// A place in the code, inside so many loops.
    Label {
        target: StepTarget,
        depth: u32,
    },
    Jump(StepTarget),
    /// Jumps unless any lane is in the mask.
    JumpIfNone {
        mask: ValueId,
        to: StepTarget,
    },
    /// Ends the code without effect if any lane is in the mask.
    DeclineIfAny(ValueId),
    /// Jumps back if any current lane is left, unless the loop should stop.
    Repeat(StepTarget),
}

/// How a vector of elements of a stack is accessed, if the lanes of a mask have the same depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VectorAccess {
    /// Only the elements of the lanes are written, or any are read.
    Masked,
    /// All elements are written. No other lane has an element there.
    Whole,
}

/// An element of a stack in each lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneElement {
    /// The stack and its group, by their indices among those of the code.
    pub(super) stack: u16,
    pub(super) group: u16,
    pub(super) part: VectorPart,
    pub(super) size: usize,
    /// The number of elements below it in each lane is the depth and so many more.
    pub(super) depth: ValueId,
    pub(super) above: u32,
    pub(super) mask: ValueId,
    pub(super) access: VectorAccess,
}

impl CodeStep {
    /// Returns the step for the second vector, which has these values.
    fn of_second(&self, values: &[ValueId]) -> CodeStep {
        let part = VectorPart::Second;
        let of = |value: ValueId| values[value.index()];
        let of_element =
            |element: LaneElement| LaneElement { part, depth: of(element.depth), mask: of(element.mask), ..element };
        match *self {
            CodeStep::Vector(step) => CodeStep::Vector(VectorStep {
                dst: of(step.dst),
                sources: step.sources.map(|source| source.map(of)),
                before: step.before.map(of),
                mask: step.mask.map(of),
                ..step
            }),
            CodeStep::Mask { op, dst, a, b } => CodeStep::Mask { op, dst: of(dst), a: of(a), b: of(b) },
            CodeStep::MaskNot { dst, src } => CodeStep::MaskNot { dst: of(dst), src: of(src) },
            CodeStep::MaskCopy { dst, src } => CodeStep::MaskCopy { dst: of(dst), src: of(src) },
            CodeStep::LoadRow { row, size, dst, .. } => CodeStep::LoadRow { row, part, size, dst: of(dst) },
            CodeStep::StoreRow { row, size, src, .. } => CodeStep::StoreRow { row, part, size, src: of(src) },
            CodeStep::WithinTensor { tensor, places, dst } => {
                CodeStep::WithinTensor { tensor, places: of(places), dst: of(dst) }
            }
            CodeStep::Gather { tensor, size, places, mask, dst } => {
                CodeStep::Gather { tensor, size, places: of(places), mask: of(mask), dst: of(dst) }
            }
            CodeStep::ReadForAll { tensor, size, place, dst } => {
                CodeStep::ReadForAll { tensor, size, place, dst: of(dst) }
            }
            CodeStep::StackRow { group, depth, mask, n, access, .. } => {
                CodeStep::StackRow { group, part, depth: of(depth), mask: of(mask), n, access }
            }
            CodeStep::Push { to, src } => CodeStep::Push { to: of_element(to), src: of(src) },
            CodeStep::Pop { from, dst } => CodeStep::Pop { from: of_element(from), dst: of(dst) },
            CodeStep::Deepest { depth, dst } => CodeStep::Deepest { depth: of(depth), dst: of(dst) },
            CodeStep::JumpIfNone { mask, to } => CodeStep::JumpIfNone { mask: of(mask), to },
            CodeStep::DeclineIfAny(mask) => CodeStep::DeclineIfAny(of(mask)),
            CodeStep::Label { .. } | CodeStep::Jump(_) | CodeStep::Repeat(_) => *self,
        }
    }

    /// Calls a function with each value that the step uses, and then with the value that it sets.
    pub(super) fn values(&self, f: &mut dyn FnMut(ValueId, ValueUse)) {
        let mut read = |value: &ValueId| f(*value, ValueUse::Read);
        let set = match self {
            CodeStep::Vector(VectorStep { sources, before, mask, dst, .. }) => {
                sources.iter().flatten().chain(before).chain(mask).for_each(&mut read);
                Some(*dst)
            }
            CodeStep::Mask { dst, a, b, .. } => {
                [a, b].into_iter().for_each(&mut read);
                Some(*dst)
            }
            CodeStep::MaskNot { dst, src } | CodeStep::MaskCopy { dst, src } => {
                read(src);
                Some(*dst)
            }
            CodeStep::WithinTensor { places, dst, .. } => {
                read(places);
                Some(*dst)
            }
            CodeStep::Gather { places, mask, dst, .. } => {
                [places, mask].into_iter().for_each(&mut read);
                Some(*dst)
            }
            CodeStep::StackRow { depth, mask, .. } => {
                [depth, mask].into_iter().for_each(&mut read);
                None
            }
            CodeStep::Push { to, src } => {
                [&to.depth, &to.mask, src].into_iter().for_each(&mut read);
                None
            }
            CodeStep::Pop { from, dst } => {
                [&from.depth, &from.mask].into_iter().for_each(&mut read);
                Some(*dst)
            }
            CodeStep::Deepest { depth, dst } => {
                [depth, &ValueId::CURRENT].into_iter().for_each(&mut read);
                Some(*dst)
            }
            CodeStep::LoadRow { dst, .. } | CodeStep::ReadForAll { dst, .. } => Some(*dst),
            CodeStep::StoreRow { src, .. } => {
                read(src);
                None
            }
            CodeStep::JumpIfNone { mask, .. } | CodeStep::DeclineIfAny(mask) => {
                read(mask);
                None
            }
            CodeStep::Repeat(_) => {
                read(&ValueId::CURRENT);
                None
            }
            CodeStep::Label { .. } | CodeStep::Jump(_) => None,
        };
        if let Some(set) = set {
            f(set, ValueUse::Set);
        }
    }
}

/// One of two vectors that go through a loop together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VectorPart {
    First,
    Second,
}

/// The use of a value by a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueUse {
    Read,
    Set,
}

/// The steps for one vector of lanes, in order, and their values.
#[derive(Debug)]
pub(super) struct CodeSteps {
    pub(super) steps: Vec<CodeStep>,
    pub(super) values: Vec<ValueInfo>,
    pub(super) n_targets: usize,
    /// The current lanes of the second vector, if two go through the steps together.
    pub(super) second: Option<ValueId>,
}

impl CodeSteps {
    pub(super) fn new() -> CodeSteps {
        let current = ValueInfo { group: RegisterGroup::Masks, lifetime: Lifetime::Throughout };
        CodeSteps { steps: Vec::new(), values: vec![current], n_targets: 0, second: None }
    }

    /// Returns the steps for two vectors, which go through the loop until both have left. The steps
    /// of one wait less for each other while those of the other one are computed. Returns `None` if
    /// there is no loop, or the ways of both vectors may differ.
    pub(super) fn doubled(&self) -> Option<CodeSteps> {
        let has_loop = self.steps.iter().any(|step| matches!(step, CodeStep::Repeat(_)));
        if !has_loop || self.steps.iter().any(|step| matches!(step, CodeStep::JumpIfNone { .. })) {
            return None;
        }
        let mut new = CodeSteps { steps: Vec::new(), values: self.values.clone(), ..*self };
        let second: Vec<ValueId> = (0..)
            .map(ValueId)
            .zip(&self.values)
            .map(|(value, info)| match info.lifetime {
                Lifetime::Constant { .. } => value,
                Lifetime::Brief | Lifetime::Throughout => new.value(info.group, info.lifetime),
            })
            .collect();
        new.second = Some(second[ValueId::CURRENT.index()]);
        for step in &self.steps {
            match step {
                CodeStep::Label { .. } | CodeStep::Jump(_) | CodeStep::Repeat(_) => new.push(*step),
                // If there is no second vector, its elements are those of the first one, unchanged.
                CodeStep::StoreRow { .. } => new.steps.extend([step.of_second(&second), *step]),
                _ => new.steps.extend([*step, step.of_second(&second)]),
            }
        }
        Some(new)
    }

    pub(super) fn value(&mut self, group: RegisterGroup, lifetime: Lifetime) -> ValueId {
        self.values.push(ValueInfo { group, lifetime });
        ValueId(self.values.len() as u32 - 1)
    }

    pub(super) fn target(&mut self) -> StepTarget {
        self.n_targets += 1;
        StepTarget(self.n_targets as u16 - 1)
    }

    pub(super) fn push(&mut self, step: CodeStep) {
        self.steps.push(step);
    }

    /// Adds an instruction that computes all elements.
    pub(super) fn vector(
        &mut self,
        op: &'static VectorOp,
        length: VectorLength,
        sources: &[ValueId],
        immediate: Option<u8>,
    ) -> ValueId {
        let group = match op.widths {
            Widths::MaskResult => RegisterGroup::Masks,
            _ => RegisterGroup::Vectors,
        };
        let dst = self.value(group, Lifetime::Brief);
        let sources = [sources.first().copied(), sources.get(1).copied()];
        let step = VectorStep { op, length, dst, sources, before: None, mask: None, zeroing: false, immediate };
        self.push(CodeStep::Vector(step));
        dst
    }

    /// Adds an instruction like [`vector`](Self::vector), on top of the elements of a value, which
    /// stay where the mask, if there is one, is false.
    pub(super) fn onto(
        &mut self,
        op: &'static VectorOp,
        length: VectorLength,
        before: ValueId,
        sources: &[ValueId],
        mask: Option<ValueId>,
    ) -> ValueId {
        let dst = self.vector(op, length, sources, None);
        let Some(CodeStep::Vector(step)) = self.steps.last_mut() else { panic!("it was added") };
        (step.before, step.mask) = (Some(before), mask);
        dst
    }

    /// Chooses the first source where the mask is true, else the second, which may be zero.
    pub(super) fn choose(
        &mut self,
        op: &'static VectorOp,
        length: VectorLength,
        mask: ValueId,
        sources: &[ValueId],
    ) -> ValueId {
        let dst = self.vector(op, length, sources, None);
        let Some(CodeStep::Vector(step)) = self.steps.last_mut() else { panic!("it was added") };
        (step.mask, step.zeroing) = (Some(mask), sources.len() == 1);
        dst
    }

    /// Returns whether a processor has instructions for all steps.
    pub(super) fn are_possible_with(&self, set: LaneInstructions) -> bool {
        set == LaneInstructions::Avx512
            || self.steps.iter().all(|step| match step {
                CodeStep::Vector(step) => step.op.is_possible_with_avx2(),
                _ => true,
            })
    }

    pub(super) fn mask(&mut self, op: MaskOp, a: ValueId, b: ValueId) -> ValueId {
        let dst = self.value(RegisterGroup::Masks, Lifetime::Brief);
        self.push(CodeStep::Mask { op, dst, a, b });
        dst
    }

    /// Removes steps that set a value which no later step uses.
    pub(super) fn remove_unused(&mut self) {
        let mut is_used = vec![false; self.values.len()];
        let mut is_needed = vec![true; self.steps.len()];
        for (step, is_needed) in self.steps.iter().zip(&mut is_needed).rev() {
            step.values(&mut |value, value_use| {
                let is_brief = self.values[value.index()].lifetime == Lifetime::Brief;
                if value_use == ValueUse::Set && is_brief && !is_used[value.index()] {
                    *is_needed = false;
                }
            });
            if *is_needed {
                step.values(&mut |value, value_use| is_used[value.index()] |= value_use == ValueUse::Read);
            }
        }
        let mut needed = is_needed.into_iter();
        self.steps.retain(|_| needed.next().expect("there is one for each step"));
    }

    /// Computes the end of a value that passes on at once, where nothing else uses what is computed
    /// before it is assigned. `stored` are the values that steps which are added later use.
    pub(super) fn merge_assignments(&mut self, stored: impl Iterator<Item = ValueId>) {
        let mut n_uses = vec![0u32; self.values.len()];
        stored.for_each(|value| n_uses[value.index()] += 1);
        for step in &self.steps {
            step.values(&mut |value, value_use| n_uses[value.index()] += u32::from(value_use == ValueUse::Read));
        }
        let mut is_removed = vec![false; self.steps.len()];
        for i in 0..self.steps.len() {
            let CodeStep::Vector(assignment) = self.steps[i] else { continue };
            let ([Some(src), None], Some(before), Some(mask)) =
                (assignment.sources, assignment.before, assignment.mask)
            else {
                continue;
            };
            let is_brief = self.values[src.index()].lifetime == Lifetime::Brief;
            if before != assignment.dst || !assignment.op.is_copy() || !is_brief || n_uses[src.index()] != 1 {
                continue;
            }
            // The step that computes the value, unless something between both uses or changes the
            // place that is assigned, or the mask.
            let mut found = None;
            for (at, step) in self.steps[..i].iter().enumerate().rev().filter(|&(at, _)| !is_removed[at]) {
                if matches!(step, CodeStep::Vector(step) if step.dst == src) {
                    found = Some(at);
                    break;
                }
                let mut is_in_the_way =
                    matches!(step, CodeStep::Label { .. } | CodeStep::Jump(_) | CodeStep::Repeat(_));
                step.values(&mut |value, value_use| {
                    is_in_the_way |= value == before || (value == mask && value_use == ValueUse::Set);
                });
                if is_in_the_way {
                    break;
                }
            }
            let Some(at) = found else { continue };
            let CodeStep::Vector(step) = &mut self.steps[at] else { continue };
            let computes_all = step.before.is_none() && step.mask.is_none() && !step.op.accumulates;
            if computes_all {
                (step.dst, step.before, step.mask) = (before, Some(before), Some(mask));
                is_removed[i] = true;
            }
        }
        let mut removed = is_removed.into_iter();
        self.steps.retain(|_| !removed.next().expect("there is one for each step"));
    }
}
