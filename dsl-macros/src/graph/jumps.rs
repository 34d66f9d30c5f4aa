//! Jumps in Rust code: which jumps leave a piece of code, and which code certainly jumps.

use super::forms::{has_let, is_unit};
use super::known;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ExprBlock, Item, Label, Local, Stmt, Type};

/// Returns whether a block certainly jumps out of itself.
pub(crate) fn block_jumps(block: &Block) -> bool {
    block.stmts.iter().any(certainly_jumps)
}

/// Returns whether an expression certainly jumps out of itself.
pub(crate) fn expr_jumps(e: &Expr) -> bool {
    match e {
        Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => true,
        Expr::Block(b) => b.label.is_none() && block_jumps(&b.block),
        Expr::If(e) => block_jumps(&e.then_branch) && e.else_branch.as_ref().is_some_and(|(_, e)| expr_jumps(e)),
        Expr::Match(m) => !m.arms.is_empty() && m.arms.iter().all(|arm| expr_jumps(&arm.body)),
        Expr::Paren(e) => expr_jumps(&e.expr),
        _ => false,
    }
}

/// Returns whether a block that certainly jumps ends in a value. The value is never computed, but
/// determines the type of the block.
pub(crate) fn block_has_dead_value(block: &Block) -> bool {
    match block.stmts.last() {
        Some(Stmt::Expr(e, None)) if expr_jumps(e) => expr_has_dead_value(e),
        Some(Stmt::Expr(e, None)) => !is_unit(e),
        Some(Stmt::Macro(m)) => m.semi_token.is_none() && !known::is_unit_macro(&m.mac),
        _ => false,
    }
}

/// Returns whether an expression that certainly jumps has a value at the end of an arm.
pub(crate) fn expr_has_dead_value(e: &Expr) -> bool {
    match e {
        Expr::Block(b) => block_has_dead_value(&b.block),
        Expr::If(e) => {
            block_has_dead_value(&e.then_branch) || e.else_branch.as_ref().is_some_and(|(_, e)| expr_has_dead_value(e))
        }
        Expr::Match(m) => m.arms.iter().any(|arm| expr_has_dead_value(&arm.body)),
        Expr::Paren(e) => expr_has_dead_value(&e.expr),
        _ => false,
    }
}

/// The existence of jumps that leave a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Jumps {
    /// Whether there is a jump.
    pub(crate) any: bool,
    /// Whether there is a jump inside a construct that may be staged, for example an `if`.
    pub(crate) under_construct: bool,
}

impl Jumps {
    /// Returns the jumps that leave an expression that is not in canonical form yet.
    pub(crate) fn leaving_expr(e: &Expr) -> Jumps {
        let mut find = FindJumps { before: true, ..FindJumps::default() };
        find.visit_expr(e);
        find.found
    }

    /// Returns the jumps in the body of a loop that end the loop.
    pub(crate) fn ending_loop(body: &Block, label: Option<&Label>) -> Jumps {
        let mut find = FindJumps::default();
        find.continues.extend(label.map(|l| l.name.ident.to_string()));
        find.in_loop_body = true;
        find.visit_block(body);
        find.found
    }

    /// Returns whether a `break` in the body of a loop ends this very loop.
    pub(crate) fn breaks_loop(body: &Block, label: Option<&Label>) -> bool {
        let mut find = FindJumps { only_own_break: true, in_loop_body: true, ..FindJumps::default() };
        find.own = label.map(|l| l.name.ident.to_string());
        find.visit_block(body);
        find.found.any
    }
}

/// Returns whether a statement certainly jumps.
fn certainly_jumps(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Expr(e, _) => expr_jumps(e),
        Stmt::Local(Local { init: Some(init), .. }) => expr_jumps(&init.expr),
        _ => false,
    }
}

#[derive(Default)]
struct FindJumps {
    found: Jumps,
    /// The number of loops around the current expression.
    loops: usize,
    /// The labels of loops and blocks around the current expression.
    labels: Vec<String>,
    /// The labels for which a `continue` stays inside the searched code.
    continues: Vec<String>,
    /// Whether the search begins in a loop body, where `continue` stays inside.
    in_loop_body: bool,
    /// Whether only a `break` of the loop whose body is searched counts.
    only_own_break: bool,
    own: Option<String>,
    constructs: usize,
    /// Whether the code is not yet canonical: a `match` or `if let` may become an `if`.
    before: bool,
    /// The result of [`may_break`](Self::may_break) for each labeled block visited so far. Without
    /// it, each block would be searched once for each block around it.
    may_break: Rc<RefCell<HashMap<*const ExprBlock, bool>>>,
}

