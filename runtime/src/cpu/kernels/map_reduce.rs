//! Fused reductions of elementwise chains.
//!
//! The chain is a [`Map`] without a result: its values are computed block by block and reduced
//! while they are in the L1 cache. A map without operations is a plain tensor.
//!
//! The elements of one result are contiguous if trailing axes are reduced, or one row apart if
//! leading axes are reduced. In both cases the work is divided into parts whose sizes depend only
//! on the shapes, and partial results are combined in a fixed order. Results do not depend on the
//! number of threads.

use super::elementwise::{BLOCK, Map, Traversal, with_scratch};
use super::reduce::{ReduceTask, Reduction, dispatch};
use crate::cpu::compile::TensorOperand;
use crate::cpu::element::CpuElement;
use crate::cpu::math::wide_for;
use crate::cpu::memory::Sources;
use crate::cpu::parallel;
use anabranch_dsl::DType;

/// Minimum number of elements for several threads. `PART` is the number per task, a multiple of
/// [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;
/// Number of interleaved partial results, which divides the size of a block.
const LANES: usize = 16;
/// Maximum number of results of rows that are accumulated in registers and on the stack.
const NARROW: usize = 512;
/// The number of columns per task of wide rows is a multiple of this.
const COLUMNS: usize = 512;

/// The memory layout of the elements of one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReducedLayout {
    /// `n` contiguous elements.
    Trailing { n: usize },
    /// `n` elements with stride `row`. The results are contiguous.
    Leading { n: usize, row: usize },
}

impl ReducedLayout {
    /// Returns the layout of a reduction over axes of a row-major tensor, or `None` if it is
    /// neither.
    pub(crate) fn of(shape: &[usize], axes: &[usize]) -> Option<ReducedLayout> {
        // Ignore axes of extent 1.
        let long = (0..shape.len()).filter(|&a| shape[a] != 1);
        let (reduced, kept): (Vec<usize>, Vec<usize>) = long.partition(|a| axes.contains(a));
        let extent = |axes: &[usize]| axes.iter().map(|&a| shape[a]).product::<usize>();
        let (Some(first), Some(last)) = (reduced.first(), reduced.last()) else {
            return Some(ReducedLayout::Trailing { n: 1 });
        };
        if kept.iter().all(|a| a < first) {
            return Some(ReducedLayout::Trailing { n: extent(&reduced) });
        }
        kept.iter().all(|a| a > last).then(|| ReducedLayout::Leading { n: extent(&reduced), row: extent(&kept) })
    }
}

/// A reduction of the values of a map.
#[derive(Clone, Debug)]
pub(crate) struct MapReduce {
    map: Map,
    reduction: Reduction,
    dtype: DType,
    layout: ReducedLayout,
}

/// The arguments of a run.
struct MapReduceRun<'a, 's> {
    kernel: &'a MapReduce,
    operands: &'a [TensorOperand],
    out: &'a mut [u8],
    sources: &'a Sources<'s>,
}

impl MapReduce {
    /// Creates a reduction of a map that cannot fail and whose values have type `dtype`.
    pub(crate) fn new(reduction: Reduction, map: Map, dtype: DType, layout: ReducedLayout) -> MapReduce {
        assert!(map.is_total(), "fused operations cannot fail");
        MapReduce { map, reduction, dtype, layout }
    }

    /// Returns the names of the fused operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.map.names()
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        dispatch(self.reduction, self.dtype, MapReduceRun { kernel: self, operands, out, sources });
    }
}

impl ReduceTask for MapReduceRun<'_, '_> {
    fn run<T: CpuElement>(self, start: T, f: impl Fn(T, T) -> T + Copy + Send + Sync) {
        let MapReduceRun { kernel, operands, out, sources } = self;
        let out: &mut [T::Mem] = bytemuck::cast_slice_mut(out);
        if out.is_empty() || kernel.map.n() == 0 {
            return out.fill(start.store());
        }
        let bytes_of = |i: usize| sources.bytes(operands[i].view().base);
        let fold = FoldState { map: &kernel.map, bytes_of: &bytes_of, base: 0, start, f };
        match kernel.layout {
            ReducedLayout::Trailing { n } => fold.trailing(n, out),
            ReducedLayout::Leading { n, row } if row <= NARROW => {
                let totals = fold.narrow(0, n, row);
                out.iter_mut().zip(totals).for_each(|(y, x)| *y = x.store());
            }
            ReducedLayout::Leading { n, row } => fold.wide_rows(n, row, out),
        }
    }
}

