//! `Tensor<T>`, the main type of model code.

use crate::ops::{AnyValue, InTrace, ValueCx};
use crate::{Array, Bytes, Element, Float, HostTensor, Integer, IntoArray, Numeric, Shape, bf16, f16};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops;

/// A symbolic tensor with elements of type `T`, in the function being traced.
///
/// A handle is `Copy` and holds no data: operations on it append nodes to the graph. Its shape is
/// inferred during tracing. Mismatched shapes are errors at the line of the operation, before
/// anything runs.
///
/// ```
/// use anabranch::prelude::*;
///
/// let y = eval(|| {
///     let x = tensor([1.0, 2.0, 3.0]);
///     (x * x + 1.0f32).sum()
/// })?;
/// assert_eq!(y, 17.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct Tensor<T: Element = f32> {
    any: AnyValue,
    element: PhantomData<T>,
}

impl<T: Element> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element> Copy for Tensor<T> {}

impl<T: Element> Tensor<T> {
    /// Wraps an untyped handle.
    ///
    /// # Panics
    /// Panics if its elements have another type.
    #[track_caller]
    pub fn from_any(any: AnyValue) -> Tensor<T> {
        let dtype = any.dtype();
        assert_eq!(dtype, T::DTYPE, "a handle of a tensor of {dtype} as Tensor<{}>", T::DTYPE);
        Tensor { any, element: PhantomData }
    }

    /// Returns the untyped handle.
    pub fn untyped(self) -> AnyValue {
        self.any
    }

    /// Returns the shape, as far as it is known during tracing.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.any.shape()
    }

    /// Returns the rank: the number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.any.rank()
    }

    /// Returns the extent of an axis as a host value. Negative axes count from the end.
    ///
    /// An extent that is unknown during tracing is an error; [`extent`](Tensor::extent) returns it
    /// as a tensor.
    #[track_caller]
    pub fn dim(self, axis: isize) -> usize {
        self.any.dim(axis)
    }

    /// Names the value, for messages and printing, and for feeding and fetching it when a function
    /// is pruned.
    ///
    /// Several values may have the same name, but then it cannot be fed or fetched. The text of a
    /// name is interned for the lifetime of the program.
    ///
    /// ```
    /// use anabranch::prelude::*;
    ///
    /// let norm = |x: Tensor| (x * x).sum().named("square").sqrt();
    /// assert_eq!(eval_with(norm, [3.0, 4.0])?, 5.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> Tensor<T> {
        Tensor { any: self.any.named(name), element: PhantomData }
    }
}

/// Returns a constant scalar tensor.
#[track_caller]
pub fn scalar<T: Element>(x: T) -> Tensor<T> {
    Tensor::from_any(InTrace::current().constant(HostTensor::scalar(x)))
}

/// Returns a constant tensor from a scalar, a slice, nested arrays, or an [`Array`].
#[track_caller]
pub fn tensor<T: Element>(x: impl IntoArray<T>) -> Tensor<T> {
    let array: Array<T> = x.into_array();
    Tensor::from_any(InTrace::current().constant(array.into_host()))
}

/// Returns a tensor with every element equal to `x`.
#[track_caller]
pub fn full<T: Element>(shape: impl Into<Shape>, x: T) -> Tensor<T> {
    Tensor::from_any(InTrace::current().constant(HostTensor::scalar(x)).broadcast_to(shape))
}

/// Returns a tensor of zeros.
#[track_caller]
pub fn zeros<T: Numeric>(shape: impl Into<Shape>) -> Tensor<T> {
    full(shape, T::default())
}

