use anabranch::prelude::*;

#[graph]
fn right(x: Tensor) -> Tensor {
    if x == 1 { x } else { x * 2 }
}

#[graph]
fn left(x: Tensor) -> Tensor {
    if 1 < x { x } else { x - 1.5 }
}

fn main() {}
