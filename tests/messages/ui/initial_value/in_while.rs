use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, mut n: Tensor<i32>) -> Tensor {
    let mut y;
    while n > 0 {
        y = x;
        n -= 1;
    }
    y
}

fn main() {}
