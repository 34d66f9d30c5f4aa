//! The elementwise operations on one element.
//!
//! Each is written once, in [`function`]; from it come a function on registers and a loop over a block of elements.

use crate::cpu::element::Cell;
use crate::cpu::math::{Real, wide};
use anabranch_dsl::{DType, bf16, f16};

/// An operation on registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scalar {
    /// Of one operand.
    Unary(fn(u64) -> u64),
    /// Of two operands.
    Binary(fn(u64, u64) -> u64),
    /// `a ? b : c`
    Select,
}
/// An operation on blocks of elements of equal number.
pub(crate) type BlockFn = fn(&mut [u8], [&[u8]; 3]);

/// Whether a register, or all elements of a block, are valid as second operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) scalar: fn(u64) -> bool,
    pub(crate) block: fn(&[u8]) -> bool,
}

/// One operation on elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) scalar: Scalar,
    pub(crate) block: BlockFn,
    /// The second operand must pass.
    pub(crate) check: Option<Check>,
}

/// A function of one operand, from an expression on its elements.
macro_rules! unary {
    ($A:ty => $R:ty, |$x:ident| $e:expr) => {
        Function {
            scalar: Scalar::Unary(|a| {
                let $x = <$A as Cell>::from_reg(a);
                <$R as Cell>::to_reg($e)
            }),
            block: |out, [a, _, _]| {
                let out: &mut [<$R as Cell>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as Cell>::Mem] = bytemuck::cast_slice(a);
                wide(
                    #[inline(always)]
                    || {
                        for (out, &a) in out.iter_mut().zip(a) {
                            let $x = <$A as Cell>::load(a);
                            *out = <$R as Cell>::store($e);
                        }
                    },
                );
            },
            check: None,
        }
    };
}
macro_rules! binary {
    ($A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => {
        Function {
            scalar: Scalar::Binary(|a, b| {
                let ($x, $y) = (<$A as Cell>::from_reg(a), <$A as Cell>::from_reg(b));
                <$R as Cell>::to_reg($e)
            }),
            block: |out, [a, b, _]| {
                let out: &mut [<$R as Cell>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as Cell>::Mem] = bytemuck::cast_slice(a);
                let b: &[<$A as Cell>::Mem] = bytemuck::cast_slice(b);
                wide(
                    #[inline(always)]
                    || {
                        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                            let ($x, $y) = (<$A as Cell>::load(a), <$A as Cell>::load(b));
                            *out = <$R as Cell>::store($e);
                        }
                    },
                );
            },
            check: None,
        }
    };
}

/// `a ? b : c`. Elements are moved as they are, so their size is all that matters: they are taken as integers, and chosen with masks, since
/// jumps on data are slow and no vector code.
macro_rules! select {
    ($bits:ty) => {
        Function {
            scalar: Scalar::Select,
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

/// Chooses the Rust type `$T` of an element type among those listed.
macro_rules! dispatch {
    ($dtype:expr, $T:ident in [$($v:ident $t:ty),*] => $body:expr) => {
        match $dtype {
            $(DType::$v => { type $T = $t; Some($body) })*
            #[allow(unreachable_patterns, reason = "some lists have all types")]
            _ => None,
        }
    };
}
macro_rules! float1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => unary!(T => T, |$x| $e)) } }
macro_rules! float2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! int1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => unary!(T => T, |$x| $e)) } }
macro_rules! int2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! bool2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [Bool bool] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! compare { ($d:expr, |$x:ident, $y:ident| $e:expr) => {
    dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] => binary!(T => bool, |$x, $y| $e))
} }

