use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> Tensor {
    for _ in 0..10 {
        if x > 1.0 {
            continue;
        }
        x *= 2.0;
    }
    x
}

fn main() {}
