//! Operands that modify places used before them.
//!
//! A construct mutably borrows the places that it may modify. In plain Rust the same place may
//! already be borrowed for use after the operand (the receiver of a method, the left side of `+=`),
//! or the operand may be allowed to read it. In both cases the operand is evaluated first. Only a
//! modification of the same place counts: one field of a variable may change while another is
//! borrowed.

use super::*;
use crate::graph::forms::note_names;
use std::collections::HashSet;

/// Returns whether `left op= right` has to evaluate the right side first.
///
/// The right side may read something that the left side borrows to reach its place, by an index or
/// a call. Rust evaluates the right side first if both sides are numbers. For tensors it would
/// borrow the left side first.
pub(super) fn is_right_first(left: &Expr, right: &Expr) -> bool {
    fn is_variable_or_field(e: &Expr) -> bool {
        match e {
            Expr::Path(_) => true,
            Expr::Field(e) => is_variable_or_field(&e.base),
            Expr::Paren(e) => is_variable_or_field(&e.expr),
            Expr::Group(e) => is_variable_or_field(&e.expr),
            _ => false,
        }
    }
    if is_variable_or_field(left) {
        return false;
    }
    let mut names = HashSet::new();
    note_names(left.to_token_stream(), &mut |name| {
        names.insert(name);
    });
    let mut is_shared = false;
    note_names(right.to_token_stream(), &mut |name| is_shared |= names.contains(&name));
    is_shared
}

/// A modification of a place.
pub(super) struct Changed {
    pub(super) binding: BindingId,
    pub(super) written: Written,
    /// The number of constructs around the modification.
    pub(super) constructs: usize,
    /// Whether the modification is certain: an assignment, or a `&mut`.
    pub(super) is_exact: bool,
}

/// How an expression modifies a place that is used before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Changes {
    /// Not at all, or in a way that the compiler accepts.
    No,
    /// By methods alone: a construct borrows the place mutably where plain Rust may only read it.
    Perhaps,
    /// By an assignment: the earlier use has a copy.
    Exact,
}

impl Walk<'_> {
    /// Returns how a place was modified in the current constructs since `changed` had the length
    /// `start`.
    pub(super) fn changes_since(&self, start: usize, place: &Expr) -> Changes {
        let Some(written) = Written::of(place) else { return Changes::No };
        let Some(id) = self.env.resolve(&written.root.to_string()) else { return Changes::No };
        let changes = || self.changed[start..].iter().filter(|c| c.binding == id && c.written.overlaps(&written));
        if changes().any(|c| c.is_exact) {
            Changes::Exact
        } else if changes().any(|c| c.constructs > self.constructs.len()) {
            Changes::Perhaps
        } else {
            Changes::No
        }
    }

    /// Rewrites the operands of a call. Returns those to evaluate before the call, with their
    /// names.
    ///
    /// A construct in an operand mutably borrows the places that it may modify. If something before
    /// it has already borrowed one of them, the operands are evaluated before the call.
    ///
    /// Rust borrows a receiver before the arguments, uses it after them, and lets them read it
    /// meanwhile.
    pub(super) fn operands<'e>(
        &mut self,
        receiver: Option<&Expr>,
        args: impl Iterator<Item = &'e mut Expr>,
    ) -> Vec<(Ident, Expr)> {
        let start = self.changed.len();
        let mut args: Vec<&mut Expr> = args.collect();
        let mut held: Vec<Expr> = receiver.into_iter().cloned().collect();
        let mut first_after = 0;
        for (i, arg) in args.iter_mut().enumerate() {
            let borrowed = match &**arg {
                Expr::Reference(r) if r.mutability.is_none() => Some((*r.expr).clone()),
                _ => None,
            };
            self.value(arg, 0);
            self.visit_expr_mut(arg);
            if held.iter().any(|place| self.changes_since(start, place) == Changes::Perhaps) {
                first_after = i + 1;
            }
            held.extend(borrowed);
        }
        let mut bound = Vec::new();
        for arg in args.into_iter().take(first_after) {
            // These have no effects, or get their type from the call.
            if matches!(arg, Expr::Lit(_) | Expr::Closure(_) | Expr::Reference(_)) {
                continue;
            }
            let name = names::helper("operand", self.index(), arg.span());
            let value = std::mem::replace(&mut *arg, parse_quote!(#name));
            bound.push((name, value));
        }
        bound
    }
}
