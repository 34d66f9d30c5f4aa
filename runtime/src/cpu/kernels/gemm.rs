//! Matrix multiplication of floats, in tiles whose sums stay in registers.
//!
//! A matmul `left * right` divides the result into *blocks*, the inner extent into *slabs*, and
//! both into *tiles* of a few rows by a few vectors of columns. The right matrix is *packed* into
//! *panels* as wide as a tile, each stored row by row and padded with zeros. A tile thus reads it
//! sequentially, and a slab of a panel stays in the L1 cache for all tiles of a block. Packing the
//! whole matrix does not pay off for few rows: a slab of some panels is copied before it is used,
//! or, for very few rows, read in place. The left matrix may have any strides.
//!
//! The result may be stored transposed: `(left * right)^T = right^T * left^T`, so either operand of
//! a matmul can be packed.
//!
//! An element of the result is the sum of its slab sums, in order, and the slabs depend only on the
//! inner extent. Results therefore do not depend on blocks, tiles or the number of threads.

use std::mem::MaybeUninit;

use crate::cpu::vector::{InstructionSet, LINE, Lane, Task, Vector};
use crate::threads::stop;

/// Maximum inner extent of one tile.
pub(super) const SLAB: usize = 256;
/// Columns of the widest panel of all instruction sets. `MOST_ROWS` is the maximum number of rows
/// of a tile.
const WIDEST: usize = 64;
const MOST_ROWS: usize = 8;
/// The number of tiles below each other up to which they read rows of the right matrix in place.
/// For more of them, panels are copied: the rows are often a power of two apart, and then take each
/// other's place in the caches, and each is in another page. Wide panels are not copied if their
/// rows are near each other.
const IN_PLACE: usize = 2;
/// The columns of the widest panel that is always copied, and the bytes between rows from which on
/// wider ones are.
const NARROW: usize = 16;
const FAR_IN_BYTES: usize = 1536;
/// Number of rows of the right matrix between prefetch and copy, and the bytes between rows from
/// which on they are prefetched: each is then in another page, so the processor does not foresee
/// them.
const COPIED_AHEAD: usize = 12;
const PAGE: usize = 4096;
/// The number of lines up to which a tile prefetches its share of the next panel before it begins.
const LINES_AT_ONCE: usize = 16;

/// The strides of a matrix between rows (`down`) and between columns (`right`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Strides {
    pub(super) down: usize,
    pub(super) right: usize,
}

impl Strides {
    /// Returns the strides of the transposed matrix.
    pub(super) fn transposed(self) -> Strides {
        Strides { down: self.right, right: self.down }
    }
}

/// The layout of the right matrix.
#[derive(Clone, Copy, Debug)]
pub(super) enum RightLayout {
    /// Panels, as created by [`pack`].
    Packed,
    /// Contiguous rows with stride `apart`.
    Rows { apart: usize },
}

/// A block of a matmul: `rows x columns` elements of the result, with the whole inner extent.
#[derive(Clone, Copy)]
pub(super) struct GemmBlock<T> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    /// The first element of the left matrix.
    pub(super) left: *const T,
    pub(super) left_at: Strides,
    /// The first element of the first panel. Blocks begin at panel boundaries.
    pub(super) right: *const T,
    pub(super) right_at: RightLayout,
    /// The first element of the result.
    pub(super) result: *mut T,
    pub(super) result_at: Strides,
    /// Whether the product is added to the result.
    pub(super) adds: bool,
    /// Memory for a copy of a slab of the left matrix, tile by tile: `rows * SLAB` elements.
    pub(super) left_copy: Option<*mut T>,
}

/// Returns whether a block of many rows copies the panels of a right matrix that is not packed, and
/// whose rows are `apart` elements apart.
pub(super) fn copies_panels<T: Lane>(level: InstructionSet, apart: usize) -> bool {
    is_copied::<T>(level.tile::<T>()[1], apart)
}

/// Returns whether panels of `wide` columns are copied.
#[inline(always)]
fn is_copied<T>(wide: usize, apart: usize) -> bool {
    wide <= NARROW || apart * size_of::<T>() >= FAR_IN_BYTES
}

/// Returns the number of elements of a packed matrix.
pub(super) fn packed_len<T: Lane>(level: InstructionSet, inner: usize, columns: usize) -> usize {
    let [_, wide, lanes] = level.tile::<T>();
    inner * (columns / wide * wide + (columns % wide).next_multiple_of(lanes))
}

