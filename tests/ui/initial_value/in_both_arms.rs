use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let y;
    if x > 0.0 {
        y = x;
    } else {
        y = x + 1.0;
    }
    y
}

fn main() {}
