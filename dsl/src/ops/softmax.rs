//! Softmax, its logarithm and log-sum-exp along one axis.
//!
//! The largest element is subtracted before exponentials are taken, to avoid overflow. Along an
//! axis without elements the sum of exponentials is 0.

use super::infer::{Class, axis_attr, reduced};
use super::layout::lanes;
use super::number::{RealNumber, match_float};
use super::*;
use crate::{Float, HostTensor, Integer, Tensor, scalars};

family!(SOFTMAX, LOG_SOFTMAX, LOGSUMEXP);

/// Returns the shift of one slice along the axis and the sum of the exponentials of the shifted
/// elements.
fn shifted_sum<T: RealNumber>(lane: impl Iterator<Item = T> + Clone) -> (T, T) {
    let max = lane.clone().fold(T::LOWEST, T::larger);
    // With an infinite maximum, differences would be NaN. Without a shift, the exponentials yield
    // the infinities.
    let shift = if max.is_finite() { max } else { T::ZERO };
    (shift, lane.fold(T::ZERO, |sum, x| sum + scalars::exp(x - shift)))
}

/// Applies a function of each element and of the shift and sum of its slice along the axis.
fn normalize<T: RealNumber>(cx: &EvalCx<'_>, data: &[T], f: impl Fn(T, T, T) -> T) -> HostTensor {
    let (shape, axis) = (cx.shape(), Along::of(cx.attrs).axis);
    let (starts, stride) = lanes(&shape, axis);
    let mut y = data.to_vec();
    for start in starts {
        let (shift, sum) = shifted_sum((0..shape[axis]).map(|i| data[start + i * stride]));
        for i in 0..shape[axis] {
            let at = start + i * stride;
            y[at] = f(data[at], shift, sum);
        }
    }
    cx.result(y)
}

fn infer(cx: &InferCx<'_>) -> Result<Type, OpError> {
    let x = cx.tensor(0)?;
    Class::Float.check(x)?;
    axis_attr(cx, x)?;
    Ok(x.clone().into())
}

