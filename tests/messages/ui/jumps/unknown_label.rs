use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> Tensor {
    'outer: while x < 1.0 {
        if x > 0.5 {
            break 'inner;
        }
        x += 0.1;
    }
    x
}

fn main() {}
