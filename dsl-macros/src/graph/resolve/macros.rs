//! Calls of macros of the standard library.
//!
//! Their arguments are resolved like all expressions. A format string stays
//! as it is, because the compiler itself parses it: the expansion passes `format_args!` on, and
//! tensors register themselves when they are formatted. All forms of placeholders therefore work,
//! including captured names, and the compiler reports errors in them, as well as in any other
//! arguments that cannot be parsed.

use super::canonical::{matches_arguments, tests_literals};
use super::state::Resolver;
use crate::graph::known::{self, MacroKind};
use crate::graph::tree::{CheckMessage, MacroArgument, MacroArguments, MacroCall};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::*;

impl Parse for MacroArgument {
    fn parse(input: ParseStream<'_>) -> Result<MacroArgument> {
        let named = input.peek(Ident::peek_any) && input.peek2(Token![=]) && !input.peek2(Token![==]);
        let name = if named { Some((input.call(Ident::parse_any)?, input.parse()?)) } else { None };
        Ok(MacroArgument { name, value: input.parse()? })
    }
}

impl Resolver {
    /// Resolves the call of a macro. Jumps in its arguments do not count for the code around it.
    pub(super) fn macro_call(&mut self, mac: &Macro) -> MacroCall {
        self.without_jumps(|resolver| resolver.as_written(|resolver| resolver.macro_arguments(mac)))
    }

    fn macro_arguments(&mut self, mac: &Macro) -> MacroCall {
        let Some(name) = mac.path.segments.last().map(|s| s.ident.clone()) else {
            return MacroCall::Kept;
        };
        let (at, tokens) = (name.span(), mac.tokens.clone());
        let call = match known::macro_kind(&name.to_string()) {
            MacroKind::Constant => None,
            MacroKind::Elements => self.elements(tokens),
            MacroKind::Matches => self.matches(tokens),
            MacroKind::Assert(debug) => self.assert(tokens, at, debug),
            MacroKind::AssertEquality { equal, debug } => self.assert_equality(tokens, at, debug, equal),
            MacroKind::Print { error, line } => {
                self.arguments(tokens).map(|arguments| MacroCall::Print { at, error, line, arguments })
            }
            MacroKind::Dbg => self.dbg(tokens, at),
            // The result is a host value computed while tracing.
            MacroKind::Format => self.arguments(tokens).map(MacroCall::Arguments),
            MacroKind::Panic => Some(MacroCall::Panic(name, Default::default())),
            MacroKind::Opaque => Some(MacroCall::Opaque(at, Default::default())),
        };
        call.unwrap_or(MacroCall::Kept)
    }

    /// Resolves a format string and its arguments, if they can be parsed.
    fn arguments(&mut self, tokens: TokenStream) -> Option<MacroArguments> {
        let syntax = Punctuated::<MacroArgument, Token![,]>::parse_terminated.parse2(tokens).ok()?;
        // The first argument is the format string.
        Some(self.all_but(1, syntax))
    }

    /// Resolves the arguments after the first `skipped`.
    fn all_but(&mut self, skipped: usize, mut syntax: Punctuated<MacroArgument, Token![,]>) -> MacroArguments {
        let outer = std::mem::take(&mut self.parts);
        syntax.iter_mut().skip(skipped).for_each(|a| self.expr(&mut a.value, false));
        MacroArguments { syntax, parts: std::mem::replace(&mut self.parts, outer) }
    }

    /// Resolves the elements of `vec![a, b]` or `vec![a; n]`.
    fn elements(&mut self, tokens: TokenStream) -> Option<MacroCall> {
        let repeat =
            |input: ParseStream<'_>| Ok((input.parse::<Expr>()?, input.parse::<Token![;]>()?, input.parse::<Expr>()?));
        if let Ok((value, semi, count)) = repeat.parse2(tokens.clone()) {
            return Some(MacroCall::Repeat(self.code(value), semi, self.code(count)));
        }
        let elements = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens).ok()?;
        let element = |pair: punctuated::Pair<Expr, Token![,]>| {
            let (value, comma) = pair.into_tuple();
            punctuated::Pair::new(MacroArgument { name: None, value }, comma)
        };
        Some(MacroCall::Arguments(self.all_but(0, elements.into_pairs().map(element).collect())))
    }

    fn matches(&mut self, tokens: TokenStream) -> Option<MacroCall> {
        let (scrutinee, pat, rest) = matches_arguments(&self.env, tokens).ok()?;
        Some(MacroCall::Matches(self.code(scrutinee), quote!(, #pat #rest)))
    }

    /// Resolves `dbg!`: `dbg!(a)` returns `a`, and `dbg!(a, b)` returns `(a, b)`.
    fn dbg(&mut self, tokens: TokenStream, at: Span) -> Option<MacroCall> {
        let values = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens).ok()?;
        let values = values.into_iter().map(|value| (value.to_token_stream(), self.code(value)));
        Some(MacroCall::Dbg(at, values.collect()))
    }

    /// Resolves the message of an assertion.
    fn message(&mut self, message: TokenStream) -> CheckMessage {
        self.arguments(message.clone()).map_or(CheckMessage::Wrong(message), CheckMessage::Arguments)
    }

    fn assert(&mut self, tokens: TokenStream, at: Span, debug: bool) -> Option<MacroCall> {
        let parser = |input: ParseStream<'_>| {
            let condition: Expr = input.parse()?;
            input.parse::<Option<Token![,]>>()?;
            Ok((condition, input.parse::<TokenStream>()?))
        };
        let (mut condition, message) = parser.parse2(tokens).ok()?;
        let text = condition.to_token_stream().to_string();
        self.asserted_comparisons(&mut condition);
        let (condition, message) = (self.code(condition), self.message(message));
        Some(MacroCall::Assert { at, debug, condition, text, message, index: Default::default() })
    }

    /// Replaces tests of numbers in the condition of an assertion by comparisons, which may be
    /// staged. Only literals show that a test is one of numbers.
    fn asserted_comparisons(&mut self, condition: &mut Expr) {
        match condition {
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => self.asserted_comparisons(expr),
            Expr::Paren(e) => self.asserted_comparisons(&mut e.expr),
            Expr::Group(e) => self.asserted_comparisons(&mut e.expr),
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.asserted_comparisons(&mut b.left);
                self.asserted_comparisons(&mut b.right);
            }
            e if tests_literals(&self.env, e) => self.canonical.comparison(&self.env, e),
            _ => {}
        }
    }

    fn assert_equality(&mut self, tokens: TokenStream, at: Span, debug: bool, equal: bool) -> Option<MacroCall> {
        let parser = |input: ParseStream<'_>| {
            let left: Expr = input.parse()?;
            input.parse::<Token![,]>()?;
            let right: Expr = input.parse()?;
            input.parse::<Option<Token![,]>>()?;
            Ok(([left, right], input.parse::<TokenStream>()?))
        };
        let (sides, message) = parser.parse2(tokens).ok()?;
        let texts = [0, 1].map(|i| sides[i].to_token_stream().to_string());
        let (sides, message) = (sides.map(|side| self.code(side)), self.message(message));
        Some(MacroCall::AssertEquality { at, debug, equal, sides, texts, message, index: Default::default() })
    }
}
