use anabranch::prelude::*;

#[graph]
fn converted(x: Tensor<i32>, n: i32) -> Tensor<f64> {
    let scale = n as f64;
    scale * x as f64
}

#[graph]
fn item(x: Tensor) -> Tensor {
    x[0] + x[1..3].sum()
}

fn main() {}
