//! The gradient of a convolution with respect to its filters.
//!
//! For filter `o` and place `k` (a channel and a window element), it is the sum of
//! `dy[o, p] * window[k, p]` over all positions of all images. Positions are contiguous in both, so
//! vectors are along the positions. Each sum of a block of filters and places has a vector of
//! partial sums, which are added at the end.
//!
//! Images are divided among tasks, whose results a separate operation adds. Filters are divided,
//! too.

use super::implicit_gemm::{Lines, copy};
use super::{Geometry, LineSegments, PARALLEL, PARTS, Panel, divisor, inside};
use crate::cpu::memory::Sources;
use crate::cpu::memory::TensorOperand;
use crate::cpu::vector::{InstructionSet, Lane, Task, Vector};
use crate::threads;
use anabranch_dsl::DType;

/// The filter gradient of a convolution of row-major tensors.
#[derive(Clone, Debug)]
pub(crate) struct WeightGrad {
    geometry: Geometry,
    taps: Vec<[isize; 3]>,
    /// Number of filters per task.
    filters: usize,
    /// Number of parts into which the images are divided.
    splits: usize,
    /// Whether the positions of all images are contiguous for each filter: `dy` is
    /// `[filters, batch, ..]`.
    merged: bool,
}

/// Numbers of filters and places per block of sums, and of positions per block of windows.
const FILTERS: usize = 64;
const PLACES: usize = 12;
const POSITIONS: usize = 512;
/// At least the number of lanes of any vector.
const LANES: usize = 16;
/// Maximum number of elements of all partial results.
const PARTIAL: usize = 1 << 21;
/// Minimum number of positions of an image that is not concatenated with others.
const LARGE: usize = 400;

impl WeightGrad {
    pub(crate) fn new(geometry: &Geometry) -> WeightGrad {
        let g = geometry.clone();
        let filters = divisor(g.filters, FILTERS);
        let size = g.groups * g.filters * g.channels * g.window();
        let parts = g.groups * (g.filters / filters.max(1)).max(1);
        let wanted = if parts < PARTS { PARTS.div_ceil(parts) } else { 1 };
        let splits = wanted.min(g.batch).min(PARTIAL / size.max(1)).max(1);
        let merged = g.y.iter().product::<usize>() < LARGE && g.batch > 1;
        WeightGrad { taps: g.taps(), filters, splits, merged, geometry: g }
    }

    fn multiplications(&self) -> usize {
        let g = &self.geometry;
        g.batch * g.y.iter().product::<usize>() * g.groups * g.filters * g.channels * g.window()
    }

    /// Returns the number of contiguous partial results that [`run`](Self::run) writes.
    pub(crate) fn splits(&self) -> usize {
        self.splits
    }

    /// Returns whether `dy` must have the filters as first axis, before the batch.
    pub(crate) fn filters_first(&self) -> bool {
        self.merged
    }

    /// Runs the kernel. The operands are `x` and `dy`, both dense.
    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let (x, dy) = (operands[0].view(), operands[1].view());
        let level = InstructionSet::best();
        match x.dtype {
            DType::F32 => {
                let [x, dy] = [x, dy].map(|v| sources.contiguous::<f32>(v));
                self.run_at(level, x, dy, bytemuck::cast_slice_mut(out));
            }
            DType::F64 => {
                let [x, dy] = [x, dy].map(|v| sources.contiguous::<f64>(v));
                self.run_at(level, x, dy, bytemuck::cast_slice_mut(out));
            }
            other => panic!("a convolution of {other}"),
        }
    }

    pub(super) fn run_at<T: Lane>(&self, level: InstructionSet, x: &[T], dy: &[T], out: &mut [T]) {
        let g = &self.geometry;
        let places = g.channels * g.window();
        if out.is_empty() {
            return;
        }
        let all_filters = g.groups * g.filters;
        let run = |(i, out): (usize, &mut [T])| {
            let (split, first) = (i * self.filters / all_filters, i * self.filters % all_filters);
            let images = split * g.batch / self.splits..(split + 1) * g.batch / self.splits;
            level.run(FilterChunk { all: self, x, dy, out, images, first });
        };
        let part = self.filters * places;
        if self.multiplications() < PARALLEL {
            out.chunks_mut(part).enumerate().for_each(run);
        } else {
            threads::chunks_until_stop(out, part, run);
        }
    }
}

