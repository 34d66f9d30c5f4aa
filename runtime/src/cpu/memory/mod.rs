//! The memory of a running plan: an arena of bytes, the results of the call, and the views of
//! kernels on them.
//!
//! A kernel writes some regions and reads others. [`Memory::split`] divides the arena and the
//! results around the written regions, so that the borrow checker proves that reads and writes
//! never overlap. Requesting a source inside a written region panics, because the plan is then
//! invalid.

pub(crate) mod counted;
pub(crate) mod list;
pub(crate) mod results;
pub(crate) mod segments;
pub(crate) mod stack;
mod storage;
mod view;

pub(crate) use storage::{BufferId, Out, Reg, SlotId, StackId, Storage, TensorOperand};
pub(crate) use view::{Base, MemoryLayout, View, row_major};

use crate::cpu::element::{CpuElement, bytes_of, bytes_of_mut, match_plain_dtype, to_buffer};
use anabranch_dsl::{Buffer, HostTensor};
use std::ops::Range;
use std::sync::Arc;

/// The alignment of every buffer: a cache line, which is also the widest vector.
pub(crate) const ALIGN: usize = 64;

/// A block of zeroed memory whose address is a multiple of [`ALIGN`].
pub(crate) struct Arena {
    words: Vec<u64>,
    /// Index of the first aligned word.
    start: usize,
    bytes: usize,
}

impl Arena {
    /// Allocates an arena. Returns `None` if the system lacks memory.
    pub(crate) fn new(bytes: usize) -> Option<Arena> {
        let words: Vec<u64> = bytemuck::allocation::try_zeroed_vec(bytes.div_ceil(8) + ALIGN / 8).ok()?;
        // The vector never grows, so its elements do not move.
        let start = words.as_ptr().align_offset(ALIGN);
        Some(Arena { start, words, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[self.start..])[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words[self.start..])[..self.bytes]
    }
}

/// The location of a buffer of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BufferLocation {
    /// A range of the arena.
    Arena(Range<usize>),
    /// A result, which the caller receives without a copy.
    Result(u32),
}

/// Maximum number of buffers that one kernel, or a set of parallel operations, writes.
pub(crate) const MAX_WRITTEN: usize = 8;

/// The readable remainder of a slice while parts of it are written.
struct UnwrittenParts<'a, T> {
    /// The elements before the first part.
    before: &'a [T],
    /// The elements after the last part. These elements begin at `after_start`.
    after: &'a [T],
    after_start: usize,
    /// The pieces between parts, each with its start.
    between: &'a [(usize, &'a [T])],
}

impl<T> Clone for UnwrittenParts<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for UnwrittenParts<'_, T> {}

impl<'a, T> UnwrittenParts<'a, T> {
    fn whole(slice: &'a [T]) -> UnwrittenParts<'a, T> {
        UnwrittenParts { before: slice, after: &[], after_start: slice.len(), between: &[] }
    }

    /// Splits a slice around one part, which is written.
    fn around(slice: &'a mut [T], part: Range<usize>) -> (&'a mut [T], UnwrittenParts<'a, T>) {
        let (before, rest) = slice.split_at_mut(part.start);
        let (taken, after) = rest.split_at_mut(part.len());
        (taken, UnwrittenParts { before, after, after_start: part.end, between: &[] })
    }

    fn get(&self, range: &Range<usize>) -> Option<&'a [T]> {
        if range.end <= self.before.len() {
            return Some(&self.before[range.clone()]);
        }
        if range.start >= self.after_start {
            return Some(&self.after[range.start - self.after_start..range.end - self.after_start]);
        }
        let holds = |&&(at, piece): &&(usize, &[T])| at <= range.start && range.end <= at + piece.len();
        let &(at, piece) = self.between.iter().find(holds)?;
        Some(&piece[range.start - at..range.end - at])
    }
}

