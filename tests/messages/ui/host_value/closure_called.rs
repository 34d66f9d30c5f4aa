use anabranch::prelude::*;

#[graph]
fn f(x: Tensor) -> Vec<f32> {
    let mut log = vec![];
    let mut note = |y: f32| log.push(y);
    if x > 0.0 {
        note(1.0);
    }
    log
}

#[graph]
fn once(x: Tensor, limit: Tensor) -> Tensor {
    let (mut y, name) = (x, String::new());
    {
        let set = || {
            drop(name);
            y = limit;
        };
        if x > limit {
            set();
        }
    }
    y
}

fn main() {}
