//! Reductions over axes: sums, products, extrema, logic, and operations derived from them.
//!
//! A reduction over zero elements returns the neutral element: 0 for sums, 1 for products, `true`
//! for `all`, `false` for `any`. The extrema `max` and `min` have none and reject it. Elements are
//! reduced in row-major order. A reduction over no axes returns the tensor itself.

use super::infer::{Class, axes_attr, reduced};
use super::layout::{lanes, offsets, strides};
use super::number::{Number, match_numeric};
use super::*;
use crate::{DType, Dim, Element, Float, HostTensor, Numeric, Tensor, scalars};

family!(SUM, PROD, MAX, MIN, ALL, ANY, CUMSUM);

/// Combines the elements of `data` into those of `into`: the element at every index of `shape` goes
/// to its offset under `strides`.
pub(super) fn fold<T: Element + Copy>(
    shape: &[usize],
    strides: Vec<usize>,
    mut into: Vec<T>,
    data: &[T],
    f: fn(T, T) -> T,
) -> Vec<T> {
    for (o, &x) in offsets(shape, strides).zip(data) {
        into[o] = f(into[o], x);
    }
    into
}

fn reduce<T: Element + Copy>(cx: &EvalCx<'_>, data: &[T], start: T, f: fn(T, T) -> T) -> HostTensor {
    let (shape, axes) = (cx.operands[0].shape(), Reduced::of(cx.attrs).axes);
    if axes.is_empty() {
        return cx.operands[0].clone();
    }
    let mut kept = shape.to_vec();
    axes.iter().for_each(|&a| kept[a] = 1);
    let mut to = strides(&kept);
    axes.iter().for_each(|&a| to[a] = 0);
    cx.result(fold(shape, to, vec![start; kept.iter().product()], data, f))
}

fn infer(cx: &InferCx<'_>, class: Class) -> Result<Type, OpError> {
    let x = cx.tensor(0)?;
    class.check(x)?;
    let axes = axes_attr(cx, x)?;
    Ok(Type::Tensor(TensorType { dtype: x.dtype, shape: reduced(&x.shape, &axes, Reduced::of(cx.attrs).keepdim) }))
}

/// Rejects reductions over zero elements.
fn infer_not_empty(cx: &InferCx<'_>) -> Result<Type, OpError> {
    let x = cx.tensor(0)?;
    for axis in axes_attr(cx, x)? {
        if x.shape.dims()[axis] == Dim::Known(0) {
            let error = OpError::new(format!("there are no elements along axis {axis}")).label(x.to_string());
            return Err(error.help("of the reductions, only sums and products are defined for an empty axis"));
        }
    }
    infer(cx, Class::Numeric)
}

/// Builds a row of this file. Rows for numbers serve other types with another `infer`.
const fn row(name: &'static str, by: Combiner, infer: Infer, eval: Eval, grad: Grad) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(1),
        attrs: Reduced::DECLARED,
        infer,
        eval,
        grad,
        exactness: Exactness::Exact,
        class: OpClass::Reduce(by),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

/// Sums over axes.
static SUM: OpDef = OpDef {
    exactness: Exactness::Sum(1.0),
    ..row(
        "sum",
        Combiner::Sum,
        |cx| infer(cx, Class::Numeric),
        |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => reduce(cx, d, Number::ZERO, scalars::Arithmetic::add))),
        Grad::Rule(|n| vec![Some(broadcast_to_operand(n, kept(n, n.dy())))]),
    )
};

/// Products over axes.
static PROD: OpDef = OpDef {
    exactness: Exactness::Ulps(64),
    ..row(
        "prod",
        Combiner::Product,
        |cx| infer(cx, Class::Numeric),
        |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => reduce(cx, d, Number::ONE, scalars::Arithmetic::mul))),
        Grad::Rule(|n| vec![Some(prod_gradient(n))]),
    )
};

/// Maxima over axes, or `NaN`.
static MAX: OpDef = row(
    "max",
    Combiner::Max,
    infer_not_empty,
    |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => reduce(cx, d, Number::LOWEST, scalars::Arithmetic::larger))),
    Grad::Rule(|n| vec![Some(share(n))]),
);

