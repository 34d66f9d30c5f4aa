//! Operations of plans: a kernel with its operands and its result, and operations on registers.

use super::Kernel;
use crate::cpu::memory::{Out, TensorOperand};
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::{OpCost, Prim};
use anabranch_dsl::{DType, Loc};

/// The graph operation that a tensor operation computes, for errors and the reference kernel.
#[derive(Clone, Debug)]
pub(crate) struct SourceOp {
    pub(crate) def: Prim,
    pub(crate) attrs: Attrs,
    /// The name of the operation in errors.
    pub(crate) name: &'static str,
}

/// A tensor operation, or the operands of another instruction besides its registers.
#[derive(Debug)]
pub(crate) struct TensorOp {
    pub(crate) kernel: Kernel,
    pub(crate) operands: Vec<TensorOperand>,
    pub(crate) out: Out,
    /// The graph operation, for kernels that can fail.
    pub(crate) meaning: Option<Box<SourceOp>>,
    /// The cost of the graph operation, if the kernel computes its sums of products.
    pub(crate) cost: OpCost,
    /// The name of the graph operation.
    pub(crate) name: &'static str,
    pub(crate) loc: Loc,
}

/// An operation on registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScalarOp {
    pub(crate) op: Prim,
    /// The type of the operands. For `select`, the type of the two alternatives.
    pub(crate) operand: DType,
    pub(crate) result: DType,
}
