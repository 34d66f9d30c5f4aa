use anabranch::prelude::*;

macro_rules! length {
    ($text:literal) => {
        $text.len()
    };
}

#[graph]
fn f(mut x: Tensor) -> Tensor {
    while x < 1.0 {
        x *= length!("ab") as f32;
    }
    x
}

fn main() {}
