//! The parts of a program that become native code: loops, and operations that follow each other.

use super::liveness::{self, RowLiveness, Rows};
use super::lower::{Lowered, has_steps, lower_loop, lower_run};
use super::{LaneBody, LaneInstructions};
use crate::cpu::lanes::program::{BasicBlock, BlockEnd, LaneOp};
use std::ops::Range;

/// The fewest operations outside of loops that are worth native code.
const MIN_RUN: usize = 2;

/// The most steps of native code, for each of which all values are looked at.
const MAX_STEPS: usize = 1 << 13;

/// The basic blocks of a loop, with all loops inside.
#[derive(Clone, Debug)]
pub(super) struct LoopBlocks {
    pub(super) range: Range<u16>,
    /// The basic block to which others jump.
    pub(super) entry: u16,
    /// The one to which it jumps at its end.
    pub(super) exit: u16,
}

fn targets(end: BlockEnd) -> impl Iterator<Item = u16> {
    let (first, second) = match end {
        BlockEnd::Jump(to) => (to, None),
        BlockEnd::Branch { to, otherwise, .. } => (to, Some(otherwise)),
    };
    std::iter::once(first).chain(second)
}

/// Returns the jumps between basic blocks, with that to the first one.
fn jumps(blocks: &[BasicBlock]) -> Vec<(Option<u16>, u16)> {
    let between = blocks.iter().enumerate();
    let between = between.flat_map(|(from, block)| targets(block.end).map(move |to| (Some(from as u16), to)));
    std::iter::once((None, 0)).chain(between).collect()
}

/// Returns the loops that are entered at one basic block and left for one, outer ones first.
fn loops(blocks: &[BasicBlock]) -> Vec<LoopBlocks> {
    let jumps = jumps(blocks);
    let back: Vec<(u16, u16)> =
        jumps.iter().filter_map(|&(from, to)| from.filter(|&from| to <= from).map(|from| (to, from))).collect();
    let mut found: Vec<LoopBlocks> = Vec::new();
    for &(first, last) in &back {
        let (mut first, mut last) = (first, last);
        // Loops that overlap, or begin at one place, are one.
        loop {
            let overlapping = |&&(a, b): &&(u16, u16)| {
                let is_inside = first <= a && b <= last;
                let is_around = a < first && last <= b;
                !is_inside && !is_around && a <= last && first <= b
            };
            let Some(&(a, b)) = back.iter().find(overlapping) else { break };
            (first, last) = (first.min(a), last.max(b));
        }
        let range = first..last + 1;
        let is_inside = |from: Option<u16>| from.is_some_and(|from| range.contains(&from));
        let mut entries: Vec<u16> =
            jumps.iter().filter(|&&(from, to)| range.contains(&to) && !is_inside(from)).map(|&(_, to)| to).collect();
        let mut exits: Vec<u16> =
            jumps.iter().filter(|&&(from, to)| is_inside(from) && !range.contains(&to)).map(|&(_, to)| to).collect();
        for places in [&mut entries, &mut exits] {
            places.sort_unstable();
            places.dedup();
        }
        if let ([entry], [exit]) = (&entries[..], &exits[..])
            && !found.iter().any(|known| known.range == range)
        {
            found.push(LoopBlocks { range, entry: *entry, exit: *exit });
        }
    }
    found.sort_by_key(|found| (std::cmp::Reverse(found.range.len()), found.range.start));
    found
}

fn is_small(lowered: &Lowered) -> bool {
    lowered.steps.steps.len() <= MAX_STEPS
}

/// The code of the parts of a program, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) code: Vec<Lowered>,
    pub(super) n_loops: usize,
}

impl Parts {
    /// Returns the operation that runs the next part.
    fn add(&mut self, lowered: Lowered) -> LaneOp {
        self.code.push(lowered);
        LaneOp::Code { function: self.code.len() as u16 - 1 }
    }
}

/// Finds the parts of a body. Returns the basic blocks in which operations run their code instead.
pub(super) fn extract(body: LaneBody<'_>, set: LaneInstructions) -> (Vec<BasicBlock>, Parts) {
    let liveness = RowLiveness::new(body);
    let mut parts = Parts::default();
    let mut new = body.blocks.to_vec();
    let mut is_code = vec![false; new.len()];
    for blocks in loops(body.blocks) {
        let range = usize::from(blocks.range.start)..usize::from(blocks.range.end);
        if is_code[range.clone()].contains(&true) {
            continue;
        }
        let Some(lowered) = lower_loop(body, set, &blocks, &liveness).filter(is_small) else { continue };
        is_code[range].fill(true);
        let op = parts.add(lowered);
        // Nothing jumps to the others any more.
        new[usize::from(blocks.entry)] =
            BasicBlock { ops: vec![op], end: BlockEnd::Jump(blocks.exit), begins_loop: false, aligned: None };
    }
    parts.n_loops = parts.code.len();
    for (block, _) in new.iter_mut().zip(is_code).filter(|(_, is_code)| !is_code) {
        let live = liveness.after(block);
        let ops = std::mem::take(&mut block.ops);
        block.ops = with_runs((body, set), &mut parts, ops, live);
    }
    (new, parts)
}

/// Replaces runs of operations, after which these rows are live.
fn with_runs(
    (body, set): (LaneBody<'_>, LaneInstructions),
    parts: &mut Parts,
    ops: Vec<LaneOp>,
    live: Rows,
) -> Vec<LaneOp> {
    // Their code would be too large.
    if ops.len() > MAX_STEPS {
        return ops;
    }
    // The rows that are live before each operation, and at the end.
    let mut live_before: Vec<Rows> = vec![live];
    for op in ops.iter().rev() {
        let mut live = live_before.last().expect("there is one").clone();
        liveness::before_one(op, &mut live);
        live_before.push(live);
    }
    live_before.reverse();
    let mut new = Vec::new();
    let mut run: Vec<LaneOp> = Vec::new();
    for (i, op) in ops.into_iter().enumerate() {
        if has_steps(body, set, &op) {
            run.push(op);
            continue;
        }
        end_run((body, set), parts, &mut run, &live_before[i], &mut new);
        new.push(match op {
            LaneOp::Branches { cond, arms } => {
                let arm =
                    |arm: Box<[LaneOp]>| with_runs((body, set), parts, arm.into_vec(), live_before[i + 1].clone());
                LaneOp::Branches { cond, arms: arms.map(arm).map(Vec::into_boxed_slice) }
            }
            op => op,
        });
    }
    end_run((body, set), parts, &mut run, live_before.last().expect("there is one"), &mut new);
    new
}

/// Ends a run of operations, after which these rows are live.
fn end_run(
    (body, set): (LaneBody<'_>, LaneInstructions),
    parts: &mut Parts,
    run: &mut Vec<LaneOp>,
    live: &Rows,
    new: &mut Vec<LaneOp>,
) {
    let lowered = if run.len() < MIN_RUN { None } else { lower_run(body, set, run, live).filter(is_small) };
    match lowered {
        Some(lowered) => {
            run.clear();
            new.push(parts.add(lowered));
        }
        None => new.append(run),
    }
}
