//! Reductions over axes.
//!
//! The axes are divided into kept and reduced ones. If the reduced elements are contiguous, or in
//! the general case, results are computed one after another, in 16 interleaved lanes. If the kept
//! elements are contiguous, a whole row of results is computed together. Results do not depend on
//! the number of threads.

use super::walk::{Axis, for_each, merged};
use crate::cpu::compile::View;
use crate::cpu::element::CpuElement;
use crate::cpu::math::{Real, wide_for};
use crate::cpu::memory::Sources;
use crate::cpu::parallel;
use anabranch_dsl::DType;
use anabranch_dsl::ops::{Combiner, Prim, prim};

/// The reduction function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    All,
    Any,
}

impl Reduction {
    /// Returns the name of the operation.
    pub(crate) fn name(self) -> &'static str {
        let op = match self {
            Reduction::Sum => prim::SUM,
            Reduction::Prod => prim::PROD,
            Reduction::Max => prim::MAX,
            Reduction::Min => prim::MIN,
            Reduction::All => prim::ALL,
            Reduction::Any => prim::ANY,
        };
        op.def().name
    }

    /// Returns the reduction function of an operation, or `None` for other operations.
    pub(crate) fn of(op: Prim) -> Option<Reduction> {
        op.reduces_by().map(|combiner| match combiner {
            Combiner::Sum => Reduction::Sum,
            Combiner::Product => Reduction::Prod,
            Combiner::Max => Reduction::Max,
            Combiner::Min => Reduction::Min,
            Combiner::And => Reduction::All,
            Combiner::Or => Reduction::Any,
        })
    }
}

/// A computation generic over element type and reduction function.
pub(super) trait ReduceTask {
    /// Runs the reduction with the combining function `f` and its identity `start`.
    fn run<T: CpuElement>(self, start: T, f: impl Fn(T, T) -> T + Copy + Send + Sync);
}

/// Runs `code` with the function of a reduction for an element type.
pub(super) fn dispatch(reduction: Reduction, dtype: DType, code: impl ReduceTask) {
    macro_rules! float {
        ($t:ty) => {
            match reduction {
                Reduction::Sum => code.run::<$t>(0.0, |a, b| a + b),
                Reduction::Prod => code.run::<$t>(1.0, |a, b| a * b),
                Reduction::Max => code.run::<$t>(<$t>::NEG_INFINITY, Real::larger),
                Reduction::Min => code.run::<$t>(<$t>::INFINITY, Real::smaller),
                Reduction::All | Reduction::Any => panic!("a logical reduction of numbers"),
            }
        };
    }
    macro_rules! int {
        ($t:ty) => {
            match reduction {
                Reduction::Sum => code.run::<$t>(0, <$t>::wrapping_add),
                Reduction::Prod => code.run::<$t>(1, <$t>::wrapping_mul),
                Reduction::Max => code.run::<$t>(<$t>::MIN, Ord::max),
                Reduction::Min => code.run::<$t>(<$t>::MAX, Ord::min),
                Reduction::All | Reduction::Any => panic!("a logical reduction of numbers"),
            }
        };
    }
    match dtype {
        DType::F32 => float!(f32),
        DType::F64 => float!(f64),
        DType::I32 => int!(i32),
        DType::I64 => int!(i64),
        DType::U32 => int!(u32),
        DType::U8 => int!(u8),
        // `passes::Widen` converts these to `f32`.
        DType::F16 | DType::BF16 => panic!("{reduction:?} of {dtype}"),
        DType::Bool => match reduction {
            Reduction::All => code.run::<bool>(true, |a, b| a & b),
            Reduction::Any => code.run::<bool>(false, |a, b| a | b),
            other => panic!("{other:?} of truth values"),
        },
    }
}

/// The arguments of a run.
struct ReduceRun<'a, 's> {
    kernel: &'a Reduce,
    view: &'a View,
    out: &'a mut [u8],
    sources: &'a Sources<'s>,
}

impl ReduceTask for ReduceRun<'_, '_> {
    fn run<T: CpuElement>(self, start: T, f: impl Fn(T, T) -> T + Copy + Send + Sync) {
        self.kernel.run_as::<T>(self.view, self.out, self.sources, start, f);
    }
}

/// A reduction of a strided tensor to a dense one.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    reduction: Reduction,
    dtype: DType,
    offset: usize,
    /// The kept axes, without the row.
    kept: Vec<Axis<1>>,
    /// The extent of the last kept axis if it is computed as a row, otherwise 1.
    row: usize,
    reduced: Vec<Axis<1>>,
}

