use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> Tensor {
    let mut steps = 0;
    while x > 1.0 {
        x /= 2.0;
        steps += 1;
    }
    println!("{steps}");
    x
}

fn main() {}
