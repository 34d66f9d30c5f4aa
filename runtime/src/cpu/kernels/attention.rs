//! Attention and its gradients in blocks, without a matrix of all scores.
//!
//! Scores are computed for a block of queries and a block of keys at a time. With several blocks of
//! keys, the largest score of a query and the sum of its exponentials are accumulated, and earlier
//! sums are rescaled to each new largest score (Milakov and Gimelshein 2018, "Online normalizer
//! calculation for softmax"; Dao et al. 2022, "FlashAttention"). The gradients compute the scores
//! again; with several blocks of keys twice, first for the sums. Besides operands and result, the
//! memory is two blocks for each thread, and, with several blocks of queries, the packed keys and
//! values of a matrix.
//!
//! Threads share the matrices and, in the forward pass, the blocks of queries. Block sizes depend
//! on the shapes only, and each sum is computed by one thread, in order.

use super::dense::{Matrix, RightMatrix, product, with_memory};
use super::gemm::{Strides, packed_len};
use super::matmul::{MatrixLayout, layout};
use super::reduce::fold;
use super::walk::{Axis, merged};
use crate::cpu::element::CpuElement;
use crate::cpu::memory::Sources;
use crate::cpu::memory::{TensorOperand, View};
use crate::cpu::multiversion::wide;
use crate::cpu::vector::{InstructionSet, Lane};
use crate::threads;
use anabranch_dsl::DType;
use anabranch_dsl::scalars::exp;
use std::ops::{AddAssign, DivAssign, MulAssign, Range};

/// Attention, or its gradients.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    /// The number of queries `n` and keys `m` of a matrix, the length `size` of these and `width`
    /// of values.
    n: usize,
    m: usize,
    size: usize,
    width: usize,
    causal: bool,
    /// Whether the kernel computes the gradients.
    gradients: bool,
    /// The axes before the matrices, with strides of queries, keys, values and, for gradients, the
    /// cotangent of the result.
    batch: Vec<Axis<4>>,
    layouts: [MatrixLayout; 4],
    level: InstructionSet,
}

/// The maximum number of keys in a block: a multiple of the tile columns of all instruction sets.
const KEYS: usize = 21 * GRAIN;
const GRAIN: usize = 48;
/// The approximate number of scores in a block, and its maximum number of queries.
const SCORES: usize = 1 << 16;
const QUERIES: usize = 64;
/// The maximum number of elements in a cache line.
const LINE: usize = 16;
/// The number of multiplications from which on work is split over threads.
const PARALLEL: usize = 1 << 19;

/// The element types of the computation.
trait AttentionElement: Lane + CpuElement<Mem = Self> + From<f32> + AddAssign + MulAssign + DivAssign {
    /// `1 / sqrt(n)`
    fn inverse_sqrt(n: usize) -> Self;
}
impl AttentionElement for f32 {
    fn inverse_sqrt(n: usize) -> f32 {
        1.0 / (n as f32).sqrt()
    }
}
impl AttentionElement for f64 {
    fn inverse_sqrt(n: usize) -> f64 {
        1.0 / (n as f64).sqrt()
    }
}

/// The matrices at one index of the leading axes.
#[derive(Clone, Copy)]
struct Matrices<'a, T> {
    q: Matrix<'a, T>,
    k: Matrix<'a, T>,
    v: Matrix<'a, T>,
    /// The transposes of keys and values, for scores and slopes.
    k_columns: RightMatrix<'a, T>,
    v_columns: RightMatrix<'a, T>,
    /// The cotangent of the result; without rows if gradients are not computed.
    g: Matrix<'a, T>,
}

impl Attention {
    /// Returns whether a view can be an operand without a copy.
    pub(crate) fn takes(view: &View) -> bool {
        layout(view).is_some()
    }

    /// Creates the kernel for views of queries, keys, values and, for gradients, the cotangent of
    /// the result.
    pub(crate) fn new(operands: &[View], causal: bool) -> Attention {
        let gradients = operands.len() == 4;
        let view = |i: usize| operands.get(i).unwrap_or(&operands[2]);
        let (q, v) = (view(0), view(2));
        let batch = q.shape.len() - 2;
        let strides = |i: usize| &view(i).strides[..batch];
        Attention {
            n: q.shape[batch],
            m: v.shape[batch],
            size: q.shape[batch + 1],
            width: v.shape[batch + 1],
            causal,
            gradients,
            batch: merged(&q.shape[..batch], [strides(0), strides(1), strides(2), strides(3)]),
            layouts: std::array::from_fn(|i| layout(view(i)).expect("the layout was checked before")),
            level: InstructionSet::best(),
        }
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        match operands[0].view().dtype {
            DType::F32 => self.run_as::<f32>(operands, bytemuck::cast_slice_mut(out), sources),
            DType::F64 => self.run_as::<f64>(operands, bytemuck::cast_slice_mut(out), sources),
            other => panic!("attention of {other}"),
        }
    }

