//! `get` changes nothing of a vector; of a type that nobody knows it may.

use anabranch::prelude::*;

struct Meter {
    reads: usize,
}

impl Meter {
    fn get(&mut self) -> f64 {
        self.reads += 1;
        1.0
    }
}

#[graph]
fn by_value(x: Tensor<f64>) -> Tensor<f64> {
    let mut meter = Meter { reads: 0 };
    let mut y = x;
    if x > 0.0 {
        y += meter.get();
    }
    y
}

#[derive(Carry)]
struct Pair {
    now: Tensor<f64>,
    next: Tensor<f64>,
}

impl Pair {
    fn round(&mut self) {
        self.now = self.next;
    }
}

fn lent(pair: &mut Pair) -> &mut Pair {
    pair
}

#[graph]
fn by_reference(pair: &mut Pair, x: Tensor<f64>) {
    let pair = lent(pair);
    if x > 0.0 {
        pair.round();
    }
}

fn main() {}
