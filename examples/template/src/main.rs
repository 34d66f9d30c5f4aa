//! Fits a line to points by gradient descent.

use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;

#[graph]
fn train_step(model: &Linear, adam: &Adam, x: Tensor, y: Tensor) -> Tensor {
    let loss = (model.forward(x) - y).square().mean();
    adam.minimize(loss, model);
    loss
}

fn main() -> anabranch::Result<()> {
    let (model, adam) = (Linear::new(&Init::new(0), 1, 1), Adam::new(0.1));
    let session = Session::new()?;
    let step = session.function(|x, y| train_step(&model, &adam, x, y))?;
    let mut loss = f32::INFINITY;
    for _ in 0..300 {
        loss = step.call(([[0.0], [1.0], [2.0]], [[1.0], [3.0], [5.0]]))?.item();
    }
    println!("loss {loss:.6}");
    assert!(loss < 1e-3);
    Ok(())
}
