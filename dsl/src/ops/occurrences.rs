//! Equal elements of a vector.

use super::gather::numbers;
use super::infer::Class;
use super::*;
use crate::{DType, Integer, Tensor};
use rustc_hash::FxHashMap;

family!(FIRST_OCCURRENCES);

/// For each element of a vector, the index of the first element that is equal to it.
static FIRST_OCCURRENCES: OpDef = OpDef {
    name: "first_occurrences",
    arity: Arity::Exactly(1),
    attrs: &[],
    infer: |cx| {
        let x = cx.tensor(0)?;
        Class::Int.check(x)?;
        if x.rank() != 1 {
            let error = OpError::new(format!("takes a vector, not {} axes", x.rank())).label(x.to_string());
            return Err(error.help("make it a vector with `reshape([-1])`"));
        }
        Ok(Type::tensor(DType::I32, x.shape.clone()))
    },
    eval: |cx| {
        let mut first = FxHashMap::default();
        let of = |(i, x): (i32, i64)| *first.entry(x).or_insert(i);
        Ok(cx.result((0..).zip(numbers(cx.operands[0])).map(of).collect()))
    },
    grad: Grad::Zero("an index has no gradient"),
    exactness: Exactness::Exact,
    class: OpClass::Opaque(Effort::FUNCTION),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::first_occurrences`].
    #[track_caller]
    pub fn first_occurrences(self) -> AnyValue<C> {
        emit(prim::FIRST_OCCURRENCES, &[self], Attrs::none())
    }
}

impl<T: Integer> Tensor<T> {
    /// Returns, for each element of a vector, the index of the first element that is equal to it:
    /// `idx` of TensorFlow's `unique` without the renumbering, which would make the number of
    /// elements depend on data.
    ///
    /// With [`scatter_add`](Tensor::scatter_add) it adds up what belongs to equal elements.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let sums = eval(|| {
    ///     let words = tensor([7, 3, 7, 7]);
    ///     let counts = tensor([10, 20, 30, 40]);
    ///     zeros([4]).scatter_add(words.first_occurrences(), counts, 0)
    /// })?;
    /// assert_eq!(sums.as_slice(), [80, 20, 0, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace unless the tensor is a vector.
    #[track_caller]
    #[must_use]
    pub fn first_occurrences(self) -> Tensor<i32> {
        Tensor::from_any(self.untyped().first_occurrences())
    }
}
