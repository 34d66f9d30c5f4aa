//! The run of a loop in lanes: its blocks on all threads, and their combined effects.

use super::block::{BlockEffects, Declined, ElementUpdates, LaneBlock, LoopInputs, LoopShape};
use super::program::{LaneProgram, LoopStack, StackPart};
use crate::cpu::compile::{Context, Plan};
use crate::cpu::memory::ExternalTensors;
use crate::cpu::memory::segments::LaneSegments;
use crate::threads;
use anabranch_dsl::interp::StopFlag;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The fewest iterations in a block, if there are as many.
pub(super) const MIN_LANES: usize = 64;

/// Number of parts of the blocks for each thread.
const PARTS_PER_THREAD: usize = 8;

impl LaneProgram {
    /// Runs the loop. Returns whether it did; otherwise nothing has changed.
    pub(crate) fn run(&self, plan: &Plan, cx: &mut Context, foreign: ExternalTensors<'_>, stop: &StopFlag) -> bool {
        let Some(shape) = self.shape(cx) else { return false };
        let memory = |stack: &LoopStack| Mutex::new(cx.stacks[stack.stack.index()].take_spare());
        let spare = self.stacks.iter().map(memory).collect();
        let Some(effects) = self.effects(plan, cx, foreign, shape, spare, stop) else { return false };
        self.commit(cx, effects, shape);
        true
    }

    /// Returns how the iterations are divided, or `None` if the loop should not run in lanes.
    fn shape(&self, cx: &Context) -> Option<LoopShape> {
        let n = self.trips.trips(&cx.regs).filter(|&n| n >= self.min_trips.max(1))?;
        Some(LoopShape { n, lanes: self.lanes(cx, n), is_reversed: self.is_reversed(cx)? })
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

    /// Returns the number of iterations in a block: that of the loop whose stacks are popped, or as
    /// many as fit in the caches, in a block for each thread at least.
    fn lanes(&self, cx: &Context, n: usize) -> usize {
        let popped = self.stacks.iter().find(|stack| stack.part == StackPart::Popped);
        let segments = popped.and_then(|stack| cx.stacks[stack.stack.index()].segments());
        segments.map_or_else(
            || {
                let for_each_thread = n.div_ceil(threads::n_threads()).next_multiple_of(MIN_LANES);
                for_each_thread.min(self.max_lanes)
            },
            LaneSegments::lanes,
        )
    }

    /// Runs all iterations. Returns what they leave, for each block.
    fn effects(
        &self,
        plan: &Plan,
        cx: &Context,
        foreign: ExternalTensors<'_>,
        shape: LoopShape,
        spare: Vec<Mutex<Vec<Vec<u64>>>>,
        stop: &StopFlag,
    ) -> Option<Vec<BlockEffects>> {
        let LoopShape { n, lanes, .. } = shape;
        let mut segments = Vec::with_capacity(self.stacks.len());
        for known in &self.stacks {
            let stack = &cx.stacks[known.stack.index()];
            segments.push(match known.part {
                StackPart::Own => None,
                StackPart::Pushed => stack.is_cleared().then_some(None)?,
                StackPart::Popped => Some(stack.segments().filter(|s| s.n == n && s.lanes() == lanes)?),
            });
        }
        let inputs = LoopInputs {
            regs: &cx.regs,
            sources: cx.sources(plan, foreign),
            lists: &cx.lists,
            segments,
            shape,
            depths: self.stacks.iter().map(|_| AtomicUsize::new(1)).collect(),
            spare,
            stop,
        };
        let n_blocks = n.div_ceil(lanes);
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
    fn commit(&self, cx: &mut Context, mut effects: Vec<BlockEffects>, shape: LoopShape) {
        let LoopShape { n, lanes, is_reversed } = shape;
        for counter in &self.counters {
            let bits = &mut cx.regs[counter.reg.index()];
            let end = bits.wrapping_add((n as u64).wrapping_mul(counter.step.cast_unsigned()));
            *bits = end & (u64::MAX >> (64 - 8 * counter.size));
        }
        let places = |f: &mut dyn FnMut(usize, usize)| {
            let mut in_block = |k: usize| f(k / lanes, k % lanes);
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
