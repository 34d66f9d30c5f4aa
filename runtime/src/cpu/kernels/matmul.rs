//! Matmuls: tiles for floats ([`gemm`]), plain loops for integers.
//!
//! One operand may be *packed*: a separate instruction ([`Pack`]) arranges it in the order in which
//! the tiles read it, before the loop if the operand is loop-invariant. The shapes and layouts
//! decide which one:
//!
//! | operands | packed |
//! |---|---|
//! | the right one is loop-invariant | the right one, before the loop |
//! | some hundred rows or fewer; the right one is row-major | none: it is read block by block |
//! | few rows; the right one is column-major | the left one, and the result is computed transposed |
//! | others | the right one |
//!
//! Elementwise operations may run on each block of the result while it is in cache, or the matmul
//! may be added to the existing content of the result. Work is split over threads by matrices and
//! blocks, neither of which changes a result: see [`gemm`].

use super::epilogue::Epilogue;
use super::gemm::{self, GemmBlock, RightLayout, SLAB, Strides};
use super::walk::{Axis, merged};
use crate::cpu::element::CpuElement;
use crate::cpu::memory::Sources;
use crate::cpu::memory::{TensorOperand, View, row_major};
use crate::cpu::vector::{InstructionSet, Lane};
use crate::threads;
use anabranch_dsl::DType;
use std::cell::RefCell;

/// A matmul over the last two axes of two tensors of equal rank.
#[derive(Clone, Debug)]
pub(crate) struct Matmul {
    m: usize,
    k: usize,
    n: usize,
    /// The axes before the matrices, with the strides of both operands as the kernel reads them.
    batch: Vec<Axis<2>>,
    /// The strides of the operands that are not packed.
    at: [Strides; 2],
    /// The operand that is packed.
    packed: Option<ProductSide>,
    level: InstructionSet,
    /// The rows and columns of a block.
    block: [usize; 2],
    epilogue: Option<Epilogue>,
    /// Whether the matmul is added to the last operand, which may be stored in the result's place.
    has_addend: bool,
    /// Whether that operand is stored in the result's place.
    adds: bool,
}

/// One of the two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductSide {
    Left,
    Right,
}

/// The layout of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) enum MatrixLayout {
    /// Each row is contiguous, at this stride from the previous row.
    RowMajor { stride: usize },
    /// Each column is contiguous, at this stride from the previous column.
    ColumnMajor { stride: usize },
}

/// The number of multiplications from which on work is split over threads, and the minimum of a
/// part.
const PARALLEL: usize = 1 << 20;
/// The number of multiplications that take as long as reading an element that is not in the caches
/// of a core.
const MULTIPLICATIONS_PER_READ: usize = 4;
/// The parts of a matmul for each thread: more than one, since threads do not start at the same
/// time.
const PARTS: usize = 4;
/// The maximum rows and columns of a block. Its slab of the left matrix and its part of the result
/// then stay in the second-level cache.
const ROWS: usize = 144;
const COLUMNS: usize = 528;
/// For enough parts, blocks are halved along an axis, 0 for rows and 1 for columns, as long as they
/// are longer than this. The cuts come in this order: large blocks read each panel and each row of
/// the left matrix for many tiles.
const CUTS: [(usize, usize); 5] = [(1, 288), (0, 48), (1, 96), (0, 24), (1, 48)];
/// The cuts of a matmul that copies panels for each block: fewer rows would copy them more often.
const CUTS_OF_COPIES: [(usize, usize); 5] = [(1, 288), (1, 96), (0, 48), (1, 48), (0, 24)];
/// The number of rows up to which a right matrix that is read once is not packed, for a row-major
/// and for a column-major one. Parts of a row-major one are then copied for each block of rows,
/// which for more rows takes as long as packing it once.
const FEW_ROWS: usize = 384;
const FEW_ROWS_OF_COLUMNS: usize = 64;
/// The number of columns up to which a loop-invariant left matrix is packed before the loop.
const FEW_COLUMNS: usize = 24;
/// The stride from which on elements are copied for tiles, if at least this many columns use them.
const FAR: usize = 512;
const MANY: usize = 256;

