use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor, verbose: bool) -> Tensor {
    while x < 1.0 {
        x *= 2.0;
        if verbose {
            break;
        }
    }
    x
}

fn main() {}
