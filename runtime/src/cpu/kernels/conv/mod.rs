//! Convolutions and their gradients as implicit matrix products.
//!
//! The shape selects one of two methods:
//!
//! | operation | channels last | row-major |
//! |---|---|---|
//! | `conv` | [`ChannelsLast`]: windows of `x`, times filters | [`ImplicitGemm`]: filters, times windows of `x` |
//! | `conv_input_grad` | the same, windows of `y` and filters with channels first | the same |
//! | `conv_weight_grad` | [`ChannelsLastWeightGrad`]: windows of `x`, times `y` | [`WeightGrad`]: `y`, times windows of `x` |
//!
//! Channels-last tensors are `[batch, .., channels]` in memory, and vectors are along the channels
//! of the result. Windows are read from a padded copy of the part of the source that they cover
//! ([`padded_patches`]). This method requires enough channels to fill a vector, memory for that
//! copy, and one group. For depthwise convolutions, the method follows the layout of the source.
//!
//! Row-major tensors are `[batch, channels, ..]` in memory, and vectors are along the positions.
//! Blocks of windows are gathered into a small panel on the stack and multiplied from there. Few
//! filters with small windows need no panel. This method handles groups, few channels, and image
//! lines too long for a box.
//!
//! Convolutions over one or two axes are extended to three by leading axes of extent 1. Work is
//! divided into parts whose sizes depend only on the shapes, so results are bitwise identical for
//! any number of threads. Nothing allocates, except for the boxes of a thread, once.

mod channels_last;
mod channels_last_weight_grad;
mod implicit_gemm;
mod padded_patches;
mod phase;
mod weight_grad;

pub(crate) use channels_last::ChannelsLast;
pub(crate) use channels_last_weight_grad::ChannelsLastWeightGrad;
pub(crate) use implicit_gemm::ImplicitGemm;
pub(crate) use weight_grad::WeightGrad;

use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::attributes;

/// Minimum multiplications for several threads.
const PARALLEL: usize = 1 << 18;
/// Minimum number of channels for the channels-last layout.
pub(crate) const LANES: usize = 8;
/// Number of tasks that keeps threads busy.
const PARTS: usize = 8;

/// Rows of the right operand of a matmul, aligned with cache lines.
#[repr(align(64))]
struct Panel<T, const N: usize>([T; N]);

/// Shapes and attributes of a convolution over three axes.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Number of channels of `x` per group.
    pub(crate) channels: usize,
    /// Number of filters per group, which are channels of `y`.
    pub(crate) filters: usize,
    pub(crate) x: [usize; 3],
    pub(crate) y: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    /// Padding before each axis.
    low: [usize; 3],
}

/// Extends extents to three axes. Missing leading axes are `missing`.
pub(super) fn three(extents: &[usize], missing: usize) -> [usize; 3] {
    let mut all = [missing; 3];
    all[3 - extents.len()..].copy_from_slice(extents);
    all
}

impl Geometry {
    /// Returns the geometry of a convolution of `x` with filters `w` to `y`.
    pub(crate) fn new(x: &[usize], w: &[usize], y: &[usize], attrs: &Attrs) -> Geometry {
        let attributes::Conv { strides, padding, dilation, groups } = attributes::Conv::of(attrs);
        let low: Vec<usize> = padding.into_iter().step_by(2).collect();
        Geometry {
            batch: x[0],
            groups,
            channels: w[1],
            filters: w[0] / groups,
            x: three(&x[2..], 1),
            y: three(&y[2..], 1),
            kernel: three(&w[2..], 1),
            stride: three(&strides, 1),
            dilation: three(&dilation, 1),
            low: three(&low, 0),
        }
    }

