//! The execution of one block of iterations.

use super::additions::{AdditionLog, OrderedAdditions};
use super::code::CodeMemory;
use super::program::{BlockEnd, LaneProgram, ListUpdate, RowId, RowInfo, RowStart, StackPart, SumOverLanes};
use super::rows::{VectorBytes, blend, by_size, bytes, bytes_mut, fill};
use crate::cpu::memory::Sources;
use crate::cpu::memory::counted::CountedVec;
use crate::cpu::memory::list::ListStorage;
use crate::cpu::memory::segments::{LaneSegments, LaneStack};
use crate::cpu::multiversion::wide;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::memory::HeldBytes;
use bytemuck::Zeroable;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// An iteration failed or the step is to stop, so the loop cannot run in lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declined;

/// The division of the iterations of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopShape {
    /// The number of iterations.
    pub(super) n: usize,
    /// The number of iterations in a block.
    pub(super) lanes: usize,
    /// Whether the last iteration has the first lane.
    pub(super) is_reversed: bool,
}

/// The parts of the step that a loop in lanes reads.
pub(super) struct LoopInputs<'a> {
    pub(super) regs: &'a [u64],
    pub(super) sources: Sources<'a>,
    pub(super) lists: &'a [Option<ListStorage>],
    /// The elements that iterations pop from each stack of the program.
    pub(super) segments: Vec<Option<&'a LaneSegments>>,
    pub(super) shape: LoopShape,
    /// For each stack of the program, the number of elements of a lane for which earlier blocks
    /// needed memory.
    pub(super) depths: Vec<AtomicUsize>,
    /// Memory for each stack of the program.
    pub(super) spare: Vec<Mutex<Vec<CountedVec<u64>>>>,
    /// The bytes that stacks of lanes have reserved, and those that lanes have pushed.
    pub(super) reserved: AtomicUsize,
    pub(super) pushed: AtomicUsize,
    /// The bytes that lanes record for the end of the loop, in the budget of the run.
    pub(super) recorded: Option<HeldBytes>,
    /// Whether a block has declined.
    pub(super) has_declined: AtomicBool,
    pub(super) stop: &'a StopFlag,
}

/// The effects of the iterations of a block. Elements are in the order of the lanes.
pub(super) struct BlockEffects {
    /// The bits that each iteration adds to each sum.
    pub(super) sums: Vec<Vec<u64>>,
    /// The index and the element of each update of a list.
    pub(super) updates: Vec<ElementUpdates>,
    /// The additions to each tensor, in the order of the iterations.
    pub(super) additions: Vec<OrderedAdditions>,
    /// The stacks of the program that iterations push to. The others are empty.
    pub(super) stacks: Vec<LaneStack>,
}

/// The elements that the iterations of a block write to a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ElementUpdates {
    pub(super) indices: Vec<i32>,
    /// The elements, in memory for more of them.
    pub(super) elements: Vec<u64>,
}

/// The rows of a block, with the state of its lanes.
pub(super) struct LaneBlock<'a> {
    pub(super) program: &'a LaneProgram,
    pub(super) inputs: &'a LoopInputs<'a>,
    /// The index of the block.
    pub(super) block_index: usize,
    pub(super) rows: Vec<Vec<VectorBytes>>,
    /// Results before they are in their rows, for elements of 1, 2, 4 and 8 bytes.
    pub(super) results: [Vec<VectorBytes>; 4],
    /// Number of lanes in use.
    pub(super) n: usize,
    /// The basic block where each lane goes on.
    pub(super) at: Vec<u16>,
    /// 1 for each active lane, else 0.
    pub(super) active: Vec<u8>,
    /// Memory for masks of lanes.
    pub(super) masks: Vec<Vec<u8>>,
    /// All active lanes are before this one.
    pub(super) bound: usize,
    pub(super) n_active: usize,
    /// The lane that each place of the rows has. The identity, unless lanes have moved.
    pub(super) lane_of: Vec<u16>,
    pub(super) has_moved: bool,
    pub(super) stacks: Vec<LaneStack>,
    pub(super) updates: Vec<ElementUpdates>,
    /// The additions to each tensor, in the order of the instructions.
    pub(super) additions: Vec<AdditionLog>,
    /// Element `i` of lane `l` of a tensor of the iterations is the element `i * lanes + l`.
    pub(super) tensors: Vec<Vec<u64>>,
    /// Memory of the native code.
    pub(super) code_memory: CodeMemory,
}

/// If blocks of instructions run for fewer lanes on average, and more often, the loop is not worth
/// lanes.
pub(super) const FEW_LANES: usize = 8;
const MAX_LONE_ROUNDS: usize = 1 << 14;

