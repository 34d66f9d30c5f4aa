//! Sine, cosine and tangent.

use super::{Arithmetic, Bitwise, Format, Mask, Real};

/// Angles so large that the multiple of pi/2 to subtract has more digits than a float.
///
/// They are rare, so they have slow functions of their own, outside of the vectorized code.
pub trait Beyond: Real<Mask = bool> {
    /// Returns the sine of any number.
    #[must_use]
    fn far_sin(self) -> Self;
    /// Returns the cosine of any number.
    #[must_use]
    fn far_cos(self) -> Self;
    /// Returns the tangent of any number.
    #[must_use]
    fn far_tan(self) -> Self;
}

impl Beyond for f32 {
    fn far_sin(self) -> f32 {
        libm::sinf(self)
    }
    fn far_cos(self) -> f32 {
        libm::cosf(self)
    }
    fn far_tan(self) -> f32 {
        libm::tanf(self)
    }
}

impl Beyond for f64 {
    fn far_sin(self) -> f64 {
        libm::sin(self)
    }
    fn far_cos(self) -> f64 {
        libm::cos(self)
    }
    fn far_tan(self) -> f64 {
        libm::tan(self)
    }
}

/// Returns whether [`sin`], [`cos`] and [`tan`] do not hold for an angle: see [`Beyond`].
#[inline(always)]
pub fn is_far<R: Real>(x: R) -> R::Mask {
    x.number(R::Format::SIN_LIMIT).less(x.magnitude())
}

/// An angle as a multiple of pi/2 and a rest.
struct Angle<R: Real> {
    /// The multiple, modulo 4.
    quadrant: R::Int,
    /// The sine of the rest, which is between -pi/4 and pi/4.
    sin: R,
    /// The cosine of the rest.
    cos: R,
}

impl<R: Real> Angle<R> {
    #[inline(always)]
    fn of(x: R) -> Angle<R> {
        let (n, quadrant) = (x * x.number(std::f64::consts::FRAC_2_PI)).nearest();
        let [first, second, third] = R::Format::FRAC_PI_2;
        // The first difference is exact. The second one is rounded relative to its own size.
        let r = n.mul_add(x.number(-first), x);
        let r = n.mul_add(x.number(-second), r);
        let r = n.mul_add(x.number(-third), r);
        let z = r * r;
        let sin = (r * z).mul_add(z.polynomial(R::Format::SIN), r);
        let cos = z.mul_add(z.mul_add(z.polynomial(R::Format::COS), x.number(-0.5)), x.number(1.0));
        Angle { quadrant, sin, cos }
    }
}

/// Returns the sine of an angle that is not [far](is_far).
#[inline(always)]
pub fn sin<R: Real>(x: R) -> R {
    // The sine of the magnitude, so that zero keeps its sign.
    let Angle { quadrant, sin, cos } = Angle::of(x.magnitude());
    let y = R::choose(quadrant.has(1), cos, sin);
    y.negated_if(quadrant.has(2).xor(x.number(1.0).copysign(x).less(x.number(0.0))))
}

/// Returns the cosine of an angle that is not [far](is_far).
#[inline(always)]
pub fn cos<R: Real>(x: R) -> R {
    let Angle { quadrant, sin, cos } = Angle::of(x.magnitude());
    let y = R::choose(quadrant.has(1), sin, cos);
    y.negated_if(quadrant.add(quadrant.integer(1)).has(2))
}

/// Returns the tangent of an angle that is not [far](is_far).
#[inline(always)]
pub fn tan<R: Real>(x: R) -> R {
    let Angle { quadrant, sin, cos } = Angle::of(x.magnitude());
    let odd = quadrant.has(1);
    let y = R::choose(odd, -cos, sin) / R::choose(odd, sin, cos);
    y.negated_if(x.number(1.0).copysign(x).less(x.number(0.0)))
}
