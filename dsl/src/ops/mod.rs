//! The operations: one definition each, with everything that a device or a transformation may ask of it.
//!
//! An [`OpDef`] is a row of a static table, and a [`Prim`] its handle: [`prim`] has a constant for each. A part that is missing says why ([`Grad::Missing`]); nothing is silent.
//! The definitions are grouped by family, one file each; [`all`] is the whole list.
//!
//! To add one: a row in the file of its family, named in that file's `family!`; a method of [`Any`], which broadcasts and counts axes
//! from the front; a method of [`Tensor`](crate::Tensor) with an example; and its cases in `tests/ops/`. Tests refuse an operation
//! without cases, and a gradient that finite differences have not confirmed in first and second order.
//!
//! Operands of elementwise operations have equal shapes: broadcasting is an operation of its own, which
//! [`Any`]'s methods insert. So gradients and kernels never think about it.

use crate::autodiff::GradNode;
use crate::ir::{AttrKind, Attrs};
use crate::{Any, Diagnostic, Element, ErrorKind, HostTensor, Loc, TensorType, Type, trace};
use prim_table::family;

mod attention;
mod axes;
mod bits;
mod cast;
mod compare;
mod conv;
mod elementwise_binary;
mod elementwise_unary;
mod evaluate;
mod gather;
mod infer;
mod join;
mod layout;
mod matmul;
mod norm;
mod number;
mod pool;
#[path = "prim.rs"]
mod prim_table;
pub mod random;
mod reduce;
mod reduce_index;
mod shape;
mod slice;
mod softmax;
mod window;

pub use axes::{IntoAxes, IntoExtents};
pub(crate) use cast::converted;
pub(crate) use evaluate::widened_attrs;

pub use conv::ConvOptions;
pub use join::{concat, stack};
pub use pool::PoolOptions;
pub use prim_table::{Prim, all, by_name, register};
pub use shape::iota;
pub use slice::ScalarIndex;
pub use window::{PerAxis, WindowExtent};

/// The families, in reading order.
const FAMILIES: [&[&OpDef]; 17] = [
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
    matmul::OPS,
    conv::OPS,
    pool::OPS,
    softmax::OPS,
    attention::OPS,
    random::OPS,
];

/// A handle for each operation of the table.
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
    pub use super::pool::prim::*;
    pub use super::random::prim::*;
    pub use super::reduce::prim::*;
    pub use super::reduce_index::prim::*;
    pub use super::shape::prim::*;
    pub use super::slice::prim::*;
    pub use super::softmax::prim::*;
}

/// How many operands an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// So many.
    Exactly(usize),
    /// So many or more.
    AtLeast(usize),
}

/// What an operation may do besides computing its result, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effects {
    /// Nothing: may be removed, repeated, merged and moved.
    Pure,
    /// May fail for some operands, as division of integers by zero does: may be removed, not moved to where it did
    /// not run.
    Fallible,
    /// Reads a variable.
    ReadsState,
    /// Changes a variable: stays, in order.
    WritesState,
    /// Is seen from outside: stays, in order.
    Observable,
}

/// How exactly devices and plans reproduce the reference meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    /// The same bits, but for the sign and the payload of a NaN (see [`equality`](crate::equality)).
    Exact,
    /// Within so many units in the last place of every element.
    Ulps(u32),
    /// Within `factor * n * epsilon` of the sum of magnitudes for sums over `n` terms, whose order is free.
    Sum(f64),
}

