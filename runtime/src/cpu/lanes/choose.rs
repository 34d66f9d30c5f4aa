//! The choice of loops that run in lanes.

use super::WhyNotInLanes;
use super::program::LaneProgram;
use super::run::MIN_LANES;
use super::translate::translate;
use crate::cpu::compile::{Instr, LoopSpan, Plan};
use crate::options::CodeVectors;
use anabranch_dsl::ir::dependence::MIN_PARALLEL_TRIPS;

/// Translates the outermost loops of a plan that can run in lanes. The others get the reason why
/// they cannot. Returns each program with its loop.
pub(crate) fn programs(plan: &mut Plan, lanes: usize) -> Vec<(usize, LaneProgram)> {
    let mut loops: Vec<usize> = (0..plan.loops.len()).collect();
    loops.sort_by_key(|&l| (plan.loops[l].code.start, std::cmp::Reverse(plan.loops[l].code.end)));
    let mut found: Vec<(usize, LaneProgram)> = Vec::new();
    for l in loops {
        let code = plan.loops[l].code.clone();
        let Some(parallel) = &plan.loops[l].parallel else { continue };
        if found.last().is_some_and(|&(around, _)| code.start < plan.loops[around].code.end) {
            plan.loops[l].not_in_lanes = None;
            continue;
        }
        let program = translate(plan, &code, parallel, lanes);
        plan.loops[l].not_in_lanes = program.as_ref().err().copied();
        found.extend(program.ok().map(|program| (l, program)));
    }
    found
}

/// Returns the trip count from which on a loop is worth lanes, or `None` if none is. If there is
/// native code, its iterations take little more than their operations, and without loops inside
/// less than the addition of sums afterwards.
fn min_trips(program: &LaneProgram, is_native: bool, has_native_loops: bool) -> Option<usize> {
    let has_loops = program.blocks.iter().any(|block| block.begins_loop);
    match (is_native, has_loops) {
        // Tests have blocks of few lanes.
        _ if program.max_lanes < MIN_LANES => Some(program.max_lanes),
        (false, _) if has_native_loops => Some(128),
        (false, _) => Some(MIN_PARALLEL_TRIPS as usize),
        (true, true) => Some(256),
        (true, false) => None,
    }
}

/// Lets loops run in lanes: puts an [`Instr::Lanes`] at the entry of each. Parts of their bodies
/// become native code.
pub(crate) fn install(plan: &mut Plan, programs: Vec<(usize, LaneProgram)>, vectors: CodeVectors) {
    for (l, mut program) in programs {
        let code = plan.loops[l].code.clone();
        let mut around =
            plan.loops.iter().filter(|around| around.code.start < code.start && code.end <= around.code.end);
        // Native code of a loop around it never comes here.
        if around.any(|around| matches!(plan.code[around.code.start as usize - 1], Instr::Native { .. })) {
            continue;
        }
        let enter = code.start as usize - 1;
        let (entry, native) = match plan.code[enter] {
            Instr::Jump { to } => (to, None),
            Instr::Native { function, entry } => (entry, Some(function)),
            _ => panic!("a loop that was translated is entered by a jump"),
        };
        let is_inside = |other: &&LoopSpan| code.start < other.code.start && other.code.end <= code.end;
        let mut inside = plan.loops.iter().filter(is_inside);
        let is_native = |at: u32| matches!(plan.code[at as usize - 1], Instr::Native { .. });
        let has_native_loops = inside.any(|inner| is_native(inner.code.start));
        let Some(trips) = min_trips(&program, native.is_some(), has_native_loops) else {
            plan.loops[l].not_in_lanes = Some(WhyNotInLanes::Native);
            continue;
        };
        program.min_trips = trips;
        program.compile(vectors);
        plan.code[enter] = Instr::Lanes { program: plan.lanes.len() as u32, entry, native };
        plan.lanes.push(program);
    }
}
