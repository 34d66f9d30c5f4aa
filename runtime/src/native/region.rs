//! Which loops of a plan become native.

use crate::plan::{Base, Instr, Operand, Out, Plan, Reg, StackId, StepId};
use anabranch_dsl::{DType, Type};
use std::ops::Range;

/// A loop that becomes native, with all loops inside.
#[derive(Debug)]
pub(super) struct Region {
    /// Its instructions.
    pub(super) code: Range<u32>,
    /// The jump by which it is entered.
    pub(super) enter: u32,
    /// Where that one goes to.
    pub(super) entry: u32,
}

/// The loops of a plan that can be native; of nested ones the outermost.
pub(super) fn find(plan: &Plan) -> Vec<Region> {
    let mut loops: Vec<&Range<u32>> = plan.loops.iter().map(|l| &l.code).collect();
    loops.sort_by_key(|code| (code.start, std::cmp::Reverse(code.end)));
    let mut regions: Vec<Region> = Vec::new();
    for code in loops {
        if regions.last().is_some_and(|around| code.start < around.code.end) {
            continue;
        }
        let Some(enter) = code.start.checked_sub(1) else { continue };
        let Instr::Jump { to: entry } = plan.code[enter as usize] else { continue };
        if code.contains(&entry) && code.clone().all(|i| is_native(plan, &plan.code[i as usize], code)) {
            regions.push(Region { code: code.clone(), enter, entry });
        }
    }
    regions
}

fn is_native(plan: &Plan, instr: &Instr, code: &Range<u32>) -> bool {
    let stays = |to: u32| code.contains(&to) || to == code.end;
    let is_stack = |s: StackId| matches!(plan.stacks[s.index()], Type::Stack(_));
    match *instr {
        Instr::Unary { .. } | Instr::Binary { .. } | Instr::Select { .. } | Instr::Move { .. } => true,
        Instr::Require { .. } | Instr::Assert { .. } => true,
        Instr::Jump { to }
        | Instr::JumpIf { to, .. }
        | Instr::JumpUnless { to, .. }
        | Instr::JumpCompare { to, .. } => stays(to),
        Instr::StackNew(s) | Instr::StackZeros(s) => is_stack(s),
        Instr::StackMove { dst, src, .. } => is_stack(dst) && is_stack(src),
        Instr::StackPush { stack, step } => is_of_numbers(plan, stack) && pushed(plan, step).is_some(),
        Instr::StackPop { stack, step } => is_of_numbers(plan, stack) && popped(plan, step).is_some(),
        _ => false,
    }
}

fn is_of_numbers(plan: &Plan, s: StackId) -> bool {
    matches!(&plan.stacks[s.index()], Type::Stack(element) if element.rank() == 0)
}

/// The register that is pushed, with its type.
pub(super) fn pushed(plan: &Plan, step: StepId) -> Option<(Reg, DType)> {
    match &plan.steps[step.index()].operands[..] {
        [Operand::View(v)] => match v.base {
            Base::Reg(r) => Some((r, v.dtype)),
            _ => None,
        },
        _ => None,
    }
}

/// The register that is popped to, with its type.
pub(super) fn popped(plan: &Plan, step: StepId) -> Option<(Reg, DType)> {
    match plan.steps[step.index()].out {
        Out::Reg(r, dtype) => Some((r, dtype)),
        _ => None,
    }
}
