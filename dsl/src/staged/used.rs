//! Checks for mutable references and cells that only types reveal.
//!
//! `#[graph]` sees tokens only. Tokens do not tell that `let r = first(&mut model);` creates a
//! mutable reference, so a construct would not carry the changes that `r.step()` makes, and they
//! would be made once, while tracing. So for every variable that a construct uses and that is not
//! known to be mutable, `#[graph]` emits a check of its type in code that never runs.

use super::receiver::Unmodified;
use super::{Carry, Condition, If, Logical, While};
use crate::Tensor;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::collections::{btree_map, hash_map, vec_deque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{MutexGuard, RwLockWriteGuard};
use std::{array, iter, option, slice, vec};

/// A place that is a receiver or an argument.
#[derive(Debug)]
pub struct Used<'a, T: ?Sized>(pub &'a T);

/// Marks a mutable reference, or a guard that is like one.
#[derive(Debug)]
pub struct MutReference;

/// Marks a value that holds mutable references.
#[derive(Debug)]
pub struct MutReferences;

/// Marks a cell of something that a tensor condition may modify, or a value that holds such cells.
#[derive(Debug)]
pub struct InteriorMutable;

/// Marks any other value.
#[derive(Debug)]
pub struct NoMutReference;

impl<T: ?Sized> Used<'_, &mut T> {
    /// Returns the kind. This inherent method takes precedence over the methods of the traits.
    pub fn kind(&self) -> MutReference {
        MutReference
    }
}

impl<T: ?Sized> Used<'_, RefMut<'_, T>> {
    /// Returns the kind, which is that of a mutable reference.
    pub fn kind(&self) -> MutReference {
        MutReference
    }
}

impl<T: ?Sized> Used<'_, MutexGuard<'_, T>> {
    /// Returns the kind, which is that of a mutable reference.
    pub fn kind(&self) -> MutReference {
        MutReference
    }
}

impl<T: ?Sized> Used<'_, RwLockWriteGuard<'_, T>> {
    /// Returns the kind, which is that of a mutable reference.
    pub fn kind(&self) -> MutReference {
        MutReference
    }
}

/// The kind of a place that holds mutable references.
pub trait HoldsKind {
    /// Returns the marker for types that contain mutable references.
    fn kind(&self) -> MutReferences {
        MutReferences
    }
}

impl<T: HoldsMutBorrow + ?Sized> HoldsKind for Used<'_, T> {}

/// Mutable references, and values that hold them.
pub trait MutBorrow {}
impl<T: ?Sized> MutBorrow for &mut T {}
impl<T: ?Sized> MutBorrow for RefMut<'_, T> {}
impl<T: ?Sized> MutBorrow for MutexGuard<'_, T> {}
impl<T: ?Sized> MutBorrow for RwLockWriteGuard<'_, T> {}

/// Values that hold mutable references, by their type.
pub trait HoldsMutBorrow: MutBorrow {}

macro_rules! holds {
    ($([$($generics:tt)*] $holder:ty),* $(,)?) => {$(
        impl<$($generics)*> MutBorrow for $holder {}
        impl<$($generics)*> HoldsMutBorrow for $holder {}
    )*};
}
holds! {
    [T: MutBorrow] Vec<T>, [T: MutBorrow] [T], [T: MutBorrow, const N: usize] [T; N], [T: MutBorrow] VecDeque<T>, [T: MutBorrow + ?Sized] Box<T>,
    [T: MutBorrow] Option<T>, [T: MutBorrow, E] Result<T, E>, [T: MutBorrow] Pin<T>, [K, V: MutBorrow, S] HashMap<K, V, S>, [K, V: MutBorrow] BTreeMap<K, V>,
    [A, T: MutBorrow] (A, T), [A, B, T: MutBorrow] (A, B, T),
    [T] slice::IterMut<'_, T>, [T] slice::ChunksMut<'_, T>, [T] slice::ChunksExactMut<'_, T>, [T] vec_deque::IterMut<'_, T>,
    [K, V] hash_map::IterMut<'_, K, V>, [K, V] hash_map::ValuesMut<'_, K, V>,
    [K, V] btree_map::IterMut<'_, K, V>, [K, V] btree_map::ValuesMut<'_, K, V>,
    [T: MutBorrow] vec::IntoIter<T>, [T: MutBorrow, const N: usize] array::IntoIter<T, N>, [T: MutBorrow] option::IntoIter<T>, [T: MutBorrow] iter::Once<T>,
    [I: MutBorrow] iter::Rev<I>, [I: MutBorrow] iter::Enumerate<I>, [I: MutBorrow] iter::Skip<I>, [I: MutBorrow] iter::Take<I>, [I: MutBorrow] iter::StepBy<I>,
    [I: MutBorrow, F] iter::Map<I, F>, [I: MutBorrow, F] iter::Filter<I, F>, [I: MutBorrow, F] iter::FilterMap<I, F>,
    [I: MutBorrow, J] iter::Zip<I, J>, [I: MutBorrow, J] iter::Chain<I, J>, [I: MutBorrow + Iterator] iter::Peekable<I>,
    [R] dyn FnOnce() -> R + '_, [R] dyn FnMut() -> R + '_, [A, R] dyn FnOnce(A) -> R + '_, [A, R] dyn FnMut(A) -> R + '_,
}

