use anabranch::prelude::*;

#[graph]
async fn f(x: Tensor) -> Tensor {
    x
}

fn main() {}
