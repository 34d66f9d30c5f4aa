use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for i in range(x) {
        sum += i;
    }
    sum
}

fn main() {}
