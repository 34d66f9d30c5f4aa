//! Matmuls as parts of another kernel: on the calling thread, for any strides.
//!
//! A packed right matrix serves many matmuls. An unpacked matrix with contiguous rows is read in
//! place. For other matrices the transposed result is computed, with the left matrix packed: see
//! [`gemm`].

use super::gemm::{self, GemmBlock, Strides};
use crate::cpu::vector::{InstructionSet, Lane};
use std::cell::RefCell;
use std::ops::Range;

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    at: Strides,
}

impl<'a, T> Matrix<'a, T> {
    /// Creates a matrix whose first element is that of `data`.
    ///
    /// # Panics
    /// Panics if the matrix extends beyond `data`.
    pub(super) fn new(data: &'a [T], rows: usize, columns: usize, at: Strides) -> Matrix<'a, T> {
        let matrix = Matrix { data, rows, columns, at };
        assert!(
            matrix.end() <= data.len(),
            "a {rows}x{columns} matrix with strides {at:?} does not fit into {} elements",
            data.len()
        );
        matrix
    }

    /// Returns one past the index of the last element.
    fn end(&self) -> usize {
        match (self.rows, self.columns) {
            (0, _) | (_, 0) => 0,
            (rows, columns) => (rows - 1) * self.at.down + (columns - 1) * self.at.right + 1,
        }
    }

    /// Returns a range of rows.
    pub(super) fn rows(self, rows: &Range<usize>) -> Matrix<'a, T> {
        assert!(rows.end <= self.rows, "rows {rows:?} are out of bounds for {}", self.rows);
        let start = (rows.start * self.at.down).min(self.data.len());
        Matrix::new(&self.data[start..], rows.len(), self.columns, self.at)
    }

    pub(super) fn transposed(self) -> Matrix<'a, T> {
        Matrix { rows: self.columns, columns: self.rows, at: self.at.transposed(), ..self }
    }
}

/// The right matrix of a matmul.
#[derive(Clone, Copy)]
pub(super) enum RightMatrix<'a, T> {
    Unpacked(Matrix<'a, T>),
    /// The panels of a matrix with this many rows and columns, as [`gemm::pack`] creates them.
    Packed {
        panels: &'a [T],
        rows: usize,
        columns: usize,
    },
}

impl<'a, T: Lane> RightMatrix<'a, T> {
    /// Packs a matrix into `panels`, which has [`gemm::packed_len`] elements.
    pub(super) fn pack(level: InstructionSet, matrix: Matrix<'_, T>, panels: &'a mut [T]) -> RightMatrix<'a, T> {
        let (rows, columns) = (matrix.rows, matrix.columns);
        assert_eq!(panels.len(), gemm::packed_len::<T>(level, rows, columns), "panels of the wrong size");
        gemm::pack(level, matrix.data, matrix.at, rows, columns, 0, panels);
        RightMatrix::Packed { panels, rows, columns }
    }

    /// Returns a range of columns. In a packed matrix it starts and ends at multiples of the
    /// columns of a panel, or ends with the last column.
    pub(super) fn columns(self, level: InstructionSet, range: &Range<usize>) -> RightMatrix<'a, T> {
        match self {
            RightMatrix::Unpacked(matrix) => RightMatrix::Unpacked(matrix.transposed().rows(range).transposed()),
            RightMatrix::Packed { panels, rows, columns } => {
                let [_, wide, _] = level.tile::<T>();
                let is_cut = |column: usize| column.is_multiple_of(wide) || column == columns;
                assert!(
                    range.end <= columns && is_cut(range.start) && is_cut(range.end),
                    "columns {range:?} are out of bounds for {columns}"
                );
                let end = if range.end == columns { panels.len() } else { rows * range.end };
                RightMatrix::Packed { panels: &panels[rows * range.start..end], rows, columns: range.len() }
            }
        }
    }

    fn extents(&self) -> [usize; 2] {
        match *self {
            RightMatrix::Unpacked(matrix) => [matrix.rows, matrix.columns],
            RightMatrix::Packed { rows, columns, .. } => [rows, columns],
        }
    }
}

