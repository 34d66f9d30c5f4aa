use anabranch::prelude::*;

macro_rules! add {
    ($to:ident, $x:expr) => {
        $to = $to + $x
    };
}

#[graph]
fn f(x: Tensor) -> Tensor {
    let mut y = x;
    if x > 1.0 {
        (0..3).for_each(|_| add!(y, 1.0));
    }
    y
}

fn main() {}
