use anabranch::prelude::*;

fn twice(x: Tensor) -> Tensor {
    x * 2.0
}

#[graph]
fn f(x: Tensor) -> Tensor {
    twice(if x > 1.0 { x } else { return x * 3.0 }) + 1.0
}

#[graph]
fn in_block(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut y = x;
    for i in range(n) {
        y = {
            if i > 1 {
                if y > 4.0 {
                    break;
                }
                y += 10.0;
            }
            y
        } + 1.0;
    }
    y
}

#[graph]
fn in_elements(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut y = x;
    for _ in range(n) {
        let v = vec![{
            if y > 4.0 {
                break;
            }
            y + 1.0
        }];
        y = v[0];
    }
    y
}

fn main() {}
