//! Selection of the loops of a plan to compile.

use super::WhyNot;
use crate::cpu::compile::{Instr, Plan, TensorOpId};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::TensorOp;
use crate::cpu::memory::{Base, Out, Reg, StackId, TensorOperand, View};
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
    /// The tensors of whose elements it reads or writes some, each once.
    pub(super) bases: Vec<Base>,
}

/// Maximum number of tensors of which a loop reads or writes elements.
pub(crate) const MAX_BASES: usize = 32;

/// An access to one element of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementAccess<'a> {
    pub(crate) tensor: &'a View,
    /// The axis along which the element is at an index in a register of a type. Without one, it is
    /// the first element.
    pub(crate) index: Option<(usize, Reg, DType)>,
    pub(crate) kind: ElementUse,
}

/// The use of an element, with the register that receives or has the number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ElementUse {
    Read(Reg),
    Write(Reg),
    Add(Reg),
}

/// Returns the access to an element that a tensor operation consists of, if it is one.
pub(crate) fn access(op: &TensorOp) -> Option<ElementAccess<'_>> {
    let register = |view: &View| match view.base {
        Base::Reg(r) => Some(r),
        _ => None,
    };
    let operand = |i: usize| op.operands[i].view();
    let index = |axis: usize, i: usize| Some((axis, register(operand(i))?, operand(i).dtype));
    let result = || match op.out {
        Out::Reg(r, _) => Some(r),
        _ => None,
    };
    let (index, kind) = match op.kernel {
        Kernel::Load => (None, ElementUse::Read(result()?)),
        Kernel::ReadElement { axis } => (Some(index(axis, 1)?), ElementUse::Read(result()?)),
        Kernel::WriteElement { axis } => (Some(index(axis, 2)?), ElementUse::Write(register(operand(1))?)),
        Kernel::AddElement { axis } => (Some(index(axis, 1)?), ElementUse::Add(register(operand(2))?)),
        _ => return None,
    };
    // A tensor that broadcasts a register is not in memory.
    register(operand(0)).is_none().then(|| ElementAccess { tensor: operand(0), index, kind })
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
    let mut bases = Vec::new();
    for i in code.clone() {
        if let Instr::Run(op) = plan.code[i as usize]
            && let Some(access) = access(&plan.tensor_ops[op.index()])
            && !bases.contains(&access.tensor.base)
        {
            bases.push(access.tensor.base);
        }
    }
    if bases.len() > MAX_BASES {
        return Err(WhyNot::Tensors);
    }
    let enter = code.start.checked_sub(1).ok_or(WhyNot::Entry)?;
    match plan.code[enter as usize] {
        Instr::Jump { to: entry } if code.contains(&entry) => {
            Ok(NativeLoop { code: code.clone(), enter, entry, bases })
        }
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
        Instr::Run(op) => access(&plan.tensor_ops[op.index()]).is_some(),
        Instr::Require { .. } | Instr::RequireIndex { .. } | Instr::Assert { .. } => true,
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
