use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, n: Tensor<i32>) -> Tensor {
    if x > n { x } else { x * 2.0 }
}

fn main() {}
