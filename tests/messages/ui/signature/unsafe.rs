use anabranch::prelude::*;

#[graph]
unsafe fn f(x: Tensor) -> Tensor {
    x
}

fn main() {}
