//! Reductions over axes.
//!
//! The axes are either kept or reduced. If the reduced elements are contiguous, or in
//! the general case, results are computed one after another, in 16 interleaved lanes. If the kept
//! elements are contiguous, a whole row of results is computed together. Results do not depend on
//! the number of threads.

use super::walk::{Axis, for_each, merged};
use crate::cpu::element::CpuElement;
use crate::cpu::memory::Sources;
use crate::cpu::memory::View;
use crate::cpu::multiversion::wide_for;
use crate::threads;
use anabranch_dsl::DType;
use anabranch_dsl::ops::{Combiner, Prim, prim};
use anabranch_dsl::scalars;

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

/// The combination of two elements.
trait Combine<T> {
    /// The identity.
    const START: T;
    fn combine(a: T, b: T) -> T;
}

struct Sum;
struct Prod;
struct Max;
struct Min;
struct All;
struct Any;

macro_rules! combine {
    ($($name:ident $t:ty: $start:expr, $f:expr;)*) => {$(
        impl Combine<$t> for $name {
            const START: $t = $start;
            #[inline(always)]
            fn combine(a: $t, b: $t) -> $t {
                ($f)(a, b)
            }
        }
    )*};
}
macro_rules! floats {
    ($($t:ident)*) => {$(combine! {
        Sum $t: 0.0, |a, b| a + b;
        Prod $t: 1.0, |a, b| a * b;
        Max $t: $t::NEG_INFINITY, scalars::Arithmetic::larger;
        Min $t: $t::INFINITY, scalars::Arithmetic::smaller;
    })*};
}
macro_rules! ints {
    ($($t:ident)*) => {$(combine! {
        Sum $t: 0, $t::wrapping_add;
        Prod $t: 1, $t::wrapping_mul;
        Max $t: $t::MIN, Ord::max;
        Min $t: $t::MAX, Ord::min;
    })*};
}
floats!(f32 f64);
ints!(i32 i64 u32 u8);
combine! {
    All bool: true, |a, b| a & b;
    Any bool: false, |a, b| a | b;
}

/// The loops of a reduction function for elements of one type.
///
/// All that depends on function and type is here, compiled once for each. Kernels are compiled once
/// for all of them, and call the loops for blocks of elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReduceLoops {
    /// The size of an element in bytes.
    pub(super) size: usize,
    /// Fills results with the identity.
    pub(super) clear: fn(&mut [u8]),
    /// Combines rows of as many elements as there are results with the results.
    pub(super) columns: fn(out: &mut [u8], rows: &[u8]),
    /// Reduces each run of `n` elements to a result.
    pub(super) rows: fn(out: &mut [u8], n: usize, values: &[u8]),
    /// Adds elements to partial results. Only the last call may pass an incomplete group.
    pub(super) add: fn(&mut PartialResults, &[u8]),
    /// Writes the result of all elements that were added to new partial results.
    pub(super) total: fn(&PartialResults, out: &mut [u8]),
    /// Combines elements along an axis with the results; see [`AxisLoop`].
    axis: fn(&AxisLoop<'_>, out: &mut [u8]),
}

/// The elements along an axis that are combined with results.
struct AxisLoop<'a> {
    /// All elements.
    data: &'a [u8],
    /// The offset of the first element of each row of results.
    starts: &'a [isize],
    /// An offset that is added to all of these.
    offset: isize,
    /// Number of contiguous results per row.
    row: usize,
    n: usize,
    stride: isize,
}

