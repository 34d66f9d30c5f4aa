//! The operations that a GPU runs.

use super::product;
use crate::device::Support;
use anabranch_dsl::fusion::{AxisSet, stage_to_wgsl};
use anabranch_dsl::ir::{Attrs, Op};
use anabranch_dsl::ops::attributes::{Conv, Pool};
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
        // The device keeps values of any type, but of known shapes.
        Op::Read(_) | Op::Assign(_) | Op::Constant(_) | Op::Cond | Op::While { .. } | Op::Call(_) => {
            let reason = operands.iter().chain(results).find_map(|ty| size_reason(ty, max_bytes));
            return reason.map_or(Support::Yes, Support::No);
        }
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
    size_reason(ty, max_bytes)
}

/// Returns why the shape of a value is unknown or too large.
fn size_reason(ty: &Type, max_bytes: u64) -> Option<String> {
    let element = ty.element();
    let Some(size) = element.shape.size() else { return Some("needs known shapes".to_owned()) };
    let is_large =
        (size as u64).saturating_mul(element.dtype.size().max(4) as u64) > max_bytes || i32::try_from(size).is_err();
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
        // A shader's remainder is not exact.
        OpClass::Scalar(_) if op == prim::REM => false,
        OpClass::Scalar(_) | OpClass::Reduce(_) => stage_to_wgsl(op, operand.dtype, result.dtype).is_ok(),
        // Other operations are listed: a user's operation may be of any class.
        _ => match op {
            prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC => true,
            prim::BROADCAST_TO | prim::BROADCAST_LIKE | prim::PERMUTE | prim::FLIP | prim::SLICE => true,
            prim::CONCAT_PART | prim::RANDOM_BITS | prim::RANDOM_UNIFORM => true,
            prim::RANDOM_FOLD_IN => matches!(operands[1].element().dtype, DType::I32 | DType::U32),
            prim::SOFTMAX | prim::LOG_SOFTMAX | prim::LOGSUMEXP => true,
            prim::CUMSUM | prim::ARGMAX | prim::ARGMIN => operand.dtype != DType::Bool,
            prim::MATMUL => result.dtype == DType::F32 && product::has_kernel(result),
            prim::CONV | prim::CONV_INPUT_GRAD | prim::CONV_WEIGHT_GRAD => {
                let Conv { strides, padding, dilation, .. } = Conv::of(attrs);
                let is_small = strides.iter().chain(&padding).chain(&dilation).all(|&n| n <= MAX_STEP);
                result.dtype == DType::F32 && is_small
            }
            prim::MAX_POOL | prim::MAX_POOL_PICK | prim::MAX_POOL_GRAD | prim::AVG_POOL | prim::AVG_POOL_GRAD => {
                let Pool { window, strides, padding } = Pool::of(attrs);
                let is_small = strides.iter().chain(&padding).all(|&n| n <= MAX_STEP);
                // Windows of no element but padding, and sizes that f32 does not represent.
                let has_elements = operand.shape.size().is_some_and(|n| n > 0);
                let is_exact = window.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).is_some_and(|n| n <= 1 << 24);
                result.dtype == DType::F32 && is_small && has_elements && is_exact
            }
            prim::CONCAT | prim::UPDATE_SLICE | prim::IOTA => true,
            _ => false,
        },
    };
    (!has_shader).then(|| format!("has no shader for `{op}` on {}", operand.dtype))
}
