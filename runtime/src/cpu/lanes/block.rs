//! The execution of one block of iterations.

use super::additions::OrderedAdditions;
use super::code::CodeMemory;
use super::program::{
    AddedTensor, AdditionStacks, BasicBlock, BlockEnd, LaneProgram, ListUpdate, LoopStack, RowId, RowInfo, RowStart,
    StackPart, SumOverLanes,
};
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
use std::sync::{Arc, Mutex, PoisonError};

/// Why a block has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    /// An iteration failed or the step is to stop, so the loop cannot run in lanes.
    Loop,
    /// Native code needs more memory for stacks. The block can run without it.
    #[cfg_attr(not(all(feature = "jit", target_arch = "x86_64")), expect(dead_code, reason = "there is no code"))]
    Code,
}

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

/// Memory for each stack of a program.
pub(super) type SpareMemory = Vec<Mutex<Vec<CountedVec<u64>>>>;

/// The parts of the step that a loop in lanes reads.
pub(super) struct LoopInputs<'a> {
    pub(super) regs: &'a [u64],
    pub(super) sources: Sources<'a>,
    pub(super) lists: &'a [Option<ListStorage>],
    /// The elements that iterations pop from each stack of the program.
    pub(super) segments: Vec<Option<&'a LaneSegments>>,
    pub(super) shape: LoopShape,
    /// For each stack of the program, the number of elements of a lane for which earlier blocks
    /// needed memory, or 0.
    pub(super) depths: Vec<AtomicUsize>,
    pub(super) spare: &'a SpareMemory,
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
    /// Element `i` of lane `l` of a tensor of the iterations is the element `i * lanes + l`.
    pub(super) tensors: Vec<Vec<u64>>,
    /// Memory of the native code.
    pub(super) code_memory: CodeMemory,
}

/// If blocks of instructions run for fewer lanes on average, and more often, the loop is not worth
/// lanes.
pub(super) const FEW_LANES: usize = 8;
const MAX_LONE_ROUNDS: usize = 1 << 14;

/// Stacks may reserve so many bytes for each that is pushed, and any number up to a limit.
const MAX_WASTE: usize = 8;
const MIN_LIMIT: usize = 1 << 26;

