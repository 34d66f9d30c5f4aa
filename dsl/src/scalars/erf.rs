//! The error function and functions derived from it.

use super::exp::{Scaled, exp_of_sum};
use super::{Format, Real};

/// Returns `erfc(x)` for `x >= 0`, given `e^(-x^2)`.
#[inline(always)]
fn complement<R: Real>(x: R, e: Scaled<R>) -> Scaled<R> {
    let (one, four) = (x.number(1.0), x.number(4.0));
    // erfc(x) = p(t) e^(-x^2) / (1 + 2 x), with t = (x - 4) / (x + 4) (Shepherd and Laframboise
    // 1981). One division for both quotients.
    let (shifted, double) = (x + four, x + x + one);
    let inverse = one / (shifted * double);
    let t = (x - four) * double * inverse;
    e * (t.polynomial(R::Format::ERFC) * (shifted * inverse))
}

/// Returns `e^(-factor x^2)` for an `x` whose square is finite.
#[inline(always)]
fn gaussian<R: Real>(x: R, factor: f64) -> Scaled<R> {
    let factor = x.number(-factor);
    let square = x * x;
    let error = x.mul_add(x, -square);
    exp_of_sum(square * factor, error * factor)
}

/// Returns `erf(x)` for a small `x`, given its square.
#[inline(always)]
fn near_erf<R: Real>(x: R, square: R) -> R {
    x.mul_add(square.polynomial(R::Format::ERF), x)
}

/// Returns the error function of `x`.
#[inline(always)]
pub fn erf<R: Real>(x: R) -> R {
    let size = x.magnitude().limited(R::Format::ERFC_LIMIT);
    let square = size * size;
    let far = x.number(1.0) - complement(size, gaussian(size, 1.0)).value();
    R::choose(square.less(x.number(0.9)), near_erf(size, square), far).copysign(x)
}

/// Returns `x` times the probability that a standard normal number is below `x`, which is -0 at
/// negative infinity.
#[inline(always)]
pub fn gelu<R: Real>(x: R) -> R {
    // x/2 (1 + erf(x / sqrt(2))) near 0. Elsewhere x/2 erfc(-x / sqrt(2)), since the sum would lose
    // digits. The exponential depends on x itself, since its argument needs all digits.
    let (zero, half, one) = (x.number(0.0), x.number(0.5), x.number(1.0));
    let limit = R::Format::ERFC_LIMIT * std::f64::consts::SQRT_2;
    let size = x.magnitude().limited(limit);
    let scaled = size * x.number(std::f64::consts::FRAC_1_SQRT_2);
    let above = complement(scaled, gaussian(size, 0.5) * half);
    let negative = (above * x.larger(x.number(-limit))).value();
    let far = R::choose(x.less(zero), negative, x * (one - above.value()));
    let square = size * size * half;
    let near = x * near_erf(scaled, square).copysign(x).mul_add(half, half);
    R::choose(square.less(x.number(0.25)), near, far)
}