impl ReduceLoops {
    /// Returns the loops of a reduction for an element type.
    pub(super) fn of(reduction: Reduction, dtype: DType) -> ReduceLoops {
        macro_rules! numbers {
            ($t:ty) => {
                match reduction {
                    Reduction::Sum => ReduceLoops::new::<$t, Sum>(),
                    Reduction::Prod => ReduceLoops::new::<$t, Prod>(),
                    Reduction::Max => ReduceLoops::new::<$t, Max>(),
                    Reduction::Min => ReduceLoops::new::<$t, Min>(),
                    Reduction::All | Reduction::Any => panic!("a logical reduction of numbers"),
                }
            };
        }
        match dtype {
            DType::F32 => numbers!(f32),
            DType::F64 => numbers!(f64),
            DType::I32 => numbers!(i32),
            DType::I64 => numbers!(i64),
            DType::U32 => numbers!(u32),
            DType::U8 => numbers!(u8),
            // `passes::Widen` converts these to `f32`.
            DType::F16 | DType::BF16 | DType::Bytes => panic!("{reduction:?} of {dtype}"),
            DType::Bool => match reduction {
                Reduction::All => ReduceLoops::new::<bool, All>(),
                Reduction::Any => ReduceLoops::new::<bool, Any>(),
                other => panic!("{other:?} of truth values"),
            },
        }
    }

    fn new<T: CpuElement, F: Combine<T>>() -> ReduceLoops {
        ReduceLoops {
            size: size_of::<T::Mem>(),
            clear: |out| elements_mut::<T>(out).fill(F::START.store()),
            columns: columns::<T, F>,
            rows: rows::<T, F>,
            add: |partial, values| {
                wide_for::<T, _>(
                    #[inline(always)]
                    || {
                        let mut lanes = partial.load::<T>(F::START);
                        lanes.add::<F>(bytemuck::cast_slice(values));
                        partial.store(&lanes);
                    },
                );
            },
            total: |partial, out| elements_mut::<T>(out)[0] = partial.load::<T>(F::START).total::<F>().store(),
            axis: axis::<T, F>,
        }
    }
}

fn elements_mut<T: CpuElement>(bytes: &mut [u8]) -> &mut [T::Mem] {
    bytemuck::cast_slice_mut(bytes)
}

fn columns<T: CpuElement, F: Combine<T>>(out: &mut [u8], rows: &[u8]) {
    let (out, rows): (_, &[T::Mem]) = (elements_mut::<T>(out), bytemuck::cast_slice(rows));
    wide_for::<T, _>(
        #[inline(always)]
        || {
            for row in rows.chunks_exact(out.len()) {
                combine_row::<T, F>(out, row);
            }
        },
    );
}

/// Combines each result with an element.
#[inline(always)]
fn combine_row<T: CpuElement, F: Combine<T>>(out: &mut [T::Mem], row: &[T::Mem]) {
    out.iter_mut().zip(row).for_each(|(y, &x)| *y = F::combine(T::load(*y), T::load(x)).store());
}

/// The minimum number of elements of a row that is worth a call.
const LONG_ROW: usize = 4 * LANES;

/// The number of rows that are added at once. The additions of one row wait for each other.
const ROWS_AT_ONCE: usize = 4;

/// Reduces rows of `n` elements to their lanes.
#[inline(always)]
fn lanes_of_rows<T: CpuElement, F: Combine<T>>(rows: &[T::Mem], n: usize) -> [Lanes<T>; ROWS_AT_ONCE] {
    let row = |i: usize| rows[i * n..][..n].as_chunks::<LANES>();
    let groups: [&[[T::Mem; LANES]]; ROWS_AT_ONCE] = std::array::from_fn(|i| &row(i).0[..n / LANES]);
    let mut lanes = [[F::START; LANES]; ROWS_AT_ONCE];
    for k in 0..n / LANES {
        for (lanes, groups) in lanes.iter_mut().zip(&groups) {
            for (lane, &x) in lanes.iter_mut().zip(&groups[k]) {
                *lane = F::combine(*lane, T::load(x));
            }
        }
    }
    std::array::from_fn(|i| {
        let mut all = Lanes { lanes: lanes[i], rest: [F::START; LANES], n_rest: n % LANES };
        all.rest.iter_mut().zip(row(i).1).for_each(|(to, &x)| *to = T::load(x));
        all
    })
}

