//! Types that a graph function cannot return.

use anabranch::prelude::*;

fn main() {
    let session = Session::new().unwrap();
    let _ = session.function(|x: Tensor| (x, 1.0f32));
    let _ = session.function(|x: Tensor| x.rank());
}