    fn run_as<T: AttentionElement>(&self, operands: &[TensorOperand], out: &mut [T], sources: &Sources<'_>) {
        let of_one = match self.gradients {
            false => self.n * self.width,
            true => self.n * self.size + self.m * (self.size + self.width),
        };
        if out.is_empty() {
            return;
        }
        let views: [&View; 4] = std::array::from_fn(|i| operands.get(i).unwrap_or(&operands[2]).view());
        let data = views.map(|view| sources.elements::<T>(view.base));
        let one = |i: usize, out: &mut [T]| {
            let at = self.start(i, views.map(|view| view.offset));
            let of = |i: usize, rows: usize, columns: usize| {
                Matrix::new(&data[i][at[i]..], rows, columns, self.layouts[i].strides())
            };
            let g = if self.gradients { of(3, self.n, self.width) } else { of(3, 0, self.width) };
            let (q, k, v) = (of(0, self.n, self.size), of(1, self.m, self.size), of(2, self.m, self.width));
            let run = |k_columns: RightMatrix<'_, T>, v_columns: RightMatrix<'_, T>, out: &mut [T]| {
                let x = Matrices { q, k, v, k_columns, v_columns, g };
                if self.gradients { self.backward(x, out) } else { self.forward(x, out) }
            };
            let (k, v) = (k.transposed(), v.transposed());
            if self.n <= self.queries() {
                // The operands are read for one block of queries.
                return run(RightMatrix::Unpacked(k), RightMatrix::Unpacked(v), out);
            }
            let n_k = packed_len::<T>(self.level, self.size, self.m);
            let n_v = if self.gradients { packed_len::<T>(self.level, self.width, self.m) } else { 0 };
            with_memory(n_k + n_v, |memory| {
                let (k_panels, v_panels) = memory.split_at_mut(n_k);
                let k = RightMatrix::pack(self.level, k, k_panels);
                let v =
                    if self.gradients { RightMatrix::pack(self.level, v, v_panels) } else { RightMatrix::Unpacked(v) };
                run(k, v, out);
            });
        };
        let work = out.len() / of_one * self.n * self.m * (self.size + self.width);
        if work < PARALLEL {
            out.chunks_exact_mut(of_one).enumerate().for_each(|(i, out)| one(i, out));
        } else {
            threads::chunks_until_stop(out, of_one, |(i, out)| one(i, out));
        }
    }

    /// Returns the offsets of the matrices at one index of the leading axes.
    fn start(&self, index: usize, mut start: [usize; 4]) -> [usize; 4] {
        let mut rest = index;
        for axis in self.batch.iter().rev() {
            let i = (rest % axis.n) as isize;
            rest /= axis.n;
            start = std::array::from_fn(|k| start[k].wrapping_add_signed(i * axis.strides[k]));
        }
        start
    }

    /// Returns the number of queries in a block.
    fn queries(&self) -> usize {
        (SCORES / self.m.clamp(1, KEYS)).clamp(1, QUERIES).min(self.n)
    }

