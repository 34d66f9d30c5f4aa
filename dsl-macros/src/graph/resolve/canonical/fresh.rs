//! Fresh names for the helper variables and labels of the canonical form.

use crate::graph::names;
use proc_macro2::{Ident, Span};
use syn::Lifetime;

/// The source of fresh names. No two names have the same number.
#[derive(Default)]
pub(super) struct Fresh {
    last: usize,
}

impl Fresh {
    fn index(&mut self) -> usize {
        self.last += 1;
        self.last
    }

    /// Returns a name of a helper variable that no other code uses.
    pub(super) fn helper(&mut self, name: &str, at: Span) -> Ident {
        names::helper(name, self.index(), at)
    }

    /// Returns a label that no other code uses.
    pub(super) fn label(&mut self, name: &str, at: Span) -> Lifetime {
        names::label(name, self.index(), at)
    }

    /// Returns the label of a long chain, and the variable for the value of one of its arms.
    pub(super) fn chain(&mut self, at: Span) -> (Lifetime, Ident) {
        let index = self.index();
        (names::label("chain", index, at), names::helper("arm", index, at))
    }
}
