//! Elementwise operations of other crates, written in the [scalar language](crate::scalars).
//!
//! A crate states its function once, as a type that implements [`UnaryFunction`] or
//! [`BinaryFunction`]. The definition of the operation follows from it here: reference
//! implementation, recorded form, class and effort. An engine compiles the same function for its
//! loops. This module knows no function and no engine.

use super::class::{OpClass, ScalarForm};
use super::infer::{Class, common, like_operand};
use super::number::match_float;
use super::{Arity, Effects, Exactness, Grad, Halves, Laws, OpDef, elements};
use crate::DType;
use crate::scalars::{Real, Recorder};

/// An elementwise function of one float, as an operation of another crate.
///
/// Its result has the type of the operand. 16-bit floats are computed in `f32`.
pub trait UnaryFunction: 'static {
    /// The name of the operation, which starts with that of the crate: `my_crate.selu`.
    const NAME: &'static str;
    /// The gradient rule.
    const GRAD: Grad;
    /// The allowed error of devices. All engines on CPUs yield the same bits.
    const EXACTNESS: Exactness = Exactness::Ulps(4);
    /// The algebraic laws.
    const LAWS: Laws = Laws::NONE;

    /// Computes the function from primitives, without branches.
    ///
    /// Implementations are `#[inline(always)]`, since a call in a loop would prevent vectorization.
    fn eval<R: Real>(x: R) -> R;
}

/// An elementwise function of two floats of equal types and shapes, as an operation of another
/// crate.
///
/// Its result has the type of the operands. 16-bit floats are computed in `f32`.
pub trait BinaryFunction: 'static {
    /// The name of the operation, which starts with that of the crate: `my_crate.hypot`.
    const NAME: &'static str;
    /// The gradient rule.
    const GRAD: Grad;
    /// The allowed error of devices. All engines on CPUs yield the same bits.
    const EXACTNESS: Exactness = Exactness::Ulps(4);
    /// The algebraic laws.
    const LAWS: Laws = Laws::NONE;

    /// Computes the function from primitives, without branches.
    ///
    /// Implementations are `#[inline(always)]`, since a call in a loop would prevent vectorization.
    fn eval<R: Real>(x: R, y: R) -> R;
}

impl OpDef {
    /// Returns the definition of an elementwise operation of one float.
    #[doc(hidden)]
    pub const fn unary<F: UnaryFunction>() -> OpDef {
        OpDef {
            name: F::NAME,
            arity: Arity::Exactly(1),
            attrs: &[],
            infer: |cx| like_operand(cx, Class::Float),
            eval: |cx| Ok(match_float!(cx.operands[0].buffer(), x => cx.result(elements::map(x, F::eval)))),
            grad: F::GRAD,
            exactness: F::EXACTNESS,
            class: OpClass::Scalar(ScalarForm::Function(|dtype| match dtype {
                DType::F32 => Some(Recorder::unary::<f32, _>(|x| F::eval(x))),
                DType::F64 => Some(Recorder::unary::<f64, _>(|x| F::eval(x))),
                _ => None,
            })),
            halves: Halves::Widened,
            effects: Effects::Pure,
            laws: F::LAWS,
        }
    }

    /// Returns the definition of an elementwise operation of two floats.
    #[doc(hidden)]
    pub const fn binary<F: BinaryFunction>() -> OpDef {
        OpDef {
            name: F::NAME,
            arity: Arity::Exactly(2),
            attrs: &[],
            infer: |cx| Ok(common(cx, Class::Float)?.into()),
            eval: |cx| {
                Ok(match_float!(cx.operands[0].buffer(), x => {
                    cx.result(elements::zip(x, cx.operands[1].data(), F::eval))
                }))
            },
            grad: F::GRAD,
            exactness: F::EXACTNESS,
            class: OpClass::Scalar(ScalarForm::Function(|dtype| match dtype {
                DType::F32 => Some(Recorder::binary::<f32, _>(|x, y| F::eval(x, y))),
                DType::F64 => Some(Recorder::binary::<f64, _>(|x, y| F::eval(x, y))),
                _ => None,
            })),
            halves: Halves::Widened,
            effects: Effects::Pure,
            laws: F::LAWS,
        }
    }
}
