//! Slices by ranges and by an index, and the operations that write slices back.
//!
//! Indices count from 0 and are checked: an index out of range fails the step with the index and
//! the extent. Every operation that reads has a counterpart that writes at the same position. The
//! two operations are each other's gradients.
//!
//! | reads | writes |
//! |---|---|
//! | `slice` | `update_slice` |
//! | `dynamic_slice` | `dynamic_update_slice` |
//!
//! `check_index` checks indices alone.

use super::elements::read;
use super::gather::numbers;
use super::infer::{Class, axis_attr, check_scalar, zeros};
use super::layout::{offsets, strides};
use super::shape::positions;
use super::*;
use crate::{DType, Dim, Element, HostTensor, Integer, Operand, Shape, Tensor, match_buffer};

family!(SLICE, UPDATE_SLICE, DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE, CHECK_INDEX);

/// Returns the offsets, in a tensor of shape `whole`, of the elements of a slice.
fn part_offsets(
    whole: &[usize],
    part: &[usize],
    axis: usize,
    start: usize,
    step: usize,
) -> impl Iterator<Item = usize> {
    let mut to = strides(whole);
    let first = to[axis] * start;
    to[axis] *= step;
    offsets(part, to).map(move |o| first + o)
}

/// Every `step`-th index from `start` along an axis.
const SLICED: ViewForm = ViewForm::part(|cx| {
    let Slice { axis, start, step, .. } = Slice::of(cx.attrs);
    let mut map = cx.identity();
    map[axis] = Coord { offset: start, term: Some((axis, step as isize)) };
    Some(map)
});

fn read_part(cx: &EvalCx<'_>, start: usize, step: usize) -> HostTensor {
    let (x, shape) = (cx.operands[0], cx.shape());
    read(cx, x, &mut part_offsets(x.shape(), &shape, Along::of(cx.attrs).axis, start, step))
}

fn write_part(cx: &EvalCx<'_>, start: usize, step: usize) -> HostTensor {
    fn write<T: Element>(part: &[T], whole: &[T], to: &mut dyn Iterator<Item = usize>) -> Vec<T> {
        let mut whole = whole.to_vec();
        to.zip(part).for_each(|(o, x)| whole[o] = x.clone());
        whole
    }
    let (x, part) = (cx.operands[0], cx.operands[1]);
    let mut to = part_offsets(x.shape(), part.shape(), Along::of(cx.attrs).axis, start, step);
    match_buffer!(part.buffer(), d => cx.result(write(d, x.data(), &mut to)))
}

