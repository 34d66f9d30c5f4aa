//! Binary elementwise arithmetic and functions.
//!
//! The operands have equal types. The methods of [`AnyValue`] broadcast them to a common shape
//! first, by NumPy's rule. Integer arithmetic wraps. Integer division by zero fails the step, and
//! the error names the element.

use super::infer::{Class, common, shapes_differ};
use super::number::Number;
use super::scalar_functions::{ScalarSemantics, functions};
use super::*;
use crate::ir::Attrs;
use crate::{Element, Float, HostTensor, Numeric, Operand, Shape, Tensor};

family!(ADD, SUB, MUL, DIV, REM, NEG, POW, MAXIMUM, MINIMUM, ATAN2);

functions! { ($) binary_functions:
    ADD Numeric |x, y| x.add(y);
    SUB Numeric |x, y| x.sub(y);
    MUL Numeric |x, y| x.mul(y);
    DIV Quotient |x, y| x.div(y);
    REM Quotient |x, y| x.rem(y);
    NEG Numeric |x| x.neg();
    POW Float |x, y| scalars::pow(x, y);
    MAXIMUM Numeric |x, y| x.larger(y);
    MINIMUM Numeric |x, y| x.smaller(y);
    ATAN2 Float |y, x| scalars::atan2(y, x);
}

/// Applies a function to pairs of elements.
fn zip<T: Element + Copy>(cx: &EvalCx<'_>, a: &[T], f: fn(T, T) -> T) -> HostTensor {
    cx.result(elements::zip(a, cx.operands[1].data(), f))
}

/// Applies a division, which fails for an integer divisor of zero.
fn divide<T: Number>(cx: &EvalCx<'_>, a: &[T], f: fn(T, T) -> T) -> Result<HostTensor, OpError> {
    let b = cx.operands[1].data::<T>();
    if let Some(i) = b.iter().position(|b| !b.is_divisor()) {
        let at = index_of(cx.operands[0].shape(), i);
        let place = if at.is_empty() { String::new() } else { format!(" at {at:?}") };
        return Err(OpError::new(format!("division of {} by zero{place}", a[i]))
            .help("replace zero divisors, for example with `(d == 0).select(1, d)`"));
    }
    Ok(zip(cx, a, f))
}

/// Returns the index of the element at an offset.
pub(super) fn index_of(shape: &[usize], mut offset: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &n) in index.iter_mut().zip(shape).rev() {
        *i = offset % n;
        offset /= n;
    }
    index
}