/// The lanes that instructions compute at once, at least.
const STEP: usize = 16;

impl<'a> LaneBlock<'a> {
    /// Creates the rows. Elements that no instruction changes are set for all iterations.
    pub(super) fn new(program: &'a LaneProgram, inputs: &'a LoopInputs<'a>) -> LaneBlock<'a> {
        let capacity = inputs.shape.lanes.next_multiple_of(STEP);
        let row = |size: usize| vec![VectorBytes::zeroed(); (capacity * size).div_ceil(64)];
        let with_start = |info: &RowInfo| {
            let mut row = row(info.size);
            match info.start {
                RowStart::Nothing => {}
                RowStart::Constant(bits) => fill(bytes_mut(&mut row), info.size, bits),
                RowStart::Register(r) => fill(bytes_mut(&mut row), info.size, inputs.regs[r.index()]),
            }
            row
        };
        LaneBlock {
            program,
            inputs,
            block_index: 0,
            rows: program.rows.iter().map(with_start).collect(),
            results: [1, 2, 4, 8].map(row),
            n: 0,
            at: vec![0; capacity],
            active: vec![0; capacity],
            masks: Vec::new(),
            bound: 0,
            n_active: 0,
            lane_of: vec![0; capacity],
            has_moved: false,
            stacks: Vec::new(),
            updates: Vec::new(),
            additions: vec![AdditionLog::default(); program.additions.len()],
            tensors: program.tensors.iter().map(|t| vec![0; (t.n * t.size * inputs.shape.lanes).div_ceil(8)]).collect(),
            code_memory: CodeMemory::default(),
        }
    }

    /// Runs the iterations of the block with an index.
    pub(super) fn run(&mut self, block: usize) -> Result<BlockEffects, Declined> {
        let (program, inputs) = (self.program, self.inputs);
        let first = block * inputs.shape.lanes;
        self.n = inputs.shape.lanes.min(inputs.shape.n - first);
        self.start(block, first);
        self.iterate()?;
        let is_left = |stack: &LaneStack| stack.depths().iter().any(|&depth| depth > 0);
        let popped = program.stacks.iter().zip(&self.stacks).filter(|(known, _)| known.part == StackPart::Popped);
        // Iterations that pop less or more than those before pushed are no mirror image of them.
        if popped.map(|(_, stack)| stack).any(is_left) {
            return Err(Declined);
        }
        #[allow(clippy::useless_conversion, reason = "elements of other sizes are converted")]
        let in_order = |sum: &SumOverLanes| {
            let size = program.rows[usize::from(sum.row)].size;
            let mut bits = vec![0; self.n];
            by_size!(size, T => {
                let row: &[T] = bytemuck::cast_slice(&self.rows[usize::from(sum.row)]);
                row.iter().zip(&self.lane_of[..self.n]).for_each(|(&x, &lane)| bits[usize::from(lane)] = u64::from(x));
            });
            bits
        };
        let sums = program.sums.iter().map(in_order).collect();
        let added = self.additions.iter_mut().zip(&program.additions);
        let (n, is_reversed) = (self.n, inputs.shape.is_reversed);
        let additions = added.map(|(log, added)| log.in_order(added.dtype.size(), n, is_reversed)).collect();
        let stacks = std::mem::take(&mut self.stacks);
        let kept = stacks.into_iter().zip(&program.stacks).map(|(stack, known)| match known.part {
            StackPart::Pushed => stack,
            StackPart::Popped | StackPart::Own => LaneStack::default(),
        });
        let kept = kept.collect();
        Ok(BlockEffects { sums, updates: std::mem::take(&mut self.updates), additions, stacks: kept })
    }

    /// Sets the state before the first instruction.
    fn start(&mut self, block: usize, first: usize) {
        let (program, inputs, n) = (self.program, self.inputs, self.n);
        self.at.fill(0);
        self.active[..n].fill(1);
        self.active[n..].fill(0);
        (self.bound, self.n_active, self.has_moved) = (n, n, false);
        self.lane_of.iter_mut().enumerate().for_each(|(i, lane)| *lane = i as u16);
        for counter in &program.counters {
            let size = counter.size;
            let start = inputs.regs[counter.reg.index()];
            let row = bytes_mut(&mut self.rows[usize::from(counter.row)]);
            by_size!(size, T => for (lane, x) in bytemuck::cast_slice_mut::<u8, T>(row)[..n].iter_mut().enumerate() {
                let k = first + lane;
                let iteration = if inputs.shape.is_reversed { inputs.shape.n - 1 - k } else { k };
                let added = (iteration as u64).wrapping_mul(counter.step.cast_unsigned());
                *x = start.wrapping_add(added) as T;
            });
        }
        for sum in &program.sums {
            let size = program.rows[usize::from(sum.row)].size;
            fill(bytes_mut(&mut self.rows[usize::from(sum.row)]), size, sum.zero);
        }
        let of_stacks = program.stacks.iter().zip(&inputs.segments).zip(&inputs.spare);
        let stacks = of_stacks.map(|((stack, segments), spare)| {
            let memory = spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut own = LaneStack::new(stack.size, inputs.shape.lanes, memory.unwrap_or_default());
            if let Some(segments) = segments {
                own.depths_mut().copy_from_slice(segments.blocks[block].depths());
            }
            own
        });
        self.stacks = stacks.collect();
        let updates = |update: &ListUpdate| ElementUpdates {
            indices: vec![0; n],
            elements: vec![0; (n * update.bytes).div_ceil(8)],
        };
        self.updates = program.updates.iter().map(updates).collect();
        self.block_index = block;
    }

    /// Runs all lanes to the end of their iterations.
    fn iterate(&mut self) -> Result<(), Declined> {
        let program = self.program;
        let end = program.blocks.len() as u16;
        let mut current = 0;
        // The first basic block for which lanes wait that are not active.
        let mut waiting = u16::MAX;
        let (mut n_rounds, mut n_done) = (0usize, 0usize);
        loop {
            if self.inputs.stop.is_set() || self.inputs.has_declined.load(Ordering::Relaxed) {
                return Err(Declined);
            }
            // A few lanes that go on for long are faster alone. Others may wait to fail.
            n_rounds += 1;
            n_done += self.n_active;
            if n_rounds > MAX_LONE_ROUNDS && n_done < FEW_LANES * n_rounds {
                return Err(Declined);
            }
            let block = &program.blocks[usize::from(current)];
            if let Some((stack, wait_at)) = block.aligned
                && self.align(usize::from(stack), wait_at)
            {
                waiting = waiting.min(wait_at);
            }
            self.ops(&block.ops)?;
            let next = match block.end {
                BlockEnd::Jump(to) => Some(to),
                BlockEnd::Branch { cond, when, to, otherwise } => {
                    let n_true = self.count(cond);
                    let (n_to, all) = (if when { n_true } else { self.n_active - n_true }, self.n_active);
                    match n_to {
                        0 => Some(otherwise),
                        n if n == all => Some(to),
                        _ => {
                            self.split(cond, when, to, otherwise);
                            None
                        }
                    }
                }
            };
            match next {
                Some(to) if to < waiting.min(end) => current = to,
                Some(to) if to == end && waiting == u16::MAX => return Ok(()),
                next => {
                    if let Some(to) = next {
                        self.send_to(to);
                    }
                    (current, waiting) = self.select();
                    if current == end {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Lets only those active lanes go on that have the most elements on a stack, so that all pop
    /// from one row. Returns whether others wait at a basic block that leads here again.
    fn align(&mut self, stack: usize, wait_at: u16) -> bool {
        let depths = self.stacks[stack].depths();
        let depth = |i: usize| depths[usize::from(self.lane_of[i])];
        let most = self.places().map(depth).max().unwrap_or(0);
        let mut n_active = 0;
        for i in 0..self.bound {
            if self.active[i] != 0 {
                if depths[usize::from(self.lane_of[i])] == most {
                    n_active += 1;
                } else {
                    self.active[i] = 0;
                    self.at[i] = wait_at;
                }
            }
        }
        let others_wait = n_active < self.n_active;
        self.n_active = n_active;
        others_wait
    }

    /// Returns the number of active lanes in which a condition is true.
    pub(super) fn count(&self, cond: RowId) -> usize {
        let cond = bytes(&self.rows[usize::from(cond)]);
        let (cond, active) = (&cond[..self.bound], &self.active[..self.bound]);
        wide(
            #[inline(always)]
            || cond.iter().zip(active).map(|(&cond, &active)| u32::from(cond & active)).sum::<u32>() as usize,
        )
    }

    fn split(&mut self, cond: RowId, when: bool, to: u16, otherwise: u16) {
        let cond = bytes(&self.rows[usize::from(cond)]);
        let (yes, no) = if when { (to, otherwise) } else { (otherwise, to) };
        let (at, active) = (&mut self.at[..self.bound], &self.active[..self.bound]);
        wide(
            #[inline(always)]
            || {
                for ((at, &cond), &active) in at.iter_mut().zip(cond).zip(active) {
                    let next = if cond != 0 { yes } else { no };
                    *at = if active != 0 { next } else { *at };
                }
            },
        );
    }

    /// Lets all active lanes go on at a basic block.
    fn send_to(&mut self, to: u16) {
        for (at, &active) in self.at[..self.bound].iter_mut().zip(&self.active) {
            *at = if active != 0 { to } else { *at };
        }
    }

    /// Makes the lanes active that wait for the first basic block. Returns its index, and that of
    /// the next one that lanes wait for.
    fn select(&mut self) -> (u16, u16) {
        let (at, active) = (&self.at[..self.n], &mut self.active[..self.n]);
        let (current, waiting, n_active) = wide(
            #[inline(always)]
            || {
                let current = at.iter().copied().fold(u16::MAX, u16::min);
                let (mut waiting, mut n_active) = (u16::MAX, 0u32);
                for (&at, active) in at.iter().zip(&mut *active) {
                    let is_here = at == current;
                    *active = u8::from(is_here);
                    n_active += u32::from(is_here);
                    waiting = waiting.min(if is_here { u16::MAX } else { at });
                }
                (current, waiting, n_active as usize)
            },
        );
        self.n_active = n_active;
        self.bound = active.iter().rposition(|&active| active != 0).map_or(0, |last| last + 1);
        let begins_loop = self.program.blocks.get(usize::from(current)).is_some_and(|block| block.begins_loop);
        if begins_loop && self.bound > STEP && self.program.gather_below * n_active <= self.bound {
            self.gather();
        }
        (current, waiting)
    }

    /// Moves the active lanes to the first places of all rows.
    fn gather(&mut self) {
        let n = self.n_active;
        let vacant = (0..n).filter(|&i| self.active[i] == 0);
        let apart = (n..self.bound).filter(|&i| self.active[i] != 0);
        let swaps: Vec<(u16, u16)> = vacant.zip(apart).map(|(i, j)| (i as u16, j as u16)).collect();
        let pairs = || swaps.iter().map(|&(i, j)| (usize::from(i), usize::from(j)));
        for (row, info) in self.rows.iter_mut().zip(&self.program.rows).filter(|(_, info)| info.is_kept) {
            by_size!(info.size, T => {
                let row: &mut [T] = bytemuck::cast_slice_mut(row);
                pairs().for_each(|(i, j)| row.swap(i, j));
            });
        }
        pairs().for_each(|(i, j)| {
            self.at.swap(i, j);
            self.lane_of.swap(i, j);
        });
        self.active[..n].fill(1);
        self.active[n..self.bound].fill(0);
        self.bound = n;
        self.has_moved = true;
    }

    /// Returns the number of lanes that instructions compute: all active ones, and some more.
    pub(super) fn width(&self) -> usize {
        self.bound.next_multiple_of(STEP).min(self.at.len())
    }

    pub(super) fn row(&self, row: RowId) -> &[u8] {
        let size = self.program.rows[usize::from(row)].size;
        &bytes(&self.rows[usize::from(row)])[..self.width() * size]
    }

    /// Returns the places of the active lanes.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> + use<'_, 'a> {
        let active = self.active[..self.bound].iter().enumerate();
        active.filter(|&(_, &active)| active != 0).map(|(i, _)| i)
    }

    /// Sets the elements of active lanes. `compute` computes those of the first lanes, from other
    /// rows and, if `reads_itself`, from this one.
    pub(super) fn write(
        &mut self,
        dst: RowId,
        reads_itself: bool,
        compute: impl FnOnce(&mut [u8], &Self) -> Result<(), Declined>,
    ) -> Result<(), Declined> {
        let dst = usize::from(dst);
        let info = self.program.rows[dst];
        let len = self.width() * info.size;
        if !info.is_kept && !reads_itself {
            let mut row = std::mem::take(&mut self.rows[dst]);
            let outcome = compute(&mut bytes_mut(&mut row)[..len], self);
            self.rows[dst] = row;
            return outcome;
        }
        let result = info.size.trailing_zeros() as usize;
        let mut new = std::mem::take(&mut self.results[result]);
        let outcome = compute(&mut bytes_mut(&mut new)[..len], self);
        let is_full = self.n_active == self.bound;
        if !info.is_kept || (is_full && self.bound == self.n) {
            std::mem::swap(&mut new, &mut self.rows[dst]);
        } else if is_full {
            let n = self.bound * info.size;
            bytes_mut(&mut self.rows[dst])[..n].copy_from_slice(&bytes(&new)[..n]);
        } else {
            blend(&mut bytes_mut(&mut self.rows[dst])[..len], &bytes(&new)[..len], &self.active, info.size);
        }
        self.results[result] = new;
        outcome
    }
}
