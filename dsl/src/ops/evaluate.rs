//! Evaluation of the reference implementations, including 16-bit floats.

use super::cast::converted;
use super::{EvalCx, Halves, OpDef, OpError};
use crate::ir::{Attr, Attrs};
use crate::{DType, ErrorKind, HostTensor, TensorType, memory};

impl OpDef {
    /// Returns whether the operation computes with its elements, so that 16-bit floats are widened
    /// to `f32` and the result is rounded.
    pub fn widens(&self) -> bool {
        self.halves == Halves::Widened
    }

    /// Evaluates the operation with its [`eval`](OpDef::eval).
    ///
    /// For 16-bit floats it evaluates the same operation on `f32` and rounds the result (see
    /// [`halves`](crate::halves)).
    ///
    /// # Errors
    /// Returns the error of the operation, or an error if there is not enough memory for a large
    /// result.
    pub fn evaluate(&self, cx: &EvalCx<'_>) -> Result<HostTensor, OpError> {
        has_memory(cx.ty)?;
        let has_halves = cx.ty.dtype.is_half() || cx.operands.iter().any(|t| t.dtype().is_half());
        if !has_halves || !self.widens() {
            return (self.eval)(cx).map_err(|error| labeled(error, cx));
        }
        let wide_type = |ty: TensorType| TensorType { dtype: widened(ty.dtype), ..ty };
        let wide_types = cx.operands.iter().map(|t| t.ty()).chain([cx.ty.clone()]).map(wide_type);
        wide_types.into_iter().try_for_each(|ty| has_memory(&ty))?;
        let wide: Vec<HostTensor> = cx.operands.iter().map(|t| converted(t, widened(t.dtype()))).collect();
        let operands: Vec<&HostTensor> = wide.iter().collect();
        let attrs = widened_attrs(cx.attrs);
        let ty = wide_type(cx.ty.clone());
        let result = (self.eval)(&EvalCx { operands: &operands, attrs: &attrs, ty: &ty });
        let result = result.map_err(|error| labeled(error, cx))?;
        Ok(converted(&result, cx.ty.dtype))
    }
}

/// Labels an error with the types of the operands, if it has no label.
fn labeled(error: OpError, cx: &EvalCx<'_>) -> OpError {
    if !error.label.is_empty() {
        return error;
    }
    let types: Vec<String> = cx.operands.iter().map(|t| t.ty().to_string()).collect();
    error.label(types.join(", "))
}

/// Returns an error if there is not enough memory for a large tensor.
pub(crate) fn has_memory(ty: &TensorType) -> Result<(), OpError> {
    memory::check(ty.n_bytes().unwrap_or(0)).map_err(|missing| OpError {
        kind: ErrorKind::ResourceExhausted,
        ..OpError::new(format!("out of memory: {ty} needs {} bytes", missing.bytes)).help(memory::SMALLER)
    })
}

/// Returns the type in which elements of a type are computed.
pub(super) fn widened(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// Returns attributes with element types replaced by those used for computation.
pub(crate) fn widened_attrs(attrs: &Attrs) -> Attrs {
    attrs.iter().fold(Attrs::none(), |all, (name, attr)| match attr {
        Attr::DType(dtype) => all.with(name, Attr::DType(widened(*dtype))),
        _ => all.with(name, attr.clone()),
    })
}
