use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> (usize, Tensor) {
    let n = loop {
        x *= 2.0;
        if x > 100.0 {
            break 7;
        }
    };
    (n, x)
}

fn main() {}