/// Returns the definition of an exact and pure operation on numbers.
const fn row(name: &'static str, semantics: &ScalarSemantics, grad: Grad) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(2),
        attrs: &[],
        infer: |cx| Ok(common(cx, Class::Numeric)?.into()),
        eval: semantics.eval,
        grad,
        exactness: Exactness::Exact,
        class: semantics.class(),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

/// `a + b`
static ADD: OpDef = OpDef {
    laws: Laws { commutative: true, identity: Some(laws::is_additive_identity), ..Laws::NONE },
    ..row("add", &semantics::ADD, Grad::Rule(|n| vec![Some(n.dy()), Some(n.dy())]))
};

/// `a - b`
static SUB: OpDef = OpDef {
    laws: Laws { identity: Some(laws::subtracts_nothing), ..Laws::NONE },
    ..row("sub", &semantics::SUB, Grad::Rule(|n| vec![Some(n.dy()), n.needs(1).then(|| -n.dy())]))
};

/// `a * b`
static MUL: OpDef = OpDef {
    laws: Laws { commutative: true, identity: Some(laws::is_one), absorbing: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row(
        "mul",
        &semantics::MUL,
        Grad::Rule(|n| vec![n.needs(0).then(|| n.dy() * n.x(1)), n.needs(1).then(|| n.dy() * n.x(0))]),
    )
};

/// `a / b`. Integer quotients are rounded towards zero.
static DIV: OpDef = OpDef {
    laws: Laws { identity: Some(laws::is_one), ..Laws::NONE },
    exactness: Exactness::Ulps(1),
    effects: Effects::Fallible,
    ..row(
        "div",
        &semantics::DIV,
        Grad::Rule(|n| {
            let d = n.dy() / n.x(1);
            vec![Some(d), n.needs(1).then(|| -(d * n.y()))]
        }),
    )
};

/// `a % b`, with the sign of `a`.
static REM: OpDef = OpDef {
    effects: Effects::Fallible,
    ..row(
        "rem",
        &semantics::REM,
        Grad::Rule(|n| {
            // x % d = x - q d with the quotient q rounded towards zero, which is constant almost
            // everywhere.
            let quotient = || ((n.x(0) - n.y()) / n.x(1)).round();
            vec![Some(n.dy()), n.needs(1).then(|| -(n.dy() * quotient()))]
        }),
    )
};

/// `-a`
static NEG: OpDef = OpDef {
    laws: Laws { involution: true, ..Laws::NONE },
    arity: Arity::Exactly(1),
    ..row("neg", &semantics::NEG, Grad::Rule(|n| vec![Some(-n.dy())]))
};

/// `a` to the power `b`.
static POW: OpDef = OpDef {
    infer: |cx| Ok(common(cx, Class::Float)?.into()),
    exactness: Exactness::Ulps(16),
    ..row(
        "pow",
        &semantics::POW,
        Grad::Rule(|n| {
            let base = || {
                // If the exponent is 0, the result is constant, even at 0, where x^-1 is infinite.
                let p = n.x(1);
                let less = p.eq(p.number(0.0)).select(p.number(1.0), p - 1.0);
                n.dy() * (p * n.x(0).pow(less))
            };
            let exponent = || {
                let x = n.x(0);
                let not_zero = x.eq(x.number(0.0)).select(x.number(1.0), x);
                n.dy() * (n.y() * not_zero.log())
            };
            vec![n.needs(0).then(base), n.needs(1).then(exponent)]
        }),
    )
};

/// The larger element, or `NaN` if one is. The sign of the larger of two zeros depends on their
/// order.
static MAXIMUM: OpDef = OpDef {
    laws: Laws { idempotent: true, ..Laws::NONE },
    ..row("maximum", &semantics::MAXIMUM, Grad::Rule(|n| split(n, n.x(0), n.x(1))))
};

/// The smaller element, or `NaN` if one is. The sign of the smaller of two zeros depends on their
/// order.
static MINIMUM: OpDef = OpDef {
    laws: Laws { idempotent: true, ..Laws::NONE },
    ..row("minimum", &semantics::MINIMUM, Grad::Rule(|n| split(n, n.x(1), n.x(0))))
};

/// Returns the cotangents of two operands: that of the result for the selected operand, or half of
/// that cotangent for each if the operands are equal.
fn split<'g>(n: &GradNode<'g>, high: GradValue<'g>, low: GradValue<'g>) -> Vec<Option<GradValue<'g>>> {
    // Selected and not multiplied, since a cotangent may be infinite.
    let (dy, zero) = (n.dy(), n.dy().number(0.0));
    let (is_first, are_equal, half) = (high.gt(low), high.eq(low), dy * 0.5);
    let [first, second] = [[dy, zero], [zero, dy]]
        .map(|[of_first, of_second]| is_first.select(of_first, are_equal.select(half, of_second)));
    vec![Some(first), Some(second)]
}

/// The angle of the point with y-coordinate `a` and x-coordinate `b`.
static ATAN2: OpDef = OpDef {
    infer: |cx| Ok(common(cx, Class::Float)?.into()),
    exactness: Exactness::Ulps(8),
    ..row(
        "atan2",
        &semantics::ATAN2,
        Grad::Rule(|n| {
            let (y, x) = (n.x(0), n.x(1));
            let d = n.dy() / (y.square() + x.square());
            vec![Some(d * x), Some(-(d * y))]
        }),
    )
};

/// Returns two operands broadcast to their common shape. The error names `op`.
#[track_caller]
pub(super) fn broadcast_pair<C: ValueCx>(
    op: &'static str,
    a: AnyValue<C>,
    b: AnyValue<C>,
) -> (AnyValue<C>, AnyValue<C>) {
    let (ta, tb) = (a.tensor_type(), b.tensor_type());
    if ta.shape == tb.shape {
        return (a, b);
    }
    let Some(shape) = ta.shape.broadcast(&tb.shape) else { refuse::<C>(op, shapes_differ(&ta, &tb)) };
    (stretch(op, a, &ta.shape, &shape, b), stretch(op, b, &tb.shape, &shape, a))
}

/// Broadcasts `x`, an operand of `op`, to `shape`, the common shape of it and `other`.
#[track_caller]
pub(super) fn stretch<C: ValueCx>(
    op: &'static str,
    x: AnyValue<C>,
    from: &Shape,
    shape: &Shape,
    other: AnyValue<C>,
) -> AnyValue<C> {
    if from.rank() == shape.rank() && from.dims().iter().zip(shape.dims()).all(|(a, b)| stays(a, b)) {
        return x;
    }
    let loc = Loc::caller();
    let stretched = || if shape.is_definite() { x.broadcast_to(shape) } else { x.broadcast_like(other) };
    x.context().written_as(op, || x.context().called_at(loc, stretched))
}

/// Returns whether an extent `a` is assumed to equal the extent `b` of the common shape.
///
/// An unknown extent may turn out to be 1, so it is broadcast to a known extent. Two unknown
/// extents are assumed to be equal, because most are, and a check would add two operations for each
/// operation on tensors of such shapes.
fn stays(a: &crate::Dim, b: &crate::Dim) -> bool {
    a == b || (a.known() != Some(1) && (a.known().is_some() || b.known().is_none()))
}

