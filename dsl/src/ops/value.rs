//! Untyped values, and where operations on them add their nodes.
//!
//! The methods of [`AnyValue`] are written once, for every [`ValueCx`]. A user's handle is of the
//! active trace ([`InTrace`]), which the tracer implements. A gradient rule works on values of the
//! graph that is being differentiated ([`InGraph`]), whether or not it is being traced.

use super::{OpError, Prim};
use crate::diagnostic::abort;
use crate::ir::{Attrs, GraphBuilder, ListOp, Op, Origin, StackOp, Value};
use crate::{DType, HostTensor, Loc, Shape, TensorType, Type};
use std::cell::RefCell;
use std::fmt;

/// An untyped handle of a value: in the active trace of this thread, or in another [`ValueCx`].
///
/// [`Tensor`](crate::Tensor) adds an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnyValue<C = InTrace> {
    value: Value,
    context: C,
}

/// A value in the graph that is being differentiated: an operand or the result of a gradient rule.
pub type GradValue<'g> = AnyValue<InGraph<'g>>;

/// Where operations on a value add their nodes.
///
/// A function that is used both in a model and in a gradient rule is generic in it:
///
/// ```
/// use anabranch::AnyValue;
/// use anabranch::extend::ValueCx;
///
/// fn swish<C: ValueCx>(x: AnyValue<C>) -> AnyValue<C> {
///     x * x.sigmoid()
/// }
/// ```
pub trait ValueCx: Copy + fmt::Debug {
    /// Returns the context of operations without operands.
    #[doc(hidden)]
    #[track_caller]
    fn current() -> Self;

    /// Adds a primitive operation. Errors in the operands end the trace or the differentiation.
    #[doc(hidden)]
    #[track_caller]
    fn emit(self, op: Prim, operands: &[AnyValue<Self>], attrs: Attrs) -> AnyValue<Self>;

    /// Adds an operation with any number of results.
    #[doc(hidden)]
    #[track_caller]
    fn emit_all(self, op: Op, operands: &[AnyValue<Self>]) -> Vec<AnyValue<Self>>;

    /// Adds a constant.
    #[doc(hidden)]
    #[track_caller]
    fn constant(self, tensor: HostTensor) -> AnyValue<Self>;

    /// Returns the type of a value.
    #[doc(hidden)]
    #[track_caller]
    fn type_of(self, value: Value) -> Type;

    /// Runs `f`, which adds parts of the operation `op`: errors in them name `op`. If the operation
    /// is itself part of another operation, the latter is named.
    #[doc(hidden)]
    fn written_as<R>(self, op: &'static str, f: impl FnOnce() -> R) -> R;

    /// Runs `f`, a part of an operation that was called at `loc`, with that as the location of
    /// every node. If the operation is itself part of another operation, the outer location stays.
    #[doc(hidden)]
    #[track_caller]
    fn called_at<R>(self, loc: Loc, f: impl FnOnce() -> R) -> R;

    /// Ends the trace or the differentiation with an error of the operation `op`.
    #[doc(hidden)]
    #[track_caller]
    fn refuse(op: &str, error: OpError) -> !;
}

impl<C: ValueCx> AnyValue<C> {
    pub(crate) fn new(value: Value, context: C) -> AnyValue<C> {
        AnyValue { value, context }
    }

    /// Returns the value in the graph.
    pub fn value(self) -> Value {
        self.value
    }

    /// Returns where operations on this value add their nodes.
    pub(crate) fn context(self) -> C {
        self.context
    }

    /// Returns the type of the value.
    #[track_caller]
    pub fn ty(self) -> Type {
        self.context.type_of(self.value)
    }

    /// Returns the type of the tensor.
    #[track_caller]
    pub fn tensor_type(self) -> TensorType {
        self.ty().as_tensor().expect("a user's handle is a tensor").clone()
    }

    /// Returns the shape.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.tensor_type().shape
    }