/// Some filters of a group, over some images.
struct FilterChunk<'a, T> {
    all: &'a WeightGrad,
    x: &'a [T],
    dy: &'a [T],
    /// `[filters, places]`.
    out: &'a mut [T],
    images: std::ops::Range<usize>,
    /// The first filter.
    first: usize,
}

/// Number of columns of a panel row, including those overwritten after its end.
const WIDTH: usize = POSITIONS + LANES;
/// For each filter, the last positions of a block, which do not fill a vector.
#[repr(align(64))]
struct Rest<T>([T; FILTERS * LANES]);

impl<T: Lane> Task<T> for FilterChunk<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self) {
        let g = &self.all.geometry;
        let places = g.channels * g.window();
        let plane: usize = g.y.iter().product();
        let all_filters = g.groups * g.filters;
        let n = self.all.filters;
        let group = self.first / g.filters;
        // SAFETY: the caller guarantees that the processor supports the instructions.
        let zero = unsafe { V::splat(T::default()) };
        let mut sums = [[zero; PLACES]; FILTERS];
        let mut panel = Panel([T::default(); PLACES * WIDTH]);
        let mut rest = Rest([T::default(); FILTERS * LANES]);
        let mut k = 0;
        while k < places {
            let some = (places - k).min(PLACES);
            sums[..n].fill([zero; PLACES]);
            // Number of images processed together, and the stride between filters.
            let (step, apart) = if self.all.merged { (self.images.len().max(1), g.batch * plane) } else { (1, plane) };
            for image in self.images.clone().step_by(step) {
                let columns = step * plane;
                let start = match self.all.merged {
                    true => self.first * apart + image * plane,
                    false => (image * all_filters + self.first) * plane,
                };
                for from in (0..columns).step_by(POSITIONS) {
                    if threads::stop::is_set() {
                        return;
                    }
                    let to = columns.min(from + POSITIONS);
                    self.pack::<V>(image, group, [k, some], [from, to], &mut panel.0);
                    let dy = StridedRows { data: &self.dy[start + from..], apart, n: to - from };
                    // SAFETY: as above.
                    unsafe { add::<V, ROWS>(&mut sums, n, some, &dy, &panel.0, &mut rest.0) };
                }
            }
            for (o, sums) in sums[..n].iter().enumerate() {
                for (i, &sum) in sums[..some].iter().enumerate() {
                    // SAFETY: as above.
                    self.out[o * places + k + i] = unsafe { sum.sum() };
                }
            }
            k += some;
        }
    }
}

/// Rows of `n` elements with stride `apart`.
struct StridedRows<'a, T> {
    data: &'a [T],
    apart: usize,
    n: usize,
}

/// Adds the products of `n` rows of `dy` and `some` rows of a panel.
///
/// # Safety
/// The processor must support the instructions of `V`.
#[inline(always)]
unsafe fn add<V: Vector, const ROWS: usize>(
    sums: &mut [[V; PLACES]; FILTERS],
    n: usize,
    some: usize,
    dy: &StridedRows<'_, V::T>,
    panel: &[V::T; PLACES * WIDTH],
    rest: &mut [V::T; FILTERS * LANES],
) {
    let full = dy.n - dy.n % V::N;
    if full < dy.n {
        for (o, rest) in rest.chunks_exact_mut(LANES).enumerate().take(n) {
            rest[..dy.n - full].copy_from_slice(&dy.data[o * dy.apart + full..][..dy.n - full]);
            rest[dy.n - full..].fill(V::T::default());
        }
    }
    let mut o = 0;
    while o < n {
        // SAFETY: the processor supports the instructions.
        o += unsafe {
            match n - o {
                left if const { ROWS >= 8 } && left >= 4 => tiles::<V, 4>(sums, o, some, dy, panel, rest),
                left if left >= 2 => tiles::<V, 2>(sums, o, some, dy, panel, rest),
                _ => tiles::<V, 1>(sums, o, some, dy, panel, rest),
            }
        };
    }
}

