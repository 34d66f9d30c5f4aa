//! Pooling of channels-last tensors: `[batch, .., channels]`.
//!
//! Each element of a window is a row of contiguous channels. A few channels are processed at a
//! time, so that their results stay in registers during the traversal of the window.

#![allow(clippy::needless_range_loop, reason = "lanes of registers are named by an index into several arrays")]

use super::{NOWHERE, Pool, PoolElement, Pooling, take_larger};

/// Numbers of channels processed together.
const MANY: usize = 16;
const SOME: usize = 8;

/// An image during pooling, with operands as in [`Pool::run`].
pub(super) struct Image<'a, T> {
    pub(super) channels: usize,
    pub(super) first: &'a [T],
    pub(super) second: &'a [T],
    pub(super) out: &'a mut [T],
}

impl Pool {
    #[inline(always)]
    pub(super) fn image<T: PoolElement>(&self, mut image: Image<'_, T>) {
        if matches!(self.pooling, Pooling::MaxGrad | Pooling::MeanGrad) {
            image.out.fill(T::default());
        }
        let mut position = 0;
        for a in 0..self.y[0] {
            for b in 0..self.y[1] {
                for c in 0..self.y[2] {
                    let mut channel = 0;
                    while channel < image.channels {
                        channel += match image.channels - channel {
                            MANY.. => self.at::<T, MANY>([a, b, c], position, channel, &mut image),
                            SOME.. => self.at::<T, SOME>([a, b, c], position, channel, &mut image),
                            _ => self.at::<T, 1>([a, b, c], position, channel, &mut image),
                        };
                    }
                    position += 1;
                }
            }
        }
    }

    /// Calls `f` with the index in the plane of each element of the window at a position, in order.
    #[inline(always)]
    fn window_at(&self, g: [usize; 3], mut f: impl FnMut(usize)) {
        let range = |i: usize| {
            let start = (g[i] * self.stride[i]) as isize - self.low[i] as isize;
            let end = (start + self.window[i] as isize).min(self.x[i] as isize);
            start.max(0) as usize..end.max(0) as usize
        };
        let columns = range(2);
        for a in range(0) {
            for b in range(1) {
                let line = (a * self.x[1] + b) * self.x[2];
                for c in columns.clone() {
                    f(line + c);
                }
            }
        }
    }

    /// Computes `N` channels of position `g`, which has the index `position`. Returns `N`.
    #[inline(always)]
    fn at<T: PoolElement, const N: usize>(
        &self,
        g: [usize; 3],
        position: usize,
        channel: usize,
        image: &mut Image<'_, T>,
    ) -> usize {
        let &mut Image { channels, first, second, ref mut out } = image;
        let start = |p: usize| p * channels + channel;
        let (best, places) = match self.pooling {
            Pooling::Max | Pooling::Pick | Pooling::MaxGrad => self.maxima_at::<T, N>(g, first, start),
            Pooling::Mean | Pooling::MeanGrad => ([T::default(); N], [NOWHERE; N]),
        };
        match self.pooling {
            Pooling::Max => write(out, start(position), best),
            Pooling::Pick => {
                let picked = |i: usize| match places[i] {
                    NOWHERE => T::default(),
                    place => second[start(place as usize) + i],
                };
                write::<T, N>(out, start(position), std::array::from_fn(picked));
            }
            Pooling::MaxGrad => {
                let dy = read::<T, N>(second, start(position));
                self.window_at(
                    g,
                    #[inline(always)]
                    |p| {
                        let mut dx = read::<T, N>(out, start(p));
                        for i in 0..N {
                            dx[i] = dx[i] + if places[i] == p as u32 { dy[i] } else { T::default() };
                        }
                        write(out, start(p), dx);
                    },
                );
            }
            Pooling::Mean => {
                let mut sums = [T::default(); N];
                self.window_at(
                    g,
                    #[inline(always)]
                    |p| {
                        let x = read::<T, N>(first, start(p));
                        for i in 0..N {
                            sums[i] = sums[i] + x[i];
                        }
                    },
                );
                let count = self.count::<T>(g);
                write(out, start(position), sums.map(|sum| sum / count));
            }
            Pooling::MeanGrad => {
                let count = self.count::<T>(g);
                let shares = read::<T, N>(first, start(position)).map(|dy| dy / count);
                self.window_at(
                    g,
                    #[inline(always)]
                    |p| {
                        let mut dx = read::<T, N>(out, start(p));
                        for i in 0..N {
                            dx[i] = dx[i] + shares[i];
                        }
                        write(out, start(p), dx);
                    },
                );
            }
        }
        N
    }

    /// Returns the maxima of `N` channels, and their positions.
    #[inline(always)]
    fn maxima_at<T: PoolElement, const N: usize>(
        &self,
        g: [usize; 3],
        x: &[T],
        start: impl Fn(usize) -> usize,
    ) -> ([T; N], [u32; N]) {
        let (mut best, mut places) = ([T::default(); N], [NOWHERE; N]);
        self.window_at(
            g,
            #[inline(always)]
            |p| {
                let x = read::<T, N>(x, start(p));
                for i in 0..N {
                    take_larger(&mut best[i], &mut places[i], x[i], p as u32);
                }
            },
        );
        (best, places)
    }
}

/// Returns `N` channels.
#[inline(always)]
fn read<T: PoolElement, const N: usize>(x: &[T], start: usize) -> [T; N] {
    *x[start..].first_chunk().expect("the channels are there")
}

/// Overwrites `N` channels.
#[inline(always)]
fn write<T: PoolElement, const N: usize>(out: &mut [T], start: usize, channels: [T; N]) {
    *out[start..].first_chunk_mut().expect("the channels are there") = channels;
}
