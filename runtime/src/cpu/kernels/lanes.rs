//! Operations along one axis of a dense tensor: softmax and its relatives, running sums, places of extremes.

use crate::cpu::element::Cell;
use crate::cpu::memory::Sources;
use crate::plan::View;
use anabranch_dsl::DType;
use rayon::prelude::*;

/// What is done along the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    Softmax,
    LogSoftmax,
    LogSumExp,
    CumSum { reverse: bool },
    ArgMax,
    ArgMin,
}

/// An operation along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    along: Along,
    /// Elements along the axis.
    n: usize,
    /// Elements behind the axis: how far apart neighbours along it lie.
    inner: usize,
}

/// Elements from which on the work is split over threads, and about as many in one part.
const PARALLEL: usize = 1 << 15;
const PART: usize = 1 << 13;

impl Lanes {
    /// `shape` is that of the dense operand.
    pub(crate) fn new(along: Along, shape: &[usize], axis: usize) -> Lanes {
        Lanes {
            along,
            n: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    pub(crate) fn run(&self, view: &View, out: &mut [u8], sources: &Sources<'_>) {
        macro_rules! number {
            ($t:ty, $add:expr) => {{
                let x = sources.contiguous::<$t>(view);
                match self.along {
                    Along::CumSum { reverse } => {
                        self.blocks(
                            x,
                            bytemuck::cast_slice_mut::<u8, $t>(out),
                            self.n,
                            |x, y, at| {
                                self.cumsum(x, y, at, reverse, $add);
                            },
                        );
                    }
                    Along::ArgMax => self.blocks(
                        x,
                        bytemuck::cast_slice_mut::<u8, i32>(out),
                        1,
                        |x, y, at| {
                            y[at] = self.first(x, at, |a: $t, b| a > b);
                        },
                    ),
                    Along::ArgMin => self.blocks(
                        x,
                        bytemuck::cast_slice_mut::<u8, i32>(out),
                        1,
                        |x, y, at| {
                            y[at] = self.first(x, at, |a: $t, b| a < b);
                        },
                    ),
                    Along::Softmax | Along::LogSoftmax | Along::LogSumExp => {
                        panic!("exponentials of integers")
                    }
                }
            }};
        }
        macro_rules! float {
            ($t:ty) => {{
                let x = sources.contiguous::<$t>(view);
                match self.along {
                    Along::Softmax | Along::LogSoftmax => {
                        let logarithm = self.along == Along::LogSoftmax;
                        self.blocks(
                            x,
                            bytemuck::cast_slice_mut::<u8, $t>(out),
                            self.n,
                            |x, y, at| {
                                self.normalize(x, y, at, logarithm);
                            },
                        );
                    }
                    Along::LogSumExp => {
                        self.blocks(x, bytemuck::cast_slice_mut::<u8, $t>(out), 1, |x, y, at| {
                            let (shift, sum) = self.shifted_sum(x, at);
                            y[at] = shift + sum.ln();
                        })
                    }
                    _ => number!($t, |a, b| a + b),
                }
            }};
        }
        match view.dtype {
            DType::F32 => float!(f32),
            DType::F64 => float!(f64),
            DType::I32 => number!(i32, i32::wrapping_add),
            DType::I64 => number!(i64, i64::wrapping_add),
            DType::U32 => number!(u32, u32::wrapping_add),
            DType::U8 => number!(u8, u8::wrapping_add),
            DType::Bool => panic!("{:?} of truth values", self.along),
        }
    }

    /// Calls `f` with the operand's block, the result's block and the index of a lane in it, for every lane. A result has
    /// `n_out` elements along the axis.
    fn blocks<T: Sync, R: Send>(
        &self,
        x: &[T],
        y: &mut [R],
        n_out: usize,
        f: impl Fn(&[T], &mut [R], usize) + Sync,
    ) {
        let (from, to) = (self.n * self.inner, n_out * self.inner);
        if to == 0 || y.is_empty() {
            return;
        }
        let run = |first: usize, y: &mut [R]| {
            for (i, y) in y.chunks_exact_mut(to).enumerate() {
                let x = &x[(first + i) * from..][..from];
                (0..self.inner).for_each(|at| f(x, y, at));
            }
        };
        let n_blocks = y.len() / to;
        if x.len() < PARALLEL || n_blocks < 2 {
            return run(0, y);
        }
        let blocks = (PART / from.max(1)).max(1);
        y.par_chunks_mut(blocks * to)
            .enumerate()
            .for_each(|(i, y)| run(i * blocks, y));
    }

    /// The shift and the sum of the exponentials of shifted elements.
    fn shifted_sum<T: Exponential>(&self, x: &[T], at: usize) -> (T, T) {
        let lane = || x[at..].iter().step_by(self.inner).take(self.n).copied();
        let max = lane().fold(T::LOWEST, T::larger);
        // With an infinite largest element differences would be NaN; infinities then come out of the exponentials.
        let shift = if max.is_finite() { max } else { T::ZERO };
        (
            shift,
            lane().fold(T::ZERO, |sum, x| sum.plus(x.minus(shift).exp())),
        )
    }

    fn normalize<T: Exponential>(&self, x: &[T], y: &mut [T], at: usize, logarithm: bool) {
        if self.n == 0 {
            return;
        }
        if logarithm {
            let (shift, sum) = self.shifted_sum(x, at);
            let log = sum.ln();
            let lane = y[at..]
                .iter_mut()
                .step_by(self.inner)
                .zip(x[at..].iter().step_by(self.inner));
            lane.take(self.n)
                .for_each(|(y, &x)| *y = x.minus(shift).minus(log));
            return;
        }
        // Exponentials are computed once, and kept where the result goes.
        let max = x[at..]
            .iter()
            .step_by(self.inner)
            .take(self.n)
            .copied()
            .fold(T::LOWEST, T::larger);
        let shift = if max.is_finite() { max } else { T::ZERO };
        let mut sum = T::ZERO;
        let lane = y[at..]
            .iter_mut()
            .step_by(self.inner)
            .zip(x[at..].iter().step_by(self.inner));
        lane.take(self.n).for_each(|(y, &x)| {
            *y = x.minus(shift).exp();
            sum = sum.plus(*y);
        });
        y[at..]
            .iter_mut()
            .step_by(self.inner)
            .take(self.n)
            .for_each(|y| *y = y.over(sum));
    }

    fn cumsum<T: Copy + Default>(
        &self,
        x: &[T],
        y: &mut [T],
        at: usize,
        reverse: bool,
        add: impl Fn(T, T) -> T,
    ) {
        let mut sum = T::default();
        for i in 0..self.n {
            let at = at + self.inner * if reverse { self.n - 1 - i } else { i };
            sum = add(sum, x[at]);
            y[at] = sum;
        }
    }

    /// The index of the first element that no other one beats; that of the first `NaN` if there is one.
    fn first<T: Cell<Mem = T>>(&self, x: &[T], at: usize, beats: impl Fn(T, T) -> bool) -> i32 {
        let mut best = 0;
        let mut value = x[at];
        for i in 1..self.n {
            let x = x[at + i * self.inner];
            let is_nan = |x: T| x.partial_cmp(&x).is_none();
            if !is_nan(value) && (is_nan(x) || beats(x, value)) {
                (best, value) = (i, x);
            }
        }
        best as i32
    }
}

/// What softmax computes with.
trait Exponential: Copy {
    const LOWEST: Self;
    const ZERO: Self;
    fn larger(self, other: Self) -> Self;
    fn is_finite(self) -> bool;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}
macro_rules! exponential {
    ($($t:ident)*) => {$(
        impl Exponential for $t {
            const LOWEST: $t = $t::NEG_INFINITY;
            const ZERO: $t = 0.0;
            fn larger(self, other: $t) -> $t { super::elementwise::Real::larger(self, other) }
            fn is_finite(self) -> bool { $t::is_finite(self) }
            fn exp(self) -> $t { $t::exp(self) }
            fn ln(self) -> $t { $t::ln(self) }
            fn plus(self, other: $t) -> $t { self + other }
            fn minus(self, other: $t) -> $t { self - other }
            fn over(self, other: $t) -> $t { self / other }
        }
    )*};
}
exponential!(f32 f64);
