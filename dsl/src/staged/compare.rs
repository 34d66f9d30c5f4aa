//! `==`, `!=`, `<`, `<=`, `>`, `>=` with one meaning for host values and one for tensors.
//!
//! A comparison expands to `compare(&a, &b).lt()`. The compiler looks for the method in [`Compare`], then in what that
//! dereferences to, so the meanings are tried in this order: two scalars of one type, a scalar behind a reference and one, a
//! tensor on the right, a tensor on the left, any other types by `PartialEq` and `PartialOrd`. The first that may fit is taken,
//! by the kinds of the types alone: so the result is known to be a `Tensor<bool>` although the element type is still open, as
//! in `(zeros(4) < 1.0).any()`, a scalar beside a value of unknown type makes it a scalar, as in `n == text.parse()?`, and the
//! parameter of a closure may be open beside a tensor, as in `|y| if y > x { y } else { x }`.

use crate::{Element, Tensor, scalar};
use std::cmp::Ordering;
use std::convert::Infallible;
use std::ops::Deref;

/// The sides of a comparison: of two scalars of one type, or else [`CompareReference`].
#[derive(Debug)]
pub struct Compare<'a, A: ?Sized, B: ?Sized>(CompareReference<'a, A, B>);

/// The sides of a comparison: of a scalar behind a reference and a scalar, or else [`CompareRight`].
#[derive(Debug)]
pub struct CompareReference<'a, A: ?Sized, B: ?Sized>(CompareRight<'a, A, B>);

/// The sides of a comparison: with a tensor on the right, element by element, or else [`CompareLeft`].
#[derive(Debug)]
pub struct CompareRight<'a, A: ?Sized, B: ?Sized>(CompareLeft<'a, A, B>);

/// The sides of a comparison: with a tensor on the left, element by element, or else [`CompareNumber`].
#[derive(Debug)]
pub struct CompareLeft<'a, A: ?Sized, B: ?Sized>(CompareNumber<'a, A, B>);

/// The sides of a comparison: of a host number with a tensor of other elements, which is an error, or else [`CompareHost`].
#[derive(Debug)]
pub struct CompareNumber<'a, A: ?Sized, B: ?Sized>(CompareHost<'a, A, B>);

/// The sides of a comparison of host values.
#[derive(Debug)]
pub struct CompareHost<'a, A: ?Sized, B: ?Sized>(&'a A, &'a B);

/// The sides of a comparison.
#[inline]
pub fn compare<'a, A: ?Sized, B: ?Sized>(a: &'a A, b: &'a B) -> Compare<'a, A, B> {
    Compare(CompareReference(CompareRight(CompareLeft(CompareNumber(CompareHost(a, b))))))
}

macro_rules! or_else {
    ($($first:ident $then:ident;)*) => {$(
        impl<'a, A: ?Sized, B: ?Sized> Deref for $first<'a, A, B> {
            type Target = $then<'a, A, B>;
            #[inline]
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    )*};
}
or_else! {
    Compare CompareReference;
    CompareReference CompareRight;
    CompareRight CompareLeft;
    CompareLeft CompareNumber;
    CompareNumber CompareHost;
}

/// A bound of the host's comparisons, [`PartialEq`] and [`PartialOrd`], that no two values satisfy: those return a `bool`, and a
/// comparison of tensors is part of the graph. So the compiler says why wherever the operators appear outside of `#[graph]`.
///
/// [`OutsideOfGraph`] stands for the place, as the compiler shows the message of the bound only where it is on another type.
#[diagnostic::on_unimplemented(
    message = "`{A}` and `{B}` cannot be compared here: tensors have values only when the graph runs",
    label = "a comparison of a tensor outside of `#[graph]`, or of a value that has a tensor in it",
    note = "add `#[graph]` to the function: in it, comparisons of tensors, and `if` and `while` on them, are part of the graph",
    note = "elsewhere use methods: `x.greater(y)`, `x.equal(y)`, and `c.select(a, b)` in place of `if`",
    note = "a vector, option or struct of tensors has no comparison: compare the tensors in it"
)]
pub trait Compares<A: ?Sized, B: ?Sized> {
    /// Whether they are equal.
    fn is_equal(a: &A, b: &B) -> bool;
    /// Their order.
    fn order(a: &A, b: &B) -> Option<Ordering>;
}

/// Code that the compiler sees as it is written.
#[derive(Debug)]
pub struct OutsideOfGraph;

