use anabranch::prelude::*;

#[graph]
fn f(x: Tensor<i32>, y: Tensor<i32>) -> Tensor<i32> {
    match (x, y) {
        (0, _) => scalar(1),
        (1..=9, _) => scalar(2),
    }
}

fn main() {}
