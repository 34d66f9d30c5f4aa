//! The exponential and functions derived from it.

use super::{Arithmetic, Bitwise, Format, Real, log1p};
use std::ops::Mul;

/// The number `mantissa * 2^power`.
#[derive(Clone, Copy)]
pub(super) struct Scaled<R: Real> {
    mantissa: R,
    power: R::Int,
}

impl<R: Real> Scaled<R> {
    /// Returns the number, which may be subnormal or infinite.
    #[inline(always)]
    pub(super) fn value(self) -> R {
        // Two factors, because 2^power itself may be out of the normal range.
        let half = self.power.shift_right(self.power.integer(1));
        self.mantissa * power_of_two(half) * power_of_two(self.power.sub(half))
    }
}

impl<R: Real> Mul<R> for Scaled<R> {
    type Output = Scaled<R>;
    /// Returns the product, computed before the scaling: a subnormal factor would lose digits.
    #[inline(always)]
    fn mul(self, x: R) -> Scaled<R> {
        Scaled { mantissa: self.mantissa * x, ..self }
    }
}

/// Returns `2^n` for an exponent of a normal number.
#[inline(always)]
fn power_of_two<R: Real>(n: R::Int) -> R {
    R::from_bits(n.add(n.integer(R::Format::BIAS)).shift_left(n.integer(R::Format::MANTISSA_BITS)))
}

/// Returns `n` and `r` with `x = n ln 2 + r` and `|r| <= ln 2 / 2`.
#[inline(always)]
fn split<R: Real>(x: R) -> (R::Int, R) {
    let (n, power) = (x * x.number(std::f64::consts::LOG2_E)).nearest();
    let [high, low] = R::Format::LN_2;
    let rest = n.mul_add(x.number(-high), x);
    (power, n.mul_add(x.number(-low), rest))
}

/// Returns `e^r - 1` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn less_one<R: Real>(r: R) -> R {
    r.polynomial(R::Format::EXP).mul_add(r * r, r)
}

/// Returns `x`, limited to [`Format::EXP_RANGE`]. Beyond it `e^x` is zero or infinite.
#[inline(always)]
fn in_range<R: Real>(x: R) -> R {
    let [low, high] = R::Format::EXP_RANGE;
    // The comparisons pass NaN through.
    let (x, low) = (x.limited(high), x.number(low));
    R::choose(x.less(low), low, x)
}

/// Returns `e^x`.
#[inline(always)]
fn scaled_exp<R: Real>(x: R) -> Scaled<R> {
    let (power, rest) = split(in_range(x));
    Scaled { mantissa: less_one(rest) + x.number(1.0), power }
}

/// Returns `e^(x + y)` for a small `y`.
#[inline(always)]
pub(super) fn exp_of_sum<R: Real>(x: R, y: R) -> Scaled<R> {
    let (power, rest) = split(in_range(x));
    Scaled { mantissa: less_one(rest + y) + x.number(1.0), power }
}

/// Returns `e^x`.
#[inline(always)]
pub fn exp<R: Real>(x: R) -> R {
    scaled_exp(x).value()
}

/// Returns `(e^x - 1) / 2^n` for `x` above -50 if the result is finite and `n` is small.
#[inline(always)]
fn scaled_expm1<R: Real>(x: R, n: i64) -> R {
    let (power, rest) = split(x);
    let factor: R = power_of_two(power.sub(power.integer(n)));
    // The subtraction is exact, or the subtrahend is negligible.
    factor.mul_add(less_one(rest), factor - x.number(1.0 / (1 << n) as f64))
}

/// Returns whether a number is so small that `f(x) = x (1 + O(x))` is `x`.
#[inline(always)]
fn is_tiny<R: Real>(x: R) -> R::Mask {
    x.magnitude().less(x.number(R::Format::EPSILON / 4.0))
}

/// Returns `|x|`, or a number whose hyperbolic sine is infinite if that of `x` is.
#[inline(always)]
fn hyperbolic<R: Real>(x: R) -> R {
    x.magnitude().limited(R::Format::EXP_RANGE[1] + 0.5)
}

/// Returns `e^x - 1`.
#[inline(always)]
pub fn expm1<R: Real>(x: R) -> R {
    let low = x.number(-50.0);
    let y = x.limited(R::Format::EXP_RANGE[1]);
    let half = scaled_expm1(R::choose(y.less(low), low, y), 1);
    // Keeps the sign of zero.
    R::choose(is_tiny(x), x, half + half)
}

/// Returns the hyperbolic sine.
#[inline(always)]
pub fn sinh<R: Real>(x: R) -> R {
    // With q = (e^|x| - 1) / 4: (e^|x| - e^-|x|) / 2 = 2 q + q / (2 q + 1/2). A quarter, because
    // the exponential of a finite sine may be infinite.
    let quarter = scaled_expm1(hyperbolic(x), 2);
    let half = quarter + quarter;
    R::choose(is_tiny(x), x, (half + quarter / (half + x.number(0.5))).copysign(x))
}

/// Returns the hyperbolic cosine.
#[inline(always)]
pub fn cosh<R: Real>(x: R) -> R {
    let (power, rest) = split(hyperbolic(x));
    let factor: R = power_of_two(power.sub(power.integer(2)));
    let quarter = factor.mul_add(less_one(rest), factor);
    quarter + quarter + x.number(0.125) / quarter
}

/// Returns the hyperbolic tangent.
#[inline(always)]
pub fn tanh<R: Real>(x: R) -> R {
    // (e^2x - 1) / (e^2x + 1), from e^2x - 1, to preserve the precision of small numbers.
    let size = x.magnitude();
    let less_one = scaled_expm1((size + size).limited(R::Format::TANH_LIMIT), 0);
    (less_one / (less_one + x.number(2.0))).copysign(x)
}

/// Returns `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<R: Real>(x: R) -> R {
    // The exponential of a number that is not positive does not overflow.
    let (zero, one) = (x.number(0.0), x.number(1.0));
    let e = exp(-x.magnitude());
    R::choose(x.less(zero), e, one) / (one + e)
}

/// Returns `x / (1 + e^-x)`, which is -0 at negative infinity.
#[inline(always)]
pub fn silu<R: Real>(x: R) -> R {
    // The product is scaled last, because the sigmoid of a large negative number is subnormal.
    let e = scaled_exp(-x.magnitude());
    let numerator = e * x.larger(x.number(R::Format::EXP_RANGE[0]));
    R::choose(x.less(x.number(0.0)), numerator.value(), x) / (x.number(1.0) + e.value())
}

/// Returns `log(1 + e^x)`, without overflow.
#[inline(always)]
pub fn softplus<R: Real>(x: R) -> R {
    x.larger(x.number(0.0)) + log1p(exp(-x.magnitude()))
}