/// Types without values. There are two, so that the type of the right side stays open until it is known: the compiler then
/// names it.
macro_rules! compares_nothing {
    ($($other:ident: $nothing:ty, $value:expr;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Element> Compares<Tensor<T>, $nothing> for OutsideOfGraph {
            fn is_equal(_: &Tensor<T>, $other: &$nothing) -> bool {
                match $value {}
            }
            fn order(_: &Tensor<T>, $other: &$nothing) -> Option<Ordering> {
                match $value {}
            }
        }
    )*};
}
compares_nothing! {
    other: Infallible, *other;
    other: &Infallible, **other;
}

impl<T: Element, R: ?Sized> PartialEq<R> for Tensor<T>
where
    OutsideOfGraph: Compares<Tensor<T>, R>,
{
    fn eq(&self, other: &R) -> bool {
        OutsideOfGraph::is_equal(self, other)
    }
}

impl<T: Element, R: ?Sized> PartialOrd<R> for Tensor<T>
where
    OutsideOfGraph: Compares<Tensor<T>, R>,
{
    fn partial_cmp(&self, other: &R) -> Option<Ordering> {
        OutsideOfGraph::order(self, other)
    }
}

/// A tensor, or a reference to one.
pub trait TensorRef {
    /// The type of its elements.
    type Element: Element;
    /// The tensor.
    fn tensor(&self) -> Tensor<Self::Element>;
}
impl<T: Element> TensorRef for Tensor<T> {
    type Element = T;
    fn tensor(&self) -> Tensor<T> {
        *self
    }
}
impl<R: TensorRef> TensorRef for &R {
    type Element = R::Element;
    fn tensor(&self) -> Tensor<R::Element> {
        (**self).tensor()
    }
}

/// A value that a tensor of elements `T` can be compared with: a tensor of the same elements, or a host scalar.
#[diagnostic::on_unimplemented(
    message = "a `Tensor<{T}>` cannot be compared with `{Self}`",
    label = "a `Tensor<{T}>` beside `{Self}`",
    note = "a tensor is compared with a tensor of the same element type, or with a host scalar of it; `.cast()` changes it",
    note = "a literal has the element type of the tensor: `2.0` beside floats, `2` beside integers"
)]
pub trait Comparand<T: Element>: Copy {
    /// The tensor.
    fn comparand(self) -> Tensor<T>;
}

macro_rules! comparands {
    ($($value:ident: $tensor:ty, $tensor_value:expr; $scalar:ty, $scalar_value:expr;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Element> Comparand<T> for $tensor {
            fn comparand(self) -> Tensor<T> {
                let $value = self;
                $tensor_value
            }
        }

        #[diagnostic::do_not_recommend]
        impl<T: Element> Comparand<T> for $scalar {
            #[track_caller]
            fn comparand(self) -> Tensor<T> {
                let $value = self;
                scalar($scalar_value)
            }
        }
    )*};
}
// References as deep as those that the closures of `iter().filter(..)` on an iterator of references get.
comparands! {
    value: Tensor<T>, value; T, value;
    value: &Tensor<T>, *value; &T, *value;
    value: &&Tensor<T>, **value; &&T, **value;
    value: &&&Tensor<T>, ***value; &&&T, ***value;
}

macro_rules! comparisons {
    ($($name:ident $operator:tt;)*) => {
        impl<T: Element> Compare<'_, T, T> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for two scalars.")]
            #[inline]
            pub fn $name(&self) -> bool {
                let CompareHost(a, b) = &self.0.0.0.0.0;
                **a $operator **b
            }
        )*}

        /// A comparison of the value of a `match` on a reference with a number in a pattern.
        impl<T: Scalar> CompareReference<'_, &T, T> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for a scalar behind a reference and a scalar.")]
            #[inline]
            pub fn $name(&self) -> bool {
                let CompareHost(a, b) = &self.0.0.0.0;
                ***a $operator **b
            }
        )*}

        impl<L: Comparand<R::Element>, R: TensorRef> CompareRight<'_, L, R> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for a value and a tensor.")]
            #[track_caller]
            pub fn $name(&self) -> Tensor<bool> {
                let CompareHost(a, b) = &self.0.0.0;
                Tensor::from_any(a.comparand().untyped().$name(b.tensor().untyped()))
            }
        )*}

        impl<L: TensorRef, R> CompareLeft<'_, L, R> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for a tensor and a value.")]
            #[track_caller]
            pub fn $name(&self) -> Tensor<bool>
            where
                R: Comparand<L::Element>,
            {
                let CompareHost(a, b) = &self.0.0;
                Tensor::from_any(a.tensor().untyped().$name(b.comparand().untyped()))
            }
        )*}

        impl<L: HostNumber, R: TensorRef> CompareNumber<'_, L, R> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for a number that is no element of the tensor.")]
            #[track_caller]
            pub fn $name(&self) -> Tensor<bool>
            where
                L: Comparand<R::Element>,
            {
                let CompareHost(a, b) = &self.0;
                Tensor::from_any(a.comparand().untyped().$name(b.tensor().untyped()))
            }
        )*}
    };
}
comparisons! {
    eq ==;
    ne !=;
    lt <;
    le <=;
    gt >;
    ge >=;
}

