//! Comparisons, logic, and selection between two tensors.
//!
//! Comparisons with `NaN` are false, except for `ne`. The methods of [`Tensor`] have long names
//! (`less`, `equal`), since the standard traits have the short names. Inside `#[graph]` the
//! operators work as well.

use super::elementwise_binary::{broadcast_pair, stretch};
use super::infer::{Class, common, shapes_differ};
use super::number::match_types;
use super::scalar_functions::{ScalarSemantics, functions};
use super::*;
use crate::ir::Attrs;
use crate::scalars::ScalarExpr;
use crate::{Bytes, DType, Element, Float, HostTensor, Operand, Orderable, Tensor, match_buffer};

family!(EQ, NE, LT, LE, GT, GE, AND, OR, XOR, NOT, IS_NAN, IS_FINITE, SELECT);

functions! { ($) comparison_functions:
    EQ Equality |x, y| x.equals(y);
    NE Equality |x, y| x.equals(y).not();
    LT Comparison |x, y| x.less(y);
    LE Comparison |x, y| x.at_most(y);
    GT Comparison |x, y| y.less(x);
    GE Comparison |x, y| y.at_most(x);
    AND Logic |x, y| x.and(y);
    OR Logic |x, y| x.or(y);
    XOR Logic |x, y| x.xor(y);
    NOT Logic |x| x.not();
    IS_NAN FloatTest |x| x.is_nan();
    IS_FINITE FloatTest |x| x.is_finite();
}

fn zip<T: Element + Copy>(cx: &EvalCx<'_>, a: &[T], f: fn(T, T) -> bool) -> HostTensor {
    cx.result(elements::zip(a, cx.operands[1].data(), f))
}

/// A string with the comparisons of the scalar language.
#[derive(Clone, Copy)]
struct ComparedString<'a>(&'a [u8]);

impl ComparedString<'_> {
    fn equals(self, other: Self) -> bool {
        self.0 == other.0
    }
    fn less(self, other: Self) -> bool {
        self.0 < other.0
    }
    fn at_most(self, other: Self) -> bool {
        self.0 <= other.0
    }
}

fn zip_strings<'a>(
    cx: &EvalCx<'a>,
    a: &'a [Bytes],
    f: fn(ComparedString<'a>, ComparedString<'a>) -> bool,
) -> HostTensor {
    let b = cx.operands[1].data::<Bytes>();
    cx.result(a.iter().zip(b).map(|(a, b)| f(ComparedString(a), ComparedString(b))).collect())
}

