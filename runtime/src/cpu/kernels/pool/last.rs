//! Pooling of tensors in channels-last order: `[batch, .., channels]`.
//!
//! Each element of a window is a row of channels side by side, some of which are done at a time: one pass over them for each element.

use super::{NOWHERE, Number, Pool, Pooling, take_larger};

/// Channels that are done at a time.
const SOME: usize = 64;

impl Pool {
    /// Some channels of each position: calls `f(first element of the position in the result of all channels, position, number)`.
    #[inline(always)]
    fn some_channels(&self, channels: usize, mut f: impl FnMut(usize, [usize; 3], usize, usize)) {
        let mut at = 0;
        for a in 0..self.y[0] {
            for b in 0..self.y[1] {
                for c in 0..self.y[2] {
                    for first in (0..channels).step_by(SOME) {
                        f(at, [a, b, c], first, SOME.min(channels - first));
                    }
                    at += 1;
                }
            }
        }
    }

    /// Calls `f` with the place in the plane of each element of the window at a position, in order.
    #[inline(always)]
    fn window_at(&self, g: [usize; 3], mut f: impl FnMut(usize)) {
        let range = |i: usize| {
            let start = (g[i] * self.stride[i]) as isize - self.low[i] as isize;
            let end = (start + self.window[i] as isize).min(self.x[i] as isize);
            start.max(0) as usize..end.max(0) as usize
        };
        for a in range(0) {
            for b in range(1) {
                for c in range(2) {
                    f((a * self.x[1] + b) * self.x[2] + c);
                }
            }
        }
    }

    /// One image: `first` and `second` are the operands as in [`Pool::run`].
    #[inline(always)]
    pub(super) fn image<T: Number>(&self, channels: usize, first: &[T], second: &[T], out: &mut [T]) {
        if matches!(self.pooling, Pooling::MaxGrad | Pooling::MeanGrad) {
            out.fill(T::default());
        }
        self.some_channels(
            channels,
            #[inline(always)]
            |at, g, channel, n| {
                let at = at * channels + channel;
                let element = |p: usize| p * channels + channel..p * channels + channel + n;
                match self.pooling {
                    Pooling::Max => {
                        let best = &mut out[at..at + n];
                        let mut is_first = true;
                        self.window_at(
                            g,
                            #[inline(always)]
                            |p| {
                                let x = &first[element(p)];
                                if std::mem::take(&mut is_first) {
                                    best.copy_from_slice(x);
                                }
                                best.iter_mut().zip(x).for_each(|(best, &x)| larger(best, x));
                            },
                        );
                        if is_first {
                            best.fill(T::default());
                        }
                    }
                    Pooling::Pick => {
                        let places = self.places(g, n, first, element);
                        for (i, (y, &place)) in out[at..at + n].iter_mut().zip(&places).enumerate() {
                            *y = if place == NOWHERE { T::default() } else { second[element(place as usize).start + i] };
                        }
                    }
                    Pooling::MaxGrad => {
                        let places = self.places(g, n, first, element);
                        let dy = &second[at..at + n];
                        self.window_at(
                            g,
                            #[inline(always)]
                            |p| {
                                let dx = out[element(p)].iter_mut();
                                for ((dx, &dy), &place) in dx.zip(dy).zip(&places) {
                                    *dx = *dx + if place == p as u32 { dy } else { T::default() };
                                }
                            },
                        );
                    }
                    Pooling::Mean => {
                        let sums = &mut out[at..at + n];
                        sums.fill(T::default());
                        self.window_at(
                            g,
                            #[inline(always)]
                            |p| {
                                sums.iter_mut().zip(&first[element(p)]).for_each(|(sum, &x)| *sum = *sum + x);
                            },
                        );
                        let count = self.count::<T>(g);
                        sums.iter_mut().for_each(|sum| *sum = sum.over(count));
                    }
                    Pooling::MeanGrad => {
                        let (mut shares, count) = ([T::default(); SOME], self.count::<T>(g));
                        shares.iter_mut().zip(&first[at..at + n]).for_each(|(share, dy)| *share = dy.over(count));
                        self.window_at(
                            g,
                            #[inline(always)]
                            |p| {
                                out[element(p)].iter_mut().zip(&shares).for_each(|(dx, &share)| *dx = *dx + share);
                            },
                        );
                    }
                }
            },
        );
    }

    /// The places of the maxima of some channels.
    #[inline(always)]
    fn places<T: Number>(
        &self,
        g: [usize; 3],
        n: usize,
        x: &[T],
        element: impl Fn(usize) -> std::ops::Range<usize>,
    ) -> [u32; SOME] {
        let (mut best, mut places) = ([T::default(); SOME], [NOWHERE; SOME]);
        self.window_at(
            g,
            #[inline(always)]
            |p| {
                let found = best[..n].iter_mut().zip(&mut places[..n]);
                for ((best, place), &x) in found.zip(&x[element(p)]) {
                    take_larger(best, place, x, p as u32);
                }
            },
        );
        places
    }
}

/// Takes a number if it is larger than the best one, or the first `NaN`.
#[inline(always)]
#[allow(clippy::eq_op, reason = "what differs from itself is no number, and this compares whole vectors")]
fn larger<T: Number>(best: &mut T, x: T) {
    let better = (x > *best) | ((x != x) & (*best == *best));
    *best = if better { x } else { *best };
}
