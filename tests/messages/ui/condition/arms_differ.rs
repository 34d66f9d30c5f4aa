use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x > 0.0 { x } else { 1.0 }
}

fn main() {}
