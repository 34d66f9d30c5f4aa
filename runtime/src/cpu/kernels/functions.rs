//! Elementwise functions.
//!
//! The functions of the [scalar language](anabranch_dsl::scalars) are compiled here, for numbers in
//! registers and in loops over a block of elements, those of other crates when they are registered.
//! This file knows types and loops, and no function except conversions and selection.

use crate::cpu::element::CpuElement;
use crate::cpu::multiversion::{up_to_avx2, wide, wide_for};
use anabranch_dsl::ops::{self, BinaryFunction, OpClass, OpDef, Prim, ScalarForm, UnaryFunction, prim};
use anabranch_dsl::scalars::{self, Arithmetic, Beyond, Bitwise, Comparable, Mask};
use anabranch_dsl::{DType, Result, bf16, f16};
use rustc_hash::FxHashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

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

/// Runs code that is not worth vectorizing.
#[inline(always)]
pub(super) fn as_is<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Compiles a unary function, given by an expression. `$run` runs the loops, and `$run_scalar` the
/// function on registers.
macro_rules! unary {
    ($run:path, $run_scalar:path, $A:ty => $R:ty, |$x:ident| $e:expr) => {
        ElementFunction {
            scalar: ScalarFn::Unary(|a| {
                $run_scalar(
                    #[inline(always)]
                    || {
                        let $x = <$A as CpuElement>::from_reg(a);
                        <$R as CpuElement>::to_reg($e)
                    },
                )
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

/// Compiles a binary function, like [`unary!`].
macro_rules! binary {
    ($run:path, $run_scalar:path, $A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => {
        ElementFunction {
            scalar: ScalarFn::Binary(|a, b| {
                $run_scalar(
                    #[inline(always)]
                    || {
                        let ($x, $y) = (<$A as CpuElement>::from_reg(a), <$A as CpuElement>::from_reg(b));
                        <$R as CpuElement>::to_reg($e)
                    },
                )
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
/// Compiles a function for all types of its signature (see `dsl/src/ops/scalar_functions.rs`), and
/// selects that of a type.
macro_rules! typed {
    (Float $d:expr, |$x:ident| $e:expr => $far:ident) => {
        dispatch!($d, T in [F32 f32, F64 f64] => {
            ElementFunction {
                block: |out, operands| {
                    const NEAR: BlockFn = unary!(wide, up_to_avx2, T => T, |$x| $e).block;
                    NEAR(out, operands);
                    let x: &[T] = bytemuck::cast_slice(operands[0]);
                    let is_far = |x: &T| scalars::is_far(*x);
                    if wide(#[inline(always)] || x.iter().fold(false, |any, x| any | is_far(x))) {
                        let out: &mut [T] = bytemuck::cast_slice_mut(out);
                        out.iter_mut().zip(x).filter(|(_, x)| is_far(x)).for_each(|(out, x)| *out = x.$far());
                    }
                },
                ..unary!(as_is, up_to_avx2, T => T, |$x| if scalars::is_far($x) { $x.$far() } else { $e })
            }
        })
    };
    (Float $d:expr, |$x:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64] => unary!(wide, up_to_avx2, T => T, |$x| $e))
    };
    (FloatTest $d:expr, |$x:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64] => unary!(wide, up_to_avx2, T => bool, |$x| $e))
    };
    (Float $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64] => binary!(wide, up_to_avx2, T => T, |$x, $y| $e))
    };
    (Numeric $d:expr, |$x:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            unary!(wide_for::<T, _>, as_is, T => T, |$x| $e))
    };
    (Numeric $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            binary!(wide_for::<T, _>, as_is, T => T, |$x, $y| $e))
    };
    (Quotient $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64] => binary!(wide, up_to_avx2, T => T, |$x, $y| $e)).or_else(|| {
            let f = dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(as_is, as_is, T => T, |$x, $y| $e));
            dividing(f, $d)
        })
    };
    (Comparison $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            binary!(wide_for::<T, _>, as_is, T => bool, |$x, $y| $e))
    };
    (Equality $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [F32 f32, F64 f64, I32|U32 i32, I64 i64, U8 u8, Bool bool] =>
            binary!(wide_for::<T, _>, as_is, T => bool, |$x, $y| $e))
    };
    (Logic $d:expr, |$x:ident| $e:expr) => {
        dispatch!($d, T in [Bool bool] => unary!(up_to_avx2, as_is, T => T, |$x| $e))
    };
    (Logic $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [Bool bool] => binary!(up_to_avx2, as_is, T => T, |$x, $y| $e))
    };
    (Bits $d:expr, |$x:ident| $e:expr) => {
        dispatch!($d, T in [I32|U32 i32, I64 i64, U8 u8] => unary!(up_to_avx2, as_is, T => T, |$x| $e))
    };
    (Bits $d:expr, |$x:ident, $y:ident| $e:expr) => {
        dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(up_to_avx2, as_is, T => T, |$x, $y| $e))
    };
}

