//! Methods of host iterators on values that are known only when the graph runs.

use anabranch::prelude::*;

#[graph]
fn reversed(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
    let mut y = x;
    for _ in (0..n).rev() {
        y += 1.0;
    }
    y
}

#[graph]
fn counted(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
    let mut y = x;
    for _ in 0..n {
        y += 1.0;
    }
    y
}

#[graph]
fn numbered(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
    let mut y = x;
    for (_, row) in x.enumerate() {
        y += row;
    }
    for (_, i) in range(n).enumerate() {
        y += i.cast();
    }
    for i in range(n).map(|i| i * 2) {
        y += i.cast();
    }
    y
}

fn main() {}
