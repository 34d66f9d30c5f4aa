//! `if`s, and the conditions that are certainly of the host.

use super::marks::has_kind_of_outer;
use super::state::Resolver;
use crate::graph::forms::{bare, comparison, has_let, take};
use crate::graph::known::{self, Property};
use crate::graph::names::call;
use crate::graph::tree::{EndValue, IfExpr, Otherwise, Part, StagedIfExpr};
use syn::spanned::Spanned;
use syn::*;

impl Resolver {
    /// Resolves an `if`. The caller knows whether it is a statement.
    pub(super) fn branch(&mut self, mut e: ExprIf, is_statement: bool) -> IfExpr {
        let has_kind_of_outer = has_kind_of_outer(&mut e);
        self.canonical_condition(&mut e.cond);
        let has_let = has_let(&e.cond);
        let is_host = has_let || self.is_host(&e.cond);
        let scope = self.env.enter();
        let condition = take(&mut e.cond);
        let condition = match is_host {
            true => self.code_of(condition, Resolver::host_condition),
            false => self.code(condition),
        };
        self.around += usize::from(!is_host);
        let arms = |resolver: &mut Self| {
            let then = resolver.body(&mut e.then_branch);
            resolver.env.leave(scope);
            let otherwise = e.else_branch.as_mut().map(|(_, otherwise)| {
                resolver.canonical_expr(otherwise);
                match take(otherwise) {
                    Expr::Block(mut b) => Otherwise::Block(resolver.body(&mut b.block)),
                    Expr::If(inner) => Otherwise::If(Box::new(resolver.branch(inner, false))),
                    other => unreachable!("an `else` is followed by a block or an `if`, not {other:?}"),
                }
            });
            (then, otherwise)
        };
        let (then, otherwise) = if has_let { self.in_host_arm(arms) } else { self.in_construct(arms) };
        self.around -= usize::from(!is_host);
        let is_value = match &otherwise {
            Some(Otherwise::If(inner)) => inner.is_value,
            otherwise => otherwise.is_some(),
        };
        let staged = (!is_host).then(|| StagedIfExpr {
            has_kind_of_outer,
            jumps: [then.jumps(), otherwise.as_ref().is_some_and(Otherwise::jumps)],
            values: [then.end_value(), otherwise.as_ref().map_or(EndValue::Unknown, Otherwise::end_value)],
            facts: Default::default(),
        });
        IfExpr { syntax: e, condition, then, otherwise, is_value, is_statement, staged }
    }

    /// Resolves a condition that is certainly a host value: a `let`, whose names are in scope to
    /// its right and in the block, a `&&` chain with a `let`, or the guard of a `match`.
    pub(super) fn host_condition(&mut self, cond: &mut Expr) {
        if let Expr::Let(_) = cond {
            self.canonical_expr(cond);
        }
        match cond {
            Expr::Let(l) => {
                self.matched(&l.pat, &l.expr);
                let scrutinee = l.expr.clone();
                self.pass(&mut l.expr, false);
                self.expr(&mut l.expr, false);
                let declared = self.declare(|env| env.declare_matched(&l.pat, &scrutinee));
                self.parts.push(Part::Declare(declared));
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.host_condition(&mut b.left);
                self.in_construct(|resolver| resolver.host_condition(&mut b.right));
            }
            Expr::Paren(e) => self.host_condition(&mut e.expr),
            Expr::Unary(e) if matches!(e.op, UnOp::Not(_)) && self.is_host(&e.expr) => self.host_condition(&mut e.expr),
            Expr::MethodCall(m) if known::method_is(&m.method, Property::Bool) => {
                let at = m.method.span();
                self.expr(cond, false);
                *cond = call(at, "named_bool", bare(cond).clone());
            }
            other if self.is_host(other) => self.expr(other, false),
            other => {
                let at = other.span();
                self.expr(other, false);
                *other = call(at, "host_bool", bare(other).clone());
            }
        }
    }

    /// Brings the operands of a condition to canonical form, on which [`is_host`](Self::is_host)
    /// depends.
    pub(super) fn canonical_condition(&mut self, cond: &mut Expr) {
        match cond {
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => self.canonical_condition(expr),
            Expr::Paren(e) => self.canonical_condition(&mut e.expr),
            Expr::Group(e) => self.canonical_condition(&mut e.expr),
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.canonical_condition(&mut b.left);
                self.canonical_condition(&mut b.right);
            }
            Expr::Macro(_) | Expr::MethodCall(_) if !self.is_as_written => self.canonical.comparison(&self.env, cond),
            _ => {}
        }
    }

    /// Returns whether an expression is certainly a `bool` by its form.
    ///
    /// Such a condition needs no dispatch, and the code that it controls stays native. If the form
    /// misleads, the compiler reports a tensor where it expects a `bool`.
    pub(super) fn is_host(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Bool(_), .. }) => true,
            Expr::Path(p) => p.path.get_ident().is_some_and(|name| self.env.is_bool(&name.to_string())),
            Expr::Macro(m) => matches!(known::macro_name(&m.mac).as_deref(), Some("cfg" | "matches")),
            Expr::MethodCall(m) => known::method_is(&m.method, Property::Bool),
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => self.is_host(expr),
            Expr::Paren(e) => self.is_host(&e.expr),
            Expr::Group(e) => self.is_host(&e.expr),
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.is_host(&b.left) && self.is_host(&b.right)
            }
            Expr::Binary(b) => {
                comparison(&b.op).is_some() && (known::is_host_value(&b.left) || known::is_host_value(&b.right))
            }
            _ => false,
        }
    }
}

/// Returns whether a condition is the literal `true`.
pub(super) fn is_true(condition: &Expr) -> bool {
    match condition {
        Expr::Lit(ExprLit { lit: Lit::Bool(literal), .. }) => literal.value,
        Expr::Paren(e) => is_true(&e.expr),
        _ => false,
    }
}
