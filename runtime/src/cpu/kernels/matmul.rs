//! Matrix products: faer's kernels for floats, plain loops for integers.
//!
//! Work is split over threads by matrices, then by rows or columns of the result, in parts whose sizes follow from the shapes only.

use super::walk::{Axis, merged};
use crate::cpu::element::Cell;
use crate::cpu::memory::Sources;
use crate::plan::{Operand, View};
use anabranch_dsl::DType;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

/// A product of matrices in the last two axes of two tensors of equal rank.
#[derive(Clone, Debug)]
pub(crate) struct Matmul {
    m: usize,
    k: usize,
    n: usize,
    /// The axes before the matrices, with strides of both operands.
    batch: Vec<Axis<2>>,
    a: Layout,
    b: Layout,
}

/// Where a matrix's rows and columns are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    /// Rows lie so far apart; their elements lie one behind the other.
    RowMajor { stride: usize },
    /// Columns lie so far apart; their elements lie one behind the other.
    ColumnMajor { stride: usize },
}

/// Multiplications from which on work is split over threads: into at least four parts, but none smaller than this.
const PARALLEL: usize = 1 << 20;
/// Multiplications of one part at most.
const PART: usize = 1 << 24;
/// Rows and columns of a part of one matrix are multiples of this.
const GRAIN: usize = 48;

/// The layout of the matrices in the last two axes of a view, if it is one that the kernels know.
pub(super) fn layout(view: &View) -> Option<Layout> {
    let rank = view.shape.len();
    let (rows, columns) = (view.shape[rank - 2], view.shape[rank - 1]);
    let (down, right) = (view.strides[rank - 2], view.strides[rank - 1]);
    let far = |stride: isize, n: usize| usize::try_from(stride).ok().filter(|&s| s >= n.max(1));
    if right == 1 || columns <= 1 {
        let stride = if rows <= 1 { Some(columns.max(1)) } else { far(down, columns) };
        if let Some(stride) = stride {
            return Some(Layout::RowMajor { stride });
        }
    }
    if down == 1 || rows <= 1 {
        let stride = if columns <= 1 { Some(rows.max(1)) } else { far(right, rows) };
        return stride.map(|stride| Layout::ColumnMajor { stride });
    }
    None
}

impl Matmul {
    /// Whether a view can be an operand as it is.
    pub(crate) fn takes(view: &View) -> bool {
        layout(view).is_some()
    }

    /// A product of views that [`takes`](Self::takes) allows.
    pub(crate) fn new(a: &View, b: &View) -> Matmul {
        let batch = a.shape.len() - 2;
        let (la, lb) = (layout(a).expect("checked before"), layout(b).expect("checked before"));
        Matmul {
            m: a.shape[batch],
            k: a.shape[batch + 1],
            n: b.shape[batch + 1],
            batch: merged(&a.shape[..batch], [&a.strides[..batch], &b.strides[..batch]]),
            a: la,
            b: lb,
        }
    }

    pub(crate) fn run(&self, operands: &[Operand], out: &mut [u8], sources: &Sources<'_>) {
        let (a, b) = (operands[0].view(), operands[1].view());
        match a.dtype {
            DType::F32 => self.run_as::<f32>(a, b, out, sources, Self::faer::<f32>),
            DType::F64 => self.run_as::<f64>(a, b, out, sources, Self::faer::<f64>),
            DType::I32 => self.run_as::<i32>(a, b, out, sources, |s, a, b, y| {
                s.loops(a, b, y, |sum: i32, x, w| sum.wrapping_add(x.wrapping_mul(w)));
            }),
            DType::I64 => self.run_as::<i64>(a, b, out, sources, |s, a, b, y| {
                s.loops(a, b, y, |sum: i64, x, w| sum.wrapping_add(x.wrapping_mul(w)));
            }),
            DType::U32 => self.run_as::<u32>(a, b, out, sources, |s, a, b, y| {
                s.loops(a, b, y, |sum: u32, x, w| sum.wrapping_add(x.wrapping_mul(w)));
            }),
            DType::U8 => self.run_as::<u8>(a, b, out, sources, |s, a, b, y| {
                s.loops(a, b, y, |sum: u8, x, w| sum.wrapping_add(x.wrapping_mul(w)));
            }),
            DType::F16 | DType::BF16 | DType::Bool => panic!("a product of {}", a.dtype),
        }
    }

