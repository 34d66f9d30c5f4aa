use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut total = scalar(0.0);
    for row in x {
        total += row;
    }
    total
}

fn main() {}
