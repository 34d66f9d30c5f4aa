//! Fewer forms of matches and jumps.
//!
//! Each statement and each expression is brought to canonical form when it is resolved, before
//! those inside it.
//!
//! - A `match` on numbers becomes a chain of `if`s, which can be staged ([`switch`]). So do `if
//!   let`, `while let` and `let else` with a pattern of numbers ([`lets`]). A tuple of numbers that
//!   is written in the `match` is compared item by item.
//! - If one arm of an `if` jumps, the code after the `if` moves into the other arm ([`split`]):
//!   `if c { return a; } rest` becomes `if c { return a; } else { rest }`. Most jumps therefore
//!   need no flag, and both arms remain exclusive.
//! - A labeled block whose jumps leave with the first value of a variable returns that value
//!   ([`first_values`]).
//! - An assignment of a value that contains a jump becomes a `let` and an assignment, so that
//!   nothing is assigned if the jump is taken.
//! - Long chains and long sequences of jumps become trees ([`chain`], [`depth`]).
//!
//! Each form preserves the semantics of the function in ordinary Rust. None depends on types.
//!
//! The forms are Rust syntax and not nodes of the tree, because they are resolved and brought to
//! canonical form like code of the user. [`marks`](super::marks) are for the few that the resolver
//! must recognize.

mod chain;
mod comparisons;
mod constants;
mod depth;
mod first_values;
mod fresh;
mod lets;
mod patterns;
mod split;
mod switch;
#[cfg(test)]
mod tests;

pub(super) use comparisons::{matches_arguments, tests_literals};
pub(super) use constants::is_number;
pub(super) use depth::in_blocks;
pub(super) use first_values::FirstValues;
pub(super) use lets::is_place;

use crate::graph::forms::{is_assignment, is_structured};
use crate::graph::jumps::Jumps;
use crate::graph::scope::Env;
use chain::IfChain;
use fresh::Fresh;
use split::{split, value_of};
use std::collections::VecDeque;
use switch::Switch;
use syn::spanned::Spanned;
use syn::*;

/// The state of the rewriting of one function.
#[derive(Default)]
pub(super) struct Canonical {
    fresh: Fresh,
    /// The variables in scope that are declared by `let x;` and not initialized yet.
    pub(super) deferred: Vec<Local>,
}

impl Canonical {
    fn chain_expr(&mut self, chain: IfChain) -> Expr {
        chain.build(|at| self.fresh.chain(at))
    }

