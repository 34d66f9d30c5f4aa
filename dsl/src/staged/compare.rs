//! `==`, `!=`, `<`, `<=`, `>` and `>=` for host values and for tensors.
//!
//! A comparison expands to `compare(&a, &b).lt()`. The compiler looks for the method in [`Compare`]
//! and then in what that dereferences to. So the implementations are tried in this order:
//!
//! 1. two scalars of one type
//! 2. a scalar behind a reference, and a scalar
//! 3. a tensor on the right
//! 4. a tensor on the left
//! 5. a host number and a tensor of other elements, which is an error
//! 6. any other types, by `PartialEq` and `PartialOrd`
//!
//! The first trait that may fit by the kinds of the types is taken. So the result is known to be a
//! `Tensor<bool>` even if the element type is still unknown, as in `(zeros(4) < 1.0).any()`. If one
//! side is a scalar, a side of unknown type is inferred as a scalar, as in `n == text.parse()?`. If
//! one side is a tensor, the other may be a closure parameter of unknown type, as in
//! `|y| if y > x { y } else { x }`.
//! { y } else { x }`.

use crate::{Bytes, Element, Tensor, scalar};
use std::cmp::Ordering;
use std::convert::Infallible;
use std::ops::Deref;

/// The sides of a comparison of two scalars of one type, or else [`CompareReference`].
#[derive(Debug)]
pub struct Compare<'a, A: ?Sized, B: ?Sized>(CompareReference<'a, A, B>);

/// The sides of a comparison of a scalar behind a reference with a scalar, or else
/// [`CompareRight`].
#[derive(Debug)]
pub struct CompareReference<'a, A: ?Sized, B: ?Sized>(CompareRight<'a, A, B>);

/// The sides of an elementwise comparison with a tensor on the right, or else [`CompareLeft`].
#[derive(Debug)]
pub struct CompareRight<'a, A: ?Sized, B: ?Sized>(CompareLeft<'a, A, B>);

/// The sides of an elementwise comparison with a tensor on the left, or else [`CompareNumber`].
#[derive(Debug)]
pub struct CompareLeft<'a, A: ?Sized, B: ?Sized>(CompareNumber<'a, A, B>);

/// The sides of a comparison of a host number with a tensor of other elements, which is an error,
/// or else [`CompareHost`].
#[derive(Debug)]
pub struct CompareNumber<'a, A: ?Sized, B: ?Sized>(CompareHost<'a, A, B>);

/// The sides of a comparison of host values.
#[derive(Debug)]
pub struct CompareHost<'a, A: ?Sized, B: ?Sized>(&'a A, &'a B);

/// Returns the sides of a comparison.
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

/// A bound of [`PartialEq`] and [`PartialOrd`] for tensors that no two values satisfy.
///
/// These traits return a `bool`, but a comparison of tensors is part of the graph. The bound makes
/// the compiler explain this wherever the operators appear outside `#[graph]`. The bound is on
/// [`OutsideOfGraph`] because the compiler shows the message only for a bound on another type.
#[diagnostic::on_unimplemented(
    message = "`{A}` and `{B}` cannot be compared here: tensors have values only when the graph runs",
    label = "a comparison of a tensor outside `#[graph]`, or of a value that contains a tensor",
    note = "add `#[graph]` to the function: there, comparisons of tensors, and `if` and `while` on them, become part \
            of the graph",
    note = "elsewhere use methods: `x.greater(y)`, `x.equal(y)`, and `c.select(a, b)` instead of `if`",
    note = "a vector, option or struct of tensors cannot be compared: compare the tensors in it"
)]
pub trait Compares<A: ?Sized, B: ?Sized> {
    /// Returns whether they are equal.
    fn is_equal(a: &A, b: &B) -> bool;
    /// Returns the order of two host values.
    fn order(a: &A, b: &B) -> Option<Ordering>;
}

/// Code that the compiler sees as written.
#[derive(Debug)]
pub struct OutsideOfGraph;

/// Types without values. There are two, so that the type of the right side stays open until it is
/// known. The compiler then names it.
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

/// A bound that no type satisfies, of the host's comparison methods such as [`PartialOrd::gt`].
/// Tensors have these methods themselves, because the compiler would otherwise first suggest a
/// reference.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be compared by a method of `PartialEq` or `PartialOrd`",
    label = "this would return a `bool`, and a tensor has values only when the graph runs",
    note = "write `x > y` in a `#[graph]` function, and methods such as `x.greater(y)` and `x.equal(y)` anywhere"
)]
pub trait ComparedByMethod<R> {
    /// Whether it holds.
    fn holds(&self, other: R) -> bool;
}

macro_rules! methods_of_the_host {
    ($($method:ident)*) => {
        #[expect(clippy::should_implement_trait, reason = "these shadow the methods of the traits")]
        impl<T: Element> Tensor<T> {$(
            #[doc(hidden)]
            pub fn $method<R>(&self, other: R) -> bool
            where
                Tensor<T>: ComparedByMethod<R>,
            {
                self.holds(other)
            }
        )*}
    };
}
methods_of_the_host!(eq ne lt le gt ge);

