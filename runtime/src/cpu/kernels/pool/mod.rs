//! Pooling: maxima and means of windows over the last axes, and their gradients.
//!
//! A line of positions is computed in blocks, with one vectorized pass over the block per window
//! element. Maxima track their positions. Gradients recompute these, which costs less than storing
//! them. Work is divided among threads by planes of the leading axes, or by images for
//! channels-last tensors, in parts whose sizes depend only on the shapes.

mod channels_last;

use super::conv::{inside, three};
use crate::cpu::memory::Sources;
use crate::cpu::memory::{MemoryLayout, TensorOperand};
use crate::cpu::multiversion::wide;
use crate::cpu::vector::Lane;
use crate::threads;
use anabranch_dsl::DType;
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::attributes;

/// The pooling function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The maximum of each window.
    Max,
    /// The elements of the second operand at the positions of the maxima of the first.
    Pick,
    /// Adds the second operand at the positions of the maxima of the first.
    MaxGrad,
    /// The mean of each window.
    Mean,
    /// Distributes each element equally over its window.
    MeanGrad,
}

/// Pooling of dense tensors.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    x: [usize; 3],
    y: [usize; 3],
    window: [usize; 3],
    stride: [usize; 3],
    low: [usize; 3],
    /// Whether means include padding.
    count_padding: bool,
    /// The number of channels of a channels-last tensor.
    channels: Option<usize>,
}

/// Number of positions per block.
const BLOCK: usize = 64;
/// Minimum number of elements per task.
const PART: usize = 1 << 14;
/// The position of the maximum of an empty window.
const NOWHERE: u32 = u32::MAX;

/// An element type of pooling.
trait PoolElement: Lane {
    fn from_count(n: usize) -> Self;
}
macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl PoolElement for $t {
            fn from_count(n: usize) -> $t { n as $t }
        }
    )*};
}
numbers!(f32 f64);

impl Pool {
    /// Creates the kernel. `x` and `y` are the shapes of the tensors with one element per window
    /// element and per window, whatever their layout.
    pub(crate) fn new(pooling: Pooling, x: &[usize], y: &[usize], order: MemoryLayout, attrs: &Attrs) -> Pool {
        let attributes::Pool { window, strides, padding } = attributes::Pool::of(attrs);
        let first = x.len() - window.len();
        let low: Vec<usize> = padding.into_iter().step_by(2).collect();
        Pool {
            pooling,
            x: three(&x[first..], 1),
            y: three(&y[first..], 1),
            window: three(&window, 1),
            stride: three(&strides, 1),
            low: three(&low, 0),
            count_padding: matches!(pooling, Pooling::Mean | Pooling::MeanGrad)
                && attributes::MeanPool::of(attrs).count_padding,
            channels: (order == MemoryLayout::ChannelsLast).then(|| x[first - 1]),
        }
    }

    /// Returns whether positions in a plane fit in 32 bits.
    pub(crate) fn takes(x: &[usize]) -> bool {
        x.iter().product::<usize>() < NOWHERE as usize
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        match operands[0].view().dtype {
            DType::F32 => self.run_as::<f32>(operands, out, sources),
            DType::F64 => self.run_as::<f64>(operands, out, sources),
            other => panic!("pooling of {other}"),
        }
    }

    fn run_as<T: PoolElement + crate::cpu::element::CpuElement<Mem = T>>(
        &self,
        operands: &[TensorOperand],
        out: &mut [u8],
        sources: &Sources<'_>,
    ) {
        let out: &mut [T] = bytemuck::cast_slice_mut(out);
        if out.is_empty() {
            return;
        }
        let read = |i: usize| sources.contiguous::<T>(operands[i].view());
        let [x_plane, y_plane] = [self.x, self.y].map(|n| n.iter().product::<usize>() * self.channels.unwrap_or(1));
        let planes = (PART / x_plane.max(1)).max(1);
        let (first, second) = (read(0), if operands.len() > 1 { read(1) } else { &[] });
        let sizes = match self.pooling {
            Pooling::Max | Pooling::Mean => [y_plane, x_plane, 0],
            Pooling::Pick => [y_plane, x_plane, x_plane],
            Pooling::MaxGrad => [x_plane, x_plane, y_plane],
            Pooling::MeanGrad => [x_plane, y_plane, 0],
        };
        // A call through a pointer: the loops are compiled once, not for each caller.
        let run: &(dyn Fn(usize, &mut [T]) + Sync) = &|part, out| {
            wide(
                #[inline(always)]
                || {
                    for (i, out) in out.chunks_exact_mut(sizes[0]).enumerate() {
                        let i = part * planes + i;
                        let (a, b) = (&first[i * sizes[1]..][..sizes[1]], &second[i * sizes[2]..][..sizes[2]]);
                        if let Some(channels) = self.channels {
                            self.image(channels_last::Image { channels, first: a, second: b, out });
                            continue;
                        }
                        match self.pooling {
                            Pooling::Mean => self.means(a, out),
                            Pooling::MeanGrad => self.shares(a, out),
                            Pooling::Max | Pooling::Pick | Pooling::MaxGrad => self.with_maxima(a, b, out),
                        }
                    }
                },
            );
        };
        if out.len() / sizes[0] <= planes {
            out.chunks_mut(planes * sizes[0]).enumerate().for_each(|(part, out)| run(part, out));
        } else {
            threads::chunks_until_stop(out, planes * sizes[0], |(part, out)| run(part, out));
        }
    }

