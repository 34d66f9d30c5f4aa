use anabranch::prelude::*;

fn rows(x: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for row in x {
        sum += row;
    }
    sum
}

fn numbers(n: Tensor<i32>) -> Tensor<i32> {
    let mut sum = scalar(0);
    for i in range(n) {
        sum += i;
    }
    sum
}

fn items(list: List<f32>) -> Tensor {
    let mut sum = scalar(0.0);
    for item in list {
        sum += item;
    }
    sum
}

fn main() {}
