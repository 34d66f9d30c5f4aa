use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x > 1.0 {
        return x;
    }
    x * 2.0
}

fn main() {}
