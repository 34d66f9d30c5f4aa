//! The operations that a GPU runs.

use crate::device::Support;
use anabranch_dsl::fusion::{AxisSet, stage_to_wgsl};
use anabranch_dsl::ir::{Attrs, CallKind, Op, StackOp};
use anabranch_dsl::ops::attributes::Conv;
use anabranch_dsl::ops::{OpClass, Prim, prim};
use anabranch_dsl::{DType, Type};

/// The largest stride, padding or dilation: products of indices then fit into 31 bits.
const MAX_STEP: usize = 1 << 12;

/// Returns whether a GPU runs an operation on operands and results of these types. A tensor has at
/// most `max_bytes` bytes.
pub(super) fn supports(op: &Op, operands: &[&Type], results: &[&Type], max_bytes: u64) -> Support {
    let reason = match op {
        Op::Print { .. } => Some("cannot print".to_owned()),
        Op::Assert { .. } => Some("cannot report a failed assertion".to_owned()),
        Op::List(_) => Some("has no lists".to_owned()),
        Op::Stack(StackOp::Zeros(_) | StackOp::ZerosLike | StackOp::Add) => {
            Some("does not compute with whole stacks".to_owned())
        }
        // The device keeps values of any type.
        Op::Read(_) | Op::Assign(_) | Op::Constant(_) | Op::Cond | Op::While { .. } => return Support::Yes,
        Op::Call(CallKind::CustomGradient { .. }) => Some("runs no functions with a gradient of their own".to_owned()),
        Op::Call(_) => return Support::Yes,
        Op::Stack(_) => None,
        Op::Prim(op, attrs) => primitive(*op, attrs, operands, results),
    };
    let reason = reason.or_else(|| operands.iter().chain(results).find_map(|ty| type_reason(ty, max_bytes)));
    reason.map_or(Support::Yes, Support::No)
}

/// Returns why a type cannot be in the memory of a GPU.
fn type_reason(ty: &Type, max_bytes: u64) -> Option<String> {
    let element = ty.element();
    if !matches!(element.dtype, DType::F32 | DType::I32 | DType::U32 | DType::Bool) {
        return Some(format!("has no {}", element.dtype));
    }
    let Some(size) = element.shape.size() else { return Some("needs known shapes".to_owned()) };
    let is_large = size as u64 > max_bytes / 4 || i32::try_from(size).is_err();
    if is_large || element.shape.rank() > AxisSet::MAX_AXES {
        return Some(format!("has no tensors of {max_bytes} bytes or of more than {} axes", AxisSet::MAX_AXES));
    }
    None
}

/// Returns why a GPU has no shader for a primitive operation.
fn primitive(op: Prim, attrs: &Attrs, operands: &[&Type], results: &[&Type]) -> Option<String> {
    let result = results[0].element();
    let operand = operands.first().map_or(result, |ty| ty.element());
    let has_shader = match op.class {
        OpClass::Scalar(_) | OpClass::Reduce(_) | OpClass::Random(_) | OpClass::View(_) => {
            stage_to_wgsl(op, operand.dtype, result.dtype).is_ok()
        }
        OpClass::Rowwise(_) => true,
        OpClass::Scan(_) | OpClass::Search => operand.dtype != DType::Bool,
        _ => match op {
            prim::MATMUL => result.dtype == DType::F32,
            prim::CONV | prim::CONV_INPUT_GRAD | prim::CONV_WEIGHT_GRAD => {
                let Conv { strides, padding, dilation, .. } = Conv::of(attrs);
                let is_small = strides.iter().chain(&padding).chain(&dilation).all(|&n| n <= MAX_STEP);
                result.dtype == DType::F32 && is_small
            }
            prim::CONCAT | prim::UPDATE_SLICE | prim::IOTA => true,
            _ => false,
        },
    };
    (!has_shader).then(|| format!("has no shader for `{op}` on {}", operand.dtype))
}