    /// Returns the element type.
    #[track_caller]
    pub fn dtype(self) -> DType {
        self.ty().element().dtype
    }

    /// Returns the number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().rank()
    }

    /// Returns zeros of the type of this value.
    #[track_caller]
    pub(crate) fn zeros_like(self) -> AnyValue<C> {
        let zeros = match self.ty() {
            Type::Tensor(ty) => {
                let zero = self.context.constant(HostTensor::zeros(ty.dtype, []));
                return if ty.shape.is_definite() { zero.broadcast_to(ty.shape) } else { zero.broadcast_like(self) };
            }
            Type::Stack(_) => Op::Stack(StackOp::ZerosLike),
            Type::List(_) => Op::List(ListOp::ZerosLike),
        };
        self.context.emit_all(zeros, &[self])[0]
    }
}

/// Adds a primitive operation. Errors in the operands end the trace at the caller's location.
#[track_caller]
pub fn emit<C: ValueCx>(op: Prim, operands: &[AnyValue<C>], attrs: Attrs) -> AnyValue<C> {
    let context = operands.first().map_or_else(C::current, |operand| operand.context);
    context.emit(op, operands, attrs)
}

/// The context of a user's handle: the trace that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InTrace {
    /// The number of the trace.
    pub(crate) trace: u32,
}

/// The context of values in a gradient rule: the builder of the graph, at the position and with the
/// origin that the differentiation has chosen.
#[derive(Clone, Copy)]
pub struct InGraph<'g> {
    pub(crate) builder: &'g RefCell<GraphBuilder>,
}

impl fmt::Debug for InGraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InGraph")
    }
}

impl PartialEq for InGraph<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.builder, other.builder)
    }
}

impl InGraph<'_> {
    /// Returns a value in this graph.
    pub(crate) fn value(self, value: Value) -> AnyValue<Self> {
        AnyValue::new(value, self)
    }

    /// Runs `f` with the origin of the nodes that it adds.
    pub(crate) fn with_origin<R>(self, origin: Origin, f: impl FnOnce() -> R) -> R {
        let set = |origin: Origin| {
            let mut builder = self.builder.borrow_mut();
            let (point, before) = (builder.point(), builder.next_origin());
            builder.at(point, origin);
            before
        };
        let before = set(origin);
        let r = f();
        set(before);
        r
    }
}

impl ValueCx for InGraph<'_> {
    fn current() -> Self {
        panic!("an operation without operands in a gradient rule: it has no graph to be added to")
    }

    fn emit(self, op: Prim, operands: &[AnyValue<Self>], attrs: Attrs) -> AnyValue<Self> {
        self.emit_all(Op::Prim(op, attrs), operands)[0]
    }

    fn emit_all(self, op: Op, operands: &[AnyValue<Self>]) -> Vec<AnyValue<Self>> {
        let name = op.name();
        let mut builder = self.builder.borrow_mut();
        match builder.try_emit(op, operands.iter().map(|v| v.value).collect()) {
            Ok(node) => builder.node(node).results.iter().map(|&v| self.value(v)).collect(),
            Err(error) => Self::refuse(name, error),
        }
    }

    fn constant(self, tensor: HostTensor) -> AnyValue<Self> {
        self.value(self.builder.borrow_mut().shared_constant(tensor))
    }

    fn type_of(self, value: Value) -> Type {
        self.builder.borrow().ty(value).clone()
    }

    fn written_as<R>(self, op: &'static str, f: impl FnOnce() -> R) -> R {
        let origin = self.builder.borrow().next_origin();
        self.with_origin(Origin { written: origin.written.or(Some(op)), ..origin }, f)
    }

    // The nodes of a gradient are at the location of the node that it is of.
    fn called_at<R>(self, _: Loc, f: impl FnOnce() -> R) -> R {
        f()
    }

    // The differentiation knows the location.
    fn refuse(op: &str, error: OpError) -> ! {
        abort(error.at(op, Loc::UNKNOWN))
    }
}
