//! Equality of results of one computation, for comparisons of engines and of graphs before and
//! after passes.
//!
//! Numbers that are not NaN are equal if their bits are, as far as an operation is
//! [exact](crate::ops::Exactness). All NaNs are equal: no operation, pass or engine defines the
//! sign and the payload of a NaN, as neither IEEE 754 nor Rust does. So a pass may write `x * -1`
//! as `-x`, which flips the sign of a NaN. `HostTensor`'s own `==` also compares the bits of NaNs,
//! since it distinguishes constants of graphs.

use crate::{Buffer, HostTensor, bf16, f16};

/// Returns the tensor with all NaNs replaced by the same NaN, so that equal results are equal by
/// `==`.
///
/// ```
/// use anabranch::{HostTensor, dsl::equality::one_nan};
///
/// let [a, b] = [f32::NAN, -f32::NAN].map(|x| HostTensor::new([2], vec![x, -0.0]));
/// assert_ne!(a, b);
/// assert_eq!(one_nan(&a), one_nan(&b));
/// assert_ne!(one_nan(&a), one_nan(&HostTensor::new([2], vec![f32::NAN, 0.0])));
/// ```
pub fn one_nan(tensor: &HostTensor) -> HostTensor {
    let mut tensor = tensor.clone();
    let has_nan = match tensor.buffer() {
        Buffer::F32(d) => d.iter().any(|x| x.is_nan()),
        Buffer::F64(d) => d.iter().any(|x| x.is_nan()),
        Buffer::F16(d) => d.iter().any(|x| x.is_nan()),
        Buffer::BF16(d) => d.iter().any(|x| x.is_nan()),
        _ => false,
    };
    if has_nan {
        match tensor.buffer_mut() {
            Buffer::F32(d) => d.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f32::NAN),
            Buffer::F64(d) => d.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f64::NAN),
            Buffer::F16(d) => d.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f16::NAN),
            Buffer::BF16(d) => d.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = bf16::NAN),
            _ => unreachable!("only floats are NaN"),
        }
    }
    tensor
}

/// Applies [`one_nan`] to each tensor.
pub fn one_nan_each(tensors: &[HostTensor]) -> Vec<HostTensor> {
    tensors.iter().map(one_nan).collect()
}

/// Returns whether two numbers are equal or both NaN. Zeros of either sign are equal.
///
/// ```
/// use anabranch::dsl::equality::same_number;
///
/// assert!(same_number(f64::NAN, -f64::NAN) && same_number(0.0, -0.0));
/// assert!(!same_number(f64::NAN, 1.0) && !same_number(1.0, 1.5));
/// ```
pub fn same_number(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}
