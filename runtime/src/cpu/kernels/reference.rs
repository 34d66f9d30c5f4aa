//! The reference implementation as a kernel, for operations without a kernel, for shapes unknown
//! before the step runs, and for error messages.

use crate::cpu::kernels::TensorOp;
use anabranch_dsl::interp;
use anabranch_dsl::ops::{EvalCx, InferCx};
use anabranch_dsl::{Diagnostic, HostTensor, Type};

/// Evaluates the graph operation of a tensor operation.
pub(crate) fn eval(op: &TensorOp, operands: &[HostTensor]) -> Result<HostTensor, Diagnostic> {
    let meaning = op.meaning.as_ref().unwrap_or_else(|| panic!("`{}` has no reference implementation", op.name));
    let types: Vec<Type> = operands.iter().map(|t| t.ty().into()).collect();
    let types: Vec<&Type> = types.iter().collect();
    let ty = (meaning.def.infer)(&InferCx { operands: &types, attrs: &meaning.attrs });
    let ty = ty.map_err(|e| e.at(meaning.name, op.loc))?;
    let ty = ty.as_tensor().expect("the result of a primitive operation is a tensor");
    let operands: Vec<&HostTensor> = operands.iter().collect();
    let cx = EvalCx { operands: &operands, attrs: &meaning.attrs, ty };
    meaning.def.evaluate(&cx).map_err(|e| e.at(meaning.name, op.loc))
}

/// Fails if the result is not finite although all operands are.
pub(crate) fn check_finite(op: &TensorOp, operands: &[HostTensor], result: &HostTensor) -> Result<(), Diagnostic> {
    if interp::is_finite(result) || !operands.iter().all(interp::is_finite) {
        return Ok(());
    }
    Err(interp::not_finite(op.name, op.loc))
}
