//! Elementwise functions.
//!
//! Each function is defined once, in [`function`], which derives a function on registers and a loop
//! over a block of elements.

use crate::cpu::element::CpuElement;
use crate::cpu::math::{Real, wide, wide_for};
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::{DType, bf16, f16};

/// A function on registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScalarFn {
    /// A unary function.
    Unary(fn(u64) -> u64),
    /// A binary function.
    Binary(fn(u64, u64) -> u64),
    /// `a ? b : c`.
    Select,
}
/// A function on blocks of equal length.
pub(crate) type BlockFn = fn(&mut [u8], [&[u8]; 3]);

/// A check of the second operand, in a register or in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandCheck {
    pub(crate) scalar: fn(u64) -> bool,
    pub(crate) block: fn(&[u8]) -> bool,
}

/// An operation on elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementFunction {
    pub(crate) scalar: ScalarFn,
    pub(crate) block: BlockFn,
    /// The check that the second operand must pass.
    pub(crate) check: Option<OperandCheck>,
}

/// Runs a loop that is not worth vectorizing.
#[inline(always)]
pub(super) fn as_is(f: impl FnOnce()) {
    f();
}

/// Defines a unary function by an expression. With `plain` its loop is compiled once, for
/// expressions that call a function.
macro_rules! unary {
    ($A:ty => $R:ty, |$x:ident| $e:expr) => { unary!(wide_for::<$A, _>, $A => $R, |$x| $e) };
    (plain $A:ty => $R:ty, |$x:ident| $e:expr) => { unary!(as_is, $A => $R, |$x| $e) };
    ($run:expr, $A:ty => $R:ty, |$x:ident| $e:expr) => {
        ElementFunction {
            scalar: ScalarFn::Unary(|a| {
                let $x = <$A as CpuElement>::from_reg(a);
                <$R as CpuElement>::to_reg($e)
            }),
            block: |out, [a, _, _]| {
                let out: &mut [<$R as CpuElement>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as CpuElement>::Mem] = bytemuck::cast_slice(a);
                $run(
                    #[inline(always)]
                    || {
                        for (out, &a) in out.iter_mut().zip(a) {
                            let $x = <$A as CpuElement>::load(a);
                            *out = <$R as CpuElement>::store($e);
                        }
                    },
                );
            },
            check: None,
        }
    };
}
macro_rules! binary {
    ($A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => { binary!(wide_for::<$A, _>, $A => $R, |$x, $y| $e) };
    (plain $A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => { binary!(as_is, $A => $R, |$x, $y| $e) };
    ($run:expr, $A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => {
        ElementFunction {
            scalar: ScalarFn::Binary(|a, b| {
                let ($x, $y) = (<$A as CpuElement>::from_reg(a), <$A as CpuElement>::from_reg(b));
                <$R as CpuElement>::to_reg($e)
            }),
            block: |out, [a, b, _]| {
                let out: &mut [<$R as CpuElement>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as CpuElement>::Mem] = bytemuck::cast_slice(a);
                let b: &[<$A as CpuElement>::Mem] = bytemuck::cast_slice(b);
                $run(
                    #[inline(always)]
                    || {
                        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                            let ($x, $y) = (<$A as CpuElement>::load(a), <$A as CpuElement>::load(b));
                            *out = <$R as CpuElement>::store($e);
                        }
                    },
                );
            },
            check: None,
        }
    };
}

/// Defines `a ? b : c`. Only the size of the elements matters, so they are treated as integers.
/// Masks replace data-dependent branches, which are slow and do not vectorize.
macro_rules! select {
    ($bits:ty) => {
        ElementFunction {
            scalar: ScalarFn::Select,
            block: |out, [a, b, c]| {
                let out: &mut [$bits] = bytemuck::cast_slice_mut(out);
                let b: &[$bits] = bytemuck::cast_slice(b);
                let c: &[$bits] = bytemuck::cast_slice(c);
                wide(
                    #[inline(always)]
                    || {
                        for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                            let mask = <$bits>::from(a != 0).wrapping_neg();
                            *out = (b & mask) | (c & !mask);
                        }
                    },
                );
            },
            check: None,
        }
    };
}

pub(super) use unary;

/// Selects the Rust type `$T` of an element type among those listed.
macro_rules! dispatch {
    ($dtype:expr, $T:ident in [$($($v:ident)|+ $t:ty),*] => $body:expr) => {
        match $dtype {
            $($(DType::$v)|+ => { type $T = $t; Some($body) })*
            #[allow(unreachable_patterns, reason = "some lists have all types")]
            _ => None,
        }
    };
}
macro_rules! float1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => unary!(T => T, |$x| $e)) } }
macro_rules! float2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! plain_float1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => unary!(plain T => T, |$x| $e)) } }
macro_rules! plain_float2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => binary!(plain T => T, |$x, $y| $e)) } }
macro_rules! plain_int2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(plain T => T, |$x, $y| $e)) } }
macro_rules! int1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => unary!(T => T, |$x| $e)) } }
macro_rules! int2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(T => T, |$x, $y| $e)) } }
// Operations that are the same for signed and unsigned integers of one size.
macro_rules! bits1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [I32|U32 i32, I64 i64, U8 u8] => unary!(T => T, |$x| $e)) } }
macro_rules! bits2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [I32|U32 i32, I64 i64, U8 u8] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! bool2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [Bool bool] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! compare { ($d:expr, |$x:ident, $y:ident| $e:expr) => {
    dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] => binary!(T => bool, |$x, $y| $e))
} }