    /// Returns the blocks of the keys that some query of a block sees.
    fn blocks(&self, queries: &Range<usize>) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let seen = if self.causal { queries.end.next_multiple_of(GRAIN).min(self.m) } else { self.m };
        (0..seen.div_ceil(KEYS)).map(move |i| i * KEYS..seen.min((i + 1) * KEYS))
    }

    /// Returns how many keys of a block a query sees.
    fn visible(&self, query: usize, keys: &Range<usize>) -> usize {
        if self.causal { (query + 1).clamp(keys.start, keys.end) - keys.start } else { keys.len() }
    }

    fn forward<T: AttentionElement>(&self, x: Matrices<'_, T>, y: &mut [T]) {
        let rows = self.queries();
        let block = |(i, y): (usize, &mut [T])| {
            let queries = i * rows..i * rows + y.len() / self.width;
            with_scratch(queries.len() * stride(self.m.min(KEYS)), 2 * queries.len(), |scores, sums: &mut [T]| {
                self.forward_block(x, queries, y, scores, sums);
            });
        };
        if self.n * self.m * (self.size + self.width) < PARALLEL {
            y.chunks_mut(rows * self.width).enumerate().for_each(block);
        } else {
            threads::chunks_until_stop(y, rows * self.width, block);
        }
    }

    fn forward_block<T: AttentionElement>(
        &self,
        x: Matrices<'_, T>,
        queries: Range<usize>,
        y: &mut [T],
        scores: &mut [T],
        sums: &mut [T],
    ) {
        let (largest, sums) = sums.split_at_mut(queries.len());
        largest.fill(T::from(f32::NEG_INFINITY));
        sums.fill(T::default());
        y.fill(T::default());
        for keys in self.blocks(&queries) {
            let scores = &mut scores[..queries.len() * stride(keys.len())];
            self.scores(x, &queries, &keys, scores);
            wide(
                #[inline(always)]
                || {
                    for (i, row) in scores.chunks_exact_mut(stride(keys.len())).enumerate() {
                        let (seen, unseen) = row[..keys.len()].split_at_mut(self.visible(queries.start + i, &keys));
                        let scale = exponentials(seen, &mut largest[i], &mut sums[i]);
                        unseen.fill(T::default());
                        if keys.start > 0 {
                            y[i * self.width..][..self.width].iter_mut().for_each(|y| *y *= scale);
                        }
                    }
                },
            );
            let weights = block(scores, queries.len(), keys.len());
            product(self.level, (y, self.width), weights, RightMatrix::Unpacked(x.v.rows(&keys)), true);
        }
        // Without keys the mean is zero.
        if self.m > 0 {
            for (y, &sum) in y.chunks_exact_mut(self.width).zip(&*sums) {
                y.iter_mut().for_each(|y| *y /= sum);
            }
        }
    }

    /// Computes the gradients with respect to queries, keys and values, stored in this order.
    fn backward<T: AttentionElement>(&self, x: Matrices<'_, T>, out: &mut [T]) {
        out.fill(T::default());
        let (to_q, rest) = out.split_at_mut(self.n * self.size);
        let (to_k, to_v) = rest.split_at_mut(self.m * self.size);
        let rows = self.queries().max(1);
        for start in (0..self.n).step_by(rows) {
            let queries = start..self.n.min(start + rows);
            let to_q = &mut to_q[queries.start * self.size..queries.end * self.size];
            with_scratch(2 * queries.len() * stride(self.m.min(KEYS)), 3 * queries.len(), |blocks, sums: &mut [T]| {
                self.backward_block(x, queries, [to_q, to_k, to_v], blocks, sums);
            });
        }
    }

    fn backward_block<T: AttentionElement>(
        &self,
        x: Matrices<'_, T>,
        queries: Range<usize>,
        [to_q, to_k, to_v]: [&mut [T]; 3],
        blocks: &mut [T],
        sums: &mut [T],
    ) {
        let n = queries.len();
        let half = blocks.len() / 2;
        let (scores, slopes) = blocks.split_at_mut(half);
        let (largest, sums) = sums.split_at_mut(n);
        let (sums, means) = sums.split_at_mut(n);
        largest.fill(T::from(f32::NEG_INFINITY));
        sums.fill(T::default());
        means.fill(T::default());
        // Accumulate the largest scores, the sums of exponentials, and the sums of exponentials
        // times the cotangents of the weights.
        for keys in self.blocks(&queries) {
            let scores = &mut scores[..n * stride(keys.len())];
            let slopes = &mut slopes[..n * stride(keys.len())];
            self.scores(x, &queries, &keys, scores);
            self.slopes(x, &queries, &keys, slopes);
            wide(
                #[inline(always)]
                || {
                    for (i, row) in scores.chunks_exact_mut(stride(keys.len())).enumerate() {
                        let (seen, _) = row.split_at_mut(self.visible(queries.start + i, &keys));
                        let scale = exponentials(seen, &mut largest[i], &mut sums[i]);
                        means[i] = means[i] * scale + dot(seen, &slopes[i * stride(keys.len())..]);
                    }
                },
            );
        }
        let is_one = self.m <= KEYS;
        let root = T::inverse_sqrt(self.size);
        for keys in self.blocks(&queries) {
            let scores = &mut scores[..n * stride(keys.len())];
            let slopes = &mut slopes[..n * stride(keys.len())];
            if !is_one {
                self.scores(x, &queries, &keys, scores);
                self.slopes(x, &queries, &keys, slopes);
            }
            wide(
                #[inline(always)]
                || {
                    let rows =
                        scores.chunks_exact_mut(stride(keys.len())).zip(slopes.chunks_exact_mut(stride(keys.len())));
                    for (i, (p, d)) in rows.enumerate() {
                        let visible = self.visible(queries.start + i, &keys);
                        p[visible..keys.len()].fill(T::default());
                        d[visible..keys.len()].fill(T::default());
                        let (p, d) = (&mut p[..visible], &mut d[..visible]);
                        if !is_one {
                            let shift = shift(largest[i]);
                            p.iter_mut().for_each(|p| *p = exp(*p - shift));
                        }
                        let (sum, mean) = (sums[i], means[i] / sums[i]);
                        for (p, d) in p.iter_mut().zip(d) {
                            *p /= sum;
                            *d = *p * (*d - mean) * root;
                        }
                    }
                },
            );
            let (p, r) = (block(scores, n, keys.len()), block(slopes, n, keys.len()));
            let (q, g) = (x.q.rows(&queries), x.g.rows(&queries));
            let own = |width: usize| keys.start * width..keys.end * width;
            product(self.level, (to_q, self.size), r, RightMatrix::Unpacked(x.k.rows(&keys)), true);
            product(self.level, (&mut to_k[own(self.size)], self.size), r.transposed(), RightMatrix::Unpacked(q), true);
            product(
                self.level,
                (&mut to_v[own(self.width)], self.width),
                p.transposed(),
                RightMatrix::Unpacked(g),
                true,
            );
        }
    }

    /// Computes `Q Kᵀ / sqrt(size)` of a block.
    fn scores<T: AttentionElement>(
        &self,
        x: Matrices<'_, T>,
        queries: &Range<usize>,
        keys: &Range<usize>,
        out: &mut [T],
    ) {
        product(self.level, (out, stride(keys.len())), x.q.rows(queries), x.k_columns.columns(self.level, keys), false);
        let root = T::inverse_sqrt(self.size);
        wide(
            #[inline(always)]
            || out.iter_mut().for_each(|score| *score *= root),
        );
    }

    /// Computes the cotangents of the weights of a block, `G Vᵀ`.
    fn slopes<T: AttentionElement>(
        &self,
        x: Matrices<'_, T>,
        queries: &Range<usize>,
        keys: &Range<usize>,
        out: &mut [T],
    ) {
        product(self.level, (out, stride(keys.len())), x.g.rows(queries), x.v_columns.columns(self.level, keys), false);
    }
}

