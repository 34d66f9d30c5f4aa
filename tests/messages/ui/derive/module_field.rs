use anabranch::prelude::*;

#[derive(Module)]
struct Layer {
    weight: Var,
    width: usize,
}

fn main() {}
