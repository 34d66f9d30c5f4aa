//! Loops.

use super::conditions::is_true;
use super::state::Resolver;
use crate::graph::forms::{has_let, take};
use crate::graph::jumps::Jumps;
use crate::graph::known;
use crate::graph::scope;
use crate::graph::tree::{For, HostLoopExpr, Loop, Part, TreeNode, WhileExpr};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::*;

impl Resolver {
    pub(super) fn while_expr(&mut self, mut w: ExprWhile) -> TreeNode {
        let ends = Jumps::ending_loop(&w.body, w.label.as_ref());
        let condition = take(&mut w.cond);
        if has_let(&condition) || self.is_host(&condition) {
            let is_endless = is_true(&condition) && only_panics_end(&w.body, w.label.as_ref());
            let (condition, body) = self.scoped(|resolver| {
                (resolver.code_of(condition, Resolver::host_condition), resolver.body_inside(&mut w.body))
            });
            let (stops, facts) = (ends.under_construct, Default::default());
            return TreeNode::HostLoop(Box::new(HostLoopExpr { syntax: w, condition, body, stops, is_endless, facts }));
        }
        self.around += 1;
        let (condition, body) = (self.code(condition), self.body(&mut w.body));
        self.around -= 1;
        let ExprWhile { attrs, label, while_token, .. } = w;
        let (at, facts) = (while_token.span, Default::default());
        TreeNode::While(Box::new(WhileExpr { attrs, at, label, condition, body, stops: ends.any, facts }))
    }

    pub(super) fn for_expr(&mut self, mut f: ExprForLoop) -> TreeNode {
        let ends = Jumps::ending_loop(&f.body, f.label.as_ref());
        let source = take(&mut f.expr);
        let mut iterable = self.passed_code(source.clone());
        if ends.under_construct {
            iterable.parts.splice(0..0, lazy_changes(&source).map(Part::Error));
        }
        let (declared, body) = self.scoped(|resolver| {
            let declared = resolver.declare(|env| env.declare_items(&f.pat, &source));
            (declared, resolver.body_inside(&mut f.body))
        });
        TreeNode::For(Box::new(For {
            syntax: f,
            iterable,
            is_host: known::is_host_iterator(&source),
            declared,
            body,
            stops: ends.any,
            stops_under_construct: ends.under_construct,
            facts: Default::default(),
        }))
    }

    pub(super) fn loop_expr(&mut self, mut l: ExprLoop) -> TreeNode {
        let stops = Jumps::ending_loop(&l.body, l.label.as_ref()).under_construct;
        let is_endless = !stops && only_panics_end(&l.body, l.label.as_ref());
        let is_broken = stops && Jumps::breaks_loop(&l.body, l.label.as_ref());
        let body = self.body_inside(&mut l.body);
        TreeNode::Loop(Box::new(Loop { syntax: l, body, stops, is_endless, is_broken, facts: Default::default() }))
    }
}

/// Returns errors for closures with side effects in the iterator of a host loop that a jump under a
/// tensor condition leaves: all items are computed while tracing, including those that the jump
/// skips.
fn lazy_changes(iterator: &Expr) -> impl Iterator<Item = Error> {
    let calls = std::iter::successors(Some(iterator), |e| match e {
        Expr::MethodCall(m) => Some(&*m.receiver),
        _ => None,
    });
    calls.filter_map(|e| {
        let Expr::MethodCall(m) = e else { return None };
        let (closure, changed) = m.args.iter().find_map(|arg| Some((arg, scope::changed_by_closure(arg)?)))?;
        let message = format!(
            "this closure would modify `{changed}` even for items that a jump out of the loop skips: `collect` \
             the items before the loop, or modify `{changed}` in its body"
        );
        Some(Error::new(closure.span(), message))
    })
}

/// Returns whether only a panic ends a loop with this body, as far as its form shows. `?` and
/// unknown macros may end it.
fn only_panics_end(body: &Block, label: Option<&Label>) -> bool {
    struct FindExit(bool);
    impl<'a> Visit<'a> for FindExit {
        fn visit_expr_try(&mut self, _: &'a ExprTry) {
            self.0 = true;
        }
        fn visit_macro(&mut self, mac: &'a Macro) {
            self.0 |= known::macro_name(mac).is_none_or(|name| known::may_jump(&name));
        }
        fn visit_expr_closure(&mut self, _: &'a ExprClosure) {}
        fn visit_item(&mut self, _: &'a Item) {}
    }
    let mut find = FindExit(Jumps::ending_loop(body, label).any);
    find.visit_block(body);
    !find.0
}
