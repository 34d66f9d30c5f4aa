//! Methods whose names suggest that they modify nothing.
//!
//! `#[graph]` cannot see whether `x.round()` modifies `x`. For a number or a tensor it does not;
//! for a user's own type it may. So if a method has the name of a method that modifies nothing in
//! the standard library and in this crate, the type of its receiver decides. If that is not a
//! [`Known`] type, the place is carried, as for methods of other names.

use super::condition::{CarriedPlace, Changes, Condition};
use super::{Carry, If, Logical, While, never};
use crate::random::Key;
use crate::{AnyValue, Array, DType, Dim, Element, HostTensor, List, Shape, Tensor, Var, bf16, f16};
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, Ref, RefCell, RefMut};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Deref, Index, Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Types of the standard library and of anabranch, whose methods with the names that `#[graph]`
/// knows modify nothing. Shared references are included, since nothing changes behind them.
pub trait Known {}

/// Containers in which an index finds only [`Known`] values, at any depth.
pub trait KnownItems {}

macro_rules! known {
    ($($name:ident: $([$($generics:tt)*] $ty:ty),* ;)*) => {$($(impl<$($generics)*> $name for $ty {})*)*};
}
known! {
    Known:
        [] bool, [] char, [] str, [] String, [] f32, [] f64, [] f16, [] bf16,
        [] i8, [] i16, [] i32, [] i64, [] i128, [] isize, [] u8, [] u16, [] u32, [] u64, [] u128, [] usize,
        [T] Vec<T>, [T] [T], [T, const N: usize] [T; N], [T] VecDeque<T>, [T] BinaryHeap<T>, [T] LinkedList<T>, [T] OnceCell<T>,
        [T: ToOwned + ?Sized] Cow<'_, T>, [T: Known + ?Sized] Ref<'_, T>, [T: Known + ?Sized] RefMut<'_, T>,
        [T: Known + ?Sized] MutexGuard<'_, T>, [] NonZero<u8>, [] NonZero<u32>, [] NonZero<u64>, [] NonZero<usize>, [] NonZero<i32>, [] NonZero<i64>,
        [K, V, S] HashMap<K, V, S>, [K, V] BTreeMap<K, V>, [T, S] HashSet<T, S>, [T] BTreeSet<T>,
        [T] Option<T>, [T, E] Result<T, E>, [T: ?Sized] Rc<T>, [T: ?Sized] Arc<T>, [T: ?Sized] Cell<T>, [T: ?Sized] RefCell<T>,
        [T] Range<T>, [T] RangeInclusive<T>, [T] Wrapping<T>, [T] Saturating<T>, [T] Reverse<T>,
        [] Duration, [] Instant, [] Ordering, [] Path, [] PathBuf, [] OsStr, [] OsString,
        [T: Element] Tensor<T>, [T: Element] Var<T>, [T: Element] List<T>, [] AnyValue, [] Key, [] HostTensor, [T: Element] Array<T>, [] Shape, [] Dim, [] DType,
        [T: ?Sized] &T, [T: Known + ?Sized] &mut T, [T: Known + ?Sized] Box<T>;
    KnownItems:
        [] str, [] String, [] f32, [] f64, [] f16, [] bf16, [] bool, [] char,
        [] i8, [] i16, [] i32, [] i64, [] i128, [] isize, [] u8, [] u16, [] u32, [] u64, [] u128, [] usize,
        [T: KnownItems] Vec<T>, [T: KnownItems] [T], [T: KnownItems, const N: usize] [T; N], [T: KnownItems] VecDeque<T>,
        [K, V: KnownItems, S] HashMap<K, V, S>, [K, V: KnownItems] BTreeMap<K, V>, [T: KnownItems] Option<T>,
        [T: Element] Tensor<T>, [T: Element] Var<T>, [T: Element] List<T>, [] HostTensor,
        [T: ?Sized] &T, [T: KnownItems + ?Sized] &mut T, [T: KnownItems + ?Sized] Box<T>;
}
macro_rules! known_tuples {
    ($(($($t:ident),*))*) => {$(
        impl<$($t),*> Known for ($($t,)*) {}
        impl<$($t: KnownItems),*> KnownItems for ($($t,)*) {}
    )*};
}
known_tuples! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

