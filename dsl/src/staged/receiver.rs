//! Methods that change nothing by their name, unless the type of their receiver is a user's.
//!
//! `#[graph]` does not see whether `x.round()` changes `x`: of a number or a tensor it does not, of a user's own type it may. So
//! where a method has the name of one that changes nothing in the standard library and here, the type of its receiver is
//! asked: if it is not from there ([`Known`]), the place is carried as if the method had any other name.

use super::condition::{Changes, Condition, Place};
use super::{Carry, If, Logical, While, never};
use crate::random::Key;
use crate::{Any, Array, DType, Dim, Element, HostTensor, List, Shape, Tensor, Var, bf16, f16};
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

/// Types whose methods change nothing if they have one of the names that `#[graph]` knows: those of the standard library and of
/// anabranch. Behind a shared reference nothing changes.
pub trait Known {}

/// Types in which an index finds only what is [`Known`], however deep.
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
        [T: Element] Tensor<T>, [T: Element] Var<T>, [T: Element] List<T>, [] Any, [] Key, [] HostTensor, [T: Element] Array<T>, [] Shape, [] Dim, [] DType,
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

/// What a method is called on.
#[derive(Debug)]
pub struct Receiver<'a, T: ?Sized>(pub &'a T);

/// What a method is called on an item of.
#[derive(Debug)]
pub struct ItemOf<'a, T: ?Sized>(pub &'a T);

/// It stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping;

/// It may change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changing;

/// Conditions under which a place of this kind may change, or not.
///
/// Where it may not, there is no value to go on with, so that for the compiler the place is never borrowed.
pub trait ChangesIf<K>: Condition {
    /// What there is to borrow the place with.
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
impl ChangesIf<Keeping> for Tensor<bool> {
    type Proof = Infallible;
    #[inline]
    fn proof() -> Option<Infallible> {
        None
    }
}
impl ChangesIf<Changing> for Tensor<bool> {
    type Proof = ();
    fn proof() -> Option<()> {
        Some(())
    }
}

/// The kinds of receivers. That of a type is found by the first of the traits that the type has: each is implemented for one
/// reference less than the one before, and a method is looked for in this order.
pub mod kinds {
    pub use super::super::used::{CellsKind as _, HoldsKind as _, UsedKind as _};
    pub use super::{
        CalledKind as _, IndexedBy as _, IndexedByKey as _, IndexedByPosition as _, KnownReceiver as _,
        MutReceiver as _, NotByMutReference as _, OtherReceiver as _, ReceiverByTrait as _, ReceiverInside as _,
        ReceivingCarry as _, ReceivingIterator as _,
    };
}

/// Of a [`Known`] type.
pub trait KnownReceiver {
    /// It stays as it is.
    fn kind(&self) -> Keeping {
        Keeping
    }
}
impl<T: Known + ?Sized> KnownReceiver for &&&Receiver<'_, T> {}
impl<T: KnownItems + ?Sized> KnownReceiver for &&&ItemOf<'_, T> {}

/// State of a user's own type, which may be an iterator as well.
pub trait ReceivingCarry {
    /// It may change.
    fn kind(&self) -> Changing {
        Changing
    }
}
impl<T: Carry> ReceivingCarry for &&Receiver<'_, T> {}

/// An iterator, whose methods of known names take it by value.
pub trait ReceivingIterator {
    /// It stays as it is.
    fn kind(&self) -> Keeping {
        Keeping
    }
}
impl<T: Iterator + ?Sized> ReceivingIterator for &Receiver<'_, T> {}

/// Of any other type.
pub trait OtherReceiver {
    /// It may change.
    fn kind(&self) -> Changing {
        Changing
    }
}
impl<T: ?Sized> OtherReceiver for Receiver<'_, T> {}
impl<T: ?Sized> OtherReceiver for ItemOf<'_, T> {}

/// A method that a trait of the standard library declares with `&self`.
///
/// A type has the method by implementing the trait, but a method of its own may come before it: of one declared with
/// `&mut self` that is so if the receiver is a mutable reference.
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

/// Takes the type of a receiver.
pub fn by_trait<M, T: ?Sized>(_receiver: &T) -> ByTrait<'_, M, T> {
    ByTrait(PhantomData)
}

/// Marks a receiver that the method leaves unmodified if it is that of the trait, which the call itself shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepingByTrait;

impl<M, T: Known + ?Sized> KnownReceiver for &&&ByTrait<'_, M, T> {}

/// A mutable reference to a value that has the method.
pub trait MutReceiver {
    /// The method may be another one.
    fn kind(&self) -> KeepingByTrait {
        KeepingByTrait
    }
}
impl<M, T: SharedMethod<M> + ?Sized> MutReceiver for &&ByTrait<'_, M, &mut T> {}

/// A value that has the method.
pub trait ReceiverByTrait {
    /// The method leaves it unmodified.
    fn kind(&self) -> Keeping {
        Keeping
    }
}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverByTrait for &ByTrait<'_, M, T> {}

/// A guard or box, whose own methods are functions, around a value that has the method.
pub trait ReceiverInside {
    /// The method leaves it unmodified.
    fn kind(&self) -> Keeping {
        Keeping
    }
}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverInside for &&ByTrait<'_, M, RefMut<'_, T>> {}
impl<M, T: SharedMethod<M> + ?Sized> ReceiverInside for &&ByTrait<'_, M, MutexGuard<'_, T>> {}

impl<M, T: ?Sized> OtherReceiver for ByTrait<'_, M, T> {}

