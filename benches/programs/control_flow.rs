//! Scalar loops: the cost of an iteration.

use super::{BenchInput, Benchmark};
use anabranch::prelude::*;
use anabranch::{Array, HostTensor};

/// Iterations of the longest loop.
pub const TRIPS: i32 = 100_000;

fn number(x: f32) -> BenchInput {
    BenchInput::Value(HostTensor::scalar(x))
}

fn count(n: i32) -> BenchInput {
    BenchInput::Value(HostTensor::scalar(n))
}

#[graph]
fn linear(n: Tensor<i32>, a: Tensor, b: Tensor) -> Tensor {
    let (mut i, mut x) = (scalar(0), scalar(1.0));
    while i < n {
        i += 1;
        x = x * a + b;
    }
    x
}

#[graph]
fn nested(n: Tensor<i32>) -> Tensor {
    let (mut i, mut x) = (scalar(0), scalar(0.0));
    while i < n {
        let mut j = scalar(0);
        while j < n {
            if x > 100.0 {
                x -= 100.0;
            } else {
                x += 1.5;
            }
            j += 1;
        }
        i += 1;
    }
    x
}

#[graph]
fn slope(x: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        y = (y * 1.01).tanh();
        i += 1;
    }
    gradients(y, x)
}

#[graph]
fn tanh_of_product(x: Tensor, w: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut x, mut i) = (x, scalar(0));
    while i < n {
        x = x.matmul(w).tanh();
        i += 1;
    }
    x
}

/// Steps of the Lorenz system by the classical method of Runge and Kutta: a state of three numbers.
#[graph]
fn lorenz(state: Tensor, n: Tensor<i32>) -> Tensor {
    let slope = |at: Tensor| {
        let (x, y, z) = (at.index(0, 0), at.index(1, 0), at.index(2, 0));
        stack(&[(y - x) * 10.0, x * (-z + 28.0) - y, x * y - z * (8.0 / 3.0)], 0)
    };
    let (mut state, mut i) = (state, scalar(0));
    while i < n {
        let a = slope(state);
        let b = slope(state + a * 0.005);
        let c = slope(state + b * 0.005);
        let d = slope(state + c * 0.01);
        state += (a + (b + c) * 2.0 + d) * (0.01 / 6.0);
        i += 1;
    }
    state
}

/// Sums the rows of a tensor, each with half the weight of the next.
#[graph]
fn discounted_rows(x: Tensor) -> Tensor {
    let (mut s, mut t) = (zeros::<f32>([x.dim(1)]), scalar(0));
    while t < x.dim(0) as i32 {
        s = s * 0.5 + x.row(t);
        t += 1;
    }
    s
}

fn gradient_of_rows(n: usize, size: usize) -> Benchmark {
    let x = Array::new([n, size], (0..n * size).map(|i| (i % 7) as f32 * 0.1).collect());
    Benchmark::new(|x: Tensor| gradients(discounted_rows(x).sum(), x), vec![BenchInput::Value(x.host().clone())])
}

/// The gradient of a `while` that reads 5,000 rows of 4 numbers.
pub fn gradient_of_reading_5000_rows() -> Benchmark {
    gradient_of_rows(5_000, 4)
}

/// The gradient of a `while` that reads 40,000 rows of 4 numbers.
pub fn gradient_of_reading_40000_rows() -> Benchmark {
    gradient_of_rows(40_000, 4)
}

/// The gradient of a `while` that reads 40,000 rows of 32 numbers, which are no registers.
pub fn gradient_of_reading_40000_rows_of_32() -> Benchmark {
    gradient_of_rows(40_000, 32)
}

/// A `while` that reads 40,000 rows of 4 numbers.
pub fn reading_40000_rows() -> Benchmark {
    let x = Array::new([40_000, 4], (0..160_000).map(|i| (i % 7) as f32 * 0.1).collect());
    Benchmark::new(discounted_rows, vec![BenchInput::Value(x.host().clone())])
}

/// `x = x * a + b` in a `while` of 100,000 iterations.
pub fn scalar_while() -> Benchmark {
    Benchmark::new(linear, vec![count(TRIPS), number(0.999), number(0.001)])
}

/// A `while` in a `while`, 100 iterations each, with an `if` inside.
pub fn nested_while_with_a_branch() -> Benchmark {
    Benchmark::new(nested, vec![count(100)])
}

/// The gradient of a `while` of 1,000 iterations.
pub fn gradient_of_1000_trips() -> Benchmark {
    Benchmark::new(slope, vec![number(0.5), count(1000)])
}

/// A matmul of small matrices and its `tanh` in a `while` of 2,000 iterations.
pub fn tanh_of_a_64x64_product_in_a_while() -> Benchmark {
    let x = Array::new([64, 64], (0..64 * 64).map(|i| (i % 7) as f32 * 0.01).collect());
    let x = || BenchInput::Value(x.host().clone());
    Benchmark::new(tanh_of_product, vec![x(), x(), count(2000)])
}

fn lorenz_state() -> BenchInput {
    BenchInput::Value(HostTensor::new([3], vec![1.0f32, 2.0, 3.0]))
}

/// 1,000 steps of the Lorenz system.
pub fn lorenz_1000_steps() -> Benchmark {
    Benchmark::new(lorenz, vec![lorenz_state(), count(1000)])
}

/// The gradient of 1,000 steps of the Lorenz system.
pub fn lorenz_gradient_of_1000_steps() -> Benchmark {
    let gradient = |state: Tensor, n: Tensor<i32>| gradients(lorenz(state, n).sum(), state);
    Benchmark::new(gradient, vec![lorenz_state(), count(1000)])
}