/// Minima over axes, or `NaN`.
static MIN: OpDef = row(
    "min",
    Combiner::Min,
    infer_not_empty,
    |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => reduce(cx, d, Number::HIGHEST, scalars::Arithmetic::smaller))),
    Grad::Rule(|n| vec![Some(share(n))]),
);

/// Whether all elements along axes are true.
static ALL: OpDef = row(
    "all",
    Combiner::And,
    |cx| infer(cx, Class::Bool),
    |cx| Ok(reduce(cx, cx.operands[0].data(), true, |a, b| a & b)),
    Grad::Zero("booleans have no gradient"),
);

/// Whether any element along axes is true.
static ANY: OpDef = row(
    "any",
    Combiner::Or,
    |cx| infer(cx, Class::Bool),
    |cx| Ok(reduce(cx, cx.operands[0].data(), false, |a, b| a | b)),
    Grad::Zero("booleans have no gradient"),
);

/// Reshapes a tensor of the result's type to keep the reduced axes.
fn kept<'g>(n: &GradNode<'g>, of: GradValue<'g>) -> GradValue<'g> {
    let Reduced { axes, keepdim } = Reduced::of(n.attrs());
    if keepdim {
        return of;
    }
    let shape = reduced(&n.ty(0).shape, &axes, true);
    match shape.dims().iter().filter(|d| **d == Dim::Unknown).count() {
        0 | 1 => of.reshape(shape),
        // Only one extent is inferred from the others.
        _ => of.reshape_like(n.like(0).sum_keepdim(axes)),
    }
}

/// Broadcasts a tensor with the reduced axes kept to the shape of the operand.
fn broadcast_to_operand<'g>(n: &GradNode<'g>, kept: GradValue<'g>) -> GradValue<'g> {
    let shape = &n.ty(0).shape;
    if shape.is_definite() { kept.broadcast_to(shape) } else { kept.broadcast_like(n.like(0)) }
}

/// Implements the gradient rule of an extremum: divides the cotangent equally among the elements
/// equal to it.
fn share<'g>(n: &GradNode<'g>) -> GradValue<'g> {
    let taken = n.x(0).eq(kept(n, n.y()));
    let count = taken.cast(n.ty(0).dtype).sum_keepdim(Reduced::of(n.attrs()).axes);
    taken.select(kept(n, n.dy()) / count, n.dy().number(0.0))
}

/// Implements the gradient rule of a product: multiplies all other elements, without division, so
/// that zeros are handled.
///
/// The elements are multiplied pairwise, half with half, until one is left. The gradient descends
/// this tree.
fn prod_gradient<'g>(n: &GradNode<'g>) -> GradValue<'g> {
    let axes = Reduced::of(n.attrs()).axes;
    let mut levels: Vec<(GradValue<'g>, usize, usize)> = Vec::new();
    let mut x = n.x(0);
    for &axis in &axes {
        let mut length = x.dim(axis as isize);
        while length > 1 {
            levels.push((x, axis, length));
            let half = length / 2;
            let at = |from: usize, to: usize| x.slice(axis as isize, from, to);
            let product = at(0, half) * at(half, 2 * half);
            x = if length.is_multiple_of(2) {
                product
            } else {
                AnyValue::concat(&[product, at(2 * half, length)], axis as isize)
            };
            length -= half;
        }
    }
    let mut d = kept(n, n.dy());
    for (x, axis, length) in levels.into_iter().rev() {
        let (axis, half) = (axis as isize, length / 2);
        let first = d.slice(axis, 0, half);
        let mut parts = vec![first * x.slice(axis, half, 2 * half), first * x.slice(axis, 0, half)];
        if length % 2 == 1 {
            parts.push(d.slice(axis, half, half + 1));
        }
        d = AnyValue::concat(&parts, axis);
    }
    // An axis without elements was not reduced pairwise, but there is no element to have a
    // gradient.
    broadcast_to_operand(n, d)
}

