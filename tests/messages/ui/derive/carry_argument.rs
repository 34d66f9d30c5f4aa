use anabranch::prelude::*;

#[derive(Carry)]
struct State {
    h: Tensor,
    #[carry(skip)]
    width: usize,
}

fn main() {}
