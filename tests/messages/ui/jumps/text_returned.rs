use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Option<String> {
    if x > 1.0 {
        return None;
    }
    Some("small".to_owned())
}

fn main() {}
