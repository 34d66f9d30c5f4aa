use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, limit: Option<Tensor>) -> Tensor {
    match limit {
        Some(y) if y > x => y,
        _ => x,
    }
}

fn main() {}