macro_rules! any_methods {
    ($($(#[$lint:meta])* $name:ident $op:ident;)*) => {
        impl<C: ValueCx> AnyValue<C> {
            $(
                #[doc = concat!("The operation `", stringify!($name), "` on both operands, broadcast to their common shape.")]
                #[track_caller]
                $(#[$lint])*
                pub fn $name(self, other: AnyValue<C>) -> AnyValue<C> {
                    let (a, b) = broadcast_pair(stringify!($name), self, other);
                    emit(prim::$op, &[a, b], Attrs::none())
                }
            )*
        }
    };
}
any_methods! {
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    add ADD;
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    sub SUB;
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    mul MUL;
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    div DIV;
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    rem REM;
    pow POW;
    maximum MAXIMUM;
    minimum MINIMUM;
    atan2 ATAN2;
}

impl<C: ValueCx> AnyValue<C> {
    /// Negates the elements.
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "the trait is implemented with it")]
    pub fn neg(self) -> AnyValue<C> {
        emit(prim::NEG, &[self], Attrs::none())
    }

    /// Returns a scalar constant of the element type of this tensor.
    #[track_caller]
    pub fn number(self, x: f64) -> AnyValue<C> {
        self.context().constant(super::cast::scalar_of(self.dtype(), x))
    }
}

macro_rules! operators {
    ($($op:ident $method:ident;)*) => {$(
        impl<C: ValueCx> std::ops::$op for AnyValue<C> {
            type Output = AnyValue<C>;
            #[track_caller]
            fn $method(self, other: AnyValue<C>) -> AnyValue<C> {
                AnyValue::$method(self, other)
            }
        }
        impl<C: ValueCx> std::ops::$op<f64> for AnyValue<C> {
            type Output = AnyValue<C>;
            #[track_caller]
            fn $method(self, other: f64) -> AnyValue<C> {
                AnyValue::$method(self, self.number(other))
            }
        }
        impl<C: ValueCx> std::ops::$op<AnyValue<C>> for f64 {
            type Output = AnyValue<C>;
            #[track_caller]
            fn $method(self, other: AnyValue<C>) -> AnyValue<C> {
                AnyValue::$method(other.number(self), other)
            }
        }
    )*};
}
operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}
impl<C: ValueCx> std::ops::Neg for AnyValue<C> {
    type Output = AnyValue<C>;
    #[track_caller]
    fn neg(self) -> AnyValue<C> {
        AnyValue::neg(self)
    }
}

impl<T: Numeric> Tensor<T> {
    /// Returns the larger of both elements, or `NaN` if one of them is.
    ///
    /// The cotangent goes to the larger element, half to each if they are equal.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0, 5.0]).maximum(3.0))?.as_slice(), [3.0f32, 5.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn maximum(self, other: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().maximum(other.into_tensor().untyped()))
    }

    /// Returns the smaller of both elements, or `NaN` if one of them is.
    ///
    /// The cotangent goes to the smaller element, half to each if they are equal.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0, 5.0]).minimum(3.0))?.as_slice(), [1.0f32, 3.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn minimum(self, other: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().minimum(other.into_tensor().untyped()))
    }

    /// Limits the elements to `min` and `max`: `minimum(maximum(x, min), max)`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([-3, 4, 9]).clamp(0, 5))?.as_slice(), [0, 4, 5]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn clamp(self, min: impl Operand<T>, max: impl Operand<T>) -> Tensor<T> {
        self.maximum(min).minimum(max)
    }

    /// Raises the elements to an integer power, by repeated squaring. `x^0` is 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([2, -3]).powi(5))?.as_slice(), [32, -243]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn powi(self, exponent: u32) -> Tensor<T> {
        let x = self.untyped();
        let (mut square, mut left, mut product) = (x, exponent, None::<AnyValue>);
        while left > 0 {
            if left % 2 == 1 {
                product = Some(match product {
                    Some(p) => p.mul(square),
                    None => square,
                });
            }
            left /= 2;
            if left > 0 {
                square = square.mul(square);
            }
        }
        Tensor::from_any(match product {
            Some(p) => p,
            None => x.number(1.0).broadcast_like(x),
        })
    }
}

impl<T: Float> Tensor<T> {
    /// Computes `x^y`: `NaN` for a negative `x` unless `y` is an integer.
    ///
    /// The gradients are `y * x^(y - 1)` and `x^y * log(x)`. The latter is 0 at `x = 0` and `NaN`
    /// for a negative `x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([4.0f32, 9.0]).pow(0.5))?.as_slice(), [2.0, 3.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn pow(self, exponent: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().pow(exponent.into_tensor().untyped()))
    }

    /// Returns the angle in `(-pi, pi]` of the point with y-coordinate `self` and x-coordinate `x`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar(1.0f32).atan2(0.0))?, std::f32::consts::FRAC_PI_2);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn atan2(self, x: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().atan2(x.into_tensor().untyped()))
    }
}
