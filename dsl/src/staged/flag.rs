//! Flags, which replace jumps under tensor conditions.
//!
//! A jump under host conditions is made as written. Under a tensor condition both arms are traced,
//! so it cannot be. Instead it *raises the flags* of the statements and loops that it leaves, and
//! tracing goes on at the end of the innermost staged arm. The statements after a statement that
//! may have been left are in an `if` on its flag. A loop that may have been left goes on only while
//! its flag is down. Nested statements share a flag.
//!
//! The types of the conditions between a flag and its jumps decide its type: it is a `Tensor<bool>`
//! if one of them is, else a `bool`. A statement reads a flag as the conditions inside the
//! statement type it: jumps under host conditions are made as written, so for them the flag is
//! down. A [`ConditionType`] passes the type of a construct to the flags declared before it.

use super::{Condition, If, Logical, While};
use crate::{HostTensor, Tensor, scalar};
use std::marker::PhantomData;

/// The type of the condition of a later construct.
#[derive(Debug)]
pub struct ConditionType<C>(PhantomData<fn() -> C>);

impl<C> ConditionType<C> {
    /// Creates a kind whose type is inferred later.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion creates flags")]
    pub fn new() -> ConditionType<C> {
        ConditionType(PhantomData)
    }

    /// Infers the type from a condition.
    #[inline]
    pub fn of(&self, _condition: &C) {}
}

/// The types of the conditions around the jumps of a flag: `(&a, (&b, ()))`.
pub trait ConditionTypes {
    /// `Tensor<bool>` if one of the types is, else `bool`.
    type Flag: Flag;
}

impl ConditionTypes for () {
    type Flag = bool;
}
impl<R: ConditionTypes> ConditionTypes for (&ConditionType<bool>, R) {
    type Flag = R::Flag;
}
impl<R> ConditionTypes for (&ConditionType<Tensor<bool>>, R) {
    type Flag = Tensor<bool>;
}

/// Infers the first kind as that of the flag which the other kinds make.
#[inline]
pub fn join_kinds<K: ConditionTypes>(_joined: &ConditionType<K::Flag>, _kinds: K) {}

/// Returns the kind of the flag that these kinds make.
#[inline]
pub fn joined<K: ConditionTypes>(_kinds: K) -> ConditionType<K::Flag> {
    ConditionType::new()
}

/// The type of a flag, which says whether a jump was taken.
pub trait Flag: Condition {
    /// Creates a flag.
    fn flag(taken: bool) -> Self;
    /// Returns whether no jump was taken.
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

/// Creates a flag that is down.
#[inline]
#[track_caller]
pub fn flag<K: ConditionTypes>(_kinds: K) -> K::Flag {
    K::Flag::flag(false)
}

/// Raises a flag.
#[inline]
#[track_caller]
pub fn raise<F: Flag>(flag: &mut F) {
    *flag = F::flag(true);
}

/// Returns whether a flag is down.
#[inline]
#[track_caller]
pub fn is_down<F: Flag>(flag: &F) -> F {
    flag.is_down()
}

/// Returns whether a jump under constructs of these kinds has raised a flag.
#[inline]
pub fn is_up<K: ConditionTypes, F>(_kinds: K, flag: &F) -> K::Flag
where
    K::Flag: RaisedIn<F>,
{
    K::Flag::raised_in(flag)
}

/// The value of a flag of type `F` for jumps that raise one of this type.
pub trait RaisedIn<F> {
    /// Returns whether a jump has raised the flag.
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

/// The ways in which a loop with a condition of this type stops for a flag of type `F`.
///
/// A staged loop reads the flag before its condition. Host jumps leave a host loop natively. If the
/// flag of a host loop is a tensor, each further iteration is traced under the condition that the
/// flag is down. Before the first jump under a tensor condition, iterations are unconditional.
pub trait StopsOnFlag<F>: Condition {
    /// The condition of the `if` around the body.
    type Guard: Condition;
    /// Returns the term that precedes the condition of the loop.
    fn head(flag: &F) -> Self;
    /// Returns whether to run the body.
    fn guard(flag: &F) -> Self::Guard;
}

impl StopsOnFlag<bool> for bool {
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

impl StopsOnFlag<Tensor<bool>> for bool {
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

impl StopsOnFlag<Tensor<bool>> for Tensor<bool> {
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

/// Returns the term that precedes the condition of a loop.
#[inline]
#[track_caller]
pub fn head<C: StopsOnFlag<F>, F>(_kind: &ConditionType<C>, flag: &F) -> C {
    C::head(flag)
}

/// Returns whether to run the body of a loop.
#[inline]
#[track_caller]
pub fn guard<C: StopsOnFlag<F>, F>(_kind: &ConditionType<C>, flag: &F) -> C::Guard {
    C::guard(flag)
}

/// Returns the kind of a host loop.
#[inline]
pub fn host_kind() -> ConditionType<bool> {
    ConditionType::new()
}

macro_rules! constructs {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Infers a kind from the type of the condition.
            #[inline]
            pub fn has_kind(&self, _kind: &ConditionType<C>) {}

            /// Continues after a jump. For host conditions the argument has no value, so the
            /// compiler knows that this call does not return. A value that is moved before a jump
            /// then counts as moved only on that path.
            #[inline]
            pub fn stay(&self, stays: C::Stays) -> C::Stays {
                stays
            }
        }
    )*};
}
constructs!(If While Logical);

impl<C: Condition> If<C> {
    /// Returns the proof that tracing goes on at the end of the current arm after a jump, if the
    /// condition is a tensor.
    #[inline]
    pub fn staged(&self) -> Option<C::Stays> {
        self.stays()
    }
}

impl<C: Condition> While<C> {
    /// Returns the proof that tracing goes on at the end of the body after a jump, if the condition
    /// is a tensor.
    #[inline]
    pub fn staged(&self) -> Option<C::Stays> {
        C::stays()
    }
}
