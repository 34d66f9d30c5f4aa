//! Without `#[graph]` the operators are those of the host.

use anabranch::prelude::*;

fn f(x: Tensor) -> Tensor {
    if x > 0.0 { x } else { x + 1.0 }
}

fn g(x: &Tensor, y: Tensor) -> Tensor {
    let mut sum = *x;
    while *x == y {
        sum = sum + 1.0;
    }
    sum
}

#[derive(PartialEq)]
struct Pair {
    first: Tensor,
    second: Tensor<i32>,
}

fn all(all: Vec<Tensor>, y: Tensor) -> bool {
    all.contains(&y)
}

fn main() {}
