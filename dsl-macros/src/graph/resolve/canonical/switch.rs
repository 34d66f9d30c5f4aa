//! A `match` on numbers becomes a chain of `if`s.

use super::chain::{IfChain, under_attributes};
use super::patterns::{has_test, may_move, names, numbers, shows_number, test, unguarded};
use crate::graph::forms::{bare, block_expr, block_of};
use crate::graph::names::rt;
use syn::spanned::Spanned;
use syn::*;

/// A `match` on numbers, in which each arm has at most one condition.
pub(super) struct Switch {
    m: ExprMatch,
}

impl Switch {
    /// Takes the `match` out of an expression if it is on numbers and its last arm always matches.
    pub(super) fn of(e: &mut Expr) -> Option<Switch> {
        let Expr::Match(m) = e else {
            return None;
        };
        let mut tests = 0;
        let last = m.arms.len().checked_sub(1)?;
        let on_bool = is_match_on_bool(m);
        let of = numbers(&m.expr);
        for (i, arm) in m.arms.iter().enumerate() {
            let (pat, guard) = unguarded(&arm.pat);
            let has_test = has_test(pat, of.as_ref())?;
            tests += usize::from(has_test);
            let always = guard.is_none() && (!has_test || on_bool);
            // A value that is not a number may be moved into a name, which a guard would do twice.
            let moves_twice = guard.is_some() && of.as_ref().is_some_and(|of| may_move(pat, of, &m.arms));
            if !arm.attrs.iter().all(is_kept)
                || moves_twice
                || (i == last && !always)
                || (i != last && !has_test && guard.is_none())
            {
                return None;
            }
        }
        if tests == 0 || !m.attrs.iter().all(is_kept) {
            return None;
        }
        match std::mem::replace(e, Expr::Verbatim(Default::default())) {
            Expr::Match(m) => Some(Switch { m }),
            _ => unreachable!("the expression is a `match`"),
        }
    }

    /// Returns `let matched = scrutinee;` and the chain of `if`s.
    pub(super) fn build(mut self, matched: Ident) -> (Stmt, IfChain) {
        let mut attrs = std::mem::take(&mut self.m.attrs);
        let scrutinee = &*self.m.expr;
        let declaration = parse_quote!(let #matched = #scrutinee;);
        let matched: Expr = parse_quote!(#matched);
        let mut chain = IfChain { arms: Vec::with_capacity(self.m.arms.len()), last: None };
        let last = self.m.arms.len() - 1;
        for (i, arm) in self.m.arms.into_iter().enumerate() {
            let (pat, guard) = unguarded(&arm.pat);
            let names = names(pat, &matched, guard.is_some());
            let mut block = block_of(under_attributes(arm.attrs, *arm.body));
            block.stmts.splice(0..0, names.clone());
            if i == last {
                chain.last = Some(block_expr(block));
                break;
            }
            let mut cond = test(pat, &matched);
            if let Some(guard) = guard {
                let guard: Expr = parse_quote!({ #(#names)* #guard });
                cond = Some(match cond {
                    Some(cond) => parse_quote!(#cond && #guard),
                    None => guard,
                });
            }
            chain.arms.push(ExprIf {
                attrs: std::mem::take(&mut attrs),
                if_token: Token![if](pat.span()),
                cond: Box::new(cond.expect("all arms but the last have a condition")),
                then_branch: block,
                else_branch: None,
            });
        }
        (declaration, chain)
    }
}

/// Returns whether an attribute of a `match` or an arm keeps its effect on the resulting `if`. An
/// attribute that removes code does not, because it is applied after the expansion.
fn is_kept(attr: &Attribute) -> bool {
    !["cfg", "cfg_attr"].iter().any(|name| attr.path().is_ident(name))
}

/// Returns whether this is `match b { true => .., false => .. }`.
fn is_match_on_bool(m: &ExprMatch) -> bool {
    let value = |pat: &Pat| match pat {
        Pat::Lit(ExprLit { lit: Lit::Bool(b), .. }) => Some(b.value),
        _ => None,
    };
    match &m.arms[..] {
        [a, b] => matches!((value(&a.pat), value(&b.pat)), (Some(a), Some(b)) if a != b),
        _ => false,
    }
}

/// Adds checks that values matched with numbers are host values.
pub(super) fn host_numbers(m: &mut ExprMatch) {
    let pats: Vec<&Pat> = m.arms.iter().map(|arm| unguarded(&arm.pat).0).collect();
    match &mut *m.expr {
        Expr::Tuple(t) => {
            let width = t.elems.len();
            for (i, e) in t.elems.iter_mut().enumerate() {
                let mut parts = pats.iter().filter_map(|p| match p {
                    Pat::Tuple(p) if p.elems.len() == width => p.elems.get(i),
                    _ => None,
                });
                if parts.any(shows_number) {
                    *e = host_number(e);
                }
            }
        }
        e if pats.iter().any(|p| shows_number(p)) => *e = host_number(e),
        _ => {}
    }
}

/// Returns an expression that is matched with numbers, with a check that it is a host value.
pub(super) fn host_number(matched: &Expr) -> Expr {
    let (at, matched) = (matched.span(), bare(matched));
    let host_number = rt(at, "host_number");
    syn::parse_quote_spanned!(at=> #host_number(#matched))
}