/// A tensor, or a reference to one.
pub trait TensorRef {
    /// The type of the elements.
    type Element: Element;
    /// Returns the operand as a tensor.
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

/// A value that a tensor with elements `T` can be compared with: a tensor of the same elements, or
/// a host scalar.
#[diagnostic::on_unimplemented(
    message = "a `Tensor<{T}>` cannot be compared with `{Self}`",
    label = "a `Tensor<{T}>` compared with `{Self}`",
    note = "compare with a tensor or a host scalar of the same element type; convert a tensor with `.cast()`",
    note = "a literal must have the element type of the tensor: `2.0` with floats, `2` with integers"
)]
pub trait Comparand<T: Element>: Copy {
    /// Returns the value as a tensor.
    fn comparand(self) -> Tensor<T>;
}

macro_rules! comparands {
    ($($value:ident: $tensor:ty, $tensor_value:expr; $scalar:ty, $scalar_value:expr, $($copy:ident)?;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Element> Comparand<T> for $tensor {
            fn comparand(self) -> Tensor<T> {
                let $value = self;
                $tensor_value
            }
        }

        #[diagnostic::do_not_recommend]
        impl<T: Element $(+ $copy)?> Comparand<T> for $scalar {
            #[track_caller]
            fn comparand(self) -> Tensor<T> {
                let $value = self;
                scalar($scalar_value)
            }
        }
    )*};
}
// The depth of references covers the arguments of closures of `iter().filter(..)` on an iterator of
// references.
comparands! {
    value: Tensor<T>, value; T, value, Copy;
    value: &Tensor<T>, *value; &T, value.clone(),;
    value: &&Tensor<T>, **value; &&T, (*value).clone(),;
    value: &&&Tensor<T>, ***value; &&&T, (**value).clone(),;
}

/// Compares a tensor of strings with text: `name == "gate"`.
macro_rules! texts {
    ($([$($n:tt)*] $text:ty;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($n)*> Comparand<Bytes> for $text {
            #[track_caller]
            fn comparand(self) -> Tensor<Bytes> {
                scalar(Bytes::from(self.to_owned()))
            }
        }
    )*};
}
texts! {
    [] &str;
    [] &&str;
    [const N: usize] &[u8; N];
    [const N: usize] &&[u8; N];
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

        /// A comparison of a number in a pattern with the operand of a `match`, which is a
        /// reference.
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
            #[doc = concat!("`a ", stringify!($operator), " b` for a number that is not an element of the tensor.")]
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

/// A value that a host `match` may compare with numbers.
#[diagnostic::on_unimplemented(
    message = "this form of `match` on `{Self}` is not supported",
    label = "matched here",
    note = "on tensors, the patterns must be literals, ranges and tuples of them, and the last arm must be `_ => ..`"
)]
pub trait HostNumber {}

/// A number that is compared with a pattern. References do not implement it.
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

/// Returns the same value.
#[inline]
pub fn host_number<T: HostNumber>(value: T) -> T {
    value
}

/// The operand of `as` with a numeric type.
#[derive(Debug)]
pub struct CastOperand<V>(pub V);

/// A conversion by `as`, which tensors do not have.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be cast with `as`",
    label = "`as` casts host numbers",
    note = "write `x.cast::<{N}>()` for a tensor with elements of type `{N}`"
)]
pub trait ConvertedByAs<N> {
    /// Returns the operand, converted to `N`.
    fn number(self) -> N;
}

impl<T: Element> CastOperand<Tensor<T>> {
    /// Never compiles: the bound is the error.
    pub fn value<N>(self) -> N
    where
        Tensor<T>: ConvertedByAs<N>,
    {
        self.0.number()
    }
}

/// The operand of `as`, if it is not a tensor.
pub trait HostCast {
    /// The type of the operand.
    type Value;
    /// Returns the same value, which becomes an `N`.
    fn value<N>(self) -> Self::Value;
}
impl<V> HostCast for CastOperand<V> {
    type Value = V;
    #[inline]
    fn value<N>(self) -> V {
        self.0
    }
}

/// A host condition: the guard of a `match`, or an operand next to a `let` in a condition.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be used in a `match` guard or a `let` chain",
    label = "expected a host `bool`",
    note = "test it inside the arm: `Some(y) => if y > x {{ .. }} else {{ .. }}`, or `if let Some(y) = o {{ if y > x \
            {{ .. }} }}`",
    note = "a `match` on a tensor is staged, with its guards, only if one of its patterns is a number; otherwise \
            write `if` and `else if`"
)]
pub trait HostBool {
    /// Returns the value.
    fn value(self) -> bool;
}
#[diagnostic::do_not_recommend]
impl HostBool for bool {
    #[inline]
    fn value(self) -> bool {
        self
    }
}

/// The result of a method with the name of a method of the standard library that returns a `bool`.
#[diagnostic::on_unimplemented(
    message = "a method with this name must return `bool` in a condition, not `{Self}`",
    label = "does not return `bool`",
    note = "bind the result first: `let condition = x.method(); if condition {{ .. }}`"
)]
pub trait NamedBool {
    /// Returns the value.
    fn value(self) -> bool;
}
#[diagnostic::do_not_recommend]
impl NamedBool for bool {
    #[inline]
    fn value(self) -> bool {
        self
    }
}

/// Returns the same value.
#[inline]
pub fn named_bool(value: impl NamedBool) -> bool {
    value.value()
}

/// Returns the same value.
#[inline]
pub fn host_bool(value: impl HostBool) -> bool {
    value.value()
}