/// The operation `name` on operands of type `operand` (the last operand, for `select`) with results of type `result`.
pub(crate) fn function(name: &str, operand: DType, result: DType) -> Option<Function> {
    let d = operand;
    match name {
        "neg" => float1!(d, |x| -x).or_else(|| int1!(d, |x| x.wrapping_neg())),
        "abs" => float1!(d, |x| x.abs()).or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.wrapping_abs())),
            DType::I64 => Some(unary!(i64 => i64, |x| x.wrapping_abs())),
            _ => int1!(d, |x| x),
        }),
        "sign" => float1!(d, |x| if x > 0.0 {
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
        "exp" => float1!(d, |x| x.fast_exp()),
        "exp_m1" => float1!(d, |x| x.exp_m1()),
        "log" => float1!(d, |x| x.fast_ln()),
        "log_1p" => float1!(d, |x| x.ln_1p()),
        "sqrt" => float1!(d, |x| x.sqrt()),
        "rsqrt" => float1!(d, |x| 1.0 / x.sqrt()),
        "recip" => float1!(d, |x| 1.0 / x),
        "sin" => float1!(d, |x| x.sin()),
        "cos" => float1!(d, |x| x.cos()),
        "tan" => float1!(d, |x| x.tan()),
        "asin" => float1!(d, |x| x.asin()),
        "acos" => float1!(d, |x| x.acos()),
        "atan" => float1!(d, |x| x.atan()),
        "sinh" => float1!(d, |x| x.sinh()),
        "cosh" => float1!(d, |x| x.cosh()),
        "tanh" => float1!(d, |x| x.fast_tanh()),
        "sigmoid" => float1!(d, |x| x.sigmoid()),
        "relu" => float1!(d, |x| x.larger(0.0)).or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.max(0))),
            DType::I64 => Some(unary!(i64 => i64, |x| x.max(0))),
            _ => int1!(d, |x| x),
        }),
        "softplus" => float1!(d, |x| x.larger(0.0) + (-x.abs()).fast_exp().ln_1p()),
        "erf" => float1!(d, |x| Real::erf(x)),
        "gelu" => float1!(d, |x| x.gelu()),
        "silu" => float1!(d, |x| x * x.sigmoid()),
        "floor" => float1!(d, |x| x.floor()),
        "ceil" => float1!(d, |x| x.ceil()),
        "round" => float1!(d, |x| x.round_ties_even()),
        "is_finite" => {
            dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_finite()))
        }
        "is_nan" => dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_nan())),
        "add" => float2!(d, |x, y| x + y).or_else(|| int2!(d, |x, y| x.wrapping_add(y))),
        "sub" => float2!(d, |x, y| x - y).or_else(|| int2!(d, |x, y| x.wrapping_sub(y))),
        "mul" => float2!(d, |x, y| x * y).or_else(|| int2!(d, |x, y| x.wrapping_mul(y))),
        "div" => float2!(d, |x, y| x / y).or_else(|| dividing(int2!(d, |x, y| x.wrapping_div(y)), d)),
        "rem" => float2!(d, |x, y| x % y).or_else(|| dividing(int2!(d, |x, y| x.wrapping_rem(y)), d)),
        "pow" => float2!(d, |x, y| x.powf(y)),
        "atan2" => float2!(d, |y, x| y.atan2(x)),
        "maximum" => float2!(d, |x, y| x.larger(y)).or_else(|| int2!(d, |x, y| x.max(y))),
        "minimum" => float2!(d, |x, y| x.smaller(y)).or_else(|| int2!(d, |x, y| x.min(y))),
        "eq" => {
            compare!(d, |x, y| x == y).or_else(|| dispatch!(d, T in [Bool bool] => binary!(T => bool, |x, y| x == y)))
        }
        "ne" => {
            compare!(d, |x, y| x != y).or_else(|| dispatch!(d, T in [Bool bool] => binary!(T => bool, |x, y| x != y)))
        }
        "lt" => compare!(d, |x, y| x < y),
        "le" => compare!(d, |x, y| x <= y),
        "gt" => compare!(d, |x, y| x > y),
        "ge" => compare!(d, |x, y| x >= y),
        "and" => bool2!(d, |x, y| x & y),
        "or" => bool2!(d, |x, y| x | y),
        "xor" => bool2!(d, |x, y| x ^ y),
        "not" => dispatch!(d, T in [Bool bool] => unary!(T => T, |x| !x)),
        "stop_gradient" => {
            dispatch!(d, T in [F32 f32, F64 f64, F16 f16, BF16 bf16, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
            unary!(T => T, |x| x))
        }
        "select" => Some(match d.size() {
            8 => select!(u64),
            4 => select!(u32),
            2 => select!(u16),
            _ => select!(u8),
        }),
        "cast" => cast(operand, result),
        _ => None,
    }
}

/// An operation whose second operand must not be zero.
fn dividing(f: Option<Function>, dtype: DType) -> Option<Function> {
    let check = dispatch!(dtype, T in [I32 i32, I64 i64, U32 u32, U8 u8] => Check {
        scalar: |b| T::from_reg(b) != 0,
        block: |b| bytemuck::cast_slice::<u8, T>(b).iter().all(|&b| b != 0),
    });
    f.map(|f| Function { check, ..f })
}

fn cast(from: DType, to: DType) -> Option<Function> {
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