/// Adds the products of `R` filters from `o` on. Returns `R`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers are named by constant indices into several arrays")]
unsafe fn tiles<V: Vector, const R: usize>(
    sums: &mut [[V; PLACES]; FILTERS],
    o: usize,
    some: usize,
    dy: &StridedRows<'_, V::T>,
    panel: &[V::T; PLACES * WIDTH],
    rest: &[V::T; FILTERS * LANES],
) -> usize {
    const C: usize = PLACES / 2;
    let full = dy.n - dy.n % V::N;
    assert!(dy.n <= POSITIONS && (o + R - 1) * dy.apart + dy.n <= dy.data.len() && o + R <= FILTERS);
    for k in (0..some).step_by(C) {
        // SAFETY: the caller guarantees that the processor supports the instructions. Rows of `dy`
        // end inside its data, as asserted, and vectors end at `full`. The panel has `PLACES` rows
        // of `WIDTH` elements, of which `full` and one vector more are read.
        unsafe {
            let mut tile = [[V::splat(V::T::default()); C]; R];
            for r in 0..R {
                for c in 0..C {
                    tile[r][c] = sums[o + r][k + c];
                }
            }
            let rows = dy.data.as_ptr().add(o * dy.apart);
            let windows = panel.as_ptr().add(k * WIDTH);
            let mut p = 0;
            while p < full {
                let mut y = [V::splat(V::T::default()); R];
                for r in 0..R {
                    y[r] = V::load(rows.add(r * dy.apart + p));
                }
                for c in 0..C {
                    let x = V::load(windows.add(c * WIDTH + p));
                    for r in 0..R {
                        tile[r][c] = y[r].mul_add(x, tile[r][c]);
                    }
                }
                p += V::N;
            }
            if full < dy.n {
                for r in 0..R {
                    let y = V::load(rest.as_ptr().add((o + r) * LANES));
                    for c in 0..C {
                        tile[r][c] = y.mul_add(V::load(windows.add(c * WIDTH + full)), tile[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    sums[o + r][k + c] = tile[r][c];
                }
            }
        }
    }
    R
}

impl<T: Lane> FilterChunk<'_, T> {
    /// Fills a panel with the window elements of the columns `from..to` of images from `image` on,
    /// for places from `k` on. Pads each row with one vector of zeros.
    #[inline(always)]
    fn pack<V: Vector<T = T>>(
        &self,
        image: usize,
        group: usize,
        [k, some]: [usize; 2],
        [from, to]: [usize; 2],
        panel: &mut [T; PLACES * WIDTH],
    ) {
        let g = &self.all.geometry;
        let (window, plane): (usize, usize) = (self.all.taps.len(), g.x.iter().product());
        for (i, row) in panel.chunks_exact_mut(WIDTH).enumerate().take(some) {
            let (channel, tap) = ((k + i) / window, self.all.taps[(k + i) % window]);
            for piece in LineSegments::new(g.y, from, to) {
                let at: [isize; 3] = std::array::from_fn(|i| (piece.g[i] * g.stride[i]) as isize + tap[i]);
                let is_inside = |i: usize| at[i] >= 0 && (at[i] as usize) < g.x[i];
                let (lo, hi) = match is_inside(0) && is_inside(1) {
                    true => inside(at[2], g.stride[2], piece.len, g.x[2]),
                    false => (0, 0),
                };
                let line = if hi > 0 { (at[0] as usize * g.x[1] + at[1] as usize) * g.x[2] } else { 0 };
                let channel = ((image + piece.image) * g.groups + group) * g.channels + channel;
                let start = (channel * plane + line) as isize + at[2];
                let lines = Lines { start, step: g.stride[2], apart: 0, n: 1, lo, hi, len: piece.len };
                // SAFETY: elements `lo..hi` are inside the axis, and thus in `x`. Elements written
                // after a segment are overwritten by the next segment, or by the zeros below. The
                // caller of `run` guarantees that the processor supports the instructions.
                unsafe { copy::<V>(self.x, &lines, &mut row[piece.column..], 0) };
            }
            row[to - from..][..V::N].fill(T::default());
        }
    }
}
