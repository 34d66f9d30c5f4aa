use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut y = x;
    while {
        if y > 9.0 {
            return y;
        }
        y < 10.0
    } {
        y += 1.0;
    }
    y
}

fn main() {}
