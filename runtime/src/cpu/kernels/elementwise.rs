//! Elementwise operations on tensors, fused, in blocks.
//!
//! A [`Map`] is an index space, operands with their strides, and a list of operations. It goes through the space in blocks that
//! stay in the first-level cache: operands that do not lie one element behind the other, or that lie where the
//! result goes, are copied to scratch memory first, so that every inner loop runs over plain slices.

use super::functions::Function;
use super::walk::{Axis, merged};
use crate::cpu::kernels::Failed;
use crate::cpu::memory::Sources;
use crate::plan::{Operand, View};
use anabranch_dsl::DType;
use rayon::prelude::*;
use std::cell::RefCell;

/// Elements of one block.
const BLOCK: usize = 512;
/// Bytes of the scratch memory of one block: elements have up to 8 bytes.
const SLOT: usize = BLOCK * 8;
/// Elements from which on the work is split over threads, and elements of one part: a multiple of [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;

/// An argument of an operation inside a [`Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// An operand of the map.
    Operand(u8),
    /// The result of an earlier operation.
    Result(u8),
}

/// One operation inside a [`Map`].
#[derive(Clone, Debug)]
pub(crate) struct MapOp {
    pub(crate) function: Function,
    pub(crate) args: [Arg; 3],
    pub(crate) dtype: DType,
    pub(crate) name: &'static str,
}

/// How the elements of an operand reach a block.
#[derive(Clone, Debug)]
enum Access {
    /// They lie one behind the other.
    Contiguous { offset: usize },
    /// There is only one.
    Splat { offset: usize },
    /// They lie apart.
    Strided { offset: usize, axes: Vec<Axis<1>> },
    /// They lie where the result goes.
    InPlace,
}

/// Fused elementwise operations; the last one gives the result.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    ops: Vec<MapOp>,
    /// Number of elements.
    n: usize,
    /// Of each operand: how it is reached and the bytes of an element.
    access: Vec<(Access, usize)>,
}

/// The largest number of operands and operations of one map: their blocks fit the first-level cache.
pub(crate) const MAX_BLOCKS: usize = 12;

