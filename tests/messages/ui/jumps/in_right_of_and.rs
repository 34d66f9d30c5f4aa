use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x > 0.0 && (if x > 1.0 { return x } else { x < 0.5 }) {
        return x * 2.0;
    }
    x
}

fn main() {}