/// Writes `left * right` to the start of rows of `stride` elements in `to`, or adds it to their
/// content.
pub(super) fn product<T: Lane>(
    level: InstructionSet,
    (to, stride): (&mut [T], usize),
    left: Matrix<'_, T>,
    right: RightMatrix<'_, T>,
    adds: bool,
) {
    let (rows, inner, [right_rows, columns]) = (left.rows, left.columns, right.extents());
    assert_eq!(inner, right_rows, "the inner extents of a matmul differ");
    assert!(columns <= stride && rows * stride <= to.len(), "the rows of a matmul do not fit its result");
    let result = to.as_mut_ptr();
    let block = |right: *const T, right_at| GemmBlock {
        rows,
        columns,
        inner,
        left: left.data.as_ptr(),
        left_at: left.at,
        right,
        right_at,
        result,
        result_at: Strides { down: stride, right: 1 },
        adds,
        left_copy: None,
    };
    let right = match right {
        RightMatrix::Packed { panels, .. } => {
            // SAFETY: the left matrix is inside its data, as `Matrix::new` checks. The panels have
            // the length `packed_len`, as `RightMatrix` checks. The result is inside `to`, which
            // this call borrows.
            return unsafe { block(panels.as_ptr(), gemm::RightLayout::Packed).run(level) };
        }
        RightMatrix::Unpacked(right) => right,
    };
    if right.at.right == 1 {
        let at = gemm::RightLayout::Rows { apart: right.at.down };
        // SAFETY: as above; the right matrix is inside its data.
        return unsafe { block(right.data.as_ptr(), at).run(level) };
    }
    with_memory(gemm::packed_len::<T>(level, inner, rows), |panels| {
        gemm::pack(level, left.data, left.at.transposed(), inner, rows, 0, panels);
        let block = GemmBlock {
            rows: columns,
            columns: rows,
            left: right.data.as_ptr(),
            left_at: right.at.transposed(),
            result_at: Strides { down: 1, right: stride },
            ..block(panels.as_ptr(), gemm::RightLayout::Packed)
        };
        // SAFETY: as above.
        unsafe { block.run(level) };
    });
}

/// Calls `f` with memory that this thread keeps for later. Calls may be nested: a thread that waits
/// for others may run another part of a kernel.
pub(super) fn with_memory<T: Lane>(n: usize, f: impl FnOnce(&mut [T])) {
    thread_local! {
        static FREE: RefCell<Vec<Vec<f64>>> = const { RefCell::new(Vec::new()) };
    }
    let mut memory = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let words = (n * size_of::<T>()).div_ceil(size_of::<f64>());
    if memory.len() < words {
        memory.resize(words, 0.0);
    }
    f(&mut bytemuck::cast_slice_mut(&mut memory)[..n]);
    FREE.with_borrow_mut(|free| free.push(memory));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_major(data: &[f32], rows: usize, columns: usize) -> Matrix<'_, f32> {
        Matrix::new(data, rows, columns, Strides { down: columns, right: 1 })
    }

    #[test]
    fn products_agree_with_plain_loops_for_all_strides() {
        for [rows, inner, columns] in [[1, 1, 1], [3, 70, 5], [65, 300, 50], [4, 0, 3], [0, 2, 2], [2, 2, 0]] {
            let numbers = |n: usize| (0..n).map(|i| (i * 7919 % 13) as f32 - 6.0).collect::<Vec<_>>();
            let (a, b) = (numbers(rows * inner), numbers(inner * columns));
            // The same matrix, with contiguous rows or contiguous columns.
            let ways = |data: &[f32], rows: usize, columns: usize| {
                let transposed = (0..data.len()).map(|i| data[i % rows * columns + i / rows]).collect::<Vec<_>>();
                (data.to_vec(), transposed)
            };
            let ((a_rows, a_columns), (b_rows, b_columns)) = (ways(&a, rows, inner), ways(&b, inner, columns));
            let lefts = [row_major(&a_rows, rows, inner), row_major(&a_columns, inner, rows).transposed()];
            let rights = [row_major(&b_rows, inner, columns), row_major(&b_columns, columns, inner).transposed()];
            let element = |i: usize| -> f32 {
                (0..inner).map(|p| a[i / columns * inner + p] * b[p * columns + i % columns]).sum()
            };
            for level in InstructionSet::all() {
                for left in lefts {
                    let mut panels = vec![99.0; gemm::packed_len::<f32>(level, inner, columns)];
                    let packed = RightMatrix::pack(level, rights[0], &mut panels);
                    for right in rights.map(RightMatrix::Unpacked).into_iter().chain([packed]) {
                        for adds in [false, true] {
                            // Rows with a gap after each of them.
                            let stride = columns + 1;
                            let mut to = vec![1.0; rows * stride];
                            product(level, (&mut to, stride), left, right, adds);
                            let expected = (0..to.len()).map(|i| match (i / stride, i % stride) {
                                (_, column) if column == columns => 1.0,
                                (row, column) => element(row * columns + column) + f32::from(u8::from(adds)),
                            });
                            assert_eq!(to, expected.collect::<Vec<_>>(), "{level:?} {rows}x{inner}x{columns}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn columns_of_a_packed_matrix_are_those_of_the_matrix() {
        let (inner, columns) = (3, 100);
        let b = (0..inner * columns).map(|i| i as f32).collect::<Vec<_>>();
        let b = row_major(&b, inner, columns);
        let ones = [1.0; 3];
        for level in InstructionSet::all() {
            let mut panels = vec![0.0; gemm::packed_len::<f32>(level, inner, columns)];
            let packed = RightMatrix::pack(level, b, &mut panels);
            let [_, wide, _] = level.tile::<f32>();
            for range in [0..wide, wide..2 * wide, wide..columns, columns..columns] {
                let [mut got, mut expected] = [vec![0.0; range.len()], vec![0.0; range.len()]];
                for (to, right) in [(&mut got, packed), (&mut expected, RightMatrix::Unpacked(b))] {
                    product(level, (to, range.len()), row_major(&ones, 1, inner), right.columns(level, &range), false);
                }
                assert_eq!(got, expected, "{level:?} {range:?}");
            }
        }
    }
}
