use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Vec<u8> {
    let mut names = vec![];
    if x > 0.0 {
        names.push(1u8);
    }
    names
}

fn main() {}
