use anabranch::prelude::*;

#[graph]
fn f(x: Tensor, later: impl Future<Output = Tensor>) -> impl Future<Output = Tensor> {
    async move {
        let mut y = x;
        if x > 1.0 {
            y = later.await;
        }
        y
    }
}

fn main() {}
