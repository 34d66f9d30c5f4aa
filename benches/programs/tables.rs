//! Tables of vectors, and attention.

use super::{BenchInput, Benchmark, normal};
use anabranch::HostTensor;
use anabranch::nn::{Embedding, Init, LayerNorm, Linear, MultiHeadAttention};
use anabranch::optim::{AdaGrad, Adam, Optimizer, Sgd, model_gradients};
use anabranch::prelude::*;

/// Returns 8,192 row numbers, spread over a table of 100,000.
fn ids() -> BenchInput {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % 100_000) as i32
    };
    BenchInput::Integers((0..8192).map(next).collect())
}

/// 8,192 rows of a table of 100,000 vectors of 64 elements.
pub fn gather_8192_of_100000_x_64() -> Benchmark {
    let table = Embedding::new(&Init::new(1), 100_000, 64);
    Benchmark::new(move |ids: Tensor<i32>| table.forward(ids), vec![ids()])
}

/// SGD on these rows: the sum of them times given numbers, its gradient, and the update of the
/// table.
pub fn sgd_of_8192_of_100000_x_64() -> Benchmark {
    let (table, sgd) = (Embedding::new(&Init::new(1), 100_000, 64), Sgd::new(0.01));
    let step = move |ids: Tensor<i32>, by: Tensor| {
        let loss = (table.forward(ids) * by).sum();
        sgd.minimize(loss, &table);
        loss
    };
    Benchmark::new(step, vec![ids(), normal([8192, 64])])
}

/// The SGD step with a rate for each element of the table, so that the gradient has to be a table.
pub fn descent_by_a_table_of_rates_of_8192_of_100000_x_64() -> Benchmark {
    let init = Init::new(1);
    let table = Embedding::new(&init, 100_000, 64);
    let rates = Var::untrained("rates", init.normal([100_000, 64], 0.01));
    let step = move |ids: Tensor<i32>, by: Tensor| {
        let x = table.table.get();
        let loss = (x.take(ids, 0) * by).sum();
        table.table.set(x - rates.get() * gradients(loss, x));
        loss
    };
    Benchmark::new(step, vec![ids(), normal([8192, 64])])
}

/// A step of an optimizer on these rows. If `of_whole_table`, the gradient is a table.
fn step_of_8192_of_100000_x_64(optimizer: impl Optimizer + Send + Sync + 'static, of_whole_table: bool) -> Benchmark {
    let table = Embedding::new(&Init::new(1), 100_000, 64);
    let step = move |ids: Tensor<i32>, by: Tensor, ones: Tensor| {
        let loss = (table.forward(ids) * by).sum();
        let mut gradients = model_gradients(loss, &table);
        if of_whole_table {
            gradients[0].1 = gradients[0].1 * ones.untyped();
        }
        optimizer.apply(optimizer.rate(), &gradients);
        loss
    };
    Benchmark::new(step, vec![ids(), normal([8192, 64]), BenchInput::Value(HostTensor::new([1, 64], vec![1.0f32; 64]))])
}

/// AdaGrad on these rows.
pub fn adagrad_of_8192_of_100000_x_64(of_whole_table: bool) -> Benchmark {
    step_of_8192_of_100000_x_64(AdaGrad::new(0.01), of_whole_table)
}

/// Lazy Adam on these rows.
pub fn lazy_adam_of_8192_of_100000_x_64(of_whole_table: bool) -> Benchmark {
    step_of_8192_of_100000_x_64(Adam::new(0.01).lazy(), of_whole_table)
}

/// A transformer block with the normalization before attention and before the MLP.
#[derive(Module)]
struct TransformerBlock {
    norms: [LayerNorm; 2],
    attention: MultiHeadAttention,
    up: Linear,
    down: Linear,
}

impl TransformerBlock {
    fn new(init: &Init, size: usize, heads: usize) -> TransformerBlock {
        TransformerBlock {
            norms: [LayerNorm::new(size), LayerNorm::new(size)],
            attention: MultiHeadAttention::new(init, size, heads),
            up: Linear::new(init, size, 4 * size),
            down: Linear::new(init, 4 * size, size),
        }
    }

    fn forward(&self, x: Tensor) -> Tensor {
        let x = x + self.attention.forward(self.norms[0].forward(x), AttentionMask::None);
        x + self.down.forward(self.up.forward(self.norms[1].forward(x)).relu())
    }
}

/// Four blocks of a transformer, 256 wide, 4 heads, 128 positions, batch 8: forward, and the
/// gradients of all parameters.
pub fn transformer_4_blocks_256_forward_and_backward() -> Benchmark {
    let init = Init::new(1);
    let blocks: Vec<TransformerBlock> = (0..4).map(|_| TransformerBlock::new(&init, 256, 4)).collect();
    let f = move |x: Tensor| {
        let y = blocks.iter().fold(x, |x, block| block.forward(x));
        let loss = (y * y).mean();
        let gradients = anabranch::optim::model_gradients(loss, &blocks);
        // A number of each gradient, so that all are computed and little is copied out.
        let sums = gradients.into_iter().map(|(_, g)| Tensor::<f32>::from_any(g.sum()));
        sums.fold(loss, |sum, g| sum + g)
    };
    Benchmark::new(f, vec![normal([8, 128, 256])])
}

fn attention_gradients(q: Tensor, k: Tensor, v: Tensor) -> (Tensor, Tensor, Tensor) {
    let y = q.scaled_dot_product_attention(k, v, AttentionMask::Causal);
    let [q, k, v] = gradients((y * y).sum(), [q, k, v]);
    (q.sum(), k.sum(), v.sum())
}

/// Causal attention of 8 heads of 64 elements over 2,048 positions, forward and backward.
pub fn causal_attention_8_heads_2048_positions() -> Benchmark {
    Benchmark::new(attention_gradients, [(); 3].map(|()| normal([8, 2048, 64])).into())
}
