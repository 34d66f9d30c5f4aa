use anabranch::prelude::*;

struct Pair {
    a: Tensor,
}

#[graph]
fn f(x: Tensor) -> Pair {
    while x > 1.0 {
        if x > 2.0 {
            return Pair { a: x };
        }
    }
    Pair { a: x * 2.0 }
}

fn main() {
    let _ = |p: Pair| p.a;
}