/// The other operand of an operation on a tensor: a tensor of the same element type, or a host
/// scalar of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with a `Tensor<{T}>`",
    label = "neither a `Tensor<{T}>` nor a number of type `{T}`",
    note = "a literal must have the element type of the tensor: `2.0` with floats, `2` with integers",
    note = "convert a tensor with `.cast()` and a host number with `as`; dereference a reference with `*x`"
)]
pub trait Operand<T: Element>: Copy {
    /// Returns the operand as a tensor of element type `T`.
    fn into_tensor(self) -> Tensor<T>;
}
#[diagnostic::do_not_recommend]
impl<T: Element> Operand<T> for Tensor<T> {
    fn into_tensor(self) -> Tensor<T> {
        self
    }
}
#[diagnostic::do_not_recommend]
impl<T: Element + Copy> Operand<T> for T {
    #[track_caller]
    fn into_tensor(self) -> Tensor<T> {
        scalar(self)
    }
}

/// Text is a scalar of its bytes.
macro_rules! strings {
    ($([$($n:tt)*] $string:ty;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($n)*> Operand<Bytes> for $string {
            #[track_caller]
            fn into_tensor(self) -> Tensor<Bytes> {
                scalar(Bytes::from(self.to_owned()))
            }
        }
    )*};
}
strings! {
    [] &str;
    [] &[u8];
    [] &Bytes;
    [const N: usize] &[u8; N];
}

/// Implements operators between the default types of literals and tensors of other element types,
/// so that the
/// compiler explains the mismatch.
macro_rules! numbers_of_another_kind {
    ($op:ident $method:ident: $($host:ident $kind:ident),*) => {$(
        impl<T: $kind> ops::$op<Tensor<T>> for $host
        where
            $host: Operand<T>,
        {
            type Output = Tensor<T>;
            #[track_caller]
            fn $method(self, rhs: Tensor<T>) -> Tensor<T> {
                Tensor::from_any(self.into_tensor().any.$method(rhs.any))
            }
        }
    )*};
}

macro_rules! operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident: $($host:ty)*;)*) => {$(
        impl<T: Numeric, R: Operand<T>> ops::$op<R> for Tensor<T> {
            type Output = Tensor<T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor<T> {
                Tensor::from_any(self.any.$method(rhs.into_tensor().any))
            }
        }
        impl<T: Numeric, R: Operand<T>> ops::$assign<R> for Tensor<T> {
            #[track_caller]
            fn $assign_method(&mut self, rhs: R) {
                *self = Tensor::from_any(self.any.$method(rhs.into_tensor().any));
            }
        }
        $(impl ops::$op<Tensor<$host>> for $host {
            type Output = Tensor<$host>;
            #[track_caller]
            fn $method(self, rhs: Tensor<$host>) -> Tensor<$host> {
                Tensor::from_any(scalar(self).any.$method(rhs.any))
            }
        })*
        numbers_of_another_kind! { $op $method: i32 Float, f64 Integer }
    )*};
}
operators! {
    Add add AddAssign add_assign: f32 f64 f16 bf16 i32 i64 u32 u8;
    Sub sub SubAssign sub_assign: f32 f64 f16 bf16 i32 i64 u32 u8;
    Mul mul MulAssign mul_assign: f32 f64 f16 bf16 i32 i64 u32 u8;
    Div div DivAssign div_assign: f32 f64 f16 bf16 i32 i64 u32 u8;
    Rem rem RemAssign rem_assign: f32 f64 f16 bf16 i32 i64 u32 u8;
}

impl<T: Numeric> ops::Neg for Tensor<T> {
    type Output = Tensor<T>;
    #[track_caller]
    fn neg(self) -> Tensor<T> {
        Tensor::from_any(self.any.neg())
    }
}

/// A bound of `x[i]`, which no index satisfies: it would give a reference to an element, and a
/// tensor has values only when the graph runs.
///
/// [`IndexedByBrackets`] stands for the operator, as the compiler shows the message of the bound
/// only where it is on another type.
#[diagnostic::on_unimplemented(
    message = "a `Tensor<{T}>` cannot be indexed by `[..]`",
    label = "`[..]` returns a reference, but elements have values only when the graph runs",
    note = "write `x.row(i)` for an item along the first axis, `x.index(i, axis)` for one along any axis",
    note = "write `x.slice(axis, start, end)` for a range, `x.take(ids, axis)` for items chosen by a tensor"
)]
pub trait Finds<T: Element, I> {
    /// The part of a tensor that an index finds.
    fn find(tensor: &Tensor<T>, index: I) -> &Tensor<T>;
}