/// The receiver of a method.
#[derive(Debug)]
pub struct Receiver<'a, T: ?Sized>(pub &'a T);

/// A container of which an item is the receiver of a method.
#[derive(Debug)]
pub struct ItemOf<'a, T: ?Sized>(pub &'a T);

/// Marks a receiver that the method leaves unmodified.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmodified;

/// Marks a receiver that the method may modify.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaybeModified;

/// Conditions under which a place of this kind may be modified, or not.
///
/// If it may not, [`Proof`](Self::Proof) has no value, so for the compiler the place is never
/// borrowed.
pub trait ChangesIf<K>: Condition {
    /// The proof that allows borrowing the place.
    type Proof;
    /// See [`Proof`](Self::Proof).
    fn proof() -> Option<Self::Proof>;
}

impl<K> ChangesIf<K> for bool {
    type Proof = Infallible;
    #[inline]
    fn proof() -> Option<Infallible> {
        None
    }
}
impl ChangesIf<Unmodified> for Tensor<bool> {
    type Proof = Infallible;
    #[inline]
    fn proof() -> Option<Infallible> {
        None
    }
}
impl ChangesIf<MaybeModified> for Tensor<bool> {
    type Proof = ();
    fn proof() -> Option<()> {
        Some(())
    }
}

/// The kinds of receivers. The first of these traits that a type implements determines its kind:
/// each is implemented for one reference less than the previous trait, and method lookup tries them
/// in this order.
pub mod kinds {
    pub use super::super::used::{CellsKind as _, HoldsKind as _, UsedKind as _};
    pub use super::{
        CalledKind as _, IndexedBy as _, IndexedByKey as _, IndexedByPosition as _, KnownReceiver as _,
        MutReceiver as _, NotByMutReference as _, OtherReceiver as _, ReceiverByTrait as _, ReceiverInside as _,
        ReceivingCarry as _, ReceivingIterator as _,
    };
}

/// A receiver of a [`Known`] type.
pub trait KnownReceiver {
    /// Returns that it is unmodified.
    fn kind(&self) -> Unmodified {
        Unmodified
    }
}
impl<T: Known + ?Sized> KnownReceiver for &&&Receiver<'_, T> {}
impl<T: KnownItems + ?Sized> KnownReceiver for &&&ItemOf<'_, T> {}

/// A carried value of a user's own type, which may also be an iterator.
pub trait ReceivingCarry {
    /// Returns that it may be modified.
    fn kind(&self) -> MaybeModified {
        MaybeModified
    }
}
impl<T: Carry> ReceivingCarry for &&Receiver<'_, T> {}

/// An iterator, whose methods of known names take it by value.
pub trait ReceivingIterator {
    /// Returns that it is unmodified.
    fn kind(&self) -> Unmodified {
        Unmodified
    }
}
impl<T: Iterator + ?Sized> ReceivingIterator for &Receiver<'_, T> {}

/// A receiver of any other type.
pub trait OtherReceiver {
    /// Returns that it may be modified.
    fn kind(&self) -> MaybeModified {
        MaybeModified
    }
}
impl<T: ?Sized> OtherReceiver for Receiver<'_, T> {}
impl<T: ?Sized> OtherReceiver for ItemOf<'_, T> {}

/// A method that a trait of the standard library declares with `&self`.
///
/// A type has the method by implementing the trait, but an inherent method takes precedence. If the
/// receiver is a mutable reference, so does an inherent method with `&mut self`.
pub trait SharedMethod<M> {}

/// The method of [`Clone`].
#[derive(Debug)]
pub struct CloneMethod;
impl<T: Clone> SharedMethod<CloneMethod> for T {}

/// The method of [`ToOwned`].
#[derive(Debug)]
pub struct ToOwnedMethod;
impl<T: ToOwned + ?Sized> SharedMethod<ToOwnedMethod> for T {}

/// The method of [`ToString`].
#[derive(Debug)]
pub struct ToStringMethod;
impl<T: ToString + ?Sized> SharedMethod<ToStringMethod> for T {}

/// The receiver of a call that has the name of the [`SharedMethod`] `M`.
#[derive(Debug)]
pub struct ByTrait<'a, M, T: ?Sized>(PhantomData<(M, &'a T)>);

