//! Loops.
//!
//! - A `while` whose condition may be a tensor, and a `for` whose iterable may be one, become a
//!   staged `while`.
//! - A `loop` becomes a staged `while` on its flag if a jump that ends it is under a condition.
//! - A loop that is a host loop by its form stays as it is. If a jump in it is under a condition,
//!   the rest of the loop is traced under its flag.

use super::*;
use crate::graph::emit::WhileParts;
use quote::quote_spanned;
use syn::visit::Visit;

impl Walk<'_> {
    pub(super) fn while_expr(&mut self, mut w: ExprWhile) -> Expr {
        let at = w.while_token.span;
        if has_let(&w.cond) || self.is_host(&w.cond) {
            let is_endless = is_true(&w.cond) && only_panics_end(&w.body, w.label.as_ref());
            let scope = self.env.enter();
            self.host_condition(&mut w.cond);
            let (declaration, label) = self.host_body(&mut w.body, w.label.take(), at);
            self.env.leave(scope);
            if is_endless {
                w.body.stmts.insert(0, emit::count_endless(at));
            }
            w.label = label;
            return after(declaration, Expr::While(w));
        }
        let condition = |walk: &mut Self| {
            let mut condition = *w.cond;
            walk.visit_expr_mut(&mut condition);
            condition
        };
        let expansion = self.staged_while(at, w.label, condition, |_| None, w.body);
        with_attributes(&w.attrs, expansion)
    }

    /// Rewrites a loop to a staged `while`. `condition` and `item` rewrite the code before the
    /// body.
    fn staged_while(
        &mut self,
        at: Span,
        label: Option<Label>,
        condition: impl FnOnce(&mut Self) -> Expr,
        item: impl FnOnce(&mut Self) -> Option<TokenStream>,
        mut body: Block,
    ) -> Expr {
        let stops = Jumps::ending_loop(&body, label.as_ref()).any;
        if stops {
            self.lower_flag(at, Some(self.targets.len()));
        }
        let stop = stops.then(|| self.flag_name());
        self.add_target(TargetKind::Loop, label.as_ref(), at);
        let target = self.targets.len() - 1;
        let (index, construct) = self.open(ConstructKind::While, at, &Position::statement());
        let head = stops.then(|| self.open(ConstructKind::Logical, at, &Position::default()));
        // A jump out of the condition leaves a part of an expression.
        self.construct_of(index).nested = true;
        let condition = condition(self);
        let while_construct = self.construct_of(index);
        while_construct.nested = false;
        let leaves_condition = while_construct.left[0];
        let head = head.map(|(index, name)| (name, index, self.close(at).carried));
        let scope = self.env.enter();
        let item = item(self);
        let guard = stops.then(|| self.open_guard(at, target));
        self.block(&mut body, Position::tail_of(target));
        if let (Some((guard_index, guard)), Some(stop)) = (guard, &stop) {
            let kind = emit::kind(index, at);
            self.close_guard(guard, guard_index, at, emit::unless_stopped(kind.to_token_stream(), stop, at), &mut body);
        }
        self.env.leave(scope);
        let Closed { carried, labels: [body_label, _], kind, .. } = self.close(at);
        let (_, label) = self.remove_target(label);
        let declaration = stops.then(|| self.take_flag()).flatten().map(|flag| flag.declaration);
        let condition = match (&stop, head) {
            (Some(stop), Some((name, head_index, carried))) => {
                let kind = emit::kind(index, at);
                emit::stopped_condition(name, head_index, at, (&kind, stop), condition, carried)
            }
            _ => condition,
        };
        let mut parts = WhileParts::new(construct, index, at, condition, body);
        (parts.label, parts.body_label, parts.item, parts.kind) = (label, body_label, item, kind);
        parts.leaves_condition = leaves_condition;
        after(declaration, emit::while_loop(parts, carried))
    }

    fn construct_of(&mut self, index: usize) -> &mut Construct {
        self.constructs.iter_mut().rfind(|c| c.index == index).expect("the construct is open")
    }

    fn open_guard(&mut self, at: Span, target: usize) -> (usize, Ident) {
        let guard = self.open(ConstructKind::If, at, &Position::tail_of(target));
        self.exclude_from_flag();
        guard
    }

    /// Puts the body into an `if` on the condition that the loop was not left.
    fn close_guard(&mut self, construct: Ident, index: usize, at: Span, condition: Expr, body: &mut Block) {
        let Closed { carried, labels: [label, _], deferred, kind } = self.close(at);
        let block = std::mem::replace(body, Block { brace_token: body.brace_token, stmts: Vec::new() });
        let arms = [Some(Arm { block, label, value: ArmValue::None, ends: true }), None];
        let parts = IfParts { construct, index, at, condition, arms, deferred, kind };
        body.stmts.push(Stmt::Expr(emit::if_statement(parts, carried), None));
    }

    /// Rewrites the body of a loop that is a host loop by its form. Returns the declarations before
    /// the loop, and its label.
    fn host_body(&mut self, body: &mut Block, label: Option<Label>, at: Span) -> (Option<TokenStream>, Option<Label>) {
        let stops = Jumps::ending_loop(body, label.as_ref()).under_construct;
        if stops {
            self.lower_flag(at, Some(self.targets.len()));
        }
        self.add_target(TargetKind::Loop, label.as_ref(), at);
        let target = self.targets.len() - 1;
        let guard = stops.then(|| self.open_guard(at, target));
        self.block(body, Position::tail_of(target));
        if let Some((index, guard)) = guard {
            let stop = self.flag_name();
            self.close_guard(guard, index, at, emit::unless_stopped(emit::host_kind(at), &stop, at), body);
        }
        let (_, label) = self.remove_target(label);
        (stops.then(|| self.take_flag()).flatten().map(|flag| flag.declaration), label)
    }

    pub(super) fn for_expr(&mut self, mut f: ExprForLoop) -> Expr {
        let at = f.for_token.span;
        let source = f.expr.clone();
        self.value(&mut f.expr, 0);
        if Jumps::ending_loop(&f.body, f.label.as_ref()).under_construct {
            self.refuse_lazy_changes(&source);
        }
        if known::is_host_iterator(&f.expr) {
            self.visit_expr_mut(&mut f.expr);
            emit::host_ends(&mut f.expr);
            let scope = self.env.enter();
            self.env.declare_items(&f.pat, &source);
            let (declaration, label) = self.host_body(&mut f.body, f.label.take(), at);
            self.env.leave(scope);
            f.label = label;
            *f.expr = emit::host_iter(f.expr.span(), &f.expr);
            return after(declaration, Expr::ForLoop(f));
        }
        let mut iterable = *f.expr;
        self.visit_expr_mut(&mut iterable);
        let index = self.index();
        let (looping, position) = (names::helper("looping", index, at), names::helper("position", index, at));
        let scope = self.env.enter();
        self.env.declare(position.to_string(), Access::Mut, false);
        let item = |walk: &mut Self| {
            walk.change(Written::variable(&position, at), Change::Exact, 0);
            walk.env.declare_items(&f.pat, &source);
            Some(emit::item(&looping, &position, &f.pat, at))
        };
        let test = |_: &mut Self| emit::another(&looping, &position, at);
        let expansion = self.staged_while(at, f.label, test, item, f.body);
        self.env.leave(scope);
        with_attributes(&f.attrs, emit::for_loop(&looping, &position, at, &iterable, &expansion))
    }

    /// Rejects closures with side effects in the iterator of a host loop that a jump under a tensor
    /// condition leaves: all items are computed while tracing, including those that the jump skips.
    fn refuse_lazy_changes(&mut self, iterator: &Expr) {
        let Expr::MethodCall(m) = iterator else { return };
        if let Some((closure, changed)) = m.args.iter().find_map(|arg| Some((arg, scope::changed_by_closure(arg)?))) {
            let message = format!(
                "this closure would modify `{changed}` even for items that a jump out of the loop skips: `collect` \
                 the items before the loop, or modify `{changed}` in its body"
            );
            self.cx.push(syn::Error::new(closure.span(), message));
        }
        self.refuse_lazy_changes(&m.receiver);
    }

    pub(super) fn loop_expr(&mut self, mut l: ExprLoop, position: Position) -> Expr {
        let at = l.loop_token.span;
        let ends = Jumps::ending_loop(&l.body, l.label.as_ref());
        if !ends.under_construct {
            let is_endless = only_panics_end(&l.body, l.label.as_ref());
            self.add_target(TargetKind::Loop, l.label.as_ref(), at);
            let target = self.targets.len() - 1;
            self.block(&mut l.body, Position::tail_of(target));
            if is_endless {
                l.body.stmts.insert(0, emit::count_endless(at));
            }
            l.label = self.remove_target(l.label.take()).1;
            return Expr::Loop(l);
        }
        let broken = Jumps::breaks_loop(&l.body, l.label.as_ref());
        self.lower_flag(at, Some(self.targets.len()));
        let stop = self.flag_name();
        let slot = self.add_target(TargetKind::Loop, l.label.as_ref(), at);
        let target = self.targets.len() - 1;
        let (index, construct) = self.open(ConstructKind::Loop, at, &Position::statement());
        self.exclude_from_flag();
        self.block(&mut l.body, Position::tail_of(target));
        let Closed { carried, labels: [body_label, _], deferred, kind } = self.close(at);
        let (target, label) = self.remove_target(l.label.take());
        let declaration = self.take_flag().map(|flag| flag.declaration);
        let condition = emit::is_down(&stop);
        let mut parts = WhileParts::new(construct, index, at, condition, l.body);
        (parts.label, parts.body_label, parts.deferred, parts.kind) = (label, body_label, deferred, kind);
        let expansion = emit::while_loop(parts, carried);
        let slot_declaration = target.slot_used.then(|| emit::slot(&slot, position.expected.as_ref()));
        let value = match (target.slot_used, broken) {
            (true, _) => Some(Expr::Verbatim(quote_spanned!(at=> #slot.take()))),
            (false, true) => None,
            (false, false) => Some(self.never_value(at, &position)),
        };
        with_attributes(&l.attrs, Expr::Verbatim(quote!({ #slot_declaration #declaration #expansion #value })))
    }
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

/// Returns whether a condition is the literal `true`.
fn is_true(condition: &Expr) -> bool {
    match condition {
        Expr::Lit(ExprLit { lit: Lit::Bool(literal), .. }) => literal.value,
        Expr::Paren(e) => is_true(&e.expr),
        _ => false,
    }
}

/// Returns `{ declaration loop }`.
fn after(declaration: Option<TokenStream>, expansion: Expr) -> Expr {
    match declaration {
        None => expansion,
        Some(declaration) => Expr::Verbatim(quote!({ #declaration #expansion })),
    }
}
