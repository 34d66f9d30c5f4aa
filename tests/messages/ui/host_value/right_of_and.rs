use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor<bool> {
    let mut tries = 0;
    x > 0.0 && {
        tries += 1;
        x < 1.0
    }
}

fn main() {}