/// Returns the stride between the rows of a block of scores.
///
/// The stride is an odd number of cache lines, because lines at a distance that is a multiple of
/// 4096 bytes evict each other.
fn stride(keys: usize) -> usize {
    LINE * (keys.div_ceil(LINE) | 1)
}

/// Returns a matrix over a block of scores, or over data of that layout.
fn block<T>(data: &[T], queries: usize, keys: usize) -> Matrix<'_, T> {
    Matrix::new(data, queries, keys, Strides { down: stride(keys), right: 1 })
}

/// Returns the number to subtract from scores, as in softmax.
#[inline(always)]
fn shift<T: AttentionElement>(largest: T) -> T {
    if T::is_finite(largest) { largest } else { T::default() }
}

/// Replaces the scores of a query for a block of keys by exponentials, relative to the largest
/// score so far. Returns the factor for the sums of earlier blocks.
#[inline(always)]
fn exponentials<T: AttentionElement>(scores: &mut [T], largest: &mut T, sum: &mut T) -> T {
    let lowest = T::from(f32::NEG_INFINITY);
    let before = *largest;
    *largest = fold::<T>(scores, before, T::larger);
    let shift_now = shift(*largest);
    // There was no score before, or only negative infinity.
    let scale = if before == lowest { T::default() } else { exp(shift(before) - shift_now) };
    scores.iter_mut().for_each(|s| *s = exp(*s - shift_now));
    *sum = *sum * scale + fold::<T>(scores, T::default(), |a, b| a + b);
    scale
}

/// Returns the dot product of the common prefix.
#[inline(always)]
fn dot<T: AttentionElement>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 16;
    let b = &b[..a.len()];
    let (a, rest_a) = a.as_chunks::<LANES>();
    let (b, rest_b) = b.as_chunks::<LANES>();
    let mut lanes = [T::default(); LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    let total = fold::<T>(&lanes, T::default(), |a, b| a + b);
    rest_a.iter().zip(rest_b).fold(total, |sum, (&a, &b)| sum + a * b)
}

/// Calls `f` with memory for a block and for sums.
fn with_scratch<T: AttentionElement>(n_block: usize, n_sums: usize, f: impl FnOnce(&mut [T], &mut [T])) {
    with_memory(n_block + n_sums, |memory| {
        let (block, sums) = memory.split_at_mut(n_block);
        f(block, sums);
    });
}
