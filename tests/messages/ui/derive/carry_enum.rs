use anabranch::prelude::*;

#[derive(Carry)]
enum State {
    Empty,
    Full(Tensor),
}

fn main() {}
