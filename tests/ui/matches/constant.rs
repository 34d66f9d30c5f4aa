use anabranch::prelude::*;

const LIMIT: i32 = 3;

#[graph]
fn f(x: Tensor<i32>) -> Tensor<i32> {
    match x % 5 {
        0 => scalar(1),
        LIMIT => scalar(2),
        _ => scalar(3),
    }
}

fn main() {}
