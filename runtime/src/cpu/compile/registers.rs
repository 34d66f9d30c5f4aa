//! The inner loop of the executor, for instructions that access only registers.

use super::Instr;
use crate::cpu::element::CpuElement;
use crate::cpu::kernels::index::index_of;
use anabranch_dsl::interp::StopFlag;

/// Runs from instruction `pc` as long as instructions access only registers and do not fail.
///
/// Returns the index of the first instruction that it cannot execute, or the end. If the run is to
/// stop, that is a taken conditional jump: every loop iteration ends with one.
#[inline(never)]
pub(super) fn run(code: &[Instr], regs: &mut [u64], mut pc: usize, stop: &StopFlag) -> usize {
    // A taken jump continues the loop directly. Selecting the next index instead would make the CPU
    // wait for the condition.
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
            Instr::RequireIndex { a, dtype, n, .. } if index_of(regs[a.index()], dtype) < n => {}
            Instr::Assert { cond, .. } if bool::from_reg(regs[cond.index()]) => {}
            _ => break,
        }
        pc += 1;
    }
    pc
}
