use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x { x + 1.0 } else { x }
}

fn main() {}
