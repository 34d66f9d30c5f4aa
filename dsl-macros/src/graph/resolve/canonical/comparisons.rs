//! `matches!` with numbers and `(a..b).contains(&x)` become comparisons.

use super::constants::mark;
use super::fresh::Fresh;
use super::patterns::{binds, has_test, is_number, names, numbers, shows_number, test};
use crate::graph::forms::{bare, has_let};
use crate::graph::known::{self, Property};
use crate::graph::scope::Env;
use proc_macro2::TokenStream;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::*;

/// Rewrites `matches!(x, P)` with numbers, and `(a..b).contains(&x)`, to comparisons.
pub(super) fn as_comparisons(fresh: &mut Fresh, env: &Env, e: &Expr) -> Option<Expr> {
    match e {
        Expr::Macro(m) if known::macro_name(&m.mac).as_deref() == Some("matches") => {
            let (scrutinee, pat, rest) = matches_arguments(env, m.mac.tokens.clone()).ok()?;
            let guard = guard_of_matches.parse2(rest).ok()?;
            let has_test = has_test(&pat, numbers(&scrutinee).as_ref())?;
            if guard.as_ref().map_or(!has_test || binds(&pat), has_let) {
                return None;
            }
            let name = fresh.helper("matched", scrutinee.span());
            let matched = parse_quote!(#name);
            let (test, names) = (test(&pat, &matched), names(&pat, &matched, false));
            let guard = guard.map(|guard| -> Expr { parse_quote!({ #(#names)* #guard }) });
            let holds: Expr = match (test, guard) {
                (Some(test), Some(guard)) => parse_quote!(#test && #guard),
                (test, guard) => test.or(guard)?,
            };
            Some(parse_quote!({ let #name = #scrutinee; #holds }))
        }
        Expr::MethodCall(m) if known::method_is(&m.method, Property::RangeTest) && m.args.len() == 1 => {
            let Expr::Paren(receiver) = &*m.receiver else { return None };
            let Expr::Range(range) = &*receiver.expr else { return None };
            let at = m.method.span();
            let item = fresh.helper("item", at);
            let names = [(&range.start, "start"), (&range.end, "end")]
                .map(|(end, name)| end.as_ref().map(|end| (fresh.helper(name, end.span()), end)));
            let declared = names.iter().flatten().map(|(name, end)| -> Stmt { parse_quote!(let #name = #end;) });
            let (ge, lt, le) = (Token![>=](at), Token![<](at), Token![<=](at));
            let above = names[0].as_ref().map(|(start, _)| -> Expr { parse_quote!((*#item #ge #start)) });
            let below = names[1].as_ref().map(|(end, _)| -> Expr {
                match range.limits {
                    RangeLimits::HalfOpen(_) => parse_quote!((*#item #lt #end)),
                    RangeLimits::Closed(_) => parse_quote!((*#item #le #end)),
                }
            });
            let test = match (above, below) {
                (Some(a), Some(b)) => parse_quote!(#a & #b),
                (a, b) => a.or(b)?,
            };
            let argument = &m.args[0];
            Some(parse_quote!({ #(#declared)* let #item = #argument; #test }))
        }
        _ => None,
    }
}

/// Returns whether an expression is `matches!` or `(a..b).contains(&x)` with a literal number.
pub(in crate::graph::resolve) fn tests_literals(env: &Env, e: &Expr) -> bool {
    match e {
        Expr::Macro(m) if known::macro_name(&m.mac).as_deref() == Some("matches") => {
            matches_arguments(env, m.mac.tokens.clone()).is_ok_and(|(_, pat, _)| shows_number(&pat))
        }
        Expr::MethodCall(m) if known::method_is(&m.method, Property::RangeTest) => match bare(&m.receiver) {
            Expr::Range(range) => [&range.start, &range.end].into_iter().flatten().any(|end| is_number(end)),
            _ => false,
        },
        _ => false,
    }
}

/// Parses the matched expression, the pattern with its constants marked, and the tokens after it.
pub(in crate::graph::resolve) fn matches_arguments(env: &Env, tokens: TokenStream) -> Result<(Expr, Pat, TokenStream)> {
    let parser = |input: parse::ParseStream<'_>| {
        let scrutinee: Expr = input.parse()?;
        input.parse::<Token![,]>()?;
        Ok((scrutinee, Pat::parse_multi_with_leading_vert(input)?, input.parse::<TokenStream>()?))
    };
    let (scrutinee, mut pat, rest) = parser.parse2(tokens)?;
    mark(env, &scrutinee, &mut [&mut pat]);
    Ok((scrutinee, pat, rest))
}

fn guard_of_matches(input: parse::ParseStream<'_>) -> Result<Option<Expr>> {
    let guard = match input.parse::<Option<Token![if]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    input.parse::<Option<Token![,]>>()?;
    Ok(guard)
}