/// Returns the layout of the matrices in the last two axes of a view, or `None` if the kernels do
/// not support it.
pub(super) fn layout(view: &View) -> Option<MatrixLayout> {
    let rank = view.shape.len();
    let (rows, columns) = (view.shape[rank - 2], view.shape[rank - 1]);
    let (down, right) = (view.strides[rank - 2], view.strides[rank - 1]);
    let far = |stride: isize, n: usize| usize::try_from(stride).ok().filter(|&s| s >= n.max(1));
    if right == 1 || columns <= 1 {
        let stride = if rows <= 1 { Some(columns.max(1)) } else { far(down, columns) };
        if let Some(stride) = stride {
            return Some(MatrixLayout::RowMajor { stride });
        }
    }
    if down == 1 || rows <= 1 {
        let stride = if columns <= 1 { Some(rows.max(1)) } else { far(right, rows) };
        return stride.map(|stride| MatrixLayout::ColumnMajor { stride });
    }
    None
}

impl MatrixLayout {
    pub(super) fn strides(self) -> Strides {
        match self {
            MatrixLayout::RowMajor { stride } => Strides { down: stride, right: 1 },
            MatrixLayout::ColumnMajor { stride } => Strides { down: 1, right: stride },
        }
    }
}

impl Matmul {
    /// Returns whether a view can be an operand without a copy.
    pub(crate) fn takes(view: &View) -> bool {
        layout(view).is_some()
    }

    /// Creates a matmul of views that [`takes`](Self::takes) accepts. If all left matrices are
    /// multiplied by the same right one, their rows form one matrix, and the views become matrices.
    pub(crate) fn merged(a: &mut View, b: &mut View, out: &View, kept: [bool; 2]) -> Matmul {
        let batch = a.shape.len() - 2;
        let is_one = b.shape[..batch].iter().zip(&b.strides).all(|(&n, &stride)| n == 1 || stride == 0);
        let [m, k, n] = [a.shape[batch], a.shape[batch + 1], b.shape[batch + 1]];
        if batch > 0 && is_one && out.size() > 0 {
            let rows = a.reshape(&[out.size() / n, k]).filter(|rows| m == 1 || rows.strides[0] == a.strides[batch]);
            if let Some(rows) = rows.filter(Matmul::takes) {
                *a = rows;
                *b = View { shape: vec![k, n], strides: b.strides[batch..].to_vec(), ..b.clone() };
            }
        }
        Matmul::new(a, b, kept)
    }

    /// Creates a matmul of views that [`takes`](Self::takes) accepts. `kept` says which of them are
    /// loop-invariant.
    pub(crate) fn new(a: &View, b: &View, kept: [bool; 2]) -> Matmul {
        let batch = a.shape.len() - 2;
        let [m, k, n] = [a.shape[batch], a.shape[batch + 1], b.shape[batch + 1]];
        let layouts = [a, b].map(|view| layout(view).expect("the layout was checked before"));
        let in_rows = matches!(layouts[1], MatrixLayout::RowMajor { .. });
        let packed = match (a.dtype, kept) {
            (DType::F32 | DType::F64, [_, true]) => Some(ProductSide::Right),
            (DType::F32 | DType::F64, [true, false]) if n <= FEW_COLUMNS => Some(ProductSide::Left),
            (DType::F32 | DType::F64, _) => match in_rows {
                true if m <= FEW_ROWS => None,
                false if m <= FEW_ROWS_OF_COLUMNS => Some(ProductSide::Left),
                _ => Some(ProductSide::Right),
            },
            _ => None,
        };
        let mut product = Matmul {
            m,
            k,
            n,
            batch: Vec::new(),
            at: layouts.map(MatrixLayout::strides),
            packed,
            level: InstructionSet::best(),
            block: [m, n],
            epilogue: None,
            has_addend: false,
            adds: false,
        };
        let strides = [(a, ProductSide::Left), (b, ProductSide::Right)].map(|(view, side)| {
            if packed != Some(side) {
                return view.strides[..batch].to_vec();
            }
            // Packed matrices are contiguous, and a broadcast matrix is stored once.
            let mut strides = row_major(&distinct(view).map(|(n, _)| n).collect::<Vec<_>>());
            let len = product.pack(view).matrix_len() as isize;
            strides.iter_mut().zip(&view.strides).for_each(|(s, &of_view)| *s *= if of_view == 0 { 0 } else { len });
            strides
        });
        product.batch = merged(&a.shape[..batch], [&strides[0], &strides[1]]);
        product.block = product.blocks(a.dtype, a.shape[..batch].iter().product());
        product
    }