macro_rules! equality { ($d:expr, |$x:ident, $y:ident| $e:expr) => {
    dispatch!($d, T in [F32 f32, F64 f64, I32|U32 i32, I64 i64, U8 u8, Bool bool] => binary!(T => bool, |$x, $y| $e))
} }

/// Returns the function of an operation on operands of type `operand` (for `select`, the
/// alternatives) with results of type `result`.
pub(crate) fn function(op: Prim, operand: DType, result: DType) -> Option<ElementFunction> {
    let d = operand;
    match op {
        prim::NEG => float1!(d, |x| -x).or_else(|| bits1!(d, |x| x.wrapping_neg())),
        prim::ABS => float1!(d, |x| x.abs()).or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.wrapping_abs())),
            DType::I64 => Some(unary!(i64 => i64, |x| x.wrapping_abs())),
            _ => int1!(d, |x| x),
        }),
        prim::SIGN => float1!(d, |x| if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            x
        })
        .or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.signum())),
            DType::I64 => Some(unary!(i64 => i64, |x| x.signum())),
            _ => int1!(d, |x| x.min(1)),
        }),
        prim::EXP => float1!(d, |x| x.fast_exp()),
        prim::EXPM1 => plain_float1!(d, |x| x.exp_m1()),
        prim::LOG => float1!(d, |x| x.fast_ln()),
        prim::LOG1P => plain_float1!(d, |x| x.ln_1p()),
        prim::SQRT => float1!(d, |x| x.sqrt()),
        prim::RSQRT => float1!(d, |x| 1.0 / x.sqrt()),
        prim::RECIP => float1!(d, |x| 1.0 / x),
        prim::SIN => plain_float1!(d, |x| x.sin()),
        prim::COS => plain_float1!(d, |x| x.cos()),
        prim::TAN => plain_float1!(d, |x| x.tan()),
        prim::ASIN => plain_float1!(d, |x| x.asin()),
        prim::ACOS => plain_float1!(d, |x| x.acos()),
        prim::ATAN => plain_float1!(d, |x| x.atan()),
        prim::SINH => plain_float1!(d, |x| x.sinh()),
        prim::COSH => plain_float1!(d, |x| x.cosh()),
        prim::TANH => float1!(d, |x| x.fast_tanh()),
        prim::SIGMOID => float1!(d, |x| x.sigmoid()),
        prim::RELU => float1!(d, |x| x.larger(0.0)).or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.max(0))),
            DType::I64 => Some(unary!(i64 => i64, |x| x.max(0))),
            _ => int1!(d, |x| x),
        }),
        prim::SOFTPLUS => plain_float1!(d, |x| x.larger(0.0) + (-x.abs()).fast_exp().ln_1p()),
        prim::ERF => plain_float1!(d, |x| Real::erf(x)),
        prim::GELU => plain_float1!(d, |x| x.gelu()),
        prim::SILU => float1!(d, |x| x * x.sigmoid()),
        prim::FLOOR => float1!(d, |x| x.floor()),
        prim::CEIL => float1!(d, |x| x.ceil()),
        prim::ROUND => float1!(d, |x| x.round_ties_even()),
        prim::IS_FINITE => {
            dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_finite()))
        }
        prim::IS_NAN => dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_nan())),
        prim::ADD => float2!(d, |x, y| x + y).or_else(|| bits2!(d, |x, y| x.wrapping_add(y))),
        prim::SUB => float2!(d, |x, y| x - y).or_else(|| bits2!(d, |x, y| x.wrapping_sub(y))),
        prim::MUL => float2!(d, |x, y| x * y).or_else(|| bits2!(d, |x, y| x.wrapping_mul(y))),
        prim::DIV => float2!(d, |x, y| x / y).or_else(|| dividing(plain_int2!(d, |x, y| x.wrapping_div(y)), d)),
        prim::REM => plain_float2!(d, |x, y| x % y).or_else(|| dividing(plain_int2!(d, |x, y| x.wrapping_rem(y)), d)),
        prim::POW => plain_float2!(d, |x, y| x.powf(y)),
        prim::ATAN2 => plain_float2!(d, |y, x| y.atan2(x)),
        prim::MAXIMUM => float2!(d, |x, y| x.larger(y)).or_else(|| int2!(d, |x, y| x.max(y))),
        prim::MINIMUM => float2!(d, |x, y| x.smaller(y)).or_else(|| int2!(d, |x, y| x.min(y))),
        prim::EQ => equality!(d, |x, y| x == y),
        prim::NE => equality!(d, |x, y| x != y),
        prim::LT => compare!(d, |x, y| x < y),
        prim::LE => compare!(d, |x, y| x <= y),
        prim::GT => compare!(d, |x, y| x > y),
        prim::GE => compare!(d, |x, y| x >= y),
        prim::AND => bool2!(d, |x, y| x & y),
        prim::OR => bool2!(d, |x, y| x | y),
        prim::XOR => bool2!(d, |x, y| x ^ y),
        prim::NOT => dispatch!(d, T in [Bool bool] => unary!(T => T, |x| !x)),
        prim::BIT_AND => bits2!(d, |x, y| x & y),
        prim::BIT_OR => bits2!(d, |x, y| x | y),
        prim::BIT_XOR => bits2!(d, |x, y| x ^ y),
        prim::BIT_NOT => bits1!(d, |x| !x),
        // The count is taken modulo the number of bits.
        prim::SHIFT_LEFT => bits2!(d, |x, y| x.wrapping_shl(y as u32)),
        prim::SHIFT_RIGHT => int2!(d, |x, y| x.wrapping_shr(y as u32)),
        prim::STOP_GRADIENT => {
            dispatch!(d, T in [F32 f32, F64 f64, F16 f16, BF16 bf16, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
            ElementFunction { block: |out, [a, _, _]| out.copy_from_slice(a), ..unary!(plain T => T, |x| x) })
        }
        prim::SELECT => Some(match d.size() {
            8 => select!(u64),
            4 => select!(u32),
            2 => select!(u16),
            _ => select!(u8),
        }),
        prim::CAST => cast(operand, result),
        _ => None,
    }
}