/// Cells of values that a tensor condition may modify, and values that hold such cells.
pub trait Cells {}

macro_rules! cells {
    ($([$($generics:tt)*] $ty:ty),* $(,)?) => {$(impl<$($generics)*> Cells for $ty {})*};
}
cells! {
    [T: Carry] Cell<T>, [T: Carry] RefCell<T>, [C: Cells + ?Sized] &C, [C: Cells + ?Sized] Rc<C>, [C: Cells + ?Sized] Box<C>,
    [C: Cells] Vec<C>, [C: Cells] [C], [C: Cells, const N: usize] [C; N], [C: Cells] Option<C>,
}

/// The kind of a place that is a cell or holds some.
pub trait CellsKind {
    /// Returns the marker for types that contain a cell.
    fn kind(&self) -> InteriorMutable {
        InteriorMutable
    }
}

impl<T: Cells + ?Sized> CellsKind for Used<'_, T> {}

/// The kind of a place that is not a mutable reference.
pub trait UsedKind {
    /// Returns the marker for types without mutable references.
    fn kind(&self) -> NoMutReference;
}

impl<T: ?Sized> UsedKind for &Used<'_, T> {
    fn kind(&self) -> NoMutReference {
        NoMutReference
    }
}

/// Conditions under which a place may be used that `#[graph]` does not recognize as a mutable
/// reference.
#[diagnostic::on_unimplemented(
    message = "`#[graph]` cannot tell whether this is modified under a tensor condition",
    label = "its type contains a mutable reference or a cell",
    note = "declare the mutable reference as `let name: &mut _ = ..;`, or use the variable it refers to",
    note = "the content of a `Cell` or `RefCell` is not tracked: use a `mut` variable"
)]
pub trait Uses<K> {}
#[diagnostic::do_not_recommend]
impl<K> Uses<K> for bool {}
#[diagnostic::do_not_recommend]
impl Uses<NoMutReference> for Tensor<bool> {}
/// With one implementation alone, the compiler would report its kind as expected, and not the
/// message of [`Uses`].
#[diagnostic::do_not_recommend]
impl Uses<()> for Tensor<bool> {}

macro_rules! uses {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Checks that a place of this kind may be used here.
            #[inline]
            pub fn uses<K>(&self, _kind: K)
            where
                C: Uses<K>,
            {
            }
        }
    )*};
}
uses!(If While Logical);

#[diagnostic::do_not_recommend]
impl<K> Uses<(NoMutReference, K)> for Tensor<bool> {}
#[diagnostic::do_not_recommend]
impl<K> Uses<(InteriorMutable, K)> for Tensor<bool> {}
#[diagnostic::do_not_recommend]
impl Uses<(MutReference, Unmodified)> for Tensor<bool> {}

/// Diverges. The call precedes code that is compiled but never run.
pub fn never() -> ! {
    unreachable!("type checks are never executed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_count_as_mutable_references() {
        let cell = RefCell::new(1);
        let guard = cell.borrow_mut();
        let _: MutReference = Used(&guard).kind();
        let held = vec![Some(guard)];
        let _: MutReferences = Used(&held).kind();
        let mutex = std::sync::Mutex::new(1);
        let _: MutReference = Used(&mutex.lock().unwrap()).kind();
        let _: NoMutReference = (&Used(&cell.try_borrow().is_ok())).kind();
    }
}
