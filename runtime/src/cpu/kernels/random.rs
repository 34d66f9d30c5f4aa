//! Counter-based random numbers.

use crate::cpu::memory::Sources;
use crate::cpu::memory::{TensorOperand, View};
use crate::threads;
use anabranch_dsl::ops::random::{folded, philox, unit_bf16, unit_f16, unit_f32, unit_f64};
use anabranch_dsl::{DType, bf16, f16};

/// The distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RandomKernel {
    /// Uniform 32-bit words.
    Bits,
    /// Uniform floats in `[0, 1)`.
    Uniform(DType),
}

/// Number of elements per task. `PARALLEL` is the minimum number for several threads.
const PART: usize = 1 << 12;
const PARALLEL: usize = 1 << 14;

impl RandomKernel {
    /// Returns the size of a number in bytes.
    fn size(self) -> usize {
        match self {
            RandomKernel::Bits => 4,
            RandomKernel::Uniform(dtype) => dtype.size(),
        }
    }
}

fn key(view: &View, sources: &Sources<'_>) -> [u32; 2] {
    let key = sources.contiguous::<u32>(view);
    [key[0], key[1]]
}

/// Fills `out` with the numbers of the stream of the operand, a key.
pub(crate) fn fill(random: RandomKernel, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
    let (key, size) = (key(operands[0].view(), sources), random.size());
    if out.len() < PARALLEL * size {
        return draw(random, key, 0, out);
    }
    threads::chunks(out, PART * size, |(i, out)| draw(random, key, i * PART, out));
}

/// Fills `out` with the numbers of a stream, beginning with number `first`.
pub(super) fn draw(random: RandomKernel, key: [u32; 2], first: usize, out: &mut [u8]) {
    match random {
        RandomKernel::Bits => blocks::<u32, 4>(key, first, bytemuck::cast_slice_mut(out), |w| w),
        RandomKernel::Uniform(DType::F32) => {
            blocks::<f32, 4>(key, first, bytemuck::cast_slice_mut(out), |w| w.map(unit_f32))
        }
        RandomKernel::Uniform(DType::F16) => {
            blocks::<f16, 4>(key, first, bytemuck::cast_slice_mut(out), |w| w.map(unit_f16))
        }
        RandomKernel::Uniform(DType::BF16) => {
            blocks::<bf16, 4>(key, first, bytemuck::cast_slice_mut(out), |w| w.map(unit_bf16));
        }
        RandomKernel::Uniform(_) => blocks::<f64, 2>(key, first, bytemuck::cast_slice_mut(out), |w| {
            [unit_f64(w[0], w[1]), unit_f64(w[2], w[3])]
        }),
    }
}

/// Fills a slice with elements from `first` on. Each block of four words yields `N` elements.
fn blocks<T: Copy, const N: usize>(key: [u32; 2], first: usize, out: &mut [T], f: impl Fn([u32; 4]) -> [T; N]) {
    let block = |i: usize| f(philox([i as u32, (i as u64 >> 32) as u32, 0, 0], key));
    let (of_first, skipped) = (first / N, first % N);
    let (head, rest) = out.split_at_mut(((N - skipped) % N).min(out.len()));
    if !head.is_empty() {
        head.copy_from_slice(&block(of_first)[skipped..][..head.len()]);
    }
    for (i, out) in rest.chunks_mut(N).enumerate() {
        out.copy_from_slice(&block(first.div_ceil(N) + i)[..out.len()]);
    }
}

/// Writes the key derived from a key and a number.
pub(crate) fn fold_in(operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
    let number = operands[1].view();
    let i = number.offset;
    let number = match number.dtype {
        DType::I32 => i64::from(sources.elements::<i32>(number.base)[i]),
        DType::I64 => sources.elements::<i64>(number.base)[i],
        DType::U32 => sources.elements::<u32>(number.base)[i].into(),
        DType::U8 => sources.elements::<u8>(number.base)[i].into(),
        other => panic!("a number of type {other} for a key"),
    };
    let key = folded(key(operands[0].view(), sources), number as u64);
    bytemuck::cast_slice_mut::<u8, u32>(out).copy_from_slice(&key);
}