    /// Takes the next statement of a block, in canonical form, out of the rest of the block.
    pub(super) fn next_statement(&mut self, env: &mut Env, rest: &mut VecDeque<Stmt>) -> Option<Stmt> {
        while let Some(mut stmt) = rest.pop_front() {
            let new_label = |at| self.fresh.label("given", at);
            if let Some(stmts) = first_values::through(&stmt, &self.deferred, new_label) {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Some(stmts) = declared_one_by_one(&stmt) {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Stmt::Local(local) = &mut stmt {
                constants::mark_let(env, local);
            }
            if let Stmt::Local(local) = &mut stmt
                && let Some(stmts) = lets::let_else(&mut self.fresh, local)
            {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Some(value) = value_of(&mut stmt) {
                if let Some(chain) = IfChain::of_long(value) {
                    *value = self.chain_expr(chain);
                    rest.push_front(stmt);
                    continue;
                }
                constants::mark_expr(env, value);
                lets::for_by_ref(value);
                lets::while_let(&mut self.fresh, value);
                if let Some(declaration) = lets::if_let(&mut self.fresh, value) {
                    rest.push_front(stmt);
                    rest.push_front(declaration);
                    continue;
                }
                if let Some(switch) = Switch::of(value) {
                    let scrutinee = self.fresh.helper("matched", value.span());
                    let (declaration, chain) = switch.build(scrutinee);
                    *value = self.chain_expr(chain);
                    rest.push_front(stmt);
                    rest.push_front(declaration);
                    continue;
                }
            }
            if let Some(value) = assigned_value(&mut stmt)
                && is_structured(value)
                && Jumps::leaving_expr(value).any
            {
                let name = self.fresh.helper("assigned", value.span());
                let init = std::mem::replace(value, parse_quote!(#name));
                rest.push_front(stmt);
                stmt = parse_quote!(let #name = #init;);
            }
            if !rest.is_empty()
                && let Some(split) = split(&mut stmt)
            {
                // Items are visible in the whole block.
                let (items, others): (Vec<_>, Vec<_>) = rest.drain(..).partition(|s| matches!(s, Stmt::Item(_)));
                rest.extend(items);
                rest.push_back(Stmt::Expr(Expr::If(split(others)), None));
                continue;
            }
            // At the end of a function, a jump out of this may provide the function's value.
            if rest.is_empty()
                && let Stmt::Expr(e, None) = &stmt
                && is_left_and_ends(e)
            {
                let name = self.fresh.helper("assigned", e.span());
                stmt = parse_quote!(let #name = #e;);
                rest.push_front(Stmt::Expr(parse_quote!(#name), None));
            }
            return Some(stmt);
        }
        None
    }

    /// Brings an expression to canonical form, but not the expressions inside it.
    pub(super) fn expr(&mut self, env: &mut Env, e: &mut Expr) {
        if let Some(chain) = IfChain::of_long(e) {
            *e = self.chain_expr(chain);
        }
        self.comparison(env, e);
        constants::mark_expr(env, e);
        lets::for_by_ref(e);
        lets::while_let(&mut self.fresh, e);
        if let Some(declaration) = lets::if_let(&mut self.fresh, e) {
            *e = parse_quote!({ #declaration #e });
        }
        if let Some(switch) = Switch::of(e) {
            let scrutinee = self.fresh.helper("matched", e.span());
            let (declaration, chain) = switch.build(scrutinee);
            let chain = self.chain_expr(chain);
            *e = parse_quote!({ #declaration #chain });
        } else if let Expr::Match(m) = e {
            // It remains a host `match`.
            switch::host_numbers(m);
            m.arms.iter_mut().for_each(|arm| in_block(&mut arm.body));
        } else if let Expr::Closure(c) = e {
            in_block(&mut c.body);
        } else if let Expr::Paren(p) = e {
            in_block(&mut p.expr);
        } else if let Expr::Let(l) = e
            && patterns::shows_number(&l.pat)
        {
            *l.expr = switch::host_number(&l.expr);
        }
    }

    /// Replaces an operand of a condition by comparisons, if it is such a test of numbers.
    pub(super) fn comparison(&mut self, env: &Env, e: &mut Expr) {
        if let Some(comparisons) = comparisons::as_comparisons(&mut self.fresh, env, e) {
            *e = comparisons;
        }
    }
}

/// Splits `let (a, [b, c]);` into `let a; let b; let c;`.
fn declared_one_by_one(stmt: &Stmt) -> Option<Vec<Stmt>> {
    let Stmt::Local(Local { attrs, pat: Pat::Tuple(t), init: None, .. }) = stmt else { return None };
    fn names<'a>(pat: &'a Pat, found: &mut Vec<&'a Pat>) -> bool {
        match pat {
            Pat::Ident(i) if i.by_ref.is_none() && i.subpat.is_none() => {
                found.push(pat);
                true
            }
            Pat::Tuple(t) => t.elems.iter().all(|p| names(p, found)),
            Pat::Slice(s) => s.elems.iter().all(|p| names(p, found)),
            Pat::Paren(p) => names(&p.pat, found),
            _ => false,
        }
    }
    let mut found = Vec::new();
    let all = t.elems.iter().all(|p| names(p, &mut found));
    all.then(|| found.into_iter().map(|name| parse_quote!(#(#attrs)* let #name;)).collect())
}

/// Returns the assigned value of an assignment.
fn assigned_value(stmt: &mut Stmt) -> Option<&mut Expr> {
    match stmt {
        Stmt::Expr(Expr::Assign(a), _) => Some(&mut a.right),
        Stmt::Expr(Expr::Binary(b), _) if is_assignment(&b.op) => Some(&mut b.right),
        _ => None,
    }
}

/// Returns whether a jump may leave a loop or labeled block that may also reach its end.
fn is_left_and_ends(e: &Expr) -> bool {
    match e {
        Expr::Loop(l) => Jumps::breaks_loop(&l.body, l.label.as_ref()) && Jumps::leaving_expr(e).any,
        Expr::Block(b) => b.label.is_some() && Jumps::leaving_expr(e).under_construct,
        _ => false,
    }
}

/// Puts such an expression into a block, where it is the value of a statement.
fn in_block(e: &mut Expr) {
    if is_left_and_ends(e) {
        *e = parse_quote!({ #e });
    }
}
