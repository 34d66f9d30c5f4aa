//! Operations whose result is bitwise identical to an operand.

use crate::ir::Attrs;
use crate::ops::attributes::Axes;
use crate::ops::laws::{is_false, is_true};
use crate::ops::{Prim, prim};
use crate::{HostTensor, Type};

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
    if let Some(i) = op.laws.operand_given_back(fills) {
        return Some(i);
    }
    let is = |i: usize, test: fn(&HostTensor) -> bool| fills[i].as_ref().is_some_and(test);
    match op {
        prim::SELECT if is(0, is_true) => Some(1),
        prim::SELECT if is(0, is_false) => Some(2),
        // Such an operation changes nothing if the type stays the same. An unknown extent may
        // change.
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

fn is_definite(ty: &Type) -> bool {
    ty.element().shape.is_definite()
}
