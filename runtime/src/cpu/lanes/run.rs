//! The run of a loop in lanes: its blocks on all threads, and their combined effects.

use super::block::{BlockEffects, Declined, ElementUpdates, LaneBlock, LoopInputs};
use super::translate::{LaneProgram, StackPart};
use crate::cpu::compile::{Context, Plan};
use crate::cpu::memory::ExternalTensors;
use crate::cpu::memory::segments::LaneSegments;
use crate::threads;
use anabranch_dsl::interp::StopFlag;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of parts of the blocks for each thread.
const PARTS_PER_THREAD: usize = 8;

impl LaneProgram {
    /// Runs the loop. Returns whether it did; otherwise nothing has changed.
    pub(crate) fn run(&self, plan: &Plan, cx: &mut Context, foreign: ExternalTensors<'_>, stop: &StopFlag) -> bool {
        let Some(n) = self.trips.trips(&cx.regs) else { return false };
        if n < self.min_trips.max(1) {
            return false;
        }
        let Some(effects) = self.effects(plan, cx, foreign, n, stop) else { return false };
        let is_reversed = self.is_reversed(cx).unwrap_or(false);
        self.commit(cx, effects, n, is_reversed);
        true
    }

    /// Returns whether the last iteration has the first lane: if iterations pop what others pushed,
    /// they have the lanes of these, in the opposite order. Returns `None` if stacks differ in
    /// that.
    fn is_reversed(&self, cx: &Context) -> Option<bool> {
        let popped = self.stacks.iter().filter(|stack| stack.part == StackPart::Popped);
        let mut orders = popped.map(|stack| Some(!cx.stacks[stack.stack.index()].segments()?.is_reversed));
        let Some(first) = orders.next() else { return Some(false) };
        first.filter(|_| orders.all(|order| order == first))
    }

    /// Runs all iterations. Returns what they leave, for each block.
    fn effects(
        &self,
        plan: &Plan,
        cx: &Context,
        foreign: ExternalTensors<'_>,
        n: usize,
        stop: &StopFlag,
    ) -> Option<Vec<BlockEffects>> {
        let is_reversed = self.is_reversed(cx)?;
        let mut segments = Vec::with_capacity(self.stacks.len());
        for known in &self.stacks {
            let stack = &cx.stacks[known.stack.index()];
            segments.push(match known.part {
                StackPart::Own => None,
                StackPart::Pushed => stack.is_cleared().then_some(None)?,
                StackPart::Popped => Some(stack.segments().filter(|s| s.n == n && s.lanes() == self.lanes)?),
            });
        }
        let inputs = LoopInputs {
            regs: &cx.regs,
            sources: cx.sources(plan, foreign),
            lists: &cx.lists,
            segments,
            n,
            is_reversed,
            depths: self.stacks.iter().map(|_| AtomicUsize::new(1)).collect(),
            stop,
        };
        let n_blocks = n.div_ceil(self.lanes);
        let effects: Vec<OnceLock<BlockEffects>> = (0..n_blocks).map(|_| OnceLock::new()).collect();
        let declined = Mutex::new(false);
        let is_declined = || *declined.lock().unwrap_or_else(PoisonError::into_inner);
        let part = n_blocks.div_ceil(PARTS_PER_THREAD * threads::n_threads());
        threads::indices(n_blocks.div_ceil(part), &|i| {
            let mut block = LaneBlock::new(self, &inputs);
            for (index, left) in effects.iter().enumerate().skip(i * part).take(part) {
                if is_declined() {
                    return;
                }
                match block.run(index) {
                    Ok(effects) => _ = left.set(effects),
                    Err(Declined) => *declined.lock().unwrap_or_else(PoisonError::into_inner) = true,
                }
            }
        });
        effects.into_iter().map(OnceLock::into_inner).collect()
    }

    /// Combines what the iterations leave, in their order.
    fn commit(&self, cx: &mut Context, mut effects: Vec<BlockEffects>, n: usize, is_reversed: bool) {
        for counter in &self.counters {
            let bits = &mut cx.regs[counter.reg.index()];
            let end = bits.wrapping_add((n as u64).wrapping_mul(counter.step.cast_unsigned()));
            *bits = end & (u64::MAX >> (64 - 8 * counter.size));
        }
        let places = |f: &mut dyn FnMut(usize, usize)| {
            let mut in_block = |k: usize| f(k / self.lanes, k % self.lanes);
            if is_reversed { (0..n).rev().for_each(&mut in_block) } else { (0..n).for_each(&mut in_block) }
        };
        for (i, sum) in self.sums.iter().enumerate() {
            let mut bits = cx.regs[sum.reg.index()];
            places(&mut |block, lane| bits = (sum.add)(bits, effects[block].sums[i][lane]));
            cx.regs[sum.reg.index()] = bits;
        }
        for (i, update) in self.updates.iter().enumerate() {
            let list = cx.lists[update.list.index()].as_mut().expect("it is a list");
            let mut in_block = |block: usize| {
                let ElementUpdates { indices, elements } = &effects[block].updates[i];
                let bytes = &bytemuck::cast_slice(elements)[..indices.len() * update.bytes];
                list.update_lanes(&update.op, indices, bytes, is_reversed, update.loc);
            };
            let blocks = 0..effects.len();
            if is_reversed { blocks.rev().for_each(&mut in_block) } else { blocks.for_each(&mut in_block) }
        }
        for (i, known) in self.stacks.iter().enumerate().rev() {
            let blocks = effects.iter_mut().map(|effects| effects.stacks.pop().expect("each block has all stacks"));
            let blocks: Vec<_> = blocks.collect();
            debug_assert_eq!(effects[0].stacks.len(), i);
            let stack = &mut cx.stacks[known.stack.index()];
            match known.part {
                StackPart::Pushed => stack.set_segments(LaneSegments { n, is_reversed, blocks }),
                StackPart::Popped => stack.clear(),
                StackPart::Own => {}
            }
        }
    }
}
