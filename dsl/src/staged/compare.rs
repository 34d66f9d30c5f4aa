//! `==`, `!=`, `<`, `<=`, `>`, `>=` with one meaning for host values and one for tensors.
//!
//! `PartialOrd` gives a `bool`, so tensors do not implement it; that is also what keeps the implementations here apart.

use crate::{Element, Tensor};

/// What `==` and `!=` mean for a pair of types: that of `PartialEq`, or elementwise for tensors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be compared with `{Rhs}` by `==` or `!=`",
    label = "no meaning for `{Self} == {Rhs}`",
    note = "a tensor is compared with a tensor of the same element type, or with a host scalar of it"
)]
pub trait Equality<Rhs: ?Sized> {
    /// `bool` or `Tensor<bool>`.
    type Output;
    /// `self == other`
    fn eq(&self, other: &Rhs) -> Self::Output;
    /// `self != other`
    fn ne(&self, other: &Rhs) -> Self::Output;
}

/// What `<`, `<=`, `>` and `>=` mean for a pair of types: that of `PartialOrd`, or elementwise for tensors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be compared with `{Rhs}` by `<`, `<=`, `>` or `>=`",
    label = "no meaning for `{Self} < {Rhs}`",
    note = "a tensor is compared with a tensor of the same element type, or with a host scalar of it"
)]
pub trait Order<Rhs: ?Sized> {
    /// `bool` or `Tensor<bool>`.
    type Output;
    /// `self < other`
    fn lt(&self, other: &Rhs) -> Self::Output;
    /// `self <= other`
    fn le(&self, other: &Rhs) -> Self::Output;
    /// `self > other`
    fn gt(&self, other: &Rhs) -> Self::Output;
    /// `self >= other`
    fn ge(&self, other: &Rhs) -> Self::Output;
}

#[diagnostic::do_not_recommend]
impl<A: PartialEq<B> + ?Sized, B: ?Sized> Equality<B> for A {
    type Output = bool;
    #[inline]
    fn eq(&self, other: &B) -> bool {
        self == other
    }
    #[inline]
    fn ne(&self, other: &B) -> bool {
        self != other
    }
}

#[diagnostic::do_not_recommend]
impl<A: PartialOrd<B> + ?Sized, B: ?Sized> Order<B> for A {
    type Output = bool;
    #[inline]
    fn lt(&self, other: &B) -> bool {
        self < other
    }
    #[inline]
    fn le(&self, other: &B) -> bool {
        self <= other
    }
    #[inline]
    fn gt(&self, other: &B) -> bool {
        self > other
    }
    #[inline]
    fn ge(&self, other: &B) -> bool {
        self >= other
    }
}

macro_rules! comparison {
    ($trait:ident [$($g:tt)*] $a:ty, $b:ty: $($method:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($g)*> $trait<$b> for $a {
            type Output = Tensor<bool>;
            $(#[track_caller]
            fn $method(&self, other: &$b) -> Tensor<bool> {
                let (a, b) = (crate::Operand::into_tensor(*self), crate::Operand::into_tensor(*other));
                Tensor::from_any(a.any().$method(b.any()))
            })*
        }
    };
}

// One implementation for each host type: a generic one would overlap with `PartialOrd` of types that other crates define.
macro_rules! comparisons {
    (order: $($t:ty)*; equality: $($e:ty)*) => {
        comparison!(Order [T: Element] Tensor<T>, Tensor<T>: lt le gt ge);
        comparison!(Equality [T: Element] Tensor<T>, Tensor<T>: eq ne);
        $(
            comparison!(Order [] Tensor<$t>, $t: lt le gt ge);
            comparison!(Order [] $t, Tensor<$t>: lt le gt ge);
        )*
        $(
            comparison!(Equality [] Tensor<$e>, $e: eq ne);
            comparison!(Equality [] $e, Tensor<$e>: eq ne);
        )*
    };
}
comparisons!(order: f32 f64 i32 i64 u32 u8; equality: f32 f64 i32 i64 u32 u8 bool);

/// The sides of a comparison.
#[derive(Debug)]
pub struct Compare<'a, A: ?Sized, B: ?Sized>(pub &'a A, pub &'a B);

impl<A: ?Sized, B: ?Sized> Compare<'_, A, B> {
    /// `a == b`
    #[inline]
    #[track_caller]
    pub fn eq<O>(self) -> O
    where
        A: Equality<B, Output = O>,
    {
        self.0.eq(self.1)
    }

    /// `a != b`
    #[inline]
    #[track_caller]
    pub fn ne<O>(self) -> O
    where
        A: Equality<B, Output = O>,
    {
        self.0.ne(self.1)
    }

    /// `a < b`
    #[inline]
    #[track_caller]
    pub fn lt<O>(self) -> O
    where
        A: Order<B, Output = O>,
    {
        self.0.lt(self.1)
    }

    /// `a <= b`
    #[inline]
    #[track_caller]
    pub fn le<O>(self) -> O
    where
        A: Order<B, Output = O>,
    {
        self.0.le(self.1)
    }

    /// `a > b`
    #[inline]
    #[track_caller]
    pub fn gt<O>(self) -> O
    where
        A: Order<B, Output = O>,
    {
        self.0.gt(self.1)
    }

    /// `a >= b`
    #[inline]
    #[track_caller]
    pub fn ge<O>(self) -> O
    where
        A: Order<B, Output = O>,
    {
        self.0.ge(self.1)
    }
}
