use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, log: &mut Vec<String>) -> Tensor {
    if x > 10.0 {
        return x;
    }
    log.push("small".into());
    x * 2.0
}

fn main() {}
