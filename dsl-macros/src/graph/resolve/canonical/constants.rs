//! Patterns such as `K::D`, whose name may be that of a constant or of a variant.
//!
//! A number is never compared with a variant. An expression is known to be a number from a number
//! in another arm, from a type that is written nearby, or from the arithmetic that computes it. The
//! name in the pattern then gets parentheses, by which [`constant`] recognizes it. Parentheses that
//! the user wrote have no effect.

use super::patterns::{self, constant, numbers, shows_number};
use crate::graph::known::is_number_type;
use crate::graph::scope::Env;
use syn::*;

/// Returns whether an expression is a number or a tensor by its form.
pub(in crate::graph::resolve) fn is_number(env: &Env, e: &Expr) -> bool {
    match e {
        Expr::Path(p) => p.path.get_ident().is_some_and(|name| env.is_number(&name.to_string())),
        Expr::Paren(e) => is_number(env, &e.expr),
        Expr::Group(e) => is_number(env, &e.expr),
        Expr::Unary(e) => !matches!(e.op, UnOp::Not(_)) && is_number(env, &e.expr),
        Expr::Binary(b) => {
            use BinOp::*;
            matches!(b.op, Add(_) | Sub(_) | Mul(_) | Div(_) | Rem(_))
                && (is_number(env, &b.left) || is_number(env, &b.right))
        }
        Expr::Cast(c) => is_number_type(&c.ty),
        e => patterns::is_number(e),
    }
}

/// Puts parentheses around the constants in the pattern of a `let`.
pub(super) fn mark_let(env: &Env, local: &mut Local) {
    if let Some(init) = &local.init {
        mark(env, &init.expr, &mut [&mut local.pat]);
    }
}

/// Puts parentheses around the constants in the patterns that an expression is matched with.
pub(super) fn mark_expr(env: &mut Env, e: &mut Expr) {
    match e {
        Expr::Match(m) => {
            let mut pats: Vec<&mut Pat> = m.arms.iter_mut().map(|arm| &mut arm.pat).collect();
            mark(env, &m.expr, &mut pats);
        }
        Expr::Let(l) => mark(env, &l.expr, &mut [&mut l.pat]),
        Expr::If(e) => env.tentatively(|env| mark_condition(env, &mut e.cond)),
        Expr::While(e) => env.tentatively(|env| mark_condition(env, &mut e.cond)),
        _ => {}
    }
}

/// Marks each `let` in a `&&` chain, whose names are in scope to its right.
fn mark_condition(env: &mut Env, cond: &mut Expr) {
    match cond {
        Expr::Let(l) => {
            mark(env, &l.expr, &mut [&mut l.pat]);
            env.declare_pat(&l.pat);
        }
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
            mark_condition(env, &mut b.left);
            mark_condition(env, &mut b.right);
        }
        _ => {}
    }
}

/// Puts parentheses around the constants in patterns that an expression is matched with.
pub(super) fn mark(env: &Env, matched: &Expr, pats: &mut [&mut Pat]) {
    pats.iter_mut().for_each(|pat| remove_parentheses(unguarded(pat)));
    if let Some(tuple) = numbers(matched) {
        for (i, matched) in tuple.elems.iter().enumerate() {
            let mut items: Vec<&mut Pat> = pats
                .iter_mut()
                .filter_map(|pat| match unguarded(pat) {
                    Pat::Tuple(p) if p.elems.len() == tuple.elems.len() => p.elems.get_mut(i),
                    _ => None,
                })
                .collect();
            mark(env, matched, &mut items);
        }
    } else if is_number(env, matched) || pats.iter_mut().any(|pat| shows_number(unguarded(pat))) {
        pats.iter_mut().for_each(|pat| in_parentheses(unguarded(pat)));
    }
}

fn unguarded(pat: &mut Pat) -> &mut Pat {
    match pat {
        Pat::Guard(g) => &mut g.pat,
        pat => pat,
    }
}

fn in_parentheses(pat: &mut Pat) {
    match pat {
        Pat::Path(_) if constant(pat).is_none() => *pat = parse_quote!((#pat)),
        Pat::Or(or) => or.cases.iter_mut().for_each(in_parentheses),
        Pat::Ident(PatIdent { subpat: Some((_, pat)), .. }) => in_parentheses(pat),
        Pat::Paren(PatParen { pat, .. }) if !matches!(**pat, Pat::Path(_)) => in_parentheses(pat),
        _ => {}
    }
}

/// Removes the parentheses around names.
fn remove_parentheses(pat: &mut Pat) {
    match pat {
        Pat::Paren(PatParen { pat: inner, .. }) => {
            remove_parentheses(inner);
            if let Pat::Path(path) = &**inner {
                *pat = Pat::Path(path.clone());
            }
        }
        Pat::Or(or) => or.cases.iter_mut().for_each(remove_parentheses),
        Pat::Ident(PatIdent { subpat: Some((_, pat)), .. }) => remove_parentheses(pat),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;

    /// Returns the expansion of a function with a body.
    fn expansion(body: &str) -> String {
        let function = format!("fn f(t: Tensor<i32>, k: Kind) {body}");
        crate::graph::expand(TokenStream::new(), function.parse().unwrap()).to_string()
    }

    /// Returns whether the expansion of a body compares numbers.
    fn compares(body: &str) -> bool {
        expansion(body).contains("__rt :: compare")
    }

    #[test]
    fn what_is_compared_with_numbers_is_a_constant() {
        for body in [
            "{ match t { K::D | K::E => a, _ => b } }",
            "{ let n = t % 3; if let K::D = n { a } }",
            "{ matches!(t, K::D if c) }",
            "{ let g = |t: i32| match t { K::D => a, _ => b }; }",
            // After the scope of another variable of the name, and in the branch without it.
            "{ { let t = k.kind(); g(t); } match t { K::D => a, _ => b } }",
            "{ if let Some(t) = k.kind() { g(t) } else { match t { K::D => a, _ => b } } }",
            "{ match t { 0 => a, u => match u { K::D => b, _ => c } } }",
        ] {
            assert!(compares(body), "{body}");
        }
        assert_eq!(expansion("{ match g() { 1 => a, K::D => b, _ => c } }").matches("__rt :: compare").count(), 2);
        assert!(expansion("{ match (k, t) { (K::D, K::E) => a, _ => b } }").contains("(K :: D , (K :: E))"));
        for body in [
            "{ match k { K::D => a, _ => b } }",
            "{ match g(t) { K::D => a, _ => b } }",
            "{ match g() + k { K::D => a, _ => b } }",
            "{ let t = k.kind(); match t { K::D => a, _ => b } }",
            "{ { let k: i32 = 3; g(k); } match k { K::D => a, K::E => b } }",
            "{ for t in kinds { match t { K::D => a, K::E => b } } }",
            "{ let g = |t| match t { K::D => a, K::E => b }; }",
            "{ if let Some(t) = k.kind() { match t { K::D => a, K::E => b } } }",
            "{ if let Some(t) = k.kind() && let K::D = t { a } }",
            "{ match k.kind() { Some(t) => match t { K::D => a, K::E => b }, None => c } }",
        ] {
            assert!(!compares(body), "{body}");
        }
    }

    #[test]
    fn parentheses_of_the_user_make_no_constant() {
        assert!(!compares("{ match k { (K::D) | (K::E) => a, _ => b } }"));
        assert!(!compares("{ matches!(k, (K::D)) }"));
    }
}