    /// Calls `product(self, a, b, y)` for every matrix.
    fn run_as<T: Cell<Mem = T> + bytemuck::Pod>(
        &self,
        a: &View,
        b: &View,
        out: &mut [u8],
        sources: &Sources<'_>,
        product: impl Fn(&Self, &[T], &[T], &mut [T]) + Sync,
    ) {
        let y: &mut [T] = bytemuck::cast_slice_mut(out);
        let (x, w) = (sources.elements::<T>(a.base), sources.elements::<T>(b.base));
        let size = self.m * self.n;
        if size == 0 {
            return;
        }
        if self.k == 0 {
            return y.fill(T::default());
        }
        let start = [a.offset, b.offset];
        let one = |i: usize, y: &mut [T]| {
            let [at, bt] = self.start(i, start);
            product(self, &x[at..], &w[bt..], y);
        };
        let n = y.len() / size;
        let of_part = (PARALLEL / (size * self.k)).max(1);
        if n <= of_part {
            y.chunks_exact_mut(size).enumerate().for_each(|(i, y)| one(i, y));
        } else {
            let parts = y.par_chunks_mut(of_part * size).enumerate();
            parts.for_each(|(p, y)| y.chunks_exact_mut(size).enumerate().for_each(|(i, y)| one(p * of_part + i, y)));
        }
    }

    /// Where the operands of a matrix begin.
    fn start(&self, matrix: usize, mut start: [usize; 2]) -> [usize; 2] {
        let mut rest = matrix;
        for axis in self.batch.iter().rev() {
            let i = (rest % axis.n) as isize;
            rest /= axis.n;
            start = [0, 1].map(|k| start[k].wrapping_add_signed(i * axis.strides[k]));
        }
        start
    }

    fn faer<T: faer::traits::ComplexField + faer::traits::RealField>(&self, a: &[T], b: &[T], y: &mut [T]) {
        let a = matrix(a, self.m, self.k, self.a);
        let b = matrix(b, self.k, self.n, self.b);
        let part = (self.m * self.k * self.n / 4).clamp(PARALLEL, PART);
        product(a, b, MatMut::from_row_major_slice_mut(y, self.m, self.n), part);
    }

    fn loops<T: Copy + Default>(&self, a: &[T], b: &[T], y: &mut [T], f: impl Fn(T, T, T) -> T) {
        let at = |layout: Layout, row: usize, column: usize| match layout {
            Layout::RowMajor { stride } => row * stride + column,
            Layout::ColumnMajor { stride } => row + column * stride,
        };
        for (i, y) in y.chunks_exact_mut(self.n).enumerate() {
            y.fill(T::default());
            for p in 0..self.k {
                let x = a[at(self.a, i, p)];
                for (j, y) in y.iter_mut().enumerate() {
                    *y = f(*y, x, b[at(self.b, p, j)]);
                }
            }
        }
    }
}

/// A product, in parts of at most so many multiplications.
fn product<T>(a: MatRef<'_, T>, b: MatRef<'_, T>, y: MatMut<'_, T>, part: usize)
where
    T: faer::traits::ComplexField + faer::traits::RealField,
{
    let (m, k, n) = (y.nrows(), a.ncols(), y.ncols());
    let cut = |extent: usize| (extent / 2).next_multiple_of(GRAIN);
    if m * k * n <= part || m.max(n) <= GRAIN {
        matmul(y, Accum::Replace, a, b, T::one_impl(), Par::Seq);
    } else if m > n {
        let at = cut(m);
        let ((upper, lower), (y_upper, y_lower)) = (a.split_at_row(at), y.split_at_row_mut(at));
        rayon::join(|| product(upper, b, y_upper, part), || product(lower, b, y_lower, part));
    } else {
        let at = cut(n);
        let ((left, right), (y_left, y_right)) = (b.split_at_col(at), y.split_at_col_mut(at));
        rayon::join(|| product(a, left, y_left, part), || product(a, right, y_right, part));
    }
}

/// A matrix at the start of some data.
pub(super) fn matrix<T>(data: &[T], rows: usize, columns: usize, layout: Layout) -> MatRef<'_, T> {
    match layout {
        Layout::RowMajor { stride } => {
            let n = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
            MatRef::from_row_major_slice_with_stride(&data[..n], rows, columns, stride)
        }
        Layout::ColumnMajor { stride } => {
            let n = if columns == 0 { 0 } else { (columns - 1) * stride + rows };
            MatRef::from_column_major_slice_with_stride(&data[..n], rows, columns, stride)
        }
    }
}
