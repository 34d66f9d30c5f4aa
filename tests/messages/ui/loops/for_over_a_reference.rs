use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for row in &x {
        sum += row.sum();
    }
    sum
}

fn main() {}