/// Returns the function of an operation on operands of type `operand` (for `select`, the
/// alternatives) with results of type `result`.
pub(crate) fn function(op: Prim, operand: DType, result: DType) -> Option<ElementFunction> {
    macro_rules! rows {
        ($($op:ident $signature:ident |$($x:ident),+| $e:expr $(=> $far:ident)?;)*) => {
            match op {
                $(prim::$op => return typed!($signature operand, |$($x),+| $e $(=> $far)?),)*
                _ => {}
            }
        };
    }
    anabranch_dsl::unary_functions!(rows);
    anabranch_dsl::binary_functions!(rows);
    anabranch_dsl::comparison_functions!(rows);
    anabranch_dsl::bit_functions!(rows);
    match op.class {
        OpClass::Scalar(ScalarForm::Identity) => {
            dispatch!(operand, T in [F32 f32, F64 f64, F16 f16, BF16 bf16, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
            ElementFunction { block: |out, [a, _, _]| out.copy_from_slice(a), ..unary!(as_is, as_is, T => T, |x| x) })
        }
        OpClass::Scalar(ScalarForm::Conversion) => cast(operand, result),
        _ if op == prim::SELECT => Some(match operand.size() {
            8 => select!(u64),
            4 => select!(u32),
            2 => select!(u16),
            _ => select!(u8),
        }),
        _ => {
            let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
            registered.get(&op).and_then(|compiled| compiled(operand))
        }
    }
}

/// A function, compiled for several types of operands.
type CompiledFunction = fn(DType) -> Option<ElementFunction>;

/// The functions of other crates.
static REGISTERED: LazyLock<RwLock<FxHashMap<Prim, CompiledFunction>>> = LazyLock::new(RwLock::default);

/// Registers an elementwise operation of one float for this process, and compiles it for the loops
/// of the CPU.
///
/// ```
/// use anabranch::extend::scalars::Real;
/// use anabranch::extend::{Attrs, Grad, Prim, UnaryFunction, emit, register_unary};
/// use anabranch::prelude::*;
/// use std::sync::LazyLock;
///
/// /// `x / (1 + |x|)`
/// struct Softsign;
///
/// impl UnaryFunction for Softsign {
///     const NAME: &'static str = "my_crate.softsign";
///     const GRAD: Grad = Grad::Rule(|n| vec![Some(n.dy() / (n.x(0).abs() + 1.0).square())]);
///
///     #[inline(always)]
///     fn eval<R: Real>(x: R) -> R {
///         x / (x.number(1.0) + x.magnitude())
///     }
/// }
///
/// static SOFTSIGN: LazyLock<Prim> = LazyLock::new(|| register_unary::<Softsign>().unwrap());
///
/// fn softsign(x: Tensor) -> Tensor {
///     Tensor::from_any(emit(*SOFTSIGN, &[x.untyped()], Attrs::none()))
/// }
///
/// assert_eq!(eval(|| softsign(tensor([1.0, -3.0])))?.as_slice(), [0.5, -0.75]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Fails if the name has no dot or is registered already.
pub fn register_unary<F: UnaryFunction>() -> Result<Prim> {
    register(OpDef::unary::<F>(), |dtype| typed!(Float dtype, |x| F::eval(x)))
}

/// Registers an elementwise operation of two floats for this process, and compiles it for the loops
/// of the CPU, like [`register_unary`].
///
/// # Errors
/// Fails if the name has no dot or is registered already.
pub fn register_binary<F: BinaryFunction>() -> Result<Prim> {
    register(OpDef::binary::<F>(), |dtype| typed!(Float dtype, |x, y| F::eval(x, y)))
}

fn register(def: OpDef, compiled: CompiledFunction) -> Result<Prim> {
    // Locked before the operation has its name, by which another thread could use it.
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let op = ops::register(def)?;
    registered.insert(op, compiled);
    Ok(op)
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
            dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] => unary!(wide_for::<$A, _>, as_is, $A => R, |x| x as R))
        };
    }
    let from_bool = || {
        dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
        unary!(up_to_avx2, as_is, bool => R, |x| R::from(x)))
    };
    if to == DType::Bool && from != DType::Bool {
        return dispatch!(from, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            unary!(wide_for::<T, _>, as_is, T => bool, |x| x != T::default()));
    }
    match from {
        DType::F32 => to!(f32),
        DType::F64 => to!(f64),
        DType::I32 => to!(i32),
        DType::I64 => to!(i64),
        DType::U32 => to!(u32),
        DType::U8 => to!(u8),
        DType::Bool => from_bool(),
        DType::F16 | DType::BF16 | DType::Bytes => None,
    }
}
