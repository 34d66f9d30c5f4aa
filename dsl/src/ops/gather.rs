//! Gather and scatter: reading and accumulating elements at indices held in a tensor.
//!
//! Indices count from 0 and are checked: an index out of range fails the step with the index and
//! the extent. Every operation that reads has a counterpart that adds at the same positions. The
//! two operations are each other's gradients.
//!
//! | reads | adds |
//! |---|---|
//! | `take` | `scatter_add` |
//! | `take_along_axis` | `scatter_add_along_axis` |

use super::elements::read;
use super::infer::{Class, axis_attr, zeros};
use super::layout::{offsets, strides};
use super::number::{Number, match_numeric};
use super::shape::positions;
use super::*;
use crate::{DType, Dim, Element, HostTensor, Integer, Numeric, Shape, Tensor};

family!(TAKE, SCATTER_ADD, TAKE_ALONG_AXIS, SCATTER_ADD_ALONG_AXIS);

/// Returns integers of any type as `i64`.
pub(super) fn numbers(ids: &HostTensor) -> Vec<i64> {
    super::cast::converted(ids, DType::I64).data().to_vec()
}

/// Returns the indices in `ids`, if all of them are in range.
pub(super) fn checked(ids: &HostTensor, axis: usize, extent: usize) -> Result<Vec<usize>, OpError> {
    let check = |(i, &id): (usize, &i64)| match usize::try_from(id) {
        Ok(id) if id < extent => Ok(id),
        _ => {
            let at = super::elementwise_binary::index_of(ids.shape(), i);
            let place = if at.is_empty() { String::new() } else { format!(" at {at:?}") };
            let message = format!("index {id}{place} is out of bounds for axis {axis} of extent {extent}");
            Err(OpError::new(message).help(super::axes::indices(extent)))
        }
    };
    numbers(ids).iter().enumerate().map(check).collect()
}

/// Returns the shape of `take`: the axis is replaced by the axes of the indices.
fn taken_shape(x: &Shape, ids: &Shape, axis: usize) -> Shape {
    let dims = x.dims();
    [&dims[..axis], ids.dims(), &dims[axis + 1..]].concat().into()
}

/// Returns the offsets, in a tensor of shape `x`, of the elements that `take` reads.
fn taken_offsets(x: &[usize], ids: &[usize], axis: usize) -> Vec<usize> {
    let inner: usize = x[axis + 1..].iter().product();
    let outer: usize = x[..axis].iter().product();
    let mut at = Vec::with_capacity(outer * ids.len() * inner);
    for o in 0..outer {
        for &id in ids {
            let row = (o * x[axis] + id) * inner;
            at.extend(row..row + inner);
        }
    }
    at
}

/// Returns the offsets, in a tensor of shape `x`, of the elements that `take_along_axis` reads.
fn along_offsets(x: &[usize], ids: &[usize], ids_shape: &[usize], axis: usize) -> Vec<usize> {
    let mut from = strides(x);
    let stride = std::mem::replace(&mut from[axis], 0);
    offsets(ids_shape, from).zip(ids).map(|(o, &id)| o + id * stride).collect()
}

fn read_at(cx: &EvalCx<'_>, at: &[usize]) -> HostTensor {
    read(cx, cx.operands[0], &mut at.iter().copied())
}

fn add_at(cx: &EvalCx<'_>, at: &[usize]) -> HostTensor {
    fn add<T: Number>(into: &[T], updates: &[T], at: &[usize]) -> Vec<T> {
        let mut sums = into.to_vec();
        at.iter().zip(updates).for_each(|(&o, &x)| sums[o] = sums[o].add(x));
        sums
    }
    match_numeric!(cx.operands[0].buffer(), d => cx.result(add(d, cx.operands[2].data(), at)))
}

