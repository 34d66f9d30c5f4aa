//! Registers for the values of lane code, by a linear scan.
//!
//! No live range has holes: a value either has one place for the whole code, since lanes that a
//! step leaves out must keep it, or is set once and used before the next basic block. So one pass
//! over the starts of ranges is all that an allocator for any control flow would do here, without
//! moves between places. The weight of a value is its uses for the length of its range. Without a
//! register it is in memory everywhere, or an operand in the code if it is a constant.

use super::LaneInstructions;
use super::steps::{CodeStep, CodeSteps, Lifetime, RegisterGroup, ValueId, ValueUse};
use crate::cpu::x86::linear_scan::{LiveInterval, linear_scan};

/// The registers that values can have. The first ones hold vectors.
#[derive(Debug)]
pub(super) struct RegisterFile {
    n_vectors: u8,
    /// The mask of the current lanes.
    pub(super) current: u8,
    /// Other masks.
    masks: &'static [u8],
    /// Those that hold vectors from memory for one step: sources and the result.
    pub(super) scratch: [u8; 3],
    /// The same for masks: operands, the first one also the result.
    pub(super) scratch_masks: [u8; 2],
}

impl LaneInstructions {
    pub(super) fn registers(self) -> &'static RegisterFile {
        match self {
            // The first mask is never a predicate, as its number stands for none there.
            LaneInstructions::Avx512 => &RegisterFile {
                n_vectors: 29,
                current: 1,
                masks: &[2, 3, 4, 5, 6],
                scratch: [29, 30, 31],
                scratch_masks: [0, 7],
            },
            // Masks are vectors.
            LaneInstructions::Avx2 => &RegisterFile {
                n_vectors: 8,
                current: 12,
                masks: &[13, 8],
                scratch: [9, 10, 11],
                scratch_masks: [14, 15],
            },
        }
    }
}

/// How much less it costs to have a constant in memory.
const OF_CONSTANTS: f64 = 0.25;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePlace {
    Register(u8),
    /// A place of 64 bytes in the memory of the code.
    Slot(u16),
    /// A constant that the code has.
    InCode,
}

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) places: Vec<ValuePlace>,
    pub(super) n_slots: u16,
}

/// Returns the ranges in which values are needed: twice the indices of steps, plus 1 for what they
/// set.
fn intervals(steps: &CodeSteps) -> Vec<LiveInterval> {
    let end = 2 * steps.steps.len() + 1;
    let mut found: Vec<Option<LiveInterval>> = vec![None; steps.values.len()];
    let mut depth = 0;
    for (i, step) in steps.steps.iter().enumerate() {
        if let CodeStep::Label { depth: inside, .. } = step {
            depth = *inside;
        }
        let (keeps_sources, hint) = match step {
            CodeStep::Vector(step) => (step.before.is_some(), step.before),
            // The processor reads places while it sets elements.
            CodeStep::Gather { .. } => (true, None),
            _ => (false, None),
        };
        let weight = 8f64.powi(depth as i32);
        step.values(&mut |value, value_use| {
            let at = match value_use {
                ValueUse::Set => 2 * i + 1,
                // The result is there before sources are read, except for what it is added to.
                ValueUse::Read if keeps_sources && hint != Some(value) => 2 * i + 1,
                ValueUse::Read => 2 * i,
            };
            let is_brief = steps.values[value.index()].lifetime == Lifetime::Brief;
            let (first, last) = if is_brief { (at, at) } else { (0, end) };
            let new = LiveInterval { value: value.index(), start: first, end: last, weight: 0.0, hint: None };
            let interval = found[value.index()].get_or_insert(new);
            interval.weight += weight;
            interval.end = interval.end.max(last);
            if value_use == ValueUse::Set {
                interval.hint = hint.map(ValueId::index);
            }
        });
    }
    let mut found: Vec<LiveInterval> = found.into_iter().flatten().collect();
    for interval in &mut found {
        interval.weight /= (interval.end - interval.start + 1) as f64;
        if let Lifetime::Constant { .. } = steps.values[interval.value].lifetime {
            interval.weight *= OF_CONSTANTS;
        }
    }
    found.sort_by_key(|interval| interval.start);
    found
}

/// Gives each value a place.
pub(super) fn allocate(steps: &CodeSteps, registers: &RegisterFile) -> Allocation {
    let intervals = intervals(steps);
    let current = ValueId::CURRENT.index();
    let mut chosen = vec![None; steps.values.len()];
    for group in [RegisterGroup::Vectors, RegisterGroup::Masks] {
        let free: Vec<u8> = match group {
            RegisterGroup::Vectors => (0..registers.n_vectors).rev().collect(),
            RegisterGroup::Masks => registers.masks.iter().copied().rev().collect(),
        };
        let is_of_group =
            |interval: &&LiveInterval| interval.value != current && steps.values[interval.value].group == group;
        linear_scan(intervals.iter().filter(is_of_group), free, &mut chosen);
    }
    let mut places = vec![ValuePlace::InCode; steps.values.len()];
    let mut n_slots = 0;
    for &LiveInterval { value, .. } in &intervals {
        places[value] = match (chosen[value], steps.values[value].lifetime) {
            (Some(register), _) => ValuePlace::Register(register),
            (None, Lifetime::Constant { .. }) => ValuePlace::InCode,
            (None, Lifetime::Brief | Lifetime::Throughout) => {
                n_slots += 1;
                ValuePlace::Slot(n_slots - 1)
            }
        };
    }
    places[current] = ValuePlace::Register(registers.current);
    Allocation { places, n_slots }
}
