//! `List<T>`: tensors one by one, as many as the data decides.

use crate::autodiff::Wrt;
use crate::ir::ListOp;
use crate::staged::{Reader, State};
use crate::trace::{self, Any};
use crate::{Carry, Diagnostic, Dim, Element, Float, Loc, Operand, Shape, Tensor, TensorType, Type};
use std::marker::PhantomData;

/// A symbol for a list of tensors with elements of type `T`, in the function that is being traced: what TensorFlow calls a
/// `TensorArray` (Yu et al., EuroSys 2018, §2.1 and §5.2).
///
/// How long it is may depend on the data: a staged loop can push to it. All its tensors have one rank; extents that are known
/// when it is made are those of all of them, and others ([`Dim::Unknown`]) may differ from element to element.
///
/// A handle is `Copy`, and a list is a value: after `let b = a;` a push to `a` does not change `b`. A list of which there is one handle
/// in use is changed in place, so pushing and writing take constant time on average. Copies are made where a list is used again after it
/// was changed.
///
/// An element is written once, by `push`, `write` or `scatter`, and a second time is an error. Elements that are not
/// written are zeros of the shape that was given; if that has unknown extents, reading one is an error.
///
/// Every operation has a gradient. An element that is read several times gets the sum, one that is never read gets zero.
///
/// # Errors
/// An element of another rank or of other known extents is an error while tracing. At run time, with the operation, the line, the
/// index and the length: an index that is negative or too large, a pop of an empty list, a second write, and an element whose shape
/// is not that of the list.
///
/// ```
/// use anabranch_dsl::prelude::*;
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
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
pub struct List<T: Element = f32> {
    any: Any,
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
            let error = Diagnostic::new("a list is not printed")
                .at(Loc::UNKNOWN, "a `List` is a symbol while its function is traced")
                .help("print its elements: `list.stack()`, or one of them: `list.read(i)`");
            trace::fail(error);
        }
        write!(f, "{}: ", self.any.value())?;
        if trace::is_tracing() { write!(f, "{}", self.any.ty()) } else { write!(f, "list<{}>", T::DTYPE) }
    }
}

/// A place in a list, or a length: a number of the host or a scalar tensor.
pub trait ListIndex: Copy {
    /// The scalar tensor.
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
    /// Numbers beyond `i32` are beyond any list.
    #[track_caller]
    fn into_index(self) -> Tensor<i32> {
        crate::scalar(i32::try_from(self).unwrap_or(i32::MAX))
    }
}

