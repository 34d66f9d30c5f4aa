//! The algebraic laws of operations.
//!
//! Passes simplify and merge nodes by these laws instead of keeping lists of operations. Each law
//! holds bit by bit for all elements of all types of the operation, except for the sign and the
//! payload of a NaN (see [`equality`](crate::equality)). A test checks every stated law.

use crate::{Buffer, HostTensor, bf16, f16};

/// The algebraic laws of an elementwise operation.
///
/// ```
/// use anabranch::extend::{Laws, prim};
///
/// assert!(prim::ADD.laws.commutative && !prim::SUB.laws.commutative);
/// let of_union = Laws { commutative: true, idempotent: true, ..Laws::NONE };
/// assert!(of_union.idempotent && !of_union.involution);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Laws {
    /// `f(x, y) = f(y, x)`
    pub commutative: bool,
    /// `f(x, x) = x`, or `f(f(x)) = f(x)` for one operand.
    pub idempotent: bool,
    /// `f(f(x)) = x`
    pub involution: bool,
    /// The scalars `e` with `f(x, e) = x`. If the operation is commutative, also `f(e, x) = x`.
    pub identity: Option<fn(&HostTensor) -> bool>,
    /// The scalars `z` with `f(x, z) = z`. If the operation is commutative, also `f(z, x) = z`.
    pub absorbing: Option<fn(&HostTensor) -> bool>,
}

impl Laws {
    /// No law.
    pub const NONE: Laws =
        Laws { commutative: false, idempotent: false, involution: false, identity: None, absorbing: None };

    /// Returns the index of the operand that a binary operation returns, if one of them has equal
    /// elements that are an identity or absorbing. `fills` holds that element of each operand.
    pub(crate) fn operand_given_back(&self, fills: &[Option<HostTensor>]) -> Option<usize> {
        let [left, right] = fills else { return None };
        let holds = |law: Option<fn(&HostTensor) -> bool>, scalar: &Option<HostTensor>| {
            law.zip(scalar.as_ref()).is_some_and(|(law, scalar)| law(scalar))
        };
        let sides = [(0, 1, right), (1, 0, left)];
        sides.into_iter().take(if self.commutative { 2 } else { 1 }).find_map(|(other, own, scalar)| {
            let identity = holds(self.identity, scalar).then_some(other);
            identity.or_else(|| holds(self.absorbing, scalar).then_some(own))
        })
    }
}

/// Returns whether a scalar is an additive identity, which is the negative zero for floats.
pub(crate) fn is_additive_identity(scalar: &HostTensor) -> bool {
    match scalar.buffer() {
        Buffer::F32(d) => d[0] == 0.0 && d[0].is_sign_negative(),
        Buffer::F64(d) => d[0] == 0.0 && d[0].is_sign_negative(),
        Buffer::F16(d) => d[0] == f16::NEG_ZERO && d[0].is_sign_negative(),
        Buffer::BF16(d) => d[0] == bf16::NEG_ZERO && d[0].is_sign_negative(),
        _ => is_zero(scalar),
    }
}

/// Returns whether nothing changes when a scalar is subtracted, which is the positive zero for
/// floats.
pub(super) fn subtracts_nothing(scalar: &HostTensor) -> bool {
    is_zero(scalar) && (!scalar.dtype().is_float() || !is_additive_identity(scalar))
}

pub(super) fn is_one(scalar: &HostTensor) -> bool {
    scalar.to_f64() == Some(1.0)
}

fn is_zero(scalar: &HostTensor) -> bool {
    scalar.to_f64() == Some(0.0)
}

/// Returns whether a scalar is the integer 0. A product with the float 0 may be a NaN or -0.
pub(super) fn is_whole_zero(scalar: &HostTensor) -> bool {
    !scalar.dtype().is_float() && is_zero(scalar)
}

/// Returns whether all bits of an integer are set.
pub(super) fn is_all_bits(scalar: &HostTensor) -> bool {
    match scalar.buffer() {
        Buffer::I32(d) => d[0] == -1,
        Buffer::I64(d) => d[0] == -1,
        Buffer::U32(d) => d[0] == u32::MAX,
        Buffer::U8(d) => d[0] == u8::MAX,
        _ => false,
    }
}

pub(crate) fn is_true(scalar: &HostTensor) -> bool {
    scalar.as_slice::<bool>() == Some(&[true])
}

pub(crate) fn is_false(scalar: &HostTensor) -> bool {
    scalar.as_slice::<bool>() == Some(&[false])
}
