use anabranch::prelude::*;

fn f(x: Tensor) -> Tensor {
    if x > 0.0 { x } else { x + 1.0 }
}

fn main() {}