/// The shared state of all parts of a run.
struct FoldState<'a, 's, T, F> {
    map: &'a Map,
    bytes_of: &'a (dyn Fn(usize) -> &'s [u8] + Sync),
    /// The element at which local operands begin.
    base: usize,
    start: T,
    f: F,
}

/// A range of rows of a larger kernel.
pub(super) struct OfRows<'a, 's> {
    pub(super) bytes_of: &'a (dyn Fn(usize) -> &'s [u8] + Sync),
    /// The first row. `n` is the number of rows.
    pub(super) first: usize,
    pub(super) n: usize,
    /// The results of the rows, or the previous values of columns.
    pub(super) out: &'a mut [u8],
}

/// The reduction of a range of rows.
struct RunRows<'a, 's> {
    kernel: &'a MapReduce,
    rows: OfRows<'a, 's>,
}

impl ReduceTask for RunRows<'_, '_> {
    fn run<T: CpuElement>(self, start: T, f: impl Fn(T, T) -> T + Copy + Send + Sync) {
        let RunRows { kernel, rows: OfRows { bytes_of, first, n, out } } = self;
        let out: &mut [T::Mem] = bytemuck::cast_slice_mut(out);
        let fold = |width: usize| FoldState { map: &kernel.map, bytes_of, base: first * width, start, f };
        match kernel.layout {
            ReducedLayout::Trailing { n: width } => fold(width).rows(first * width, width, out),
            ReducedLayout::Leading { row, .. } => fold(row).add_columns(first, n, row, out),
        }
    }
}

/// The initialization of columns, and the combination of the columns of several chunks.
struct CombineColumns<'a> {
    out: &'a mut [u8],
    /// The contiguous chunks.
    chunks: &'a [u8],
}

impl ReduceTask for CombineColumns<'_> {
    fn run<T: CpuElement>(self, start: T, f: impl Fn(T, T) -> T + Copy + Send + Sync) {
        let out: &mut [T::Mem] = bytemuck::cast_slice_mut(self.out);
        out.fill(start.store());
        if self.chunks.is_empty() {
            return;
        }
        let chunks: &[T::Mem] = bytemuck::cast_slice(self.chunks);
        for chunk in chunks.chunks_exact(out.len()) {
            out.iter_mut().zip(chunk).for_each(|(y, &x)| *y = f(T::load(*y), T::load(x)).store());
        }
    }
}

impl MapReduce {
    /// Returns the same reduction as a stage over rows. Local operands contain only the rows being
    /// reduced.
    pub(super) fn over_rows(&self, operands: &[TensorOperand], local: &[bool]) -> MapReduce {
        let map = Map::over_rows(self.map.ops().to_vec(), operands, self.map.n(), local, None);
        MapReduce { map, ..self.clone() }
    }

    /// Returns the name of the reduction.
    pub(crate) fn name(&self) -> &'static str {
        self.reduction.name()
    }

    pub(crate) fn layout(&self) -> ReducedLayout {
        self.layout
    }

    /// Returns the number of operands that it reads. The others are only for error messages.
    pub(crate) fn n_read(&self) -> usize {
        self.map.n_operands()
    }

    /// Reduces each row to an element, or adds the rows to columns.
    pub(super) fn run_rows(&self, rows: OfRows<'_, '_>) {
        dispatch(self.reduction, self.dtype, RunRows { kernel: self, rows });
    }

    /// Initializes columns.
    pub(super) fn clear_columns(&self, out: &mut [u8]) {
        dispatch(self.reduction, self.dtype, CombineColumns { out, chunks: &[] });
    }

    /// Combines the columns of chunks, in order.
    pub(super) fn join_columns(&self, chunks: &[u8], out: &mut [u8]) {
        dispatch(self.reduction, self.dtype, CombineColumns { out, chunks });
    }
}

impl<T: CpuElement, F: Fn(T, T) -> T + Copy + Send + Sync> FoldState<'_, '_, T, F> {
    /// Calls `each` with the values of `n` elements from `first` on, in blocks of size `block`, or
    /// all at once if they are in memory.
    fn blocks(&self, first: usize, n: usize, block: usize, each: impl FnMut(&[T::Mem])) {
        with_scratch(|scratch| {
            let walk = self.map.begin(n, self.base, self.bytes_of, scratch);
            self.walk_blocks(&walk, first, n, block, scratch, each);
        });
    }

