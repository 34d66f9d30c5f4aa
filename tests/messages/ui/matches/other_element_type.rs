use anabranch::prelude::*;

#[graph]
fn f(x: Tensor<i32>) -> Tensor<i32> {
    match x {
        0.5 => scalar(1),
        _ => scalar(2),
    }
}

fn main() {}