    /// Returns the matmul with an epilogue, whose operands other than the matmul follow those of
    /// the operation.
    pub(crate) fn with_epilogue(self, epilogue: Epilogue) -> Matmul {
        let has_addend = epilogue.is_sum();
        Matmul { epilogue: Some(epilogue), has_addend, ..self }
    }

    /// Returns the operand that the matmul is added to. That operand may be stored in the result's
    /// place.
    pub(crate) fn addend<'a>(&self, operands: &'a [TensorOperand]) -> Option<&'a View> {
        self.has_addend.then(|| operands[2].view())
    }

    /// Returns the matmul after its operands or its result were moved.
    pub(crate) fn placed(&self, operands: &[TensorOperand], out: &View) -> Matmul {
        let adds = self.addend(operands).is_some_and(|view| view.same_places(out));
        Matmul { adds, ..self.clone() }
    }

    /// Returns the work of one matrix in multiplications. With few rows or columns, reading the
    /// operands takes longer than multiplying.
    fn work_of_matrix(&self) -> usize {
        let read = (self.m * self.k).saturating_add(self.k * self.n);
        (self.m * self.k).saturating_mul(self.n).max(read.saturating_mul(MULTIPLICATIONS_PER_READ))
    }

    /// Returns the names of the operations of the epilogue.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.epilogue.iter().flat_map(Epilogue::names)
    }

    /// Returns the index of the operand that has to be packed, and how. The kernel reads the packed
    /// matrix in its place.
    pub(crate) fn packed(&self, operands: [&View; 2]) -> Option<(usize, Pack)> {
        let index = self.packed? as usize;
        Some((index, self.pack(operands[index])))
    }

    fn pack(&self, view: &View) -> Pack {
        let side = self.packed.expect("an operand is packed");
        let (columns, at) = match side {
            ProductSide::Left => (self.m, self.at[0].transposed()),
            ProductSide::Right => (self.n, self.at[1]),
        };
        let (shape, strides): (Vec<usize>, Vec<isize>) = distinct(view).unzip();
        let batch = merged(&shape, [&strides]);
        Pack { inner: self.k, columns, at, batch, level: self.level, dtype: view.dtype }
    }

    /// Returns the rows and columns that the tiles compute: those of the result or its transpose.
    fn extents(&self) -> [usize; 2] {
        match self.packed {
            Some(ProductSide::Left) => [self.n, self.m],
            _ => [self.m, self.n],
        }
    }

    /// Returns the rows and columns of a block, for this number of matrices. They are multiples of
    /// those of a tile, and as even as that allows, since threads compute equally many blocks.
    fn blocks(&self, dtype: DType, matrices: usize) -> [usize; 2] {
        let extents = self.extents();
        let ([rows, columns, _], copies) = match dtype {
            DType::F64 => (self.level.tile::<f64>(), gemm::copies_panels::<f64>(self.level)),
            _ => (self.level.tile::<f32>(), gemm::copies_panels::<f32>(self.level)),
        };
        let even =
            |n: usize, most: usize, tile: usize| n.div_ceil(n.div_ceil(most).max(1)).max(1).next_multiple_of(tile);
        let mut block = [even(extents[0], ROWS, rows), even(extents[1], COLUMNS, columns)];
        // Blocks change no result, so their number may depend on the number of threads.
        let parts = (PARTS * threads::n_threads()).div_ceil(matrices.max(1));
        let wanted = (self.work_of_matrix() / PARALLEL).min(parts);
        let count = |block: [usize; 2]| extents[0].div_ceil(block[0]) * extents[1].div_ceil(block[1]);
        let cuts = if self.packed.is_none() && copies { CUTS_OF_COPIES } else { CUTS };
        while count(block) < wanted {
            let Some((axis, _)) = cuts.into_iter().find(|&(axis, least)| block[axis] > least && extents[axis] > least)
            else {
                break;
            };
            block[axis] = (block[axis].min(extents[axis]) / 2).next_multiple_of([rows, columns][axis]);
        }
        block
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let (a, b) = (operands[0].view(), operands[1].view());
        match a.dtype {
            DType::F32 => self.tiles::<f32>(operands, out, sources),
            DType::F64 => self.tiles::<f64>(operands, out, sources),
            DType::I32 => self.loops::<i32>(a, b, out, sources, |sum, x, w| sum.wrapping_add(x.wrapping_mul(w))),
            DType::I64 => self.loops::<i64>(a, b, out, sources, |sum, x, w| sum.wrapping_add(x.wrapping_mul(w))),
            DType::U32 => self.loops::<u32>(a, b, out, sources, |sum, x, w| sum.wrapping_add(x.wrapping_mul(w))),
            DType::U8 => self.loops::<u8>(a, b, out, sources, |sum, x, w| sum.wrapping_add(x.wrapping_mul(w))),
            other => panic!("a product of {other}"),
        }
    }

    /// Returns the offsets of the operands of a matrix.
    fn start(&self, matrix: usize, mut start: [usize; 2]) -> [usize; 2] {
        let mut rest = matrix;
        for axis in self.batch.iter().rev() {
            let i = (rest % axis.n) as isize;
            rest /= axis.n;
            start = [0, 1].map(|k| start[k].wrapping_add_signed(i * axis.strides[k]));
        }
        start
    }

    /// Returns one past the index of the last element that is read of an operand.
    fn end(&self, operand: usize, start: usize) -> usize {
        if self.k == 0 {
            return 0;
        }
        let forward = |axis: &Axis<2>| (axis.n - 1) * axis.strides[operand].max(0) as usize;
        let matrix = match self.packed {
            Some(side) if side as usize == operand => self.k * self.extents()[1],
            _ => {
                let [rows, columns] = [[self.m, self.k], [self.k, self.n]][operand];
                (rows - 1) * self.at[operand].down + (columns - 1) * self.at[operand].right + 1
            }
        };
        start + self.batch.iter().map(forward).sum::<usize>() + matrix
    }

    fn tiles<T: Lane + CpuElement<Mem = T>>(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let y: &mut [T] = bytemuck::cast_slice_mut(out);
        let size = self.m * self.n;
        if y.is_empty() {
            return;
        }
        let views = [operands[0].view(), operands[1].view()];
        let data = views.map(|view| sources.elements::<T>(view.base));
        for i in 0..2 {
            assert!(self.end(i, views[i].offset) <= data[i].len(), "operand {i} is read where it is not");
        }
        let matrices = y.len() / size;
        let [rows, columns] = self.extents();
        let counts = [rows.div_ceil(self.block[0]), columns.div_ceil(self.block[1])];
        let n_blocks = counts[0] * counts[1];
        let all = MatmulRun {
            product: self,
            data: data.map(<[T]>::as_ptr),
            start: views.map(|view| view.offset),
            result: y.as_mut_ptr(),
            columns_of_blocks: counts[1],
            operands,
            sources,
        };
        let work = self.work_of_matrix();
        // SAFETY: each part is computed once; `end` was used to check the elements that they read.
        let part = |i: usize| unsafe { all.block(i / n_blocks, i % n_blocks) };
        if matrices * work < 2 * PARALLEL {
            (0..matrices * n_blocks).for_each(part);
        } else {
            let least = (PARALLEL * n_blocks / work.max(1)).max(1);
            let n = matrices * n_blocks;
            threads::indices(n.div_ceil(least), &|i| (i * least..n.min((i + 1) * least)).for_each(part));
        }
    }

    /// Computes matmuls in plain loops, matrix by matrix.
    fn loops<T: CpuElement<Mem = T> + bytemuck::Pod>(
        &self,
        a: &View,
        b: &View,
        out: &mut [u8],
        sources: &Sources<'_>,
        f: impl Fn(T, T, T) -> T + Sync,
    ) {
        let y: &mut [T] = bytemuck::cast_slice_mut(out);
        let (x, w) = (sources.elements::<T>(a.base), sources.elements::<T>(b.base));
        let size = self.m * self.n;
        if size == 0 {
            return;
        }
        let one = |(i, y): (usize, &mut [T])| {
            let [at, bt] = self.start(i, [a.offset, b.offset]);
            for (i, y) in y.chunks_exact_mut(self.n).enumerate() {
                if threads::stop::is_set() {
                    return;
                }
                y.fill(T::default());
                for p in 0..self.k {
                    let x = x[at + i * self.at[0].down + p * self.at[0].right];
                    let w = &w[bt + p * self.at[1].down..];
                    y.iter_mut().enumerate().for_each(|(j, y)| *y = f(*y, x, w[j * self.at[1].right]));
                }
            }
        };
        if y.len() * self.k < PARALLEL {
            y.chunks_exact_mut(size).enumerate().for_each(one);
        } else {
            threads::chunks(y, size, one);
        }
    }
}