    fn walk_blocks(
        &self,
        walk: &Traversal<'_>,
        first: usize,
        n: usize,
        block: usize,
        scratch: &mut [u8],
        mut each: impl FnMut(&[T::Mem]),
    ) {
        if let Some(values) = self.map.all_values(walk, first, n) {
            return each(bytemuck::cast_slice(values));
        }
        let mut at = 0;
        while at < n {
            let len = block.min(n - at);
            each(self.values(walk, first + at, len, scratch));
            at += len;
        }
    }

    fn values<'b>(&self, walk: &Traversal<'b>, first: usize, n: usize, scratch: &'b mut [u8]) -> &'b [T::Mem] {
        let values = self.map.values(walk, first, n, scratch);
        bytemuck::cast_slice(values.unwrap_or_else(|_| panic!("fused operations cannot fail")))
    }

    /// Reduces each run of `n` contiguous elements.
    fn trailing(&self, n: usize, out: &mut [T::Mem]) {
        if n > PARALLEL {
            let rows = out.iter_mut().enumerate();
            return rows.for_each(|(i, y)| *y = self.tree(i * n, n).store());
        }
        if n * out.len() < PARALLEL {
            return self.rows(0, n, out);
        }
        let of_part = (PART / n).max(1);
        parallel::chunks(out, of_part, |(i, out)| self.rows(i * of_part * n, n, out));
    }

    /// Reduces many elements in parts, combined pairwise.
    fn tree(&self, first: usize, n: usize) -> T {
        if n <= PART {
            let mut total = [self.start.store()];
            self.rows(first, n, &mut total);
            return T::load(total[0]);
        }
        let cut = n.div_ceil(PART) / 2 * PART;
        let (a, b) = parallel::join(|| self.tree(first, cut), || self.tree(first + cut, n - cut));
        (self.f)(a, b)
    }

    /// Reduces rows of `n` elements, from element `first` on.
    fn rows(&self, first: usize, n: usize, out: &mut [T::Mem]) {
        let (start, f) = (self.start, self.f);
        // A per-row operand is a single element only in a block within that row.
        if n <= BLOCK && self.map.row() != Some(n) {
            // Blocks consist of whole rows.
            let block = BLOCK / n * n;
            let n_elements = n * out.len();
            let mut results = out.iter_mut();
            self.blocks(first, n_elements, block, |values| {
                wide_for::<T, _>(
                    #[inline(always)]
                    || {
                        for (row, y) in values.chunks_exact(n).zip(&mut results) {
                            let mut lanes = PartialSums::new(start);
                            lanes.add(row, f);
                            *y = lanes.total(start, f).store();
                        }
                    },
                );
            });
            return;
        }
        with_scratch(|scratch| {
            let walk = self.map.begin(n, self.base, self.bytes_of, scratch);
            for (i, y) in out.iter_mut().enumerate() {
                let mut lanes = PartialSums::new(start);
                self.walk_blocks(&walk, first + i * n, n, BLOCK, scratch, |values| {
                    wide_for::<T, _>(
                        #[inline(always)]
                        || lanes.add(values, f),
                    )
                });
                *y = lanes.total(start, f).store();
            }
        });
    }

