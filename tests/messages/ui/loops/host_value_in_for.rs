use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> (Tensor, usize) {
    let mut sum = scalar(0.0);
    let mut count = 0;
    for row in x {
        sum += row.sum();
        count += 1;
    }
    (sum, count)
}

fn main() {}
