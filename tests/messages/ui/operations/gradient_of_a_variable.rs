use anabranch::prelude::*;

fn slope(w: &Var<f32>) {
    let _ = gradients(w.get().square().sum(), w);
}

fn main() {}
