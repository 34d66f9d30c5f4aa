//! What stands for a jump that is taken under a condition that is a tensor.
//!
//! A jump under host conditions is made as it is written. Under a tensor it cannot be: both branches are traced. There it
//! *raises flags*, those of the statements and of the loops that it leaves, and tracing goes on at the end of the innermost staged
//! arm. What follows a statement that may have been left stands in an `if` on its flag; a loop that was left goes on only
//! while its flag is down. Statements inside of one another share a flag.
//!
//! Whether a flag is a `bool` or a `Tensor<bool>` is decided by the types of the conditions between the place of the flag and
//! its jumps: it is a tensor if one of them is. Where a statement asks a flag, only those in it count: under conditions of the host a jump
//! is made as it is written, so there the flag is down. A [`Kind`] passes the type of a construct to the flags declared before it.

use super::{Condition, If, Logical, While};
use crate::{HostTensor, Tensor, scalar};
use std::marker::PhantomData;

/// The type of the condition of a construct that comes later.
#[derive(Debug)]
pub struct Kind<C>(PhantomData<fn() -> C>);

impl<C> Kind<C> {
    /// Of a type that is found out later.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion makes one")]
    pub fn new() -> Kind<C> {
        Kind(PhantomData)
    }

    /// It is the type of this condition.
    #[inline]
    pub fn of(&self, _condition: &C) {}
}

/// The types of the conditions around the jumps of a flag: `(&a, (&b, ()))`.
pub trait Kinds {
    /// `Tensor<bool>` if one of them is, else `bool`.
    type Flag: Flag;
}

impl Kinds for () {
    type Flag = bool;
}
impl<R: Kinds> Kinds for (&Kind<bool>, R) {
    type Flag = R::Flag;
}
impl<R> Kinds for (&Kind<Tensor<bool>>, R) {
    type Flag = Tensor<bool>;
}

/// The first kind is that of a flag which the others make.
#[inline]
pub fn join_kinds<K: Kinds>(_joined: &Kind<K::Flag>, _kinds: K) {}

/// Whether a jump was taken.
pub trait Flag: Condition {
    /// It was, or was not.
    fn flag(taken: bool) -> Self;
    /// Whether it was not.
    fn is_down(&self) -> Self;
}

impl Flag for bool {
    #[inline]
    fn flag(taken: bool) -> bool {
        taken
    }
    #[inline]
    fn is_down(&self) -> bool {
        !*self
    }
}

impl Flag for Tensor<bool> {
    #[track_caller]
    fn flag(taken: bool) -> Tensor<bool> {
        scalar(taken)
    }
    #[track_caller]
    fn is_down(&self) -> Tensor<bool> {
        !*self
    }
}

/// A flag that is down.
#[inline]
#[track_caller]
pub fn flag<K: Kinds>(_kinds: K) -> K::Flag {
    K::Flag::flag(false)
}

/// Raises a flag.
#[inline]
#[track_caller]
pub fn raise<F: Flag>(flag: &mut F) {
    *flag = F::flag(true);
}

/// Whether a flag is down.
#[inline]
#[track_caller]
pub fn is_down<F: Flag>(flag: &F) -> F {
    flag.is_down()
}

/// Whether a jump under constructs of these kinds has raised a flag.
#[inline]
pub fn is_up<K: Kinds, F>(_kinds: K, flag: &F) -> K::Flag
where
    K::Flag: RaisedIn<F>,
{
    K::Flag::raised_in(flag)
}

/// What a flag of type `F` says where jumps raise one of this type.
pub trait RaisedIn<F> {
    /// Whether a jump has raised it.
    fn raised_in(flag: &F) -> Self;
}
impl<F> RaisedIn<F> for bool {
    #[inline]
    fn raised_in(_flag: &F) -> bool {
        false
    }
}
impl RaisedIn<Tensor<bool>> for Tensor<bool> {
    fn raised_in(flag: &Tensor<bool>) -> Tensor<bool> {
        *flag
    }
}

/// How a loop with a condition of this type stops for a flag of type `F`.
///
/// A staged loop asks the flag before its condition. A host loop is left natively by host jumps; if the flag is a tensor, each
/// of its further passes is traced under the condition that the flag is down. As long as no jump under a tensor was met, nothing has
/// decided yet, and the pass stands under no condition.
pub trait Stops<F>: Condition {
    /// The condition of the `if` around the body.
    type Guard: Condition;
    /// What comes before the condition of the loop.
    fn head(flag: &F) -> Self;
    /// Whether to run the body.
    fn guard(flag: &F) -> Self::Guard;
}

impl Stops<bool> for bool {
    type Guard = bool;
    #[inline]
    fn head(_flag: &bool) -> bool {
        true
    }
    #[inline]
    fn guard(_flag: &bool) -> bool {
        true
    }
}

impl Stops<Tensor<bool>> for bool {
    type Guard = Tensor<bool>;
    #[inline]
    fn head(_flag: &Tensor<bool>) -> bool {
        true
    }
    #[track_caller]
    fn guard(flag: &Tensor<bool>) -> Tensor<bool> {
        crate::trace::count_unrolled();
        match crate::trace::is_constant(flag.untyped(), &HostTensor::scalar(false)) {
            true => crate::trace::unconditional(),
            false => flag.is_down(),
        }
    }
}

impl Stops<Tensor<bool>> for Tensor<bool> {
    type Guard = bool;
    #[track_caller]
    fn head(flag: &Tensor<bool>) -> Tensor<bool> {
        flag.is_down()
    }
    #[inline]
    fn guard(_flag: &Tensor<bool>) -> bool {
        true
    }
}

/// What comes before the condition of a loop.
#[inline]
#[track_caller]
pub fn head<C: Stops<F>, F>(_kind: &Kind<C>, flag: &F) -> C {
    C::head(flag)
}

/// Whether to run the body of a loop.
#[inline]
#[track_caller]
pub fn guard<C: Stops<F>, F>(_kind: &Kind<C>, flag: &F) -> C::Guard {
    C::guard(flag)
}

/// A host loop, as far as its flag is concerned.
#[inline]
pub fn host_kind() -> Kind<bool> {
    Kind::new()
}

macro_rules! constructs {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Passes on the type of the condition.
            #[inline]
            pub fn has_kind(&self, _kind: &Kind<C>) {}

            /// Goes on. For host conditions there is no value to call it with, and the compiler knows that it does not return: so
            /// what is moved before a jump counts as moved only there.
            #[inline]
            pub fn stay(&self, stays: C::Stays) -> C::Stays {
                stays
            }
        }
    )*};
}
constructs!(If While Logical);

impl<C: Condition> If<C> {
    /// Whether tracing, after a jump, goes on at the end of the present arm: where the condition is a tensor.
    #[inline]
    pub fn staged(&self) -> Option<C::Stays> {
        self.stays()
    }
}

impl<C: Condition> While<C> {
    /// Whether tracing, after a jump, goes on at the end of the body: where the condition is a tensor.
    #[inline]
    pub fn staged(&self) -> Option<C::Stays> {
        C::stays()
    }
}
