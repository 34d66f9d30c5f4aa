//! The language of scalar functions: the meaning of each elementwise operation, written once.
//!
//! A scalar function is a generic Rust function over [`Arithmetic`], [`Real`], [`Bitwise`] and
//! [`Mask`], whose methods are the primitives of the language. It has several interpretations:
//!
//! | values | used for |
//! |---|---|
//! | `f32`, `f64`, `i32`, .. | the reference, constant folding, and the loops of the CPU engine, which rustc vectorizes |
//! | [`Recorded`] | the function as data, an [`ScalarExpr`]: native code, WGSL and costs are derived from it |
//!
//! Every primitive is exact or correctly rounded (IEEE 754), and a function fixes their order. So
//! all interpretations on CPUs yield the same bits, except for the sign and payload of a NaN. A
//! multiplication and an addition are fused only where a function says so, by
//! [`mul_add`](Real::mul_add).
//!
//! # Rules for functions
//! - No branches: [`choose`](Arithmetic::choose) selects between two values, both of which are
//!   computed.
//! - Special values are part of the function: limits, infinities, NaN and the sign of zero.
//! - Constants are `f64`, and rounded to the format. Polynomials are tables of [`Format`].
//! - Functions are `#[inline(always)]`, since a call would prevent vectorization.
//!
//! # Invariants
//! - **S1** A function uses primitives only. IEEE 754 fixes the result of each, so that of the
//!   function depends on no library. A library may compute a primitive: on a CPU without fused
//!   multiply-add, [`mul_add`](Real::mul_add) calls `fmaf` or `fma` of the system, which round
//!   correctly.
//! - **S2** A result counts only if each primitive was used within its domain:
//!   [`nearest`](Real::nearest) on numbers below its limit, and [`div`](Arithmetic::div) and
//!   [`rem`](Arithmetic::rem) on nonzero integers. Results for angles that are
//!   [far](is_far) are replaced.

mod erf;
mod exp;
mod expr;
mod format;
mod host;
mod inverse;
mod log;
mod power;
mod recorded;
mod trigonometry;
pub mod wgsl;

pub use erf::{erf, gelu};
pub use exp::{cosh, exp, expm1, sigmoid, silu, sinh, softplus, tanh};
pub use expr::{BinaryOp, ExprNode, ExprNodeId, ScalarExpr, TernaryOp, UnaryOp};
pub use format::Format;
pub use inverse::{acos, asin, atan, atan2};
pub use log::{log, log1p};
pub use power::pow;
pub use recorded::{Recorded, Recorder};
pub use trigonometry::{Beyond, cos, is_far, sin, tan};

use std::ops::{Add, Div, Mul, Neg, Sub};

/// A truth value.
pub trait Mask: Copy {
    /// Returns whether both are true.
    #[must_use]
    fn and(self, other: Self) -> Self;
    /// Returns whether either is true.
    #[must_use]
    fn or(self, other: Self) -> Self;
    /// Returns whether exactly one is true.
    #[must_use]
    fn xor(self, other: Self) -> Self;
    /// Returns the negation.
    #[must_use]
    fn not(self) -> Self;
}

/// A value that can be compared.
pub trait Comparable: Copy {
    /// The result of a comparison.
    type Mask: Mask;
    /// Returns whether both are equal.
    fn equals(self, other: Self) -> Self::Mask;
}

/// A number. Bitwise arithmetic wraps.
pub trait Arithmetic: Comparable {
    /// Whether the type has negative numbers.
    const SIGNED: bool;
    /// Returns a constant, rounded to the type of `self`.
    #[must_use]
    fn number(self, x: f64) -> Self;
    /// Returns the sum.
    #[must_use]
    fn add(self, other: Self) -> Self;
    /// Returns the difference.
    #[must_use]
    fn sub(self, other: Self) -> Self;
    /// Returns the product.
    #[must_use]
    fn mul(self, other: Self) -> Self;
    /// Returns the quotient. That of integers is rounded towards zero, and `other` is not zero.
    #[must_use]
    fn div(self, other: Self) -> Self;
    /// Returns the remainder with the sign of `self`. An integer `other` is not zero.
    #[must_use]
    fn rem(self, other: Self) -> Self;
    /// Returns the number with the opposite sign.
    #[must_use]
    fn neg(self) -> Self;
    /// Returns the absolute value.
    #[must_use]
    fn magnitude(self) -> Self;
    /// Returns `self` if it is NaN or larger than `other`, and `other` otherwise.
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// Returns `self` if it is NaN or smaller than `other`, and `other` otherwise.
    #[must_use]
    fn smaller(self, other: Self) -> Self;
    /// Returns whether `self < other`.
    fn less(self, other: Self) -> Self::Mask;
    /// Returns whether `self <= other`.
    fn at_most(self, other: Self) -> Self::Mask;
    /// Returns `a` if the condition is true, else `b`.
    fn choose(when: Self::Mask, a: Self, b: Self) -> Self;

