//! Registers for the values of native code, by a linear scan.
//!
//! A value has one place for the whole function: a register, or a slot of the stack frame. It is
//! live in one range of positions, which are twice the indices of steps in the order of the plan,
//! plus 1 for what a step sets.

use super::steps::{NativeBlockId, NativeEnd, NativeStep, NativeSteps, NativeValue};
use crate::cpu::x86::linear_scan::{LiveInterval, linear_scan};
use std::collections::BTreeSet;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NativePlace {
    /// The number of a general-purpose register, or of a vector register for floats.
    Register(u8),
    /// An index of 8 bytes in the stack frame.
    Slot(u32),
    Constant,
    /// The value is never used.
    Nowhere,
}

/// The registers that values can have, the preferred ones last.
pub(super) struct NativeRegisters<'a> {
    pub(super) integers: &'a [u8],
    pub(super) floats: &'a [u8],
}

pub(super) struct NativeAllocation {
    pub(super) places: Vec<NativePlace>,
    pub(super) n_slots: u32,
    /// The ranges of the values of each register, in order, first those of integers.
    of_registers: [Vec<Vec<LiveInterval>>; 2],
}

impl NativeAllocation {
    /// Returns whether a register has a value that is needed before and after a step, by the
    /// position of that.
    pub(super) fn is_live_across(&self, register: u8, is_float: bool, position: usize) -> bool {
        let of_group = &self.of_registers[usize::from(is_float)];
        let Some(intervals) = of_group.get(usize::from(register)) else { return false };
        let begun = intervals.partition_point(|interval| interval.start <= position);
        intervals[..begun].last().is_some_and(|last| last.end > position)
    }
}

/// The weight of a use that rarely happens.
const OF_COLD: f64 = 1.0 / 64.0;

/// The values that are used in more than one block, or before they are set in one.
struct SharedValues {
    /// The index of each of them.
    index: Vec<Option<u32>>,
    n: usize,
}

impl SharedValues {
    fn new(steps: &NativeSteps) -> SharedValues {
        let mut only_in: Vec<Option<NativeBlockId>> = vec![None; steps.values.len()];
        let mut shared = SharedValues { index: vec![None; steps.values.len()], n: 0 };
        for &block in &steps.order {
            let mut touch = |value: NativeValue, is_set: bool| {
                let known = &mut only_in[value.index()];
                if *known == Some(block) || steps.constant_of(value).is_some() {
                    return;
                }
                if (known.is_some() || !is_set) && shared.index[value.index()].is_none() {
                    shared.index[value.index()] = Some(shared.n as u32);
                    shared.n += 1;
                }
                *known = Some(block);
            };
            let NativeBlockSteps { steps, end } = block_steps(steps, block);
            for step in steps {
                step.visit_read(&mut |value| touch(value, false));
                step.result().into_iter().for_each(|value| touch(value, true));
            }
            end.visit_read(&mut |value| touch(value, false));
        }
        shared
    }
}

struct NativeBlockSteps<'a> {
    steps: &'a [NativeStep],
    end: &'a NativeEnd,
}

fn block_steps(steps: &NativeSteps, block: NativeBlockId) -> NativeBlockSteps<'_> {
    let block = &steps.blocks[block.index()];
    NativeBlockSteps { steps: &block.steps, end: block.end.as_ref().expect("a block has an end") }
}

/// Returns the values that are live at the start of each block, as bits of shared values.
fn live_at_starts(steps: &NativeSteps, shared: &SharedValues) -> Vec<Box<[u64]>> {
    let n_words = shared.n.div_ceil(64);
    let mut live_in = vec![vec![0u64; n_words].into_boxed_slice(); steps.blocks.len()];
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for &block in steps.order.iter().rev() {
            let mut live = live_at_end(steps, block, &live_in);
            let index = |value: NativeValue| shared.index[value.index()].map(|i| i as usize);
            let NativeBlockSteps { steps, end } = block_steps(steps, block);
            let add = |value: NativeValue, live: &mut [u64]| {
                index(value).into_iter().for_each(|i| live[i / 64] |= 1 << (i % 64));
            };
            end.visit_read(&mut |value| add(value, &mut live));
            for step in steps.iter().rev() {
                step.result().and_then(index).into_iter().for_each(|i| live[i / 64] &= !(1 << (i % 64)));
                step.visit_read(&mut |value| add(value, &mut live));
            }
            has_changed |= live != live_in[block.index()];
            live_in[block.index()] = live;
        }
    }
    live_in
}

fn live_at_end(steps: &NativeSteps, block: NativeBlockId, live_in: &[Box<[u64]>]) -> Box<[u64]> {
    let mut live = vec![0; live_in[block.index()].len()].into_boxed_slice();
    for to in block_steps(steps, block).end.targets() {
        live.iter_mut().zip(&live_in[to.index()]).for_each(|(word, more)| *word |= more);
    }
    live
}