/// Every `step`-th element from `start` up to `end` along an axis.
static SLICE: OpDef = OpDef {
    name: "slice",
    arity: Arity::Exactly(1),
    attrs: Slice::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        let axis = axis_attr(cx, x)?;
        let Slice { start, end, step, .. } = Slice::of(cx.attrs);
        let error = |message: String| OpError::new(message).label(x.to_string());
        if step < 1 {
            return Err(
                error(format!("the step is {step}, but must be at least 1")).help("reverse an axis with `.flip(axis)`")
            );
        }
        if end < start {
            let error = error(format!("the range {start}..{end} ends before it starts"));
            return Err(error.help("reverse an axis with `.flip(axis)`"));
        }
        if let Some(n) = x.shape.dims()[axis].known()
            && end > n
        {
            let error = error(format!("the range {start}..{end} is out of bounds for axis {axis} of extent {n}"));
            return Err(error.help(format!("a range ends at {n} or before")));
        }
        let n = (end - start).div_ceil(step);
        Ok(Type::tensor(x.dtype, x.shape.with_extent(axis, Dim::Known(n))))
    },
    eval: |cx| view::eval(cx, SLICED),
    grad: Grad::Rule(|n| {
        let Slice { axis, start, end, step } = Slice::of(n.attrs());
        vec![Some(match n.cotangent_so_far(0) {
            Some(sum) => sum.written(sum.ranged(axis, start, end, step).add(n.dy()), axis, start, step),
            None => zeros(n, 0).written(n.dy(), axis, start, step),
        })]
    }),
    exactness: Exactness::Exact,
    class: OpClass::View(SLICED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Checks that the slice fits the whole tensor. Returns the type of the whole and the axis.
fn infer_update(cx: &InferCx<'_>) -> Result<(TensorType, usize), OpError> {
    let (x, part) = (cx.tensor(0)?, cx.tensor(1)?);
    let axis = axis_attr(cx, x)?;
    let error = |message: String| OpError::new(message).label(format!("{part} into {x}"));
    if x.dtype != part.dtype {
        let error = error(format!("element types differ, {} and {}", x.dtype, part.dtype));
        return Err(error.help("convert the part with `.cast()`"));
    }
    let fits = x.rank() == part.rank() && part.shape.with_extent(axis, Dim::Unknown).compatible(&x.shape);
    if !fits {
        let error = error(format!("shapes {} and {} differ in more than axis {axis}", x.shape, part.shape));
        return Err(error.help("both need the same rank, and equal extents of all other axes"));
    }
    if let (Some(n), Some(m)) = (x.shape.dims()[axis].known(), part.shape.dims()[axis].known())
        && m > n
    {
        let error = error(format!("a part of extent {m} does not fit into axis {axis} of extent {n}"));
        return Err(error.help("make the part at most as long as the axis"));
    }
    let shape = x.shape.meet(&part.shape.with_extent(axis, Dim::Unknown));
    Ok((TensorType { dtype: x.dtype, shape }, axis))
}

/// Returns the end of the range of `m` elements from `start` with a step, unless no number is.
fn end_of_range(start: usize, m: usize, step: usize) -> Option<usize> {
    match m.checked_sub(1) {
        None => Some(start),
        Some(steps) => steps.checked_mul(step)?.checked_add(start)?.checked_add(1),
    }
}

/// The first operand with every `step`-th element from `start` on replaced by the second.
static UPDATE_SLICE: OpDef = OpDef {
    name: "update_slice",
    arity: Arity::Exactly(2),
    attrs: SliceTarget::DECLARED,
    infer: |cx| {
        let (ty, axis) = infer_update(cx)?;
        let SliceTarget { start, step, .. } = SliceTarget::of(cx.attrs);
        let part = cx.tensor(1)?;
        let label = format!("{part} into {ty}");
        if step < 1 {
            return Err(OpError::new(format!(
                "the start is {start} and the step is {step}, but the step must be at least 1"
            ))
            .label(label)
            .help("a step of 1 writes adjacent elements"));
        }
        if let Some(m) = part.shape.dims()[axis].known().filter(|&m| m > 0) {
            let (n, end) = (ty.shape.dims()[axis].known(), end_of_range(start, m, step));
            if end.is_none_or(|end| n.is_some_and(|n| end > n)) {
                let of_extent = n.map_or(String::new(), |n| format!(" of extent {n}"));
                let message =
                    format!("{m} elements from {start} with step {step} do not fit into axis {axis}{of_extent}");
                return Err(OpError::new(message).label(label).help("write fewer elements, or start earlier"));
            }
        }
        Ok(ty.into())
    },
    eval: |cx| {
        let SliceTarget { start, step, .. } = SliceTarget::of(cx.attrs);
        Ok(write_part(cx, start, step))
    },
    grad: Grad::Rule(|n| {
        let SliceTarget { axis, start, step } = SliceTarget::of(n.attrs());
        let whole = || n.dy().written(zeros(n, 1), axis, start, step);
        let part = || {
            let m = extent_for_gradient("update_slice", n.ty(1), axis);
            let end = end_of_range(start, m, step).expect("inference rejects a range that no number ends");
            n.dy().ranged(axis, start, end, step)
        };
        vec![n.needs(0).then(whole), n.needs(1).then(part)]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Update,
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the extent of an axis, which a gradient needs during tracing.
fn extent_for_gradient(op: &str, ty: &TensorType, axis: usize) -> usize {
    ty.shape.dims()[axis].known().unwrap_or_else(|| {
        let error = OpError::new(format!("the gradient needs a known extent of axis {axis}")).label(ty.to_string());
        refuse::<InGraph<'_>>(op, error.help("give the function a concrete signature"))
    })
}

/// Returns the start of a slice of extent `size`, if the slice is in range.
fn dynamic_start(cx: &EvalCx<'_>, start: &HostTensor, size: usize) -> Result<usize, OpError> {
    let axis = Along::of(cx.attrs).axis;
    start_in_range(numbers(start)[0], &IndexRange { axis, extent: cx.operands[0].shape()[axis], size })
}

/// Returns the start of a slice, if the slice is in range.
fn start_in_range(start: i64, range: &IndexRange) -> Result<usize, OpError> {
    let &IndexRange { axis, extent, size } = range;
    match usize::try_from(start) {
        Ok(s) if s + size <= extent => Ok(s),
        _ if size == 1 => {
            let error = OpError::new(format!("index {start} is out of bounds for axis {axis} of extent {extent}"));
            Err(error.help(super::axes::indices(extent)))
        }
        _ => {
            let end = start.saturating_add(size as i64);
            let message = format!("the range {start}..{end} is out of bounds for axis {axis} of extent {extent}");
            let help = match extent.checked_sub(size) {
                None | Some(0) => "the range must start at 0".to_owned(),
                Some(last) => format!("{size} elements start at 0 to {last}"),
            };
            Err(OpError::new(message).help(help))
        }
    }
}

/// Adds `part` to the slice of extent `size` of `whole` that starts at `start`.
fn add_slice_at<'g>(
    whole: GradValue<'g>,
    part: GradValue<'g>,
    start: GradValue<'g>,
    axis: isize,
    size: usize,
) -> GradValue<'g> {
    if whole.dtype().is_half() {
        // A sum of halves at indices would convert the whole tensor.
        let sum = whole.slice_at(start, axis, size).add(part);
        return whole.update_slice_at(sum, start, axis);
    }
    let ids = if size == 1 {
        start.reshape([1])
    } else {
        // The sum of a start and a position may exceed the smallest integers.
        let start = if start.dtype() == DType::U8 { start.cast(DType::I32) } else { start };
        let places = positions(start.context(), Shape::from([size]), 0, start.dtype());
        start.broadcast_to([size]).add(places)
    };
    whole.scatter_add(ids, part, axis)
}

/// The slice of extent `size` along an axis that starts at the second operand.
static DYNAMIC_SLICE: OpDef = OpDef {
    name: "dynamic_slice",
    arity: Arity::Exactly(2),
    attrs: DynamicSlice::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        check_scalar(cx, 1, Class::Int, "start")?;
        let (axis, DynamicSlice { size, .. }) = (axis_attr(cx, x)?, DynamicSlice::of(cx.attrs));
        let n = x.shape.dims()[axis].known();
        if n.is_some_and(|n| size > n) {
            let extent = &x.shape.dims()[axis];
            let message = format!("a part of extent {size} does not fit into axis {axis} of extent {extent}");
            let help = "use a smaller part, or pad the tensor with `.pad(..)`";
            return Err(OpError::new(message).label(x.to_string()).help(help));
        }
        Ok(Type::tensor(x.dtype, x.shape.with_extent(axis, Dim::Known(size))))
    },
    eval: |cx| Ok(read_part(cx, dynamic_start(cx, cx.operands[1], DynamicSlice::of(cx.attrs).size)?, 1)),
    grad: Grad::Rule(|n| {
        let DynamicSlice { axis, size } = DynamicSlice::of(n.attrs());
        vec![
            Some(match n.cotangent_so_far(0) {
                Some(sum) => add_slice_at(sum, n.dy(), n.x(1), axis as isize, size),
                None => zeros(n, 0).update_slice_at(n.dy(), n.x(1), axis as isize),
            }),
            None,
        ]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Gather,
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// The first operand with the slice that starts at the third replaced by the second.
static DYNAMIC_UPDATE_SLICE: OpDef = OpDef {
    name: "dynamic_update_slice",
    arity: Arity::Exactly(3),
    attrs: Along::DECLARED,
    infer: |cx| {
        check_scalar(cx, 2, Class::Int, "start")?;
        Ok(infer_update(cx)?.0.into())
    },
    eval: |cx| {
        let size = cx.operands[1].shape()[Along::of(cx.attrs).axis];
        Ok(write_part(cx, dynamic_start(cx, cx.operands[2], size)?, 1))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis;
        let whole = || n.dy().update_slice_at(zeros(n, 1), n.x(2), axis as isize);
        let part = || {
            let size = extent_for_gradient("dynamic_update_slice", n.ty(1), axis);
            n.dy().slice_at(n.x(2), axis as isize, size)
        };
        vec![n.needs(0).then(whole), n.needs(1).then(part), None]
    }),
    exactness: Exactness::Exact,
    class: OpClass::Scatter(None),
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// The first operand, if all of its elements are in the range. An error shows the types of the
/// other operands.
///
/// The gradient of a loop saves the indices at which the loop reads. This operation checks them in
/// the loop, so that the first one that is wrong fails, even if nothing else needs what it reads.
/// If an operation at indices becomes others, the other operands are of the types of its operands.
static CHECK_INDEX: OpDef = OpDef {
    name: "check_index",
    arity: Arity::AtLeast(1),
    attrs: IndexRange::DECLARED,
    infer: |cx| {
        Class::Int.check(cx.tensor(0)?)?;
        Ok(cx.tensor(0)?.clone().into())
    },
    eval: |cx| {
        let (ids, range) = (cx.operands[0], IndexRange::of(cx.attrs));
        let checked = match range.size {
            1 => super::gather::checked(ids, range.axis, range.extent).map(|_| ()),
            _ => numbers(ids).into_iter().try_for_each(|start| start_in_range(start, &range).map(|_| ())),
        };
        let shown: Vec<String> = cx.operands[1..].iter().map(|t| t.ty().to_string()).collect();
        // Without other operands, the label is the type of the indices.
        checked.map(|()| ids.clone()).map_err(|error| error.label(shown.join(", ")))
    },
    grad: Grad::Zero("indices have no derivative"),
    exactness: Exactness::Exact,
    class: OpClass::Opaque(Effort::SIMPLE),
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::slice`].
    #[track_caller]
    pub fn slice(self, axis: isize, start: usize, end: usize) -> AnyValue<C> {
        self.slice_step(axis, start, end, 1)
    }

    /// See [`Tensor::slice_step`].
    #[track_caller]
    pub fn slice_step(self, axis: isize, start: usize, end: usize, step: usize) -> AnyValue<C> {
        let axis = self.axis("slice", axis);
        self.ranged(axis, start, end, step)
    }

    #[track_caller]
    fn ranged(self, axis: usize, start: usize, end: usize, step: usize) -> AnyValue<C> {
        emit(prim::SLICE, &[self], Slice { axis, start, end, step }.into())
    }

    /// See [`Tensor::update_slice`].
    #[track_caller]
    pub fn update_slice(self, part: AnyValue<C>, axis: isize, start: usize) -> AnyValue<C> {
        let axis = self.axis("update_slice", axis);
        self.written(part, axis, start, 1)
    }

    #[track_caller]
    fn written(self, part: AnyValue<C>, axis: usize, start: usize, step: usize) -> AnyValue<C> {
        emit(prim::UPDATE_SLICE, &[self, part], SliceTarget { axis, start, step }.into())
    }

    /// See [`Tensor::slice_at`].
    #[track_caller]
    pub fn slice_at(self, start: AnyValue<C>, axis: isize, size: usize) -> AnyValue<C> {
        let axis = self.axis("dynamic_slice", axis);
        emit(prim::DYNAMIC_SLICE, &[self, start], DynamicSlice { axis, size }.into())
    }

    /// See [`Tensor::update_slice_at`].
    #[track_caller]
    pub fn update_slice_at(self, part: AnyValue<C>, start: AnyValue<C>, axis: isize) -> AnyValue<C> {
        let axis = self.axis("dynamic_update_slice", axis);
        emit(prim::DYNAMIC_UPDATE_SLICE, &[self, part, start], Along { axis }.into())
    }
}

/// An index along an axis: a host integer, counted from the end if negative, or a scalar tensor.
pub trait ScalarIndex {
    /// Returns the slice of `x` at this index, without the axis.
    #[track_caller]
    fn choose(self, x: AnyValue, axis: isize) -> AnyValue;
    /// Returns `x` with the slice at this index replaced by `part`, which does not have the axis.
    #[track_caller]
    fn replace(self, x: AnyValue, axis: isize, part: AnyValue) -> AnyValue;
}

impl<I: Integer> ScalarIndex for Tensor<I> {
    #[track_caller]
    fn choose(self, x: AnyValue, axis: isize) -> AnyValue {
        x.slice_at(self.untyped(), axis, 1).squeeze(axis)
    }
    #[track_caller]
    fn replace(self, x: AnyValue, axis: isize, part: AnyValue) -> AnyValue {
        x.update_slice_at(part.with_axis_of(x, axis), self.untyped(), axis)
    }
}
impl ScalarIndex for usize {
    #[track_caller]
    fn choose(self, x: AnyValue, axis: isize) -> AnyValue {
        let index = x.host_index("index", axis, self as i128);
        x.slice(axis, index, index + 1).squeeze(axis)
    }
    #[track_caller]
    fn replace(self, x: AnyValue, axis: isize, part: AnyValue) -> AnyValue {
        let index = x.host_index("with_index", axis, self as i128);
        x.update_slice(part.with_axis_of(x, axis), axis, index)
    }
}
impl ScalarIndex for i32 {
    #[track_caller]
    fn choose(self, x: AnyValue, axis: isize) -> AnyValue {
        x.host_index("index", axis, self.into()).choose(x, axis)
    }
    #[track_caller]
    fn replace(self, x: AnyValue, axis: isize, part: AnyValue) -> AnyValue {
        x.host_index("with_index", axis, self.into()).replace(x, axis, part)
    }
}

impl AnyValue {
    /// Returns an index of the host counted from the front. One that is not negative is not checked
    /// for an unknown extent.
    #[track_caller]
    fn host_index(self, op: &str, axis: isize, index: i128) -> usize {
        let extent = self.shape().dims()[self.axis(op, axis)].known();
        let n = if index < 0 || extent.is_some() { self.dim(axis) } else { usize::MAX };
        let from_front = if index < 0 { index + n as i128 } else { index };
        if !(0..n as i128).contains(&from_front) {
            let error = OpError::new(format!("index {index} is out of bounds for axis {axis} of extent {n}"));
            refuse::<InTrace>(op, error.label(self.ty().to_string()).help(super::axes::host_indices(n)));
        }
        from_front as usize
    }

    /// Returns a slice of `x` with its axis of extent 1, after it has been broadcast to its shape.
    #[track_caller]
    fn with_axis_of(self, x: AnyValue, axis: isize) -> AnyValue {
        let at = x.axis("with_index", axis);
        let shape = super::infer::reduced(&x.shape(), &[at], false);
        let part = if self.shape() == shape { self } else { self.broadcast_to(shape) };
        part.unsqueeze(at as isize)
    }
}

impl<T: Element> Tensor<T> {
    /// Returns the elements `start` to `end - 1` along an axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2, 3, 4]).slice(0, 1, 3))?.as_slice(), [2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn slice(self, axis: isize, start: usize, end: usize) -> Tensor<T> {
        Tensor::from_any(self.untyped().slice(axis, start, end))
    }

    /// Returns every `step`-th of the elements `start` to `end - 1` along an axis, beginning with
    /// `start`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0, 1, 2, 3, 4]).slice_step(0, 0, 5, 2))?.as_slice(), [0, 2, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn slice_step(self, axis: isize, start: usize, end: usize, step: usize) -> Tensor<T> {
        Tensor::from_any(self.untyped().slice_step(axis, start, end, step))
    }

    /// Returns this tensor with the elements from `start` on along an axis replaced by `part`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([1, 2, 3, 4]).update_slice(tensor([0, 0]), 0, 1))?.as_slice(),
    ///     [1, 0, 0, 4]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn update_slice(self, part: Tensor<T>, axis: isize, start: usize) -> Tensor<T> {
        Tensor::from_any(self.untyped().update_slice(part.untyped(), axis, start))
    }

    /// Returns the slice of `size` elements along an axis from a start computed in the graph.
    ///
    /// A range out of bounds fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2, 3, 4]).slice_at(scalar(1), 0, 2))?.as_slice(), [2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn slice_at<I: Integer>(self, start: Tensor<I>, axis: isize, size: usize) -> Tensor<T> {
        Tensor::from_any(self.untyped().slice_at(start.untyped(), axis, size))
    }

    /// Returns this tensor with a slice along an axis, from a start computed in the graph, replaced
    /// by `part`.
    ///
    /// A range out of bounds fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([1, 2, 3]).update_slice_at(tensor([0]), scalar(2), 0))?;
    /// assert_eq!(y.as_slice(), [1, 2, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn update_slice_at<I: Integer>(self, part: Tensor<T>, start: Tensor<I>, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().update_slice_at(part.untyped(), start.untyped(), axis))
    }

    /// Returns the slice at one index along an axis, without that axis.
    ///
    /// A host index is counted from the end if negative. A scalar tensor that is out of range
    /// fails the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).index(-1, 1))?.as_slice(), [2, 4]);
    /// let out = eval(|| tensor([1, 2, 3]).index(scalar(7), 0)).unwrap_err();
    /// assert_eq!(out.message, "dynamic_slice: index 7 is out of bounds for axis 0 of extent 3");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn index(self, index: impl ScalarIndex, axis: isize) -> Tensor<T> {
        Tensor::from_any(index.choose(self.untyped(), axis))
    }

    /// Returns the slice at one index along the first axis, without that axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).row(1))?.as_slice(), [3, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn row(self, index: impl ScalarIndex) -> Tensor<T> {
        self.index(index, 0)
    }

    /// Returns the slice at one index along the last axis, without that axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).column(1))?.as_slice(), [2, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn column(self, index: impl ScalarIndex) -> Tensor<T> {
        self.index(index, -1)
    }

    /// Returns this tensor with the slice at one index along an axis replaced by `value`, which
    /// does not have the axis, and broadcasts. It is the counterpart of [`index`](Tensor::index).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[1, 2], [3, 4]]).with_index(-1, 1, tensor([8, 9])))?;
    /// assert_eq!(y.as_slice(), [1, 8, 3, 9]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis or index, or if the value does not broadcast to
    /// the slice. A scalar tensor that is out of range fails the step.
    #[track_caller]
    #[must_use]
    pub fn with_index(self, index: impl ScalarIndex, axis: isize, value: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(index.replace(self.untyped(), axis, value.into_tensor().untyped()))
    }

    /// Returns this tensor with the slice at one index along the first axis replaced by `value`.
    /// NumPy's `x[i] = v` is `x = x.with_row(i, v)`, and its `x[i, j] = v` is `x = x.with_row(i,
    /// x.row(i).with_row(j, v))`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let (x, i) = (|| tensor([[1, 2], [3, 4]]), || scalar(1));
    /// assert_eq!(eval(|| x().with_row(i(), 0))?.as_slice(), [1, 2, 0, 0]);
    /// assert_eq!(eval(|| x().with_row(1, x().row(1).with_row(i(), 9)))?.as_slice(), [1, 2, 3, 9]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// See [`with_index`](Tensor::with_index).
    #[track_caller]
    #[must_use]
    pub fn with_row(self, index: impl ScalarIndex, value: impl Operand<T>) -> Tensor<T> {
        self.with_index(index, 0, value)
    }
}
