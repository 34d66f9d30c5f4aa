//! Patterns over numbers: the conditions that they test and the names that they bind.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::*;

pub(super) fn unguarded(pat: &Pat) -> (&Pat, Option<&Expr>) {
    match pat {
        Pat::Guard(g) => (&g.pat, Some(&g.guard)),
        pat => (pat, None),
    }
}

pub(super) fn is_number(e: &Expr) -> bool {
    match e {
        Expr::Lit(ExprLit { lit: Lit::Int(_) | Lit::Float(_), .. }) => true,
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => is_number(expr),
        _ => false,
    }
}

/// Returns the matched expression, if it is a tuple expression.
pub(super) fn numbers(matched: &Expr) -> Option<ExprTuple> {
    match matched {
        Expr::Tuple(t) => Some(t.clone()),
        Expr::Paren(e) => numbers(&e.expr),
        _ => None,
    }
}

/// Returns the constant that a pattern names, by Rust's naming convention.
///
/// Constants are in capitals, whereas enum variants and bound names have lower-case letters. A
/// single capital after the name of a type is a variant, unless it is in parentheses: see
/// [`constants`].
pub(super) fn constant(pat: &Pat) -> Option<Expr> {
    let in_capitals = |name: &Ident| {
        let name = name.to_string();
        name.starts_with(char::is_uppercase) && !name.contains(char::is_lowercase)
    };
    match pat {
        Pat::Paren(p) => match &*p.pat {
            Pat::Path(p) => Some(Expr::Path(p.clone())),
            _ => None,
        },
        Pat::Ident(PatIdent { by_ref: None, mutability: None, subpat: None, ident, .. }) => {
            in_capitals(ident).then(|| parse_quote!(#ident))
        }
        Pat::Path(p) => {
            let mut segments = p.path.segments.iter().rev();
            let name = &segments.next()?.ident;
            let of_type = p.qself.is_some()
                || segments
                    .next()
                    .is_some_and(|s| s.ident != "Self" && s.ident.to_string().starts_with(char::is_uppercase));
            let is_variant = of_type && name.to_string().chars().count() == 1;
            (in_capitals(name) && !is_variant).then(|| Expr::Path(p.clone()))
        }
        _ => None,
    }
}

/// Returns whether a pattern over numbers contains a literal, so that it matches nothing else.
pub(super) fn shows_number(pat: &Pat) -> bool {
    struct FindLiteral(bool);
    impl<'a> Visit<'a> for FindLiteral {
        fn visit_pat(&mut self, pat: &'a Pat) {
            self.0 |= matches!(pat, Pat::Lit(_) | Pat::Range(_));
            visit::visit_pat(self, pat);
        }
    }
    let mut find = FindLiteral(false);
    find.visit_pat(pat);
    find.0 && has_test(pat, None) == Some(true)
}

/// Returns whether a pattern over numbers tests anything, or `None` for other patterns. `of` is the
/// matched value if it is a tuple.
pub(super) fn has_test(pat: &Pat, of: Option<&ExprTuple>) -> Option<bool> {
    match pat {
        Pat::Lit(ExprLit { lit: Lit::Int(_) | Lit::Float(_) | Lit::Bool(_), .. }) => of.is_none().then_some(true),
        Pat::Range(r) => {
            // The ends of a range are constants.
            let ends = [&r.start, &r.end].into_iter().flatten();
            let mut ends = ends.map(|e| is_number(e) || matches!(**e, Expr::Path(_)));
            (of.is_none() && ends.all(|fits| fits)).then_some(true)
        }
        _ if constant(pat).is_some() => of.is_none().then_some(true),
        Pat::Or(or) => or.cases.iter().all(|p| has_test(p, of) == Some(true) && !binds(p)).then_some(true),
        Pat::Paren(p) => has_test(&p.pat, of),
        Pat::Wild(_) => Some(false),
        Pat::Tuple(p) => {
            let of = of.filter(|of| of.elems.len() == p.elems.len())?;
            p.elems.iter().zip(&of.elems).try_fold(false, |any, (p, e)| Some(has_test(p, numbers(e).as_ref())? || any))
        }
        Pat::Ident(PatIdent { by_ref: None, mutability: None, ident, subpat, .. }) => {
            let is_variable = ident.to_string().starts_with(|c: char| c.is_lowercase() || c == '_');
            match subpat {
                Some((_, p)) => has_test(p, of).filter(|_| is_variable && !binds(p)),
                None => is_variable.then_some(false),
            }
        }
        _ => None,
    }
}

/// Returns whether a pattern binds an item of a matched tuple that no pattern shows to be a number.
pub(super) fn may_move(pat: &Pat, of: &ExprTuple, arms: &[Arm]) -> bool {
    let is_number = |i: usize| {
        arms.iter().any(|arm| match unguarded(&arm.pat).0 {
            Pat::Tuple(p) => p.elems.len() == of.elems.len() && has_test(&p.elems[i], None) == Some(true),
            _ => false,
        })
    };
    match pat {
        Pat::Tuple(p) => p.elems.iter().enumerate().any(|(i, p)| binds(p) && !is_number(i)),
        pat => binds(pat),
    }
}

/// Returns the names that a pattern over numbers binds, and their values.
fn bound<'a>(pat: &'a Pat, matched: &Expr) -> Vec<(&'a Ident, Expr)> {
    match pat {
        _ if constant(pat).is_some() => Vec::new(),
        Pat::Ident(p) => vec![(&p.ident, matched.clone())],
        Pat::Paren(p) => bound(&p.pat, matched),
        Pat::Tuple(p) => p.elems.iter().enumerate().flat_map(|(i, p)| bound(p, &item(matched, i))).collect(),
        _ => Vec::new(),
    }
}

/// Returns whether a pattern over numbers binds a name.
pub(super) fn binds(pat: &Pat) -> bool {
    !bound(pat, &parse_quote!(matched)).is_empty()
}

/// Returns an item of a tuple.
fn item(matched: &Expr, i: usize) -> Expr {
    let i = Index::from(i);
    parse_quote!(#matched.#i)
}

/// Returns the bindings of the names of a pattern over numbers.
pub(super) fn names(pat: &Pat, matched: &Expr, in_guard: bool) -> Vec<Stmt> {
    let bind = |(name, value): (&Ident, Expr)| match in_guard {
        false => parse_quote!(let #name = #value;),
        // The name is bound twice and may be used once.
        true => parse_quote!(#[allow(unused_variables)] let #name = #value;),
    };
    bound(pat, matched).into_iter().map(bind).collect()
}

/// Returns the condition that a pattern over numbers tests.
pub(super) fn test(pat: &Pat, matched: &Expr) -> Option<Expr> {
    let at = pat.span();
    let mut matched = matched.clone();
    if let Expr::Path(p) = &mut matched
        && let Some(name) = p.path.segments.first_mut()
    {
        name.ident.set_span(name.ident.span().located_at(at));
    }
    if let Some(constant) = constant(pat) {
        let eq = Token![==](at);
        return Some(parse_quote!(#matched #eq #constant));
    }
    match pat {
        Pat::Lit(ExprLit { lit: Lit::Bool(b), .. }) if b.value => Some(matched),
        Pat::Lit(ExprLit { lit: Lit::Bool(_), .. }) => Some(parse_quote!(!#matched)),
        Pat::Lit(lit) => {
            let eq = Token![==](at);
            Some(parse_quote!(#matched #eq #lit))
        }
        Pat::Range(r) => {
            let (ge, lt, le) = (Token![>=](at), Token![<](at), Token![<=](at));
            let start = r.start.as_ref().map(|e| -> Expr { parse_quote!((#matched #ge #e)) });
            let end = r.end.as_ref().map(|e| -> Expr {
                match r.limits {
                    RangeLimits::HalfOpen(_) => parse_quote!((#matched #lt #e)),
                    RangeLimits::Closed(_) => parse_quote!((#matched #le #e)),
                }
            });
            match (start, end) {
                (Some(a), Some(b)) => Some(parse_quote!(#a & #b)),
                (a, b) => a.or(b),
            }
        }
        Pat::Or(or) => {
            let tests = or.cases.iter().filter_map(|p| test(p, &matched));
            tests.reduce(|a, b| parse_quote!((#a) | (#b)))
        }
        Pat::Paren(p) => test(&p.pat, &matched),
        Pat::Tuple(p) => {
            let tests = p.elems.iter().enumerate().filter_map(|(i, p)| test(p, &item(&matched, i)));
            tests.reduce(|a, b| parse_quote!((#a) & (#b)))
        }
        Pat::Ident(p) => p.subpat.as_ref().and_then(|(_, p)| test(p, &matched)),
        _ => None,
    }
}
