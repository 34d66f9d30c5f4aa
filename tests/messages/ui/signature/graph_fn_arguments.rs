//! Arguments that do not fit, and more parameters than there may be.

use anabranch::prelude::*;

type T = Tensor;

fn many(_: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, x: T) -> T {
    x
}

fn main() {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor, n: Tensor<i32>| x * n.cast::<f32>()).unwrap();
    let _ = f.call(1.0);
    let _ = f.call((1.0, "two"));
    let _ = session.function(many);
}