impl FindJumps {
    fn found(&mut self) {
        self.found.any = true;
        self.found.under_construct |= self.constructs > 0;
    }

    fn inside(&mut self, label: Option<&Label>, is_loop: bool, f: impl FnOnce(&mut Self)) {
        let labels = self.labels.len();
        self.labels.extend(label.map(|l| l.name.ident.to_string()));
        self.loops += usize::from(is_loop);
        f(self);
        self.loops -= usize::from(is_loop);
        self.labels.truncate(labels);
    }

    /// Returns whether a conditional `break` may jump to the end of a labeled block.
    fn may_break(&self, b: &ExprBlock) -> bool {
        let Some(label) = &b.label else { return false };
        let known = self.may_break.borrow().get(&std::ptr::from_ref(b)).copied();
        known.unwrap_or_else(|| {
            let (own, may_break) = (Some(label.name.ident.to_string()), Rc::clone(&self.may_break));
            let mut find = FindJumps { only_own_break: true, before: true, own, may_break, ..FindJumps::default() };
            find.visit_block(&b.block);
            self.may_break.borrow_mut().insert(b, find.found.under_construct);
            find.found.under_construct
        })
    }

    fn construct(&mut self, f: impl FnOnce(&mut Self)) {
        self.constructs += 1;
        f(self);
        self.constructs -= 1;
    }
}

impl<'a> Visit<'a> for FindJumps {
    fn visit_expr(&mut self, e: &'a Expr) {
        match e {
            Expr::Break(b) => {
                let stays = match &b.label {
                    Some(l) if self.only_own_break => self.own.as_ref().is_none_or(|own| l.ident != own),
                    Some(l) => self.labels.iter().any(|label| l.ident == label),
                    None => self.loops > 0,
                };
                if !stays {
                    self.found();
                }
                visit::visit_expr(self, e);
            }
            Expr::Continue(c) => {
                let stays = match &c.label {
                    Some(l) => self.labels.iter().chain(&self.continues).any(|label| l.ident == label),
                    None => self.loops > 0 || self.in_loop_body,
                };
                if !stays && !self.only_own_break {
                    self.found();
                }
            }
            Expr::Return(_) => {
                if !self.only_own_break {
                    self.found();
                }
                visit::visit_expr(self, e);
            }
            // Code after a conditional `break` depends on its condition.
            Expr::Block(b) if self.may_break(b) => {
                self.construct(|f| f.inside(b.label.as_ref(), false, |f| f.visit_block(&b.block)));
            }
            Expr::Block(b) => self.inside(b.label.as_ref(), false, |f| f.visit_block(&b.block)),
            Expr::Loop(l) => {
                self.construct(|f| f.inside(l.label.as_ref(), true, |f| f.visit_block(&l.body)));
            }
            Expr::While(w) => {
                self.visit_expr(&w.cond);
                self.construct(|f| f.inside(w.label.as_ref(), true, |f| f.visit_block(&w.body)));
            }
            Expr::ForLoop(w) => {
                self.visit_expr(&w.expr);
                self.construct(|f| f.inside(w.label.as_ref(), true, |f| f.visit_block(&w.body)));
            }
            Expr::If(i) if self.before || !has_let(&i.cond) => {
                self.visit_expr(&i.cond);
                self.construct(|f| {
                    f.visit_block(&i.then_branch);
                    i.else_branch.iter().for_each(|(_, e)| f.visit_expr(e));
                });
            }
            Expr::Match(m) if self.before => {
                self.visit_expr(&m.expr);
                self.construct(|f| m.arms.iter().for_each(|arm| f.visit_arm(arm)));
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.visit_expr(&b.left);
                self.construct(|f| f.visit_expr(&b.right));
            }
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => {}
            e => visit::visit_expr(self, e),
        }
    }
    fn visit_item(&mut self, _: &'a Item) {}
    fn visit_type(&mut self, _: &'a Type) {}
}
