use anabranch::prelude::*;

#[graph]
const fn f(x: Tensor) -> Tensor {
    x
}

fn main() {}