    /// Returns the number of elements of a filter per channel.
    pub(crate) fn window(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Returns for each window element its offset in `x` at the first position.
    fn taps(&self) -> Vec<[isize; 3]> {
        let mut taps = Vec::with_capacity(self.window());
        for a in 0..self.kernel[0] {
            for b in 0..self.kernel[1] {
                for c in 0..self.kernel[2] {
                    let at = [a, b, c];
                    taps.push(std::array::from_fn(|i| (at[i] * self.dilation[i]) as isize - self.low[i] as isize));
                }
            }
        }
        taps
    }
}

/// A segment of a line of a grid of positions, along the last axis: `len` columns from `column` on.
#[derive(Clone, Copy, Debug, Default)]
struct LineSegment {
    column: usize,
    len: usize,
    image: usize,
    g: [usize; 3],
}

/// Iterator over the line segments of columns `from..to`, where the grids of several images are
/// concatenated.
struct LineSegments {
    grid: [usize; 3],
    next: LineSegment,
    left: usize,
}

impl LineSegments {
    #[inline(always)]
    fn new(grid: [usize; 3], from: usize, to: usize) -> LineSegments {
        let plane = grid[0] * grid[1] * grid[2];
        let (image, p) = (from / plane, from % plane);
        let g = [p / (grid[1] * grid[2]), p / grid[2] % grid[1], p % grid[2]];
        LineSegments { grid, next: LineSegment { column: 0, len: 0, image, g }, left: to - from }
    }
}

impl Iterator for LineSegments {
    type Item = LineSegment;

