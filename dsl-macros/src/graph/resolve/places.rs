//! Places that code modifies, uses and passes on.

use super::state::Resolver;
use crate::graph::forms::note_names;
use crate::graph::known::{self, Keeps};
use crate::graph::place::{PlaceExpr, ReceiverExpr};
use crate::graph::scope;
use crate::graph::tree::{Change, LocalPlace, Part, Passed, TreeNode};
use quote::ToTokens;
use std::collections::HashSet;
use syn::*;

impl Resolver {
    /// Returns the place that an expression names, if it is a place of a local variable.
    pub(super) fn place(&self, e: &Expr) -> Option<LocalPlace> {
        let expr = PlaceExpr::of(e)?;
        let variable = self.env.resolve(&expr.root.to_string())?;
        Some(LocalPlace { expr, variable })
    }

    /// Notes that a place may be modified.
    pub(super) fn change(&mut self, place: &Expr, how: Change, is_value: bool) {
        if let Some(place) = self.place(place) {
            self.parts.push(Part::Change { place, how, is_value });
        }
    }

    /// Returns the place that an expression names, if it matters whether the place is used.
    fn used_place(&self, e: &Expr) -> Option<LocalPlace> {
        if self.around == 0 { None } else { self.place(e) }
    }

    /// Notes the call of a function, which may modify what it captures.
    pub(super) fn callee(&mut self, function: &Expr) {
        if let Some(place) = self.used_place(function) {
            self.parts.push(Part::Change { place, how: Change::Perhaps, is_value: false });
        }
    }

    /// Notes a method call, which may modify its receiver.
    pub(super) fn method_call(&mut self, m: &ExprMethodCall, is_value: bool) {
        let Some(place) = self.used_place(&m.receiver) else { return };
        let name = m.method.to_string();
        let how = match known::keeps_receiver(&name) {
            Some(Keeps::ByTrait(of_trait)) if m.args.is_empty() && m.turbofish.is_none() => {
                let receiver = m.receiver.clone();
                Change::Unless(ReceiverExpr::OfTrait { method: m.method.clone(), of_trait, receiver })
            }
            Some(Keeps::OfKnownTypes) if place.expr.indexed => Change::Unless(ReceiverExpr::Item),
            Some(Keeps::OfKnownTypes) => Change::Unless(ReceiverExpr::Itself),
            Some(Keeps::ByTrait(_)) | None => Change::Perhaps,
        };
        // A borrow that is the value of an arm outlives the construct. Carrying its owner would end
        // the borrow.
        let is_value = is_value && known::lends_by_name(&name);
        self.parts.push(Part::Change { place, how, is_value });
    }

    /// Notes the mutable borrow of the matched place if a pattern has a `ref mut`.
    pub(super) fn matched(&mut self, pat: &Pat, scrutinee: &Expr) {
        if scope::has_ref_mut(pat) {
            self.change(scrutinee, Change::Exact, false);
        }
    }

    /// Notes the places that an assignment modifies, and resolves the left side.
    pub(super) fn assigned(&mut self, left: &mut Expr) {
        match left {
            Expr::Tuple(e) => e.elems.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Array(e) => e.elems.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Struct(e) => e.fields.iter_mut().for_each(|f| self.assigned(&mut f.expr)),
            Expr::Call(e) => e.args.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Paren(e) => self.assigned(&mut e.expr),
            Expr::Group(e) => self.assigned(&mut e.expr),
            Expr::Infer(_) | Expr::Range(_) => {}
            place => {
                self.change(place, Change::Exact, false);
                self.in_place(place);
            }
        }
    }

    /// Resolves the expressions inside a place: indices and calls.
    pub(super) fn in_place(&mut self, place: &mut Expr) {
        match place {
            Expr::Field(e) => self.in_place(&mut e.base),
            Expr::Index(e) => {
                self.in_place(&mut e.expr);
                self.expr(&mut e.index, false);
            }
            Expr::Unary(ExprUnary { op: UnOp::Deref(_), expr, .. }) => self.in_place(expr),
            Expr::Paren(e) => self.in_place(&mut e.expr),
            other => self.expr(other, false),
        }
    }

    /// Resolves a variable that is passed to a function, a pattern or a part of a value.
    pub(super) fn pass(&mut self, e: &mut Expr, is_value: bool) {
        match e {
            Expr::Paren(inner) => self.pass(&mut inner.expr, is_value),
            Expr::Group(inner) => self.pass(&mut inner.expr, is_value),
            Expr::Path(_) => {
                if let Some(place) = self.used_place(e) {
                    let passed = Passed { syntax: e.clone(), place, is_reborrowed: Default::default() };
                    self.node(e, TreeNode::Variable(Box::new(passed)), is_value);
                }
            }
            _ => {}
        }
    }
}

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