/// Packs the panels of a matrix of `inner` rows, from panel `first` on, into the memory `to` of
/// these panels.
pub(super) fn pack<T: Lane>(
    level: InstructionSet,
    from: &[T],
    at: Strides,
    inner: usize,
    columns: usize,
    first: usize,
    to: &mut [T],
) {
    let [_, wide, lanes] = level.tile::<T>();
    let mut column = first * wide;
    let mut rest = to;
    if at.right == 1 && inner > 0 {
        // Write all full panels together, so that rows are read sequentially.
        let full = (rest.len() / (wide * inner)).min((columns - column) / wide);
        let (panels, others) = rest.split_at_mut(full * wide * inner);
        rest = others;
        for p in 0..inner {
            let row = &from[p * at.down + column..][..full * wide];
            for (panel, row) in panels.chunks_exact_mut(wide * inner).zip(row.chunks_exact(wide)) {
                // Avoids the overhead of `memcpy` calls.
                let to = &mut panel[p * wide..][..wide];
                let (to, row) = (to.as_chunks_mut::<4>().0, row.as_chunks::<4>().0);
                to.iter_mut().zip(row).for_each(|(to, row)| *to = *row);
            }
        }
        column += full * wide;
    }
    while !rest.is_empty() {
        let n = wide.min(columns - column);
        let stride = if n == wide { wide } else { n.next_multiple_of(lanes) };
        let (panel, others) = rest.split_at_mut(stride * inner);
        rest = others;
        if at.right == 1 {
            for (p, row) in panel.chunks_exact_mut(stride).enumerate() {
                let start = p * at.down + column;
                row[..n].copy_from_slice(&from[start..start + n]);
                row[n..].fill(T::default());
            }
        } else {
            // Columns are contiguous: transpose in squares that stay in the L1 cache.
            for (s, rows) in panel.chunks_mut(stride * 16).enumerate() {
                let height = rows.len() / stride;
                for j in 0..n {
                    let start = (column + j) * at.right + s * 16 * at.down;
                    if at.down == 1 {
                        for (p, &x) in from[start..start + height].iter().enumerate() {
                            rows[p * stride + j] = x;
                        }
                    } else {
                        (0..height).for_each(|p| rows[p * stride + j] = from[start + p * at.down]);
                    }
                }
                if n < stride {
                    rows.chunks_exact_mut(stride).for_each(|row| row[n..].fill(T::default()));
                }
            }
        }
        column += n;
    }
}

impl<T: Lane> GemmBlock<T> {
    /// Computes the block, unless the step is to stop.
    ///
    /// # Safety
    /// The operands of the block must be readable. Its part of the result must be writable and not
    /// accessed concurrently.
    pub(super) unsafe fn run(self, level: InstructionSet) {
        level.run(self);
    }
}

