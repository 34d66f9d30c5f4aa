use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, limit: Option<Tensor>) -> Tensor {
    if let Some(y) = limit && y > x {
        return y;
    }
    x
}

fn main() {}
