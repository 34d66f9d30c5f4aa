//! Fused reductions of elementwise chains.
//!
//! The chain is a [`Map`] without a result: its values are computed block by block and reduced
//! while they are in the L1 cache. A map without operations is a plain tensor.
//!
//! The elements of one result are contiguous if trailing axes are reduced, or one row apart if
//! leading axes are reduced. In both cases the work is divided into parts whose sizes depend only
//! on the shapes, and partial results are combined in a fixed order. Results do not depend on the
//! number of threads.

use super::elementwise::{BLOCK, Map, MapOp, Traversal, with_scratch};
use super::reduce::{PartialResults, ReduceLoops, Reduction};
use crate::cpu::memory::Sources;
use crate::cpu::memory::TensorOperand;
use crate::threads;
use anabranch_dsl::DType;

/// Minimum number of elements for several threads. `PART` is the number per task, a multiple of
/// [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;
/// Maximum number of parts of one task. Those in memory are reduced side by side.
const PARTS_AT_ONCE: usize = 8;
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

    fn loops(&self) -> ReduceLoops {
        ReduceLoops::of(self.reduction, self.dtype)
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let loops = self.loops();
        if out.is_empty() || self.map.n() == 0 {
            return (loops.clear)(out);
        }
        let bytes_of = |i: usize| sources.bytes(operands[i].view().base);
        let fold = FoldState { map: &self.map, bytes_of: &bytes_of, base: 0, loops };
        match self.layout {
            ReducedLayout::Trailing { n } => fold.trailing(n, out),
            ReducedLayout::Leading { n, row } if row <= NARROW => fold.narrow(0, n, out),
            ReducedLayout::Leading { n, row } => fold.wide_rows(n, row, out),
        }
    }
}

/// The shared state of all parts of a run.
struct FoldState<'a, 's> {
    map: &'a Map,
    bytes_of: &'a (dyn Fn(usize) -> &'s [u8] + Sync),
    /// The element at which local operands begin.
    base: usize,
    loops: ReduceLoops,
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

impl MapReduce {
    /// Returns the same reduction as a stage over rows. Local operands contain only the rows being
    /// reduced.
    pub(super) fn over_rows(&self, operands: &[TensorOperand], local: &[bool]) -> MapReduce {
        let map = Map::over_rows(self.map.ops().to_vec(), operands, self.map.n(), local, None);
        MapReduce { map, ..self.clone() }
    }

    /// Returns the operations on each element before the reduction.
    pub(super) fn ops(&self) -> &[MapOp] {
        self.map.ops()
    }

    pub(super) fn reduction(&self) -> Reduction {
        self.reduction
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the function that yields a result from its lanes.
    pub(super) fn total(&self) -> fn(&PartialResults, &mut [u8]) {
        self.loops().total
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
        let OfRows { bytes_of, first, n, out } = rows;
        let fold = |width: usize| FoldState { map: &self.map, bytes_of, base: first * width, loops: self.loops() };
        match self.layout {
            ReducedLayout::Trailing { n: width } => fold(width).rows(first * width, width, out),
            ReducedLayout::Leading { row, .. } => fold(row).add_columns(first, n, row, out),
        }
    }

    /// Initializes columns.
    pub(super) fn clear_columns(&self, out: &mut [u8]) {
        (self.loops().clear)(out);
    }

    /// Combines the columns of chunks, in order.
    pub(super) fn join_columns(&self, chunks: &[u8], out: &mut [u8]) {
        let loops = self.loops();
        (loops.clear)(out);
        if !out.is_empty() {
            (loops.columns)(out, chunks);
        }
    }
}

impl FoldState<'_, '_> {
    /// Calls `each` with the values of `n` elements from `first` on, in blocks of size `block`, or
    /// all at once if they are in memory.
    fn blocks(&self, first: usize, n: usize, block: usize, each: &mut dyn FnMut(&[u8])) {
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
        each: &mut dyn FnMut(&[u8]),
    ) {
        if let Some(values) = self.map.all_values(walk, first, n) {
            return each(values);
        }
        let mut at = 0;
        while at < n {
            let len = block.min(n - at);
            each(self.values(walk, first + at, len, scratch));
            at += len;
        }
    }

    fn values<'b>(&self, walk: &Traversal<'b>, first: usize, n: usize, scratch: &'b mut [u8]) -> &'b [u8] {
        let values = self.map.values(walk, first, n, scratch);
        values.unwrap_or_else(|_| panic!("fused operations cannot fail"))
    }

