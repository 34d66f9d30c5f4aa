//! Loops.

use super::canonical::is_place;
use super::conditions::is_true;
use super::state::Resolver;
use crate::graph::forms::{bare, has_let, take};
use crate::graph::known;
use crate::graph::names::call;
use crate::graph::scope;
use crate::graph::tree::{For, HostLoopExpr, Loop, Part, TreeNode, WhileExpr, number_of_hole};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::*;

impl Resolver {
    pub(super) fn while_expr(&mut self, mut w: ExprWhile) -> TreeNode {
        let mut condition = take(&mut w.cond);
        self.canonical_condition(&mut condition);
        if has_let(&condition) || self.is_host(&condition) {
            let may_be_endless = is_true(&condition) && !may_exit(&w.body);
            let (condition, (body, start)) = self.scoped(|resolver| {
                let condition = resolver.code_of(condition, Resolver::host_condition);
                (condition, resolver.in_loop(w.label.as_ref(), |resolver| resolver.body_inside(&mut w.body)))
            });
            let ends = self.jumps.ending_loop(start);
            let (stops, is_endless) = (ends.under_construct, may_be_endless && !ends.any);
            let facts = Default::default();
            return TreeNode::HostLoop(Box::new(HostLoopExpr { syntax: w, condition, body, stops, is_endless, facts }));
        }
        self.around += 1;
        let condition = self.code(condition);
        let (body, start) = self.in_loop(w.label.as_ref(), |resolver| resolver.body(&mut w.body));
        self.around -= 1;
        let ExprWhile { attrs, label, while_token, .. } = w;
        let (at, stops, facts) = (while_token.span, self.jumps.ending_loop(start).any, Default::default());
        TreeNode::While(Box::new(WhileExpr { attrs, at, label, condition, body, stops, facts }))
    }

    pub(super) fn for_expr(&mut self, mut f: ExprForLoop) -> TreeNode {
        let source = take(&mut f.expr);
        let mut iterable = self.passed_code(source.clone());
        let (declared, (body, start)) = self.scoped(|resolver| {
            let declared = resolver.declare(|env| env.declare_items(&f.pat, &source));
            (declared, resolver.in_loop(f.label.as_ref(), |resolver| resolver.body_inside(&mut f.body)))
        });
        let is_host = known::is_host_iterator(&source);
        if is_host {
            host_ends(&source, &mut iterable.syntax, &mut iterable.parts);
        }
        let is_tuple = matches!(bare(&source), Expr::Tuple(tuple) if !tuple.elems.is_empty());
        if is_tuple {
            iterable.syntax = call(source.span(), "rows_of_tuple", take(&mut iterable.syntax));
        }
        let ends = self.jumps.ending_loop(start);
        if ends.under_construct {
            iterable.parts.splice(0..0, lazy_changes(&source).map(Part::Error));
        }
        TreeNode::For(Box::new(For {
            syntax: f,
            iterable,
            is_host,
            is_iterable: is_tuple || is_iterable(&source),
            declared,
            body,
            stops: ends.any,
            stops_under_construct: ends.under_construct,
            facts: Default::default(),
        }))
    }

    pub(super) fn loop_expr(&mut self, mut l: ExprLoop) -> TreeNode {
        let may_exit = may_exit(&l.body);
        let (body, start) = self.in_loop(l.label.as_ref(), |resolver| resolver.body_inside(&mut l.body));
        let ends = self.jumps.ending_loop(start);
        let (stops, is_endless) = (ends.under_construct, !ends.any && !may_exit);
        let is_broken = stops && self.jumps.breaks_loop(start);
        TreeNode::Loop(Box::new(Loop { syntax: l, body, stops, is_endless, is_broken, facts: Default::default() }))
    }
}

/// Returns whether an expression is certainly iterable by its form.
fn is_iterable(e: &Expr) -> bool {
    let is_literal = |e: &Option<Box<Expr>>| e.as_ref().is_none_or(|e| matches!(**e, Expr::Lit(_)));
    match e {
        Expr::Range(r) => is_literal(&r.start) && is_literal(&r.end),
        Expr::MethodCall(m) => is_iterable(&m.receiver),
        Expr::Paren(e) => is_iterable(&e.expr),
        Expr::Call(c) => known::is_range(&c.func),
        _ => false,
    }
}

/// Adds checks that the ends of a range are host numbers. Methods may be called on the range, as in
/// `(a..b).rev()`. `source` is the iterator before it was resolved.
fn host_ends(source: &Expr, syntax: &mut Expr, parts: &mut [Part]) {
    match (source, syntax) {
        (Expr::MethodCall(source), Expr::MethodCall(m)) => host_ends(&source.receiver, &mut m.receiver, parts),
        (Expr::MethodCall(_), e) => {
            let call = number_of_hole(e).and_then(|number| {
                parts.iter_mut().find_map(|part| match part {
                    Part::Node { hole, node: TreeNode::Call(call), .. } if *hole == number => Some(&mut call.call),
                    _ => None,
                })
            });
            if let Some(call) = call {
                host_ends(source, &mut call.syntax, &mut call.parts);
            }
        }
        (Expr::Paren(source), Expr::Paren(e)) => host_ends(&source.expr, &mut e.expr, parts),
        (Expr::Range(source), Expr::Range(range)) => {
            let ends = [(&source.start, &mut range.start), (&source.end, &mut range.end)];
            for (source, end) in ends.into_iter().filter_map(|(source, end)| Some((source.as_ref()?, end.as_mut()?))) {
                if !matches!(**source, Expr::Lit(_)) {
                    **end = call(source.span(), "host_end", take(end));
                }
            }
        }
        _ => {}
    }
}

/// Returns errors for side effects of the iterator of a host loop that a jump under a tensor
/// condition leaves: all items are computed while tracing, including those that the jump skips. So
/// a closure in it modifies too much, and a borrowed iterator has no items left.
fn lazy_changes(iterator: &Expr) -> impl Iterator<Item = Error> {
    let calls = std::iter::successors(Some(iterator), |e| match e {
        Expr::MethodCall(m) => Some(&*m.receiver),
        _ => None,
    });
    calls.filter_map(|e| {
        let Expr::MethodCall(m) = e else { return None };
        if known::method_is(&m.method, known::Property::Borrows) && is_place(&m.receiver) {
            let message = "this iterator would lose even the items that a jump out of the loop skips: call `by_ref` \
                           last, or `collect` the items before the loop";
            return Some(Error::new(m.method.span(), message));
        }
        let (closure, changed) = m.args.iter().find_map(|arg| Some((arg, scope::changed_by_closure(arg)?)))?;
        let message = format!(
            "this closure would modify `{changed}` even for items that a jump out of the loop skips: `collect` \
             the items before the loop, or modify `{changed}` in its body"
        );
        Some(Error::new(closure.span(), message))
    })
}

/// Returns whether the body of a loop has a `?` or an unknown macro, which may leave the loop.
fn may_exit(body: &Block) -> bool {
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
    let mut find = FindExit(false);
    find.visit_block(body);
    find.0
}
