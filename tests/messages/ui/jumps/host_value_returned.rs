use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> usize {
    if x > 1.0 {
        return 1;
    }
    2
}

fn main() {}
