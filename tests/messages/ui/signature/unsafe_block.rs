use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, p: *const f32) -> Tensor {
    x * unsafe { *p }
}

fn main() {}