/// Minimum number of elements for several threads.
const PARALLEL: usize = 1 << 17;
/// Number of interleaved partial results.
const LANES: usize = 16;

impl Reduce {
    pub(crate) fn new(reduction: Reduction, view: &View, axes: &[usize]) -> Reduce {
        let pick = |reduce: bool| {
            let of = (0..view.shape.len()).filter(|a| axes.contains(a) == reduce);
            let (shape, strides): (Vec<usize>, Vec<isize>) = of.map(|a| (view.shape[a], view.strides[a])).unzip();
            merged(&shape, [&strides])
        };
        let (mut kept, reduced) = (pick(false), pick(true));
        let inner = reduced.last().map_or(0, |a| a.strides[0].unsigned_abs());
        let row = match kept.last() {
            Some(&Axis { n, strides: [1] }) if n > 1 && inner != 1 => {
                kept.pop();
                n
            }
            _ => 1,
        };
        Reduce { reduction, dtype: view.dtype, offset: view.offset, kept, row, reduced }
    }

    pub(crate) fn run(&self, view: &View, out: &mut [u8], sources: &Sources<'_>) {
        dispatch(self.reduction, self.dtype, ReduceRun { kernel: self, view, out, sources });
    }

    fn run_as<T: CpuElement>(
        &self,
        view: &View,
        out: &mut [u8],
        sources: &Sources<'_>,
        start: T,
        f: impl Fn(T, T) -> T + Copy + Send + Sync,
    ) {
        let out: &mut [T::Mem] = bytemuck::cast_slice_mut(out);
        let data = sources.elements::<T>(view.base);
        if out.is_empty() {
            return;
        }
        let size: usize = self.reduced.iter().map(|a| a.n).product::<usize>() * out.len();
        let kernel = |first: usize, out: &mut [T::Mem]| {
            wide_for::<T, _>(
                #[inline(always)]
                || {
                    for (i, out) in out.chunks_exact_mut(self.row).enumerate() {
                        self.one(self.start_of(first + i), out, data, start, f);
                    }
                },
            );
        };
        let n_rows = out.len() / self.row;
        if size < PARALLEL || n_rows < 2 {
            return kernel(0, out);
        }
        // Tasks consist of whole rows and read about 2^15 elements.
        let rows = ((1 << 15) * n_rows / size).clamp(1, n_rows);
        parallel::chunks(out, rows * self.row, |(i, out)| kernel(i * rows, out));
    }

    /// Returns the offset of the elements of the `i`-th row of results.
    fn start_of(&self, mut i: usize) -> isize {
        let mut at = self.offset as isize;
        for axis in self.kept.iter().rev() {
            at += (i % axis.n) as isize * axis.strides[0];
            i /= axis.n;
        }
        at
    }

    /// Computes one row of results from the elements at offset `at`.
    #[inline(always)]
    fn one<T: CpuElement>(
        &self,
        at: isize,
        out: &mut [T::Mem],
        data: &[T::Mem],
        start: T,
        f: impl Fn(T, T) -> T + Copy,
    ) {
        if self.row > 1 {
            out.fill(start.store());
            for_each(&self.reduced, [at], &mut |[at]| {
                for (y, &x) in out.iter_mut().zip(&data[at as usize..]) {
                    *y = f(T::load(*y), T::load(x)).store();
                }
            });
            return;
        }
        let mut total = start;
        match self.reduced.split_last() {
            None => total = f(total, T::load(data[at as usize])),
            Some((Axis { n, strides: [1] }, outer)) => for_each(outer, [at], &mut |[at]| {
                total = f(total, fold(&data[at as usize..at as usize + n], start, f));
            }),
            Some(_) => for_each(&self.reduced, [at], &mut |[at]| total = f(total, T::load(data[at as usize]))),
        }
        out[0] = total.store();
    }
}

/// Reduces contiguous elements.
#[inline(always)]
pub(super) fn fold<T: CpuElement>(data: &[T::Mem], start: T, f: impl Fn(T, T) -> T + Copy) -> T {
    let (chunks, rest) = data.as_chunks::<LANES>();
    let mut total = start;
    if !chunks.is_empty() {
        let mut lanes = [start; LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = f(*lane, T::load(x));
            }
        }
        let mut n = LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] = f(lanes[i], lanes[i + n]);
            }
        }
        total = lanes[0];
    }
    rest.iter().fold(total, |a, &x| f(a, T::load(x)))
}