/// Returns the axes before the matrices, with broadcast axes as single indices.
fn distinct(view: &View) -> impl Iterator<Item = (usize, isize)> {
    let batch = view.shape.len() - 2;
    let axes = view.shape[..batch].iter().zip(&view.strides[..batch]);
    axes.map(|(&n, &stride)| if stride == 0 { (1, 0) } else { (n, stride) })
}

/// A running matmul of floats.
struct MatmulRun<'a, 's, T> {
    product: &'a Matmul,
    data: [*const T; 2],
    start: [usize; 2],
    result: *mut T,
    /// The number of blocks in a row of blocks.
    columns_of_blocks: usize,
    operands: &'a [TensorOperand],
    sources: &'a Sources<'s>,
}

// SAFETY: the operands are only read; parts of the result that are written at the same time do not
// overlap.
unsafe impl<T: Sync> Sync for MatmulRun<'_, '_, T> {}

impl<T: Lane> MatmulRun<'_, '_, T> {
    /// Computes a block of a matrix and its epilogue.
    ///
    /// # Safety
    /// The operands must be as large as the matmul says, and nothing else may write or read this
    /// block of the result.
    unsafe fn block(&self, matrix: usize, block: usize) {
        let p = self.product;
        let extents = p.extents();
        let first = [block / self.columns_of_blocks * p.block[0], block % self.columns_of_blocks * p.block[1]];
        let [rows, columns] = [0, 1].map(|i| p.block[i].min(extents[i] - first[i]));
        let start = p.start(matrix, self.start);
        let in_matrix = matrix * p.m * p.n;
        // SAFETY: these are elements of a block of the matrices.
        let (left, left_at, right, right_at, result, result_at) = unsafe {
            let [a, b] = [0, 1].map(|i| self.data[i].wrapping_add(start[i]));
            let y = self.result.add(in_matrix);
            match p.packed {
                Some(ProductSide::Left) => {
                    let at = p.at[1].transposed();
                    let result = y.add(first[1] * p.n + first[0]);
                    (
                        b.wrapping_add(first[0] * at.down),
                        at,
                        a.wrapping_add(first[1] * p.k),
                        RightLayout::Packed,
                        result,
                        Strides { down: 1, right: p.n },
                    )
                }
                packed => {
                    let result = y.add(first[0] * p.n + first[1]);
                    let (right, right_at) = match packed {
                        Some(_) => (b.wrapping_add(first[1] * p.k), RightLayout::Packed),
                        None => (b.wrapping_add(first[1]), RightLayout::Rows { apart: p.at[1].down }),
                    };
                    (
                        a.wrapping_add(first[0] * p.at[0].down),
                        p.at[0],
                        right,
                        right_at,
                        result,
                        Strides { down: p.n, right: 1 },
                    )
                }
            }
        };
        let run = |left_copy: Option<*mut T>| {
            let block = GemmBlock {
                rows,
                columns,
                inner: p.k,
                left,
                left_at,
                right,
                right_at,
                result,
                result_at,
                adds: p.adds,
                left_copy,
            };
            // SAFETY: guaranteed by the caller; and the copy is as large as the largest block of
            // the left matrix.
            unsafe { block.run(p.level) };
        };
        if left_at.right >= FAR && columns >= MANY {
            with_copy(|copy| run(Some(copy)))
        } else {
            run(None)
        }
        let Some(epilogue) = p.epilogue.as_ref().filter(|_| !p.adds) else { return };
        let (first, [rows, columns]) = match p.packed {
            Some(ProductSide::Left) => ([first[1], first[0]], [columns, rows]),
            _ => (first, [rows, columns]),
        };
        let (runs, len) = if columns == p.n { (1, rows * columns) } else { (rows, columns) };
        for i in 0..runs {
            let start = in_matrix + (first[0] + i) * p.n + first[1];
            // SAFETY: the caller guarantees that nothing else uses this block.
            let part = unsafe { std::slice::from_raw_parts_mut(self.result.add(start), len) };
            // The matmul is the first operand of the epilogue. The others follow the two operands
            // of the operation.
            epilogue.run(&self.operands[1..], start, bytemuck::cast_slice_mut(part), self.sources);
        }
    }
}

