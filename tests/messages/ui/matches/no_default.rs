use anabranch::prelude::*;

#[graph]
fn f(x: Tensor<i32>) -> Tensor<i32> {
    match x {
        0 => scalar(1),
        1..=9 => scalar(2),
    }
}

fn main() {}
