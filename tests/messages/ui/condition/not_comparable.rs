use anabranch::prelude::*;

struct Name;

#[graph]
fn f(a: Name, b: Name) -> bool {
    a == b
}

fn main() {}
