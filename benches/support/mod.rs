//! The model of several benchmarks: an MLP 784-1024-1024-10 for batches of 128, trained with Adam.

use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;

/// Returns the layers of the MLP.
pub fn mlp(init: &Init) -> [Linear; 3] {
    [Linear::new(init, 784, 1024), Linear::new(init, 1024, 1024), Linear::new(init, 1024, 10)]
}

/// Returns `[128, 784]` numbers, and a label for each row.
pub fn mlp_batch(init: &Init) -> (Array<f32>, Vec<i32>) {
    (init.normal([128, 784], 1.0), (0..128).map(|i| i % 10).collect())
}

/// Runs a training step. Returns the loss before it.
#[graph]
pub fn mlp_step(layers: &[Linear; 3], adam: &Adam, x: Tensor, labels: Tensor<i32>) -> Tensor {
    let h = layers[0].apply(x).relu();
    let h = layers[1].apply(h).relu();
    let loss = layers[2].apply(h).cross_entropy(labels).mean();
    adam.minimize(loss, layers);
    loss
}
