//! The execution of one block of iterations.

use super::translate::{
    BlockEnd, ElementIndex, ElementSource, LaneOp, LaneProgram, OwnTensor, RowId, RowStart, StackPart, UpdateValue,
};
use crate::cpu::compile::StackId;
use crate::cpu::kernels::index::index_of;
use crate::cpu::memory::Sources;
use crate::cpu::memory::list::ListStorage;
use crate::cpu::memory::segments::{LaneSegments, LaneStack};
use crate::cpu::multiversion::wide;
use anabranch_dsl::DType;
use anabranch_dsl::interp::StopFlag;
use bytemuck::{Pod, Zeroable};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

/// An iteration failed or the step is to stop, so the loop cannot run in lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declined;

/// Memory as wide as the widest vector.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct VectorBytes([u8; 64]);

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

/// What a loop in lanes reads from the step.
pub(super) struct LoopInputs<'a> {
    pub(super) regs: &'a [u64],
    pub(super) sources: Sources<'a>,
    pub(super) lists: &'a [Option<ListStorage>],
    /// What is popped from each stack of the program.
    pub(super) segments: Vec<Option<&'a LaneSegments>>,
    pub(super) shape: LoopShape,
    /// For each stack of the program, the number of elements of a lane for which earlier blocks
    /// needed memory.
    pub(super) depths: Vec<AtomicUsize>,
    /// Memory for each stack of the program.
    pub(super) spare: Vec<Mutex<Vec<Vec<u64>>>>,
    pub(super) stop: &'a StopFlag,
}

/// What the iterations of a block leave. Elements are in the order of the lanes.
pub(super) struct BlockEffects {
    /// The bits that each iteration adds to each sum.
    pub(super) sums: Vec<Vec<u64>>,
    /// The index and the element of each update of a list.
    pub(super) updates: Vec<ElementUpdates>,
    /// The stacks of the program. Those that belong to one iteration are empty.
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
    program: &'a LaneProgram,
    inputs: &'a LoopInputs<'a>,
    /// The index of the block.
    block_index: usize,
    rows: Vec<Vec<VectorBytes>>,
    /// Results before they are in their rows, for elements of 1, 2, 4 and 8 bytes.
    results: [Vec<VectorBytes>; 4],
    /// Number of lanes in use.
    n: usize,
    /// The basic block where each lane goes on.
    at: Vec<u16>,
    /// 1 for each active lane, else 0.
    active: Vec<u8>,
    /// Memory for masks of lanes.
    masks: Vec<Vec<u8>>,
    /// All active lanes are before this one.
    bound: usize,
    n_active: usize,
    /// The lane that each place of the rows has. The identity, unless lanes have moved.
    lane_of: Vec<u16>,
    has_moved: bool,
    stacks: Vec<LaneStack>,
    updates: Vec<ElementUpdates>,
    /// Element `i` of lane `l` of a tensor of the iterations is the element `i * lanes + l`.
    tensors: Vec<Vec<u64>>,
}

/// The indices of elements, one for each lane.
#[derive(Clone, Copy)]
enum Indices<'a> {
    None,
    I32(&'a [i32]),
    I64(&'a [i64]),
    Other(&'a [u8], DType),
}

/// The element of a tensor that each lane uses.
#[derive(Clone, Copy)]
struct ElementPlaces<'a> {
    offset: usize,
    stride: isize,
    indices: Indices<'a>,
}

impl ElementPlaces<'_> {
    #[inline(always)]
    fn index(&self, i: usize) -> u64 {
        match self.indices {
            Indices::None => 0,
            Indices::I32(indices) => i64::from(indices[i]).cast_unsigned(),
            Indices::I64(indices) => indices[i].cast_unsigned(),
            Indices::Other(row, dtype) => index_of(register(row, dtype.size(), i), dtype),
        }
    }

    /// Returns the element of the lane at a place.
    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        self.offset.wrapping_add_signed(self.stride * self.index(i) as isize)
    }
}

/// The lanes that instructions compute at once, at least.
const STEP: usize = 16;

/// Runs code for the unsigned integer type `$t` with elements of a size.
macro_rules! by_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}