    /// Returns the number of elements of a slice.
    fn len(&self, bytes: &[u8]) -> usize {
        bytes.len() / self.loops.size
    }

    /// Reduces each run of `n` contiguous elements.
    fn trailing(&self, n: usize, out: &mut [u8]) {
        let size = self.loops.size;
        if n > PARALLEL {
            return out.chunks_exact_mut(size).enumerate().for_each(|(i, y)| self.halves(i * n, n, y));
        }
        if n * self.len(out) < PARALLEL {
            return self.rows(0, n, out);
        }
        let of_part = (PART / n).max(1);
        threads::chunks(out, of_part * size, |(i, out)| self.rows(i * of_part * n, n, out));
    }

    /// Reduces many elements to one in parts, combined pairwise.
    fn tree(&self, first: usize, n: usize, out: &mut [u8]) {
        if n <= PART {
            return self.rows(first, n, out);
        }
        if n > PARTS_AT_ONCE * PART || !self.parts(first, n, out) {
            self.halves(first, n, out);
        }
    }

    /// Reduces the halves of more than one part in two tasks, and combines them.
    fn halves(&self, first: usize, n: usize, out: &mut [u8]) {
        let cut = n.div_ceil(PART) / 2 * PART;
        let mut last = 0u64;
        let other = &mut bytemuck::bytes_of_mut(&mut last)[..self.loops.size];
        threads::join(|| self.tree(first, cut, out), || self.tree(first + cut, n - cut, other));
        (self.loops.columns)(out, other);
    }

    /// Reduces a few parts that are in memory to one element. Returns false if they are not.
    fn parts(&self, first: usize, n: usize, out: &mut [u8]) -> bool {
        let loops = self.loops;
        let values = with_scratch(|scratch| {
            let walk = self.map.begin(n, self.base, self.bytes_of, scratch);
            self.map.all_values(&walk, first, n)
        });
        let Some(values) = values else { return false };
        let mut totals = [0u64; PARTS_AT_ONCE];
        let totals = &mut bytemuck::cast_slice_mut(&mut totals)[..n.div_ceil(PART) * loops.size];
        let (whole, rest) = values.split_at(n / PART * PART * loops.size);
        let (of_whole, of_rest) = totals.split_at_mut(n / PART * loops.size);
        (loops.rows)(of_whole, PART, whole);
        if !rest.is_empty() {
            (loops.rows)(of_rest, n % PART, rest);
        }
        self.join(totals);
        out.copy_from_slice(&totals[..loops.size]);
        true
    }

    /// Combines the results of parts pairwise into the first, like [`FoldState::tree`].
    fn join(&self, totals: &mut [u8]) {
        let n = self.len(totals);
        if n > 1 {
            let (left, right) = totals.split_at_mut(n / 2 * self.loops.size);
            self.join(left);
            self.join(right);
            (self.loops.columns)(&mut left[..self.loops.size], &right[..self.loops.size]);
        }
    }

    /// Reduces rows of `n` elements, from element `first` on.
    fn rows(&self, first: usize, n: usize, out: &mut [u8]) {
        let loops = self.loops;
        // A per-row operand is a single element only in a block within that row.
        if n <= BLOCK && self.map.row() != Some(n) {
            // Blocks consist of whole rows.
            let block = BLOCK / n * n;
            let n_elements = n * self.len(out);
            let mut rest = out;
            self.blocks(first, n_elements, block, &mut |values| {
                let n_rows = self.len(values) / n;
                let (out, others) = std::mem::take(&mut rest).split_at_mut(n_rows * loops.size);
                rest = others;
                (loops.rows)(out, n, values);
            });
            return;
        }
        with_scratch(|scratch| {
            let walk = self.map.begin(n, self.base, self.bytes_of, scratch);
            for (i, y) in out.chunks_exact_mut(loops.size).enumerate() {
                let mut partial = PartialResults::default();
                let add = &mut |values: &[u8]| (loops.add)(&mut partial, values);
                self.walk_blocks(&walk, first + i * n, n, BLOCK, scratch, add);
                (loops.total)(&partial, y);
            }
        });
    }

