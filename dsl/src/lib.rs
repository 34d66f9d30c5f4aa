//! The language of anabranch: symbolic tensors, operations, staged control flow, the graph IR,
//! autodiff, and the interpreter that defines the semantics.
//!
//! ```
//! use anabranch::prelude::*;
//!
//! #[graph]
//! fn triangular(n: Tensor<i32>) -> Tensor<i32> {
//!     let mut sum = scalar(0);
//!     for i in range(n) {
//!         sum += i + 1;
//!     }
//!     sum
//! }
//!
//! // The interpreter runs the traced graph; a `Session` of the runtime compiles it.
//! assert_eq!(anabranch::eval_with(triangular, 4)?, 10);
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! Users depend on the crate `anabranch`, which has the documented interface. Hidden items are for
//! the other crates of the workspace and may change at any time.
#![forbid(unsafe_code)]

mod array;
pub mod autodiff;
mod bytes;
pub mod control;
#[cfg(feature = "corpus")]
#[doc(hidden)]
pub mod corpus;
pub mod derivatives;
pub mod device;
mod diagnostic;
mod dtype;
mod edit_distance;
#[doc(hidden)]
pub mod equality;
#[doc(hidden)]
pub mod files;
pub mod format;
pub mod function;
#[doc(hidden)]
pub mod fusion;
#[doc(hidden)]
pub mod halves;
#[doc(hidden)]
pub mod interp;
pub mod ir;
mod list;
mod loc;
pub mod losses;
#[doc(hidden)]
pub mod memory;
pub mod metrics;
#[cfg(feature = "ndarray")]
mod ndarray;
pub mod nn;
pub mod ops;
pub mod optim;
#[doc(hidden)]
pub mod passes;
#[doc(hidden)]
pub mod queue;
#[cfg(feature = "safetensors")]
#[doc(hidden)]
pub mod safetensors;
#[doc(hidden)]
pub mod scalars;
mod shape;
// Not hidden: in error messages, rustc writes the full paths of hidden items.
pub mod staged;
mod stop;
mod tensor;
#[doc(hidden)]
pub mod trace;
mod ty;
pub mod var;

pub use array::{Array, ArrayIndex, Buffer, HostTensor, IntoArray, Reclaim};
pub use bytes::Bytes;
pub use control::{cond, fold_left, fold_right, map, scan, scan_reverse, switch, while_loop};
pub use derivatives::{Wrt, checkpoint, checkpoint_loop, checkpoint_loop_every, custom_gradient, gradients};
pub use device::{DeviceConstraint, DeviceKind, DeviceName, DevicePattern};
pub use diagnostic::{Diagnostic, ErrorKind, Result};
pub use dtype::{DType, Element, Float, Integer, Numeric, Orderable, Plain};
pub use function::{eval, eval_with};
pub use halves::{bf16, f16};
pub use ir::Graph;
pub use list::{List, ListIndex};
pub use loc::Loc;
pub use ops::{AnyValue, IntoAxes, IntoExtents, ScalarIndex, concat, iota, join_strings, random, stack};
pub use queue::{AnyQueue, ElementCount, Queue, QueueElement, QueueOrder};
pub use shape::{Dim, Shape};
pub use staged::{Carry, Range, range};
pub use tensor::{Finds, IndexedByBrackets, Operand, Tensor, full, scalar, tensor, zeros};
pub use trace::{commit_each_iteration, on};
pub use ty::{TensorType, Type};
pub use var::{AnyVar, Module, Var};

/// The names that models need: `use anabranch::prelude::*`.
pub mod prelude {
    pub use crate::control::{cond, fold_left, fold_right, map, scan, scan_reverse, switch, while_loop};
    pub use crate::{
        Array, Bytes, List, Module, Tensor, Var, bf16, checkpoint, checkpoint_loop, checkpoint_loop_every, concat,
        custom_gradient, eval, eval_with, f16, full, gradients, iota, join_strings, on, range, scalar, stack, tensor,
        zeros,
    };
}