/// Returns the definition of an operation on two tensors of a class that results in `bool`.
const fn row(name: &'static str, infer: Infer, semantics: &ScalarSemantics) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(2),
        attrs: &[],
        infer,
        eval: semantics.eval,
        grad: Grad::Zero("its result is a boolean"),
        exactness: Exactness::Exact,
        class: semantics.class(),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

fn of_any(cx: &InferCx<'_>) -> Result<Type, OpError> {
    Ok(Type::tensor(DType::Bool, common(cx, Class::Every)?.shape))
}
fn of_ordered(cx: &InferCx<'_>) -> Result<Type, OpError> {
    Ok(Type::tensor(DType::Bool, common(cx, Class::Ordered)?.shape))
}
fn of_floats(cx: &InferCx<'_>) -> Result<Type, OpError> {
    Ok(Type::tensor(DType::Bool, common(cx, Class::Float)?.shape))
}
fn of_bools(cx: &InferCx<'_>) -> Result<Type, OpError> {
    Ok(common(cx, Class::Bool)?.into())
}

/// `a == b`
static EQ: OpDef = OpDef { laws: Laws { commutative: true, ..Laws::NONE }, ..row("eq", of_any, &semantics::EQ) };
/// `a != b`, which is true for `NaN`.
static NE: OpDef = OpDef { laws: Laws { commutative: true, ..Laws::NONE }, ..row("ne", of_any, &semantics::NE) };
/// `a < b`
static LT: OpDef = row("lt", of_ordered, &semantics::LT);
/// `a <= b`
static LE: OpDef = row("le", of_ordered, &semantics::LE);
/// `a > b`
static GT: OpDef = row("gt", of_ordered, &semantics::GT);
/// `a >= b`
static GE: OpDef = row("ge", of_ordered, &semantics::GE);
/// `a & b`
static AND: OpDef = OpDef {
    laws: Laws {
        commutative: true,
        idempotent: true,
        identity: Some(laws::is_true),
        absorbing: Some(laws::is_false),
        ..Laws::NONE
    },
    ..row("and", of_bools, &semantics::AND)
};
/// `a | b`
static OR: OpDef = OpDef {
    laws: Laws {
        commutative: true,
        idempotent: true,
        identity: Some(laws::is_false),
        absorbing: Some(laws::is_true),
        ..Laws::NONE
    },
    ..row("or", of_bools, &semantics::OR)
};
/// `a ^ b`
static XOR: OpDef = OpDef {
    laws: Laws { commutative: true, identity: Some(laws::is_false), ..Laws::NONE },
    ..row("xor", of_bools, &semantics::XOR)
};
/// `!a`
static NOT: OpDef = OpDef {
    laws: Laws { involution: true, ..Laws::NONE },
    arity: Arity::Exactly(1),
    ..row("not", of_bools, &semantics::NOT)
};
/// Whether an element is `NaN`.
static IS_NAN: OpDef = OpDef { arity: Arity::Exactly(1), ..row("is_nan", of_floats, &semantics::IS_NAN) };
/// Whether an element is neither infinite nor `NaN`.
static IS_FINITE: OpDef = OpDef { arity: Arity::Exactly(1), ..row("is_finite", of_floats, &semantics::IS_FINITE) };

/// The second operand where the first is true, the third elsewhere.
static SELECT: OpDef = OpDef {
    name: "select",
    arity: Arity::Exactly(3),
    attrs: &[],
    infer: |cx| {
        let cond = cx.tensor(0)?;
        Class::Bool.check(cond)?;
        let values = common(&InferCx { operands: &cx.operands[1..], attrs: cx.attrs }, Class::Every)?;
        if !cond.shape.compatible(&values.shape) {
            return Err(shapes_differ(cond, &values));
        }
        Ok(Type::tensor(values.dtype, values.shape.meet(&cond.shape)))
    },
    eval: |cx| {
        fn choose<T: Element>(cx: &EvalCx<'_>, a: &[T]) -> HostTensor {
            let (cond, b) = (cx.operands[0].data::<bool>(), cx.operands[2].data::<T>());
            cx.result(cond.iter().zip(a.iter().zip(b)).map(|(&c, (a, b))| if c { a } else { b }.clone()).collect())
        }
        Ok(match_buffer!(cx.operands[1].buffer(), a => choose(cx, a)))
    },
    grad: Grad::Rule(|n| {
        let zero = n.dy().number(0.0);
        let first = || n.x(0).select(n.dy(), zero);
        let second = || n.x(0).select(zero, n.dy());
        vec![None, n.needs(1).then(first), n.needs(2).then(second)]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Scalar(ScalarForm::Function(|dtype| dtype.is_plain().then(|| ScalarExpr::select(dtype)))),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

macro_rules! any_methods {
    ($($name:ident $op:ident;)*) => {
        impl<C: ValueCx> AnyValue<C> {
            $(
                #[doc = concat!("The operation `", stringify!($name), "` on both operands, broadcast to their common shape.")]
                #[track_caller]
                pub fn $name(self, other: AnyValue<C>) -> AnyValue<C> {
                    let (a, b) = broadcast_pair(stringify!($name), self, other);
                    emit(prim::$op, &[a, b], Attrs::none())
                }
            )*
        }
    };
}
any_methods! {
    eq EQ;
    ne NE;
    lt LT;
    le LE;
    gt GT;
    ge GE;
    and AND;
    or OR;
    xor XOR;
}

impl<C: ValueCx> AnyValue<C> {
    /// Negates the truth values.
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "a graph operation, not the operator of the host")]
    pub fn not(self) -> AnyValue<C> {
        emit(prim::NOT, &[self], Attrs::none())
    }

    /// See [`Tensor::is_nan`].
    #[track_caller]
    pub fn is_nan(self) -> AnyValue<C> {
        emit(prim::IS_NAN, &[self], Attrs::none())
    }

    /// See [`Tensor::is_finite`].
    #[track_caller]
    pub fn is_finite(self) -> AnyValue<C> {
        emit(prim::IS_FINITE, &[self], Attrs::none())
    }

    /// Selects `a` where this is true and `b` elsewhere, all three broadcast to their common shape.
    #[track_caller]
    pub fn select(self, a: AnyValue<C>, b: AnyValue<C>) -> AnyValue<C> {
        let (a, b) = broadcast_pair("select", a, b);
        let (tc, ta) = (self.tensor_type(), a.tensor_type());
        let Some(shape) = tc.shape.broadcast(&ta.shape) else { refuse::<C>("select", shapes_differ(&tc, &ta)) };
        let b = stretch("select", b, &b.shape(), &shape, self);
        let cond = stretch("select", self, &tc.shape, &shape, a);
        let a = stretch("select", a, &ta.shape, &shape, self);
        emit(prim::SELECT, &[cond, a, b], Attrs::none())
    }
}

macro_rules! comparisons {
    ($($bound:ident: $(#[$doc:meta])* $name:ident $any:ident;)*) => {$(
        impl<T: $bound> Tensor<T> {
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(self, other: impl Operand<T>) -> Tensor<bool> {
                Tensor::from_any(self.untyped().$any(other.into_tensor().untyped()))
            }
        }
    )*};
}
comparisons! {
    Element:
    /// Returns whether elements are equal; in `#[graph]`, `a == b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2]).equal(2))?.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    equal eq;
    Element:
    /// Returns whether elements differ, which is true for `NaN`; in `#[graph]`, `a != b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, f32::NAN]).not_equal(1.0))?.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    not_equal ne;
    Orderable:
    /// Returns whether elements are less; in `#[graph]`, `a < b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2]).less(2))?.as_slice(), [true, false]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    less lt;
    Orderable:
    /// Returns whether elements are less or equal; in `#[graph]`, `a <= b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([2, 3]).less_equal(2))?.as_slice(), [true, false]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    less_equal le;
    Orderable:
    /// Returns whether elements are greater; in `#[graph]`, `a > b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([2, 3]).greater(2))?.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    greater gt;
    Orderable:
    /// Returns whether elements are greater or equal; in `#[graph]`, `a >= b`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2]).greater_equal(2))?.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    greater_equal ge;
}

impl<T: Float> Tensor<T> {
    /// Returns whether elements are `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0f32, f32::NAN]).is_nan())?.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn is_nan(self) -> Tensor<bool> {
        Tensor::from_any(self.untyped().is_nan())
    }

    /// Returns whether elements are neither infinite nor `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.0f32, f32::INFINITY]).is_finite())?.as_slice(), [true, false]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn is_finite(self) -> Tensor<bool> {
        Tensor::from_any(self.untyped().is_finite())
    }
}

impl Tensor<bool> {
    /// Selects `a` where this is true and `b` elsewhere. All three are broadcast to their common
    /// shape.
    ///
    /// Both sides are computed. An `if` in `#[graph]` on a scalar condition runs only one.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([true, false]).select(tensor([1, 2]), -1))?;
    /// assert_eq!(y.as_slice(), [1, -1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn select<T: Element>(self, a: impl Operand<T>, b: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().select(a.into_tensor().untyped(), b.into_tensor().untyped()))
    }
}
