use anabranch::prelude::*;

#[derive(Carry)]
struct State {
    h: Tensor,
    width: usize,
}

fn main() {}