impl<T: Lane> Task<T> for GemmBlock<T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self) {
        if self.rows == 0 || self.columns == 0 {
            return;
        }
        // SAFETY: as for `Block::run`. The processor supports the instructions of `V`.
        unsafe {
            let wide = V::N * VECTORS;
            let slabs = self.inner.div_ceil(SLAB).max(1);
            let slab = self.inner.div_ceil(slabs);
            let reads_in_place = match self.right_at {
                RightLayout::Rows { apart } => !is_copied::<T>(wide, apart) || self.rows <= IN_PLACE * ROWS,
                RightLayout::Packed => true,
            };
            let mut copy = [MaybeUninit::<T>::uninit(); SLAB * WIDEST];
            for s in 0..slabs {
                if stop::is_set() {
                    return;
                }
                let start = s * slab;
                let depth = slab.min(self.inner - start);
                let adds = self.adds || s > 0;
                let left = self.left.add(start * self.left_at.right);
                if let Some(to) = self.left_copy {
                    let mut row = 0;
                    while row < self.rows {
                        let n = height::<ROWS>(self.rows - row);
                        copy_left(left.add(row * self.left_at.down), self.left_at, n, depth, to.add(row * depth));
                        row += n;
                    }
                }
                let mut first_column = 0;
                if let (1, RightLayout::Rows { apart }, 1) = (self.rows, self.right_at, self.result_at.right) {
                    let right = self.right.add(start * apart);
                    while first_column + 8 * V::N <= self.columns {
                        let (right, result) = (right.add(first_column), self.result.add(first_column));
                        row::<V>(depth, (left, self.left_at.right), (right, apart), result, adds);
                        first_column += 8 * V::N;
                    }
                }
                for column in (first_column..self.columns).step_by(wide) {
                    let n = wide.min(self.columns - column);
                    let (right, step) = match self.right_at {
                        RightLayout::Packed => {
                            let stride = if n == wide { wide } else { n.next_multiple_of(V::N) };
                            (self.right.add(column * self.inner + start * stride), stride)
                        }
                        RightLayout::Rows { apart } if n == wide && reads_in_place => {
                            (self.right.add(start * apart + column), apart)
                        }
                        RightLayout::Rows { apart } => {
                            // Several panels are copied at once, so that more of each row is read.
                            let i = match reads_in_place {
                                true => 0,
                                false => (column - first_column) / wide % (WIDEST / wide),
                            };
                            let to = copy.as_mut_ptr().cast::<T>();
                            if i == 0 {
                                let columns = (WIDEST / wide * wide).min(self.columns - column);
                                let from = self.right.add(start * apart + column);
                                copy_panels::<V, VECTORS>((from, apart), depth, columns, to);
                            }
                            (to.add(i * depth * wide).cast_const(), wide)
                        }
                    };
                    // Each tile prefetches its share of the next panel.
                    let share = (depth * step * size_of::<T>()).div_ceil(LINE * self.rows.div_ceil(ROWS));
                    let next_lines = if matches!(self.right_at, RightLayout::Packed) { share } else { 0 };
                    let mut row = 0;
                    while row < self.rows {
                        let n_rows = height::<ROWS>(self.rows - row);
                        let (left, left_at) = match self.left_copy {
                            Some(copy) => (copy.add(row * depth).cast_const(), Strides { down: 1, right: n_rows }),
                            None => (left.add(row * self.left_at.down), self.left_at),
                        };
                        let tile = Tile {
                            depth,
                            left,
                            left_at,
                            right,
                            step,
                            result: self.result.add(row * self.result_at.down + column * self.result_at.right),
                            result_at: self.result_at,
                            columns: n,
                            adds,
                            next: right.wrapping_add(self.inner * step + row * depth / self.rows * step),
                            next_lines,
                        };
                        if n_rows == ROWS {
                            tile.rows_of::<V, ROWS, VECTORS>();
                        } else if const { ROWS > 4 } && n_rows == 4 {
                            tile.rows_of::<V, 4, VECTORS>();
                        } else if const { ROWS > 2 } && n_rows == 2 {
                            tile.rows_of::<V, 2, VECTORS>();
                        } else {
                            tile.rows_of::<V, 1, VECTORS>();
                        }
                        row += n_rows;
                    }
                }
            }
        }
    }
}

/// Copies a slab of some panels of the right matrix, one panel after the other.
///
/// # Safety
/// The elements must be readable, and `to` must have room for them. The processor must support the
/// instructions of `V`.
#[inline(always)]
unsafe fn copy_panels<V: Vector, const VECTORS: usize>(
    (from, apart): (*const V::T, usize),
    depth: usize,
    columns: usize,
    to: *mut V::T,
) {
    let wide = V::N * VECTORS;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for p in 0..depth {
            let row = from.add(p * apart);
            if apart * size_of::<V::T>() >= PAGE {
                for column in (0..columns).step_by(LINE / size_of::<V::T>()) {
                    V::prefetch(row.wrapping_add(COPIED_AHEAD * apart + column));
                }
            }
            for column in (0..columns).step_by(wide) {
                let (from, to) = (row.add(column), to.add(column * depth + p * wide));
                let n = wide.min(columns - column);
                if n == wide {
                    (0..VECTORS).for_each(|c| V::load(from.add(c * V::N)).store(to.add(c * V::N)));
                } else {
                    std::ptr::copy_nonoverlapping(from, to, n);
                    (n..wide).for_each(|c| to.add(c).write(V::T::default()));
                }
            }
        }
    }
}

