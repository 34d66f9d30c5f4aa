//! Sums and products of host iterators of tensors.

use crate::{AnyValue, Numeric, Tensor, scalar, trace};
use std::iter;

macro_rules! folds {
    ($($fold:ident $method:ident $op:ident $of_none:literal $example:literal;)*) => {$(
        /// Combines the tensors of a host iterator, which broadcast. Of none, it is a scalar as
        /// for numbers. A tensor that does not fit is an error at the line that has computed it.
        ///
        /// ```
        /// # use anabranch::prelude::*;
        #[doc = $example]
        /// # Ok::<(), anabranch::Diagnostic>(())
        /// ```
        impl<T: Numeric> iter::$fold for Tensor<T> {
            fn $method<I: Iterator<Item = Tensor<T>>>(mut tensors: I) -> Tensor<T> {
                let Some(first) = tensors.next() else { return scalar($of_none).cast() };
                // The standard library does not pass on the line of the call.
                let made = |x: AnyValue| trace::with(|t| t.graph.loc(x.value()));
                let both = |a: AnyValue, b: Tensor<T>| trace::called_at(made(b.untyped()), || a.$op(b.untyped()));
                Tensor::from_any(tensors.fold(first.untyped(), both))
            }
        }
        impl<'a, T: Numeric> iter::$fold<&'a Tensor<T>> for Tensor<T> {
            fn $method<I: Iterator<Item = &'a Tensor<T>>>(tensors: I) -> Tensor<T> {
                tensors.copied().$method()
            }
        }
    )*};
}
folds! {
    Sum sum add 0i32
        "assert_eq!(eval(|| (1..4).map(scalar::<i32>).sum::<Tensor<_>>())?, 6);";
    Product product mul 1i32
        "assert_eq!(eval(|| [scalar(2.0f32), scalar(3.0)].iter().product::<Tensor>())?, 6.0);";
}
