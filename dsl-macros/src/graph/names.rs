//! Names in the emitted code, and their hygiene.
//!
//! Helper variables and labels have mixed-site hygiene, so the user's code cannot see them. They
//! have the location of the token that they are emitted for, so that messages of the compiler and
//! of the tracer point to it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::{Label, Lifetime, Token};

/// Returns the hygiene of helper variables at the location of a token.
pub(crate) fn helper_span(at: Span) -> Span {
    Span::mixed_site().located_at(at)
}

/// Returns the name of a helper variable.
pub(crate) fn helper(name: &str, index: usize, at: Span) -> Ident {
    Ident::new(&format!("__{name}{index}"), helper_span(at))
}

/// Returns a label for a part of a construct.
pub(crate) fn label(name: &str, index: usize, at: Span) -> Lifetime {
    Lifetime::new(&format!("'__{name}{index}"), helper_span(at))
}

/// Returns `'a:`.
pub(crate) fn label_of(name: &Lifetime) -> Label {
    Label { name: name.clone(), colon_token: Token![:](name.span()) }
}

/// Returns a path into the interface of the expansion, at a token.
pub(crate) fn rt(at: Span, name: &str) -> TokenStream {
    let name = Ident::new(name, at);
    quote_spanned!(at=> ::anabranch::__rt::#name)
}