/// The elements of each lane for which native code first has room on stacks.
const FIRST_ROOM: usize = 16;

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
            tensors: program.tensors.iter().map(|t| vec![0; (t.n * t.size * inputs.shape.lanes).div_ceil(8)]).collect(),
            code_memory: CodeMemory::default(),
        }
    }

    /// Runs the iterations of the block with an index.
    pub(super) fn run(&mut self, block: usize) -> Result<BlockEffects, Declined> {
        let (program, inputs) = (self.program, self.inputs);
        let first = block * inputs.shape.lanes;
        self.n = inputs.shape.lanes.min(inputs.shape.n - first);
        self.start(block, first)?;
        let with_code = program.code.as_ref().map(|(blocks, _)| self.iterate(blocks));
        match with_code {
            Some(Err(Declined::Code)) => {
                self.start(block, first)?;
                self.iterate(&program.blocks)?;
            }
            Some(outcome) => outcome?,
            None => self.iterate(&program.blocks)?,
        }
        let is_left = |known: &&LoopStack| self.depths(known.depth)[..self.n].iter().any(|&depth| depth > 0);
        // Iterations that pop less or more than those before pushed are no mirror image of them.
        if program.stacks.iter().filter(|known| known.part == StackPart::Popped).any(|known| is_left(&known)) {
            return Err(Declined::Loop);
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
        inputs.pushed.fetch_add(self.pushed(), Ordering::Relaxed);
        for (known, before) in program.stacks.iter().zip(&inputs.depths).filter(|(known, _)| known.is_in_code) {
            let deepest = self.depths(known.depth)[..self.n].iter().copied().max().unwrap_or(0);
            before.fetch_max(deepest as usize, Ordering::Relaxed);
        }
        self.end_stacks();
        let of_recorded = |added: &AddedTensor| {
            let AdditionStacks { places, numbers } = added.record;
            let [places, numbers] = [places, numbers].map(|stack| &self.stacks[usize::from(stack)]);
            OrderedAdditions::new(places, numbers, added.numbers_per_place, inputs)
        };
        let additions = program.additions.iter().map(of_recorded).collect::<Result<_, _>>()?;
        let mut kept: Vec<LaneStack> = std::mem::take(&mut self.stacks);
        // The next block uses the memory of stacks that do not stay.
        let own = kept.iter_mut().zip(&program.stacks).map(|(stack, known)| match known.part {
            StackPart::Pushed => LaneStack::default(),
            StackPart::Popped | StackPart::Own | StackPart::Recorded => std::mem::take(stack),
        });
        self.stacks = own.collect();
        Ok(BlockEffects { sums, updates: std::mem::take(&mut self.updates), additions, stacks: kept })
    }

    /// Returns the memory of stacks that do not stay, for other blocks and runs.
    pub(super) fn give_back(self) {
        for ((stack, known), spare) in self.stacks.into_iter().zip(&self.program.stacks).zip(self.inputs.spare) {
            if matches!(known.part, StackPart::Own | StackPart::Recorded) {
                spare.lock().unwrap_or_else(PoisonError::into_inner).push(stack.into_memory());
            }
        }
    }

    /// Returns whether stacks with so many more bytes would reserve far more than lanes pushed:
    /// those of the blocks that have ended, and of this one, by its number of bytes.
    pub(super) fn is_waste(&self, n_more: usize, n_pushed: usize) -> bool {
        let reserved = self.inputs.reserved.load(Ordering::Relaxed) + n_more;
        let pushed = self.inputs.pushed.load(Ordering::Relaxed) + n_pushed;
        reserved > MIN_LIMIT.max(MAX_WASTE.saturating_mul(pushed))
    }

    /// Makes room on the stacks that native code pushes to: for as many elements as lanes of
    /// earlier blocks had, and some more. Without that room, the block runs without the code, which
    /// reserves no more than it needs.
    fn make_room_for_code(&mut self) -> Result<(), Declined> {
        for (i, known) in self.program.stacks.iter().enumerate() {
            if !known.is_in_code || known.part == StackPart::Popped {
                continue;
            }
            let needed = match self.inputs.depths[i].load(Ordering::Relaxed) {
                0 => FIRST_ROOM,
                before => self.stacks[i].in_advance(before + before / 4 + 1),
            };
            let n_bytes = needed * self.inputs.shape.lanes * known.size;
            if needed > self.stacks[i].room() && !self.is_waste(n_bytes, 0) {
                let own = &mut self.stacks[i];
                let new = own.make_room(needed, 0, &AtomicUsize::new(0), usize::MAX).map_err(|_| Declined::Loop)?;
                self.inputs.reserved.fetch_add(new, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Returns the numbers of elements of a row of them.
    pub(super) fn depths(&self, row: RowId) -> &[u32] {
        bytemuck::cast_slice(&self.rows[usize::from(row)])
    }

    /// Returns the number of bytes that lanes have on stacks that they push to.
    pub(super) fn pushed(&self) -> usize {
        let pushed = self.program.stacks.iter().filter(|known| known.part != StackPart::Popped);
        let bytes = |known: &LoopStack| {
            let depths = &self.depths(known.depth)[..self.n];
            depths.iter().map(|&depth| depth as usize).sum::<usize>() * known.size
        };
        pushed.map(bytes).sum()
    }

    /// Tells the stacks that stay the number of elements of each lane.
    fn end_stacks(&mut self) {
        let mut known: Vec<(RowId, Arc<[u32]>)> = Vec::new();
        for (i, stack) in self.program.stacks.iter().enumerate() {
            if !matches!(stack.part, StackPart::Pushed | StackPart::Recorded) {
                continue;
            }
            let depths = match known.iter().find(|(row, _)| *row == stack.depth) {
                Some((_, depths)) => depths.clone(),
                None => {
                    let mut depths = vec![0; self.inputs.shape.lanes];
                    let of_places = self.depths(stack.depth)[..self.n].iter().zip(&self.lane_of);
                    of_places.for_each(|(&depth, &lane)| depths[usize::from(lane)] = depth);
                    let depths: Arc<[u32]> = depths.into();
                    known.push((stack.depth, depths.clone()));
                    depths
                }
            };
            self.stacks[i].end(depths);
        }
    }

    /// Sets the state before the first instruction.
    fn start(&mut self, block: usize, first: usize) -> Result<(), Declined> {
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
        let kept = std::mem::take(&mut self.stacks);
        let mut kept = kept.into_iter().map(LaneStack::into_memory);
        self.stacks.reserve(program.stacks.len());
        for (stack, spare) in program.stacks.iter().zip(inputs.spare) {
            let memory = kept.next().filter(|memory| !memory.is_empty());
            let memory = memory.or_else(|| spare.lock().unwrap_or_else(PoisonError::into_inner).pop());
            self.stacks.push(LaneStack::new(stack.size, inputs.shape.lanes, program.tile, memory.unwrap_or_default()));
        }
        self.make_room_for_code()?;
        self.start_depths(block)?;
        let updates = |update: &ListUpdate| ElementUpdates {
            indices: vec![0; n],
            elements: vec![0; (n * update.bytes).div_ceil(8)],
        };
        self.updates = program.updates.iter().map(updates).collect();
        self.block_index = block;
        Ok(())
    }

    /// Sets the numbers of elements before the first instruction: those that lanes of an earlier
    /// loop left, or none.
    fn start_depths(&mut self, block: usize) -> Result<(), Declined> {
        for (i, stack) in self.program.stacks.iter().enumerate() {
            let is_first = self.program.stacks[..i].iter().all(|before| before.depth != stack.depth);
            let row: &mut [u32] = bytemuck::cast_slice_mut(&mut self.rows[usize::from(stack.depth)]);
            match self.inputs.segments[i].map(|segments| segments.blocks[block].depths()) {
                Some(depths) if is_first => row[..depths.len()].copy_from_slice(depths),
                // Stacks that share a row were pushed to together, too.
                Some(depths) if row[..depths.len()] != *depths => return Err(Declined::Loop),
                Some(_) => {}
                None => row.fill(0),
            }
        }
        Ok(())
    }

    /// Runs all lanes to the end of their iterations, through these basic blocks.
    fn iterate(&mut self, blocks: &[BasicBlock]) -> Result<(), Declined> {
        let end = blocks.len() as u16;
        let mut current = 0;
        // The first basic block for which lanes wait that are not active.
        let mut waiting = u16::MAX;
        let (mut n_rounds, mut n_done) = (0usize, 0usize);
        loop {
            if self.inputs.stop.is_set() || self.inputs.has_declined.load(Ordering::Relaxed) {
                return Err(Declined::Loop);
            }
            // A few lanes that go on for long are faster alone. Others may wait to fail.
            n_rounds += 1;
            n_done += self.n_active;
            if n_rounds > MAX_LONE_ROUNDS && n_done < FEW_LANES * n_rounds {
                return Err(Declined::Loop);
            }
            let block = &blocks[usize::from(current)];
            if let Some((depth, wait_at)) = block.aligned
                && self.align(depth, wait_at)
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
                    (current, waiting) = self.select(blocks);
                    if current == end {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Lets only those active lanes go on that have the most elements on a stack, so that all pop
    /// from one row. Returns whether others wait at a basic block that leads here again.
    fn align(&mut self, depth: RowId, wait_at: u16) -> bool {
        let depths: &[u32] = bytemuck::cast_slice(&self.rows[usize::from(depth)]);
        let most = self.places().map(|i| depths[i]).max().unwrap_or(0);
        let mut n_active = 0;
        for (i, &depth) in depths[..self.bound].iter().enumerate() {
            if self.active[i] != 0 {
                if depth == most {
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
    fn select(&mut self, blocks: &[BasicBlock]) -> (u16, u16) {
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
        let begins_loop = blocks.get(usize::from(current)).is_some_and(|block| block.begins_loop);
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
