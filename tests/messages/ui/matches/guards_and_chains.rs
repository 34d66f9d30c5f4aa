//! Match guards and `let` chains need a host `bool`. A wrong part is reported at its location.

use anabranch::prelude::*;

#[graph]
fn guard(x: Tensor<f64>, n: Tensor<i32>, o: Option<Tensor<f64>>) -> Tensor<f64> {
    match o {
        Some(y) if x > 1.0 && n > 0 => y,
        _ => x,
    }
}

#[graph]
fn chain(x: Tensor<f64>, n: Tensor<i32>, o: Option<Tensor<f64>>) -> Tensor<f64> {
    if let Some(y) = o && (x > 1.0 || n > 0) { y } else { x }
}

#[graph]
fn only_guards(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
    match n {
        k if k > 3 => x,
        _ => x * 2.0,
    }
}

fn main() {}
