use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    assert!(x);
    x
}

fn main() {}