    /// Returns -1, 0 or 1. A float keeps NaN and the sign of zero.
    #[must_use]
    #[inline(always)]
    fn sign(self) -> Self {
        let zero = self.number(0.0);
        let rest = if Self::SIGNED { Self::choose(self.less(zero), self.number(-1.0), self) } else { self };
        Self::choose(zero.less(self), self.number(1.0), rest)
    }

    /// Returns the number, or `high` if it is larger. NaN stays NaN.
    #[must_use]
    #[inline(always)]
    fn limited(self, high: f64) -> Self {
        let high = self.number(high);
        Self::choose(high.less(self), high, self)
    }
}

/// A float.
pub trait Real:
    Arithmetic + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// The format of the numbers.
    type Format: Format;
    /// The signed integer of the same size.
    type Int: Bitwise<Mask = Self::Mask>;
    /// Returns `self * b + c`, rounded once.
    #[must_use]
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns the square root.
    #[must_use]
    fn sqrt(self) -> Self;
    /// Rounds down.
    #[must_use]
    fn floor(self) -> Self;
    /// Rounds up.
    #[must_use]
    fn ceil(self) -> Self;
    /// Rounds to the nearest integer, half to even.
    #[must_use]
    fn round_ties_even(self) -> Self;
    /// Returns the nearest integer, half to even, also as an integer.
    ///
    /// The number must be NaN or less than a quarter of `2^MANTISSA_BITS` in magnitude.
    fn nearest(self) -> (Self, Self::Int);
    /// Returns the number with the sign of another.
    #[must_use]
    fn copysign(self, sign: Self) -> Self;
    /// Returns the bits.
    fn bits(self) -> Self::Int;
    /// Returns the number with the given bits.
    fn from_bits(bits: Self::Int) -> Self;
    /// Converts an integer that the format represents exactly.
    fn from_int(n: Self::Int) -> Self;

    /// Returns whether the number is NaN.
    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        self.equals(self).not()
    }

    /// Returns whether the number is neither infinite nor NaN.
    #[inline(always)]
    fn is_finite(self) -> Self::Mask {
        self.magnitude().less(self.number(f64::INFINITY))
    }

    /// Returns the number with its sign flipped if the condition is true.
    #[must_use]
    #[inline(always)]
    fn negated_if(self, when: Self::Mask) -> Self {
        Self::choose(when, -self, self)
    }

    /// Returns the value of a polynomial, whose coefficients start with the constant term.
    ///
    /// Pairs of terms are independent, which halves the chain of dependent instructions.
    #[must_use]
    #[inline(always)]
    fn polynomial(self, coefficients: &'static [f64]) -> Self {
        let n = coefficients.len();
        let pair = |k: usize| self.mul_add(self.number(coefficients[k + 1]), self.number(coefficients[k]));
        let square = self * self;
        let (mut k, mut sum) =
            if n.is_multiple_of(2) { (n - 2, pair(n - 2)) } else { (n - 1, self.number(coefficients[n - 1])) };
        while k > 0 {
            k -= 2;
            sum = sum.mul_add(square, pair(k));
        }
        sum
    }
}

/// An integer.
pub trait Bitwise: Arithmetic {
    /// Returns a constant of the type of `self`.
    #[must_use]
    fn integer(self, x: i64) -> Self;
    /// Returns `self & other`.
    #[must_use]
    fn bit_and(self, other: Self) -> Self;
    /// Returns `self | other`.
    #[must_use]
    fn bit_or(self, other: Self) -> Self;
    /// Returns `self ^ other`.
    #[must_use]
    fn bit_xor(self, other: Self) -> Self;
    /// Returns `!self`.
    #[must_use]
    fn bit_not(self) -> Self;
    /// Returns `self << count`, with the count modulo the number of bits.
    #[must_use]
    fn shift_left(self, count: Self) -> Self;
    /// Returns `self >> count`, with the count modulo the number of bits. Signed integers keep
    /// their sign.
    #[must_use]
    fn shift_right(self, count: Self) -> Self;

    /// Returns whether any of the given bits is set.
    #[inline(always)]
    fn has(self, bits: i64) -> Self::Mask {
        self.bit_and(self.integer(bits)).equals(self.integer(0)).not()
    }
}