/// A slice split around several parts, in order.
struct Cuts<'a, T> {
    pieces: [(usize, &'a [T]); MAX_WRITTEN + 1],
    n: usize,
}

impl<'a, T> Cuts<'a, T> {
    /// Takes out parts. Each part is stored in `taken` at the index given with it.
    fn new(slice: &'a mut [T], parts: &[(Range<usize>, usize)], taken: &mut [Option<&'a mut [T]>]) -> Cuts<'a, T> {
        let mut pieces: [(usize, &[T]); MAX_WRITTEN + 1] = [(0, &[]); MAX_WRITTEN + 1];
        let (mut rest, mut at) = (slice, 0);
        for (piece, (range, k)) in pieces.iter_mut().zip(parts) {
            let (before, behind) = rest.split_at_mut(range.start - at);
            let (part, behind) = behind.split_at_mut(range.len());
            *piece = (at, before);
            taken[*k] = Some(part);
            (rest, at) = (behind, range.end);
        }
        pieces[parts.len()] = (at, rest);
        Cuts { pieces, n: parts.len() + 1 }
    }

    fn pieces(&self) -> UnwrittenParts<'_, T> {
        let (after_start, after) = self.pieces[self.n - 1];
        match &self.pieces[..self.n - 1] {
            [] => UnwrittenParts::whole(after),
            [(_, before), between @ ..] => UnwrittenParts { before, after, after_start, between },
        }
    }
}

/// Tensors that a step reads but does not own: inputs, constants and variables.
#[derive(Clone, Copy)]
pub(crate) struct ExternalTensors<'a> {
    pub(crate) inputs: &'a [HostTensor],
    pub(crate) constants: &'a [HostTensor],
    pub(crate) vars: Vars<'a>,
}

impl<'a> ExternalTensors<'a> {
    /// Returns the tensor of a base.
    ///
    /// # Panics
    /// Panics if the base is memory of the plan.
    pub(crate) fn tensor(&self, base: Base) -> &'a HostTensor {
        match base {
            Base::Input(i) => &self.inputs[i as usize],
            Base::Constant(i) => &self.constants[i as usize],
            Base::Var(i) => self.vars.get(i as usize),
            Base::Buffer(_) | Base::Reg(_) => panic!("{base:?} is memory of the plan"),
        }
    }
}

/// Shared access to the variables of a step, in the order of the graph.
#[derive(Clone, Copy)]
pub(crate) enum Vars<'a> {
    /// The values.
    Tensors(&'a [HostTensor]),
    /// The values in a session.
    Snapshot(&'a [Arc<HostTensor>]),
}

impl<'a> Vars<'a> {
    pub(crate) fn get(self, i: usize) -> &'a HostTensor {
        match self {
            Vars::Tensors(t) => &t[i],
            Vars::Snapshot(t) => &t[i],
        }
    }
}

/// Mutable access to the variables of a step, for the commit.
pub(crate) enum VarsMut<'a> {
    /// The values.
    Tensors(&'a mut [HostTensor]),
    /// The values in a session. Those that others hold, too, keep their elements.
    Shared(&'a mut [Arc<HostTensor>]),
}

impl VarsMut<'_> {
    pub(crate) fn shared(&self) -> Vars<'_> {
        match self {
            VarsMut::Tensors(t) => Vars::Tensors(t),
            VarsMut::Shared(t) => Vars::Snapshot(t),
        }
    }

    pub(crate) fn tensor_mut(&mut self, i: usize) -> &mut HostTensor {
        match self {
            VarsMut::Tensors(t) => &mut t[i],
            VarsMut::Shared(t) => Arc::make_mut(&mut t[i]),
        }
    }
}

/// The variables of a step: the values that it reads, and access for its commit.
pub(crate) trait Variables {
    /// Returns the values that the step reads.
    fn values(&self) -> Vars<'_>;

    /// Calls `write` once, to write the new values. No other step sees some of them only.
    fn commit(&mut self, write: impl FnOnce(VarsMut<'_>));
}

impl Variables for [HostTensor] {
    fn values(&self) -> Vars<'_> {
        Vars::Tensors(self)
    }

    fn commit(&mut self, write: impl FnOnce(VarsMut<'_>)) {
        write(VarsMut::Tensors(self));
    }
}

/// All memory that a kernel may read.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    arena: UnwrittenParts<'a, u8>,
    results: UnwrittenParts<'a, Buffer>,
    regions: &'a [BufferLocation],
    regs: &'a [u64],
    foreign: ExternalTensors<'a>,
}

impl<'a> Sources<'a> {
    /// Returns access to all memory while nothing is written.
    pub(crate) fn new(
        arena: &'a [u8],
        results: &'a [Buffer],
        regs: &'a [u64],
        regions: &'a [BufferLocation],
        foreign: ExternalTensors<'a>,
    ) -> Self {
        Sources { arena: UnwrittenParts::whole(arena), results: UnwrittenParts::whole(results), regions, regs, foreign }
    }

