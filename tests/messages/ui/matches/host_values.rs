use anabranch::prelude::*;

#[graph]
fn f(x: Tensor<i32>) -> &'static str {
    match x {
        0 => "none",
        1 => "one",
        _ => "many",
    }
}

fn main() {}
