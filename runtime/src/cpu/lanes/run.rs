//! The run of a loop in lanes: its blocks on all threads, and their combined effects.

use super::additions::OrderedAdditions;
use super::block::{BlockEffects, Declined, ElementUpdates, LaneBlock, LoopInputs, LoopShape, SpareMemory};
use super::program::{LaneProgram, LoopStack, StackPart};
use crate::cpu::compile::{Context, Plan};
use crate::cpu::memory::ExternalTensors;
use crate::cpu::memory::segments::{LaneSegments, LaneStack};
use crate::threads;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::memory::{self, HeldBytes};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The fewest iterations in a block, if there are as many.
pub(super) const MIN_LANES: usize = 64;

/// Number of blocks after whose run their sums are added up, so that memory does not grow with the
/// trip count.
const WAVE: usize = 256;

/// The largest number of bytes of updates of lists, or of additions to tensors, also of a run
/// without a budget.
const MAX_UPDATES: usize = 1 << 30;

/// Number of parts of the blocks for each thread.
const PARTS_PER_THREAD: usize = 8;

/// The effects of all iterations of a loop.
struct LoopEffects {
    /// The bits of the sums.
    sums: Vec<u64>,
    /// The updates of lists, of each block in the order of its iterations.
    updates: Vec<Vec<ElementUpdates>>,
    /// The additions to each tensor, of each block in the order of its iterations.
    additions: Vec<Vec<OrderedAdditions>>,
    /// The stacks of the lanes, of each block.
    stacks: Vec<Vec<LaneStack>>,
    /// The memory of updates and additions, in the budget of the run.
    _recorded: Option<HeldBytes>,
}

impl LaneProgram {
    /// Runs the loop. Returns whether it did; otherwise nothing has changed.
    pub(crate) fn run(&self, plan: &Plan, cx: &mut Context, foreign: ExternalTensors<'_>, stop: &StopFlag) -> bool {
        let Some(shape) = self.shape(cx) else { return false };
        let mut kept = cx.lane_memory.remove(&self.end).unwrap_or_default().into_iter();
        let mut memory = |known: &LoopStack| {
            let own = kept.next().unwrap_or_default();
            Mutex::new(match (known.part, known.stack) {
                (StackPart::Pushed, Some(stack)) => cx.stacks[stack.index()].take_spare(),
                _ => own,
            })
        };
        let spare: SpareMemory = self.stacks.iter().map(&mut memory).collect();
        let effects = self.effects(plan, cx, foreign, shape, &spare, stop);
        let left = |memory: Mutex<Vec<_>>| memory.into_inner().unwrap_or_else(PoisonError::into_inner);
        cx.lane_memory.insert(self.end, spare.into_iter().map(left).collect());
        let Some(effects) = effects else { return false };
        self.commit(plan, cx, effects, shape);
        true
    }

    /// Returns how the iterations are divided, or `None` if the loop should not run in lanes.
    fn shape(&self, cx: &Context) -> Option<LoopShape> {
        // One stack of what lanes have pushed takes longer to make than lanes to pop.
        let pops_lanes = self.popped(cx).any(|segments| segments.is_some());
        let min_trips = if pops_lanes { 1 } else { self.min_trips.max(1) };
        let n = self.trips.trips(&cx.regs).filter(|&n| n >= min_trips)?;
        if self.bytes_of_updates(n) > MAX_UPDATES {
            return None;
        }
        Some(LoopShape { n, lanes: self.lanes(cx, n), is_reversed: self.is_reversed(cx)? })
    }

    /// Returns the bytes of the updates of lists by `n` iterations.
    fn bytes_of_updates(&self, n: usize) -> usize {
        let of_one = self.updates.iter().map(|update| update.bytes + size_of::<i32>()).sum::<usize>();
        of_one.saturating_mul(n)
    }

    /// Returns what lanes have pushed to each stack that iterations pop from, if lanes have.
    fn popped<'a>(&'a self, cx: &'a Context) -> impl Iterator<Item = Option<&'a LaneSegments>> {
        let popped = self.stacks.iter().filter(|stack| stack.part == StackPart::Popped);
        popped.filter_map(|stack| stack.stack).map(|stack| cx.stacks[stack.index()].segments())
    }

    /// Returns whether the last iteration has the first lane: if iterations pop what others pushed,
    /// they have the lanes of these, in the opposite order. Returns `None` if stacks differ in
    /// that.
    fn is_reversed(&self, cx: &Context) -> Option<bool> {
        let mut orders = self.popped(cx).map(|segments| Some(!segments?.is_reversed));
        let Some(first) = orders.next() else { return Some(false) };
        first.filter(|_| orders.all(|order| order == first))
    }

    /// Returns the number of iterations in a block: that of the loop whose stacks are popped, or as
    /// many as fit in the caches, in a block for each thread at least.
    fn lanes(&self, cx: &Context, n: usize) -> usize {
        self.popped(cx).next().flatten().map_or_else(
            || {
                let for_each_thread = n.div_ceil(threads::n_threads()).next_multiple_of(MIN_LANES);
                for_each_thread.min(self.max_lanes)
            },
            LaneSegments::lanes,
        )
    }

