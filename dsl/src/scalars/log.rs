//! Logarithms.

use super::{Arithmetic, Bitwise, Format, Mask, Real};

/// A positive number as `2^n m`, with `m` between the roots of 1/2 and 2.
pub(super) struct Split<R: Real> {
    /// The power of two.
    pub(super) power: R::Int,
    /// `m - 1`, which is exact.
    pub(super) fraction: R,
}

impl<R: Real> Split<R> {
    /// Splits a positive number, which may be subnormal.
    #[inline(always)]
    pub(super) fn of(x: R) -> Split<R> {
        let scale = R::Format::SUBNORMAL_SCALE;
        let small = x.less(x.number(R::Format::MIN_POSITIVE));
        let normal = R::choose(small, x * x.number((1u64 << scale) as f64), x);
        let bits = normal.bits();
        let n = |x: i64| bits.integer(x);
        let mantissa = n(R::Format::MANTISSA_BITS);
        let power = bits.sub(n(R::Format::SQRT_HALF_BITS)).shift_right(mantissa);
        let m = R::from_bits(bits.sub(power.shift_left(mantissa)));
        Split { power: R::Int::choose(small, power.sub(n(scale)), power), fraction: m - x.number(1.0) }
    }

    /// Returns the logarithm, plus a small number.
    #[inline(always)]
    fn log_and(self, tail: R) -> R {
        let Split { power, fraction: f } = self;
        let n = R::from_int(power);
        let [high, low] = R::Format::LN_2;
        // ln m = 2 atanh(s), expanded around f, which is exact.
        let s = f / (f + f.number(2.0));
        let z = s * s;
        let half_square = f * f * f.number(0.5);
        let rest = s.mul_add(z.mul_add(z.polynomial(R::Format::LOG), half_square), n.mul_add(f.number(low), tail));
        n.mul_add(f.number(high), f - (half_square - rest))
    }
}

/// Returns the logarithm of `x`, given that of a positive `x`.
#[inline(always)]
fn with_limits<R: Real>(x: R, log: R) -> R {
    let (zero, infinity) = (x.number(0.0), x.number(f64::INFINITY));
    let log = R::choose(x.equals(infinity), infinity, log);
    let log = R::choose(x.equals(zero), -infinity, log);
    R::choose(zero.at_most(x), log, x.number(f64::NAN))
}

/// Returns the natural logarithm.
#[inline(always)]
pub fn log<R: Real>(x: R) -> R {
    with_limits(x, Split::of(x).log_and(x.number(0.0)))
}

/// Returns `log(1 + x)`.
#[inline(always)]
pub fn log1p<R: Real>(x: R) -> R {
    let one = x.number(1.0);
    let sum = one + x;
    // The rounding error of the sum (Knuth). Divided by the sum, it is what the logarithm lacks.
    let part = sum - one;
    let error = (one - (sum - part)) + (x - part);
    let split = Split::of(sum);
    let log = split.log_and(error / sum);
    // Keeps the sign of zero.
    let is_zero = x.equals(x.number(0.0));
    R::choose(is_zero.or(sum.equals(x.number(f64::INFINITY))), x, with_limits(sum, log))
}
