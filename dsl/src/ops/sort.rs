//! The order of elements along an axis.

use super::infer::{Class, axis_attr};
use super::layout::lanes;
use super::number::{Number, match_numeric};
use super::*;
use crate::{DType, HostTensor, Numeric, Tensor};
use std::cmp::Ordering;

family!(ARGSORT);

/// The indices along an axis in the order of the elements. Of equal elements, that of the smaller
/// index comes first, and `NaN` is larger than all numbers.
static ARGSORT: OpDef = OpDef {
    name: "argsort",
    arity: Arity::Exactly(1),
    attrs: Order::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        Class::Numeric.check(x)?;
        axis_attr(cx, x)?;
        Ok(Type::tensor(DType::I32, x.shape.clone()))
    },
    eval: |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => order(cx, d))),
    grad: Grad::Zero("an index has no gradient"),
    exactness: Exactness::Exact,
    class: OpClass::Opaque(Effort::FUNCTION),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

fn order<T: Number>(cx: &EvalCx<'_>, data: &[T]) -> HostTensor {
    let Order { axis, descending } = Order::of(cx.attrs);
    let shape = cx.operands[0].shape();
    let (starts, stride) = lanes(shape, axis);
    let compare = |a: T, b: T| a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal));
    let mut order = vec![0; data.len()];
    let mut indices = Vec::new();
    for start in starts {
        let at = |i: i32| start + i as usize * stride;
        indices.clear();
        indices.extend(0..i32::try_from(shape[axis]).expect("an extent fits into i32"));
        // The sort is stable.
        indices.sort_by(|&a, &b| {
            let ascending = compare(data[at(a)], data[at(b)]);
            if descending { ascending.reverse() } else { ascending }
        });
        for (i, &index) in (0..).zip(&indices) {
            order[at(i)] = index;
        }
    }
    cx.result(order)
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::argsort`].
    #[track_caller]
    pub fn argsort(self, axis: isize) -> AnyValue<C> {
        self.ordered("argsort", axis, false)
    }

    /// See [`Tensor::sorted`].
    #[track_caller]
    pub fn sorted(self, axis: isize) -> AnyValue<C> {
        self.take_along_axis(self.ordered("sorted", axis, false), axis)
    }

    /// See [`Tensor::top_k`].
    #[track_caller]
    pub fn top_k(self, k: usize, axis: isize) -> (AnyValue<C>, AnyValue<C>) {
        let ids = self.ordered("top_k", axis, true).slice(axis, 0, k);
        (self.take_along_axis(ids, axis), ids)
    }

    #[track_caller]
    fn ordered(self, method: &str, axis: isize, descending: bool) -> AnyValue<C> {
        let axis = self.axis(method, axis);
        emit(prim::ARGSORT, &[self], Order { axis, descending }.into())
    }
}

impl<T: Numeric> Tensor<T> {
    /// Returns the indices along an axis in the order of the elements, the smallest first. The
    /// result has the shape of this tensor.
    ///
    /// Of equal elements, that of the smaller index comes first. `NaN` is larger than all numbers.
    /// Indices have no gradient.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([30, 10, 20]).argsort(0))?.as_slice(), [1, 2, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis.
    #[track_caller]
    #[must_use]
    pub fn argsort(self, axis: isize) -> Tensor<i32> {
        Tensor::from_any(self.untyped().argsort(axis))
    }

    /// Returns the elements in ascending order along an axis, `NaN` last. For descending order, use
    /// [`flip`](Tensor::flip).
    ///
    /// The gradient of an element goes to where the element was.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[3, 1, 2], [5, 6, 4]]).sorted(-1))?;
    /// assert_eq!(y.as_slice(), [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis.
    #[track_caller]
    #[must_use]
    #[doc(alias = "sort")]
    pub fn sorted(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().sorted(axis))
    }

    /// Returns the `k` largest elements along an axis, the largest first, and their indices. Both
    /// results have extent `k` along the axis.
    ///
    /// Of equal elements, that of the smaller index comes first. `NaN` is larger than all numbers,
    /// so the first index is that of [`argmax`](Tensor::argmax). The gradient of an element goes to
    /// where the element was.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let (best, ids) = eval(|| tensor([[3, 1, 2], [5, 4, 6]]).top_k(2, -1))?;
    /// assert_eq!(best.as_slice(), [3, 2, 6, 5]);
    /// assert_eq!(ids.as_slice(), [0, 2, 2, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis, or if it has fewer than `k` elements. If its
    /// extent is not known while tracing, the step fails instead.
    #[track_caller]
    #[must_use]
    pub fn top_k(self, k: usize, axis: isize) -> (Tensor<T>, Tensor<i32>) {
        let (best, ids) = self.untyped().top_k(k, axis);
        (Tensor::from_any(best), Tensor::from_any(ids))
    }
}
