use anabranch::prelude::*;

#[graph]
fn f(n: Tensor<i32>) -> Tensor<i32> {
    let last;
    for i in range(n) {
        last = i;
    }
    last
}

fn main() {}
