//! Types that a graph function cannot take.

use anabranch::prelude::*;

struct Batch {
    images: Tensor,
}

fn main() {
    let session = Session::new().unwrap();
    let _ = session.function(|x: Tensor, n: f32| x * n);
    let _ = session.function(|batch: Batch| batch.images);
    let _ = session.function(|x: &Tensor| *x);
}
