//! Matmuls: tiles of vectors for floats ([`gemm`]), plain loops for integers, and a
//! [unit](tiles) of the processor that multiplies tiles of `bf16` where the user allows to round.
//!
//! An operand may be *packed*: a separate instruction ([`Pack`]) arranges it in the order in which
//! the tiles read it, before the loop if the operand is loop-invariant. The unit reads packed
//! operands alone; if each block of columns is read once, the kernel packs it itself. For vectors,
//! the shapes and layouts decide which one is packed:
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
use super::tiles::{self, RightTiles, TileBlock, TileUnit};
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
    /// The strides of the operands before they are packed.
    at: [Strides; 2],
    packing: Packing,
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

/// Which operands are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    /// One, in panels of vectors.
    Panels(ProductSide),
    /// The left one, in tiles, and the right one if `packs_right` says so. Otherwise each block
    /// packs its columns.
    Tiles {
        unit: TileUnit,
        packs_right: bool,
    },
}

impl Packing {
    fn packs(self, side: ProductSide) -> bool {
        match self {
            Packing::None => false,
            Packing::Panels(packed) => packed == side,
            Packing::Tiles { packs_right, .. } => side == ProductSide::Left || packs_right,
        }
    }
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
/// The same for a unit that multiplies tiles. Its numbers have half as many bytes.
const MULTIPLICATIONS_PER_READ_OF_TILES: usize = 16;
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
/// The cuts of tiles, and those if each block packs columns of a right matrix with more than this
/// number of elements: cuts of rows would pack them again.
const QUICK_TO_PACK: usize = 1 << 17;
const CUTS_OF_TILES: [(usize, usize); 5] = [(1, 256), (0, 64), (1, 64), (0, 32), (1, 32)];
const CUTS_OF_UNPACKED_TILES: [(usize, usize); 5] = [(1, 256), (1, 128), (1, 64), (1, 32), (0, 32)];
/// The number of rows up to which a right matrix that is read once is not packed, for a row-major
/// and for a column-major one. Parts of a row-major one are then copied for each block of rows,
/// which for more rows takes as long as packing it once.
const FEW_ROWS: usize = 384;
const FEW_ROWS_OF_COLUMNS: usize = 64;
/// The number of columns up to which a loop-invariant left matrix is packed before the loop.
const FEW_COLUMNS: usize = 24;
/// The same for a unit that multiplies tiles, which takes about a tenth of the time.
const PARALLEL_TILES: usize = 1 << 23;
/// The smallest extents of matrices for such a unit. It computes at least 16 rows, and packing both
/// operands takes about as long as to multiply them by eight others. A loop-invariant right matrix
/// is packed once, and is then read from memory in half the time.
const LEAST_FOR_TILES: usize = 16;
/// The rows and columns of a block of tiles, and the number of elements of its left matrix that
/// stay in the second-level cache.
const ROWS_OF_TILES: usize = 256;
const COLUMNS_OF_TILES: usize = 512;
const CACHED_OF_TILES: usize = 1 << 19;
/// The stride in elements from which on elements are copied for tiles, if at least this many
/// columns use them.
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
    pub(crate) fn merged(a: &mut View, b: &mut View, out: &View, kept: [bool; 2], unit: Option<TileUnit>) -> Matmul {
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
        Matmul::new(a, b, kept, unit)
    }

