//! Elementwise functions of one operand, one row each.
//!
//! Every row defines the operation, the method of [`AnyValue`] and the method of [`Tensor`].
//! Gradients use the result rather than the operand if either will do.

use super::infer::{Class, like_operand};
use super::scalar_functions::functions;
use super::*;
use crate::{Float, Numeric, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

macro_rules! rows {
    (($d:tt) $($(#[$doc:meta])* $name:ident $op:ident $bound:ident $exactness:expr, |$x:ident| $e:expr $(=> $far:ident)?, $grad:expr $(, $laws:expr)?;)*) => {
        family!($($op),*);
        functions! { ($d) unary_functions: $($op $bound |$x| $e $(=> $far)?;)* }
        $(
            static $op: OpDef = OpDef {
                name: stringify!($name),
                arity: Arity::Exactly(1),
                attrs: &[],
                infer: |cx| like_operand(cx, Class::$bound),
                eval: semantics::$op.eval,
                grad: $grad,
                exactness: $exactness,
                class: semantics::$op.class(),
                halves: Halves::Widened,
                effects: Effects::Pure,
                laws: rows!(laws $($laws)?),
            };
        )*
        impl<C: ValueCx> AnyValue<C> {
            $(
                #[doc = concat!("See [`Tensor::", stringify!($name), "`].")]
                #[track_caller]
                pub fn $name(self) -> AnyValue<C> {
                    emit(prim::$op, &[self], Attrs::none())
                }
            )*
        }
        $(
            impl<T: $bound> Tensor<T> {
                $(#[$doc])*
                #[track_caller]
                #[must_use]
                pub fn $name(self) -> Tensor<T> {
                    Tensor::from_any(self.untyped().$name())
                }
            }
        )*
    };
    (laws) => {
        Laws::NONE
    };
    (laws $laws:expr) => {
        $laws
    };
}

/// The law that an operation changes nothing the second time.
const IDEMPOTENT: Laws = Laws { idempotent: true, ..Laws::NONE };

/// A gradient rule for one operand.
macro_rules! d {
    (|$n:ident| $e:expr) => {
        Grad::Rule(|$n| vec![Some($e)])
    };
}

rows! {
    ($)
    /// Computes the absolute value. The derivative at 0 is 0. The absolute value of the smallest
    /// signed integer is that integer.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([-1.5, 2.0]).abs())?.as_slice(), [1.5, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    abs ABS Numeric Exactness::Exact, |x| x.magnitude(), d!(|n| n.dy() * n.x(0).sign()), IDEMPOTENT;
    /// Computes the sign: -1, 0 or 1. `NaN` stays `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([-3, 0, 7]).sign())?.as_slice(), [-1, 0, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sign SIGN Numeric Exactness::Exact, |x| x.sign(), Grad::Zero("piecewise constant"), IDEMPOTENT;
    /// Computes `e^x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).exp())?, 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    exp EXP Float Exactness::Ulps(4), |x| scalars::exp(x), d!(|n| n.dy() * n.y());
    /// Computes `e^x - 1`, accurate even near 0.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1e-10).expm1())?, 1e-10f32);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    expm1 EXPM1 Float Exactness::Ulps(4), |x| scalars::expm1(x), d!(|n| n.dy() * (n.y() + 1.0));
    /// Computes the natural logarithm: `-inf` at 0, `NaN` below.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0, 0.0]).log())?.as_slice(), [0.0, f32::NEG_INFINITY]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    log LOG Float Exactness::Ulps(4), |x| scalars::log(x), d!(|n| n.dy() / n.x(0));
    /// Computes `log(1 + x)`, accurate even near 0.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1e-10).log1p())?, 1e-10f32);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    log1p LOG1P Float Exactness::Ulps(4), |x| scalars::log1p(x), d!(|n| n.dy() / (n.x(0) + 1.0));
    /// Computes the square root: `NaN` below 0. The derivative at 0 is infinite.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([4.0, 2.25]).sqrt())?.as_slice(), [2.0, 1.5]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sqrt SQRT Float Exactness::Ulps(1), |x| x.sqrt(), d!(|n| n.dy() * 0.5 / n.y());
    /// Computes `1 / sqrt(x)`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(4.0f32).rsqrt())?, 0.5);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    rsqrt RSQRT Float Exactness::Ulps(4), |x| x.number(1.0) / x.sqrt(), d!(|n| n.dy() * -0.5 * (n.y() * n.y() * n.y()));
    /// Computes `1 / x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(4.0f32).recip())?, 0.25);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    recip RECIP Float Exactness::Ulps(1), |x| x.number(1.0) / x, d!(|n| -(n.dy() * (n.y() * n.y())));
    /// Computes the sine of an angle in radians.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).sin())?, 0.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sin SIN Float Exactness::Ulps(4), |x| scalars::sin(x) => far_sin, d!(|n| n.dy() * n.x(0).cos());
    /// Computes the cosine of an angle in radians.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).cos())?, 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    cos COS Float Exactness::Ulps(4), |x| scalars::cos(x) => far_cos, d!(|n| -(n.dy() * n.x(0).sin()));
    /// Computes the tangent of an angle in radians.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).tan())?, 0.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    tan TAN Float Exactness::Ulps(8), |x| scalars::tan(x) => far_tan, d!(|n| n.dy() * (n.y() * n.y() + 1.0));
    /// Computes the arcsine, in `[-pi/2, pi/2]`. The result is `NaN` outside `[-1, 1]`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1.0f32).asin())?, std::f32::consts::FRAC_PI_2);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    asin ASIN Float Exactness::Ulps(8), |x| scalars::asin(x), d!(|n| n.dy() * (1.0 - n.x(0).square()).rsqrt());
    /// Computes the arccosine, in `[0, pi]`. The result is `NaN` outside `[-1, 1]`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1.0f32).acos())?, 0.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    acos ACOS Float Exactness::Ulps(8), |x| scalars::acos(x), d!(|n| -(n.dy() * (1.0 - n.x(0).square()).rsqrt()));
    /// Computes the arctangent, in `(-pi/2, pi/2)`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1.0f32).atan())?, std::f32::consts::FRAC_PI_4);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    atan ATAN Float Exactness::Ulps(8), |x| scalars::atan(x), d!(|n| n.dy() / (n.x(0).square() + 1.0));
    /// Computes the hyperbolic sine.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).sinh())?, 0.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sinh SINH Float Exactness::Ulps(8), |x| scalars::sinh(x), d!(|n| n.dy() * n.x(0).cosh());
    /// Computes the hyperbolic cosine.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(0.0f32).cosh())?, 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    cosh COSH Float Exactness::Ulps(8), |x| scalars::cosh(x), d!(|n| n.dy() * n.x(0).sinh());
    /// Computes the hyperbolic tangent.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0, 100.0]).tanh())?.as_slice(), [0.0, 1.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    tanh TANH Float Exactness::Ulps(8), |x| scalars::tanh(x), d!(|n| n.dy() * (1.0 - n.y() * n.y()));
    /// Computes the logistic function `1 / (1 + e^-x)`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0, -1000.0]).sigmoid())?.as_slice(), [0.5, 0.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sigmoid SIGMOID Float Exactness::Ulps(8), |x| scalars::sigmoid(x), d!(|n| n.dy() * (n.y() * (1.0 - n.y())));
    /// Computes `max(x, 0)`. The derivative at 0 is 0. `NaN` stays `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([-1.0, 2.0]).relu())?.as_slice(), [0.0, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    relu RELU Numeric Exactness::Exact, |x| x.larger(x.number(0.0)),
        d!(|n| n.y().gt(n.y().number(0.0)).select(n.dy(), n.dy().number(0.0))), IDEMPOTENT;
    /// Computes `log(1 + e^x)`, without overflow.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1000.0, -1000.0]).softplus())?.as_slice(), [1000.0, 0.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    softplus SOFTPLUS Float Exactness::Ulps(8), |x| scalars::softplus(x), d!(|n| n.dy() * n.x(0).sigmoid());
    /// Computes the error function, `2 / sqrt(pi)` times the integral of `e^(-t^2)` from 0 to `x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0, 10.0]).erf())?.as_slice(), [0.0, 1.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    erf ERF Float Exactness::Ulps(8), |x| scalars::erf(x), d!(|n| n.dy() * ((-n.x(0).square()).exp() * FRAC_2_SQRT_PI));
    /// Computes the Gaussian error linear unit `x/2 * (1 + erf(x / sqrt(2)))` (Hendrycks and Gimpel
    /// 2016, the exact form).
    ///
    /// The result is `x` times the probability that a standard normal number is below `x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0, 20.0]).gelu())?.as_slice(), [0.0, 20.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    gelu GELU Float Exactness::Ulps(16), |x| scalars::gelu(x), d!(|n| n.dy() * gelu_slope(n.x(0)));
    /// Computes `x * sigmoid(x)`, also called swish (Elfwing et al. 2017).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0, 100.0]).silu())?.as_slice(), [0.0, 100.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    silu SILU Float Exactness::Ulps(8), |x| scalars::silu(x), d!(|n| n.dy() * silu_slope(n.x(0)));
    /// Rounds down to an integer.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.5, -1.5]).floor())?.as_slice(), [1.0, -2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    floor FLOOR Float Exactness::Exact, |x| x.floor(), Grad::Zero("piecewise constant"), IDEMPOTENT;
    /// Rounds up to an integer.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.5, -1.5]).ceil())?.as_slice(), [2.0, -1.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ceil CEIL Float Exactness::Exact, |x| x.ceil(), Grad::Zero("piecewise constant"), IDEMPOTENT;
    /// Rounds to the nearest integer, half to even.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.5, 1.5, -1.2]).round())?.as_slice(), [0.0, 2.0, -1.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    round ROUND Float Exactness::Exact, |x| x.round_ties_even(), Grad::Zero("piecewise constant"), IDEMPOTENT;
}

/// Returns the derivative of `gelu`: the standard normal distribution function at `x`, plus `x`
/// times the density.
fn gelu_slope<C: ValueCx>(x: AnyValue<C>) -> AnyValue<C> {
    let below = ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
    below + x * ((x.square() * -0.5).exp() * (1.0 / (2.0 * PI).sqrt()))
}

fn silu_slope<C: ValueCx>(x: AnyValue<C>) -> AnyValue<C> {
    let s = x.sigmoid();
    s * (1.0 + x * (1.0 - s))
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::square`].
    #[track_caller]
    pub fn square(self) -> AnyValue<C> {
        self.mul(self)
    }
}

impl<T: Numeric> Tensor<T> {
    /// Computes `x * x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([3, -4]).square())?.as_slice(), [9, 16]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn square(self) -> Tensor<T> {
        self * self
    }
}
