use anabranch::prelude::*;

fn twice(x: Tensor) -> Tensor {
    x * 2.0
}

#[graph]
fn f(x: Tensor) -> Tensor {
    twice(if x > 1.0 { x } else { return x * 3.0 }) + 1.0
}

fn main() {}
