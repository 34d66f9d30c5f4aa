use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> usize {
    let mut k = 0usize;
    if x > 0.0 {
        k = 1;
    }
    k
}

fn main() {}
