use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor<i32>) -> Tensor<i32> {
    while x {
        x -= 1;
    }
    x
}

fn main() {}
