//! Evaluation of the reference implementations, including 16-bit floats.

use super::cast::converted;
use super::{EvalCx, OpDef, OpError};
use crate::ir::{Attr, Attrs};
use crate::{DType, ErrorKind, HostTensor, TensorType, memory};

/// Operations that do not widen 16-bit floats: they only move elements, or handle these types
/// themselves.
const DIRECT: &[&str] = &[
    "broadcast_like",
    "broadcast_to",
    "cast",
    "concat",
    "concat_part",
    "dynamic_slice",
    "dynamic_update_slice",
    "extents",
    "flip",
    "iota",
    "permute",
    "random_uniform",
    "reshape",
    "reshape_like",
    "select",
    "slice",
    "stop_gradient",
    "take",
    "take_along_axis",
    "update_slice",
    "with_dynamic",
    "zeros_of",
];

impl OpDef {
    /// Returns whether the operation computes with its elements, so that 16-bit floats are widened
    /// to `f32` and the result is rounded.
    pub fn widens(&self) -> bool {
        DIRECT.binary_search(&self.name).is_err()
    }

    /// Evaluates the operation with its [`eval`](OpDef::eval).
    ///
    /// For 16-bit floats it evaluates the same operation on `f32` and rounds the result (see
    /// [`halves`](crate::halves)).
    ///
    /// # Errors
    /// Those of the operation, and one for a large result if there is not enough memory.
    pub fn evaluate(&self, cx: &EvalCx<'_>) -> Result<HostTensor, OpError> {
        let has_memory = |ty: &TensorType| {
            memory::check(ty.n_bytes().unwrap_or(0)).map_err(|missing| OpError {
                kind: ErrorKind::ResourceExhausted,
                ..OpError::new(format!("{ty} needs {missing}"))
            })
        };
        has_memory(cx.ty)?;
        let has_halves = cx.ty.dtype.is_half() || cx.operands.iter().any(|t| t.dtype().is_half());
        if !has_halves || !self.widens() {
            return (self.eval)(cx);
        }
        let wide_type = |ty: TensorType| TensorType { dtype: widened(ty.dtype), ..ty };
        let wide_types = cx.operands.iter().map(|t| t.ty()).chain([cx.ty.clone()]).map(wide_type);
        wide_types.into_iter().try_for_each(|ty| has_memory(&ty))?;
        let wide: Vec<HostTensor> = cx.operands.iter().map(|t| converted(t, widened(t.dtype()))).collect();
        let operands: Vec<&HostTensor> = wide.iter().collect();
        let attrs = widened_attrs(cx.attrs);
        let ty = wide_type(cx.ty.clone());
        let result = (self.eval)(&EvalCx { operands: &operands, attrs: &attrs, ty: &ty })?;
        Ok(converted(&result, cx.ty.dtype))
    }
}

/// Returns the type in which elements of a type are computed.
fn widened(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// Returns attributes with element types replaced by those used for computation.
pub(crate) fn widened_attrs(attrs: &Attrs) -> Attrs {
    attrs.iter().fold(Attrs::none(), |all, (name, attr)| match attr {
        Attr::DType(dtype) => all.with(name, Attr::DType(widened(*dtype))),
        _ => all.with(name, attr.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_and_names_operations() {
        assert!(DIRECT.is_sorted());
        for name in DIRECT {
            assert!(crate::ops::by_name(name).is_some(), "there is no operation `{name}`");
        }
    }
}