    /// Reduces `n` rows of few columns, from row `first` on.
    fn narrow(&self, first: usize, n: usize, out: &mut [u8]) {
        let row = self.len(out);
        let of_part = PART / row;
        if n > of_part && n * row >= PARALLEL {
            let cut = n.div_ceil(of_part) / 2 * of_part;
            let mut last = [0u64; NARROW];
            let other = &mut bytemuck::cast_slice_mut(&mut last)[..out.len()];
            threads::join(|| self.narrow(first, cut, out), || self.narrow(first + cut, n - cut, other));
            return (self.loops.columns)(out, other);
        }
        (self.loops.clear)(out);
        self.blocks(first * row, n * row, BLOCK / row * row, &mut |values| (self.loops.columns)(out, values));
    }

    /// Reduces `n` rows of many columns.
    fn wide_rows(&self, n: usize, row: usize, out: &mut [u8]) {
        let columns = if n * row < PARALLEL { row } else { (row / 4).next_multiple_of(COLUMNS) };
        if columns >= row {
            return self.columns(0, n, row, out);
        }
        threads::chunks(out, columns * self.loops.size, |(i, out)| self.columns(i * columns, n, row, out));
    }

    /// Reduces some columns of `n` rows.
    fn columns(&self, first: usize, n: usize, row: usize, out: &mut [u8]) {
        (self.loops.clear)(out);
        with_scratch(|scratch| {
            let walk = self.map.begin(BLOCK, self.base, self.bytes_of, scratch);
            for i in 0..n {
                self.add_row(&walk, i * row + first, out, scratch);
            }
        });
    }

    /// Adds a run of elements from `first` on to equally many results.
    fn add_row(&self, walk: &Traversal<'_>, first: usize, out: &mut [u8], scratch: &mut [u8]) {
        for (k, out) in out.chunks_mut(BLOCK * self.loops.size).enumerate() {
            let values = self.values(walk, first + k * BLOCK, self.len(out), scratch);
            (self.loops.columns)(out, values);
        }
    }

    /// Adds `n` rows from row `first` on to previous results.
    fn add_columns(&self, first: usize, n: usize, row: usize, out: &mut [u8]) {
        if row > NARROW {
            return with_scratch(|scratch| {
                let walk = self.map.begin(BLOCK, self.base, self.bytes_of, scratch);
                (first..first + n).for_each(|i| self.add_row(&walk, i * row, out, scratch));
            });
        }
        let out = &mut out[..row * self.loops.size];
        self.blocks(first * row, n * row, BLOCK / row * row, &mut |values| (self.loops.columns)(out, values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::{Base, BufferId, View};

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

    #[test]
    fn rows_and_parts_have_the_same_bits_side_by_side() {
        let x: Vec<f32> = (0..12 * PART + 99).map(|i| ((i * 7919) % 10_007) as f32 * 1e-3 - 4.0).collect();
        let loops = ReduceLoops::of(Reduction::Sum, DType::F32);
        let alone = |x: &[f32]| {
            let mut sum = [0.0f32];
            (loops.rows)(bytemuck::cast_slice_mut(&mut sum), x.len(), bytemuck::cast_slice(x));
            sum[0]
        };
        for n in [64, 65, 80, 1000] {
            let mut sums = [0.0f32; 11];
            (loops.rows)(bytemuck::cast_slice_mut(&mut sums), n, bytemuck::cast_slice(&x[..11 * n]));
            assert!(x.chunks(n).zip(sums).all(|(row, sum)| alone(row).to_bits() == sum.to_bits()), "rows of {n}");
        }

        fn pairwise(x: &[f32], alone: &impl Fn(&[f32]) -> f32) -> f32 {
            match x.len().div_ceil(PART) {
                1 => alone(x),
                parts => {
                    let (left, right) = x.split_at(parts / 2 * PART);
                    pairwise(left, alone) + pairwise(right, alone)
                }
            }
        }
        for n in [5 * PART, 8 * PART + 1, 7 * PART + 17, 12 * PART + 99] {
            let bytes: &[u8] = bytemuck::cast_slice(&x[..n]);
            let view = View::whole(Base::Buffer(BufferId(0)), DType::F32, vec![n]);
            let map = Map::without_result(Vec::new(), &[TensorOperand::View(view)], n);
            let mut sum = [0.0f32];
            let fold = FoldState { map: &map, bytes_of: &|_| bytes, base: 0, loops };
            fold.trailing(n, bytemuck::cast_slice_mut(&mut sum));
            assert_eq!(sum[0].to_bits(), pairwise(&x[..n], &alone).to_bits(), "{n} elements");
        }
    }
}