/// A function of its own, since next to the additions in it the compiler adds the elements of rows
/// in vectors of two.
#[inline(never)]
fn total_of_long<T: CpuElement, F: Combine<T>>(lanes: Lanes<T>) -> T {
    lanes.total::<F>()
}

fn rows<T: CpuElement, F: Combine<T>>(out: &mut [u8], n: usize, values: &[u8]) {
    let (out, values): (_, &[T::Mem]) = (elements_mut::<T>(out), bytemuck::cast_slice(values));
    wide_for::<T, _>(
        #[inline(always)]
        || {
            if n < LONG_ROW {
                for (row, y) in values.chunks_exact(n).zip(out) {
                    let mut lanes = Lanes::new(F::START);
                    lanes.add::<F>(row);
                    *y = lanes.total::<F>().store();
                }
                return;
            }
            let mut fours = values.chunks_exact(ROWS_AT_ONCE * n);
            let (out_of_fours, out) = out.split_at_mut(fours.len() * ROWS_AT_ONCE);
            for (rows, out) in (&mut fours).zip(out_of_fours.chunks_exact_mut(ROWS_AT_ONCE)) {
                let lanes = lanes_of_rows::<T, F>(rows, n);
                out.iter_mut().zip(lanes).for_each(|(y, lanes)| *y = total_of_long::<T, F>(lanes).store());
            }
            for (row, y) in fours.remainder().chunks_exact(n).zip(out) {
                let mut lanes = Lanes::new(F::START);
                lanes.add::<F>(row);
                *y = total_of_long::<T, F>(lanes).store();
            }
        },
    );
}

fn axis<T: CpuElement, F: Combine<T>>(elements: &AxisLoop<'_>, out: &mut [u8]) {
    let &AxisLoop { data, starts, offset, row, n, stride } = elements;
    let (out, data): (_, &[T::Mem]) = (elements_mut::<T>(out), bytemuck::cast_slice(data));
    wide_for::<T, _>(
        #[inline(always)]
        || {
            for (out, start) in out.chunks_exact_mut(row).zip(starts) {
                // Plain loops: closures that are not inlined would use only the baseline vectors.
                let mut at = start + offset;
                if row > 1 {
                    for _ in 0..n {
                        combine_row::<T, F>(out, &data[at as usize..]);
                        at += stride;
                    }
                    continue;
                }
                let mut total = T::load(out[0]);
                if stride == 1 {
                    total = F::combine(total, fold(&data[at as usize..][..n], F::START, F::combine));
                } else {
                    for _ in 0..n {
                        total = F::combine(total, T::load(data[at as usize]));
                        at += stride;
                    }
                }
                out[0] = total.store();
            }
        },
    );
}

/// The reduction of contiguous elements in interleaved lanes.
struct Lanes<T: CpuElement> {
    lanes: [T; LANES],
    /// The elements after the last complete group.
    rest: [T; LANES],
    n_rest: usize,
}

impl<T: CpuElement> Lanes<T> {
    #[inline(always)]
    fn new(start: T) -> Lanes<T> {
        Lanes { lanes: [start; LANES], rest: [start; LANES], n_rest: 0 }
    }

    /// Adds elements. Only the last call may pass an incomplete group.
    #[inline(always)]
    fn add<F: Combine<T>>(&mut self, values: &[T::Mem]) {
        let (groups, rest) = values.as_chunks::<LANES>();
        let mut lanes = self.lanes;
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane = F::combine(*lane, T::load(x));
            }
        }
        self.lanes = lanes;
        self.n_rest = rest.len();
        self.rest.iter_mut().zip(rest).for_each(|(to, &x)| *to = T::load(x));
    }

    #[inline(always)]
    fn total<F: Combine<T>>(self) -> T {
        let first = join_lanes(self.lanes, F::combine);
        self.rest[..self.n_rest].iter().fold(F::combine(F::START, first), |a, &x| F::combine(a, x))
    }
}

