//! The cost of an iteration of a scalar loop, and of a call.
//!
//! `cargo bench --bench control_flow`. A loop's time divided by its trip count is the cost of one
//! iteration.

use anabranch::prelude::*;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

const TRIPS: i32 = 100_000;

#[graph]
fn linear(n: Tensor<i32>, a: Tensor, b: Tensor) -> Tensor {
    let (mut i, mut x) = (scalar(0), scalar(1.0));
    while i < n {
        i += 1;
        x = x * a + b;
    }
    x
}

#[divan::bench]
fn scalar_while(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(linear).unwrap();
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench(|| f.call((black_box(TRIPS), 0.999, 0.001)).unwrap());
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

#[divan::bench]
fn nested_while_with_a_branch(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(nested).unwrap();
    bencher.counter(ItemsCount::new(100usize * 100)).bench(|| f.call(black_box(100)).unwrap());
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

#[divan::bench]
fn gradient_of_1000_trips(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(slope).unwrap();
    bencher.counter(ItemsCount::new(1000usize)).bench(|| f.call((black_box(0.5), 1000)).unwrap());
}

#[divan::bench]
fn call_of_one_op(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor| x + 1.0).unwrap();
    bencher.bench(|| f.call(black_box(1.0)).unwrap());
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

#[divan::bench]
fn tanh_of_a_64x64_product_in_a_while(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(tanh_of_product).unwrap();
    let x = Array::new([64, 64], (0..64 * 64).map(|i| (i % 7) as f32 * 0.01).collect());
    bencher.counter(ItemsCount::new(2000usize)).bench(|| f.call((&x, &x, 2000)).unwrap());
}

/// Runs steps of the Lorenz system by the classical Runge-Kutta method, with a state of three
/// numbers.
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

#[divan::bench]
fn lorenz_1000_steps(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(lorenz).unwrap();
    bencher.counter(ItemsCount::new(1000usize)).bench(|| f.call((black_box([1.0, 2.0, 3.0]), 1000)).unwrap());
}

#[divan::bench]
fn lorenz_gradient_of_1000_steps(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(|state, n| gradients(lorenz(state, n).sum(), state)).unwrap();
    bencher.counter(ItemsCount::new(1000usize)).bench(|| f.call((black_box([1.0, 2.0, 3.0]), 1000)).unwrap());
}
