//! The primitive operations, one definition each, with everything that devices and transformations
//! need.
//!
//! An [`OpDef`] is a row of a static table, and a [`Prim`] is its handle: [`prim`] has a constant
//! for each. A missing part states its reason ([`Grad::Missing`]); nothing is silently unsupported.
//! The definitions are grouped by family, one file each. [`all`] lists all of them.
//!
//! `docs/src/how-to-operation.md` has the steps to add an operation.
//!
//! Tests reject an operation without cases, and a gradient that finite differences have not
//! confirmed to first and second order.
//!
//! Operands of elementwise operations have equal shapes: broadcasting is an operation of its own,
//! which the methods of [`AnyValue`] insert. So gradients and kernels do not handle broadcasting.

use crate::ir::{AttrKind, Attrs};
use crate::{Diagnostic, Element, ErrorKind, HostTensor, Loc, TensorType, Type};
use attributes::*;
use prim_table::family;

mod attention;
#[doc(hidden)]
pub mod attributes;
mod axes;
mod bits;
mod cast;
mod class;
mod compare;
mod conv;
mod custom;
mod elements;
mod elementwise_binary;
mod elementwise_unary;
mod evaluate;
mod gather;
mod grad;
mod infer;
mod join;
pub(crate) mod laws;
mod layout;
mod matmul;
mod norm;
mod number;
mod occurrences;
mod pool;
#[path = "prim.rs"]
mod prim_table;
pub mod random;
mod reduce;
mod reduce_index;
#[cfg(feature = "strings")]
mod regex;
mod scalar_functions;
mod shape;
mod slice;
mod softmax;
mod sort;
mod string_codes;
mod strings;
mod value;
mod view;
mod window;

pub use axes::{IntoAxes, IntoExtents};
pub(crate) use cast::converted;
pub use class::{ASSUMED_EXTENT, Aliasing, Combiner, Contraction, CostCx, Effort, OpClass, OpCost, ScalarForm};
pub(crate) use evaluate::{has_memory, widened_attrs};
pub use scalar_functions::function_dtype;
pub use view::{Coord, Coverage, ViewCx, ViewForm, ViewMap};

pub use attention::AttentionMask;
pub(crate) use attention::expanded as expanded_attention;
pub use conv::ConvOptions;
pub use custom::{BinaryFunction, UnaryFunction};
pub(crate) use grad::ForwardNode;
pub use grad::{Grad, GradNode, GradRule};
pub use join::{concat, stack};
pub use laws::Laws;
pub use pool::PoolOptions;
pub use prim_table::{Prim, all, by_name, register};
pub use shape::iota;
pub use slice::ScalarIndex;
pub use strings::join_strings;
pub use value::{AnyValue, GradValue, InGraph, InTrace, ValueCx, emit};
pub use window::{PerAxis, WindowExtent};

/// The families, in reading order.
const FAMILIES: &[&[&OpDef]] = &[
    elementwise_unary::OPS,
    elementwise_binary::OPS,
    compare::OPS,
    bits::OPS,
    cast::OPS,
    shape::OPS,
    join::OPS,
    slice::OPS,
    gather::OPS,
    reduce::OPS,
    reduce_index::OPS,
    sort::OPS,
    occurrences::OPS,
    matmul::OPS,
    conv::OPS,
    pool::OPS,
    softmax::OPS,
    attention::OPS,
    random::OPS,
    strings::OPS,
    string_codes::OPS,
    #[cfg(feature = "strings")]
    regex::OPS,
];

/// A handle for each primitive operation.
pub mod prim {
    pub use super::attention::prim::*;
    pub use super::bits::prim::*;
    pub use super::cast::prim::*;
    pub use super::compare::prim::*;
    pub use super::conv::prim::*;
    pub use super::elementwise_binary::prim::*;
    pub use super::elementwise_unary::prim::*;
    pub use super::gather::prim::*;
    pub use super::join::prim::*;
    pub use super::matmul::prim::*;
    pub use super::occurrences::prim::*;
    pub use super::pool::prim::*;
    pub use super::random::prim::*;
    pub use super::reduce::prim::*;
    pub use super::reduce_index::prim::*;
    #[cfg(feature = "strings")]
    pub use super::regex::prim::*;
    pub use super::shape::prim::*;
    pub use super::slice::prim::*;
    pub use super::softmax::prim::*;
    pub use super::sort::prim::*;
    pub use super::string_codes::prim::*;
    pub use super::strings::prim::*;
}

/// The number of operands of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly `n` operands.
    Exactly(usize),
    /// At least `n` operands.
    AtLeast(usize),
}

/// The effects of an operation besides computing its result, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effects {
    /// No effects: the operation may be removed, repeated, merged and moved.
    Pure,
    /// The operation may fail for some operands, for example integer division by zero. Such an
    /// operation may be removed, but not moved to where it would not have run.
    Fallible,
    /// Reads a variable.
    ReadsState,
    /// Assigns a variable: the operation stays, in order.
    WritesState,
    /// The effect is visible outside the graph: the operation stays, in order.
    Observable,
}

