//! Numbers for `eval`, and macros that dispatch on the element type.
//!
//! Integer arithmetic wraps, so no operation panics or differs between debug and release builds.
//! `NaN` propagates through every operation, including maximum and minimum.

use crate::{Numeric, scalars};

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
pub(super) trait Number: Numeric + scalars::Arithmetic<Mask = bool> {
    const ZERO: Self;
    const ONE: Self;
    /// The smallest number of the type.
    const LOWEST: Self;
    /// The largest number of the type.
    const HIGHEST: Self;
    fn is_nan(self) -> bool;
    /// Returns whether numbers can be divided by this one.
    fn is_divisor(self) -> bool;
}

macro_rules! float_numbers {
    ($($t:ident)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;
            fn is_nan(self) -> bool { $t::is_nan(self) }
            fn is_divisor(self) -> bool { true }
        }
    )*};
}
float_numbers!(f32 f64);

/// A float that is computed with.
pub(super) trait RealNumber: Number + scalars::Real {}
impl RealNumber for f32 {}
impl RealNumber for f64 {}

macro_rules! int_numbers {
    ($($t:ident)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $t::MIN;
            const HIGHEST: Self = $t::MAX;
            fn is_nan(self) -> bool { false }
            fn is_divisor(self) -> bool { self != 0 }
        }
    )*};
}
int_numbers!(i32 i64 u32 u8);