/// Calls `f` with this thread's memory for a slab of the left matrix of a block.
fn with_copy<T: Lane>(f: impl FnOnce(*mut T)) {
    thread_local! {
        static MEMORY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    MEMORY.with_borrow_mut(|memory| {
        if memory.is_empty() {
            memory.resize(ROWS * SLAB, 0);
        }
        f(memory.as_mut_ptr().cast());
    });
}

/// Packing of the matrices in the last two axes of a tensor in the order in which tiles read them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pack {
    inner: usize,
    columns: usize,
    at: Strides,
    batch: Vec<Axis<1>>,
    level: InstructionSet,
    dtype: DType,
}

impl Pack {
    /// Creates the packing of the transpose of a row-major matrix with `columns` rows.
    pub(crate) fn transposed(columns: usize, inner: usize, dtype: DType) -> Pack {
        let at = Strides { down: 1, right: inner };
        Pack { inner, columns, at, batch: Vec::new(), level: InstructionSet::best(), dtype }
    }

    /// Returns the number of elements of a packed matrix.
    fn matrix_len(&self) -> usize {
        match self.dtype {
            DType::F32 => gemm::packed_len::<f32>(self.level, self.inner, self.columns),
            _ => gemm::packed_len::<f64>(self.level, self.inner, self.columns),
        }
    }

