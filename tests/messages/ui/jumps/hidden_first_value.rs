use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, stop: bool) -> Tensor {
    let mut y;
    loop {
        y = x * 2.0;
        let y = y + 1.0;
        if stop || y > 3.0 {
            break;
        }
    }
    y
}

fn main() {}