/// Returns the type of a receiver.
pub fn by_trait<M, T: ?Sized>(_receiver: &T) -> ByTrait<'_, M, T> {
    ByTrait(PhantomData)
}

/// Marks a receiver that is unmodified if the method is that of the trait, which the call itself
/// shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnmodifiedByTrait;

impl<M, T: Known + ?Sized> KnownReceiver for &&&ByTrait<'_, M, T> {}

/// A mutable reference to a value that has the method.
pub trait MutReceiver {
    /// Returns that the method may be another method of that name.
    fn kind(&self) -> UnmodifiedByTrait {
        UnmodifiedByTrait
    }
}
impl<M, T: SharedMethod<M> + ?Sized> MutReceiver for &&ByTrait<'_, M, &mut T> {}

/// A value that has the method.
pub trait ReceiverByTrait {
    /// Returns that the method leaves it unmodified.
    fn kind(&self) -> Unmodified {
        Unmodified
    }
}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverByTrait for &ByTrait<'_, M, T> {}

/// A guard or box around a value that has the method. Its own methods are associated functions.
pub trait ReceiverInside {
    /// Returns that the method leaves it unmodified.
    fn kind(&self) -> Unmodified {
        Unmodified
    }
}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverInside for &&ByTrait<'_, M, RefMut<'_, T>> {}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverInside for &&ByTrait<'_, M, MutexGuard<'_, T>> {}

impl<M, T: ?Sized> OtherReceiver for ByTrait<'_, M, T> {}

/// The result of the call, which tells whether the method takes a mutable reference. If so, method
/// lookup finds it before those of [`NotByMutReference`], which return [`NotCalled`].
#[derive(Debug)]
pub struct Called<T>(pub T);

/// The result of a call that found no method for a mutable reference.
#[derive(Debug)]
pub struct NotCalled;

impl Called<NotCalled> {
    /// Returns that the receiver is unmodified.
    pub fn kind(&self) -> Unmodified {
        Unmodified
    }
}

/// A call that found some method.
pub trait CalledKind {
    /// Returns that the receiver may be modified.
    fn kind(&self) -> MaybeModified {
        MaybeModified
    }
}
impl<T> CalledKind for Called<T> {}

/// Methods that a call on a mutable reference finds after all methods with `&mut self`, and before
/// those with `&self`.
pub trait NotByMutReference: Sized {
    /// Replaces the method of [`Clone`].
    fn clone(&self) -> NotCalled {
        NotCalled
    }
    /// Replaces the method of [`ToOwned`].
    fn to_owned(&self) -> NotCalled {
        NotCalled
    }
    /// Replaces the method of [`ToString`], which mutable references implement.
    fn to_string(self) -> NotCalled {
        NotCalled
    }
}
impl<T: ?Sized> NotByMutReference for &mut T {}

/// Returns whether a receiver may be modified, by its type and by the result of a call on it.
pub fn decided<K: Decided<C>, C: Default>(_kind: K, _call: C) -> K::Kind {
    K::Kind::default()
}

/// See [`decided`].
pub trait Decided<C> {
    /// [`Unmodified`] or [`MaybeModified`].
    type Kind: Default;
}
impl<C> Decided<C> for Unmodified {
    type Kind = Unmodified;
}
impl<C> Decided<C> for MaybeModified {
    type Kind = MaybeModified;
}
impl<C: Default> Decided<C> for UnmodifiedByTrait {
    type Kind = C;
}

/// Returns whether a place may be modified by either of two methods.
pub fn either<A: Either<B>, B>(_first: A, _second: B) -> A::Kind {
    A::Kind::default()
}

/// See [`either`].
pub trait Either<B> {
    /// [`Unmodified`] or [`MaybeModified`].
    type Kind: Default;
}
impl<B: Default> Either<B> for Unmodified {
    type Kind = B;
}
impl<B> Either<B> for MaybeModified {
    type Kind = MaybeModified;
}

/// A container, or the value that it dereferences to, in code that never runs. The trait provides
/// an index of one of its items.
#[derive(Debug)]
pub struct Indexed<'a, T: ?Sized>(PhantomData<&'a T>);

/// Returns the type of a container.
pub fn indexed<T: ?Sized>(_container: &T) -> Indexed<'_, T> {
    Indexed(PhantomData)
}