/// The operator `[..]`.
#[derive(Debug)]
pub struct IndexedByBrackets;

/// Types without values. There are two, so that the type of the index stays open until it is known.
macro_rules! finds_nothing {
    ($($index:ident: $nothing:ty, $value:expr;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Element> Finds<T, $nothing> for IndexedByBrackets {
            fn find(_: &Tensor<T>, $index: $nothing) -> &Tensor<T> {
                match $value {}
            }
        }
    )*};
}
finds_nothing! {
    index: Infallible, index;
    index: [Infallible; 1], index[0];
}

impl<T: Element, I> ops::Index<I> for Tensor<T>
where
    IndexedByBrackets: Finds<T, I>,
{
    type Output = Tensor<T>;
    fn index(&self, index: I) -> &Tensor<T> {
        IndexedByBrackets::find(self, index)
    }
}

macro_rules! logic_operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident $any:ident;)*) => {$(
        impl<R: Operand<bool>> ops::$assign<R> for Tensor<bool> {
            #[track_caller]
            fn $assign_method(&mut self, rhs: R) {
                *self = Tensor::from_any(self.any.$any(rhs.into_tensor().any));
            }
        }
        impl<R: Operand<bool>> ops::$op<R> for Tensor<bool> {
            type Output = Tensor<bool>;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor<bool> {
                Tensor::from_any(self.any.$any(rhs.into_tensor().any))
            }
        }
        impl ops::$op<Tensor<bool>> for bool {
            type Output = Tensor<bool>;
            #[track_caller]
            fn $method(self, rhs: Tensor<bool>) -> Tensor<bool> {
                Tensor::from_any(scalar(self).any.$any(rhs.any))
            }
        }
    )*};
}
logic_operators! {
    BitAnd bitand BitAndAssign bitand_assign and;
    BitOr bitor BitOrAssign bitor_assign or;
    BitXor bitxor BitXorAssign bitxor_assign xor;
}
impl ops::Not for Tensor<bool> {
    type Output = Tensor<bool>;
    #[track_caller]
    fn not(self) -> Tensor<bool> {
        Tensor::from_any(self.any.not())
    }
}

/// `<<` and `>>` take the count modulo the number of bits, as `wrapping_shl` does: no shift fails.
macro_rules! bit_operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident $any:ident: $($host:ty)*;)*) => {$(
        impl<T: Integer, R: Operand<T>> ops::$op<R> for Tensor<T> {
            type Output = Tensor<T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor<T> {
                Tensor::from_any(self.any.$any(rhs.into_tensor().any))
            }
        }
        impl<T: Integer, R: Operand<T>> ops::$assign<R> for Tensor<T> {
            #[track_caller]
            fn $assign_method(&mut self, rhs: R) {
                *self = Tensor::from_any(self.any.$any(rhs.into_tensor().any));
            }
        }
        $(impl ops::$op<Tensor<$host>> for $host {
            type Output = Tensor<$host>;
            #[track_caller]
            fn $method(self, rhs: Tensor<$host>) -> Tensor<$host> {
                Tensor::from_any(scalar(self).any.$any(rhs.any))
            }
        })*
    )*};
}
bit_operators! {
    BitAnd bitand BitAndAssign bitand_assign bit_and: i32 i64 u32 u8;
    BitOr bitor BitOrAssign bitor_assign bit_or: i32 i64 u32 u8;
    BitXor bitxor BitXorAssign bitxor_assign bit_xor: i32 i64 u32 u8;
    Shl shl ShlAssign shl_assign shift_left: i32 i64 u32 u8;
    Shr shr ShrAssign shr_assign shift_right: i32 i64 u32 u8;
}
impl<T: Integer> ops::Not for Tensor<T> {
    type Output = Tensor<T>;
    #[track_caller]
    fn not(self) -> Tensor<T> {
        Tensor::from_any(self.any.bit_not())
    }
}
