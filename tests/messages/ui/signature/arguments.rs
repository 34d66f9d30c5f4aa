use anabranch::prelude::*;

#[graph(fast)]
fn f(x: Tensor) -> Tensor {
    x
}

#[graph(max_iterations = 3, speed = 7)]
fn g(x: Tensor) -> Tensor {
    x
}

#[graph(parallel_iterations = 3, parallel_iterations = 4)]
fn h(x: Tensor) -> Tensor {
    x
}

fn main() {}
