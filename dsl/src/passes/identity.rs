//! Operations whose result is bitwise identical to an operand.

use crate::ir::Attrs;
use crate::ops::attributes::Axes;
use crate::ops::{Prim, prim};
use crate::{Buffer, HostTensor, Type, bf16, f16};

/// Returns the index of the operand that an operation returns unchanged, whatever its elements are.
///
/// `fills` holds the scalar of each operand whose elements are all equal.
///
/// The result must be bitwise identical, except for the payload of a NaN, which no operation
/// guarantees. So `x + 0.0` does not qualify (`-0.0 + 0.0` is `0.0`), and neither does `x * 0` of
/// floats. The integer product `x * 0` qualifies, since its result is the operand `0`.
pub(super) fn operand_given_back(
    op: Prim,
    attrs: &Attrs,
    operands: &[&Type],
    result: &Type,
    fills: &[Option<HostTensor>],
) -> Option<usize> {
    let is = |i: usize, test: fn(&HostTensor) -> bool| fills[i].as_ref().is_some_and(test);
    match op {
        prim::ADD if is(1, is_additive_identity) => Some(0),
        prim::ADD if is(0, is_additive_identity) => Some(1),
        prim::SUB if is(1, subtracts_nothing) => Some(0),
        prim::MUL if is(1, is_one) => Some(0),
        prim::MUL if is(0, is_one) => Some(1),
        prim::MUL if is(1, is_whole_zero) => Some(1),
        prim::MUL if is(0, is_whole_zero) => Some(0),
        prim::DIV if is(1, is_one) => Some(0),
        prim::AND if is(1, is_true) => Some(0),
        prim::AND if is(0, is_true) => Some(1),
        prim::AND if is(1, is_false) => Some(1),
        prim::AND if is(0, is_false) => Some(0),
        prim::OR if is(1, is_true) => Some(1),
        prim::OR if is(0, is_true) => Some(0),
        prim::OR | prim::XOR if is(1, is_false) => Some(0),
        prim::OR | prim::XOR if is(0, is_false) => Some(1),
        prim::SELECT if is(0, is_true) => Some(1),
        prim::SELECT if is(0, is_false) => Some(2),
        // These change nothing if the type stays the same. An unknown extent may change.
        prim::CAST | prim::RESHAPE | prim::BROADCAST_TO if is_definite(result) && operands[0] == result => Some(0),
        prim::BROADCAST_LIKE | prim::SUM_LIKE | prim::RESHAPE_LIKE if is_definite(result) && operands[0] == result => {
            Some(0)
        }
        prim::PERMUTE if Axes::of(attrs).axes.into_iter().enumerate().all(|(i, a)| i == a) => Some(0),
        prim::SUM | prim::PROD | prim::MAX | prim::MIN | prim::ALL | prim::ANY if Axes::of(attrs).axes.is_empty() => {
            Some(0)
        }
        _ => None,
    }
}

/// Returns whether an operation is its own inverse.
pub(super) fn is_involution(op: Prim) -> bool {
    matches!(op, prim::NOT | prim::NEG)
}

fn is_definite(ty: &Type) -> bool {
    ty.element().shape.is_definite()
}

/// Returns whether a scalar is an additive identity, which is the negative zero for floats.
pub(super) fn is_additive_identity(scalar: &HostTensor) -> bool {
    match scalar.buffer() {
        Buffer::F32(d) => d[0] == 0.0 && d[0].is_sign_negative(),
        Buffer::F64(d) => d[0] == 0.0 && d[0].is_sign_negative(),
        Buffer::F16(d) => d[0] == f16::NEG_ZERO && d[0].is_sign_negative(),
        Buffer::BF16(d) => d[0] == bf16::NEG_ZERO && d[0].is_sign_negative(),
        _ => scalar.to_f64() == Some(0.0),
    }
}

fn subtracts_nothing(scalar: &HostTensor) -> bool {
    match scalar.buffer() {
        Buffer::F32(d) => d[0] == 0.0 && d[0].is_sign_positive(),
        Buffer::F64(d) => d[0] == 0.0 && d[0].is_sign_positive(),
        Buffer::F16(d) => d[0] == f16::ZERO && d[0].is_sign_positive(),
        Buffer::BF16(d) => d[0] == bf16::ZERO && d[0].is_sign_positive(),
        _ => scalar.to_f64() == Some(0.0),
    }
}

fn is_one(scalar: &HostTensor) -> bool {
    scalar.to_f64() == Some(1.0)
}

fn is_whole_zero(scalar: &HostTensor) -> bool {
    !scalar.dtype().is_float() && scalar.to_f64() == Some(0.0)
}

fn is_true(scalar: &HostTensor) -> bool {
    scalar.as_slice::<bool>() == Some(&[true])
}

fn is_false(scalar: &HostTensor) -> bool {
    scalar.as_slice::<bool>() == Some(&[false])
}