/// Combines lanes pairwise.
#[inline(always)]
fn join_lanes<T: Copy>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = f(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

/// The lanes of a reduction of any type, between two calls of [`ReduceLoops::add`].
#[derive(Default)]
pub(super) struct PartialResults {
    lanes: [u64; LANES],
    rest: [u64; LANES],
    n_rest: usize,
    has_elements: bool,
}

impl PartialResults {
    /// Returns the partial results with the bytes of all lanes.
    pub(super) fn of_lanes(bytes: &[u8]) -> PartialResults {
        let mut partial = PartialResults { has_elements: true, ..PartialResults::default() };
        bytemuck::cast_slice_mut(&mut partial.lanes)[..bytes.len()].copy_from_slice(bytes);
        partial
    }

    #[inline(always)]
    fn load<T: CpuElement>(&self, start: T) -> Lanes<T> {
        if !self.has_elements {
            return Lanes::new(start);
        }
        let of = |words: &[u64; LANES]| {
            let elements: &[T::Mem] = bytemuck::cast_slice(words);
            std::array::from_fn(|i| T::load(elements[i]))
        };
        Lanes { lanes: of(&self.lanes), rest: of(&self.rest), n_rest: self.n_rest }
    }

    #[inline(always)]
    fn store<T: CpuElement>(&mut self, lanes: &Lanes<T>) {
        let write = |words: &mut [u64; LANES], elements: &[T; LANES]| {
            let to: &mut [T::Mem] = bytemuck::cast_slice_mut(words);
            to.iter_mut().zip(elements).for_each(|(to, x)| *to = x.store());
        };
        write(&mut self.lanes, &lanes.lanes);
        write(&mut self.rest, &lanes.rest);
        (self.n_rest, self.has_elements) = (lanes.n_rest, true);
    }
}

/// A reduction of a strided tensor to a dense tensor.
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
pub(super) const LANES: usize = 16;

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
        if out.is_empty() {
            return;
        }
        let loops = ReduceLoops::of(self.reduction, self.dtype);
        let data = sources.bytes(view.base);
        let n_rows = out.len() / loops.size / self.row;
        let size: usize = self.reduced.iter().map(|a| a.n).product::<usize>() * n_rows * self.row;
        if size < PARALLEL || n_rows < 2 {
            return self.run_rows(&loops, data, 0, out);
        }
        // Tasks consist of whole rows and read about 2^15 elements.
        let rows = ((1 << 15) * n_rows / size).clamp(1, n_rows);
        threads::chunks(out, rows * self.row * loops.size, |(i, out)| self.run_rows(&loops, data, i * rows, out));
    }

    /// Computes rows of results, from row `first` on.
    fn run_rows(&self, loops: &ReduceLoops, data: &[u8], first: usize, out: &mut [u8]) {
        /// Maximum number of rows and of results that are computed together.
        const ROWS: usize = 64;
        const RESULTS: usize = 1 << 10;
        // A reduction over no axis combines the identity with one element.
        let (inner, outer) = match self.reduced.split_last() {
            Some((&Axis { n, strides: [stride] }, outer)) => ((n, stride), outer),
            None => ((1, 0), &[][..]),
        };
        let together = (RESULTS / self.row).clamp(1, ROWS);
        let mut starts = [0; ROWS];
        for (k, out) in out.chunks_mut(together * self.row * loops.size).enumerate() {
            let n_rows = out.len() / loops.size / self.row;
            let starts = &mut starts[..n_rows];
            starts.iter_mut().enumerate().for_each(|(i, at)| *at = self.start_of(first + k * together + i));
            (loops.clear)(out);
            for_each(outer, [0], &mut |[offset]| {
                let elements = AxisLoop { data, starts, offset, row: self.row, n: inner.0, stride: inner.1 };
                (loops.axis)(&elements, out);
            });
        }
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
        total = join_lanes(lanes, f);
    }
    rest.iter().fold(total, |a, &x| f(a, T::load(x)))
}
