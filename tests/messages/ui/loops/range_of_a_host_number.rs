use anabranch::prelude::*;

#[graph]
fn counted(x: Tensor, n: i32) -> Tensor {
    let mut y = x;
    for _ in range(n) {
        y += x;
    }
    y
}

fn main() {}
