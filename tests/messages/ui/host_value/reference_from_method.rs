use anabranch::prelude::*;

#[derive(Carry)]
struct State {
    h: Tensor,
    c: Tensor,
}

impl State {
    fn inner(&mut self) -> &mut State {
        self
    }
    fn exchange(&mut self) {
        std::mem::swap(&mut self.h, &mut self.c);
    }
}

#[graph]
fn f(mut state: State, x: Tensor) -> Tensor {
    let inner = state.inner();
    if x > 0.0 {
        inner.exchange();
    }
    state.h
}

fn main() {}