    /// Returns all bytes of a base.
    pub(crate) fn bytes(&self, base: Base) -> &'a [u8] {
        match base {
            Base::Buffer(b) => {
                let bytes = match &self.regions[b.index()] {
                    BufferLocation::Arena(range) => self.arena.get(range),
                    BufferLocation::Result(i) => {
                        self.results.get(&(*i as usize..*i as usize + 1)).map(|r| bytes_of(&r[0]))
                    }
                };
                bytes.unwrap_or_else(|| panic!("a kernel reads buffer {b:?} while it writes there"))
            }
            Base::Reg(r) => bytemuck::bytes_of(&self.regs[r.index()]),
            Base::Input(_) | Base::Constant(_) | Base::Var(_) => bytes_of(self.foreign.tensor(base).buffer()),
        }
    }

    /// Returns all elements of a base.
    pub(crate) fn elements<T: CpuElement>(&self, base: Base) -> &'a [T::Mem] {
        let bytes = self.bytes(base);
        if let Base::Reg(_) = base {
            return bytemuck::cast_slice(&bytes[..size_of::<T::Mem>()]);
        }
        bytemuck::cast_slice(bytes)
    }

    /// Returns the elements of a contiguous view.
    pub(crate) fn contiguous<T: CpuElement>(&self, view: &View) -> &'a [T::Mem] {
        debug_assert!(view.is_contiguous(), "{view:?} is not contiguous");
        &self.elements::<T>(view.base)[view.offset..view.offset + view.size()]
    }

    /// Returns the value of a register.
    pub(crate) fn reg(&self, r: Reg) -> u64 {
        self.regs[r.index()]
    }

    /// Copies a view to a new tensor.
    pub(crate) fn host(&self, view: &View) -> HostTensor {
        if view.size() == 0 {
            // The offset may be beyond the end of an empty buffer.
            return HostTensor::zeros(view.dtype, view.shape.clone());
        }
        if view.is_contiguous() {
            let size = view.dtype.size();
            let bytes = &self.bytes(view.base)[view.offset * size..][..view.n_bytes()];
            return HostTensor::from_buffer(view.shape.clone(), to_buffer(view.dtype, bytes));
        }
        match_plain_dtype!(view.dtype, T => {
            let all = self.elements::<T>(view.base);
            let data: Vec<T> = if view.is_contiguous() {
                all[view.offset..][..view.size()].iter().map(|&x| T::load(x)).collect()
            } else {
                view.offsets().map(|i| T::load(all[i])).collect()
            };
            HostTensor::new(view.shape.clone(), data)
        })
    }
}

/// The state on which the instructions of a plan operate.
pub(crate) struct Memory<'a> {
    pub(crate) arena: &'a mut [u8],
    /// The results. Boolean buffers are excluded, because not all bytes are valid.
    pub(crate) results: &'a mut [Buffer],
    pub(crate) regs: &'a mut [u64],
    pub(crate) regions: &'a [BufferLocation],
    pub(crate) foreign: ExternalTensors<'a>,
}

