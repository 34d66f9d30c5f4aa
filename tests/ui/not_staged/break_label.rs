use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    'outer: loop {
        if x > 0.0 {
            for _ in 0..3 {
                break 'outer;
            }
        }
    }
    x
}

fn main() {}
