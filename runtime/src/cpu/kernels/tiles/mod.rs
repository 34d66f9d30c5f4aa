//! Matmuls of operands that are rounded to `bf16`, with sums in `f32`, by a unit of the processor
//! that multiplies whole tiles.
//!
//! A *tile* has 16 lines of 32 numbers. The lines are the rows of the left matrix and the columns
//! of the right one, and the numbers of a line follow each other along the inner extent. Both
//! matrices are packed: rounded to the nearest `bf16` and arranged tile by tile, with zeros at the
//! ends. A tile of the left matrix stores its lines one after the other, and a tile of the right
//! one stores *pairs* of numbers, the first pair of every line and then the second, as the unit
//! reads them.
//!
//! The unit multiplies a tile by another and adds the 16 x 16 sums to others that it holds. For
//! each of them it adds the products of the 16 first numbers of pairs in order, then those of the
//! second numbers, adds the two sums, and adds that to the sum of earlier tiles. Subnormal numbers
//! count as zeros. An element of the result is therefore the same for each division into blocks
//! and each number of threads.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(any(test, feature = "testing"))]
mod emulated;

use super::dense::with_memory;
use super::gemm::Strides;
use super::matmul::ProductSide;
use crate::cpu::vector::LINE;
use crate::options::{CompileOptions, MatmulPrecision};
use crate::threads::stop;

/// The lines of a tile.
pub(super) const LINES: usize = 16;
/// The numbers of a line of a tile.
const DEPTH: usize = 32;
/// The numbers of a tile.
const TILE: usize = LINES * DEPTH;
/// The rows and columns of the result that are computed at once: two tiles of each operand, so that
/// each of them is multiplied twice.
pub(super) const AT_ONCE: usize = 2 * LINES;

/// A unit that multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileUnit {
    /// Intel's Advanced Matrix Extensions.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    /// Plain loops with the same results, for tests on other processors.
    #[cfg(any(test, feature = "testing"))]
    Emulated,
}

impl TileUnit {
    /// Returns the unit with which a program computes its matmuls, or `None` if the user wants full
    /// precision or the processor has no such unit. Checked programs have none: a large number may
    /// be rounded to infinity, and the error would not name the matmul.
    pub(crate) fn of(options: &CompileOptions) -> Option<TileUnit> {
        if options.matmul_precision == MatmulPrecision::Full || options.check_finite {
            return None;
        }
        #[cfg(any(test, feature = "testing"))]
        if options.cpu.emulates_tiles {
            return Some(TileUnit::Emulated);
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if amx::is_available() {
            return Some(TileUnit::Amx);
        }
        None
    }
}

/// Returns the number of tiles along the inner extent.
fn steps(inner: usize) -> usize {
    inner.div_ceil(DEPTH)
}

/// Returns the lines that are packed together: the right matrix has two tiles at once, even if the
/// second has zeros alone.
pub(super) fn lines_at_once(side: ProductSide) -> usize {
    match side {
        ProductSide::Left => LINES,
        ProductSide::Right => AT_ONCE,
    }
}

/// Returns the number of elements of some packed lines.
pub(super) fn packed_len(side: ProductSide, inner: usize, lines: usize) -> usize {
    lines.next_multiple_of(lines_at_once(side)) * steps(inner) * DEPTH
}

/// Packs lines of a matrix from line `first` on, which begins a tile, into the memory `to` of whole
/// tiles. The strides are those between numbers of a line (`down`) and between lines (`right`), one
/// of which is 1 unless there is one of the two.
pub(super) fn pack(
    unit: TileUnit,
    side: ProductSide,
    from: &[f32],
    at: Strides,
    [inner, lines]: [usize; 2],
    first: usize,
    to: &mut [u16],
) {
    let steps = steps(inner);
    let tiles = to.len() / (steps * TILE);
    // Memory is read in its order.
    let (outer, within) = if at.down == 1 { (tiles, steps) } else { (steps, tiles) };
    for i in 0..outer {
        for j in 0..within {
            let (tile, step) = if at.down == 1 { (i, j) } else { (j, i) };
            let line = first + tile * LINES;
            let extents = [DEPTH.min(inner - step * DEPTH), LINES.min(lines.saturating_sub(line))];
            let to = &mut to[(tile * steps + step) * TILE..][..TILE];
            let to: &mut [u16; TILE] = to.try_into().expect("a tile has a fixed size");
            if extents[1] == 0 {
                to.fill(0);
                continue;
            }
            let from = &from[line * at.right + step * DEPTH * at.down..];
            match unit {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                TileUnit::Amx => amx::pack(side, from, at, extents, to),
                #[cfg(any(test, feature = "testing"))]
                TileUnit::Emulated => emulated::pack(side, from, at, extents, to),
            }
        }
    }
}

/// The right matrix of a block.
#[derive(Clone, Copy)]
pub(super) enum RightTiles<'a> {
    /// The first tile.
    Packed(*const u16),
    /// Elements that are not packed, with strides as for [`pack`].
    Unpacked(&'a [f32], Strides),
}

/// The number of elements of the right matrix that a block packs at once. They stay in the
/// second-level cache.
const PACKED_AT_ONCE: usize = 1 << 18;

/// Returns whether a block can pack so many columns at once as the unit multiplies.
pub(super) fn fits_at_once(inner: usize) -> bool {
    AT_ONCE * inner <= PACKED_AT_ONCE
}

/// A block of a matmul of packed matrices: `rows x columns` elements of the result, with the whole
/// inner extent.
#[derive(Clone, Copy)]
pub(super) struct TileBlock<'a> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    /// The first tile of the left matrix.
    pub(super) left: *const u16,
    pub(super) right: RightTiles<'a>,
    /// The first element of the result.
    pub(super) result: *mut f32,
    /// The stride between rows of the result.
    pub(super) apart: usize,
    /// Whether the product is added to the result.
    pub(super) adds: bool,
}

