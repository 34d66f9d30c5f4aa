//! `List<T>`: lists of tensors whose length is known only at run time.

use crate::derivatives::Wrt;
use crate::ir::ListOp;
use crate::ops::AnyValue;
use crate::staged::{FlatState, Reader};
use crate::trace;
use crate::{Carry, Diagnostic, Dim, Element, Float, Loc, Operand, Shape, Tensor, TensorType, Type};
use std::marker::PhantomData;

/// A symbolic list of tensors with elements of type `T`, in the function being traced.
///
/// TensorFlow calls it a `TensorArray` (Yu et al., EuroSys 2018, §2.1 and §5.2).
///
/// The length of a list may depend on data: a staged loop can push to it. All tensors of a list
/// have the same rank. Extents known when the list is created apply to all of them. Unknown extents
/// ([`Dim::Unknown`]) may differ between elements.
///
/// A handle is `Copy`, and a list is a value: after `let b = a;` a push to `a` does not change `b`.
/// A list with a single handle in use is updated in place, so pushing and writing take amortized
/// constant time. A list that is used again after an update is copied.
///
/// An element is written once, by `push`, `write` or `scatter`; writing it again is an error.
/// Unwritten elements are zeros of the given shape. If that has unknown extents, reading one is an
/// error.
///
/// Every operation has a gradient. The cotangents of an element that is read several times are
/// summed. An element that is never read has a zero cotangent.
///
/// # Errors
/// An element of another rank or with other known extents is an error during tracing. At run time,
/// these are errors: an index out of range, a pop of an empty list, a second write, and an element
/// whose shape differs from that of the list. The errors name the operation, the line, the index
/// and the length.
///
/// ```
/// use anabranch::prelude::*;
///
/// let y = eval(|| {
///     let x = tensor([1.0f32, 2.0, 3.0]);
///     let mut list = List::new(());
///     for i in 0..3 {
///         list.push(x.index(i, 0) * 10.0);
///     }
///     let last = list.pop();
///     (list.stack(), last, list.len())
/// })?;
/// assert_eq!(y.0.as_slice(), [10.0, 20.0]);
/// assert_eq!(y.1, 30.0);
/// assert_eq!(y.2, 2);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct List<T: Element = f32> {
    any: AnyValue,
    element: PhantomData<T>,
}

impl<T: Element> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element> Copy for List<T> {}

impl<T: Element> std::fmt::Debug for List<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if crate::staged::is_making_text() {
            let error = Diagnostic::new("a list cannot be printed")
                .at(Loc::UNKNOWN, "a `List` is a symbol while its function is traced")
                .help("print all elements, `list.stack()`, or one of them, `list.read(i)`");
            trace::fail(error);
        }
        write!(f, "{}: ", self.any.value())?;
        if trace::is_tracing() { write!(f, "{}", self.any.ty()) } else { write!(f, "list<{}>", T::DTYPE) }
    }
}

/// An index into a list, or a length: a host number or a scalar tensor.
pub trait ListIndex: Copy {
    /// Returns the index as a scalar tensor.
    fn into_index(self) -> Tensor<i32>;
}
impl ListIndex for Tensor<i32> {
    fn into_index(self) -> Tensor<i32> {
        self
    }
}
impl ListIndex for i32 {
    #[track_caller]
    fn into_index(self) -> Tensor<i32> {
        crate::scalar(self)
    }
}
impl ListIndex for usize {
    /// Numbers beyond `i32` exceed the length of any list.
    #[track_caller]
    fn into_index(self) -> Tensor<i32> {
        crate::scalar(i32::try_from(self).unwrap_or(i32::MAX))
    }
}

