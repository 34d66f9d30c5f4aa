//! Shape rules that several families share.

use super::{Along, Axes, GradNode, GradValue, InferCx, OpError, ValueCx};
use crate::{DType, Dim, HostTensor, Shape, TensorType, Type};

/// A class of element types that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Float,
    Numeric,
    Int,
    Bool,
    /// Numbers and strings.
    Ordered,
    /// All but strings.
    Plain,
    Bytes,
    Every,
}

impl Class {
    pub(super) fn check(self, ty: &TensorType) -> Result<(), OpError> {
        let (ok, what) = match self {
            Class::Float => (ty.dtype.is_float(), "floats"),
            Class::Numeric => (ty.dtype.is_numeric(), "numbers"),
            Class::Int => (ty.dtype.is_int(), "integers"),
            Class::Bool => (ty.dtype == DType::Bool, "bool"),
            Class::Ordered => (ty.dtype.is_numeric() || ty.dtype == DType::Bytes, "numbers or strings"),
            Class::Plain => (ty.dtype.is_plain(), "numbers or bool"),
            Class::Bytes => (ty.dtype == DType::Bytes, "strings"),
            Class::Every => (true, "anything"),
        };
        if ok {
            return Ok(());
        }
        let error = OpError::new(format!("takes {what}, not {}", ty.dtype)).label(ty.to_string());
        Err(error.help(match (self, ty.dtype) {
            (Class::Bytes, _) => "write numbers as strings with `.format()`",
            (_, DType::Bytes) => "read numbers in strings with `.parse::<f32>()`",
            _ => "convert it with `.cast()`",
        }))
    }
}

/// Returns the type of the operand, whose element type must be of the class.
pub(super) fn like_operand(cx: &InferCx<'_>, class: Class) -> Result<Type, OpError> {
    let ty = cx.tensor(0)?;
    class.check(ty)?;
    Ok(ty.clone().into())
}

/// Returns the common type of all operands: equal element types and compatible shapes.
pub(super) fn common(cx: &InferCx<'_>, class: Class) -> Result<TensorType, OpError> {
    let first = cx.tensor(0)?;
    class.check(first)?;
    let mut common = first.clone();
    for i in 1..cx.operands.len() {
        let ty = cx.tensor(i)?;
        if ty.dtype != common.dtype {
            let error = OpError::new(format!("element types differ, {} and {}", common.dtype, ty.dtype));
            return Err(error.label(format!("{common} with {ty}")).help("convert one of them with `.cast()`"));
        }
        if !ty.shape.compatible(&common.shape) {
            return Err(shapes_not_broadcast(&common, ty));
        }
        common.shape = common.shape.meet(&ty.shape);
    }
    Ok(common)
}

/// Returns the error for shapes that differ in an elementwise operation.
pub(super) fn shapes_differ(a: &TensorType, b: &TensorType) -> OpError {
    let error = OpError::new(format!("shapes {} and {} cannot be broadcast together", a.shape, b.shape))
        .label(format!("{a} with {b}"));
    error.help("shapes are aligned at their last axis; extents must be equal, or one of them must be 1")
}

/// Returns the error for operands that should have been broadcast during tracing. Only extents that
/// were not known while tracing differ here.
fn shapes_not_broadcast(a: &TensorType, b: &TensorType) -> OpError {
    let mut error = shapes_differ(a, b);
    if a.shape.broadcast(&b.shape).is_some() {
        error.help = Some(
            "two extents that are unknown while tracing are assumed to be equal and are not broadcast: broadcast one \
             operand with `.broadcast_to(..)` or `.broadcast_like(..)`"
                .to_owned(),
        );
    }
    error
}

/// A scalar operand of a class.
pub(super) fn check_scalar(cx: &InferCx<'_>, i: usize, class: Class, what: &str) -> Result<(), OpError> {
    let ty = cx.tensor(i)?;
    class.check(ty)?;
    if ty.rank() == 0 {
        return Ok(());
    }
    let error = OpError::new(format!("the {what} is {ty}, not a scalar"));
    Err(error.label(ty.to_string()).help("select one element with `.index(i, axis)`"))
}

/// Checks that an attribute is a shape without unknown extents. `what` begins the error.
pub(super) fn check_definite(what: &str, shape: &Shape) -> Result<(), OpError> {
    if shape.is_definite() {
        return Ok(());
    }
    let error = OpError::new(format!("{what} the unknown shape {shape}"));
    Err(error.help("reshape to extents that are known, or named, when the graph is traced"))
}

/// Returns an attribute that is an axis of a tensor.
pub(super) fn axis_attr(cx: &InferCx<'_>, ty: &TensorType) -> Result<usize, OpError> {
    super::axes::axis(Along::of(cx.attrs).axis as isize, ty.rank()).map_err(|e| e.label(ty.to_string()))
}

/// Returns an attribute that is a list of axes of a tensor.
pub(super) fn axes_attr(cx: &InferCx<'_>, ty: &TensorType) -> Result<Vec<usize>, OpError> {
    let given: Vec<isize> = Axes::of(cx.attrs).axes.iter().map(|&a| a as isize).collect();
    super::axes::axes(&given, ty.rank()).map_err(|e| e.label(ty.to_string()))
}

/// Returns the shape with axes removed, or with extent 1 if `keepdim`.
pub(super) fn reduced(shape: &Shape, axes: &[usize], keepdim: bool) -> Shape {
    let dims = shape.dims().iter().enumerate();
    dims.filter_map(|(i, d)| match axes.contains(&i) {
        false => Some(d.clone()),
        true => keepdim.then_some(Dim::Known(1)),
    })
    .collect()
}

/// Returns zeros of the type of an operand. The operand itself is used only if its extents are
/// unknown.
pub(super) fn zeros<'g>(n: &GradNode<'g>, i: usize) -> GradValue<'g> {
    let ty = n.ty(i);
    let zero = n.dy().context().constant(HostTensor::zeros(ty.dtype, vec![]));
    if ty.shape.is_definite() { zero.broadcast_to(&ty.shape) } else { zero.broadcast_like(n.like(i)) }
}
