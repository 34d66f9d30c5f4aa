//! Methods with names of host conditions or host iterators that return tensors.

use anabranch::prelude::*;

#[derive(Carry, Clone, Copy)]
struct Pair {
    now: Tensor,
    next: Tensor,
}

impl Pair {
    fn is_empty(&self) -> Tensor<bool> {
        self.now.equal(0.0)
    }
    fn values(&self) -> Tensor {
        self.now
    }
    fn capacity(&self) -> Tensor {
        self.next
    }
}

#[graph]
fn f(pair: Pair) -> Tensor {
    let mut y = pair.now;
    if !pair.is_empty() {
        y += 1.0;
    }
    for row in pair.values() {
        y += row;
    }
    if pair.capacity() > 3.0 {
        y += 2.0;
    }
    y
}

fn main() {}
