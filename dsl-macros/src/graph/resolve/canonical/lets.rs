//! `if let`, `while let` and `let else` with patterns of numbers become conditions.
//!
//! The loops over host values that a jump may leave under a tensor condition are rewritten here as
//! well: each iteration then starts with a test that the jump can skip.

use super::fresh::Fresh;
use super::patterns::{binds, has_test, names, numbers, test};
use crate::graph::forms::{has_let, is_assignment};
use crate::graph::jumps::Jumps;
use crate::graph::known::{self, Property};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::*;

/// Rewrites `if let P = x { .. }` with a pattern of numbers to `let matched = x;` and an `if`.
pub(super) fn if_let(fresh: &mut Fresh, e: &mut Expr) -> Option<Stmt> {
    let Expr::If(e) = e else {
        return None;
    };
    let Expr::Let(l) = &mut *e.cond else {
        chain(fresh, &mut e.cond);
        return None;
    };
    let of = numbers(&l.expr);
    if has_test(&l.pat, of.as_ref()) != Some(true) {
        return None;
    }
    let name = fresh.helper("matched", l.expr.span());
    let scrutinee = &l.expr;
    let declaration = parse_quote!(let #name = #scrutinee;);
    let matched = parse_quote!(#name);
    e.then_branch.stmts.splice(0..0, names(&l.pat, &matched, false));
    *e.cond = test(&l.pat, &matched).expect("the pattern tests something");
    Some(declaration)
}

/// Replaces patterns of numbers that bind nothing, in a `&&` chain, by their tests.
fn chain(fresh: &mut Fresh, cond: &mut Expr) {
    match cond {
        Expr::Let(l) => {
            let of = numbers(&l.expr);
            if has_test(&l.pat, of.as_ref()) != Some(true) || binds(&l.pat) {
                return;
            }
            let name = fresh.helper("matched", l.expr.span());
            let test = test(&l.pat, &parse_quote!(#name)).expect("the pattern tests something");
            let scrutinee = &l.expr;
            *cond = parse_quote!({ let #name = #scrutinee; #test });
        }
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
            chain(fresh, &mut b.left);
            chain(fresh, &mut b.right);
        }
        _ => {}
    }
}

/// Rewrites `while let P = x { .. }` with a pattern of numbers: a `while` on the test, or a
/// `loop` if the pattern binds a name.
pub(super) fn while_let(fresh: &mut Fresh, e: &mut Expr) {
    let Expr::While(w) = e else {
        return;
    };
    match &*w.cond {
        Expr::Let(l) if has_test(&l.pat, numbers(&l.expr).as_ref()) == Some(true) && binds(&l.pat) => {
            *e = Expr::Loop(as_loop(w));
        }
        cond if (has_let(cond) || known::is_bool_by_name(cond))
            && may_change(cond)
            && Jumps::ending_loop(&w.body, w.label.as_ref()).under_construct =>
        {
            *e = Expr::Loop(as_loop(w));
        }
        _ => chain(fresh, &mut w.cond),
    }
}

/// Rewrites `for p in iter.by_ref() { .. }` with a jump that may be staged to
/// `while let Some(p) = iter.next() { .. }`.
///
/// No item is then taken after the jump has left the loop. An iterator that is no place ends with
/// the loop, so nobody misses its items.
pub(super) fn for_by_ref(e: &mut Expr) {
    let Expr::ForLoop(f) = e else { return };
    let Expr::MethodCall(m) = &*f.expr else { return };
    if !known::method_is(&m.method, Property::Borrows)
        || !is_place(&m.receiver)
        || !Jumps::ending_loop(&f.body, f.label.as_ref()).under_construct
    {
        return;
    }
    let (attrs, pat, iter, body) = (&f.attrs, &f.pat, &m.receiver, &f.body);
    let token = Token![while](f.for_token.span);
    let mut looping: ExprWhile =
        parse_quote!(#(#attrs)* #token let ::core::option::Option::Some(#pat) = #iter.next() #body);
    looping.label = f.label.take();
    *e = Expr::While(looping);
}

/// Returns whether an expression is a variable or a part of one.
pub(in crate::graph::resolve) fn is_place(e: &Expr) -> bool {
    match e {
        Expr::Path(_) => true,
        Expr::Field(e) => is_place(&e.base),
        Expr::Paren(e) => is_place(&e.expr),
        Expr::Group(e) => is_place(&e.expr),
        Expr::Reference(e) => is_place(&e.expr),
        Expr::Unary(ExprUnary { op: UnOp::Deref(_), expr, .. }) => is_place(expr),
        _ => false,
    }
}

/// Rewrites `let P = x else { .. };` with a pattern of numbers.
pub(super) fn let_else(fresh: &mut Fresh, local: &mut Local) -> Option<Vec<Stmt>> {
    let init = local.init.as_mut()?;
    let (_, diverge) = init.diverge.as_ref()?;
    let (pat, ty) = match &local.pat {
        Pat::Type(p) => (&*p.pat, Some((p.colon_token, &p.ty))),
        pat => (pat, None),
    };
    if has_test(pat, numbers(&init.expr).as_ref()) != Some(true) || !local.attrs.is_empty() {
        return None;
    }
    let name = fresh.helper("matched", init.expr.span());
    let scrutinee = &init.expr;
    let ty = ty.map(|(colon, ty)| quote::quote!(#colon #ty));
    let matched = parse_quote!(#name);
    let test = test(pat, &matched).expect("the pattern tests something");
    let (r#if, not) = (Token![if](pat.span()), Token![!](pat.span()));
    let mut stmts = vec![parse_quote!(let #name #ty = #scrutinee;), parse_quote!(#r#if #not (#test) #diverge)];
    stmts.extend(names(pat, &matched, false));
    Some(stmts)
}

/// Returns `loop { if cond { .. } else { break } }`.
fn as_loop(w: &mut ExprWhile) -> ExprLoop {
    let (cond, attrs, body) = (&w.cond, &w.attrs, &w.body);
    let at = w.while_token.span;
    let (token, leave) = (Token![loop](at), Token![break](at));
    let mut looping: ExprLoop = parse_quote!(#(#attrs)* #token { if #cond #body else { #leave } });
    looping.label = w.label.take();
    looping
}

/// Returns whether an expression may modify a variable, by its form: it assigns one, borrows it
/// mutably, or calls a method that may modify it.
fn may_change(e: &Expr) -> bool {
    struct FindModification(bool);
    impl<'a> Visit<'a> for FindModification {
        fn visit_expr(&mut self, e: &'a Expr) {
            self.0 |= match e {
                Expr::Assign(_) => true,
                Expr::Binary(b) => is_assignment(&b.op),
                Expr::Reference(r) => r.mutability.is_some(),
                Expr::MethodCall(m) => known::keeps_receiver(&m.method.to_string()).is_none(),
                _ => false,
            };
            visit::visit_expr(self, e);
        }
        fn visit_expr_closure(&mut self, _: &'a ExprClosure) {}
        fn visit_item(&mut self, _: &'a Item) {}
    }
    let mut find = FindModification(false);
    find.visit_expr(e);
    find.0
}
