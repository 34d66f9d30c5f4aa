use anabranch::prelude::*;

struct State {
    h: Tensor,
}

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut state = State { h: x };
    if x > 0.0 {
        state = State { h: x + 1.0 };
    }
    state.h
}

fn main() {}
