use anabranch::prelude::*;

fn exchange(pair: &mut (Tensor, Tensor)) {
    *pair = (pair.1, pair.0);
}

#[graph]
fn f(mut pairs: Vec<(Tensor, Tensor)>, x: Tensor) -> Vec<(Tensor, Tensor)> {
    pairs.iter_mut().for_each(|pair| {
        while x > 0.0 {
            exchange(pair);
        }
    });
    pairs
}

fn main() {}