/// The slices at the indices in the second operand, whose axes replace the axis.
static TAKE: OpDef = OpDef {
    name: "take",
    arity: Arity::Exactly(2),
    attrs: Along::DECLARED,
    infer: |cx| {
        let (x, ids) = (cx.tensor(0)?, cx.tensor(1)?);
        Class::Int.check(ids)?;
        let axis = axis_attr(cx, x)?;
        Ok(Type::tensor(x.dtype, taken_shape(&x.shape, &ids.shape, axis)))
    },
    eval: |cx| {
        let (x, axis) = (cx.operands[0].shape(), Along::of(cx.attrs).axis);
        let ids = checked(cx.operands[1], axis, x[axis])?;
        Ok(read_at(cx, &taken_offsets(x, &ids, axis)))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis as isize;
        let sum = n.cotangent_so_far(0).unwrap_or_else(|| zeros(n, 0));
        vec![Some(sum.scatter_add(n.x(1), n.dy(), axis)), None]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Gather,
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// The first operand with the third added at the indices in the second.
static SCATTER_ADD: OpDef = OpDef {
    name: "scatter_add",
    arity: Arity::Exactly(3),
    attrs: Along::DECLARED,
    infer: |cx| {
        let (x, ids, updates) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        Class::Numeric.check(x)?;
        Class::Int.check(ids)?;
        let axis = axis_attr(cx, x)?;
        check_updates(x, &taken_shape(&x.shape, &ids.shape, axis), updates)?;
        Ok(x.clone().into())
    },
    eval: |cx| {
        let (x, axis) = (cx.operands[0].shape(), Along::of(cx.attrs).axis);
        let ids = checked(cx.operands[1], axis, x[axis])?;
        Ok(add_at(cx, &taken_offsets(x, &ids, axis)))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis as isize;
        vec![Some(n.dy()), None, n.needs(2).then(|| n.dy().take(n.x(1), axis))]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Scatter(Some(Combiner::Sum)),
    halves: Halves::Widened,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// Checks that updates have the element type of the tensor they are added to and the shape that a
/// read would have.
fn check_updates(x: &TensorType, read: &Shape, updates: &TensorType) -> Result<(), OpError> {
    if updates.dtype != x.dtype {
        let error = OpError::new(format!("element types differ, {} and {}", x.dtype, updates.dtype));
        return Err(error.label(format!("{updates} into {x}")).help("convert the updates with `.cast()`"));
    }
    if !updates.shape.compatible(read) {
        let error = OpError::new(format!("the updates have shape {}, not {read}", updates.shape));
        return Err(error.label(format!("{updates} into {x}")).help("each index needs one slice of the updates"));
    }
    Ok(())
}

/// Checks that the indices have the rank of the tensor and its extents except along the axis.
fn infer_along(cx: &InferCx<'_>) -> Result<(), OpError> {
    let (x, ids) = (cx.tensor(0)?, cx.tensor(1)?);
    Class::Int.check(ids)?;
    let axis = axis_attr(cx, x)?;
    if x.rank() != ids.rank() || !ids.shape.with_extent(axis, Dim::Unknown).compatible(&x.shape) {
        let error = OpError::new(format!("shapes {} and {} differ in more than axis {axis}", x.shape, ids.shape));
        let help = "each element of the result needs its own index; `take` uses the same indices for all";
        return Err(error.label(format!("{x} at {ids}")).help(help));
    }
    Ok(())
}

/// For every index in the second operand, the element at that index along the axis.
static TAKE_ALONG_AXIS: OpDef = OpDef {
    name: "take_along_axis",
    arity: Arity::Exactly(2),
    attrs: Along::DECLARED,
    infer: |cx| {
        infer_along(cx)?;
        let (x, ids, axis) = (cx.tensor(0)?, cx.tensor(1)?, Along::of(cx.attrs).axis);
        let shape = ids.shape.meet(&x.shape.with_extent(axis, Dim::Unknown));
        Ok(Type::tensor(x.dtype, shape))
    },
    eval: |cx| {
        let (x, ids, axis) = (cx.operands[0].shape(), cx.operands[1], Along::of(cx.attrs).axis);
        Ok(read_at(cx, &along_offsets(x, &checked(ids, axis, x[axis])?, ids.shape(), axis)))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis as isize;
        let sum = n.cotangent_so_far(0).unwrap_or_else(|| zeros(n, 0));
        vec![Some(sum.scatter_add_along_axis(n.x(1), n.dy(), axis)), None]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Gather,
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// The first operand with the third added at the indices in the second along the axis.
static SCATTER_ADD_ALONG_AXIS: OpDef = OpDef {
    name: "scatter_add_along_axis",
    arity: Arity::Exactly(3),
    attrs: Along::DECLARED,
    infer: |cx| {
        infer_along(cx)?;
        let (x, ids, updates) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        Class::Numeric.check(x)?;
        check_updates(x, &ids.shape, updates)?;
        Ok(x.clone().into())
    },
    eval: |cx| {
        let (x, ids, axis) = (cx.operands[0].shape(), cx.operands[1], Along::of(cx.attrs).axis);
        Ok(add_at(cx, &along_offsets(x, &checked(ids, axis, x[axis])?, ids.shape(), axis)))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis as isize;
        vec![Some(n.dy()), None, n.needs(2).then(|| n.dy().take_along_axis(n.x(1), axis))]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Scatter(Some(Combiner::Sum)),
    halves: Halves::Widened,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};
impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::take`].
    #[track_caller]
    pub fn take(self, ids: AnyValue<C>, axis: isize) -> AnyValue<C> {
        let axis = self.axis("take", axis);
        emit(prim::TAKE, &[self, ids], Along { axis }.into())
    }

    /// See [`Tensor::scatter_add`].
    #[track_caller]
    pub fn scatter_add(self, ids: AnyValue<C>, updates: AnyValue<C>, axis: isize) -> AnyValue<C> {
        let axis = self.axis("scatter_add", axis);
        emit(prim::SCATTER_ADD, &[self, ids, updates], Along { axis }.into())
    }

    /// See [`Tensor::take_along_axis`].
    #[track_caller]
    pub fn take_along_axis(self, ids: AnyValue<C>, axis: isize) -> AnyValue<C> {
        let axis = self.axis("take_along_axis", axis);
        emit(prim::TAKE_ALONG_AXIS, &[self, ids], Along { axis }.into())
    }

    /// See [`Tensor::scatter_add_along_axis`].
    #[track_caller]
    pub fn scatter_add_along_axis(self, ids: AnyValue<C>, updates: AnyValue<C>, axis: isize) -> AnyValue<C> {
        let axis = self.axis("scatter_add_along_axis", axis);
        emit(prim::SCATTER_ADD_ALONG_AXIS, &[self, ids, updates], Along { axis }.into())
    }

    /// See [`Tensor::one_hot`].
    #[track_caller]
    pub fn one_hot(self, n: usize, dtype: DType) -> AnyValue<C> {
        // `u8` does not have all places.
        let ids = if self.dtype() == DType::U8 { self.cast(DType::I32) } else { self };
        let places = positions(ids.context(), Shape::from([n]), 0, DType::I64).cast(ids.dtype());
        ids.unsqueeze(-1).eq(places).cast(dtype)
    }
}

impl<T: Element> Tensor<T> {
    /// Returns the slices at several indices along an axis, which is replaced by the axes of `ids`.
    ///
    /// An index out of range fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[1, 2], [3, 4]]).take(tensor([1, 0, 1]), 0))?;
    /// assert_eq!(y.as_slice(), [3, 4, 1, 2, 3, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn take<I: Integer>(self, ids: Tensor<I>, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().take(ids.untyped(), axis))
    }

    /// Returns for every element of `ids` the element at that index along an axis.
    ///
    /// `ids` has the shape of this tensor except along the axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[1, 2], [3, 4]]).take_along_axis(tensor([[1], [0]]), 1))?;
    /// assert_eq!(y.as_slice(), [2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn take_along_axis<I: Integer>(self, ids: Tensor<I>, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().take_along_axis(ids.untyped(), axis))
    }
}

impl<T: Numeric> Tensor<T> {
    /// Returns this tensor with `updates` added at indices along an axis: `updates[i]` is added at
    /// index `ids[i]`.
    ///
    /// An index may occur several times. An index out of range fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| zeros::<i32>([3]).scatter_add(tensor([2, 0, 2]), tensor([1, 10, 100]), 0))?;
    /// assert_eq!(y.as_slice(), [10, 0, 101]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn scatter_add<I: Integer>(self, ids: Tensor<I>, updates: Tensor<T>, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().scatter_add(ids.untyped(), updates.untyped(), axis))
    }

    /// Returns this tensor with every element of `updates` added where
    /// [`take_along_axis`](Tensor::take_along_axis) would read it.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| {
    ///     zeros::<i32>([2, 2]).scatter_add_along_axis(tensor([[1], [0]]), tensor([[5], [6]]), 1)
    /// })?;
    /// assert_eq!(y.as_slice(), [0, 5, 6, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn scatter_add_along_axis<I: Integer>(self, ids: Tensor<I>, updates: Tensor<T>, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().scatter_add_along_axis(ids.untyped(), updates.untyped(), axis))
    }
}

impl<I: Integer> Tensor<I> {
    /// Returns a one-hot vector of `n` elements along a new last axis for every number `i`.
    ///
    /// A vector is 1 at `i` and 0 elsewhere, and 0 everywhere if `i` is out of bounds.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([2, 0]).one_hot::<f32>(3))?.as_slice(),
    ///     [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn one_hot<U: Numeric>(self, n: usize) -> Tensor<U> {
        Tensor::from_any(self.untyped().one_hot(n, U::DTYPE))
    }
}
