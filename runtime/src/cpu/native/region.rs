//! Selection of the loops of a plan to compile.

use super::WhyNot;
use crate::cpu::compile::{Base, Instr, Out, Plan, Reg, StackId, TensorOpId, TensorOperand};
use anabranch_dsl::{DType, Type};
use std::ops::Range;

/// A loop to compile, including nested loops.
#[derive(Debug)]
#[cfg_attr(not(feature = "jit"), expect(dead_code, reason = "nothing is compiled"))]
pub(super) struct NativeLoop {
    /// The instructions of the region.
    pub(super) code: Range<u32>,
    /// The jump that enters it.
    pub(super) enter: u32,
    /// The target of that jump.
    pub(super) entry: u32,
}

/// The loops of a plan that can be native; of nested loops the outermost. The others get the reason
/// why they cannot.
pub(super) fn find(plan: &mut Plan) -> Vec<NativeLoop> {
    let mut loops: Vec<usize> = (0..plan.loops.len()).collect();
    loops.sort_by_key(|&l| (plan.loops[l].code.start, std::cmp::Reverse(plan.loops[l].code.end)));
    let mut regions: Vec<NativeLoop> = Vec::new();
    for l in loops {
        let code = &plan.loops[l].code;
        plan.loops[l].not_native = if regions.last().is_some_and(|around| code.start < around.code.end) {
            None
        } else {
            match region(plan, code) {
                Ok(region) => {
                    regions.push(region);
                    None
                }
                Err(why) => Some(why),
            }
        };
    }
    regions
}

/// A loop that can be native.
fn region(plan: &Plan, code: &Range<u32>) -> Result<NativeLoop, WhyNot> {
    if let Some(i) = code.clone().find(|&i| !is_native(plan, &plan.code[i as usize], code)) {
        return Err(WhyNot::Instruction(i));
    }
    let enter = code.start.checked_sub(1).ok_or(WhyNot::Entry)?;
    match plan.code[enter as usize] {
        Instr::Jump { to: entry } if code.contains(&entry) => Ok(NativeLoop { code: code.clone(), enter, entry }),
        _ => Err(WhyNot::Entry),
    }
}

/// Records for the loops of regions why they are not native.
pub(super) fn refuse(plan: &mut Plan, regions: &[NativeLoop], why: WhyNot) {
    for place in &mut plan.loops {
        if regions.iter().any(|region| region.code.contains(&place.code.start)) {
            place.not_native = Some(why);
        }
    }
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
        Instr::StackPush { stack, op } => is_of_numbers(plan, stack) && pushed(plan, op).is_some(),
        Instr::StackPop { stack, op } => is_of_numbers(plan, stack) && popped(plan, op).is_some(),
        _ => false,
    }
}

fn is_of_numbers(plan: &Plan, s: StackId) -> bool {
    matches!(&plan.stacks[s.index()], Type::Stack(element) if element.rank() == 0)
}

/// Returns the pushed register with its type.
pub(super) fn pushed(plan: &Plan, op: TensorOpId) -> Option<(Reg, DType)> {
    match &plan.tensor_ops[op.index()].operands[..] {
        [TensorOperand::View(v)] => match v.base {
            Base::Reg(r) => Some((r, v.dtype)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the register that receives the popped number, with its type.
pub(super) fn popped(plan: &Plan, op: TensorOpId) -> Option<(Reg, DType)> {
    match plan.tensor_ops[op.index()].out {
        Out::Reg(r, dtype) => Some((r, dtype)),
        _ => None,
    }
}
