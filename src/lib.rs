#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use anabranch_dsl as dsl;
pub use anabranch_dsl::control;
pub use anabranch_dsl::function::{Arguments, Signature};
pub use anabranch_dsl::ops::random;
pub use anabranch_dsl::{
    Any, AnyVar, Array, Carry, DType, DeviceKind, DeviceName, DevicePattern, Diagnostic, Dim, Element, ErrorKind,
    Float, Graph, HostTensor, Integer, IntoArray, List, ListIndex, Loc, Module, Numeric, Operand, Range, Result, Shape,
    Tensor, TensorType, Type, Var, Wrt, bf16, checkpoint, checkpoint_loop, checkpoint_loop_every, custom_gradient,
    eval, eval_with, f16, full, gradients, nn, on, optim, range, scalar, tensor, zeros,
};
pub use anabranch_macros::{Carry, InOut, Module, graph};
pub use anabranch_runtime::{Builder, CallOptions, CancelHandle, Function, Modelled, Pruned, Session, Span, Timeline};

#[doc(hidden)]
pub use anabranch_dsl::staged as __rt;

/// What a program needs: `use anabranch::prelude::*`.
pub mod prelude {
    pub use crate::{Carry, Function, InOut, Module, Session, graph};
    pub use anabranch_dsl::prelude::*;
}
