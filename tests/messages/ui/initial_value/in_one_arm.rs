use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let y;
    if x > 0.0 {
        y = x;
    } else if x < -1.0 {
        let _ = x;
    } else {
        y = x * 2.0;
    }
    y
}

fn main() {}