    /// Creates a matmul of views that [`takes`](Self::takes) accepts. `kept` says which of them are
    /// loop-invariant. Operands may be rounded for `unit`, if there is one and it is faster.
    fn new(a: &View, b: &View, kept: [bool; 2], unit: Option<TileUnit>) -> Matmul {
        let batch = a.shape.len() - 2;
        let [m, k, n] = [a.shape[batch], a.shape[batch + 1], b.shape[batch + 1]];
        let layouts = [a, b].map(|view| layout(view).expect("the layout was checked before"));
        let in_rows = matches!(layouts[1], MatrixLayout::RowMajor { .. });
        let unit = unit.filter(|_| a.dtype == DType::F32 && suits_tiles([m, k, n], kept));
        let packing = match (unit, a.dtype, kept) {
            (Some(unit), ..) => {
                let reads_once = m <= rows_of_tiles(k) && b.strides[..batch].iter().all(|&stride| stride != 0);
                Packing::Tiles { unit, packs_right: kept[1] || !reads_once || !tiles::fits_at_once(k) }
            }
            (None, DType::F32 | DType::F64, [_, true]) => Packing::Panels(ProductSide::Right),
            (None, DType::F32 | DType::F64, [true, false]) if n <= FEW_COLUMNS => Packing::Panels(ProductSide::Left),
            (None, DType::F32 | DType::F64, _) => match in_rows {
                true if m <= FEW_ROWS => Packing::None,
                false if m <= FEW_ROWS_OF_COLUMNS => Packing::Panels(ProductSide::Left),
                _ => Packing::Panels(ProductSide::Right),
            },
            _ => Packing::None,
        };
        let mut product = Matmul {
            m,
            k,
            n,
            batch: Vec::new(),
            at: layouts.map(MatrixLayout::strides),
            packing,
            level: InstructionSet::best(),
            block: [m, n],
            epilogue: None,
            has_addend: false,
            adds: false,
        };
        let strides = [(a, ProductSide::Left), (b, ProductSide::Right)].map(|(view, side)| {
            if !packing.packs(side) {
                return view.strides[..batch].to_vec();
            }
            // Packed matrices are contiguous, and a broadcast matrix is stored once.
            let mut strides = row_major(&distinct(view).map(|(n, _)| n).collect::<Vec<_>>());
            let len = product.pack(side, view).matrix_len() as isize;
            strides.iter_mut().zip(&view.strides).for_each(|(s, &of_view)| *s *= if of_view == 0 { 0 } else { len });
            strides
        });
        product.batch = merged(&a.shape[..batch], [&strides[0], &strides[1]]);
        product.block = product.blocks(a.dtype, a.shape[..batch].iter().product(), threads::n_threads());
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
        let per_read = if self.rounds() { MULTIPLICATIONS_PER_READ_OF_TILES } else { MULTIPLICATIONS_PER_READ };
        (self.m * self.k).saturating_mul(self.n).max(read.saturating_mul(per_read))
    }

