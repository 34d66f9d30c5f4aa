//! Arithmetic for `eval` that is uniform across element types, and macros that dispatch on the
//! type.
//!
//! Integer arithmetic wraps, so no operation panics or differs between debug and release builds.
//! `NaN` propagates through every operation, including maximum and minimum.

use crate::Numeric;

/// Runs code generically on the elements of a buffer, which inference guarantees to have one of the
/// listed types.
macro_rules! match_types {
    ($buffer:expr, $data:ident: $($variant:ident)* => $body:expr) => {
        match $buffer {
            $($crate::Buffer::$variant($data) => $body,)*
            other => unreachable!("inference does not let elements of type {} through", other.dtype()),
        }
    };
}
macro_rules! match_float {
    ($buffer:expr, $data:ident => $body:expr) => {
        $crate::ops::number::match_types!($buffer, $data: F32 F64 => $body)
    };
}
macro_rules! match_numeric {
    ($buffer:expr, $data:ident => $body:expr) => {
        $crate::ops::number::match_types!($buffer, $data: F32 F64 I32 I64 U32 U8 => $body)
    };
}
pub(super) use {match_float, match_numeric, match_types};

/// Arithmetic of all element types except `bool`.
pub(super) trait Number: Numeric {
    const ZERO: Self;
    const ONE: Self;
    /// The smallest number of the type.
    const LOWEST: Self;
    /// The largest number of the type.
    const HIGHEST: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Divides. Returns `None` for an integer division by zero.
    fn over(self, other: Self) -> Option<Self>;
    /// Returns the remainder with the sign of `self`, or `None` for an integer division by zero.
    fn modulo(self, other: Self) -> Option<Self>;
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    /// Returns -1, 0 or 1. A float keeps `NaN` and the sign of zero.
    fn sign(self) -> Self;
    /// Returns the larger number, or `NaN` if either is `NaN`.
    fn larger(self, other: Self) -> Self;
    /// Returns the smaller number, or `NaN` if either is `NaN`.
    fn smaller(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
}

macro_rules! float_numbers {
    ($($t:ident)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;
            fn plus(self, other: Self) -> Self { self + other }
            fn minus(self, other: Self) -> Self { self - other }
            fn times(self, other: Self) -> Self { self * other }
            fn over(self, other: Self) -> Option<Self> { Some(self / other) }
            fn modulo(self, other: Self) -> Option<Self> { Some(self % other) }
            fn negated(self) -> Self { -self }
            fn magnitude(self) -> Self { self.abs() }
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self }
            }
            fn larger(self, other: Self) -> Self {
                if self.is_nan() || self > other { self } else { other }
            }
            fn smaller(self, other: Self) -> Self {
                if self.is_nan() || self < other { self } else { other }
            }
            fn is_nan(self) -> bool { $t::is_nan(self) }
        }
    )*};
}
float_numbers!(f32 f64);

macro_rules! int_numbers {
    ($($t:ident: |$x:ident| $magnitude:expr, $sign:expr;)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $t::MIN;
            const HIGHEST: Self = $t::MAX;
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn over(self, other: Self) -> Option<Self> { (other != 0).then(|| self.wrapping_div(other)) }
            fn modulo(self, other: Self) -> Option<Self> { (other != 0).then(|| self.wrapping_rem(other)) }
            fn negated(self) -> Self { self.wrapping_neg() }
            fn magnitude(self) -> Self { let $x = self; $magnitude }
            fn sign(self) -> Self { let $x = self; $sign }
            fn larger(self, other: Self) -> Self { self.max(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn is_nan(self) -> bool { false }
        }
    )*};
}
int_numbers! {
    i32: |x| x.wrapping_abs(), x.signum();
    i64: |x| x.wrapping_abs(), x.signum();
    u32: |x| x, x.min(1);
    u8: |x| x, x.min(1);
}