/// The exactness with which devices and plans reproduce the reference implementation.
///
/// That of `f32` on GPUs has a second bound, [`GPU_ULPS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    /// The same bits, but for the sign and the payload of a NaN (see
    /// [`equality`](crate::equality)).
    Exact,
    /// Every element is within this number of units in the last place.
    Ulps(u32),
    /// Sums over `n` terms, in any order, are within `factor * n * epsilon` of the sum of
    /// magnitudes.
    Sum(f64),
}

/// The bound for elementwise operations and softmax on `f32` on a GPU: the result `y` for operands
/// of at most `x` is within so many units in the last place of `max(|y|, 1) * max(|x|, 1)`.
///
/// WGSL lets a compiler reorder and contract operations, flush subnormal numbers to zero, and
/// divide with an error of 2.5 units. So the reduction of the argument of `sin`, for example, is
/// only as exact as a multiplication by it. Results that are infinite or not a number may be others
/// there.
pub const GPU_ULPS: f64 = 16.0;

/// The treatment of 16-bit floats by the reference implementation of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// `eval` is not called with them: it computes with `f32`, and the result is rounded.
    Widened,
    /// `eval` accepts them, because it only moves elements or rounds by itself.
    Direct,
}

/// The type of [`OpDef::infer`].
pub type Infer = fn(&InferCx<'_>) -> Result<Type, OpError>;
/// The type of [`OpDef::eval`].
pub type Eval = fn(&EvalCx<'_>) -> Result<HostTensor, OpError>;

/// The definition of an operation: shape inference, semantics, gradient and properties.
pub struct OpDef {
    /// The name in the text form, and the file stem of the kernel and the test cases.
    pub name: &'static str,
    /// The number of operands.
    pub arity: Arity,
    /// The names and types of the attributes, in order.
    pub attrs: &'static [(&'static str, AttrKind)],
    /// Infers the type of the result, or returns an error about the operands.
    pub infer: Infer,
    /// The reference implementation: plain loops over host tensors.
    ///
    /// Every device is tested against it. Call it through [`evaluate`](OpDef::evaluate), which
    /// converts 16-bit floats for most operations.
    pub eval: Eval,
    /// The gradient rule.
    pub grad: Grad,
    /// The exactness with which other implementations reproduce `eval`.
    pub exactness: Exactness,
    /// The dependence of the elements of the result on those of the operands.
    pub class: OpClass,
    /// The treatment of 16-bit floats by `eval`.
    pub halves: Halves,
    /// The effects besides computing the result.
    pub effects: Effects,
    /// The algebraic laws, of an elementwise operation.
    pub laws: Laws,
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The input of [`OpDef::infer`].
pub struct InferCx<'a> {
    /// The types of the operands.
    pub operands: &'a [&'a Type],
    /// The static arguments.
    pub attrs: &'a Attrs,
}

impl<'a> InferCx<'a> {
    /// Returns the type of an operand that must be a tensor.
    ///
    /// Only stack and list operations take anything else.
    pub fn tensor(&self, i: usize) -> Result<&'a TensorType, OpError> {
        self.operands[i].as_tensor().ok_or_else(|| {
            OpError::new(format!("operand {} is {}", i + 1, self.operands[i].kind()))
                .help("pass a tensor, for example an element of it")
        })
    }
}

/// The input of [`OpDef::eval`]. The operand types have passed [`OpDef::infer`].
pub struct EvalCx<'a> {
    /// The operands.
    pub operands: &'a [&'a HostTensor],
    /// The static arguments, with all shapes known.
    pub attrs: &'a Attrs,
    /// The type of the result, inferred from these operands.
    pub ty: &'a TensorType,
}

impl EvalCx<'_> {
    /// Returns the extents of the result.
    pub fn shape(&self) -> Vec<usize> {
        self.ty.shape.known().expect("the type inferred from concrete operands is concrete")
    }

    /// Returns the result with the given elements.
    fn result<T: Element>(&self, data: Vec<T>) -> HostTensor {
        HostTensor::new(self.shape(), data)
    }
}

/// An error about the operands of an operation. The caller adds the source location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The problem, in one line.
    pub message: String,
    /// The label of the source location: usually the types of the operands.
    pub label: String,
    /// A suggested fix.
    pub help: Option<String>,
    /// The kind of the error.
    pub kind: ErrorKind,
}

impl OpError {
    /// Creates an error without details.
    pub fn new(message: impl Into<String>) -> OpError {
        OpError { message: message.into(), label: String::new(), help: None, kind: ErrorKind::Invalid }
    }

    /// Sets the label of the source location.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> OpError {
        self.label = label.into();
        self
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> OpError {
        self.help = Some(help.into());
        self
    }

    /// Returns a diagnostic for the operation `op` at a source location.
    pub fn at(self, op: &str, loc: Loc) -> Diagnostic {
        let error = Diagnostic::new(format!("{op}: {}", self.message)).at(loc, self.label);
        Diagnostic { help: self.help, kind: self.kind, ..error }
    }
}

/// Ends the trace or the differentiation with an error of the operation `op`.
#[track_caller]
fn refuse<C: ValueCx>(op: &str, error: OpError) -> ! {
    C::refuse(op, error)
}

/// Returns the result of a check, or ends with its error, like [`refuse`].
#[track_caller]
fn accept<C: ValueCx, T>(op: &str, checked: Result<T, OpError>) -> T {
    match checked {
        Ok(found) => found,
        Err(error) => refuse::<C>(op, error),
    }
}