    /// Calls `f(index of the first position, number of positions, first position)` for each block,
    /// until the step is to stop.
    #[inline(always)]
    fn blocks(&self, mut f: impl FnMut(usize, usize, [usize; 3])) {
        let mut at = 0;
        for g0 in 0..self.y[0] {
            for g1 in 0..self.y[1] {
                if threads::stop::is_set() {
                    return;
                }
                for g2 in (0..self.y[2]).step_by(BLOCK) {
                    let n = (self.y[2] - g2).min(BLOCK);
                    f(at, n, [g0, g1, g2]);
                    at += n;
                }
            }
        }
    }

    /// Calls `f(offset, first, end)` for each element of the windows of `n` positions from `g` on,
    /// in order.
    ///
    /// For position `i` in `first..end`, the element is at `offset` plus `i` strides in the plane.
    /// For other positions it is outside.
    #[inline(always)]
    fn elements(&self, g: [usize; 3], n: usize, mut f: impl FnMut(isize, usize, usize)) {
        let start: [isize; 3] = std::array::from_fn(|i| (g[i] * self.stride[i]) as isize - self.low[i] as isize);
        for a in 0..self.window[0] as isize {
            for b in 0..self.window[1] as isize {
                let (i, j) = (start[0] + a, start[1] + b);
                if i < 0 || j < 0 || i as usize >= self.x[0] || j as usize >= self.x[1] {
                    continue;
                }
                let line = (i as usize * self.x[1] + j as usize) * self.x[2];
                for c in 0..self.window[2] as isize {
                    let (lo, hi) = inside(start[2] + c, self.stride[2], n, self.x[2]);
                    if lo < hi {
                        f(line as isize + start[2] + c, lo, hi);
                    }
                }
            }
        }
    }

    /// Calls `f(index of the first position, maxima, their positions)` for each block.
    #[inline(always)]
    fn maxima<T: PoolElement>(&self, x: &[T], mut f: impl FnMut(usize, &[T], &[u32])) {
        let stride = self.stride[2];
        let mut line = [T::default(); BLOCK];
        self.blocks(
            #[inline(always)]
            |at, n, g| {
                let mut best = [T::default(); BLOCK];
                let mut places = [NOWHERE; BLOCK];
                self.elements(
                    g,
                    n,
                    #[inline(always)]
                    |place, lo, hi| {
                        let from = (place + (lo * stride) as isize) as usize;
                        // Elements after the last position may be overwritten, so write whole
                        // vectors.
                        let whole = (lo + (hi - lo).next_multiple_of(8)).min(BLOCK);
                        let hi = if hi == n && from + (whole - lo - 1) * stride < x.len() { whole } else { hi };
                        let line = every(&x[from..], stride, &mut line[..hi - lo]);
                        let found = best[lo..hi].iter_mut().zip(&mut places[lo..hi]);
                        for (i, ((best, place), &x)) in found.zip(line).enumerate() {
                            take_larger(best, place, x, (from + i * stride) as u32);
                        }
                    },
                );
                f(at, &best[..n], &places[..n]);
            },
        );
    }

