use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor<bool> {
    x > 0.0 && x
}

fn main() {}
