use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for row in x.iter() {
        sum += row.sum();
    }
    sum
}

#[graph]
fn g(x: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for (i, row) in x.into_iter().enumerate() {
        sum += row.sum() * i as f32;
    }
    sum
}

fn main() {}
