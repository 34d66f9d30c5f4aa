use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> i32 {
    if x > 0.0 { 1 } else { -1 }
}

fn main() {}