/// Returns the live ranges of all values, by their starts.
fn intervals(steps: &NativeSteps) -> Vec<LiveInterval> {
    let shared = SharedValues::new(steps);
    let live_in = live_at_starts(steps, &shared);
    let mut of_shared = vec![NativeValue::REGISTERS; shared.n];
    for (value, i) in shared.index.iter().enumerate() {
        i.iter().for_each(|&i| of_shared[i as usize] = NativeValue::of_index(value));
    }
    let mut found: Vec<Option<LiveInterval>> = vec![None; steps.values.len()];
    let mut touch = |value: NativeValue, at: usize, weight: f64, hint: Option<NativeValue>| {
        if steps.constant_of(value).is_some() {
            return;
        }
        let value = value.index();
        let new = LiveInterval { value, start: at, end: at, weight: 0.0, hint: None };
        let interval = found[value].get_or_insert(new);
        (interval.start, interval.end) = (interval.start.min(at), interval.end.max(at));
        interval.weight += weight;
        interval.hint = interval.hint.or(hint.map(NativeValue::index));
    };
    // The parameters are set before the first step.
    NativeValue::PARAMETERS.into_iter().for_each(|value| touch(value, 0, 0.0, None));
    let mut position = FIRST_POSITION;
    let each = |live: &[u64], f: &mut dyn FnMut(NativeValue)| {
        for (w, &word) in live.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                f(of_shared[64 * w + rest.trailing_zeros() as usize]);
                rest &= rest - 1;
            }
        }
    };
    for &id in &steps.order {
        let block = &steps.blocks[id.index()];
        let weight = 8f64.powi(block.depth as i32) * if block.is_cold { OF_COLD } else { 1.0 };
        each(&live_in[id.index()], &mut |value| touch(value, position, 0.0, None));
        let NativeBlockSteps { steps: of_block, end } = block_steps(steps, id);
        for step in of_block {
            let mut hint = None;
            step.visit_read(&mut |value| {
                hint = hint.or((step.result().map(|dst| steps.ty(dst)) == Some(steps.ty(value))).then_some(value));
                touch(value, position, weight, None);
            });
            step.result().into_iter().for_each(|value| touch(value, position + 1, weight, hint));
            position += 2;
        }
        end.visit_read(&mut |value| touch(value, position, weight, None));
        each(&live_at_end(steps, id, &live_in), &mut |value| touch(value, position + 1, 0.0, None));
        position += 2;
    }
    let mut found: Vec<LiveInterval> = found.into_iter().flatten().collect();
    for interval in &mut found {
        interval.weight /= (interval.end - interval.start + 1) as f64;
    }
    found.sort_by_key(|interval| interval.start);
    found
}

/// The position of the first step. That of each other step, and of the end of each block, is 2
/// more.
pub(super) const FIRST_POSITION: usize = 2;

/// Gives each value a place.
pub(super) fn allocate(steps: &NativeSteps, registers: &NativeRegisters<'_>) -> NativeAllocation {
    let intervals = intervals(steps);
    let mut chosen = vec![None; steps.values.len()];
    for (is_float, free) in [(false, registers.integers), (true, registers.floats)] {
        let of_group = intervals.iter().filter(|i| steps.values[i.value].ty.is_float() == is_float);
        linear_scan(of_group, free.to_vec(), &mut chosen);
    }
    let place_of_unused = |i: usize| match steps.values[i].constant {
        Some(_) => NativePlace::Constant,
        None => NativePlace::Nowhere,
    };
    let mut places: Vec<NativePlace> = (0..steps.values.len()).map(place_of_unused).collect();
    // Slots are used again, the last one that became free first.
    let (mut n_slots, mut free_slots) = (0, Vec::new());
    let mut ends: BTreeSet<(usize, u32)> = BTreeSet::new();
    for interval in &intervals {
        places[interval.value] = match chosen[interval.value] {
            Some(register) => NativePlace::Register(register),
            None => {
                while let Some(&(end, slot)) = ends.first()
                    && end < interval.start
                {
                    ends.pop_first();
                    free_slots.push(slot);
                }
                let slot = free_slots.pop().unwrap_or_else(|| {
                    n_slots += 1;
                    n_slots - 1
                });
                ends.insert((interval.end, slot));
                NativePlace::Slot(slot)
            }
        };
    }
    let mut of_registers = [Vec::new(), Vec::new()];
    for interval in intervals {
        if let Some(register) = chosen[interval.value].map(usize::from) {
            let of_group = &mut of_registers[usize::from(steps.values[interval.value].ty.is_float())];
            of_group.resize(of_group.len().max(register + 1), Vec::new());
            of_group[register].push(interval);
        }
    }
    NativeAllocation { places, n_slots, of_registers }
}
