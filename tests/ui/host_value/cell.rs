use anabranch::prelude::*;
use std::cell::Cell;

#[graph]
fn f(x: Tensor) -> Tensor {
    let last = Cell::new(x);
    if x > 0.0 {
        last.set(x * 2.0);
    }
    last.get()
}

fn main() {}
