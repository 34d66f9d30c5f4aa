//! The reference meaning of an operation as a kernel: for operations without a kernel of their own, for shapes that are not
//! known before the step runs, and for the words of errors.

use crate::plan::Step;
use anabranch_dsl::interp;
use anabranch_dsl::ops::{EvalCx, InferCx};
use anabranch_dsl::{Diagnostic, HostTensor, Type};

/// Computes what a step means, from its operands.
pub(crate) fn eval(step: &Step, operands: &[HostTensor]) -> Result<HostTensor, Diagnostic> {
    let meaning = step.meaning.as_ref().unwrap_or_else(|| panic!("`{}` has no meaning to fall back to", step.name));
    let types: Vec<Type> = operands.iter().map(|t| t.ty().into()).collect();
    let types: Vec<&Type> = types.iter().collect();
    let ty = (meaning.def.infer)(&InferCx { operands: &types, attrs: &meaning.attrs });
    let ty = ty.map_err(|e| e.at(meaning.def.name, step.loc))?;
    let ty = ty.as_tensor().expect("primitive operations give tensors");
    let operands: Vec<&HostTensor> = operands.iter().collect();
    let cx = EvalCx { operands: &operands, attrs: &meaning.attrs, ty };
    meaning.def.evaluate(&cx).map_err(|e| e.at(meaning.def.name, step.loc))
}

/// The error of a step whose result is not finite, if its operands are.
pub(crate) fn check_finite(step: &Step, operands: &[HostTensor], result: &HostTensor) -> Result<(), Diagnostic> {
    if interp::is_finite(result) || !operands.iter().all(interp::is_finite) {
        return Ok(());
    }
    Err(interp::not_finite(step.name, step.loc))
}