impl<T: Element> List<T> {
    /// An empty list of tensors of a shape.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::new([2]);
    ///     list.push(tensor([1, 2]));
    ///     list.push(tensor([3, 4]));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.shape(), [2, 2]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn new(shape: impl Into<Shape>) -> List<T> {
        List::with_len(0, shape)
    }

    /// A list of `n` tensors of a shape, none of them written.
    ///
    /// # Errors
    /// `n` is negative.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::with_len(3, ());
    ///     list.write(1, scalar(5));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.as_slice(), [0, 5, 0]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn with_len(n: impl ListIndex, shape: impl Into<Shape>) -> List<T> {
        let element = TensorType::new(T::DTYPE, shape);
        let n = n.into_index().untyped();
        List::from_any(trace::emit_list(ListOp::New(element), &[n])[0])
    }

    /// What lies along the first axis of a tensor, one element for each index.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| List::unstack(tensor([[1, 2], [3, 4]])).read(1))?;
    /// assert_eq!(y.as_slice(), [3, 4]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn unstack(x: Tensor<T>) -> List<T> {
        List::from_any(trace::emit_list(ListOp::Unstack, &[x.untyped()])[0])
    }

    /// A tensor cut along its first axis into parts of the given extents, an `i32[k]`.
    ///
    /// # Errors
    /// At run time: an extent is negative, or they do not add up to that of the tensor.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| List::split(tensor([1, 2, 3]), tensor([1, 2])).read(1))?;
    /// assert_eq!(y.as_slice(), [2, 3]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn split(x: Tensor<T>, extents: Tensor<i32>) -> List<T> {
        List::from_any(trace::emit_list(ListOp::Split(Dim::Unknown), &[x.untyped(), extents.untyped()])[0])
    }

    /// The list of an untyped handle.
    ///
    /// # Panics
    /// If it is no list, or one of other elements: the caller knows the type.
    #[track_caller]
    pub fn from_any(any: Any) -> List<T> {
        let ty = any.ty();
        let is_list = matches!(&ty, Type::List(element) if element.dtype == T::DTYPE);
        assert!(is_list, "a handle of {ty} as List<{}>", T::DTYPE);
        List { any, element: PhantomData }
    }

    /// The untyped handle.
    pub fn untyped(self) -> Any {
        self.any
    }

    /// Names the value, for messages and for printing.
    #[must_use]
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> List<T> {
        List { any: self.any.named(name), element: PhantomData }
    }

    #[track_caller]
    fn query(self, op: ListOp, operands: &[Any]) -> Any {
        trace::emit_list(op, &[&[self.any], operands].concat())[0]
    }

    #[track_caller]
    fn update(&mut self, op: ListOp, operands: &[Any]) -> Option<Any> {
        let results = trace::emit_list(op, &[&[self.any], operands].concat());
        self.any = results[0];
        results.get(1).copied()
    }

    /// Appends an element.
    #[track_caller]
    pub fn push(&mut self, x: impl Operand<T>) {
        self.update(ListOp::Push, &[x.into_tensor().untyped()]);
    }

    /// Takes the last element away.
    ///
    /// # Errors
    /// At run time: the list is empty.
    #[track_caller]
    pub fn pop(&mut self) -> Tensor<T> {
        Tensor::from_any(self.update(ListOp::Pop, &[]).expect("a pop gives an element"))
    }

    /// One element.
    ///
    /// # Errors
    /// At run time: the index is negative, or not less than the length.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let error = eval(|| List::unstack(tensor([1, 2])).read(2)).unwrap_err();
    /// assert_eq!(error.message, "list_read: index 2 is out of range for a list of 2 elements");
    /// ```
    #[track_caller]
    #[must_use]
    pub fn read(self, index: impl ListIndex) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Read, &[index.into_index().untyped()]))
    }

    /// Writes an element.
    ///
    /// # Errors
    /// At run time: the index is negative or not less than the length, or the element is written already.
    #[track_caller]
    pub fn write(&mut self, index: impl ListIndex, x: impl Operand<T>) {
        self.update(ListOp::Write, &[index.into_index().untyped(), x.into_tensor().untyped()]);
    }

    /// The elements at several indices, an `i32[k]`, along a new first axis.
    ///
    /// # Errors
    /// At run time: an index is out of range, or the elements have different shapes.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| List::unstack(tensor([1, 2, 3])).gather(tensor([2, 0, 2])))?;
    /// assert_eq!(y.as_slice(), [3, 1, 3]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn gather(self, indices: Tensor<i32>) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Gather, &[indices.untyped()]))
    }

    /// Writes several elements: the values lie along the first axis of `values`, in the order of the indices, an `i32[k]`.
    ///
    /// # Errors
    /// At run time: an index is out of range, or an element is written already, also by this operation.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::with_len(3, ());
    ///     list.scatter(tensor([2, 0]), tensor([7, 8]));
    ///     list.stack()
    /// })?;
    /// assert_eq!(y.as_slice(), [8, 0, 7]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn scatter(&mut self, indices: Tensor<i32>, values: Tensor<T>) {
        self.update(ListOp::Scatter, &[indices.untyped(), values.untyped()]);
    }

    /// All elements along a new first axis, whose extent is known only at run time.
    ///
    /// # Errors
    /// At run time: the elements have different shapes, or there are none and their shape is not known.
    #[track_caller]
    #[must_use]
    pub fn stack(self) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Stack(Dim::Unknown), &[]))
    }

    /// All elements, of which there are `n`, along a new first axis: like [`stack`](Self::stack), with a shape that is known while
    /// tracing, which makes what follows faster.
    ///
    /// # Errors
    /// At run time: the list is of another length; and those of `stack`.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| {
    ///     let mut list = List::new(());
    ///     list.push(scalar(1));
    ///     list.push(scalar(2));
    ///     list.stack_exact(2).reshape([1, 2])
    /// })?;
    /// assert_eq!(y.shape(), [1, 2]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn stack_exact(self, n: impl Into<Dim>) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Stack(n.into()), &[]))
    }

    /// All elements one behind the other, along their first axis.
    ///
    /// # Errors
    /// While tracing: the elements have no axis. At run time: they differ in another axis than the first.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| List::unstack(tensor([[1, 2], [3, 4]])).concat())?;
    /// assert_eq!(y.as_slice(), [1, 2, 3, 4]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn concat(self) -> Tensor<T> {
        Tensor::from_any(self.query(ListOp::Concat(Dim::Unknown), &[]))
    }

    /// Number of elements, as a scalar.
    #[track_caller]
    #[must_use]
    pub fn len(self) -> Tensor<i32> {
        Tensor::from_any(self.query(ListOp::Len, &[]))
    }

    /// The first extent of each element: with them, [`split`](Self::split) undoes [`concat`](Self::concat).
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| List::split(tensor([1, 2, 3]), tensor([1, 2])).extents())?;
    /// assert_eq!(y.as_slice(), [1, 2]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn extents(self) -> Tensor<i32> {
        Tensor::from_any(self.query(ListOp::Extents, &[]))
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Carry for List<T> {
    fn flatten(&self, state: &mut State) {
        state.tensor(self.any);
    }
    #[track_caller]
    fn rebuild(state: &mut Reader<'_>) -> Self {
        List::from_any(state.tensor())
    }
}

/// The gradient of a list is a list of the same length.
impl<T: Float> Wrt for List<T> {
    fn tensors(&self, to: &mut Vec<Any>) {
        to.push(self.any);
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self {
        List::from_any(from.next().expect("one gradient for each list"))
    }
}
