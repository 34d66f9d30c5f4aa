use anabranch::prelude::*;

fn apply(change: impl FnOnce()) {
    change()
}

#[graph]
fn moved(x: Tensor, limit: Tensor) -> Tensor {
    let mut y = x;
    {
        let double = || y = x * 2.0;
        if x > limit {
            apply(double);
        }
    }
    y
}

#[graph]
fn pushed(x: Tensor, limit: Tensor) -> Tensor {
    let mut all = vec![x];
    {
        let more = || all.push(x * 2.0);
        if x > limit {
            apply(more);
        }
    }
    all[all.len() - 1]
}

fn main() {}
