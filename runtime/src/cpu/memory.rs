//! The memory of a running plan: an arena of bytes, and what kernels see of it.
//!
//! A kernel writes one region of the arena and reads others. [`Memory::split`] gives it both by splitting the arena
//! around the region that is written, so that the borrow checker proves that reading and writing never overlap; asking
//! for a source inside the written region panics, because the plan that asks for it is wrong.

use super::element::{Cell, bytes_of, to_buffer};
use crate::plan::{Base, BufferId, View};
use crate::state::Guard;
use anabranch_dsl::{HostTensor, match_dtype};
use std::ops::Range;

/// Where every buffer starts: a cache line, also the widest vector.
pub(crate) const ALIGN: usize = 64;

/// A block of zeroed memory that starts at a multiple of [`ALIGN`].
pub(crate) struct Arena {
    words: Vec<u64>,
    /// Index of the first word.
    start: usize,
    bytes: usize,
}

impl Arena {
    /// An arena, if the system has so much memory.
    pub(crate) fn new(bytes: usize) -> Option<Arena> {
        let words: Vec<u64> = bytemuck::allocation::try_zeroed_vec(bytes.div_ceil(8) + ALIGN / 8).ok()?;
        // The vector is never grown, so its elements stay where they are.
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

/// What a step reads that is not its own: inputs, constants, variables.
#[derive(Clone, Copy)]
pub(crate) struct Foreign<'a> {
    pub(crate) inputs: &'a [HostTensor],
    pub(crate) constants: &'a [HostTensor],
    pub(crate) vars: Vars<'a>,
}

/// The variables of a step, in the order of the graph.
#[derive(Clone, Copy)]
pub(crate) enum Vars<'a> {
    /// Their values.
    Tensors(&'a [HostTensor]),
    /// Their values in a session, locked.
    Locked(&'a [Guard<'a>]),
}

impl<'a> Vars<'a> {
    fn get(self, i: usize) -> &'a HostTensor {
        match self {
            Vars::Tensors(t) => &t[i],
            Vars::Locked(guards) => guards[i].tensor(),
        }
    }
}

/// The variables of a step, when they are given their new values.
pub(crate) enum VarsMut<'a, 'g> {
    /// Their values.
    Tensors(&'a mut [HostTensor]),
    /// Their values in a session, locked.
    Locked(&'a mut [Guard<'g>]),
}

impl VarsMut<'_, '_> {
    pub(crate) fn shared(&self) -> Vars<'_> {
        match self {
            VarsMut::Tensors(t) => Vars::Tensors(t),
            VarsMut::Locked(guards) => Vars::Locked(guards),
        }
    }

    pub(crate) fn tensor_mut(&mut self, i: usize) -> &mut HostTensor {
        match self {
            VarsMut::Tensors(t) => &mut t[i],
            VarsMut::Locked(guards) => guards[i].tensor_mut(),
        }
    }
}

/// Everything that a kernel may read.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    /// The arena before the region that is written.
    before: &'a [u8],
    /// The arena behind it, and where that begins.
    after: &'a [u8],
    after_start: usize,
    regions: &'a [Range<usize>],
    regs: &'a [u64],
    foreign: Foreign<'a>,
}

impl<'a> Sources<'a> {
    /// Everything, when nothing is written.
    pub(crate) fn new(arena: &'a [u8], regs: &'a [u64], regions: &'a [Range<usize>], foreign: Foreign<'a>) -> Self {
        Sources { before: arena, after: &[], after_start: arena.len(), regions, regs, foreign }
    }

    /// All bytes of what a view lies in.
    pub(crate) fn bytes(&self, base: Base) -> &'a [u8] {
        match base {
            Base::Buffer(b) => {
                let region = &self.regions[b.index()];
                if region.end <= self.before.len() {
                    &self.before[region.clone()]
                } else if region.start >= self.after_start {
                    &self.after[region.start - self.after_start..region.end - self.after_start]
                } else {
                    panic!("a kernel reads buffer {b:?} while it writes there")
                }
            }
            Base::Reg(r) => bytemuck::bytes_of(&self.regs[r.index()]),
            Base::Input(i) => bytes_of(self.foreign.inputs[i as usize].buffer()),
            Base::Constant(i) => bytes_of(self.foreign.constants[i as usize].buffer()),
            Base::Var(i) => bytes_of(self.foreign.vars.get(i as usize).buffer()),
        }
    }

    /// All elements of what a view lies in.
    pub(crate) fn elements<T: Cell>(&self, base: Base) -> &'a [T::Mem] {
        let bytes = self.bytes(base);
        if let Base::Reg(_) = base {
            return bytemuck::cast_slice(&bytes[..size_of::<T::Mem>()]);
        }
        bytemuck::cast_slice(bytes)
    }

    /// The elements of a contiguous view.
    pub(crate) fn contiguous<T: Cell>(&self, view: &View) -> &'a [T::Mem] {
        debug_assert!(view.is_contiguous(), "{view:?} is not contiguous");
        &self.elements::<T>(view.base)[view.offset..view.offset + view.size()]
    }

    /// The present value of a register.
    pub(crate) fn reg(&self, r: crate::plan::Reg) -> u64 {
        self.regs[r.index()]
    }

    /// A view as a tensor of its own, in new memory.
    pub(crate) fn host(&self, view: &View) -> HostTensor {
        if view.is_contiguous() && view.size() > 0 {
            let size = view.dtype.size();
            let bytes = &self.bytes(view.base)[view.offset * size..][..view.n_bytes()];
            return HostTensor::from_buffer(view.shape.clone(), to_buffer(view.dtype, bytes));
        }
        match_dtype!(view.dtype, T => {
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

/// The state that a plan's instructions work on.
pub(crate) struct Memory<'a> {
    pub(crate) arena: &'a mut [u8],
    pub(crate) regs: &'a mut [u64],
    pub(crate) regions: &'a [Range<usize>],
    pub(crate) foreign: Foreign<'a>,
}

impl Memory<'_> {
    /// The region of `out` for writing, and everything else for reading.
    pub(crate) fn split(&mut self, out: BufferId) -> (&mut [u8], Sources<'_>) {
        let region = self.regions[out.index()].clone();
        let (before, rest) = self.arena.split_at_mut(region.start);
        let (out, after) = rest.split_at_mut(region.len());
        let sources = Sources {
            before,
            after,
            after_start: region.end,
            regions: self.regions,
            regs: self.regs,
            foreign: self.foreign,
        };
        (out, sources)
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
        let regions = [0..64, 32..96];
        let foreign = Foreign { inputs: &[], constants: &[], vars: Vars::Tensors(&[]) };
        let mut memory = Memory { arena: arena.bytes_mut(), regs: &mut [], regions: &regions, foreign };
        let (_, sources) = memory.split(BufferId(0));
        sources.bytes(Base::Buffer(BufferId(1)));
    }
}
