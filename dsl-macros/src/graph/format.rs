//! `println!`, `print!`, `eprintln!`, `eprint!`, `dbg!` and `format!`.
//!
//! The arguments are ordinary expressions and are rewritten like any others. The format string
//! stays as it is, because the compiler itself parses it: the expansion passes `format_args!` on,
//! and tensors register themselves when they are formatted. All forms of placeholders therefore
//! work, including captured names, and the compiler reports errors in them.

use super::emit;
use super::rewrite::{MacroResult, Walk};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit_mut::VisitMut;
use syn::{Expr, Ident, Macro, Token, ext::IdentExt};

/// A macro argument with an optional name.
struct Argument {
    name: Option<(Ident, Token![=])>,
    value: Expr,
}

impl syn::parse::Parse for Argument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Argument> {
        let named = input.peek(Ident::peek_any) && input.peek2(Token![=]) && !input.peek2(Token![==]);
        let name = if named { Some((input.call(Ident::parse_any)?, input.parse()?)) } else { None };
        Ok(Argument { name, value: input.parse()? })
    }
}

impl ToTokens for Argument {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        if let Some((name, equals)) = &self.name {
            name.to_tokens(tokens);
            equals.to_tokens(tokens);
        }
        self.value.to_tokens(tokens);
    }
}

/// Rewrites a printing macro, whose arguments are those of `format!`.
pub(super) fn print(walk: &mut Walk<'_>, mac: &Macro, at: Span, error: bool, line: bool) -> MacroResult {
    match rewrite_arguments(walk, mac.tokens.clone()) {
        Some(arguments) => MacroResult::Replaced(emit::print(at, error, line, &arguments)),
        // The compiler reports the error.
        None => MacroResult::Kept,
    }
}

/// Rewrites `format!`, whose result is a host value computed while tracing.
pub(super) fn format(walk: &mut Walk<'_>, mac: &mut Macro) -> MacroResult {
    if let Some(arguments) = rewrite_arguments(walk, mac.tokens.clone()) {
        mac.tokens = arguments;
    }
    MacroResult::Kept
}

/// Rewrites a format string and its arguments, if they can be parsed.
pub(super) fn rewrite_arguments(walk: &mut Walk<'_>, tokens: TokenStream) -> Option<TokenStream> {
    let mut arguments = Punctuated::<Argument, Token![,]>::parse_terminated.parse2(tokens).ok()?;
    // The first argument is the format string.
    arguments.iter_mut().skip(1).for_each(|a| walk.visit_expr_mut(&mut a.value));
    Some(arguments.into_token_stream())
}

/// Rewrites `dbg!`: `dbg!(a)` returns `a`, and `dbg!(a, b)` returns `(a, b)`.
pub(super) fn dbg(walk: &mut Walk<'_>, mac: &Macro, at: Span) -> MacroResult {
    let Ok(arguments) = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(mac.tokens.clone()) else {
        return MacroResult::Kept;
    };
    let one = |mut value: Expr| {
        let written = value.to_token_stream();
        walk.visit_expr_mut(&mut value);
        emit::dbg(at, &written, &value)
    };
    let values: Vec<Expr> = arguments.into_iter().map(one).collect();
    MacroResult::Replaced(match &values[..] {
        [] => emit::dbg_here(at),
        [value] => value.clone(),
        values => Expr::Verbatim(quote!((#(#values),*))),
    })
}
