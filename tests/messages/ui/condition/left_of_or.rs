use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor<bool> {
    x || x > 0.0
}

fn main() {}
