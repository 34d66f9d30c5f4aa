use anabranch::prelude::*;

#[graph]
fn taken(x: Tensor, limit: Tensor) -> Tensor {
    let mut items = [1.0, 2.0, 3.0].into_iter();
    let mut sum = x;
    while let Some(item) = items.next() {
        sum += item;
        if sum > limit {
            break;
        }
    }
    sum + items.next().unwrap_or(0.0)
}

#[graph]
fn made(x: Tensor, limit: Tensor) -> Tensor {
    let mut last = x;
    let mut sum = x;
    for item in [1.0, 2.0, 3.0].into_iter().map(|item| {
        last += item;
        item
    }) {
        sum += item;
        if sum > limit {
            break;
        }
    }
    sum + last
}

#[graph]
fn pushed(x: Tensor, limit: Tensor) -> Tensor {
    let mut seen = Vec::new();
    let mut sum = x;
    for item in [1.0, 2.0, 3.0].into_iter().inspect(|item| seen.push(*item)) {
        sum += item;
        if sum > limit {
            break;
        }
    }
    sum * seen.len() as f32
}

#[graph]
fn borrowed(x: Tensor, limit: Tensor) -> Tensor {
    let mut items = [1.0, 2.0, 3.0].into_iter();
    let mut sum = x;
    for (i, item) in items.by_ref().enumerate() {
        sum += item * i as f32;
        if sum > limit {
            break;
        }
    }
    sum + items.next().unwrap_or(0.0)
}

fn main() {}
