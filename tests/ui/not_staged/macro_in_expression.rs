use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> Tensor {
    while x < 1.0 {
        x *= format!("{}", 2).len() as f32;
    }
    x
}

fn main() {}
