use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x > 1.0 {
        break;
    }
    x
}

fn main() {}