    /// Reduces `n` rows of few columns, from row `first` on.
    fn narrow(&self, first: usize, n: usize, row: usize) -> [T; NARROW] {
        let (start, f) = (self.start, self.f);
        let of_part = PART / row;
        if n > of_part && n * row >= PARALLEL {
            let cut = n.div_ceil(of_part) / 2 * of_part;
            let (mut a, b) = parallel::join(|| self.narrow(first, cut, row), || self.narrow(first + cut, n - cut, row));
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, b));
            return a;
        }
        let mut totals = [start; NARROW];
        self.blocks(first * row, n * row, BLOCK / row * row, |values| {
            let totals = &mut totals[..row];
            wide_for::<T, _>(
                #[inline(always)]
                || {
                    for row in values.chunks_exact(totals.len()) {
                        totals.iter_mut().zip(row).for_each(|(total, &x)| *total = f(*total, T::load(x)));
                    }
                },
            );
        });
        totals
    }

    /// Reduces `n` rows of many columns.
    fn wide_rows(&self, n: usize, row: usize, out: &mut [T::Mem]) {
        let columns = if n * row < PARALLEL { row } else { (row / 4).next_multiple_of(COLUMNS) };
        if columns >= row {
            return self.columns(0, n, row, out);
        }
        parallel::chunks(out, columns, |(i, out)| self.columns(i * columns, n, row, out));
    }

    /// Reduces some columns of `n` rows.
    fn columns(&self, first: usize, n: usize, row: usize, out: &mut [T::Mem]) {
        out.fill(self.start.store());
        with_scratch(|scratch| {
            let walk = self.map.begin(BLOCK, self.base, self.bytes_of, scratch);
            for i in 0..n {
                self.add_row(&walk, i * row + first, out, scratch);
            }
        });
    }

    /// Adds a run of elements from `first` on to equally many results.
    fn add_row(&self, walk: &Traversal<'_>, first: usize, out: &mut [T::Mem], scratch: &mut [u8]) {
        let f = self.f;
        for (k, out) in out.chunks_mut(BLOCK).enumerate() {
            let values = self.values(walk, first + k * BLOCK, out.len(), scratch);
            wide_for::<T, _>(
                #[inline(always)]
                || out.iter_mut().zip(values).for_each(|(y, &x)| *y = f(T::load(*y), T::load(x)).store()),
            );
        }
    }

    /// Adds `n` rows from row `first` on to previous results.
    fn add_columns(&self, first: usize, n: usize, row: usize, out: &mut [T::Mem]) {
        let f = self.f;
        if row > NARROW {
            return with_scratch(|scratch| {
                let walk = self.map.begin(BLOCK, self.base, self.bytes_of, scratch);
                (first..first + n).for_each(|i| self.add_row(&walk, i * row, out, scratch));
            });
        }
        self.blocks(first * row, n * row, BLOCK / row * row, |values| {
            let out = &mut out[..row];
            wide_for::<T, _>(
                #[inline(always)]
                || {
                    for row in values.chunks_exact(out.len()) {
                        out.iter_mut().zip(row).for_each(|(y, &x)| *y = f(T::load(*y), T::load(x)).store());
                    }
                },
            );
        });
    }
}

/// The reduction of contiguous elements in interleaved lanes.
struct PartialSums<T: CpuElement> {
    lanes: [T; LANES],
    /// The elements after the last complete group.
    rest: [T; LANES],
    n_rest: usize,
}

impl<T: CpuElement> PartialSums<T> {
    #[inline(always)]
    fn new(start: T) -> PartialSums<T> {
        PartialSums { lanes: [start; LANES], rest: [start; LANES], n_rest: 0 }
    }

    /// Adds elements. Only the last call may pass an incomplete group.
    #[inline(always)]
    fn add(&mut self, values: &[T::Mem], f: impl Fn(T, T) -> T + Copy) {
        let (groups, rest) = values.as_chunks::<LANES>();
        let mut lanes = self.lanes;
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane = f(*lane, T::load(x));
            }
        }
        self.lanes = lanes;
        self.n_rest = rest.len();
        self.rest.iter_mut().zip(rest).for_each(|(to, &x)| *to = T::load(x));
    }

    #[inline(always)]
    fn total(self, start: T, f: impl Fn(T, T) -> T + Copy) -> T {
        let mut lanes = self.lanes;
        let mut n = LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] = f(lanes[i], lanes[i + n]);
            }
        }
        self.rest[..self.n_rest].iter().fold(f(start, lanes[0]), |a, &x| f(a, x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_told_by_the_axes_that_have_extents() {
        assert_eq!(ReducedLayout::of(&[4, 5], &[1]), Some(ReducedLayout::Trailing { n: 5 }));
        assert_eq!(ReducedLayout::of(&[4, 5], &[0]), Some(ReducedLayout::Leading { n: 4, row: 5 }));
        assert_eq!(ReducedLayout::of(&[4, 5, 6], &[0, 1, 2]), Some(ReducedLayout::Trailing { n: 120 }));
        assert_eq!(ReducedLayout::of(&[4, 5, 6], &[1]), None);
        assert_eq!(ReducedLayout::of(&[4, 5, 1], &[1]), Some(ReducedLayout::Trailing { n: 5 }));
        assert_eq!(ReducedLayout::of(&[1, 4, 5], &[1]), Some(ReducedLayout::Leading { n: 4, row: 5 }));
        assert_eq!(ReducedLayout::of(&[4, 1], &[1]), Some(ReducedLayout::Trailing { n: 1 }));
        assert_eq!(ReducedLayout::of(&[4, 0], &[1]), Some(ReducedLayout::Trailing { n: 0 }));
    }
}