/// Computes eight vectors of a slab of one row. The right matrix is read only once, so it is
/// prefetched well in advance.
///
/// # Safety
/// See [`GemmBlock::run`]. The processor must support the instructions of `V`.
#[inline(always)]
unsafe fn row<V: Vector>(
    depth: usize,
    (left, right_of_left): (*const V::T, usize),
    (right, step): (*const V::T, usize),
    result: *mut V::T,
    adds: bool,
) {
    /// Number of rows between prefetch and read.
    const AHEAD: usize = 12;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [V::splat(V::T::default()); 8];
        for p in 0..depth {
            let x = V::splat(*left.add(p * right_of_left));
            let panel = right.add(p * step);
            for line in 0..8 * V::N * size_of::<V::T>() / LINE {
                V::prefetch(panel.wrapping_add(AHEAD * step + line * LINE / size_of::<V::T>()));
            }
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = x.mul_add(V::load(panel.add(c * V::N)), *sum);
            }
        }
        for (c, sum) in sums.into_iter().enumerate() {
            let to = result.add(c * V::N);
            if adds { V::load(to).add(sum).store(to) } else { sum.store(to) }
        }
    }
}

/// Returns the number of rows of the next tile.
#[inline(always)]
fn height<const ROWS: usize>(left: usize) -> usize {
    match left {
        // Not six and two: two rows have too few sums to hide the latency of additions.
        8 if const { ROWS == 6 } => 4,
        n if n >= ROWS => ROWS,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Copies a slab of a tile of the left matrix, column by column.
///
/// # Safety
/// The elements must be readable, and equally many writable at `to`.
#[inline(always)]
unsafe fn copy_left<T: Copy>(from: *const T, at: Strides, rows: usize, depth: usize, to: *mut T) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if at.down == 1 {
            for p in 0..depth {
                (0..rows).for_each(|r| *to.add(p * rows + r) = *from.add(p * at.right + r));
            }
            return;
        }
        for r in 0..rows {
            (0..depth).for_each(|p| *to.add(p * rows + r) = *from.add(r * at.down + p * at.right));
        }
    }
}

/// A tile of a slab.
#[derive(Clone, Copy)]
struct Tile<T> {
    depth: usize,
    left: *const T,
    left_at: Strides,
    right: *const T,
    /// The stride between rows of the panel.
    step: usize,
    result: *mut T,
    result_at: Strides,
    columns: usize,
    adds: bool,
    /// The address to prefetch. `next_lines` is the number of cache lines.
    next: *const T,
    next_lines: usize,
}