impl Memory<'_> {
    /// Returns the bytes of a buffer for writing, and all other memory for reading.
    pub(crate) fn split(&mut self, out: BufferId) -> (&mut [u8], Sources<'_>) {
        let Memory { arena, results, regs, regions, foreign } = self;
        let (out, arena, results) = match &regions[out.index()] {
            BufferLocation::Arena(range) => {
                let (out, arena) = UnwrittenParts::around(arena, range.clone());
                (out, arena, UnwrittenParts::whole(results))
            }
            BufferLocation::Result(i) => {
                let (out, results) = UnwrittenParts::around(results, *i as usize..*i as usize + 1);
                (bytes_of_mut(&mut out[0]), UnwrittenParts::whole(arena), results)
            }
        };
        (out, Sources { arena, results, regions, regs, foreign: *foreign })
    }

    /// Calls `f` with the bytes of several buffers for writing, and all other memory for reading.
    pub(crate) fn with_split<R>(
        &mut self,
        outs: &[BufferId],
        f: impl FnOnce([&mut [u8]; MAX_WRITTEN], &Sources<'_>) -> R,
    ) -> R {
        let mut in_arena: [(Range<usize>, usize); MAX_WRITTEN] = std::array::from_fn(|_| (0..0, 0));
        let mut in_results = in_arena.clone();
        let (mut n_arena, mut n_results) = (0, 0);
        for (k, out) in outs.iter().enumerate() {
            match &self.regions[out.index()] {
                BufferLocation::Arena(range) => {
                    in_arena[n_arena] = (range.clone(), k);
                    n_arena += 1;
                }
                BufferLocation::Result(i) => {
                    in_results[n_results] = (*i as usize..*i as usize + 1, k);
                    n_results += 1;
                }
            }
        }
        let (in_arena, in_results) = (&mut in_arena[..n_arena], &mut in_results[..n_results]);
        in_arena.sort_unstable_by_key(|(range, _)| range.start);
        in_results.sort_unstable_by_key(|(range, _)| range.start);
        let mut bytes = [const { None }; MAX_WRITTEN];
        let mut buffers = [const { None }; MAX_WRITTEN];
        let arena = Cuts::new(self.arena, in_arena, &mut bytes);
        let results = Cuts::new(self.results, in_results, &mut buffers);
        for (bytes, buffer) in bytes.iter_mut().zip(buffers) {
            if let Some([buffer]) = buffer {
                *bytes = Some(bytes_of_mut(buffer));
            }
        }
        let (arena, results) = (arena.pieces(), results.pieces());
        let sources = Sources { arena, results, regions: self.regions, regs: self.regs, foreign: self.foreign };
        f(bytes.map(Option::unwrap_or_default), &sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_aligned_and_zeroed() {
        for bytes in [0, 1, 63, 64, 1000] {
            let arena = Arena::new(bytes).expect("there is a little memory");
            assert_eq!(arena.bytes().len(), bytes);
            assert_eq!(arena.bytes().as_ptr().align_offset(ALIGN), 0);
            assert!(arena.bytes().iter().all(|&b| b == 0));
        }
    }

    #[test]
    #[should_panic(expected = "while it writes there")]
    fn reading_what_is_written_is_refused() {
        let mut arena = Arena::new(128).expect("there is a little memory");
        let regions = [BufferLocation::Arena(0..64), BufferLocation::Arena(32..96)];
        let foreign = ExternalTensors { inputs: &[], constants: &[], vars: Vars::Tensors(&[]) };
        let mut memory =
            Memory { arena: arena.bytes_mut(), results: &mut [], regs: &mut [], regions: &regions, foreign };
        let (_, sources) = memory.split(BufferId(0));
        sources.bytes(Base::Buffer(BufferId(1)));
    }
    #[test]
    fn what_is_written_and_what_is_read_are_apart() {
        let mut arena = Arena::new(256).expect("there is a little memory");
        let mut results = [Buffer::F32(vec![1.0]), Buffer::F32(vec![2.0; 2]), Buffer::F32(vec![3.0])];
        let arena_regions = [64..128, 128..192, 0..64].map(BufferLocation::Arena);
        let regions: Vec<BufferLocation> =
            arena_regions.into_iter().chain((0..3).map(BufferLocation::Result)).collect();
        let foreign = ExternalTensors { inputs: &[], constants: &[], vars: Vars::Tensors(&[]) };
        let arena = arena.bytes_mut();
        let mut memory = Memory { arena, results: &mut results, regs: &mut [], regions: &regions, foreign };
        let ends = memory.with_split(&[BufferId(4), BufferId(1), BufferId(2)], |outs, sources| {
            assert_eq!(outs.map(|out| out.len()), [8, 64, 64, 0, 0, 0, 0, 0]);
            assert_eq!(sources.bytes(Base::Buffer(BufferId(0))).len(), 64);
            [3, 5].map(|b| sources.elements::<f32>(Base::Buffer(BufferId(b)))[0])
        });
        assert_eq!(ends, [1.0, 3.0]);
        let middle = memory.with_split(&[BufferId(3), BufferId(5)], |_, sources| {
            sources.elements::<f32>(Base::Buffer(BufferId(4))).to_vec()
        });
        assert_eq!(middle, [2.0; 2]);
    }
}