macro_rules! host_comparisons {
    ($($name:ident $operator:tt $bound:ident;)*) => {
        impl<A: ?Sized, B: ?Sized> CompareHost<'_, A, B> {$(
            #[doc = concat!("`a ", stringify!($operator), " b` for host values.")]
            #[inline]
            pub fn $name(&self) -> bool
            where
                A: $bound<B>,
            {
                self.0 $operator self.1
            }
        )*}
    };
}
host_comparisons! {
    eq == PartialEq;
    ne != PartialEq;
    lt < PartialOrd;
    le <= PartialOrd;
    gt > PartialOrd;
    ge >= PartialOrd;
}

/// What a `match` that is not staged may compare with numbers.
#[diagnostic::on_unimplemented(
    message = "a `match` on `{Self}` is not staged in this form",
    label = "matched here",
    note = "on tensors, the patterns are literals, ranges, and tuples of them, and the last arm is `_ => ..`"
)]
pub trait HostNumber {}

/// What is compared with a pattern of numbers: no reference.
pub trait Scalar: PartialOrd {}

macro_rules! host_numbers {
    ($($t:ty)*) => {$(
        impl HostNumber for $t {}
        impl Scalar for $t {}
    )*};
}
impl Scalar for char {}
host_numbers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool crate::f16 crate::bf16);
#[diagnostic::do_not_recommend]
impl<T: HostNumber> HostNumber for &T {}

/// The same value.
#[inline]
pub fn host_number<T: HostNumber>(value: T) -> T {
    value
}

/// The operand of `as` with a number as its type.
#[derive(Debug)]
pub struct CastOperand<V>(pub V);

/// A conversion by `as`, which no tensor has.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be converted by `as`",
    label = "`as` converts numbers of the host",
    note = "write `x.cast::<f64>()` for a tensor with elements of type `f64`"
)]
pub trait ConvertedByAs<N> {
    /// The number.
    fn number(self) -> N;
}

impl<T: Element> CastOperand<Tensor<T>> {
    /// An error of the compiler.
    pub fn value<N>(self) -> N
    where
        Tensor<T>: ConvertedByAs<N>,
    {
        self.0.number()
    }
}

/// The operand of `as` if it is no tensor.
pub trait HostCast {
    /// Its type.
    type Value;
    /// The same value.
    fn value(self) -> Self::Value;
}
impl<V> HostCast for CastOperand<V> {
    type Value = V;
    #[inline]
    fn value(self) -> V {
        self.0
    }
}

/// What decides on the host: the guard of a `match`, and what stands beside a `let` in a condition.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot stand in the guard of a `match`, or beside a `let` in a condition",
    label = "it decides on the host, so it is a `bool`",
    note = "decide in the arm: `Some(y) => if y > x {{ .. }} else {{ .. }}`, or `if let Some(y) = o {{ if y > x {{ .. }} }}`",
    note = "a `match` on a tensor is staged, with its guards, if one of its patterns is a number: else write `if` and `else if`"
)]
pub trait HostBool {
    /// The value.
    fn value(self) -> bool;
}
#[diagnostic::do_not_recommend]
impl HostBool for bool {
    #[inline]
    fn value(self) -> bool {
        self
    }
}

/// What a method gives whose name is that of one of the standard library that gives a `bool`.
#[diagnostic::on_unimplemented(
    message = "a method of this name decides on the host, so it cannot give a `{Self}` in a condition",
    label = "gives no `bool`",
    note = "give it a name first: `let decided = x.method(); if decided {{ .. }}`"
)]
pub trait NamedBool {
    /// The value.
    fn value(self) -> bool;
}
#[diagnostic::do_not_recommend]
impl NamedBool for bool {
    #[inline]
    fn value(self) -> bool {
        self
    }
}

/// The same value.
#[inline]
pub fn named_bool(value: impl NamedBool) -> bool {
    value.value()
}

/// The same value.
#[inline]
pub fn host_bool(value: impl HostBool) -> bool {
    value.value()
}
