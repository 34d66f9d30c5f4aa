//! Handles of operations.
//!
//! A [`Prim`] identifies one row of the table of operations. The constants in [`prim`](super::prim)
//! are valid in patterns, so a misspelled operation is a compile error:
//!
//! ```
//! use anabranch::extend::{Prim, prim};
//!
//! fn is_shift(op: Prim) -> bool {
//!     matches!(op, prim::ADD | prim::SUB)
//! }
//! assert!(is_shift(prim::ADD) && prim::ADD.name == "add");
//! ```
//!
//! Names are used in the text form, in messages and in files of cases. The number of a handle never
//! leaves the process, since it changes with the table.

use super::{Contraction, FAMILIES, OpClass, OpDef};
use crate::{Diagnostic, Result};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{LazyLock, PoisonError, RwLock};

/// A handle to the [`OpDef`] of an operation, to which it dereferences.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prim(u16);

/// The first number of a registered operation. Smaller numbers are those of the table.
const FIRST_REGISTERED: u16 = 0x8000;

const BUILT_IN: usize = {
    let (mut n, mut family) = (0, 0);
    while family < FAMILIES.len() {
        n += FAMILIES[family].len();
        family += 1;
    }
    n
};

const TABLE: [&OpDef; BUILT_IN] = {
    let mut table = [FAMILIES[0][0]; BUILT_IN];
    let (mut n, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut i = 0;
        while i < FAMILIES[family].len() {
            table[n] = FAMILIES[family][i];
            n += 1;
            i += 1;
        }
        family += 1;
    }
    table
};

static BUILT_IN_TABLE: [&OpDef; BUILT_IN] = TABLE;

/// Definitions from other crates, in order of registration.
static REGISTERED: RwLock<Vec<&'static OpDef>> = RwLock::new(Vec::new());

/// Returns the operation whose name is `constant` in lower case.
pub(super) const fn named(constant: &str) -> Prim {
    let mut i = 0;
    while i < TABLE.len() {
        if TABLE[i].name.eq_ignore_ascii_case(constant) {
            return Prim(i as u16);
        }
        i += 1;
    }
    panic!("the table has no operation of this name");
}

/// Defines the operations of a family: the list of its rows, and a constant for each in a module
/// `prim`.
macro_rules! family {
    ($($name:ident),* $(,)?) => {
        /// The operations of this file.
        pub(super) const OPS: &[&OpDef] = &[$(&$name),*];

        /// Handles of the operations of this file.
        #[doc(hidden)]
        pub mod prim {
            use crate::ops::{Prim, prim_table::named};
            $(
                #[doc = concat!("The operation `", stringify!($name), "` in lower case.")]
                pub const $name: Prim = named(stringify!($name));
            )*
        }
    };
}
pub(super) use family;

impl Prim {
    /// The number of operations of the table.
    pub(super) const BUILT_IN: usize = BUILT_IN;

    /// Returns the number of the handle.
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns whether another crate has [registered](register) the operation.
    pub fn is_registered(self) -> bool {
        self.0 >= FIRST_REGISTERED
    }

    /// Returns whether the operation is one product for which devices have kernels. Those that
    /// other crates register have none, whatever their class.
    pub fn is_product(self) -> bool {
        matches!(self.class, OpClass::Contract(Contraction::Product(_))) && !self.is_registered()
    }

    /// Returns the definition.
    pub fn def(self) -> &'static OpDef {
        match BUILT_IN_TABLE.get(usize::from(self.0)) {
            Some(def) => def,
            None => registered()[usize::from(self.0 - FIRST_REGISTERED)],
        }
    }
}

/// Allows comparing an operation matched by reference without `*`.
impl PartialEq<Prim> for &Prim {
    fn eq(&self, other: &Prim) -> bool {
        **self == *other
    }
}

impl Deref for Prim {
    type Target = OpDef;

    fn deref(&self) -> &OpDef {
        self.def()
    }
}

impl fmt::Debug for Prim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Prim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns an iterator over all operations of the table, in reading order.
///
/// Registered operations are not included.
pub fn all() -> impl Iterator<Item = Prim> {
    (0..BUILT_IN as u16).map(Prim)
}

/// Returns the operation with the given name, from the table or registered.
pub fn by_name(name: &str) -> Option<Prim> {
    static NAMES: LazyLock<HashMap<&'static str, Prim>> =
        LazyLock::new(|| all().map(|op| (op.def().name, op)).collect());
    NAMES.get(name).copied().or_else(|| {
        let i = registered().iter().position(|def| def.name == name)?;
        Some(Prim(FIRST_REGISTERED + i as u16))
    })
}

/// Registers an operation of another crate for this process.
///
/// The name must contain a dot, for example `my_crate.selu`, so that it cannot collide with the
/// table.
///
/// Engines that have no kernel for it run its [`eval`](OpDef::eval).
///
/// # Errors
/// Fails if the name has no dot or is registered already.
pub fn register(def: OpDef) -> Result<Prim> {
    if !def.name.contains('.') {
        let error = format!("the operation name `{}` does not start with a crate name", def.name);
        return Err(Diagnostic::new(error).help(format!("name it `my_crate.{}`", def.name)));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if registered.iter().any(|other| other.name == def.name) {
        let error = Diagnostic::new(format!("an operation named `{}` is already registered", def.name));
        return Err(error.help("register it once, in a `static` with `LazyLock`, or choose another name"));
    }
    let number = u16::try_from(registered.len()).ok().and_then(|n| FIRST_REGISTERED.checked_add(n));
    let number = number.ok_or_else(|| {
        let error = Diagnostic::new("the maximum of 32,768 operations is already registered");
        error.help("register each operation once, in a `static` with `LazyLock`")
    })?;
    registered.push(Box::leak(Box::new(def)));
    Ok(Prim(number))
}

fn registered() -> std::sync::RwLockReadGuard<'static, Vec<&'static OpDef>> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for op in all() {
            assert_eq!(by_name(op.name), Some(op));
        }
    }
}
