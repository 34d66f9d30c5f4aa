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

#[graph]
fn mapped(x: Tensor, limit: Tensor, mut place: Option<&mut Tensor>) {
    if x > limit {
        place.map(|place| *place = limit);
    }
}

#[graph]
fn held(x: Tensor, limit: Tensor, mut y: [Tensor; 4]) -> [Tensor; 4] {
    let [a, b, c, d] = &mut y;
    let (result, pairs) = (Ok::<_, ()>(a), vec![(1, b)]);
    let (once, rest) = (std::iter::once(c).map(|item| item), [d]);
    if x > limit {
        *result.unwrap() = limit;
        for (_, item) in pairs {
            *item = limit;
        }
        for item in once {
            *item = limit;
        }
        let [item] = rest;
        *item = limit;
    }
    y
}

#[graph]
fn guard(x: Tensor, limit: Tensor, y: &std::cell::RefCell<Tensor>) {
    let mut y = y.borrow_mut();
    if x > limit {
        return;
    }
    y.assign(limit);
}

trait Assign {
    fn assign(&mut self, x: Tensor);
}

impl Assign for Tensor {
    fn assign(&mut self, x: Tensor) {
        *self = x;
    }
}

fn main() {}
