use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, y: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for (a, b) in (x, y) {
        sum += (a * b).sum();
    }
    sum
}

fn main() {}
