//! A method of a type's own that is called `clone` may change it: by its type that is seen.

use anabranch::prelude::*;

struct Meter {
    reads: usize,
}

impl Meter {
    fn clone(&mut self) -> f64 {
        self.reads += 1;
        1.0
    }
}

#[graph]
fn by_value(x: Tensor<f64>) -> Tensor<f64> {
    let mut meter = Meter { reads: 0 };
    let mut y = x;
    if x > 0.0 {
        y += meter.clone();
    }
    y
}

#[graph]
fn of_an_item(meters: &mut [Meter], x: Tensor<f64>) -> Tensor<f64> {
    let mut y = x;
    let mut n = 0;
    if x > 0.0 {
        y += meters[n].clone() + n.to_string().len() as f64;
    }
    n += 1;
    y + n as f64
}

fn main() {}
