//! Registers for the values of lane code, by a linear scan.
//!
//! No live range has holes: a value either has one place for the whole code, since lanes that a
//! step leaves out must keep it, or is set once and used before the next basic block. So one pass
//! over the starts of ranges is all that an allocator for any control flow would do here, without
//! moves between places. If registers run out, the value with the fewest uses for the length of its
//! range is in memory everywhere. Such a constant is an operand in the code.

use super::LaneInstructions;
use super::steps::{CodeStep, CodeSteps, Lifetime, RegisterGroup, ValueId, ValueUse};

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

/// The range in which a value is needed: twice the indices of steps, plus 1 for what they set.
#[derive(Clone, Copy, Debug)]
struct LiveInterval {
    value: ValueId,
    start: usize,
    end: usize,
    weight: f64,
    /// A value in whose place it should be.
    hint: Option<ValueId>,
}

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
            let new = LiveInterval { value, start: first, end: last, weight: 0.0, hint: None };
            let interval = found[value.index()].get_or_insert(new);
            interval.weight += weight;
            interval.end = interval.end.max(last);
            if value_use == ValueUse::Set {
                interval.hint = hint;
            }
        });
    }
    let mut found: Vec<LiveInterval> = found.into_iter().flatten().collect();
    for interval in &mut found {
        interval.weight /= (interval.end - interval.start + 1) as f64;
        if let Lifetime::Constant { .. } = steps.values[interval.value.index()].lifetime {
            interval.weight *= OF_CONSTANTS;
        }
    }
    found.sort_by_key(|interval| interval.start);
    found
}

/// Gives each value a place.
pub(super) fn allocate(steps: &CodeSteps, registers: &RegisterFile) -> Allocation {
    let mut places = vec![ValuePlace::InCode; steps.values.len()];
    places[ValueId::CURRENT.index()] = ValuePlace::Register(registers.current);
    let mut n_slots = 0;
    let intervals = intervals(steps);
    for group in [RegisterGroup::Vectors, RegisterGroup::Masks] {
        let mut free: Vec<u8> = match group {
            RegisterGroup::Vectors => (0..registers.n_vectors).rev().collect(),
            RegisterGroup::Masks => registers.masks.iter().copied().rev().collect(),
        };
        let mut active: Vec<(LiveInterval, u8)> = Vec::new();
        let of_group = intervals.iter().filter(|interval| {
            interval.value != ValueId::CURRENT && steps.values[interval.value.index()].group == group
        });
        for &interval in of_group {
            active.retain(|&(other, register)| {
                let is_needed = other.end >= interval.start;
                if !is_needed {
                    free.push(register);
                }
                is_needed
            });
            let hinted = interval.hint.and_then(|value| match places[value.index()] {
                ValuePlace::Register(register) => free.iter().position(|&r| r == register),
                _ => None,
            });
            let register = match hinted {
                Some(at) => Some(free.remove(at)),
                None => free.pop(),
            };
            let mut put_aside = |value: ValueId, places: &mut Vec<ValuePlace>| {
                places[value.index()] = match steps.values[value.index()].lifetime {
                    Lifetime::Constant { .. } => ValuePlace::InCode,
                    Lifetime::Brief | Lifetime::Throughout => {
                        n_slots += 1;
                        ValuePlace::Slot(n_slots - 1)
                    }
                };
            };
            let register = register.or_else(|| {
                let least = active.iter_mut().min_by(|(a, _), (b, _)| a.weight.total_cmp(&b.weight))?;
                if least.0.weight >= interval.weight {
                    return None;
                }
                put_aside(least.0.value, &mut places);
                // The interval that takes the register replaces the other one.
                let register = least.1;
                least.0.end = 0;
                Some(register)
            });
            match register {
                Some(register) => {
                    active.retain(|&(other, of)| of != register || other.end != 0);
                    places[interval.value.index()] = ValuePlace::Register(register);
                    active.push((interval, register));
                }
                None => put_aside(interval.value, &mut places),
            }
        }
    }
    Allocation { places, n_slots }
}
