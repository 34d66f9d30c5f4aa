//! Softmax, log-softmax and log-sum-exp along one axis of a dense tensor.
//!
//! The maximum is subtracted before exponentials are computed, so that nothing overflows.

use super::axis::blocks;
use super::reduce::fold;
use crate::cpu::element::CpuElement;
use crate::cpu::memory::Sources;
use crate::cpu::memory::View;
use crate::cpu::multiversion::wide;
use crate::cpu::vector::prefetch_for_later;
use anabranch_dsl::DType;
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::scalars::{Real, exp, log};

/// The function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoftmaxKind {
    Softmax,
    LogSoftmax,
    LogSumExp,
}

/// A function of the softmax family along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    normal: SoftmaxKind,
    /// The extent of the axis.
    n: usize,
    /// The product of the extents after the axis, which is the stride along it.
    inner: usize,
}

/// A supported element type.
trait SoftmaxElement: Real<Mask = bool> + CpuElement<Mem = Self> + PartialOrd + Send + Sync {
    const LOWEST: Self;
    const ONE: Self;
}
macro_rules! elements {
    ($($t:ident)*) => {$(
        impl SoftmaxElement for $t {
            const LOWEST: $t = $t::NEG_INFINITY;
            const ONE: $t = 1.0;
        }
    )*};
}
elements!(f32 f64);

impl Softmax {
    /// Creates the kernel for a dense operand of this shape.
    pub(crate) fn new(normal: SoftmaxKind, shape: &[usize], axis: usize) -> Softmax {
        Softmax { normal, n: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    pub(crate) fn run(&self, view: &View, out: &mut [u8], sources: &Sources<'_>) {
        match view.dtype {
            DType::F32 => self.run_as(sources.contiguous::<f32>(view), bytemuck::cast_slice_mut::<u8, f32>(out)),
            DType::F64 => self.run_as(sources.contiguous::<f64>(view), bytemuck::cast_slice_mut::<u8, f64>(out)),
            other => panic!("exponentials of {other}"),
        }
    }

    /// Returns the number of elements of a row and of its result, or `None` if rows are not
    /// contiguous.
    pub(crate) fn row_lengths(&self) -> Option<[usize; 2]> {
        (self.inner == 1).then(|| [self.n, if self.normal == SoftmaxKind::LogSumExp { 1 } else { self.n }])
    }

    /// Returns the operation.
    pub(super) fn op(&self) -> Prim {
        match self.normal {
            SoftmaxKind::Softmax => prim::SOFTMAX,
            SoftmaxKind::LogSoftmax => prim::LOG_SOFTMAX,
            SoftmaxKind::LogSumExp => prim::LOGSUMEXP,
        }
    }

    /// Computes contiguous rows on the calling thread.
    pub(super) fn run_rows(&self, dtype: DType, x: &[u8], out: &mut [u8]) {
        match dtype {
            DType::F32 => self.rows_as::<f32>(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out)),
            DType::F64 => self.rows_as::<f64>(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out)),
            other => panic!("exponentials of {other}"),
        }
    }

    fn rows_as<T: SoftmaxElement>(&self, x: &[T], y: &mut [T]) {
        let [n, n_out] = self.row_lengths().expect("rows are contiguous");
        for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n_out)) {
            wide(
                #[inline(always)]
                || self.row(x, y),
            );
        }
    }

    fn run_as<T: SoftmaxElement>(&self, x: &[T], y: &mut [T]) {
        let n_out = if self.normal == SoftmaxKind::LogSumExp { 1 } else { self.n };
        blocks(x, y, [self.n * self.inner, n_out * self.inner], |x, y| {
            if self.inner == 1 {
                wide(
                    #[inline(always)]
                    || self.row(x, y),
                );
            } else {
                (0..self.inner).for_each(|at| self.column(x, y, at));
            }
        });
    }

    /// Computes contiguous elements.
    #[inline(always)]
    fn row<T: SoftmaxElement>(&self, x: &[T], y: &mut [T]) {
        // The maximum may miss NaN, but then the sum of exponentials is NaN.
        let shift = shift(fold::<T>(x, T::LOWEST, |max, x| if x > max { x } else { max }));
        match self.normal {
            SoftmaxKind::Softmax => {
                // The sum is between 1 and `n`, or NaN, so its reciprocal is exact to half a unit
                // in the last place.
                let sum = exponentials(x, shift, |i, group| {
                    // Those of the next row, whose page of memory may be another one.
                    if group.len() == LANES {
                        for row in [x.as_ptr(), y.as_ptr()] {
                            prefetch_for_later(row.wrapping_add(self.n + i), LANES);
                        }
                    }
                    y[i..i + group.len()].copy_from_slice(group);
                });
                let by = T::ONE / sum;
                y.iter_mut().for_each(|y| *y = *y * by);
            }
            SoftmaxKind::LogSoftmax => {
                let log_of_sum = log(exponentials(x, shift, |_, _| {}));
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = x - shift - log_of_sum);
            }
            SoftmaxKind::LogSumExp => y[0] = shift + log(exponentials(x, shift, |_, _| {})),
        }
    }

    /// Computes elements with stride `inner`, from `at` on.
    fn column<T: SoftmaxElement>(&self, x: &[T], y: &mut [T], at: usize) {
        let places = || (0..self.n).map(|i| at + i * self.inner);
        let shift = shift(places().fold(T::LOWEST, |max, i| max.larger(x[i])));
        let sum = places().fold(T::default(), |sum, i| sum + exp(x[i] - shift));
        match self.normal {
            SoftmaxKind::Softmax => places().for_each(|i| y[i] = exp(x[i] - shift) / sum),
            SoftmaxKind::LogSoftmax => {
                let log_of_sum = log(sum);
                places().for_each(|i| y[i] = x[i] - shift - log_of_sum);
            }
            SoftmaxKind::LogSumExp => y[at] = shift + log(sum),
        }
    }
}

/// Number of interleaved partial sums.
const LANES: usize = 16;

/// Returns the sum of the exponentials of `x - shift`. Passes them to `each` in groups, with the
/// index of the first.
#[inline(always)]
fn exponentials<T: SoftmaxElement>(x: &[T], shift: T, mut each: impl FnMut(usize, &[T])) -> T {
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut lanes = [T::default(); LANES];
    for (k, group) in groups.iter().enumerate() {
        let mut values = [T::default(); LANES];
        for (e, x) in values.iter_mut().zip(group) {
            *e = exp(*x - shift);
        }
        each(k * LANES, &values);
        for (lane, e) in lanes.iter_mut().zip(values) {
            *lane = *lane + e;
        }
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[i] + lanes[i + n];
        }
    }
    rest.iter().enumerate().fold(lanes[0], |sum, (i, x)| {
        let e = exp(*x - shift);
        each(groups.len() * LANES + i, &[e]);
        sum + e
    })
}

/// Returns the value to subtract. If the maximum is infinite, it is 0: differences would be NaN,
/// whereas the exponentials yield the correct infinities.
#[inline(always)]
fn shift<T: SoftmaxElement>(max: T) -> T {
    if max.is_finite() { max } else { T::default() }
}