    /// Returns the names of the operations of the epilogue.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.epilogue.iter().flat_map(Epilogue::names)
    }

    /// Returns the indices of the operands that have to be packed, and how. The kernel reads the
    /// packed matrices in their places.
    pub(crate) fn packed(&self, operands: [&View; 2]) -> Vec<(usize, Pack)> {
        let sides = [ProductSide::Left, ProductSide::Right].into_iter().filter(|&side| self.packing.packs(side));
        sides.map(|side| (side as usize, self.pack(side, operands[side as usize]))).collect()
    }

    fn pack(&self, side: ProductSide, view: &View) -> Pack {
        let (columns, at) = match side {
            ProductSide::Left => (self.m, self.at[0].transposed()),
            ProductSide::Right => (self.n, self.at[1]),
        };
        let (shape, strides): (Vec<usize>, Vec<isize>) = distinct(view).unzip();
        let batch = merged(&shape, [&strides]);
        let format = match self.packing {
            Packing::Tiles { unit, .. } => PackFormat::Tiles(unit, side),
            _ => PackFormat::Panels(self.level),
        };
        Pack { inner: self.k, columns, at, batch, format, dtype: view.dtype }
    }

    /// Returns the rows and columns that the tiles compute: those of the result or its transpose.
    fn extents(&self) -> [usize; 2] {
        match self.packing {
            Packing::Panels(ProductSide::Left) => [self.n, self.m],
            _ => [self.m, self.n],
        }
    }

    /// Returns the number of multiplications from which on work is split over threads.
    fn parallel(&self) -> usize {
        if self.rounds() { PARALLEL_TILES } else { PARALLEL }
    }

    /// Returns whether the operands are rounded to `bf16`.
    pub(crate) fn rounds(&self) -> bool {
        matches!(self.packing, Packing::Tiles { .. })
    }

    /// Returns the rows and columns of a block, for this number of matrices. They are multiples of
    /// those of a tile, and as even as that allows, since threads compute equally many blocks.
    fn blocks(&self, dtype: DType, matrices: usize, n_threads: usize) -> [usize; 2] {
        let (extents, apart) = (self.extents(), self.at[1].down);
        let ([rows, columns, _], copies) = match dtype {
            _ if self.rounds() => ([tiles::AT_ONCE, tiles::AT_ONCE, 1], false),
            DType::F64 => (self.level.tile::<f64>(), gemm::copies_panels::<f64>(self.level, apart)),
            _ => (self.level.tile::<f32>(), gemm::copies_panels::<f32>(self.level, apart)),
        };
        let even =
            |n: usize, most: usize, tile: usize| n.div_ceil(n.div_ceil(most).max(1)).max(1).next_multiple_of(tile);
        let most = match self.packing {
            Packing::Tiles { .. } => [rows_of_tiles(self.k), COLUMNS_OF_TILES],
            _ => [ROWS, COLUMNS],
        };
        let mut block = [even(extents[0], most[0], rows), even(extents[1], most[1], columns)];
        // Blocks change no result, so their number may depend on the number of threads.
        let parts = (PARTS * n_threads).div_ceil(matrices.max(1));
        let wanted = (self.work_of_matrix() / self.parallel()).min(parts);
        let count = |block: [usize; 2]| extents[0].div_ceil(block[0]) * extents[1].div_ceil(block[1]);
        let cuts = match self.packing {
            Packing::None if copies => CUTS_OF_COPIES,
            Packing::None | Packing::Panels(_) => CUTS,
            Packing::Tiles { packs_right: false, .. } if self.k.saturating_mul(self.n) > QUICK_TO_PACK => {
                CUTS_OF_UNPACKED_TILES
            }
            Packing::Tiles { .. } => CUTS_OF_TILES,
        };
        while count(block) < wanted {
            let half = |axis: usize| (block[axis].min(extents[axis]) / 2).next_multiple_of([rows, columns][axis]);
            let is_cut = |&(axis, least): &(usize, usize)| {
                block[axis] > least && extents[axis] > least && half(axis) < block[axis]
            };
            let Some((axis, _)) = cuts.into_iter().find(is_cut) else { break };
            block[axis] = half(axis);
        }
        block
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let (a, b) = (operands[0].view(), operands[1].view());
        match a.dtype {
            DType::BF16 => self.tiles(operands, out, sources),
            DType::F32 => self.panels::<f32>(operands, out, sources),
            DType::F64 => self.panels::<f64>(operands, out, sources),
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
        let side = [ProductSide::Left, ProductSide::Right][operand];
        let matrix = match self.packing {
            Packing::Tiles { .. } if self.packing.packs(side) => {
                tiles::packed_len(side, self.k, [self.m, self.n][operand])
            }
            Packing::Panels(packed) if packed == side => self.k * self.extents()[1],
            _ => {
                let [rows, columns] = [[self.m, self.k], [self.k, self.n]][operand];
                (rows - 1) * self.at[operand].down + (columns - 1) * self.at[operand].right + 1
            }
        };
        start + self.batch.iter().map(forward).sum::<usize>() + matrix
    }

    fn panels<T: Lane + CpuElement<Mem = T>>(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let data = [0, 1].map(|i| sources.elements::<T>(operands[i].view().base));
        let run = self.started(operands, bytemuck::cast_slice_mut::<u8, T>(out), sources, (data[0], data[1]));
        // SAFETY: each block is computed once, and the extents of the operands were checked.
        run.all_blocks(|block| unsafe { run.panels(&block) });
    }

    fn tiles(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let Packing::Tiles { unit, packs_right } = self.packing else { panic!("an operand is packed in tiles") };
        let out = bytemuck::cast_slice_mut::<u8, f32>(out);
        let [left, right] = [0, 1].map(|i| sources.bytes(operands[i].view().base));
        let left = bytemuck::cast_slice::<u8, u16>(left);
        if packs_right {
            let run = self.started(operands, out, sources, (left, bytemuck::cast_slice::<u8, u16>(right)));
            let right = |start, columns| {
                RightTiles::Packed(
                    run.right[start..][tiles::packed_len(ProductSide::Right, self.k, columns)..].as_ptr(),
                )
            };
            // SAFETY: as above.
            run.all_blocks(|block| unsafe { run.tiles(&block, unit, right) });
        } else {
            let run = self.started(operands, out, sources, (left, bytemuck::cast_slice::<u8, f32>(right)));
            let at = self.at[1];
            let right = |start, columns| RightTiles::Unpacked(&run.right[start..][columns * at.right..], at);
            // SAFETY: as above.
            run.all_blocks(|block| unsafe { run.tiles(&block, unit, right) });
        }
    }

    /// Begins a matmul, and checks the extents of the operands.
    fn started<'a, 's, L, R, T>(
        &'a self,
        operands: &'a [TensorOperand],
        out: &'a mut [T],
        sources: &'a Sources<'s>,
        (left, right): (&'a [L], &'a [R]),
    ) -> MatmulRun<'a, 's, L, R, T> {
        let start = [0, 1].map(|i| operands[i].view().offset);
        for (i, len) in [left.len(), right.len()].into_iter().enumerate() {
            let is_inside = out.is_empty() || self.end(i, start[i]) <= len;
            assert!(is_inside, "operand {i} is read where it is not");
        }
        let [rows, columns] = self.extents();
        MatmulRun {
            product: self,
            left,
            right,
            start,
            matrices: out.len() / (self.m * self.n).max(1),
            result: out.as_mut_ptr(),
            blocks: [rows.div_ceil(self.block[0]), columns.div_ceil(self.block[1])],
            operands,
            sources,
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

/// Returns whether a unit that multiplies tiles is faster than vectors.
fn suits_tiles([m, k, n]: [usize; 3], [_, right_is_kept]: [bool; 2]) -> bool {
    let least = |extents: &[usize]| extents.iter().all(|&n| n >= LEAST_FOR_TILES);
    if right_is_kept { m > 0 && least(&[k, n]) } else { least(&[m, k, n]) }
}

/// Returns the maximum number of rows of a block of tiles.
fn rows_of_tiles(inner: usize) -> usize {
    (CACHED_OF_TILES / inner.max(1)).clamp(tiles::AT_ONCE, ROWS_OF_TILES)
}

/// A running matmul, with the elements of its operands as the kernel reads them.
struct MatmulRun<'a, 's, L, R, T> {
    product: &'a Matmul,
    left: &'a [L],
    right: &'a [R],
    /// The indices of the first elements of both operands.
    start: [usize; 2],
    result: *mut T,
    /// The number of matrices, and that of the blocks of one along its rows and its columns.
    matrices: usize,
    blocks: [usize; 2],
    operands: &'a [TensorOperand],
    sources: &'a Sources<'s>,
}

// SAFETY: the operands are only read; parts of the result that are written at the same time do not
// overlap.
unsafe impl<L: Sync, R: Sync, T: Sync> Sync for MatmulRun<'_, '_, L, R, T> {}

/// A block of one of the matrices of a running matmul: its first row and column, and their number.
struct MatrixBlock {
    matrix: usize,
    first: [usize; 2],
    extents: [usize; 2],
}

impl<L: Sync, R: Sync, T: Lane> MatmulRun<'_, '_, L, R, T> {
    /// Computes all blocks, in several threads if there is much to do.
    fn all_blocks(&self, compute: impl Fn(MatrixBlock) + Sync) {
        let p = self.product;
        let of_matrix = self.blocks[0] * self.blocks[1];
        let part = |i: usize| {
            let (matrix, block) = (i / of_matrix, i % of_matrix);
            let at = [block / self.blocks[1], block % self.blocks[1]];
            let first = [0, 1].map(|axis| at[axis] * p.block[axis]);
            let extents = [0, 1].map(|axis| p.block[axis].min(p.extents()[axis] - first[axis]));
            compute(MatrixBlock { matrix, first, extents });
        };
        let n = self.matrices * of_matrix;
        let (work, parallel) = (p.work_of_matrix(), p.parallel());
        if self.matrices * work < 2 * parallel {
            (0..n).for_each(part);
        } else {
            let least = (parallel * of_matrix / work.max(1)).max(1);
            threads::indices(n.div_ceil(least), &|i| (i * least..n.min((i + 1) * least)).for_each(part));
        }
    }

    /// Applies the epilogue to rows and columns of the result of a matrix.
    ///
    /// # Safety
    /// The extents must be those of the matmul, and nothing else may write or read this part of the
    /// result.
    unsafe fn finish(&self, matrix: usize, first: [usize; 2], [rows, columns]: [usize; 2]) {
        let p = self.product;
        let Some(epilogue) = p.epilogue.as_ref().filter(|_| !p.adds) else { return };
        let (runs, len) = if columns == p.n { (1, rows * columns) } else { (rows, columns) };
        for i in 0..runs {
            let start = matrix * p.m * p.n + (first[0] + i) * p.n + first[1];
            // SAFETY: the caller guarantees that nothing else uses this part.
            let part = unsafe { std::slice::from_raw_parts_mut(self.result.add(start), len) };
            // The matmul is the first operand of the epilogue. The others follow the two operands
            // of the operation.
            epilogue.run(&self.operands[1..], start, bytemuck::cast_slice_mut(part), self.sources);
        }
    }
}

impl<R: Sync> MatmulRun<'_, '_, u16, R, f32> {
    /// Computes a block of matrices in tiles, and its epilogue. `right` returns the right matrix
    /// that begins at an element, from a column on.
    ///
    /// # Safety
    /// The operands must be as large as the matmul says, and nothing else may write or read this
    /// block of the result.
    unsafe fn tiles<'r>(&self, block: &MatrixBlock, unit: TileUnit, right: impl Fn(usize, usize) -> RightTiles<'r>) {
        let p = self.product;
        let &MatrixBlock { matrix, first, extents: [rows, columns] } = block;
        let start = p.start(matrix, self.start);
        let tiles = TileBlock {
            rows,
            columns,
            inner: p.k,
            left: self.left[start[0]..][tiles::packed_len(ProductSide::Left, p.k, first[0])..].as_ptr(),
            right: right(start[1], first[1]),
            result: self.result.wrapping_add(matrix * p.m * p.n + first[0] * p.n + first[1]),
            apart: p.n,
            adds: p.adds,
        };
        // SAFETY: guaranteed by the caller. Packed matrices come from `Pack`.
        unsafe {
            tiles.run(unit);
            self.finish(matrix, first, block.extents);
        }
    }
}

impl<T: Lane> MatmulRun<'_, '_, T, T, T> {
    /// Computes a block from panels of vectors, or from matrices that are not packed, and its
    /// epilogue.
    ///
    /// # Safety
    /// The operands must be as large as the matmul says, and nothing else may write or read this
    /// block of the result.
    unsafe fn panels(&self, block: &MatrixBlock) {
        let p = self.product;
        let &MatrixBlock { matrix, first, extents: [rows, columns] } = block;
        let start = p.start(matrix, self.start);
        let [a, b] = [self.left.as_ptr().wrapping_add(start[0]), self.right.as_ptr().wrapping_add(start[1])];
        let y = self.result.wrapping_add(matrix * p.m * p.n);
        let (left, left_at, right, right_at, result, result_at) = match p.packing {
            Packing::Panels(ProductSide::Left) => {
                let at = p.at[1].transposed();
                (
                    b.wrapping_add(first[0] * at.down),
                    at,
                    a.wrapping_add(first[1] * p.k),
                    RightLayout::Packed,
                    y.wrapping_add(first[1] * p.n + first[0]),
                    Strides { down: 1, right: p.n },
                )
            }
            packing => {
                let (right, right_at) = match packing {
                    Packing::None => (b.wrapping_add(first[1]), RightLayout::Rows { apart: p.at[1].down }),
                    _ => (b.wrapping_add(first[1] * p.k), RightLayout::Packed),
                };
                (
                    a.wrapping_add(first[0] * p.at[0].down),
                    p.at[0],
                    right,
                    right_at,
                    y.wrapping_add(first[0] * p.n + first[1]),
                    Strides { down: p.n, right: 1 },
                )
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
        let (first, extents) = match p.packing {
            Packing::Panels(ProductSide::Left) => ([first[1], first[0]], [columns, rows]),
            _ => (first, block.extents),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.finish(matrix, first, extents) };
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
    format: PackFormat,
    /// The type of the matrix before it is packed.
    dtype: DType,
}

/// The form of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PackFormat {
    /// Panels of vectors.
    Panels(InstructionSet),
    /// Tiles of `bf16`.
    Tiles(TileUnit, ProductSide),
}

impl Pack {
    /// Creates the packing of the transpose of a row-major matrix with `columns` rows.
    pub(crate) fn transposed(columns: usize, inner: usize, dtype: DType) -> Pack {
        let at = Strides { down: 1, right: inner };
        let format = PackFormat::Panels(InstructionSet::best());
        Pack { inner, columns, at, batch: Vec::new(), format, dtype }
    }

    /// Returns the number of elements of a packed matrix.
    fn matrix_len(&self) -> usize {
        match (self.format, self.dtype) {
            (PackFormat::Tiles(_, side), _) => tiles::packed_len(side, self.inner, self.columns),
            (PackFormat::Panels(level), DType::F32) => gemm::packed_len::<f32>(level, self.inner, self.columns),
            (PackFormat::Panels(level), _) => gemm::packed_len::<f64>(level, self.inner, self.columns),
        }
    }

    /// Returns the element type of the result.
    pub(crate) fn dtype(&self) -> DType {
        if let PackFormat::Tiles(..) = self.format { DType::BF16 } else { self.dtype }
    }

    /// Returns the number of elements of the result.
    pub(crate) fn len(&self) -> usize {
        self.batch.iter().map(|axis| axis.n).product::<usize>() * self.matrix_len()
    }

    pub(crate) fn run(&self, operand: &View, out: &mut [u8], sources: &Sources<'_>) {
        match (self.format, self.dtype) {
            (PackFormat::Panels(level), DType::F32) => self.run_in_panels::<f32>(level, operand, out, sources),
            (PackFormat::Panels(level), DType::F64) => self.run_in_panels::<f64>(level, operand, out, sources),
            (PackFormat::Tiles(unit, side), DType::F32) => {
                let (from, extents) = (sources.elements::<f32>(operand.base), [self.inner, self.columns]);
                let wide = tiles::lines_at_once(side);
                let panel = tiles::packed_len(side, self.inner, wide);
                self.run_as::<u16>([wide, panel], operand.offset, out, |start, first, to| {
                    tiles::pack(unit, side, &from[start..], self.at, extents, first, to);
                });
            }
            (_, other) => panic!("a packed matrix of {other}"),
        }
    }

    fn run_in_panels<T: Lane + CpuElement<Mem = T>>(
        &self,
        level: InstructionSet,
        operand: &View,
        out: &mut [u8],
        sources: &Sources<'_>,
    ) {
        let from = sources.elements::<T>(operand.base);
        let wide = level.tile::<T>()[1];
        self.run_as::<T>([wide, wide * self.inner], operand.offset, out, |start, first, to| {
            gemm::pack(level, &from[start..], self.at, self.inner, self.columns, first / wide, to);
        });
    }

    /// Packs all matrices with `pack`, which is called with the first element of a matrix, the
    /// first of the columns to pack, and memory. It packs `wide` columns together to `panel`
    /// elements.
    fn run_as<P: bytemuck::Pod + Send>(
        &self,
        [wide, panel]: [usize; 2],
        offset: usize,
        out: &mut [u8],
        pack: impl Fn(usize, usize, &mut [P]) + Sync,
    ) {
        let out: &mut [P] = bytemuck::cast_slice_mut(out);
        let len = self.matrix_len();
        if len == 0 {
            return;
        }
        // Panels for about one part of the work. Rows of few columns would be read from many pages.
        let panels = (PACKED / panel).max(if wide < LEAST_WIDE { LEAST_WIDE / wide } else { 1 });
        let matrix = |(i, out): (usize, &mut [P])| {
            let mut rest = i;
            let start = self.batch.iter().rev().fold(offset, |start, axis| {
                let i = (rest % axis.n) as isize;
                rest /= axis.n;
                start.wrapping_add_signed(i * axis.strides[0])
            });
            let some = |(part, out): (usize, &mut [P])| pack(start, part * panels * wide, out);
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

/// The minimum number of columns that one part of the work packs, if there are as many.
const LEAST_WIDE: usize = 128;
/// The number of elements that one part of the work packs.
const PACKED: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::{Base, BufferId};

    /// Each cut makes blocks smaller, and all blocks are whole tiles.
    #[test]
    fn every_shape_is_divided_into_blocks() {
        const EXTENTS: [usize; 9] = [1, 16, 32, 64, 100, 256, 1000, 8192, 65536];
        let matrix = |rows, columns| View::whole(Base::Buffer(BufferId(0)), DType::F32, vec![rows, columns]);
        for m in EXTENTS {
            for [k, n] in EXTENTS.into_iter().flat_map(|k| EXTENTS.map(|n| [k, n])) {
                for (unit, kept) in [(None, false), (Some(TileUnit::Emulated), false), (Some(TileUnit::Emulated), true)]
                {
                    let product = Matmul::new(&matrix(m, k), &matrix(k, n), [false, kept], unit);
                    for n_threads in [1, 2, 16, 64] {
                        let block = product.blocks(DType::F32, 1, n_threads);
                        let [rows, columns] = match product.packing {
                            Packing::Tiles { .. } => [tiles::AT_ONCE; 2],
                            _ => [product.level.tile::<f32>()[0], product.level.tile::<f32>()[1]],
                        };
                        let is_whole = block[0].is_multiple_of(rows) && block[1].is_multiple_of(columns);
                        assert!(is_whole && !block.contains(&0), "{m} {k} {n} {n_threads}: {block:?}");
                    }
                }
            }
        }
    }
}