/// Adds the check that the second operand is not zero.
fn dividing(f: Option<ElementFunction>, dtype: DType) -> Option<ElementFunction> {
    let check = dispatch!(dtype, T in [I32 i32, I64 i64, U32 u32, U8 u8] => OperandCheck {
        scalar: |b| T::from_reg(b) != 0,
        block: |b| bytemuck::cast_slice::<u8, T>(b).iter().all(|&b| b != 0),
    });
    f.map(|f| ElementFunction { check, ..f })
}

fn cast(from: DType, to: DType) -> Option<ElementFunction> {
    if from.is_half() || to.is_half() {
        return super::halves::cast(from, to);
    }
    macro_rules! to {
        ($A:ty) => {
            dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] => unary!($A => R, |x| x as R))
        };
    }
    let from_bool = || {
        dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
        unary!(bool => R, |x| R::from(x)))
    };
    if to == DType::Bool && from != DType::Bool {
        return dispatch!(from, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            unary!(T => bool, |x| x != T::default()));
    }
    match from {
        DType::F32 => to!(f32),
        DType::F64 => to!(f64),
        DType::I32 => to!(i32),
        DType::I64 => to!(i64),
        DType::U32 => to!(u32),
        DType::U8 => to!(u8),
        DType::Bool => from_bool(),
        DType::F16 | DType::BF16 => None,
    }
}
