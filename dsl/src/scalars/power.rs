//! Powers of floats.

use super::exp::exp_of_sum;
use super::log::Split;
use super::{Format, Mask, Real};

/// An unevaluated sum of two numbers, the second of which is small.
#[derive(Clone, Copy)]
struct DoubleWord<R>(R, R);

/// Returns the product with its rounding error.
#[inline(always)]
fn product<R: Real>(a: R, b: R) -> DoubleWord<R> {
    let p = a * b;
    DoubleWord(p, a.mul_add(b, -p))
}

/// Returns the sum of two numbers with its rounding error. The first is not smaller.
#[inline(always)]
fn sum<R: Real>(a: R, b: R) -> DoubleWord<R> {
    let s = a + b;
    DoubleWord(s, b - (s - a))
}

/// Returns the logarithm of a positive number.
#[inline(always)]
fn log<R: Real>(x: R) -> DoubleWord<R> {
    let Split { power, fraction: f } = Split::of(x);
    let n = R::from_int(power);
    // s = f / (2 + f) in two terms.
    let DoubleWord(d, d_low) = sum(x.number(2.0), f);
    let s = f / d;
    let s_low = (s.mul_add(-d, f) - s * d_low) / d;
    // ln m = 2 s + s^3 (2/3 + s^2 q(s^2))
    let DoubleWord(z, z_low) = product(s, s);
    let z_low = (s + s).mul_add(s_low, z_low);
    let [third, third_low] = R::Format::TWO_THIRDS;
    let q = z * z.polynomial(&R::Format::LOG[1..]);
    let DoubleWord(w, w_low) = sum(x.number(third), q);
    let w_low = w_low + x.number(third_low);
    let DoubleWord(c, c_low) = product(z, w);
    let c_low = z.mul_add(w_low, z_low.mul_add(w, c_low));
    let DoubleWord(t, t_low) = product(s, c);
    let t_low = s.mul_add(c_low, s_low.mul_add(c, t_low));
    let [high, low] = R::Format::LN_2;
    let DoubleWord(e, e_low) = product(n, x.number(high));
    let e_low = n.mul_add(x.number(low), e_low);
    // The sum of e, 2 s and t, largest first.
    let DoubleWord(a, a_low) = sum(s + s, t);
    let is_near = n.equals(x.number(0.0));
    let DoubleWord(b, b_low) = sum(e, a);
    let (b, b_low) = (R::choose(is_near, a, b), R::choose(is_near, x.number(0.0), b_low));
    let rest = b_low + (a_low + (e_low + (t_low + (s_low + s_low))));
    sum(b, rest)
}

/// Returns `x` to the power `y`.
#[inline(always)]
pub fn pow<R: Real>(x: R, y: R) -> R {
    let (zero, one, infinity) = (x.number(0.0), x.number(1.0), x.number(f64::INFINITY));
    let size = x.magnitude();
    // The logarithm of a finite number other than 0.
    let DoubleWord(log_high, log_low) = log(size);
    let DoubleWord(p, p_low) = product(y, log_high);
    let p_low = y.mul_add(log_low, p_low);
    // An infinite product has no error term.
    let [low, high] = R::Format::EXP_RANGE;
    let in_range = x.number(low).less(p).and(p.less(x.number(high)));
    let power = exp_of_sum(p, R::choose(in_range, p_low, zero)).value();
    // 0 and infinity to a power other than 0.
    let vanishes = size.equals(zero).xor(y.less(zero));
    let at_ends = R::choose(vanishes, zero, infinity);
    let power = R::choose(size.equals(zero).or(size.equals(infinity)), at_ends, power);
    // Infinite powers of other numbers.
    let grows = one.less(size).xor(y.less(zero));
    let at_ends = R::choose(grows, infinity, zero);
    let power = R::choose(y.magnitude().equals(infinity), R::choose(size.equals(one), one, at_ends), power);
    // A negative number has integer powers only, and odd ones are negative. Large floats are even.
    let is_integer = y.floor().equals(y);
    let half = y * x.number(0.5);
    let is_odd = is_integer.and(half.floor().equals(half).not());
    let is_negative = one.copysign(x).less(zero);
    let is_defined = is_integer.or(x.less(zero).not()).or(size.equals(infinity));
    let power = R::choose(is_defined, power, x.number(f64::NAN));
    let power = power.negated_if(is_negative.and(is_odd));
    let power = R::choose(x.is_nan().or(y.is_nan()), x + y, power);
    R::choose(x.equals(one).or(y.equals(zero)), one, power)
}