/// The gradient of an operation.
#[derive(Clone, Copy)]
pub enum Grad {
    /// Gives for each operand its part of the gradient; `None` for an operand without one.
    Rule(fn(&GradNode<'_>) -> Vec<Option<Any>>),
    /// The derivative is zero almost everywhere, or the operands have no gradients; says why.
    Zero(&'static str),
    /// There is no rule: an error if a gradient is asked for; says why.
    Missing(&'static str),
}

/// See [`OpDef::infer`].
pub type Infer = fn(&InferCx<'_>) -> Result<Type, OpError>;
/// See [`OpDef::eval`].
pub type Eval = fn(&EvalCx<'_>) -> Result<HostTensor, OpError>;

/// An operation: shape inference, meaning, gradient, and how it may be treated.
pub struct OpDef {
    /// Name in the text form; also the stem of the kernel's and the test cases' files.
    pub name: &'static str,
    /// Number of operands.
    pub arity: Arity,
    /// Names and kinds of the attributes, in order.
    pub attrs: &'static [(&'static str, AttrKind)],
    /// The type of the result, or what is wrong with the operands.
    pub infer: Infer,
    /// What the operation means: plain loops over host tensors. Every device is tested against this. To be called through
    /// [`evaluate`](OpDef::evaluate), which converts 16-bit floats for all but a few.
    pub eval: Eval,
    /// The gradient.
    pub grad: Grad,
    /// How exactly others reproduce `eval`.
    pub exactness: Exactness,
    /// What it may do besides computing its result.
    pub effects: Effects,
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl OpDef {
    /// Whether each element of the result is made of the elements at its place in the operands, which have all the shape of the result.
    pub fn is_elementwise(&self) -> bool {
        let families = [elementwise_unary::OPS, elementwise_binary::OPS, compare::OPS, bits::OPS, cast::OPS];
        families.into_iter().flatten().any(|def| std::ptr::eq(*def, self))
    }
}

/// What [`OpDef::infer`] sees.
pub struct InferCx<'a> {
    /// Types of the operands.
    pub operands: &'a [&'a Type],
    /// Static arguments.
    pub attrs: &'a Attrs,
}

impl<'a> InferCx<'a> {
    /// The type of an operand. Only operations of their own take stacks and lists, so it is a tensor.
    pub fn tensor(&self, i: usize) -> Result<&'a TensorType, OpError> {
        self.operands[i]
            .as_tensor()
            .ok_or_else(|| OpError::new(format!("operand {} is {}", i + 1, self.operands[i].kind())))
    }
}

/// What [`OpDef::eval`] sees. The operands fit: their types passed [`OpDef::infer`].
pub struct EvalCx<'a> {
    /// The operands.
    pub operands: &'a [&'a HostTensor],
    /// Static arguments, all shapes known.
    pub attrs: &'a Attrs,
    /// Type of the result as inferred from these operands.
    pub ty: &'a TensorType,
}

impl EvalCx<'_> {
    /// The extents of the result.
    pub fn shape(&self) -> Vec<usize> {
        self.ty.shape.known().expect("the type inferred from concrete operands is concrete")
    }

    /// The result with these elements.
    fn result<T: Element>(&self, data: Vec<T>) -> HostTensor {
        HostTensor::new(self.shape(), data)
    }
}

/// What is wrong with the operands of an operation; the caller knows the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// What is wrong, in one line.
    pub message: String,
    /// What is to be seen at the place: usually the operands' types.
    pub label: String,
    /// What to do.
    pub help: Option<String>,
    /// What kind of error it is.
    pub kind: ErrorKind,
}

impl OpError {
    /// An error without details.
    pub fn new(message: impl Into<String>) -> OpError {
        OpError { message: message.into(), label: String::new(), help: None, kind: ErrorKind::Invalid }
    }

    /// Says what is to be seen at the place.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> OpError {
        self.label = label.into();
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> OpError {
        self.help = Some(help.into());
        self
    }

    /// The error at a place, of the operation `op`.
    pub fn at(self, op: &str, loc: Loc) -> Diagnostic {
        let error = Diagnostic::new(format!("{op}: {}", self.message)).at(loc, self.label);
        Diagnostic { help: self.help, kind: self.kind, ..error }
    }
}

/// Ends the trace with an error of the operation `op` at the caller's place.
#[track_caller]
fn refuse(op: &str, error: OpError) -> ! {
    trace::fail(error.at(op, trace::place(Loc::caller())))
}

/// What a check has found, or the end of the trace with its error, as [`refuse`].
#[track_caller]
fn accept<T>(op: &str, checked: Result<T, OpError>) -> T {
    match checked {
        Ok(found) => found,
        Err(error) => refuse(op, error),
    }
}
