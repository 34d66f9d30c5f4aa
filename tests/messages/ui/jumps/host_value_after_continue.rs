use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, layers: &[f32]) -> (Tensor, usize) {
    let mut count = 0;
    let mut y = x;
    for &w in layers {
        if y > 10.0 {
            continue;
        }
        y = y * w;
        count += 1;
    }
    (y, count)
}

fn main() {}