    /// Returns the number of elements of the result.
    pub(crate) fn len(&self) -> usize {
        self.batch.iter().map(|axis| axis.n).product::<usize>() * self.matrix_len()
    }

    pub(crate) fn run(&self, operand: &View, out: &mut [u8], sources: &Sources<'_>) {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(operand, bytemuck::cast_slice_mut(out), sources),
            DType::F64 => self.run_as::<f64>(operand, bytemuck::cast_slice_mut(out), sources),
            other => panic!("a packed matrix of {other}"),
        }
    }

    fn run_as<T: Lane + CpuElement<Mem = T>>(&self, operand: &View, out: &mut [T], sources: &Sources<'_>) {
        let from = sources.elements::<T>(operand.base);
        let len = self.matrix_len();
        if len == 0 {
            return;
        }
        // Panels for about one part of the work.
        let panel = self.level.tile::<T>()[1] * self.inner;
        let panels = (PACKED / panel).max(1);
        let matrix = |(i, out): (usize, &mut [T])| {
            let mut rest = i;
            let start = self.batch.iter().rev().fold(operand.offset, |start, axis| {
                let i = (rest % axis.n) as isize;
                rest /= axis.n;
                start.wrapping_add_signed(i * axis.strides[0])
            });
            let some = |(part, out): (usize, &mut [T])| {
                gemm::pack(self.level, &from[start..], self.at, self.inner, self.columns, part * panels, out);
            };
            if len < 2 * PACKED {
                out.chunks_mut(panels * panel).enumerate().for_each(some);
            } else {
                threads::chunks(out, panels * panel, some);
            }
        };
        if out.len() < 2 * PACKED {
            out.chunks_exact_mut(len).enumerate().for_each(matrix);
        } else {
            threads::chunks(out, len, matrix);
        }
    }
}

/// The number of elements that one part of the work packs.
const PACKED: usize = 1 << 16;
