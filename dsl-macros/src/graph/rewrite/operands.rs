//! Operands that change what stands before them.
//!
//! A construct takes mutable borrows of what it may change. Where plain Rust has borrowed the same before, to be used after the operand
//! (the receiver of a method, the left side of `+=`), or lets the operand look at it, the operand is computed first. Only a change of the
//! same place counts: of two fields of one variable, one may change while the other is borrowed.

use super::super::canonical::note_names;
use super::*;
use std::collections::HashSet;

/// Whether `left op= right` has to compute the right side first: it may read what the left side borrows on the way to the place, by an
/// index or by what a call returns. So Rust does it where both sides are numbers; where they are tensors, it would borrow first.
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

/// A change of a place.
pub(super) struct Changed {
    pub(super) binding: BindingId,
    pub(super) written: Written,
    /// The number of constructs around it.
    pub(super) constructs: usize,
    /// Whether it is certain: an assignment, or a `&mut`.
    pub(super) is_exact: bool,
}

/// How an expression changes a place, for what holds it before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Changes {
    /// Not at all, or as the compiler lets it.
    No,
    /// By methods alone, so a construct borrows it mutably that plain Rust may only look at.
    Perhaps,
    /// By an assignment, so what stands before has a copy of it.
    Exact,
}

impl Walk<'_> {
    /// How a place was changed in the present constructs since `start`, a length of `changed`.
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

    /// Walks through the operands of a call. A construct in one of them takes a mutable borrow of what it may change, so where what
    /// stands before has borrowed that already, the operands come first. Gives them, and what they are bound to.
    ///
    /// Rust borrows a receiver before the arguments, and uses it after them, and lets them look at it meanwhile.
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
            // These do nothing, or need what they are an argument of to have a type.
            if matches!(arg, Expr::Lit(_) | Expr::Closure(_) | Expr::Reference(_)) {
                continue;
            }
            let name = emit::helper("operand", self.index(), arg.span());
            let value = std::mem::replace(&mut *arg, parse_quote!(#name));
            bound.push((name, value));
        }
        bound
    }
}
