use anabranch::prelude::*;

#[derive(Module)]
enum Layer {
    Linear(Var),
}

fn main() {}
