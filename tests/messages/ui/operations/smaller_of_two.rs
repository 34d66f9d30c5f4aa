use anabranch::prelude::*;

#[graph]
fn smaller(x: Tensor, y: Tensor) -> Tensor {
    x.min(y)
}

fn larger(x: Tensor, y: Tensor) -> Tensor {
    x.max_axis(y)
}

fn main() {}
