//! Sessions of every kind, for tests of what lives in a session.

use anabranch::prelude::*;
use anabranch::{DType, Queue, SessionBuilder, TensorType};

/// Returns the interpreter, the plan, two devices with each node on its own, and a device whose
/// memory the host cannot see.
pub fn each() -> impl Iterator<Item = Session> {
    let builders: [SessionBuilder; 4] = [
        Session::builder().interpreted(true),
        Session::builder(),
        Session::builder().cpus(2).lower_everything(true),
        Session::builder().opaque_devices(1),
    ];
    builders.into_iter().map(|builder| builder.build().unwrap_or_else(|e| panic!("{e}")))
}

/// Returns a FIFO queue of numbers.
pub fn numbers(capacity: usize) -> Queue<Tensor<i64>> {
    Queue::fifo("numbers", capacity, &[TensorType::new(DType::I64, [])]).unwrap_or_else(|e| panic!("{e}"))
}
