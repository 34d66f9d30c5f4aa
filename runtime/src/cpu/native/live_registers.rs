//! The registers of a plan that are read after a loop is left.
//!
//! A register that only some iterations use between two of its instructions need not be kept until
//! the end of the function.

use super::region::NativeLoop;
use crate::cpu::compile::{AccessKind, Instr, Plan, instr_touches};
use crate::cpu::memory::{Reg, Storage};
use rustc_hash::FxHashMap;

/// The most words of bits for a loop.
const MAX_WORDS: usize = 1 << 22;

/// How often each register of a plan is read.
#[derive(Debug)]
pub(super) struct RegisterReads {
    n_reads: Vec<u32>,
}

impl RegisterReads {
    pub(super) fn new(plan: &Plan) -> RegisterReads {
        let mut n_reads = vec![0; plan.registers.len()];
        let mut read = |storage: Storage| {
            if let Storage::Reg(r) = storage {
                n_reads[r.index()] += 1;
            }
        };
        plan.code.iter().for_each(|instr| visit_reads(plan, instr, &mut |r| read(Storage::Reg(r))));
        plan.visit_last(&mut |operand| operand.storage().into_iter().for_each(&mut read));
        for parallel in plan.loops.iter().filter_map(|l| l.parallel.as_ref()) {
            let trips = [Some(parallel.trips.first), parallel.trips.limit];
            trips.into_iter().flatten().for_each(|r| read(Storage::Reg(r)));
            parallel.vars.iter().for_each(|&(_, storage)| read(storage));
        }
        RegisterReads { n_reads }
    }
}

fn visit_reads(plan: &Plan, instr: &Instr, f: &mut dyn FnMut(Reg)) {
    instr_touches(&plan.tensor_ops, instr, &mut |storage, kind| {
        if let (Storage::Reg(r), AccessKind::Read) = (storage, kind) {
            f(r);
        }
    });
}

/// Returns the register that an instruction writes.
fn written_by(plan: &Plan, instr: &Instr) -> Option<Reg> {
    let mut written = None;
    instr_touches(&plan.tensor_ops, instr, &mut |storage, kind| {
        if let (Storage::Reg(r), AccessKind::Write) = (storage, kind) {
            assert_eq!(written.replace(r), None, "an instruction on numbers has one result");
        }
    });
    written
}

/// The registers that a loop writes, and where their values are read later.
#[derive(Debug)]
pub(super) struct LiveRegisters {
    /// In order.
    pub(super) written: Vec<Reg>,
    /// The live ones before instructions and after the last one, as bits.
    before: Vec<Box<[u64]>>,
    start: u32,
}

impl LiveRegisters {
    /// Returns `None` if the registers that the loop writes, counted for each place where it may be
    /// left, are more than `most`.
    pub(super) fn new(plan: &Plan, region: &NativeLoop, reads: &RegisterReads, most: usize) -> Option<LiveRegisters> {
        let code = &plan.code[region.code.start as usize..region.code.end as usize];
        let mut written: Vec<Reg> = code.iter().filter_map(|instr| written_by(plan, instr)).collect();
        written.sort_unstable();
        written.dedup();
        let index: FxHashMap<Reg, usize> = written.iter().enumerate().map(|(i, &r)| (r, i)).collect();
        let n_words = written.len().div_ceil(64);
        let n_exits = code.iter().filter(|instr| may_leave(instr)).count();
        if n_exits * written.len() > most || code.len() * n_words > MAX_WORDS {
            return None;
        }
        let set = |words: &mut [u64], i: usize| words[i / 64] |= 1 << (i % 64);

        // Those that are read elsewhere.
        let mut n_inside = vec![0; written.len()];
        for instr in code {
            visit_reads(plan, instr, &mut |r| index.get(&r).into_iter().for_each(|&i| n_inside[i] += 1));
        }
        let mut before = vec![vec![0u64; n_words].into_boxed_slice(); code.len() + 1];
        for (i, r) in written.iter().enumerate() {
            if n_inside[i] < reads.n_reads[r.index()] {
                set(&mut before[code.len()], i);
            }
        }
        let entry = (region.entry - region.code.start) as usize;
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for (at, instr) in code.iter().enumerate().rev() {
                let mut live = match instr {
                    Instr::Jump { .. } => vec![0; n_words].into_boxed_slice(),
                    _ => before[at + 1].clone(),
                };
                if let Some(to) = instr.target() {
                    let there = &before[(to - region.code.start) as usize];
                    live.iter_mut().zip(there).for_each(|(word, more)| *word |= more);
                }
                if let Some(i) = written_by(plan, instr).map(|r| index[&r]) {
                    live[i / 64] &= !(1 << (i % 64));
                }
                visit_reads(plan, instr, &mut |r| index.get(&r).into_iter().for_each(|&i| set(&mut live, i)));
                has_changed |= live != before[at];
                before[at] = live;
            }
            // The loop may be entered again.
            let again = before[entry].clone();
            let at_end = &mut before[code.len()];
            for (word, more) in at_end.iter_mut().zip(again) {
                has_changed |= more & !*word != 0;
                *word |= more;
            }
        }
        Some(LiveRegisters { written, before, start: region.code.start })
    }

    /// Returns the registers whose values are read at an instruction of the loop or later, or after
    /// the loop, of those that it writes.
    pub(super) fn before(&self, instr: u32) -> impl Iterator<Item = Reg> {
        let live = &self.before[(instr - self.start) as usize];
        let is_live = move |i: usize| live[i / 64] >> (i % 64) & 1 == 1;
        self.written.iter().enumerate().filter(move |&(i, _)| is_live(i)).map(|(_, &r)| r)
    }
}

/// Returns whether the loop may be left at an instruction.
fn may_leave(instr: &Instr) -> bool {
    use Instr::{Assert, Jump, Require, RequireIndex, Run, StackMove, StackPop, StackPush};
    matches!(
        instr,
        Jump { .. }
            | Require { .. }
            | RequireIndex { .. }
            | Assert { .. }
            | Run(_)
            | StackPush { .. }
            | StackPop { .. }
            | StackMove { .. }
    )
}
