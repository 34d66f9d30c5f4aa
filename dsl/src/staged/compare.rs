//! `==`, `!=`, `<`, `<=`, `>`, `>=` with one meaning for host values and one for tensors.
//!
//! A comparison expands to `compare(&a, &b).lt()`. The compiler looks for the method in [`Compare`], then in what that
//! dereferences to, so the meanings are tried in this order: two scalars of one type, a tensor and what it can be compared
//! with, any other types by `PartialEq` and `PartialOrd`. The first that may fit is taken, by the kinds of the types alone:
//! so the result is known to be a `Tensor<bool>` although the element type is still open, as in `(zeros(4) < 1.0).any()`,
//! and a scalar beside a value of unknown type makes it a scalar, as in `n == text.parse()?`.

use crate::{Element, Tensor, scalar};
use std::ops::Deref;

/// The sides of a comparison: of two scalars of one type, or else [`CompareTensors`].
#[derive(Debug)]
pub struct Compare<'a, A: ?Sized, B: ?Sized>(CompareTensors<'a, A, B>);

/// The sides of a comparison: with a tensor on one of them, element by element, or else [`CompareHost`].
#[derive(Debug)]
pub struct CompareTensors<'a, A: ?Sized, B: ?Sized>(CompareHost<'a, A, B>);

/// The sides of a comparison of host values.
#[derive(Debug)]
pub struct CompareHost<'a, A: ?Sized, B: ?Sized>(&'a A, &'a B);

/// The sides of a comparison.
#[inline]
pub fn compare<'a, A: ?Sized, B: ?Sized>(a: &'a A, b: &'a B) -> Compare<'a, A, B> {
    Compare(CompareTensors(CompareHost(a, b)))
}

impl<'a, A: ?Sized, B: ?Sized> Deref for Compare<'a, A, B> {
    type Target = CompareTensors<'a, A, B>;
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a, A: ?Sized, B: ?Sized> Deref for CompareTensors<'a, A, B> {
    type Target = CompareHost<'a, A, B>;
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// What a tensor of elements `T` can be compared with: a tensor of the same elements, or a host scalar.
#[diagnostic::on_unimplemented(
    message = "a `Tensor<{T}>` cannot be compared with `{Self}`",
    label = "a `Tensor<{T}>` beside `{Self}`",
    note = "a tensor is compared with a tensor of the same element type, or with a host scalar of it; `.cast()` changes it"
)]
pub trait Comparand<T: Element>: Copy {
    /// The tensor.
    fn comparand(self) -> Tensor<T>;
}

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for Tensor<T> {
    fn comparand(self) -> Tensor<T> {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for T {
    #[track_caller]
    fn comparand(self) -> Tensor<T> {
        scalar(self)
    }
}

impl<T: Element> Compare<'_, T, T> {
    /// `a == b` for two scalars.
    #[inline]
    pub fn eq(&self) -> bool {
        self.0.0.0 == self.0.0.1
    }

    /// `a != b` for two scalars.
    #[inline]
    pub fn ne(&self) -> bool {
        self.0.0.0 != self.0.0.1
    }

    /// `a < b` for two scalars.
    #[inline]
    pub fn lt(&self) -> bool {
        self.0.0.0 < self.0.0.1
    }

    /// `a <= b` for two scalars.
    #[inline]
    pub fn le(&self) -> bool {
        self.0.0.0 <= self.0.0.1
    }

    /// `a > b` for two scalars.
    #[inline]
    pub fn gt(&self) -> bool {
        self.0.0.0 > self.0.0.1
    }

    /// `a >= b` for two scalars.
    #[inline]
    pub fn ge(&self) -> bool {
        self.0.0.0 >= self.0.0.1
    }
}

impl<T: Element, R> CompareTensors<'_, Tensor<T>, R> {
    /// `a == b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn eq(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().eq(self.0.1.comparand().untyped()))
    }

    /// `a != b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn ne(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().ne(self.0.1.comparand().untyped()))
    }

    /// `a < b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn lt(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().lt(self.0.1.comparand().untyped()))
    }

    /// `a <= b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn le(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().le(self.0.1.comparand().untyped()))
    }

    /// `a > b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn gt(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().gt(self.0.1.comparand().untyped()))
    }

    /// `a >= b` for a tensor and what it can be compared with.
    #[track_caller]
    pub fn ge(&self) -> Tensor<bool>
    where
        R: Comparand<T>,
    {
        Tensor::from_any(self.0.0.untyped().ge(self.0.1.comparand().untyped()))
    }
}

impl<T: Element> CompareTensors<'_, T, Tensor<T>> {
    /// `a == b` for a scalar and a tensor.
    #[track_caller]
    pub fn eq(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().eq(self.0.1.untyped()))
    }

    /// `a != b` for a scalar and a tensor.
    #[track_caller]
    pub fn ne(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().ne(self.0.1.untyped()))
    }

    /// `a < b` for a scalar and a tensor.
    #[track_caller]
    pub fn lt(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().lt(self.0.1.untyped()))
    }

    /// `a <= b` for a scalar and a tensor.
    #[track_caller]
    pub fn le(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().le(self.0.1.untyped()))
    }

    /// `a > b` for a scalar and a tensor.
    #[track_caller]
    pub fn gt(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().gt(self.0.1.untyped()))
    }

    /// `a >= b` for a scalar and a tensor.
    #[track_caller]
    pub fn ge(&self) -> Tensor<bool> {
        Tensor::from_any(scalar(*self.0.0).untyped().ge(self.0.1.untyped()))
    }
}

/// What a pattern of numbers compares, as in `match` on a reference.
impl<T: Scalar> CompareTensors<'_, &T, T> {
    /// `a == b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn eq(&self) -> bool {
        *self.0.0 == self.0.1
    }

    /// `a != b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn ne(&self) -> bool {
        *self.0.0 != self.0.1
    }

    /// `a < b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn lt(&self) -> bool {
        *self.0.0 < self.0.1
    }

    /// `a <= b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn le(&self) -> bool {
        *self.0.0 <= self.0.1
    }

    /// `a > b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn gt(&self) -> bool {
        *self.0.0 > self.0.1
    }

    /// `a >= b` for a scalar behind a reference and a scalar.
    #[inline]
    pub fn ge(&self) -> bool {
        *self.0.0 >= self.0.1
    }
}

impl<A: ?Sized, B: ?Sized> CompareHost<'_, A, B> {
    /// `a == b` for host values.
    #[inline]
    pub fn eq(&self) -> bool
    where
        A: PartialEq<B>,
    {
        self.0 == self.1
    }

    /// `a != b` for host values.
    #[inline]
    pub fn ne(&self) -> bool
    where
        A: PartialEq<B>,
    {
        self.0 != self.1
    }

    /// `a < b` for host values.
    #[inline]
    pub fn lt(&self) -> bool
    where
        A: PartialOrd<B>,
    {
        self.0 < self.1
    }

    /// `a <= b` for host values.
    #[inline]
    pub fn le(&self) -> bool
    where
        A: PartialOrd<B>,
    {
        self.0 <= self.1
    }

    /// `a > b` for host values.
    #[inline]
    pub fn gt(&self) -> bool
    where
        A: PartialOrd<B>,
    {
        self.0 > self.1
    }

    /// `a >= b` for host values.
    #[inline]
    pub fn ge(&self) -> bool
    where
        A: PartialOrd<B>,
    {
        self.0 >= self.1
    }
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
