#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[doc(inline)]
pub use anabranch_dsl::device::IntoDevice;
#[doc(inline)]
pub use anabranch_dsl::format::Stream;
#[doc(inline)]
pub use anabranch_dsl::function::{Arguments, CallArgs, Feed, Field, GraphFn, Input, Output, Results, Signature};
#[doc(inline)]
pub use anabranch_dsl::ops::{AttentionMask, ConvOptions, PerAxis, PoolOptions, WindowExtent};
#[doc(inline)]
pub use anabranch_dsl::{
    AnyQueue, AnyValue, AnyVar, Array, ArrayIndex, Bytes, Carry, DType, DeviceConstraint, DeviceKind, DeviceName,
    DevicePattern, Diagnostic, Dim, Element, ElementCount, ErrorKind, Float, Graph, HostTensor, Integer, IntoArray,
    IntoAxes, IntoExtents, List, ListIndex, Loc, Module, Numeric, Operand, Orderable, Plain, Queue, QueueElement,
    QueueOrder, Range, Result, ScalarIndex, Shape, Tensor, TensorType, Type, Var, Wrt, bf16, checkpoint,
    checkpoint_loop, checkpoint_loop_every, commit_each_iteration, concat, cond, custom_gradient, eval, eval_with, f16,
    fold_left, fold_right, full, gradients, iota, join_strings, map, on, range, scalar, scan, scan_reverse, stack,
    switch, tensor, while_loop, zeros,
};
#[doc(inline)]
pub use anabranch_dsl::{control, losses, metrics, nn, optim, random};
#[doc(inline)]
pub use anabranch_macros::{Carry, InOut, Module, graph};
#[doc(inline)]
pub use anabranch_runtime::{
    CallOptions, CancelHandle, Function, HostQueue, MatmulPrecision, OperationTime, OperationTimes, PrunedFunction,
    QueueFeed, QueueIter, Session, SessionBuilder, SimulatedDevice, Snapshot, Span, Timeline,
};

#[cfg(feature = "checkpoints")]
#[doc(inline)]
pub use anabranch_checkpoint as checkpoints;
#[cfg(feature = "data")]
#[doc(inline)]
pub use anabranch_data as data;
#[cfg(feature = "peers")]
#[doc(inline)]
pub use anabranch_runtime::peers;
#[cfg(feature = "gpu")]
#[doc(inline)]
pub use anabranch_runtime::{GpuAdapter, gpu_adapters};
#[cfg(feature = "train")]
#[doc(inline)]
pub use anabranch_train as train;
#[cfg(feature = "object_store")]
#[doc(inline)]
pub use objects::ObjectFolder;

// The crates themselves, for tests and benchmarks.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use anabranch_dsl as dsl;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use anabranch_runtime as runtime;

// The functions that the macros expand to.
#[doc(hidden)]
pub use anabranch_dsl::staged as __rt;

pub mod extend;
#[cfg(feature = "object_store")]
mod objects;

/// The chapters of the book in `docs/src/`, whose examples run as doctests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/src/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../docs/src/language.md")]
    mod language {}
    #[doc = include_str!("../docs/src/for-users-of-numpy.md")]
    mod for_users_of_numpy {}
    #[doc = include_str!("../docs/src/strings.md")]
    mod strings {}
    #[doc = include_str!("../docs/src/training.md")]
    mod training {}
    #[doc = include_str!("../docs/src/losses-and-metrics.md")]
    mod losses_and_metrics {}
    #[doc = include_str!("../docs/src/sessions.md")]
    mod sessions {}
    #[cfg(feature = "checkpoints")]
    #[doc = include_str!("../docs/src/checkpoints.md")]
    mod checkpoints {}
    #[cfg(all(feature = "checkpoints", feature = "data"))]
    #[doc = include_str!("../docs/src/data.md")]
    mod data {}
    #[cfg(feature = "train")]
    #[doc = include_str!("../docs/src/trainer.md")]
    mod trainer {}
    #[doc = include_str!("../docs/src/queues.md")]
    mod queues {}
    #[cfg(feature = "peers")]
    #[doc = include_str!("../docs/src/peers.md")]
    mod peers {}
    #[doc = include_str!("../docs/src/how-to-layer.md")]
    mod how_to_layer {}
    #[doc = include_str!("../docs/src/how-to-optimizer.md")]
    mod how_to_optimizer {}
    #[doc = include_str!("../docs/src/how-to-operation.md")]
    mod how_to_operation {}
    #[doc = include_str!("../docs/src/how-to-pass.md")]
    mod how_to_pass {}
}

/// The READMEs of the crates that the facade re-exports from, whose examples run as doctests.
#[cfg(doctest)]
mod readmes {
    #[cfg(feature = "checkpoints")]
    #[doc = include_str!("../checkpoint/README.md")]
    mod checkpoint {}
    #[cfg(feature = "data")]
    #[doc = include_str!("../data/README.md")]
    mod data {}
    #[doc = include_str!("../dsl/README.md")]
    mod dsl {}
    #[doc = include_str!("../dsl-macros/README.md")]
    mod dsl_macros {}
    #[doc = include_str!("../runtime/README.md")]
    mod runtime {}
    #[cfg(feature = "train")]
    #[doc = include_str!("../train/README.md")]
    mod train {}
}

/// The names that most programs need: `use anabranch::prelude::*`.
pub mod prelude {
    pub use crate::{AttentionMask, Carry, ConvOptions, Function, InOut, Module, PoolOptions, Session, graph};
    pub use anabranch_dsl::prelude::*;
}
