use anabranch::prelude::*;

fn right(x: Tensor) -> Tensor {
    x * 2
}

fn left(x: Tensor) -> Tensor {
    2 * x
}

fn sum(x: Tensor<i32>) -> Tensor<i32> {
    0.5 + x
}

#[graph]
fn compared(x: Tensor) -> Tensor {
    if x > 0 { x } else { -x }
}

#[graph]
fn by_method(x: Tensor) -> Tensor {
    if x.gt(0.0) { x } else { -x }
}

fn main() {}