/// Returns whether each index is by one larger than the one before it.
pub(crate) fn is_run(indices: &[i32]) -> bool {
    let Some(&first) = indices.first() else { return true };
    wide(
        #[inline(always)]
        || {
            let differs = |(i, &index): (usize, &i32)| index != first.wrapping_add(i as i32);
            !indices.iter().enumerate().map(differs).fold(false, |any, differs| any | differs)
        },
    )
}

fn bytes(row: &[VectorBytes]) -> &[u8] {
    bytemuck::cast_slice(row)
}

fn bytes_mut(row: &mut [VectorBytes]) -> &mut [u8] {
    bytemuck::cast_slice_mut(row)
}

/// Returns the element at a place of a row as a register.
fn register(row: &[u8], size: usize, i: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&row[i * size..][..size]);
    u64::from_ne_bytes(word)
}

/// Sets the elements of a row to the bits of a register.
fn fill(row: &mut [u8], size: usize, bits: u64) {
    by_size!(size, T => bytemuck::cast_slice_mut::<u8, T>(row).fill(bits as T));
}

/// Replaces the elements whose lanes are active.
fn blend(to: &mut [u8], from: &[u8], active: &[u8], size: usize) {
    by_size!(size, T => {
        let (to, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from));
        wide(
            #[inline(always)]
            || {
                for ((to, &from), &active) in to.iter_mut().zip(from).zip(active) {
                    let mask = T::from(active).wrapping_neg();
                    *to = (from & mask) | (*to & !mask);
                }
            },
        );
    });
}

/// Returns the smallest and the largest depth of active lanes.
fn bounds(depths: &[u32], active: &[u8]) -> (u32, u32) {
    wide(
        #[inline(always)]
        || {
            let next = |(least, most): (u32, u32), (&depth, &active): (&u32, &u8)| {
                let mask = u32::from(active).wrapping_neg();
                (least.min(depth | !mask), most.max(depth & mask))
            };
            depths.iter().zip(active).fold((u32::MAX, 0), next)
        },
    )
}

/// Divides integers by two to the power of `shift`, towards zero.
fn divide_by_power(out: &mut [u8], a: &[u8], dtype: DType, shift: u32, wants_remainder: bool) {
    macro_rules! divide {
        ($t:ty) => {{
            let (out, a): (&mut [$t], &[$t]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(a));
            let below = ((1 as $t) << shift) - 1;
            // Negative numbers are rounded up.
            let quotient = |x: $t| x.wrapping_add(if x < <$t>::default() { below } else { 0 }) >> shift;
            let divide = |x: $t| if wants_remainder { x.wrapping_sub(quotient(x) << shift) } else { quotient(x) };
            wide(
                #[inline(always)]
                || out.iter_mut().zip(a).for_each(|(out, &x)| *out = divide(x)),
            );
        }};
    }
    match dtype {
        DType::I32 => divide!(i32),
        DType::I64 => divide!(i64),
        DType::U32 => divide!(u32),
        DType::U8 => divide!(u8),
        other => panic!("{other} is no integer"),
    }
}

