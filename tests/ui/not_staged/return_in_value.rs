use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let y = if x > 1.0 { x } else { return x * 3.0 };
    y * 2.0
}

fn main() {}
