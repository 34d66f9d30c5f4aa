use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    if x > 1.0 {
        break;
    }
    x
}

#[graph]
fn g(x: Tensor) -> Tensor {
    if x > 1.0 {
        continue;
    }
    if x > 2.0 {
        break 'outer;
    }
    x
}

fn main() {}