/// `exp(x) / sum(exp(x))` along an axis.
static SOFTMAX: OpDef = OpDef {
    name: "softmax",
    arity: Arity::Exactly(1),
    attrs: Along::DECLARED,
    infer,
    eval: |cx| {
        Ok(match_float!(cx.operands[0].buffer(), d => normalize(cx, d, |x, shift, sum| scalars::exp(x - shift) / sum)))
    },
    grad: Grad::Rule(|n| {
        let (y, dy) = (n.y(), n.dy());
        vec![Some(y * (dy - (dy * y).sum_keepdim(Along::of(n.attrs()).axis)))]
    }),
    exactness: Exactness::Ulps(32),
    class: OpClass::Rowwise(Effort::FUNCTION),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// `x - log(sum(exp(x)))` along an axis.
static LOG_SOFTMAX: OpDef = OpDef {
    name: "log_softmax",
    arity: Arity::Exactly(1),
    attrs: Along::DECLARED,
    infer,
    eval: |cx| {
        Ok(
            match_float!(cx.operands[0].buffer(), d => normalize(cx, d, |x, shift, sum| (x - shift) - scalars::log(sum))),
        )
    },
    grad: Grad::Rule(|n| {
        let dy = n.dy();
        vec![Some(dy - n.y().exp() * dy.sum_keepdim(Along::of(n.attrs()).axis))]
    }),
    exactness: Exactness::Ulps(32),
    class: OpClass::Rowwise(Effort::FUNCTION),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// `log(sum(exp(x)))` along an axis.
static LOGSUMEXP: OpDef = OpDef {
    name: "logsumexp",
    arity: Arity::Exactly(1),
    attrs: AlongOrKept::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        Class::Float.check(x)?;
        let axis = axis_attr(cx, x)?;
        Ok(Type::tensor(x.dtype, reduced(&x.shape, &[axis], AlongOrKept::of(cx.attrs).keepdim)))
    },
    eval: |cx| {
        fn sums<T: RealNumber>(cx: &EvalCx<'_>, data: &[T]) -> HostTensor {
            let (shape, axis) = (cx.operands[0].shape(), Along::of(cx.attrs).axis);
            let (starts, stride) = lanes(shape, axis);
            let sum = |start: usize| {
                let (shift, sum) = shifted_sum((0..shape[axis]).map(|i| data[start + i * stride]));
                shift + scalars::log(sum)
            };
            cx.result(starts.map(sum).collect())
        }
        Ok(match_float!(cx.operands[0].buffer(), d => sums(cx, d)))
    },
    grad: Grad::Rule(|n| {
        let AlongOrKept { axis, keepdim } = AlongOrKept::of(n.attrs());
        let kept = if keepdim { n.dy() } else { n.dy().unsqueeze(axis as isize) };
        vec![Some(kept * n.x(0).softmax(axis as isize))]
    }),
    exactness: Exactness::Ulps(32),
    class: OpClass::Rowwise(Effort::FUNCTION),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::softmax`].
    #[track_caller]
    pub fn softmax(self, axis: isize) -> AnyValue<C> {
        let axis = self.axis("softmax", axis);
        emit(prim::SOFTMAX, &[self], Along { axis }.into())
    }

    /// See [`Tensor::log_softmax`].
    #[track_caller]
    pub fn log_softmax(self, axis: isize) -> AnyValue<C> {
        let axis = self.axis("log_softmax", axis);
        emit(prim::LOG_SOFTMAX, &[self], Along { axis }.into())
    }

    /// See [`Tensor::logsumexp`].
    #[track_caller]
    pub fn logsumexp(self, axis: isize) -> AnyValue<C> {
        self.logsumexp_over(self.axis("logsumexp", axis), false)
    }

    /// See [`Tensor::logsumexp_keepdim`].
    #[track_caller]
    pub fn logsumexp_keepdim(self, axis: isize) -> AnyValue<C> {
        self.logsumexp_over(self.axis("logsumexp_keepdim", axis), true)
    }

    #[track_caller]
    fn logsumexp_over(self, axis: usize, keepdim: bool) -> AnyValue<C> {
        emit(prim::LOGSUMEXP, &[self], AlongOrKept { axis, keepdim }.into())
    }

    /// See [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy(self, ids: AnyValue<C>) -> AnyValue<C> {
        let (logits, labels) = (self.tensor_type(), ids.tensor_type());
        let examples = logits.shape.dims().split_last().map(|(_, rest)| crate::Shape::from(rest));
        if !examples.is_some_and(|s| s.compatible(&labels.shape)) {
            let error = OpError::new("one label is needed for each row of logits");
            let help = "labels must have one axis less than logits: [..] and [.., classes]";
            refuse::<C>("cross_entropy", error.label(format!("{logits} with {labels}")).help(help));
        }
        self.log_softmax(-1).take_along_axis(ids.unsqueeze(-1), -1).squeeze(-1).neg()
    }
}

impl<T: Float> Tensor<T> {
    /// Returns the softmax along an axis: exponentials scaled to sum to 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([[0.0f32, 0.0], [1000.0, 0.0]]).softmax(-1))?.as_slice(),
    ///     [0.5, 0.5, 1.0, 0.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn softmax(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().softmax(axis))
    }

    /// Returns the logarithm of [`softmax`](Tensor::softmax), accurate even where that is almost 0.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1000.0f32, 0.0]).log_softmax(0))?.as_slice(), [0.0, -1000.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn log_softmax(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().log_softmax(axis))
    }

    /// Returns the logarithm of the sum of exponentials along an axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1000.0f32, 0.0]).logsumexp(0))?, 1000.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn logsumexp(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().logsumexp(axis))
    }

    /// Returns the logarithm of the sum of exponentials along an axis, which is kept with extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1000.0f32, 0.0]).logsumexp_keepdim(0))?.shape(), [1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn logsumexp_keepdim(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().logsumexp_keepdim(axis))
    }

    /// Returns the cross-entropy loss of each example, for logits `[.., classes]` and labels
    /// `[..]`.
    ///
    /// The loss is minus the log-probability of the label.
    ///
    /// A label that is not a class index fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let loss =
    ///     eval(|| tensor([[1000.0f32, 0.0], [1000.0, 0.0]]).cross_entropy(tensor([0, 1])))?;
    /// assert_eq!(loss.as_slice(), [0.0, 1000.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn cross_entropy<I: Integer>(self, labels: Tensor<I>) -> Tensor<T> {
        Tensor::from_any(self.untyped().cross_entropy(labels.untyped()))
    }
}
