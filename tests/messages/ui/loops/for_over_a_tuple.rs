use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, y: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for (a, _) in (x, [1.0, 2.0].iter()) {
        sum += a.sum();
    }
    for (a, _) in (x, &y) {
        sum += a.sum();
    }
    for (_, a) in (range(scalar(3)), x) {
        sum += a.sum();
    }
    sum
}

fn main() {}
