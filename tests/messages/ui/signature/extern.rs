use anabranch::prelude::*;

#[graph]
extern "C" fn f(x: u32) -> u32 {
    x
}

fn main() {}