impl<'a, T: Deref + ?Sized> Deref for Indexed<'a, T>
where
    T::Target: 'a,
{
    type Target = Indexed<'a, T::Target>;
    fn deref(&self) -> &Self::Target {
        never()
    }
}

/// Maps, whose index is a key.
pub trait IndexedByKey: Sized {
    /// The type of a key.
    type Key;
    /// Returns the number of a host value as an index.
    fn index(self) -> Self::Key {
        never()
    }
}
impl<'a, K, V, S> IndexedByKey for Indexed<'a, HashMap<K, V, S>> {
    type Key = &'a K;
}
impl<'a, K, V> IndexedByKey for Indexed<'a, BTreeMap<K, V>> {
    type Key = &'a K;
}

/// Containers that find an item by its position.
pub trait IndexedByPosition {
    /// Returns an index.
    fn index(&self) -> usize {
        never()
    }
}
impl<T: Index<usize> + ?Sized> IndexedByPosition for Indexed<'_, T> {}

/// Other containers.
pub trait IndexedBy<I> {
    /// Returns an index.
    fn index(&mut self) -> I {
        never()
    }
}
impl<I, T: Index<I> + ?Sized> IndexedBy<I> for Indexed<'_, T> {}

/// Returns a value of the inferred receiver kind. The argument only carries its type.
#[inline]
pub fn inferred_kind<K: Default>(_kind: Option<K>) -> K {
    K::default()
}

/// Returns whether a part of a place is modified separately from the whole place. If the whole is
/// modified, the part is carried with it.
#[inline]
pub fn part_unless_whole<W: Unless<P>, P>(_whole: W, _part: P) -> W::Part {
    W::Part::default()
}

/// See [`part_unless_whole`].
pub trait Unless<P> {
    /// [`Unmodified`] or [`MaybeModified`], for the part.
    type Part: Default;
}
impl<P: Default> Unless<P> for Unmodified {
    type Part = P;
}
impl<P> Unless<P> for MaybeModified {
    type Part = Unmodified;
}

/// The kinds by which a place of type `T` may be modified in a construct with a condition of type
/// `C`.
#[diagnostic::on_unimplemented(
    message = "a staged `if` or `while` cannot modify a host value of type `{T}`",
    label = "a method that may modify it is called under a tensor condition",
    note = "call a method that takes `&self` on a shared reference: `(&x).method(..)`",
    note = "for a struct of tensors, add `#[derive(Carry)]`, and mark host fields that are not modified with \
            `#[carry(host)]`"
)]
pub trait MayChange<C, T: ?Sized> {
    /// Returns the place if it is modified.
    fn place<'a>(at: Option<&'a mut T>) -> Option<CarriedPlace<'a, T>>;
}
#[diagnostic::do_not_recommend]
impl<C, T: ?Sized> MayChange<C, T> for Unmodified {
    #[inline]
    fn place<'a>(_at: Option<&'a mut T>) -> Option<CarriedPlace<'a, T>> {
        None
    }
}
#[diagnostic::do_not_recommend]
impl<C: Changes<T>, T: ?Sized> MayChange<C, T> for MaybeModified {
    #[inline]
    fn place<'a>(at: Option<&'a mut T>) -> Option<CarriedPlace<'a, T>> {
        at.map(CarriedPlace::new::<C>)
    }
}

macro_rules! places {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Returns the proof if the construct may modify a place of this kind.
            #[inline]
            pub fn changes<K>(&self, _kind: K) -> Option<<C as ChangesIf<K>>::Proof>
            where
                C: ChangesIf<K>,
            {
                <C as ChangesIf<K>>::proof()
            }

            /// Returns the proof, before the place is borrowed.
            #[inline]
            pub fn change<K>(&self, _kind: K, proof: <C as ChangesIf<K>>::Proof) -> <C as ChangesIf<K>>::Proof
            where
                C: ChangesIf<K>,
            {
                proof
            }

            /// Returns a place that is modified if its type is of a certain kind.
            #[inline]
            pub fn place_if<'a, T: ?Sized, K: MayChange<C, T>>(
                &self,
                _kind: K,
                at: Option<&'a mut T>,
            ) -> Option<CarriedPlace<'a, T>> {
                K::place(at)
            }
        }
    )*};
}
places!(If While Logical);