    /// Runs all iterations. Returns their effects.
    fn effects(
        &self,
        plan: &Plan,
        cx: &Context,
        foreign: ExternalTensors<'_>,
        shape: LoopShape,
        spare: &SpareMemory,
        stop: &StopFlag,
    ) -> Option<LoopEffects> {
        let LoopShape { n, lanes, is_reversed } = shape;
        let mut segments = Vec::with_capacity(self.stacks.len());
        for known in &self.stacks {
            let stack = known.stack.map(|stack| &cx.stacks[stack.index()]);
            segments.push(match (known.part, stack) {
                (StackPart::Pushed, Some(stack)) => stack.is_cleared().then_some(None)?,
                (StackPart::Popped, Some(stack)) => Some(stack.segments().filter(|s| s.n == n && s.lanes() == lanes)?),
                _ => None,
            });
        }
        let inputs = LoopInputs {
            regs: &cx.regs,
            sources: cx.sources(plan, foreign),
            lists: &cx.lists,
            segments,
            shape,
            depths: self.stacks.iter().map(|_| AtomicUsize::new(0)).collect(),
            spare,
            reserved: AtomicUsize::new(0),
            pushed: AtomicUsize::new(0),
            recorded: memory::try_hold(self.bytes_of_updates(n)).ok()?,
            has_declined: AtomicBool::new(false),
            stop,
        };
        let n_blocks = n.div_ceil(lanes);
        let mut effects = LoopEffects {
            sums: self.sums.iter().map(|sum| cx.regs[sum.reg.index()]).collect(),
            updates: self.updates.iter().map(|_| Vec::new()).collect(),
            additions: self.additions.iter().map(|_| Vec::new()).collect(),
            stacks: self.stacks.iter().map(|_| Vec::new()).collect(),
            _recorded: None,
        };
        let mut of_additions = 0;
        // The blocks in the order of their iterations.
        for first in (0..n_blocks).step_by(WAVE) {
            let wave = first..n_blocks.min(first + WAVE);
            let wave = if is_reversed { n_blocks - wave.end..n_blocks - wave.start } else { wave };
            let mut left = self.run_blocks(&inputs, wave)?;
            if is_reversed {
                left.reverse();
            }
            let additions = left.iter().flat_map(|left| &left.additions);
            of_additions += additions.map(OrderedAdditions::n_bytes).sum::<usize>();
            if of_additions > MAX_UPDATES {
                return None;
            }
            left.into_iter().for_each(|left| self.add(&mut effects, left, is_reversed));
        }
        if is_reversed {
            effects.stacks.iter_mut().for_each(|blocks| blocks.reverse());
        }
        effects._recorded = inputs.recorded;
        Some(effects)
    }

    /// Runs blocks on all threads. Returns the effects of each.
    fn run_blocks(&self, inputs: &LoopInputs<'_>, wave: Range<usize>) -> Option<Vec<BlockEffects>> {
        let effects: Vec<OnceLock<BlockEffects>> = wave.clone().map(|_| OnceLock::new()).collect();
        let part = wave.len().div_ceil(PARTS_PER_THREAD * threads::n_threads());
        threads::indices(wave.len().div_ceil(part), &|i| {
            let mut block = LaneBlock::new(self, inputs);
            for (k, left) in effects.iter().enumerate().skip(i * part).take(part) {
                if inputs.has_declined.load(Ordering::Relaxed) {
                    break;
                }
                match block.run(wave.start + k) {
                    Ok(effects) => _ = left.set(effects),
                    Err(Declined::Loop | Declined::Code) => inputs.has_declined.store(true, Ordering::Relaxed),
                }
            }
            block.give_back();
        });
        effects.into_iter().map(OnceLock::into_inner).collect()
    }

    /// Adds the effects of the next block.
    fn add(&self, effects: &mut LoopEffects, left: BlockEffects, is_reversed: bool) {
        for ((bits, sum), added) in effects.sums.iter_mut().zip(&self.sums).zip(&left.sums) {
            let add = |bits: u64, &added: &u64| (sum.add)(bits, added);
            *bits = if is_reversed { added.iter().rev().fold(*bits, add) } else { added.iter().fold(*bits, add) };
        }
        effects.updates.iter_mut().zip(left.updates).for_each(|(all, update)| all.push(update));
        effects.additions.iter_mut().zip(left.additions).for_each(|(all, additions)| all.push(additions));
        effects.stacks.iter_mut().zip(left.stacks).for_each(|(all, stack)| all.push(stack));
    }

    /// Applies the effects of the iterations to the step.
    fn commit(&self, plan: &Plan, cx: &mut Context, effects: LoopEffects, shape: LoopShape) {
        let LoopShape { n, is_reversed, .. } = shape;
        for counter in &self.counters {
            let bits = &mut cx.regs[counter.reg.index()];
            let end = bits.wrapping_add((n as u64).wrapping_mul(counter.step.cast_unsigned()));
            *bits = end & (u64::MAX >> (64 - 8 * counter.size));
        }
        for (sum, bits) in self.sums.iter().zip(effects.sums) {
            cx.regs[sum.reg.index()] = bits;
        }
        for (update, blocks) in self.updates.iter().zip(effects.updates) {
            let list = cx.lists[update.list.index()].as_mut().expect("it is a list");
            for ElementUpdates { indices, elements } in blocks {
                let bytes = &bytemuck::cast_slice(&elements)[..indices.len() * update.bytes];
                list.update_lanes(&update.op, &indices, bytes, is_reversed, update.loc);
            }
        }
        for (added, blocks) in self.additions.iter().zip(effects.additions) {
            let tensor = plan.buffer_mut(cx, added.buffer);
            blocks.iter().for_each(|additions| additions.add_to(tensor, *added));
        }
        for (known, blocks) in self.stacks.iter().zip(effects.stacks) {
            let stack = known.stack.map(|stack| &mut cx.stacks[stack.index()]);
            match (known.part, stack) {
                (StackPart::Pushed, Some(stack)) => stack.set_segments(LaneSegments { n, is_reversed, blocks }),
                (StackPart::Popped, Some(stack)) => stack.clear(),
                _ => {}
            }
        }
    }
}
