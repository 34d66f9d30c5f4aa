//! Indices of the largest and smallest elements.

use super::infer::{Class, axis_attr, reduced};
use super::layout::lanes;
use super::number::{Number, match_numeric};
use super::*;
use crate::{DType, Dim, HostTensor, Numeric, Tensor};

family!(ARGMAX, ARGMIN);

const fn row(name: &'static str, eval: Eval) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(1),
        attrs: Along::DECLARED,
        infer: |cx| {
            let x = cx.tensor(0)?;
            Class::Numeric.check(x)?;
            let axis = axis_attr(cx, x)?;
            if x.shape.dims()[axis] == Dim::Known(0) {
                let error = OpError::new(format!("there are no elements along axis {axis}")).label(x.to_string());
                return Err(error.help("the index of the largest or smallest element needs at least one element"));
            }
            Ok(Type::tensor(DType::I32, reduced(&x.shape, &[axis], false)))
        },
        eval,
        grad: Grad::Zero("an index has no gradient"),
        exactness: Exactness::Exact,
        class: OpClass::Search,
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

/// The index of the first largest element along an axis.
static ARGMAX: OpDef =
    row("argmax", |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => first(cx, d, |x, best| x > best))));
/// The index of the first smallest element along an axis.
static ARGMIN: OpDef =
    row("argmin", |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => first(cx, d, |x, best| x < best))));

/// Returns the index of the first element that no later element beats, or of the first `NaN`.
fn first<T: Number>(cx: &EvalCx<'_>, data: &[T], beats: impl Fn(T, T) -> bool) -> HostTensor {
    let (shape, axis) = (cx.operands[0].shape(), Along::of(cx.attrs).axis);
    let (starts, stride) = lanes(shape, axis);
    let best_of = |start: usize| {
        let mut best = 0;
        for i in 0..shape[axis] {
            let (x, so_far) = (data[start + i * stride], data[start + best * stride]);
            if !so_far.is_nan() && (x.is_nan() || beats(x, so_far)) {
                best = i;
            }
        }
        i32::try_from(best).expect("an extent fits into i32")
    };
    cx.result(starts.map(best_of).collect())
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::argmax`].
    #[track_caller]
    pub fn argmax(self, axis: isize) -> AnyValue<C> {
        let axis = self.axis("argmax", axis);
        emit(prim::ARGMAX, &[self], Along { axis }.into())
    }

    /// See [`Tensor::argmin`].
    #[track_caller]
    pub fn argmin(self, axis: isize) -> AnyValue<C> {
        let axis = self.axis("argmin", axis);
        emit(prim::ARGMIN, &[self], Along { axis }.into())
    }
}

impl<T: Numeric> Tensor<T> {
    /// Returns the index of the largest element along an axis: the first of equal ones, or the
    /// first `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 5, 5], [7, 0, 2]]).argmax(-1))?.as_slice(), [1, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn argmax(self, axis: isize) -> Tensor<i32> {
        Tensor::from_any(self.untyped().argmax(axis))
    }

    /// Returns the index of the smallest element along an axis: the first of equal ones, or the
    /// first `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([3, 1, 2]).argmin(0))?, 1);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn argmin(self, axis: isize) -> Tensor<i32> {
        Tensor::from_any(self.untyped().argmin(axis))
    }
}