    /// Computes a plane of a function of maxima.
    #[inline(always)]
    fn with_maxima<T: PoolElement>(&self, a: &[T], b: &[T], out: &mut [T]) {
        if self.pooling == Pooling::MaxGrad {
            out.fill(T::default());
        }
        self.maxima(
            a,
            #[inline(always)]
            |at, best, places| match self.pooling {
                Pooling::Pick => {
                    out[at..].iter_mut().zip(places).for_each(|(y, &p)| *y = element_or_zero(b, p));
                }
                Pooling::MaxGrad => {
                    for (&dy, &p) in b[at..].iter().zip(places) {
                        if p != NOWHERE {
                            out[p as usize] = out[p as usize] + dy;
                        }
                    }
                }
                _ => out[at..at + best.len()].copy_from_slice(best),
            },
        );
    }

    /// Returns the divisor of the mean of a window.
    #[inline(always)]
    fn count<T: PoolElement>(&self, g: [usize; 3]) -> T {
        let met = |i: usize| {
            let start = (g[i] * self.stride[i]) as isize - self.low[i] as isize;
            let (lo, hi) = inside(start, 1, self.window[i], self.x[i]);
            hi - lo
        };
        T::from_count(if self.count_padding { self.window.iter().product() } else { met(0) * met(1) * met(2) })
    }

    #[inline(always)]
    fn means<T: PoolElement>(&self, x: &[T], out: &mut [T]) {
        let stride = self.stride[2];
        let mut line = [T::default(); BLOCK];
        self.blocks(
            #[inline(always)]
            |at, n, g| {
                let sums = &mut out[at..at + n];
                sums.fill(T::default());
                self.elements(
                    g,
                    n,
                    #[inline(always)]
                    |place, lo, hi| {
                        let from = (place + (lo * stride) as isize) as usize;
                        let line = every(&x[from..], stride, &mut line[..hi - lo]);
                        sums[lo..hi].iter_mut().zip(line).for_each(|(sum, &x)| *sum = *sum + x);
                    },
                );
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = *sum / self.count([g[0], g[1], g[2] + i]);
                }
            },
        );
    }

    #[inline(always)]
    fn shares<T: PoolElement>(&self, dy: &[T], out: &mut [T]) {
        let stride = self.stride[2];
        out.fill(T::default());
        self.blocks(
            #[inline(always)]
            |at, n, g| {
                let mut shares = [T::default(); BLOCK];
                for (i, (share, dy)) in shares.iter_mut().zip(&dy[at..at + n]).enumerate() {
                    *share = *dy / self.count([g[0], g[1], g[2] + i]);
                }
                self.elements(
                    g,
                    n,
                    #[inline(always)]
                    |place, lo, hi| {
                        let from = (place + (lo * stride) as isize) as usize;
                        let out = &mut out[from..from + (hi - lo - 1) * stride + 1];
                        let shares = &shares[lo..hi];
                        match stride {
                            1 => out.iter_mut().zip(shares).for_each(|(dx, &share)| *dx = *dx + share),
                            2 => out.chunks_mut(2).zip(shares).for_each(|(dx, &share)| dx[0] = dx[0] + share),
                            _ => {
                                let places = out.iter_mut().step_by(stride);
                                places.zip(shares).for_each(|(dx, &share)| *dx = *dx + share);
                            }
                        }
                    },
                );
            },
        );
    }
}

/// Returns the element at a position, or zero for [`NOWHERE`].
#[inline(always)]
fn element_or_zero<T: PoolElement>(x: &[T], place: u32) -> T {
    if place == NOWHERE { T::default() } else { x[place as usize] }
}

/// Updates the maximum with a number that is larger, the first, or the first NaN.
#[inline(always)]
#[allow(clippy::eq_op, reason = "a NaN differs from itself, and this compares whole vectors")]
fn take_larger<T: PoolElement>(best: &mut T, place: &mut u32, x: T, at: u32) {
    let better = (x > *best) | (*place == NOWHERE) | ((x != x) & (*best == *best));
    *best = if better { x } else { *best };
    *place = if better { at } else { *place };
}

/// Returns `room.len()` elements with a stride, in place or copied to `room`.
#[inline(always)]
fn every<'a, T: PoolElement>(x: &'a [T], stride: usize, room: &'a mut [T]) -> &'a [T] {
    let n = room.len();
    match stride {
        1 => return &x[..n],
        2 => {
            // Pairs compile to vector shuffles. The last pair may be incomplete.
            let (last, others) = room.split_last_mut().expect("there is something");
            others.iter_mut().zip(x.chunks_exact(2)).for_each(|(to, x)| *to = x[0]);
            *last = x[2 * (n - 1)];
        }
        _ => room.iter_mut().zip(x.iter().step_by(stride)).for_each(|(to, &x)| *to = x),
    }
    room
}