impl Map {
    /// A map over operands that all have the shape of the result, which is all of a buffer.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[Operand], out: &View) -> Map {
        let access = operands.iter().map(|operand| {
            let view = operand.view();
            let axes = merged(&view.shape, [&view.strides]);
            let access = if out.same_places(view) {
                Access::InPlace
            } else {
                match axes[..] {
                    [] | [Axis { strides: [0], .. }] => Access::Splat { offset: view.offset },
                    [Axis { strides: [1], .. }] => Access::Contiguous { offset: view.offset },
                    _ => Access::Strided { offset: view.offset, axes },
                }
            };
            (access, view.dtype.size())
        });
        let access = access.collect();
        Map { n: out.size(), access, ops }
    }

    /// Names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ops.iter().map(|op| op.name)
    }

    /// The same map after its operands or its result were put elsewhere.
    pub(crate) fn placed(&self, operands: &[Operand], out: &View) -> Map {
        Map::new(self.ops.clone(), operands, out)
    }

    pub(crate) fn run(&self, operands: &[Operand], out: &mut [u8], sources: &Sources<'_>) -> Result<(), Failed> {
        let size = self.ops.last().expect("a map has operations").dtype.size();
        if self.n == 0 {
            return Ok(());
        }
        if self.n < PARALLEL {
            return self.run_part(operands, 0, out, sources);
        }
        let parts = out.par_chunks_mut(PART * size).enumerate();
        parts.map(|(i, out)| self.run_part(operands, i * PART, out, sources)).collect()
    }

    /// Computes the elements from `first` on that fill `out`.
    fn run_part(
        &self,
        operands: &[Operand],
        first: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        thread_local! {
            static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.is_empty() {
                scratch.resize(MAX_BLOCKS * SLOT / 8, 0);
            }
            self.run_blocks(operands, first, out, sources, bytemuck::cast_slice_mut(scratch))
        })
    }

    fn run_blocks(
        &self,
        operands: &[Operand],
        first: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        let n_operands = self.access.len();
        let out_size = self.ops[self.ops.len() - 1].dtype.size();
        let n = out.len() / out_size;
        let mut bytes: [&[u8]; MAX_BLOCKS] = [&[]; MAX_BLOCKS];
        for (i, (access, size)) in self.access.iter().enumerate() {
            match access {
                Access::Contiguous { offset } => bytes[i] = &sources.bytes(operands[i].view().base)[offset * size..],
                Access::Splat { offset } => {
                    let element = &sources.bytes(operands[i].view().base)[offset * size..][..*size];
                    fill(&mut scratch[i * SLOT..][..n.min(BLOCK) * size], element);
                }
                Access::Strided { .. } => bytes[i] = sources.bytes(operands[i].view().base),
                Access::InPlace => {}
            }
        }
        let mut start = 0;
        while start < n {
            let len = BLOCK.min(n - start);
            for (i, (access, size)) in self.access.iter().enumerate() {
                let block = &mut scratch[i * SLOT..][..len * size];
                match access {
                    Access::Strided { offset, axes } => gather(block, bytes[i], *size, *offset, axes, first + start),
                    Access::InPlace => block.copy_from_slice(&out[start * size..][..len * size]),
                    Access::Contiguous { .. } | Access::Splat { .. } => {}
                }
            }
            for (k, op) in self.ops.iter().enumerate() {
                let (blocks, rest) = scratch.split_at_mut((n_operands + k) * SLOT);
                let arg = |arg: Arg| match arg {
                    Arg::Operand(i) => {
                        let (access, size) = &self.access[i as usize];
                        match access {
                            Access::Contiguous { .. } => &bytes[i as usize][(first + start) * size..][..len * size],
                            _ => &blocks[i as usize * SLOT..][..len * size],
                        }
                    }
                    Arg::Result(i) => {
                        &blocks[(n_operands + i as usize) * SLOT..][..len * self.ops[i as usize].dtype.size()]
                    }
                };
                let args = op.args.map(arg);
                if op.function.check.is_some_and(|check| !(check.block)(args[1])) {
                    return Err(Failed);
                }
                let size = op.dtype.size();
                let to = if k + 1 == self.ops.len() { &mut out[start * size..] } else { rest };
                (op.function.block)(&mut to[..len * size], args);
            }
            start += len;
        }
        Ok(())
    }
}

/// Repeats one element.
fn fill(to: &mut [u8], element: &[u8]) {
    match element.len() {
        8 => bytemuck::cast_slice_mut::<u8, u64>(to).fill(bytemuck::pod_read_unaligned(element)),
        4 => bytemuck::cast_slice_mut::<u8, u32>(to).fill(bytemuck::pod_read_unaligned(element)),
        _ => to.fill(element[0]),
    }
}

/// Copies elements `first`, `first + 1`, .. of a strided space.
fn gather(to: &mut [u8], from: &[u8], size: usize, offset: usize, axes: &[Axis<1>], first: usize) {
    match size {
        8 => gather_as::<u64>(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), offset, axes, first),
        4 => gather_as::<u32>(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), offset, axes, first),
        _ => gather_as::<u8>(to, from, offset, axes, first),
    }
}

fn gather_as<M: Copy>(to: &mut [M], from: &[M], offset: usize, axes: &[Axis<1>], first: usize) {
    let (inner, outer) = axes.split_last().expect("a strided space has axes");
    let mut filled = 0;
    while filled < to.len() {
        // One run along the innermost axis.
        let at = first + filled;
        let (mut rest, column) = (at / inner.n, at % inner.n);
        let mut start = offset as isize + column as isize * inner.strides[0];
        for axis in outer.iter().rev() {
            start += (rest % axis.n) as isize * axis.strides[0];
            rest /= axis.n;
        }
        let len = (inner.n - column).min(to.len() - filled);
        let run = &mut to[filled..filled + len];
        match inner.strides[0] {
            0 => run.fill(from[start as usize]),
            1 => run.copy_from_slice(&from[start as usize..start as usize + len]),
            stride => {
                let mut at = start;
                for x in run {
                    *x = from[at as usize];
                    at += stride;
                }
            }
        }
        filled += len;
    }
}