impl<T: Element> List<T> {
    /// Creates an empty list of tensors of a shape.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::new([2]);
    ///     list.push(tensor([1, 2]));
    ///     list.push(tensor([3, 4]));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.shape(), [2, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn new(shape: impl Into<Shape>) -> List<T> {
        List::with_len(0, shape)
    }

    /// Creates a list of `n` tensors of a shape, none of them written.
    ///
    /// # Errors
    /// Fails if `n` is negative.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::with_len(3, ());
    ///     list.write(1, scalar(5));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.as_slice(), [0, 5, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn with_len(n: impl ListIndex, shape: impl Into<Shape>) -> List<T> {
        let element = TensorType::new(T::DTYPE, shape);
        let n = n.into_index().untyped();
        List::from_any(trace::emit_list(ListOp::New(element), &[n])[0])
    }

    /// Splits a tensor along its first axis into a list with one element for each index.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| List::unstack(tensor([[1, 2], [3, 4]])).read(1))?;
    /// assert_eq!(y.as_slice(), [3, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn unstack(x: Tensor<T>) -> List<T> {
        List::from_any(trace::emit_list(ListOp::Unstack, &[x.untyped()])[0])
    }

    /// Splits a tensor along its first axis into parts of the given extents, an `i32[k]`.
    ///
    /// # Errors
    /// Fails at run time if an extent is negative, or if they do not add up to that of the tensor.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| List::split(tensor([1, 2, 3]), tensor([1, 2])).read(1))?;
    /// assert_eq!(y.as_slice(), [2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn split(x: Tensor<T>, extents: Tensor<i32>) -> List<T> {
        List::from_any(trace::emit_list(ListOp::Split(Dim::Unknown), &[x.untyped(), extents.untyped()])[0])
    }

    /// Wraps an untyped handle.
    ///
    /// # Panics
    /// Panics if the handle is not a list with elements of this type.
    #[track_caller]
    pub fn from_any(any: AnyValue) -> List<T> {
        let ty = any.ty();
        let is_list = matches!(&ty, Type::List(element) if element.dtype == T::DTYPE);
        assert!(is_list, "a handle of {ty} as List<{}>", T::DTYPE);
        List { any, element: PhantomData }
    }

    /// Returns the untyped handle.
    pub fn untyped(self) -> AnyValue {
        self.any
    }

    /// Names the value, for messages and printing.
    #[must_use]
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> List<T> {
        List { any: self.any.named(name), element: PhantomData }
    }

    #[track_caller]
    fn query(self, op: ListOp, operands: &[AnyValue]) -> AnyValue {
        trace::emit_list(op, &[&[self.any], operands].concat())[0]
    }

    #[track_caller]
    fn update(&mut self, op: ListOp, operands: &[AnyValue]) -> Option<AnyValue> {
        let results = trace::emit_list(op, &[&[self.any], operands].concat());
        self.any = results[0];
        results.get(1).copied()
    }

    /// Appends an element.
    #[track_caller]
    pub fn push(&mut self, x: impl Operand<T>) {
        self.update(ListOp::Push, &[x.into_tensor().untyped()]);
    }

    /// Removes the last element and returns it.
    ///
    /// # Errors
    /// Fails at run time if the list is empty.
    #[track_caller]
    pub fn pop(&mut self) -> Tensor<T> {
        Tensor::from_any(self.update(ListOp::Pop, &[]).expect("a pop returns an element"))
    }

    /// Returns the element at an index.
    ///
    /// # Errors
    /// Fails at run time if the index is negative or not less than the length.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let error = eval(|| List::unstack(tensor([1, 2])).read(2)).unwrap_err();
    /// assert_eq!(error.message, "list_read: index 2 is out of bounds for a list of 2 elements");
    /// ```
    #[track_caller]
    #[must_use]
    pub fn read(self, index: impl ListIndex) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Read, &[index.into_index().untyped()]))
    }

    /// Writes an element.
    ///
    /// # Errors
    /// Fails at run time if the index is negative or not less than the length, or if the element
    /// has been written already.
    #[track_caller]
    pub fn write(&mut self, index: impl ListIndex, x: impl Operand<T>) {
        self.update(ListOp::Write, &[index.into_index().untyped(), x.into_tensor().untyped()]);
    }

    /// Returns the elements at several indices, an `i32[k]`, stacked along a new first axis.
    ///
    /// # Errors
    /// Fails at run time if an index is out of range or the elements have different shapes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| List::unstack(tensor([1, 2, 3])).gather(tensor([2, 0, 2])))?;
    /// assert_eq!(y.as_slice(), [3, 1, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn gather(self, indices: Tensor<i32>) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Gather, &[indices.untyped()]))
    }

    /// Writes several elements: the slices of `values` along its first axis, at the given indices,
    /// an `i32[k]`.
    ///
    /// # Errors
    /// Fails at run time if an index is out of range or an element has been written already,
    /// including by this operation.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::with_len(3, ());
    ///     list.scatter(tensor([2, 0]), tensor([7, 8]));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.as_slice(), [8, 0, 7]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn scatter(&mut self, indices: Tensor<i32>, values: Tensor<T>) {
        self.update(ListOp::Scatter, &[indices.untyped(), values.untyped()]);
    }

    /// Stacks all elements along a new first axis, whose extent is known only at run time.
    ///
    /// # Errors
    /// Fails at run time if the elements have different shapes, or if there are none and their
    /// shape is unknown.
    #[track_caller]
    #[must_use]
    pub fn stack(self) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Stack(Dim::Unknown), &[]))
    }

    /// Stacks all `n` elements along a new first axis.
    ///
    /// Unlike [`stack`](Self::stack), the shape is known during tracing, which makes later
    /// operations faster.
    ///
    /// # Errors
    /// Fails like `stack`, and at run time if the list has another length.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::new(());
    ///     list.push(scalar(1));
    ///     list.push(scalar(2));
    ///     list.stack_exact(2).reshape([1, 2])
    /// })?;
    /// assert_eq!(y.shape(), [1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn stack_exact(self, n: impl Into<Dim>) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Stack(n.into()), &[]))
    }

    /// Concatenates all elements along their first axis.
    ///
    /// # Errors
    /// Fails during tracing if the elements have no axes, and at run time if they differ in another
    /// axis than the first.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| List::unstack(tensor([[1, 2], [3, 4]])).concat())?;
    /// assert_eq!(y.as_slice(), [1, 2, 3, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn concat(self) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Concat(Dim::Unknown), &[]))
    }

    /// Returns the number of elements as a scalar.
    #[track_caller]
    #[must_use]
    pub fn len(self) -> Tensor<i32> {
        Tensor::from_any(self.query(ListOp::Len, &[]))
    }

    /// Returns the first extent of each element.
    ///
    /// With them, [`split`](Self::split) reverses [`concat`](Self::concat).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| List::split(tensor([1, 2, 3]), tensor([1, 2])).extents())?;
    /// assert_eq!(y.as_slice(), [1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn extents(self) -> Tensor<i32> {
        Tensor::from_any(self.query(ListOp::Extents, &[]))
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Carry for List<T> {
    fn flatten(&self, state: &mut FlatState) {
        state.tensor(self.any);
    }
    #[track_caller]
    fn rebuild(state: &mut Reader<'_>) -> Self {
        List::from_any(state.tensor())
    }
}

/// The gradient with respect to a list is a list of the same length.
impl<T: Float> Wrt for List<T> {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        to.push(self.any);
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        List::from_any(from.next().expect("there is one gradient for each list"))
    }
}
