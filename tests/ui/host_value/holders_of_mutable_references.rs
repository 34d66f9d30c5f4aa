use anabranch::prelude::*;

#[graph]
fn items(x: Tensor, limit: Tensor) -> Tensor {
    let mut v = vec![x, x];
    {
        let items = v.iter_mut();
        if x > limit {
            for item in items {
                *item = limit;
            }
        }
    }
    v[0]
}

#[graph]
fn optional(x: Tensor, limit: Tensor) -> Tensor {
    let mut y = x;
    let place = Some(&mut y);
    if x > limit {
        let place = place.unwrap();
        *place = limit;
    }
    y
}

#[graph]
fn boxed(x: Tensor, limit: Tensor) -> Tensor {
    let mut y = x;
    {
        let change: Box<dyn FnOnce()> = Box::new(|| y = limit);
        if x > limit {
            change();
        }
    }
    y
}

fn main() {}