/// One or two tiles of rows by two tiles of columns of the result.
#[derive(Clone, Copy)]
struct TileSums {
    /// The tiles of each line of tiles.
    steps: usize,
    /// The first tiles of the first row and of the first column.
    left: *const u16,
    right: *const u16,
    result: *mut f32,
    apart: usize,
    adds: bool,
    /// Whether there are two tiles of rows.
    has_second: bool,
}

impl TileSums {
    /// Adds the products of tiles.
    ///
    /// # Safety
    /// See [`TileBlock::run`]. For AMX, this thread must have loaded its configuration.
    unsafe fn add_products(self, unit: TileUnit) {
        match unit {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            // SAFETY: guaranteed by the caller.
            TileUnit::Amx => unsafe { amx::add_products(self) },
            #[cfg(any(test, feature = "testing"))]
            // SAFETY: guaranteed by the caller.
            TileUnit::Emulated => unsafe { emulated::add_products(self) },
        }
    }
}

impl TileBlock<'_> {
    /// Computes the block, unless the step is to stop.
    ///
    /// # Safety
    /// The unit must be available. Matrices that are packed must be so by [`pack`], and each part
    /// of the block must lie in them. The result must be writable and not be accessed concurrently.
    pub(super) unsafe fn run(self, unit: TileUnit) {
        let (from, at) = match self.right {
            // SAFETY: guaranteed by the caller.
            RightTiles::Packed(right) => return unsafe { self.run_packed(unit, right) },
            RightTiles::Unpacked(from, at) => (from, at),
        };
        let line = steps(self.inner) * DEPTH;
        let columns_at_once = (PACKED_AT_ONCE / line / AT_ONCE).max(1) * AT_ONCE;
        let most = self.columns.next_multiple_of(AT_ONCE).min(columns_at_once) * line;
        with_memory::<f32>(most.div_ceil(2) + LINE / size_of::<f32>(), |memory| {
            let memory = bytemuck::cast_slice_mut::<f32, u16>(memory);
            // Tiles are read line by line.
            let aligned = memory.as_ptr().align_offset(LINE);
            let memory = &mut memory[aligned..][..most];
            for first in (0..self.columns).step_by(columns_at_once) {
                let columns = columns_at_once.min(self.columns - first);
                let panels = &mut memory[..columns.next_multiple_of(AT_ONCE) * line];
                pack(unit, ProductSide::Right, from, at, [self.inner, self.columns], first, panels);
                let result = self.result.wrapping_add(first);
                // SAFETY: guaranteed by the caller.
                unsafe { TileBlock { columns, result, ..self }.run_packed(unit, panels.as_ptr()) };
            }
        });
    }

    /// Computes a block of a right matrix that is packed.
    ///
    /// # Safety
    /// See [`run`](Self::run).
    unsafe fn run_packed(self, unit: TileUnit, right: *const u16) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        let _configuration = (unit == TileUnit::Amx).then(amx::Configuration::load);
        let steps = steps(self.inner);
        let mut edge = [0.0; AT_ONCE * AT_ONCE];
        for column in (0..self.columns).step_by(AT_ONCE) {
            if stop::is_set() {
                return;
            }
            for row in (0..self.rows).step_by(AT_ONCE) {
                let [rows, columns] = [self.rows - row, self.columns - column].map(|n| n.min(AT_ONCE));
                let result = self.result.wrapping_add(row * self.apart + column);
                let sums = TileSums {
                    steps,
                    left: self.left.wrapping_add(row * steps * DEPTH),
                    right: right.wrapping_add(column * steps * DEPTH),
                    result,
                    apart: self.apart,
                    adds: self.adds,
                    has_second: rows > LINES,
                };
                if columns == AT_ONCE && (rows == AT_ONCE || rows == LINES) {
                    // SAFETY: guaranteed by the caller, and the unit is configured.
                    unsafe { sums.add_products(unit) };
                    continue;
                }
                // SAFETY: guaranteed by the caller.
                let row_of = |r: usize| unsafe { std::slice::from_raw_parts_mut(result.add(r * self.apart), columns) };
                if self.adds {
                    (0..rows).for_each(|r| edge[r * AT_ONCE..][..columns].copy_from_slice(row_of(r)));
                }
                // SAFETY: as above. The edge has room for four tiles.
                unsafe { TileSums { result: edge.as_mut_ptr(), apart: AT_ONCE, ..sums }.add_products(unit) };
                (0..rows).for_each(|r| row_of(r).copy_from_slice(&edge[r * AT_ONCE..][..columns]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::bf16;

    /// Returns the units of this machine. The emulated one comes last.
    fn units() -> Vec<TileUnit> {
        let mut units = Vec::new();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        units.extend(amx::is_available().then_some(TileUnit::Amx));
        units.push(TileUnit::Emulated);
        units
    }

    /// Numbers of every magnitude: some are subnormal, or become it, or are not finite.
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let number = |_| match next() % 64 {
            0 => f32::from_bits(next() << 8),
            1 => f32::from_bits(next() % (1 << 23)),
            2 => 1e-20 * next() as f32,
            _ => next() as f32 / 8_388_608.0 - 1.0,
        };
        (0..n).map(number).collect()
    }

    /// Returns a matrix with the other order of elements.
    fn transposed(data: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
        (0..data.len()).map(|i| data[i % rows * columns + i / rows]).collect()
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    const SHAPES: [[usize; 3]; 7] =
        [[1, 1, 1], [16, 32, 32], [17, 33, 31], [48, 40, 65], [5, 100, 16], [70, 7, 33], [33, 300, 90]];

    /// Packs both matrices in each of their orders, and compares the panels of all units.
    #[test]
    fn units_pack_equally() {
        for [m, k, n] in SHAPES {
            for (side, lines) in [(ProductSide::Left, m), (ProductSide::Right, n)] {
                let along = numbers(lines * k, 1);
                let across = transposed(&along, [lines, k]);
                let pack = |unit, from: &[f32], at| {
                    let mut to = vec![0xffff; packed_len(side, k, lines)];
                    // In two parts, as two threads would.
                    let (first, second) = to.split_at_mut(packed_len(side, k, lines_at_once(side).min(lines)));
                    pack(unit, side, from, at, [k, lines], 0, first);
                    pack(unit, side, from, at, [k, lines], lines_at_once(side), second);
                    to
                };
                let expected = pack(TileUnit::Emulated, &along, Strides { down: 1, right: k });
                let count = expected.iter().filter(|&&bits| bits != 0).count();
                let non_zeros = along.iter().filter(|&&x| bf16::from_f32(x).to_bits() != 0).count();
                assert_eq!(count, non_zeros, "the rest is zero");
                for unit in units() {
                    for (from, at) in
                        [(&along, Strides { down: 1, right: k }), (&across, Strides { down: lines, right: 1 })]
                    {
                        assert_eq!(pack(unit, from, at), expected, "{unit:?} {side:?} {lines}x{k} {at:?}");
                    }
                }
            }
        }
    }

    /// Compares the sums of all units with each other, to the last bit, and with plain ones.
    #[test]
    fn units_compute_equal_sums() {
        for ([m, k, n], seed) in SHAPES.into_iter().zip(2..) {
            for is_usual in [true, false] {
                // Positive numbers have no sum that cancels, which plain sums could not check.
                let usual = |x: f32| if x.is_nan() { 1.0 } else { x.clamp(-1.0, 1.0) + 1.5 };
                let numbers = |n| numbers(n, seed).into_iter().map(|x| if is_usual { usual(x) } else { x }).collect();
                let (a, b): (Vec<f32>, Vec<f32>) = (numbers(m * k), numbers(k * n));
                for adds in [false, true] {
                    let results = units().into_iter().flat_map(|unit| {
                        let mut left = vec![0; packed_len(ProductSide::Left, k, m)];
                        let mut right = vec![0; packed_len(ProductSide::Right, k, n)];
                        pack(unit, ProductSide::Left, &a, Strides { down: 1, right: k }, [k, m], 0, &mut left);
                        pack(unit, ProductSide::Right, &b, Strides { down: n, right: 1 }, [k, n], 0, &mut right);
                        let apart = n + 3;
                        let unpacked = RightTiles::Unpacked(&b, Strides { down: n, right: 1 });
                        [RightTiles::Packed(right.as_ptr()), unpacked].map(|right| {
                            let mut result = vec![0.25; m * apart];
                            let block = TileBlock {
                                rows: m,
                                columns: n,
                                inner: k,
                                left: left.as_ptr(),
                                right,
                                result: result.as_mut_ptr(),
                                apart,
                                adds,
                            };
                            // SAFETY: the matrices have the length of packed ones, and `m` rows fit
                            // the result.
                            unsafe { block.run(unit) };
                            (unit, result)
                        })
                    });
                    let results: Vec<(TileUnit, Vec<f32>)> = results.collect();
                    let (_, expected) = results.last().expect("there is the emulated one");
                    for (unit, result) in &results {
                        assert_eq!(bits(result), bits(expected), "{unit:?} {m}x{k}x{n} {adds}");
                    }
                    for (i, &x) in expected.iter().enumerate() {
                        let (row, column) = (i / (n + 3), i % (n + 3));
                        if column >= n {
                            assert_eq!(x, 0.25, "elements between rows stay");
                        } else if is_usual {
                            let rounded = |x: f32| f64::from(bf16::from_f32(x).to_f32());
                            let product = |p: usize| rounded(a[row * k + p]) * rounded(b[p * n + column]);
                            let sum = (0..k).map(product).sum::<f64>() + if adds { 0.25 } else { 0.0 };
                            assert!((f64::from(x) - sum).abs() <= 1e-6 * k as f64 * sum.abs(), "{x} and {sum}");
                        }
                    }
                }
            }
        }
    }
}
