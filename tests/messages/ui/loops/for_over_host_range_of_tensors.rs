use anabranch::prelude::*;

#[graph]
fn f(n: Tensor<i32>) -> Tensor<i32> {
    let mut sum = scalar(0);
    for i in scalar(0)..n {
        sum += i;
    }
    sum
}

fn main() {}