    #[inline(always)]
    fn next(&mut self) -> Option<LineSegment> {
        if self.left == 0 {
            return None;
        }
        let next = &mut self.next;
        let piece = LineSegment { len: (self.grid[2] - next.g[2]).min(self.left), ..*next };
        self.left -= piece.len;
        next.column += piece.len;
        next.g[2] = 0;
        next.g[1] += 1;
        if next.g[1] == self.grid[1] {
            next.g[1] = 0;
            next.g[0] += 1;
            if next.g[0] == self.grid[0] {
                next.g[0] = 0;
                next.image += 1;
            }
        }
        Some(piece)
    }
}

/// Returns the range `lo..hi` of `len` elements, beginning at `start` with stride `step`, that is
/// inside an axis.
#[inline(always)]
pub(super) fn inside(start: isize, step: usize, len: usize, extent: usize) -> (usize, usize) {
    let before = (-start).max(0) as usize;
    let left = (extent as isize - start).max(0) as usize;
    let (lo, hi) = match step {
        1 => (before, left),
        // A division costs as much as several elements, so avoid it.
        2 => (before.div_ceil(2), left.div_ceil(2)),
        _ => (before.div_ceil(step), left.div_ceil(step)),
    };
    let hi = hi.min(len);
    (lo.min(hi), hi)
}

/// Returns the largest divisor of `n` up to `most`.
fn divisor(n: usize, most: usize) -> usize {
    (1..=most.min(n).max(1)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::gemm;
    use crate::cpu::memory::MemoryLayout;
    use crate::cpu::vector::{InstructionSet, Lane};

    fn attrs(strides: [usize; 2], padding: [usize; 4], dilation: [usize; 2], groups: usize) -> Attrs {
        attributes::Conv { strides: strides.into(), padding: padding.into(), dilation: dilation.into(), groups }.into()
    }

    fn numbers<T: Lane + From<i8>>(n: usize) -> Vec<T> {
        // Small integers, for which every order of summation is exact.
        (0..n).map(|i| T::from((i * 7919 % 13) as i8 - 6)).collect()
    }

    /// Compares all instruction sets of this processor, for each kernel.
    fn levels_agree<T: Lane + From<i8> + std::fmt::Debug>() {
        for (x, w, y, attrs) in [
            ([2, 3, 9, 23], [13, 3, 3, 3], [2, 13, 9, 23], attrs([1, 1], [1, 1, 1, 1], [1, 1], 1)),
            ([3, 4, 8, 11], [6, 2, 3, 2], [3, 6, 4, 10], attrs([2, 1], [1, 1, 0, 0], [1, 1], 2)),
            ([1, 5, 12, 40], [5, 1, 3, 3], [1, 5, 12, 38], attrs([1, 1], [2, 2, 1, 1], [2, 2], 5)),
            ([17, 8, 6, 5], [40, 8, 3, 2], [17, 40, 3, 2], attrs([2, 3], [1, 1, 1, 0], [1, 1], 1)),
            ([2, 60, 30, 31], [8, 60, 2, 2], [2, 8, 27, 29], attrs([1, 1], [0, 0, 0, 0], [3, 2], 1)),
            ([3, 21, 7, 8], [21, 1, 3, 3], [3, 21, 7, 8], attrs([1, 1], [1, 1, 1, 1], [1, 1], 21)),
            ([2, 16, 9, 8], [16, 1, 2, 3], [2, 16, 4, 6], attrs([2, 1], [0, 0, 0, 0], [1, 1], 16)),
            ([1, 16, 1, 700], [19, 16, 1, 9], [1, 19, 1, 700], attrs([1, 1], [0, 0, 4, 4], [1, 1], 1)),
        ] {
            let g = Geometry::new(&x, &w, &y, &attrs);
            let [nx, nw, ny] = [x, w, y].map(|shape| shape.iter().product::<usize>());
            let (vx, vw, vy) = (numbers::<T>(nx), numbers::<T>(nw), numbers::<T>(ny));
            let weights = WeightGrad::new(&g);
            let plane = y[2] * y[3];
            let from = |i: usize| (i / plane % y[0] * y[1] + i / plane / y[0]) * plane + i % plane;
            let dy: Vec<T> = (0..ny).map(|i| vy[if weights.filters_first() { from(i) } else { i }]).collect();
            let mut results: Vec<[Vec<T>; 3]> = Vec::new();
            for level in InstructionSet::all() {
                let mut out = [ny, nx, nw * weights.splits()].map(|n| vec![T::from(99); n]);
                ImplicitGemm::conv(&g).run_at(level, &vx, &vw, &mut out[0], &|_, _| ());
                ImplicitGemm::transpose(&g).run_at(level, &vy, &vw, &mut out[1], &|_, _| ());
                weights.run_at(level, &vx, &dy, &mut out[2]);
                results.push(out);
            }
            assert!(results.windows(2).all(|r| r[0] == r[1]), "{g:?}");
            if g.groups == 1 || w[1] == 1 && w[0] == x[1] {
                channels_last_agrees(&g, [x, y], [&vx, &vw, &vy], &results[0]);
            }
        }
    }

    /// Converts `[batch, channels, ..]` to `[batch, .., channels]`.
    fn last<T: Copy>(shape: [usize; 4], from: &[T]) -> Vec<T> {
        let plane = shape[2] * shape[3];
        let channels = |p: usize| (0..shape[1]).map(move |c| c * plane + p);
        (0..shape[0]).flat_map(|n| (0..plane).flat_map(channels).map(move |i| from[n * shape[1] * plane + i])).collect()
    }

    /// Compares the channels-last kernels with the given results, for each layout of the source.
    fn channels_last_agrees<T: Lane + From<i8> + std::fmt::Debug>(
        g: &Geometry,
        [x, y]: [[usize; 4]; 2],
        [vx, vw, vy]: [&[T]; 3],
        results: &[Vec<T>; 3],
    ) {
        let matrix = |level: InstructionSet, rows: usize, w: &[T]| {
            let inner = w.len() / rows;
            let mut packed = vec![T::from(99); gemm::packed_len::<T>(level, inner, rows)];
            gemm::pack(level, w, gemm::Strides { down: 1, right: inner }, inner, rows, 0, &mut packed);
            packed
        };
        let sum = |parts: &[T], n: usize, at: usize| {
            (0..parts.len() / n).fold(T::default(), |sum, part| sum + parts[part * n + at])
        };
        for (level, order) in
            InstructionSet::all().flat_map(|l| [MemoryLayout::RowMajor, MemoryLayout::ChannelsLast].map(|o| (l, o)))
        {
            let arranged = |shape, v: &[T]| if order == MemoryLayout::RowMajor { v.to_vec() } else { last(shape, v) };
            if let Some(conv) = ChannelsLast::conv(g, order) {
                let mut out = vec![T::from(99); vy.len()];
                let w = matrix(level, y[1], vw);
                conv.run_at(level, &arranged(x, vx), &w, &mut out, &|_, _| ());
                assert!(out == last(y, &results[0]), "{level:?} {order:?} {g:?}");
            }
            if let Some(conv) = ChannelsLast::transpose(g, order) {
                let mut out = vec![T::from(99); vx.len()];
                let w = matrix(level, x[1], vw);
                conv.run_at(level, &arranged(y, vy), &w, &mut out, &|_, _| ());
                assert!(out == last(x, &results[1]), "{level:?} {order:?} {g:?}");
            }
            if let Some(kernel) = ChannelsLastWeightGrad::new(g, order) {
                let mut out = vec![T::from(99); vw.len() * kernel.splits()];
                kernel.run_at(level, &arranged(x, vx), &last(y, vy), &mut out);
                let places = vw.len() / y[1];
                for i in 0..vw.len() {
                    let expected = sum(&results[2], vw.len(), i);
                    let found = sum(&out, vw.len(), i % places * y[1] + i / places);
                    assert_eq!(found, expected, "{i}: {level:?} {order:?} {g:?}");
                }
            }
        }
    }

    /// The shape selects the method. Too few filters, groups, and lines too long for a box use the
    /// row-major kernels.
    #[test]
    fn shapes_choose_a_method() {
        let attrs = |groups| attrs([1, 1], [1, 1, 1, 1], [1, 1], groups);
        let chosen = |x: [usize; 4], filters: usize, groups: usize| {
            let w = [filters, x[1] / groups, 3, 3];
            let g = Geometry::new(&x, &w, &[x[0], filters, x[2], x[3]], &attrs(groups));
            let order = MemoryLayout::ChannelsLast;
            [ChannelsLast::conv(&g, order).is_some(), ChannelsLastWeightGrad::new(&g, order).is_some()]
        };
        assert_eq!(chosen([8, 32, 14, 14], 64, 1), [true; 2]);
        assert_eq!(chosen([8, 32, 14, 14], 4, 1), [false; 2]);
        assert_eq!(chosen([8, 32, 14, 14], 64, 2), [false; 2]);
        assert_eq!(chosen([8, 64, 512, 512], 64, 1), [false; 2]);
    }

    #[test]
    fn levels_agree_for_f32() {
        levels_agree::<f32>();
    }

    #[test]
    fn levels_agree_for_f64() {
        levels_agree::<f64>();
    }

    #[test]
    fn pieces_are_the_lines_of_a_grid() {
        let all: Vec<_> = LineSegments::new([1, 2, 3], 2, 11).map(|p| (p.column, p.len, p.image, p.g)).collect();
        let expected = [(0, 1, 0, [0, 0, 2]), (1, 3, 0, [0, 1, 0]), (4, 3, 1, [0, 0, 0]), (7, 2, 1, [0, 1, 0])];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_lies_inside_of_an_axis_is_counted() {
        for extent in 0..6usize {
            for start in -7..7isize {
                for step in 1..4 {
                    for len in 0..6 {
                        let is_inside = |i: &usize| (0..extent as isize).contains(&(start + (i * step) as isize));
                        let (lo, hi) = inside(start, step, len, extent);
                        let expected: Vec<usize> = (0..len).filter(is_inside).collect();
                        assert_eq!((lo..hi).collect::<Vec<_>>(), expected, "{start} {step} {len} {extent}");
                    }
                }
            }
        }
    }
}
