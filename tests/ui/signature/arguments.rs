use anabranch::prelude::*;

#[graph(fast)]
fn f(x: Tensor) -> Tensor {
    x
}

fn main() {}
