//! Mutable references that only their type shows.
//!
//! `#[graph]` sees tokens. That `let r = first(&mut model);` makes a mutable reference is not among them, so a construct
//! cannot carry what `r.step()` changes, and the change would be made once, while tracing. So beside each construct `#[graph]`
//! puts, for every variable that is a receiver or an argument in it and is not known to be mutable, a check of its type in
//! code that is never reached.

use super::{Carry, Condition, If, Logical, While};
use crate::Tensor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A place that is a receiver or an argument.
#[derive(Debug)]
pub struct Used<'a, T: ?Sized>(pub &'a T);

/// It is a mutable reference, or holds some.
#[derive(Debug)]
pub struct MutReference;

/// It is a `Cell` or `RefCell`, itself or behind a shared reference or an `Rc`, of what a condition that is a tensor may change.
#[derive(Debug)]
pub struct InteriorMutable;

/// It is something else.
#[derive(Debug)]
pub struct NoMutReference;

impl<T: ?Sized> Used<'_, &mut T> {
    /// What it is: this method of the type itself comes before the one of the trait.
    pub fn kind(&self) -> MutReference {
        MutReference
    }
}

macro_rules! holds_mut_references {
    ($([$($generics:tt)*] $holder:ty),*) => {$(
        impl<$($generics)*> Used<'_, $holder> {
            /// What it is.
            pub fn kind(&self) -> MutReference {
                MutReference
            }
        }
    )*};
}
holds_mut_references!(
    [T: ?Sized] Vec<&mut T>,
    [T: ?Sized] Option<&mut T>,
    [T: ?Sized, const N: usize] [&mut T; N],
    [T: ?Sized] Box<[&mut T]>,
    [T: Carry] std::slice::IterMut<'_, T>,
    [R] Box<dyn FnOnce() -> R + '_>,
    [R] Box<dyn FnMut() -> R + '_>,
    [A, R] Box<dyn FnOnce(A) -> R + '_>,
    [A, R] Box<dyn FnMut(A) -> R + '_>
);

macro_rules! interior_mutable {
    ($($cell:ty),*) => {$(
        impl<T: Carry> Used<'_, $cell> {
            /// What it is.
            pub fn kind(&self) -> InteriorMutable {
                InteriorMutable
            }
        }
    )*};
}
interior_mutable!(Cell<T>, &Cell<T>, Rc<Cell<T>>, RefCell<T>, &RefCell<T>, Rc<RefCell<T>>);

/// What a place is that is no mutable reference.
pub trait UsedKind {
    /// What it is.
    fn kind(&self) -> NoMutReference;
}

impl<T: ?Sized> UsedKind for Used<'_, T> {
    fn kind(&self) -> NoMutReference {
        NoMutReference
    }
}

/// Conditions under which a place may be used that `#[graph]` takes for no mutable reference.
#[diagnostic::on_unimplemented(
    message = "whether a condition that is a tensor changes what this leads to cannot be seen",
    label = "a mutable reference by its type only, or a cell",
    note = "declare a mutable reference as `let name: &mut _ = ..;`, or use the variable it leads to; then what changes is carried",
    note = "what is in a `Cell` or `RefCell` is not carried: use a `mut` variable"
)]
pub trait Uses<K> {}
#[diagnostic::do_not_recommend]
impl<K> Uses<K> for bool {}
#[diagnostic::do_not_recommend]
impl Uses<NoMutReference> for Tensor<bool> {}
/// With one kind alone the compiler would expect that kind, and not say what [`Uses`] says.
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

/// Before code that is compiled only.
pub fn never() -> ! {
    unreachable!("the checks of types are not run")
}
