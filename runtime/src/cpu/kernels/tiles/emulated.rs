//! The tile unit in plain loops, which define the packed form and the order of sums.

use super::{DEPTH, LINES, TILE, TileSums};
use crate::cpu::kernels::gemm::Strides;
use crate::cpu::kernels::matmul::ProductSide;
use anabranch_dsl::bf16;

/// Returns the place of a number in a tile.
fn place(side: ProductSide, line: usize, number: usize) -> usize {
    match side {
        ProductSide::Left => line * DEPTH + number,
        ProductSide::Right => number / 2 * 2 * LINES + 2 * line + number % 2,
    }
}

/// Packs the tile at the start of `from`.
pub(super) fn pack(side: ProductSide, from: &[f32], at: Strides, [depth, lines]: [usize; 2], to: &mut [u16; TILE]) {
    to.fill(0);
    for line in 0..lines {
        for number in 0..depth {
            let x = from[line * at.right + number * at.down];
            to[place(side, line, number)] = bf16::from_f32(x).to_bits();
        }
    }
}

/// Returns a number, or zero of its sign if it is subnormal.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Adds products of tiles.
///
/// # Safety
/// See [`TileBlock::run`](super::TileBlock::run).
pub(super) unsafe fn add_products(sums: TileSums) {
    for row in 0..if sums.has_second { 2 * LINES } else { LINES } {
        for column in 0..2 * LINES {
            // SAFETY: guaranteed by the caller.
            let element = unsafe { &mut *sums.result.add(row * sums.apart + column) };
            let mut sum = if sums.adds { *element } else { 0.0 };
            for step in 0..sums.steps {
                let number = |side, first: *const u16, line: usize, number: usize| {
                    let tile = line / LINES * sums.steps + step;
                    // SAFETY: guaranteed by the caller.
                    let bits = unsafe { *first.add(tile * TILE + place(side, line % LINES, number)) };
                    flushed(bf16::from_bits(bits).to_f32())
                };
                let mut halves = [0.0f32; 2];
                for p in 0..DEPTH {
                    let x = number(ProductSide::Left, sums.left, row, p);
                    let w = number(ProductSide::Right, sums.right, column, p);
                    halves[p % 2] = flushed(x.mul_add(w, halves[p % 2]));
                }
                sum = flushed(flushed(sum) + flushed(halves[0] + halves[1]));
            }
            *element = sum;
        }
    }
}
