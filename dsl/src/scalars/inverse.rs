//! Inverse trigonometric functions.

use super::{Format, Mask, Real};

/// `tan(pi/8)` and `tan(3 pi/8)`.
const TANGENTS: [f64; 2] = [std::f64::consts::SQRT_2 - 1.0, std::f64::consts::SQRT_2 + 1.0];

/// The arcsine by its polynomial.
struct Arcsine<R: Real> {
    /// Whether the argument exceeds 1/2, so that `sine` is that of half the complement.
    is_large: R::Mask,
    /// A number of at most 1/2.
    sine: R,
    /// The arcsine of `sine`, less `sine`.
    rest: R,
}

impl<R: Real> Arcsine<R> {
    /// Expands the arcsine of a number that is not negative.
    #[inline(always)]
    fn of(size: R) -> Arcsine<R> {
        let half = size.number(0.5);
        let is_large = half.less(size);
        // pi/2 - asin(x) = 2 asin(sqrt((1 - x) / 2))
        let z = R::choose(is_large, (size.number(1.0) - size) * half, size * size);
        let sine = R::choose(is_large, z.sqrt(), size);
        Arcsine { is_large, sine, rest: sine * z * z.polynomial(R::Format::ASIN) }
    }
}

/// Returns the arcsine.
#[inline(always)]
pub fn asin<R: Real>(x: R) -> R {
    let Arcsine { is_large, sine, rest } = Arcsine::of(x.magnitude());
    let [right, right_low, _] = R::Format::FRAC_PI_2;
    let complement = x.number(right) - ((sine + sine) - (x.number(right_low) - (rest + rest)));
    R::choose(is_large, complement, sine + rest).copysign(x)
}

/// Returns the arccosine.
#[inline(always)]
pub fn acos<R: Real>(x: R) -> R {
    let Arcsine { is_large, sine, rest } = Arcsine::of(x.magnitude());
    let [right, right_low, _] = R::Format::FRAC_PI_2;
    let (right, right_low) = (x.number(right), x.number(right_low));
    let is_negative = x.less(x.number(0.0));
    let (sine, rest) = (sine.copysign(x), rest.copysign(x));
    let small = right - (sine - (right_low - rest));
    let double = (sine + sine) + (rest + rest);
    let obtuse = (right + right) + (double + (right_low + right_low));
    R::choose(is_large, R::choose(is_negative, obtuse, double), small)
}

/// Returns `base + atan(numerator / denominator)` for a quotient of at most `tan(pi/8)`. The base
/// has two terms.
#[inline(always)]
fn atan_of_quotient<R: Real>(base: [R; 2], numerator: R, denominator: R) -> R {
    let t = numerator / denominator;
    let z = t * t;
    base[0] + (t + (t * z).mul_add(z.polynomial(R::Format::ATAN), base[1]))
}

/// Returns the multiple of pi/8 in two terms.
fn eighths<R: Real>(x: R, n: f64) -> [R; 2] {
    let [high, low, _] = R::Format::FRAC_PI_2;
    [x.number(high * n / 4.0), x.number(low * n / 4.0)]
}

/// Returns the arctangent.
#[inline(always)]
pub fn atan<R: Real>(x: R) -> R {
    let (size, one) = (x.magnitude(), x.number(1.0));
    let [low, high] = TANGENTS.map(|t| x.number(t).less(size));
    // atan(x) = pi/2 - atan(1 / x) = pi/4 + atan((x - 1) / (x + 1))
    let numerator = R::choose(high, -one, R::choose(low, size - one, size));
    let denominator = R::choose(high, size, R::choose(low, size + one, one));
    let [none, quarter, right] = [0.0, 2.0, 4.0].map(|n| eighths(x, n));
    let base = [0, 1].map(|i| R::choose(high, right[i], R::choose(low, quarter[i], none[i])));
    atan_of_quotient(base, numerator, denominator).copysign(x)
}

/// Returns the angle of the point `(x, y)`.
#[inline(always)]
pub fn atan2<R: Real>(y: R, x: R) -> R {
    let (width, height) = (x.magnitude(), y.magnitude());
    // Halves, so that their sum is finite.
    let half = x.number(0.5);
    let is_large = x.number(R::Format::MAX / 4.0);
    let (long, short) = (width.larger(height), height.smaller(width));
    let shrinks = is_large.less(long);
    let (long, short) = (R::choose(shrinks, long * half, long), R::choose(shrinks, short * half, short));
    // The angle to the nearer axis: up to pi/4.
    let is_steep = (long * x.number(TANGENTS[0])).less(short);
    let numerator = R::choose(is_steep, short - long, short);
    let denominator = R::choose(is_steep, short + long, long);
    let [none, quarter] = [0.0, 2.0].map(|n| eighths(x, n));
    let base = [0, 1].map(|i| R::choose(is_steep, quarter[i], none[i]));
    let angle = atan_of_quotient(base, numerator, denominator);
    // At the origin, and between two infinite coordinates.
    let angle = R::choose(long.equals(x.number(0.0)), x.number(0.0), angle);
    let angle = R::choose(short.equals(x.number(f64::INFINITY)), quarter[0], angle);
    let from = |[high, low]: [R; 2], angle: R| high - (angle - low);
    let angle = R::choose(width.less(height), from(eighths(x, 4.0), angle), angle);
    let is_left = x.number(1.0).copysign(x).less(x.number(0.0));
    let angle = R::choose(is_left, from(eighths(x, 8.0), angle), angle);
    // NaN from either coordinate.
    R::choose(x.is_nan().or(y.is_nan()), x + y, angle.copysign(y))
}