impl<'a> LaneBlock<'a> {
    /// Creates the rows. Elements that no instruction changes are set for all iterations.
    pub(super) fn new(program: &'a LaneProgram, inputs: &'a LoopInputs<'a>) -> LaneBlock<'a> {
        let capacity = inputs.shape.lanes.next_multiple_of(STEP);
        let row = |size: usize| vec![VectorBytes::zeroed(); (capacity * size).div_ceil(64)];
        let with_start = |info: &super::translate::RowInfo| {
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
        let in_order = |sum: &super::translate::SumOverLanes| {
            let size = program.rows[usize::from(sum.row)].size;
            let mut bits = vec![0; self.n];
            let row = bytes(&self.rows[usize::from(sum.row)]);
            (0..self.n).for_each(|i| bits[usize::from(self.lane_of[i])] = register(row, size, i));
            bits
        };
        let sums = program.sums.iter().map(in_order).collect();
        let stacks = std::mem::take(&mut self.stacks);
        let kept = stacks.into_iter().zip(&program.stacks).map(|(stack, known)| match known.part {
            StackPart::Pushed => stack,
            StackPart::Popped | StackPart::Own => LaneStack::default(),
        });
        Ok(BlockEffects { sums, updates: std::mem::take(&mut self.updates), stacks: kept.collect() })
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
        let updates = |update: &super::translate::ListUpdate| ElementUpdates {
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
        loop {
            if self.inputs.stop.is_set() {
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
    fn count(&self, cond: RowId) -> usize {
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
    fn width(&self) -> usize {
        self.bound.next_multiple_of(STEP).min(self.at.len())
    }

    fn row(&self, row: RowId) -> &[u8] {
        let size = self.program.rows[usize::from(row)].size;
        &bytes(&self.rows[usize::from(row)])[..self.width() * size]
    }

    /// Returns the places of the active lanes.
    fn places(&self) -> impl Iterator<Item = usize> + use<'_, 'a> {
        let active = self.active[..self.bound].iter().enumerate();
        active.filter(|&(_, &active)| active != 0).map(|(i, _)| i)
    }

    /// Sets the elements of active lanes. `compute` computes those of the first lanes, from other
    /// rows and, if `reads_itself`, from this one.
    fn write(
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

    fn ops(&mut self, ops: &[LaneOp]) -> Result<(), Declined> {
        ops.iter().try_for_each(|op| self.op(op))
    }

    /// Runs each of two lists of operations in the lanes to which it belongs.
    fn branches(&mut self, cond: RowId, arms: &[Box<[LaneOp]>; 2]) -> Result<(), Declined> {
        let (n_true, n_active, bound) = (self.count(cond), self.n_active, self.bound);
        if n_true == 0 || n_true == n_active {
            return self.ops(&arms[usize::from(n_true == 0)]);
        }
        let mut others = self.masks.pop().unwrap_or_else(|| vec![0; self.active.len()]);
        let cond = &bytes(&self.rows[usize::from(cond)])[..bound];
        others[bound..].fill(0);
        for ((other, active), &cond) in others.iter_mut().zip(&mut self.active[..bound]).zip(cond) {
            *other = *active & (cond ^ 1);
            *active &= cond;
        }
        self.n_active = n_true;
        let mut outcome = self.ops(&arms[0]);
        std::mem::swap(&mut self.active, &mut others);
        self.n_active = n_active - n_true;
        outcome = outcome.and_then(|()| self.ops(&arms[1]));
        self.active[..bound].iter_mut().zip(&others).for_each(|(active, &other)| *active |= other);
        self.n_active = n_active;
        self.masks.push(others);
        outcome
    }

    fn op(&mut self, op: &LaneOp) -> Result<(), Declined> {
        let size = |row: RowId| self.program.rows[usize::from(row)].size;
        match *op {
            LaneOp::Function { f, checked, dst, args } => self.write(dst, args.contains(&dst), |out, block| {
                let args = [block.row(args[0]), block.row(args[1]), block.row(args[2])];
                match checked {
                    Some(checked) if !(checked.check.block)(args[1]) => {
                        let size = args[1].len() / block.width();
                        for i in block.places() {
                            let [a, b] = [0, 1].map(|arg| register(args[arg], size, i));
                            let bits = (checked.scalar)(a, b).to_ne_bytes();
                            out[i * size..][..size].copy_from_slice(&bits[..size]);
                        }
                    }
                    _ => f(out, args),
                }
                Ok(())
            }),
            LaneOp::DividePower { dst, a, dtype, shift, wants_remainder } => self.write(dst, a == dst, |out, block| {
                divide_by_power(out, block.row(a), dtype, shift, wants_remainder);
                Ok(())
            }),
            LaneOp::Move { dst, src } => self.write(dst, dst == src, |out, block| {
                out.copy_from_slice(block.row(src));
                Ok(())
            }),
            LaneOp::Require { valid, a } => {
                let (size, row) = (size(a), self.row(a));
                self.check(|i| valid(register(row, size, i)))
            }
            LaneOp::RequireIndex { a, dtype: DType::I32, n } => {
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                if self.are_below(bytemuck::cast_slice(self.row(a)), n) { Ok(()) } else { Err(Declined) }
            }
            LaneOp::RequireIndex { a, dtype, n } => {
                let (size, row) = (size(a), self.row(a));
                self.check(|i| index_of(register(row, size, i), dtype) < n)
            }
            LaneOp::Assert { cond } => {
                let row = self.row(cond);
                self.check(|i| row[i] != 0)
            }
            LaneOp::ReadElement { from: ElementSource::Outside(base), offset, index, dst } => {
                let from = self.inputs.sources.bytes(base);
                self.write(dst, false, |out, block| block.read_elements(out, from, offset, index))
            }
            LaneOp::ReadElement { from: ElementSource::OfList { list, index: of, n }, offset, index, dst } => {
                let from = self.list(list).all();
                self.write(dst, false, |out, block| {
                    let of = bytemuck::cast_slice::<u8, i32>(block.row(of));
                    block.read_own(out, from, |i, at| of[i] as usize * n + at, (offset, index))
                })
            }
            LaneOp::ReadElement { from: ElementSource::Own(tensor), offset, index, dst } => {
                let own = std::mem::take(&mut self.tensors[usize::from(tensor)]);
                let outcome = self.write(dst, false, |out, block| {
                    let lanes = block.inputs.shape.lanes;
                    let place = |i: usize, at: usize| at * lanes + usize::from(block.lane_of[i]);
                    block.read_own(out, bytemuck::cast_slice(&own), place, (offset, index))
                });
                self.tensors[usize::from(tensor)] = own;
                outcome
            }
            LaneOp::WriteElement { to, offset, index, value, adds } => {
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let outcome = self.write_own(&mut own, usize::from(to), (offset, index), value, adds);
                self.tensors[usize::from(to)] = own;
                outcome
            }
            LaneOp::Fill { to, value } => {
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(to)];
                let lanes = self.inputs.shape.lanes;
                by_size!(size, T => {
                    let (own, value): (&mut [T], &[T]) =
                        (bytemuck::cast_slice_mut(&mut own), bytemuck::cast_slice(self.row(value)));
                    for at in 0..n {
                        self.places().for_each(|i| own[at * lanes + usize::from(self.lane_of[i])] = value[i]);
                    }
                });
                self.tensors[usize::from(to)] = own;
                Ok(())
            }
            LaneOp::CopyIn { to, base, ref places } => {
                let from = self.inputs.sources.bytes(base);
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let size = self.program.tensors[usize::from(to)].size;
                let lanes = self.inputs.shape.lanes;
                by_size!(size, T => {
                    let (own, from): (&mut [T], &[T]) =
                        (bytemuck::cast_slice_mut(&mut own), bytemuck::cast_slice(from));
                    for (at, &place) in places.iter().enumerate() {
                        let x = from[place as usize];
                        self.places().for_each(|i| own[at * lanes + usize::from(self.lane_of[i])] = x);
                    }
                });
                self.tensors[usize::from(to)] = own;
                Ok(())
            }
            LaneOp::CheckList { list, index } => {
                let is_inside = self.are_below(bytemuck::cast_slice(self.row(index)), self.list(list).len());
                if is_inside { Ok(()) } else { Err(Declined) }
            }
            LaneOp::ReadList { list, index, dst } => {
                let from = self.list(list);
                self.write(dst, index == dst, |out, block| {
                    let index = Some(ElementIndex { row: index, dtype: DType::I32, n: from.len(), stride: 1 });
                    block.read_elements(out, from.all(), 0, index)
                })
            }
            LaneOp::UpdateList { update, index, value } => self.update_list(usize::from(update), index, value),
            LaneOp::Branches { cond, ref arms } => self.branches(cond, arms),
            LaneOp::Push { stack, src } => self.push(usize::from(stack), src),
            LaneOp::Pop { stack, dst } => {
                let mut own = std::mem::take(&mut self.stacks[usize::from(stack)]);
                let outcome = self.write(dst, false, |out, block| block.pop(usize::from(stack), &mut own, out));
                self.stacks[usize::from(stack)] = own;
                outcome
            }
            LaneOp::Clear { stack } => {
                let mut own = std::mem::take(&mut self.stacks[usize::from(stack)]);
                let depths = own.depths_mut();
                self.places().for_each(|i| depths[usize::from(self.lane_of[i])] = 0);
                self.stacks[usize::from(stack)] = own;
                Ok(())
            }
        }
    }

    /// Checks each active lane, by its place.
    fn check(&self, is_valid: impl Fn(usize) -> bool) -> Result<(), Declined> {
        if self.places().all(is_valid) { Ok(()) } else { Err(Declined) }
    }

    /// Returns whether the indices of active lanes are below `n`.
    fn are_below(&self, indices: &[i32], n: usize) -> bool {
        let n = n.min(i32::MAX as usize) as u32;
        wide(
            #[inline(always)]
            || {
                let outside = |(&i, &active): (&i32, &u8)| (i.cast_unsigned() >= n) & (active != 0);
                !indices.iter().zip(&self.active[..self.bound]).map(outside).fold(false, |any, outside| any | outside)
            },
        )
    }

    fn list(&self, list: StackId) -> &'a ListStorage {
        self.inputs.lists[list.index()].as_ref().expect("it is a list")
    }

    fn read_elements(
        &self,
        out: &mut [u8],
        from: &[u8],
        offset: usize,
        index: Option<ElementIndex>,
    ) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let Some(ElementIndex { row, dtype, n, stride }) = index else {
            fill(out, size, register(from, size, offset));
            return Ok(());
        };
        if dtype == DType::I32 {
            let indices = &bytemuck::cast_slice::<u8, i32>(self.row(row))[..self.bound];
            if stride == 1
                && self.n_active == self.bound
                && is_run(indices)
                && let Ok(first) = usize::try_from(indices[0])
                && first + self.bound <= n
            {
                let from = &from[(offset + first) * size..][..self.bound * size];
                out[..from.len()].copy_from_slice(from);
                return Ok(());
            }
        }
        self.read_own(out, from, |_, at| at, (offset, index))
    }

    /// Reads elements of tensors of which each lane has another one. `place` returns the place in
    /// `from` of an element of the tensor of an active lane.
    fn read_own(
        &self,
        out: &mut [u8],
        from: &[u8],
        place: impl Fn(usize, usize) -> usize,
        (offset, index): (usize, Option<ElementIndex>),
    ) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let elements = self.elements_at(offset, index)?;
        by_size!(size, T => {
            let (out, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(from));
            for (i, (out, &active)) in out.iter_mut().zip(&self.active[..self.bound]).enumerate() {
                if active != 0 {
                    *out = from[place(i, elements.at(i))];
                }
            }
        });
        Ok(())
    }

    /// Returns the elements of a tensor that the active lanes use, whose indices it checks.
    fn elements_at(&self, offset: usize, index: Option<ElementIndex>) -> Result<ElementPlaces<'_>, Declined> {
        let Some(ElementIndex { row, dtype, n, stride }) = index else {
            return Ok(ElementPlaces { offset, stride: 0, indices: Indices::None });
        };
        let indices = match dtype {
            DType::I32 => Indices::I32(bytemuck::cast_slice(self.row(row))),
            DType::I64 => Indices::I64(bytemuck::cast_slice(self.row(row))),
            _ => Indices::Other(self.row(row), dtype),
        };
        let places = ElementPlaces { offset, stride, indices };
        let is_inside = match indices {
            Indices::I32(indices) => self.are_below(indices, n),
            Indices::I64(indices) => {
                let outside = |(&i, &active): (&i64, &u8)| (i.cast_unsigned() >= n as u64) & (active != 0);
                let pairs = indices.iter().zip(&self.active[..self.bound]);
                wide(
                    #[inline(always)]
                    || !pairs.map(outside).fold(false, |any, outside| any | outside),
                )
            }
            _ => self.places().all(|i| places.index(i) < n as u64),
        };
        if is_inside { Ok(places) } else { Err(Declined) }
    }

    fn write_own(
        &self,
        own: &mut [u64],
        tensor: usize,
        (offset, index): (usize, Option<ElementIndex>),
        value: RowId,
        adds: bool,
    ) -> Result<(), Declined> {
        let OwnTensor { size, add, .. } = self.program.tensors[tensor];
        let (lanes, values) = (self.inputs.shape.lanes, self.row(value));
        let own: &mut [u8] = bytemuck::cast_slice_mut(own);
        let elements = self.elements_at(offset, index)?;
        for i in self.places() {
            let at = elements.at(i) * lanes + usize::from(self.lane_of[i]);
            let element = &mut own[at * size..][..size];
            let mut bits = register(values, size, i);
            if adds {
                bits = add(register(element, size, 0), bits);
            }
            element.copy_from_slice(&bits.to_ne_bytes()[..size]);
        }
        Ok(())
    }

    fn update_list(&mut self, update: usize, index: RowId, value: UpdateValue) -> Result<(), Declined> {
        let info = &self.program.updates[update];
        let list = self.list(info.list);
        let mut updates = std::mem::take(&mut self.updates[update]);
        let indices = &bytemuck::cast_slice::<u8, i32>(self.row(index))[..self.bound];
        let is_whole = self.n_active == self.n && !self.has_moved;
        let mut is_free = true;
        if is_whole && is_run(indices) {
            is_free = list.is_free_from(&info.op, indices[0], indices.len());
            updates.indices.copy_from_slice(indices);
        } else {
            for i in self.places() {
                is_free &= list.is_free(&info.op, indices[i]);
                updates.indices[usize::from(self.lane_of[i])] = indices[i];
            }
        }
        let (values, size, n): (&[u8], _, _) = match value {
            UpdateValue::Row(row) => (self.row(row), info.bytes, 1),
            UpdateValue::Own(i) => {
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(i)];
                (bytemuck::cast_slice(&self.tensors[usize::from(i)]), size, n)
            }
        };
        let is_row = matches!(value, UpdateValue::Row(_));
        by_size!(size, T => {
            let (to, values): (&mut [T], &[T]) =
                (bytemuck::cast_slice_mut(&mut updates.elements), bytemuck::cast_slice(values));
            if is_row && is_whole {
                to[..self.n].copy_from_slice(&values[..self.n]);
            }
            for i in self.places().filter(|_| !is_row || !is_whole) {
                let lane = usize::from(self.lane_of[i]);
                if is_row {
                    to[lane] = values[i];
                } else {
                    (0..n).for_each(|at| to[lane * n + at] = values[at * self.inputs.shape.lanes + lane]);
                }
            }
        });
        self.updates[update] = updates;
        if is_free { Ok(()) } else { Err(Declined) }
    }

    fn push(&mut self, stack: usize, src: RowId) -> Result<(), Declined> {
        let mut own = std::mem::take(&mut self.stacks[stack]);
        let size = self.program.rows[usize::from(src)].size;
        let n = self.inputs.shape.lanes;
        let (row, active) = (self.row(src), &self.active[..self.bound]);
        // The depths of the lanes are those of the places, unless lanes have moved.
        let depths = &own.depths()[..self.bound];
        let (least, most) = bounds(depths, active);
        let to = own.reserve_one(&self.inputs.depths[stack]).map_err(|_| Declined)?;
        if !self.has_moved && least == most {
            blend(&mut to.bytes[most as usize * n * size..][..self.bound * size], row, active, size);
            to.depths.iter_mut().zip(active).for_each(|(depth, &active)| *depth += u32::from(active));
        } else {
            by_size!(size, T => {
                let (to_all, row): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(to.bytes), bytemuck::cast_slice(row));
                for ((&x, &active), &lane) in row.iter().zip(active).zip(&self.lane_of) {
                    if active != 0 {
                        let depth = &mut to.depths[usize::from(lane)];
                        to_all[*depth as usize * n + usize::from(lane)] = x;
                        *depth += 1;
                    }
                }
            });
        }
        self.stacks[stack] = own;
        Ok(())
    }

    fn pop(&self, stack: usize, own: &mut LaneStack, out: &mut [u8]) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let n = self.inputs.shape.lanes;
        // Elements of an earlier loop stay where they are.
        let block = self.inputs.segments[stack].map(|segments| &segments.blocks[self.block_index]);
        let (own_bytes, depths) = own.parts_mut();
        let from = block.map_or(own_bytes, LaneStack::bytes);
        let active = &self.active[..self.bound];
        if !self.has_moved {
            let (least, most) = bounds(&depths[..self.bound], active);
            if least == most && most > 0 {
                let row = (most as usize - 1) * n * size;
                let len = self.bound * size;
                out[..len].copy_from_slice(&from[row..][..len]);
                depths.iter_mut().zip(active).for_each(|(depth, &active)| *depth -= u32::from(active));
                return Ok(());
            }
        }
        let mut is_empty = false;
        by_size!(size, T => {
            let (out, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(from));
            for ((out, &active), &lane) in out.iter_mut().zip(&self.active[..self.bound]).zip(&self.lane_of) {
                if active != 0 {
                    let depth = &mut depths[usize::from(lane)];
                    is_empty |= *depth == 0;
                    *depth = depth.saturating_sub(1);
                    *out = from.get(*depth as usize * n + usize::from(lane)).copied().unwrap_or_default();
                }
            }
        });
        if is_empty { Err(Declined) } else { Ok(()) }
    }
}
