//! Operations that read and write much and compute little.

use super::{Benchmark, normal};
use anabranch::prelude::*;

/// Elements of the long vectors.
pub const LONG: usize = 10_000_000;

/// `tanh(a * b + c) * d - a` of long vectors.
pub fn tanh_chain_10_000_000() -> Benchmark {
    let f = |a: Tensor, b: Tensor, c: Tensor, d: Tensor| (a * b + c).tanh() * d - a;
    Benchmark::into_kept_memory(f, [(); 4].map(|()| normal([LONG])).into())
}

/// The sum of a long vector.
pub fn sum_10_000_000() -> Benchmark {
    Benchmark::into_kept_memory(|x: Tensor| x.sum(), vec![normal([LONG])])
}

/// The mean squared difference of two long vectors.
pub fn mean_squared_error_10_000_000() -> Benchmark {
    let f = |x: Tensor, y: Tensor| ((x - y) * (x - y)).mean();
    Benchmark::into_kept_memory(f, vec![normal([LONG]), normal([LONG])])
}

/// Softmax of rows of 1,024 elements.
pub fn softmax_4096_1024() -> Benchmark {
    Benchmark::into_kept_memory(|x: Tensor| x.softmax(-1), vec![normal([4096, 1024])])
}

/// The gradient of softmax of rows of 1,024 elements.
pub fn softmax_gradient_4096_1024() -> Benchmark {
    let f = |x: Tensor, w: Tensor| gradients((x.softmax(-1) * w).sum(), x);
    Benchmark::into_kept_memory(f, vec![normal([4096, 1024]), normal([4096, 1024])])
}

/// Layer normalization of rows of 1,024 elements.
pub fn layer_norm_4096_1024() -> Benchmark {
    let f = |x: Tensor, scale: Tensor, bias: Tensor| x.layer_norm(scale, bias, 1e-5);
    Benchmark::into_kept_memory(f, vec![normal([4096, 1024]), normal([1024]), normal([1024])])
}

/// All gradients of layer normalization of rows of 1,024 elements.
pub fn layer_norm_gradient_4096_1024() -> Benchmark {
    let f = |x: Tensor, scale: Tensor, bias: Tensor, w: Tensor| {
        gradients((x.layer_norm(scale, bias, 1e-5) * w).sum(), (x, scale, bias))
    };
    let inputs = vec![normal([4096, 1024]), normal([1024]), normal([1024]), normal([4096, 1024])];
    Benchmark::into_kept_memory(f, inputs)
}
