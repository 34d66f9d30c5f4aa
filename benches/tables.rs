//! Tables of vectors, and attention.
//!
//! `cargo bench --bench tables`

use anabranch::nn::{Embedding, Init, LayerNorm, Linear, MultiHeadAttention};
use anabranch::optim::{Optimizer, Sgd};
use anabranch::prelude::*;
use divan::Bencher;

fn main() {
    divan::main();
}

/// Returns row indices, spread over the table.
fn ids(n: usize, entries: usize) -> Array<i32> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % entries as u64) as i32
    };
    Array::new([n], (0..n).map(next).collect())
}

/// 8,192 rows of a table of 100,000 vectors of 64 elements.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn gather_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let table = Embedding::new(&Init::new(1), 100_000, 64);
    let session = Session::new().unwrap();
    let f = session.function(|ids: Tensor<i32>| table.at(ids)).unwrap();
    let ids = ids(8192, 100_000);
    bencher.bench_local(|| f.call(&ids).unwrap());
}

/// SGD on these rows: the weighted sum of the rows, its gradient, and the update of the table.
#[divan::bench(sample_count = 100, sample_size = 1)]
fn sgd_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let (table, sgd) = (Embedding::new(&init, 100_000, 64), Sgd::new(0.01));
    let session = Session::new().unwrap();
    let step = |ids: Tensor<i32>, by: Tensor| {
        let loss = (table.at(ids) * by).sum();
        sgd.minimize(loss, &table);
        loss
    };
    let step = session.function(step).unwrap();
    let (ids, by) = (ids(8192, 100_000), init.normal([8192, 64], 1.0));
    bencher.bench_local(|| step.call((&ids, &by)).unwrap());
}

/// The same with a rate for each element of the table, which requires the gradient as a table.
#[divan::bench(sample_count = 40, sample_size = 1)]
fn descent_by_a_table_of_rates_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let table = Embedding::new(&init, 100_000, 64);
    let rates = Var::untrained("rates", init.normal([100_000, 64], 0.01));
    let session = Session::new().unwrap();
    let step = |ids: Tensor<i32>, by: Tensor| {
        let x = table.table.get();
        let loss = (x.take(ids, 0) * by).sum();
        table.table.set(x - rates.get() * gradients(loss, x));
        loss
    };
    let step = session.function(step).unwrap();
    let (ids, by) = (ids(8192, 100_000), init.normal([8192, 64], 1.0));
    bencher.bench_local(|| step.call((&ids, &by)).unwrap());
}

/// A transformer block with the normalization before each part.
#[derive(Module)]
struct Block {
    norms: [LayerNorm; 2],
    attention: MultiHeadAttention,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(init: &Init, size: usize, heads: usize) -> Block {
        Block {
            norms: [LayerNorm::new(size), LayerNorm::new(size)],
            attention: MultiHeadAttention::new(init, size, heads),
            up: Linear::new(init, size, 4 * size),
            down: Linear::new(init, 4 * size, size),
        }
    }

    fn apply(&self, x: Tensor) -> Tensor {
        let x = x + self.attention.apply(self.norms[0].apply(x), AttentionMask::None);
        x + self.down.apply(self.up.apply(self.norms[1].apply(x)).relu())
    }
}

/// Four blocks of a transformer, 256 wide, 4 heads, 128 positions, batch 8: forward, and the
/// gradients of all parameters.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn transformer_4_blocks_256_forward_and_backward(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let blocks: Vec<Block> = (0..4).map(|_| Block::new(&init, 256, 4)).collect();
    let session = Session::new().unwrap();
    let f = |x: Tensor| {
        let y = blocks.iter().fold(x, |x, block| block.apply(x));
        let loss = (y * y).mean();
        let gradients = anabranch::optim::model_gradients(loss, &blocks);
        // One number of each gradient, so that all are computed and little is copied.
        let sums = gradients.into_iter().map(|(_, g)| Tensor::<f32>::from_any(g.sum()));
        sums.fold(loss, |sum, g| sum + g)
    };
    let f = session.function(f).unwrap();
    let x = init.normal([8, 128, 256], 1.0);
    bencher.bench_local(|| f.call(&x).unwrap());
}

fn attention_gradients(q: Tensor, k: Tensor, v: Tensor) -> (Tensor, Tensor, Tensor) {
    let y = q.scaled_dot_product_attention(k, v, AttentionMask::Causal);
    let [q, k, v] = gradients((y * y).sum(), [q, k, v]);
    (q.sum(), k.sum(), v.sum())
}

/// Causal attention of 8 heads of 64 elements over 2,048 positions, forward and backward.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn causal_attention_8_heads_2048_positions(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let session = Session::new().unwrap();
    let f = session.function(attention_gradients).unwrap();
    let [q, k, v] = [(); 3].map(|()| init.normal([8, 2048, 64], 1.0));
    bencher.bench_local(|| f.call((&q, &k, &v)).unwrap());
}
