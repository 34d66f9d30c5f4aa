use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x == 1 { x } else { x * 2.0 }
}

fn main() {}
