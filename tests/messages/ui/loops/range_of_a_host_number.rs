use anabranch::prelude::*;

#[graph]
fn counted(x: Tensor) -> Tensor {
    let mut y = x;
    for _ in range(3) {
        y += x;
    }
    y
}

fn main() {}