/// The result of the call, which tells whether the method takes a mutable reference: then it is found before those of
/// [`NotByMutReference`], which return [`NotCalled`].
#[derive(Debug)]
pub struct Called<T>(pub T);

/// The result of a call that found no method for a mutable reference.
#[derive(Debug)]
pub struct NotCalled;

impl Called<NotCalled> {
    /// The receiver stays unmodified.
    pub fn kind(&self) -> Keeping {
        Keeping
    }
}

/// A call that found some method.
pub trait CalledKind {
    /// The receiver may change.
    fn kind(&self) -> Changing {
        Changing
    }
}
impl<T> CalledKind for Called<T> {}

/// Methods that a call on a mutable reference finds after all methods with `&mut self`, and before those with `&self`.
pub trait NotByMutReference: Sized {
    /// Found in place of that of [`Clone`].
    fn clone(&self) -> NotCalled {
        NotCalled
    }
    /// Found in place of that of [`ToOwned`].
    fn to_owned(&self) -> NotCalled {
        NotCalled
    }
    /// Found in place of that of [`ToString`], which mutable references implement.
    fn to_string(self) -> NotCalled {
        NotCalled
    }
}
impl<T: ?Sized> NotByMutReference for &mut T {}

/// Returns whether a receiver may change, by its type and by what a call on it returns.
pub fn decided<K: Decided<C>, C: Default>(_kind: K, _call: C) -> K::Kind {
    K::Kind::default()
}

/// See [`decided`].
pub trait Decided<C> {
    /// [`Keeping`] or [`Changing`].
    type Kind: Default;
}
impl<C> Decided<C> for Keeping {
    type Kind = Keeping;
}
impl<C> Decided<C> for Changing {
    type Kind = Changing;
}
impl<C: Default> Decided<C> for KeepingByTrait {
    type Kind = C;
}

/// Returns whether a place may change of which two methods are called.
pub fn either<A: Either<B>, B>(_first: A, _second: B) -> A::Kind {
    A::Kind::default()
}

/// See [`either`].
pub trait Either<B> {
    /// [`Keeping`] or [`Changing`].
    type Kind: Default;
}
impl<B: Default> Either<B> for Keeping {
    type Kind = B;
}
impl<B> Either<B> for Changing {
    type Kind = Changing;
}

/// A container in code that is not run, or what it leads to: gives an index that finds one of its items.
#[derive(Debug)]
pub struct Indexed<'a, T: ?Sized>(PhantomData<&'a T>);

/// Takes the type of a container.
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
    /// An index.
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
    /// An index.
    fn index(&self) -> usize {
        never()
    }
}
impl<T: Index<usize> + ?Sized> IndexedByPosition for Indexed<'_, T> {}

/// Other containers.
pub trait IndexedBy<I> {
    /// An index.
    fn index(&mut self) -> I {
        never()
    }
}
impl<I, T: Index<I> + ?Sized> IndexedBy<I> for Indexed<'_, T> {}

/// What was found of the type of a receiver, in code that is not run.
#[inline]
pub fn found<K: Default>(_kind: Option<K>) -> K {
    K::default()
}

/// Whether a part changes beside the whole: if the whole does, the part is carried with it.
#[inline]
pub fn unless<W: Unless<P>, P>(_whole: W, _part: P) -> W::Part {
    W::Part::default()
}

/// See [`unless`].
pub trait Unless<P> {
    /// Whether the part changes.
    type Part: Default;
}
impl<P: Default> Unless<P> for Keeping {
    type Part = P;
}
impl<P> Unless<P> for Changing {
    type Part = Keeping;
}

/// Whether a place of type `T` changes in a construct with a condition of type `C`.
#[diagnostic::on_unimplemented(
    message = "a staged `if` or `while` cannot change the host value of type `{T}`",
    label = "a method that may change it is called under a condition that is a tensor",
    note = "a method that changes nothing can be called on a shared reference: `(&x).method(..)`",
    note = "for a struct of tensors, add `#[derive(Carry)]`; in it, mark a host field that does not change `#[carry(host)]`"
)]
pub trait MayChange<C, T: ?Sized> {
    /// The place, if it does.
    fn place<'a>(at: Option<&'a mut T>) -> Option<Place<'a, T>>;
}
#[diagnostic::do_not_recommend]
impl<C, T: ?Sized> MayChange<C, T> for Keeping {
    #[inline]
    fn place<'a>(_at: Option<&'a mut T>) -> Option<Place<'a, T>> {
        None
    }
}
#[diagnostic::do_not_recommend]
impl<C: Changes<T>, T: ?Sized> MayChange<C, T> for Changing {
    #[inline]
    fn place<'a>(at: Option<&'a mut T>) -> Option<Place<'a, T>> {
        at.map(Place::new::<C>)
    }
}

macro_rules! places {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Whether it may change a place of this kind.
            #[inline]
            pub fn changes<K>(&self, _kind: K) -> Option<<C as ChangesIf<K>>::Proof>
            where
                C: ChangesIf<K>,
            {
                <C as ChangesIf<K>>::proof()
            }

            /// Goes on to borrow the place.
            #[inline]
            pub fn change<K>(&self, _kind: K, proof: <C as ChangesIf<K>>::Proof) -> <C as ChangesIf<K>>::Proof
            where
                C: ChangesIf<K>,
            {
                proof
            }

            /// A place that it changes if its type is of a certain kind.
            #[inline]
            pub fn place_if<'a, T: ?Sized, K: MayChange<C, T>>(
                &self,
                _kind: K,
                at: Option<&'a mut T>,
            ) -> Option<Place<'a, T>> {
                K::place(at)
            }
        }
    )*};
}
places!(If While Logical);
