//! Names in the emitted code, and their hygiene.
//!
//! Helper variables and labels have mixed-site hygiene, so the user's code cannot see them. They
//! have the location of the token that they are emitted for, so that messages of the compiler and
//! of the tracer point to it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprCall, Label, Lifetime, Token, parse_quote, token};

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

/// Returns a call of a function of `anabranch::__rt`, with the span of a token.
pub(crate) fn call(at: Span, function: &str, argument: Expr) -> Expr {
    let function = rt(at, function);
    Expr::Call(ExprCall {
        attrs: Vec::new(),
        func: parse_quote!(#function),
        paren_token: token::Paren(at),
        args: Punctuated::from_iter([argument]),
    })
}

/// Returns the variable for the type of the condition of a construct.
pub(crate) fn condition_type(construct: usize, at: Span) -> Ident {
    helper("kind", construct, at)
}

/// Returns the variable for the position of a `for`.
pub(crate) fn position(index: usize, at: Span) -> Ident {
    helper("position", index, at)
}

/// Returns the site of a name.
pub(crate) fn site(at: Span, name: &str) -> TokenStream {
    let site = rt(at, "Site");
    quote_spanned!(at=> #site { name: #name, file: ::core::file!(), line: ::core::line!(), column: ::core::column!() })
}