impl<T: Lane> Tile<T> {
    /// Computes `ROWS` rows, with as many vectors as the columns require.
    #[inline(always)]
    unsafe fn rows_of<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self) {
        // SAFETY: as for `Block::run`.
        unsafe {
            if self.columns > V::N * (VECTORS - 1) {
                self.compute::<V, ROWS, VECTORS>();
            } else if const { VECTORS > 2 } && self.columns > V::N {
                self.compute::<V, ROWS, 2>();
            } else {
                self.compute::<V, ROWS, 1>();
            }
        }
    }

    /// Adds the products of one column of the left matrix and one row of the panel.
    #[inline(always)]
    unsafe fn add_products<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(
        &self,
        sums: &mut [[V; VECTORS]; ROWS],
        rows: &[*const T; ROWS],
        at: &mut usize,
        right: &mut *const T,
    ) {
        // SAFETY: as for `Block::run`.
        unsafe {
            let panel: [V; VECTORS] = std::array::from_fn(|c| V::load(right.add(c * V::N)));
            for (row, sums) in rows.iter().zip(sums) {
                let x = V::splat(*row.add(*at));
                for (sum, &w) in sums.iter_mut().zip(&panel) {
                    *sum = x.mul_add(w, *sum);
                }
            }
            *at += self.left_at.right;
            *right = right.add(self.step);
        }
    }

    #[inline(always)]
    unsafe fn compute<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self) {
        // SAFETY: as for `Block::run`.
        unsafe {
            let mut sums = [[V::splat(T::default()); VECTORS]; ROWS];
            // Separate row pointers with a shared offset avoid a dependency chain of pointer
            // increments.
            let rows: [*const T; ROWS] = std::array::from_fn(|r| self.left.add(r * self.left_at.down));
            let (mut at, mut right) = (0, self.right);
            for r in 0..ROWS {
                V::prefetch(self.result.wrapping_add(r * self.result_at.down));
            }
            // Many prefetches at once would wait for each other, and the tile for them.
            let lines_of_step = const { (VECTORS * V::N * size_of::<T>()).div_ceil(LINE) };
            let n_prefetching = match self.next_lines <= LINES_AT_ONCE {
                true => 0,
                false => self.next_lines.div_ceil(lines_of_step).min(self.depth),
            };
            if n_prefetching == 0 {
                for line in 0..self.next_lines {
                    V::prefetch(self.next.wrapping_add(line * LINE / size_of::<T>()));
                }
            }
            for step in 0..n_prefetching {
                for line in 0..lines_of_step {
                    V::prefetch(self.next.wrapping_add((step * lines_of_step + line) * LINE / size_of::<T>()));
                }
                self.add_products(&mut sums, &rows, &mut at, &mut right);
            }
            for _ in n_prefetching..self.depth {
                self.add_products(&mut sums, &rows, &mut at, &mut right);
            }
            if self.result_at.right == 1 && self.columns == V::N * VECTORS {
                for (r, sums) in sums.into_iter().enumerate() {
                    for (c, sum) in sums.into_iter().enumerate() {
                        let to = self.result.add(r * self.result_at.down + c * V::N);
                        if self.adds { V::load(to).add(sum).store(to) } else { sum.store(to) }
                    }
                }
                return;
            }
            let mut out = [T::default(); MOST_ROWS * WIDEST];
            for (r, sums) in sums.into_iter().enumerate() {
                for (c, sum) in sums.into_iter().enumerate() {
                    sum.store(out.as_mut_ptr().add(r * WIDEST + c * V::N));
                }
            }
            for c in 0..self.columns {
                for r in 0..ROWS {
                    let to = self.result.add(r * self.result_at.down + c * self.result_at.right);
                    let x = out[r * WIDEST + c];
                    *to = if self.adds { *to + x } else { x };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns small integers, for which every order of summation is exact.
    fn numbers<T: Lane + From<i8>>(n: usize) -> Vec<T> {
        (0..n).map(|i| T::from((i * 7919 % 13) as i8 - 6)).collect()
    }

    /// Compares every instruction set with plain loops, for all layouts of operands and result.
    fn levels_agree<T: Lane + From<i8> + std::fmt::Debug>() {
        for [rows, inner, columns] in
            [[1, 3, 1], [1, 260, 270], [7, 300, 49], [23, 17, 130], [27, 300, 150], [20, 10, 400], [6, 0, 16]]
        {
            let (a, b) = (numbers::<T>(rows * inner), numbers::<T>(inner * columns));
            let mut expected = vec![T::default(); rows * columns];
            for i in 0..rows * columns {
                expected[i] = (0..inner)
                    .fold(T::default(), |sum, p| sum + a[i / columns * inner + p] * b[p * columns + i % columns]);
            }
            for level in InstructionSet::all() {
                let mut panels = vec![T::from(99); packed_len::<T>(level, inner, columns)];
                pack(level, &b, Strides { down: columns, right: 1 }, inner, columns, 0, &mut panels);
                let mut copy = vec![T::from(99); rows * SLAB];
                let rows_at = RightLayout::Rows { apart: columns };
                let sources =
                    [(&panels, RightLayout::Packed, false), (&b, rows_at, false), (&panels, RightLayout::Packed, true)];
                for (right, right_at, copies) in sources {
                    for result_at in [Strides { down: columns, right: 1 }, Strides { down: 1, right: rows }] {
                        for adds in [false, true] {
                            let mut result = vec![T::from(1); rows * columns];
                            let block = GemmBlock {
                                rows,
                                columns,
                                inner,
                                left: a.as_ptr(),
                                left_at: Strides { down: inner, right: 1 },
                                right: right.as_ptr(),
                                right_at,
                                result: result.as_mut_ptr(),
                                result_at,
                                adds,
                                left_copy: copies.then_some(copy.as_mut_ptr()),
                            };
                            // SAFETY: the matrices are as large as the block requires.
                            unsafe { block.run(level) };
                            for (i, &expected) in expected.iter().enumerate() {
                                let at = i / columns * result_at.down + i % columns * result_at.right;
                                let more = T::from(i8::from(adds));
                                assert_eq!(result[at], expected + more, "{level:?} {right_at:?} {result_at:?}");
                            }
                        }
                    }
                }
                // A column-major matrix has the same panels.
                let mut columns_first = vec![T::default(); inner * columns];
                (0..inner * columns).for_each(|i| columns_first[i % columns * inner + i / columns] = b[i]);
                let mut same = vec![T::from(98); panels.len()];
                pack(level, &columns_first, Strides { down: 1, right: inner }, inner, columns, 0, &mut same);
                assert_eq!(same, panels);
            }
        }
    }

    #[test]
    fn levels_agree_for_f32() {
        levels_agree::<f32>();
    }

    #[test]
    fn levels_agree_for_f64() {
        levels_agree::<f64>();
    }
}