/// Running sums along an axis from its start or, in reverse, from its end.
static CUMSUM: OpDef = OpDef {
    name: "cumsum",
    arity: Arity::Exactly(1),
    attrs: RunningSum::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        Class::Numeric.check(x)?;
        super::infer::axis_attr(cx, x)?;
        Ok(x.clone().into())
    },
    eval: |cx| {
        fn sums<T: Number>(data: &[T], shape: &[usize], axis: usize, reverse: bool) -> Vec<T> {
            let mut sums = data.to_vec();
            let (starts, stride) = lanes(shape, axis);
            let n = shape[axis];
            for start in starts {
                let mut sum = T::ZERO;
                for i in 0..n {
                    let at = start + stride * if reverse { n - 1 - i } else { i };
                    sum = sum.add(data[at]);
                    sums[at] = sum;
                }
            }
            sums
        }
        let (shape, RunningSum { axis, reverse }) = (cx.shape(), RunningSum::of(cx.attrs));
        Ok(match_numeric!(cx.operands[0].buffer(), d => cx.result(sums(d, &shape, axis, reverse))))
    },
    grad: Grad::Rule(|n| {
        let RunningSum { axis, reverse } = RunningSum::of(n.attrs());
        vec![Some(n.dy().running_sum(axis, !reverse))]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Scan(Combiner::Sum),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

macro_rules! any_methods {
    ($($all:ident $axis:ident $kept:ident $op:ident;)*) => {
        impl<C: ValueCx> AnyValue<C> {
            $(
                #[doc = concat!("See [`Tensor::", stringify!($all), "`].")]
                #[track_caller]
                pub fn $all(self) -> AnyValue<C> {
                    self.over(prim::$op, &self.all_axes(), false)
                }

                #[doc = concat!("See [`Tensor::", stringify!($axis), "`].")]
                #[track_caller]
                pub fn $axis(self, axes: impl IntoAxes) -> AnyValue<C> {
                    self.over(prim::$op, &self.axes(stringify!($axis), axes), false)
                }

                #[doc = concat!("See [`Tensor::", stringify!($kept), "`].")]
                #[track_caller]
                pub fn $kept(self, axes: impl IntoAxes) -> AnyValue<C> {
                    self.over(prim::$op, &self.axes(stringify!($kept), axes), true)
                }
            )*
        }
    };
}
any_methods! {
    sum sum_axis sum_keepdim SUM;
    prod prod_axis prod_keepdim PROD;
    max max_axis max_keepdim MAX;
    min min_axis min_keepdim MIN;
    all all_axis all_keepdim ALL;
    any any_axis any_keepdim ANY;
}

impl<C: ValueCx> AnyValue<C> {
    #[track_caller]
    fn over(self, op: Prim, axes: &[usize], keepdim: bool) -> AnyValue<C> {
        emit(op, &[self], Reduced { axes: axes.to_vec(), keepdim }.into())
    }

    fn all_axes(self) -> Vec<usize> {
        (0..self.rank()).collect()
    }

    /// See [`Tensor::mean`].
    #[track_caller]
    pub fn mean(self) -> AnyValue<C> {
        self.mean_over(&self.all_axes(), false)
    }

    /// See [`Tensor::mean_axis`].
    #[track_caller]
    pub fn mean_axis(self, axes: impl IntoAxes) -> AnyValue<C> {
        self.mean_over(&self.axes("mean_axis", axes), false)
    }

    /// See [`Tensor::mean_keepdim`].
    #[track_caller]
    pub fn mean_keepdim(self, axes: impl IntoAxes) -> AnyValue<C> {
        self.mean_over(&self.axes("mean_keepdim", axes), true)
    }

    #[track_caller]
    fn mean_over(self, axes: &[usize], keepdim: bool) -> AnyValue<C> {
        if self.dtype().is_half() {
            // The sum may overflow even if the mean does not.
            return self.cast(DType::F32).mean_over(axes, keepdim).cast(self.dtype());
        }
        let shape = self.shape();
        let n: Option<usize> = axes.iter().map(|&a| shape.dims()[a].known()).product();
        let sum = self.over(prim::SUM, axes, keepdim);
        match n {
            Some(n) => sum / n as f64,
            None => sum / self.number(1.0).broadcast_like(self).over(prim::SUM, axes, keepdim),
        }
    }

    /// See [`Tensor::var`].
    #[track_caller]
    pub fn var(self) -> AnyValue<C> {
        self.var_over(&self.all_axes(), false)
    }

    /// See [`Tensor::var_axis`].
    #[track_caller]
    pub fn var_axis(self, axes: impl IntoAxes) -> AnyValue<C> {
        self.var_over(&self.axes("var_axis", axes), false)
    }

    /// See [`Tensor::var_keepdim`].
    #[track_caller]
    pub fn var_keepdim(self, axes: impl IntoAxes) -> AnyValue<C> {
        self.var_over(&self.axes("var_keepdim", axes), true)
    }

    /// Returns the square root of numbers that are never negative, with the derivative 0 at 0.
    #[track_caller]
    pub(crate) fn sqrt_flat_at_zero(self) -> AnyValue<C> {
        let (zero, one) = (self.number(0.0), self.number(1.0));
        let is_zero = self.eq(zero);
        is_zero.select(zero, is_zero.select(one, self).sqrt())
    }

    #[track_caller]
    fn var_over(self, axes: &[usize], keepdim: bool) -> AnyValue<C> {
        if self.dtype().is_half() {
            return self.cast(DType::F32).var_over(axes, keepdim).cast(self.dtype());
        }
        let difference = self - self.mean_over(axes, true);
        difference.square().mean_over(axes, keepdim)
    }

    /// See [`Tensor::cumsum`].
    #[track_caller]
    pub fn cumsum(self, axis: isize) -> AnyValue<C> {
        let axis = self.axis("cumsum", axis);
        self.running_sum(axis, false)
    }

    #[track_caller]
    fn running_sum(self, axis: usize, reverse: bool) -> AnyValue<C> {
        emit(prim::CUMSUM, &[self], RunningSum { axis, reverse }.into())
    }
}

macro_rules! tensor_methods {
    ($($bound:ident: $(#[$all_doc:meta])* $all:ident; $(#[$axis_doc:meta])* $axis:ident; $(#[$kept_doc:meta])* $kept:ident;)*) => {$(
        impl<T: $bound> Tensor<T> {
            $(#[$all_doc])*
            #[track_caller]
            #[must_use]
            pub fn $all(self) -> Tensor<T> {
                Tensor::from_any(self.untyped().$all())
            }

            $(#[$axis_doc])*
            #[track_caller]
            #[must_use]
            pub fn $axis(self, axes: impl IntoAxes) -> Tensor<T> {
                Tensor::from_any(self.untyped().$axis(axes))
            }

            $(#[$kept_doc])*
            #[track_caller]
            #[must_use]
            pub fn $kept(self, axes: impl IntoAxes) -> Tensor<T> {
                Tensor::from_any(self.untyped().$kept(axes))
            }
        }
    )*};
}
tensor_methods! {
    Numeric:
    /// Returns the sum of all elements.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).sum())?, 10);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sum;
    /// Returns the sums over axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).sum_axis(0))?.as_slice(), [4, 6]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sum_axis;
    /// Returns the sums over axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).sum_keepdim(-1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    sum_keepdim;
    Numeric:
    /// Returns the product of all elements.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([2, 3, 4]).prod())?, 24);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    prod;
    /// Returns the products over axes. The gradient of a product needs the extents of the axes
    /// during tracing.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).prod_axis(0))?.as_slice(), [3, 8]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    prod_axis;
    /// Returns the products over axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).prod_keepdim(0))?.shape(), [1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    prod_keepdim;
    Numeric:
    /// Returns the largest element, or `NaN` if there is one. The gradient is divided equally among
    /// the elements equal to it.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 7, 3]).max())?, 7);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    max; // the largest element; for the larger of each two write `x.maximum(y)`
    /// Returns the largest elements along axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 5], [3, 4]]).max_axis(1))?.as_slice(), [5, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    max_axis;
    /// Returns the largest elements along axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 5], [3, 4]]).max_keepdim(1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    max_keepdim;
    Numeric:
    /// Returns the smallest element, or `NaN` if there is one. The gradient is divided equally
    /// among the elements equal to it.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([4, 1, 3]).min())?, 1);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    min; // the smallest element; for the smaller of each two write `x.minimum(y)`
    /// Returns the smallest elements along axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 5], [3, 4]]).min_axis(1))?.as_slice(), [1, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    min_axis;
    /// Returns the smallest elements along axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 5], [3, 4]]).min_keepdim(1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    min_keepdim;
    Float:
    /// Returns the mean of all elements.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 2.0, 6.0]).mean())?, 3.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    mean;
    /// Returns the means over axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([[1.0f32, 2.0], [3.0, 4.0]]).mean_axis(0))?.as_slice(),
    ///     [2.0, 3.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    mean_axis;
    /// Returns the means over axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1.0f32, 2.0], [3.0, 4.0]]).mean_keepdim(0))?.shape(), [1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    mean_keepdim;
    Float:
    /// Returns the variance of all elements: the mean squared difference from the mean, divided by
    /// the number of elements, not one less.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1.0f32, 3.0], [1.0, 3.0]]).var())?, 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    var;
    /// Returns the variances over axes. See [`var`](Tensor::var).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 3.0]).var_axis(0))?, 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    var_axis;
    /// Returns the variances over axes, which are kept with extent 1. See [`var`](Tensor::var).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 3.0]).var_keepdim(0))?.shape(), [1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    var_keepdim;
}

impl<T: Numeric> Tensor<T> {
    /// Returns the running sums along an axis: element `i` is the sum of elements 0 to `i`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2, 3]).cumsum(0))?.as_slice(), [1, 3, 6]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn cumsum(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().cumsum(axis))
    }
}

impl<T: Float> Tensor<T> {
    /// Returns the standard deviation of all elements: the square root of [`var`](Tensor::var). Its
    /// gradient is 0 if all elements are equal.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 5.0]).std())?, 2.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn std(self) -> Tensor<T> {
        Tensor::from_any(self.var().untyped().sqrt_flat_at_zero())
    }

    /// Returns the standard deviations over axes: the square roots of
    /// [`var_axis`](Tensor::var_axis).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 5.0]).std_axis(0))?, 2.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn std_axis(self, axes: impl IntoAxes) -> Tensor<T> {
        Tensor::from_any(self.var_axis(axes).untyped().sqrt_flat_at_zero())
    }

    /// Returns the standard deviations over axes, which are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1.0f32, 5.0]).std_keepdim(0))?.shape(), [1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn std_keepdim(self, axes: impl IntoAxes) -> Tensor<T> {
        Tensor::from_any(self.var_keepdim(axes).untyped().sqrt_flat_at_zero())
    }
}

impl Tensor<bool> {
    /// Returns whether all elements are true.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([true, false]).all())?, false);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn all(self) -> Tensor<bool> {
        Tensor::from_any(self.untyped().all())
    }

    /// Returns whether all elements along axes are true.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[true, false], [true, true]]).all_axis(1))?;
    /// assert_eq!(y.as_slice(), [false, true]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn all_axis(self, axes: impl IntoAxes) -> Tensor<bool> {
        Tensor::from_any(self.untyped().all_axis(axes))
    }

    /// Returns whether all elements along axes are true. The axes are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[true, false], [true, true]]).all_keepdim(1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn all_keepdim(self, axes: impl IntoAxes) -> Tensor<bool> {
        Tensor::from_any(self.untyped().all_keepdim(axes))
    }

    /// Returns whether any element is true.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([true, false]).any())?, true);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn any(self) -> Tensor<bool> {
        Tensor::from_any(self.untyped().any())
    }

    /// Returns whether any element along axes is true.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[true, false], [false, false]]).any_axis(1))?;
    /// assert_eq!(y.as_slice(), [true, false]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn any_axis(self, axes: impl IntoAxes) -> Tensor<bool> {
        Tensor::from_any(self.untyped().any_axis(axes))
    }

    /// Returns whether any element along axes is true. The axes are kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[true, false], [true, true]]).any_keepdim(1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn any_keepdim(self, axes: impl IntoAxes) -> Tensor<bool> {
        Tensor::from_any(self.untyped().any_keepdim(axes))
    }
}
