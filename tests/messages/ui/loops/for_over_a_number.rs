use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor, n: usize) -> Tensor {
    for _ in n {
        x *= 2.0;
    }
    x
}

fn main() {}
