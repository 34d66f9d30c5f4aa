use anabranch::prelude::*;

#[graph]
fn f(n: Tensor<i32>) -> usize {
    let mut names = Vec::new();
    for i in range(n) {
        names.push(format!("{i:?}"));
    }
    names.len()
}

fn main() {}
