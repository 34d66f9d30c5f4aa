use anabranch::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[graph]
fn f(x: Tensor) -> Tensor {
    let last = Cell::new(x);
    if x > 0.0 {
        last.set(x * 2.0);
    }
    last.get()
}

#[derive(Carry, Clone)]
struct Node {
    value: Tensor,
}

#[graph]
fn tree(x: Tensor) -> Tensor {
    let root = Rc::new(RefCell::new(Node { value: x }));
    let nodes = vec![root.clone()];
    let mut y = x;
    if x > 0.0 {
        y += nodes[0].borrow().value;
        nodes[0].borrow_mut().value = y;
    }
    root.borrow().value
}

fn main() {}
