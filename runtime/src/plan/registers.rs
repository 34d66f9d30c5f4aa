//! The inner loop of the executor: instructions that touch registers only.

use super::Instr;
use crate::cpu::element::Cell;
use anabranch_dsl::interp::StopFlag;

/// Runs from instruction `pc` on as long as instructions need nothing but registers, and cannot fail or do not; gives the index of
/// the first one that is left to others, or the end. That is a jump if the run is to stop: every iteration of a loop ends
/// with one on a condition.
#[inline(never)]
pub(super) fn run(code: &[Instr], regs: &mut [u64], mut pc: usize, stop: &StopFlag) -> usize {
    // A jump that is taken continues the loop by itself: were the next index selected instead, the processor could not go on before
    // the condition is known.
    while let Some(instr) = code.get(pc) {
        match *instr {
            Instr::Unary { f, dst, a } => regs[dst.index()] = f(regs[a.index()]),
            Instr::Binary { f, dst, a, b } => regs[dst.index()] = f(regs[a.index()], regs[b.index()]),
            Instr::Select { dst, a, b, c } => {
                let taken = if bool::from_reg(regs[a.index()]) { b } else { c };
                regs[dst.index()] = regs[taken.index()];
            }
            Instr::Move { dst, src } => regs[dst.index()] = regs[src.index()],
            Instr::JumpCompare { f, a, b, to, when } => {
                if bool::from_reg(f(regs[a.index()], regs[b.index()])) == when {
                    if stop.is_set() {
                        break;
                    }
                    pc = to as usize;
                    continue;
                }
            }
            Instr::Jump { to } => {
                pc = to as usize;
                continue;
            }
            Instr::JumpIf { cond, to } => {
                if bool::from_reg(regs[cond.index()]) {
                    if stop.is_set() {
                        break;
                    }
                    pc = to as usize;
                    continue;
                }
            }
            Instr::JumpUnless { cond, to } => {
                if !bool::from_reg(regs[cond.index()]) {
                    pc = to as usize;
                    continue;
                }
            }
            Instr::Require { valid, a, .. } if valid(regs[a.index()]) => {}
            Instr::Assert { cond, .. } if bool::from_reg(regs[cond.index()]) => {}
            _ => break,
        }
        pc += 1;
    }
    pc
}
