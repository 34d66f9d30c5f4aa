//! Rewrites Rust to Rust before anything is staged, so that jumps and matches take fewer forms.
//!
//! - A `match` on numbers becomes a chain of `if`s, which can be staged. So do `if let`,
//!   `while let` and `let else` with a pattern of numbers. A tuple of numbers that is written in
//!   the `match` is compared item by item.
//! - The code after an `if` of which one arm jumps moves into the other arm:
//!   `if c { return a; } rest` becomes `if c { return a; } else { rest }`. Most jumps therefore
//!   need no flag, and both arms remain exclusive.
//! - A labeled block whose jumps leave with the first value of a variable returns that value.
//! - An assignment of a value that contains a jump becomes a `let` and an assignment, so that
//!   nothing is assigned if the jump is taken.
//! - Long chains and long sequences of jumps become trees: [`depth`].
//!
//! Each step preserves the semantics of the function in ordinary Rust. No step depends on types.

mod constants;
mod depth;
mod first_values;

use super::{emit, known};
use depth::Chain;
pub(super) use depth::{has_kind_of_outer, has_no_value, is_sequence, note_names};
use proc_macro2::{Span, TokenStream};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::*;

/// Rewrites a body to canonical form.
pub(super) fn canonical(signature: &Signature, body: &mut Block) {
    constants::mark(signature, body);
    Canonical { next_index: 0, deferred: Vec::new() }.visit_block_mut(body);
}

struct Canonical {
    next_index: usize,
    /// The variables in scope that are declared by `let x;` and not initialized yet.
    deferred: Vec<Local>,
}

impl Canonical {
    fn helper(&mut self, name: &str, at: Span) -> Ident {
        self.next_index += 1;
        emit::helper(name, self.next_index, at)
    }

    fn chain_expr(&mut self, chain: Chain) -> Expr {
        chain.build(|at| {
            self.next_index += 1;
            (emit::label("chain", self.next_index, at), emit::helper("arm", self.next_index, at))
        })
    }

    fn block(&mut self, block: &mut Block) {
        let deferred = self.deferred.clone();
        self.statements(block);
        self.deferred = deferred;
    }

    fn statements(&mut self, block: &mut Block) {
        let mut rest: VecDeque<Stmt> = depth::in_blocks(std::mem::take(&mut block.stmts)).into();
        while let Some(mut stmt) = rest.pop_front() {
            let new_label = |at| {
                self.next_index += 1;
                emit::label("given", self.next_index, at)
            };
            if let Some(stmts) = first_values::through(&stmt, &self.deferred, new_label) {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Some(stmts) = declared_one_by_one(&stmt) {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Stmt::Local(local) = &mut stmt
                && let Some(stmts) = self.let_else(local)
            {
                stmts.into_iter().rev().for_each(|stmt| rest.push_front(stmt));
                continue;
            }
            if let Some(value) = value_of(&mut stmt)
                && let Some(chain) = Chain::of_long(value)
            {
                *value = self.chain_expr(chain);
                rest.push_front(stmt);
                continue;
            }
            if let Some(value) = value_of(&mut stmt) {
                self.for_by_ref(value);
                self.while_let(value);
            }
            if let Some(value) = value_of(&mut stmt)
                && let Some(declaration) = self.if_let(value)
            {
                rest.push_front(stmt);
                rest.push_front(declaration);
                continue;
            }
            if let Some(value) = value_of(&mut stmt)
                && let Some(switch) = Switch::of(value)
            {
                let scrutinee = self.helper("matched", value.span());
                let (declaration, chain) = switch.build(scrutinee);
                *value = self.chain_expr(chain);
                rest.push_front(stmt);
                rest.push_front(declaration);
                continue;
            }
            if let Some(value) = assigned_value(&mut stmt)
                && is_structured(value)
                && Jumps::leaving_expr(value).any
            {
                let name = self.helper("value", value.span());
                let init = std::mem::replace(value, parse_quote!(#name));
                rest.push_front(stmt);
                stmt = parse_quote!(let #name = #init;);
            }
            if !rest.is_empty()
                && let Some(split) = split(&mut stmt)
            {
                // Items are visible in the whole block.
                let (items, rest): (Vec<_>, Vec<_>) = rest.drain(..).partition(|s| matches!(s, Stmt::Item(_)));
                let mut joined = Expr::If(split(rest));
                block.stmts.extend(items);
                self.visit_expr_mut(&mut joined);
                block.stmts.push(Stmt::Expr(joined, None));
                return;
            }
            // At the end of a function, a jump out of this may provide the function's value.
            if rest.is_empty()
                && let Stmt::Expr(e, None) = &stmt
                && is_left_and_ends(e)
            {
                let name = self.helper("value", e.span());
                stmt = parse_quote!(let #name = #e;);
                rest.push_front(Stmt::Expr(parse_quote!(#name), None));
            }
            self.visit_stmt_mut(&mut stmt);
            first_values::after(&stmt, &mut self.deferred);
            block.stmts.push(stmt);
        }
    }

    /// Rewrites `if let P = x { .. }` with a pattern of numbers to `let matched = x;` and an `if`.
    fn if_let(&mut self, e: &mut Expr) -> Option<Stmt> {
        let Expr::If(e) = e else {
            return None;
        };
        let Expr::Let(l) = &mut *e.cond else {
            self.chain(&mut e.cond);
            return None;
        };
        let of = numbers(&l.expr);
        if has_test(&l.pat, of.as_ref()) != Some(true) {
            return None;
        }
        let name = self.helper("matched", l.expr.span());
        let scrutinee = &l.expr;
        let declaration = parse_quote!(let #name = #scrutinee;);
        let matched = parse_quote!(#name);
        e.then_branch.stmts.splice(0..0, names(&l.pat, &matched, false));
        *e.cond = test(&l.pat, &matched).expect("the pattern tests something");
        Some(declaration)
    }

    /// Replaces patterns of numbers that bind nothing, in a `&&` chain, by their tests.
    fn chain(&mut self, cond: &mut Expr) {
        match cond {
            Expr::Let(l) => {
                let of = numbers(&l.expr);
                if has_test(&l.pat, of.as_ref()) != Some(true) || binds(&l.pat) {
                    return;
                }
                let name = self.helper("matched", l.expr.span());
                let test = test(&l.pat, &parse_quote!(#name)).expect("the pattern tests something");
                let scrutinee = &l.expr;
                *cond = parse_quote!({ let #name = #scrutinee; #test });
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
                self.chain(&mut b.left);
                self.chain(&mut b.right);
            }
            _ => {}
        }
    }

    /// Rewrites `while let P = x { .. }` with a pattern of numbers: a `while` on the test, or a
    /// `loop` if the pattern binds a name.
    fn while_let(&mut self, e: &mut Expr) {
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
            _ => self.chain(&mut w.cond),
        }
    }

    /// Rewrites `for p in iter.by_ref() { .. }` with a jump that may be staged to
    /// `while let Some(p) = iter.next() { .. }`.
    ///
    /// No item is then taken after the jump has left the loop.
    fn for_by_ref(&mut self, e: &mut Expr) {
        let Expr::ForLoop(f) = e else { return };
        let Expr::MethodCall(m) = &*f.expr else { return };
        if m.method != "by_ref" || !Jumps::ending_loop(&f.body, f.label.as_ref()).under_construct {
            return;
        }
        let (attrs, pat, iter, body) = (&f.attrs, &f.pat, &m.receiver, &f.body);
        let token = Token![while](f.for_token.span);
        let mut looping: ExprWhile =
            parse_quote!(#(#attrs)* #token let ::core::option::Option::Some(#pat) = #iter.next() #body);
        looping.label = f.label.take();
        *e = Expr::While(looping);
    }

    /// Rewrites `let P = x else { .. };` with a pattern of numbers.
    fn let_else(&mut self, local: &mut Local) -> Option<Vec<Stmt>> {
        let init = local.init.as_mut()?;
        let (_, diverge) = init.diverge.as_ref()?;
        let (pat, ty) = match &local.pat {
            Pat::Type(p) => (&*p.pat, Some((p.colon_token, &p.ty))),
            pat => (pat, None),
        };
        if has_test(pat, numbers(&init.expr).as_ref()) != Some(true) || !local.attrs.is_empty() {
            return None;
        }
        let name = self.helper("matched", init.expr.span());
        let scrutinee = &init.expr;
        let ty = ty.map(|(colon, ty)| quote::quote!(#colon #ty));
        let matched = parse_quote!(#name);
        let test = test(pat, &matched).expect("the pattern tests something");
        let (r#if, not) = (Token![if](pat.span()), Token![!](pat.span()));
        let mut stmts = vec![parse_quote!(let #name #ty = #scrutinee;), parse_quote!(#r#if #not (#test) #diverge)];
        stmts.extend(names(pat, &matched, false));
        Some(stmts)
    }
}

impl Canonical {
    /// Rewrites `matches!(x, P)` with numbers, and `(a..b).contains(&x)`, to comparisons.
    fn as_comparisons(&mut self, e: &Expr) -> Option<Expr> {
        match e {
            Expr::Macro(m) if known::macro_name(&m.mac).as_deref() == Some("matches") => {
                let (scrutinee, pat, rest) = matches_arguments.parse2(m.mac.tokens.clone()).ok()?;
                let guard = guard_of_matches.parse2(rest).ok()?;
                let has_test = has_test(&pat, numbers(&scrutinee).as_ref())?;
                if guard.as_ref().map_or(!has_test || binds(&pat), has_let) {
                    return None;
                }
                let name = self.helper("matched", scrutinee.span());
                let matched = parse_quote!(#name);
                let (test, names) = (test(&pat, &matched), names(&pat, &matched, false));
                let guard = guard.map(|guard| -> Expr { parse_quote!({ #(#names)* #guard }) });
                let holds: Expr = match (test, guard) {
                    (Some(test), Some(guard)) => parse_quote!(#test && #guard),
                    (test, guard) => test.or(guard)?,
                };
                Some(parse_quote!({ let #name = #scrutinee; #holds }))
            }
            Expr::MethodCall(m) if m.method == "contains" && m.args.len() == 1 => {
                let Expr::Paren(receiver) = &*m.receiver else { return None };
                let Expr::Range(range) = &*receiver.expr else { return None };
                let at = m.method.span();
                let item = self.helper("item", at);
                let names = [(&range.start, "start"), (&range.end, "end")]
                    .map(|(end, name)| end.as_ref().map(|end| (self.helper(name, end.span()), end)));
                let declared = names.iter().flatten().map(|(name, end)| -> Stmt { parse_quote!(let #name = #end;) });
                let (ge, lt, le) = (Token![>=](at), Token![<](at), Token![<=](at));
                let above = names[0].as_ref().map(|(start, _)| -> Expr { parse_quote!((*#item #ge #start)) });
                let below = names[1].as_ref().map(|(end, _)| -> Expr {
                    match range.limits {
                        RangeLimits::HalfOpen(_) => parse_quote!((*#item #lt #end)),
                        RangeLimits::Closed(_) => parse_quote!((*#item #le #end)),
                    }
                });
                let test = match (above, below) {
                    (Some(a), Some(b)) => parse_quote!(#a & #b),
                    (a, b) => a.or(b)?,
                };
                let argument = &m.args[0];
                Some(parse_quote!({ #(#declared)* let #item = #argument; #test }))
            }
            _ => None,
        }
    }
}

impl VisitMut for Canonical {
    fn visit_block_mut(&mut self, block: &mut Block) {
        self.block(block);
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if let Some(chain) = Chain::of_long(e) {
            *e = self.chain_expr(chain);
        }
        if let Some(comparisons) = self.as_comparisons(e) {
            *e = comparisons;
        }
        self.for_by_ref(e);
        self.while_let(e);
        if let Some(declaration) = self.if_let(e) {
            *e = parse_quote!({ #declaration #e });
        }
        if let Some(switch) = Switch::of(e) {
            let scrutinee = self.helper("matched", e.span());
            let (declaration, chain) = switch.build(scrutinee);
            let chain = self.chain_expr(chain);
            *e = parse_quote!({ #declaration #chain });
        } else if let Expr::Match(m) = e {
            // It remains a host `match`.
            host_numbers(m);
            m.arms.iter_mut().for_each(|arm| in_block(&mut arm.body));
        } else if let Expr::Closure(c) = e {
            in_block(&mut c.body);
        } else if let Expr::Paren(p) = e {
            in_block(&mut p.expr);
        } else if let Expr::Let(l) = e
            && shows_number(&l.pat)
        {
            *l.expr = emit::host_number(&l.expr);
        }
        visit_mut::visit_expr_mut(self, e);
    }
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
}

/// Parses the matched expression, the pattern and the tokens after it.
fn matches_arguments(input: parse::ParseStream<'_>) -> Result<(Expr, Pat, TokenStream)> {
    let scrutinee = input.parse()?;
    input.parse::<Token![,]>()?;
    Ok((scrutinee, Pat::parse_multi_with_leading_vert(input)?, input.parse()?))
}

fn guard_of_matches(input: parse::ParseStream<'_>) -> Result<Option<Expr>> {
    let guard = match input.parse::<Option<Token![if]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    input.parse::<Option<Token![,]>>()?;
    Ok(guard)
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
    struct Find(bool);
    impl<'a> Visit<'a> for Find {
        fn visit_expr(&mut self, e: &'a Expr) {
            self.0 |= match e {
                Expr::Assign(_) => true,
                Expr::Binary(b) => super::rewrite::is_assignment(&b.op),
                Expr::Reference(r) => r.mutability.is_some(),
                Expr::MethodCall(m) => known::keeps_receiver(&m.method.to_string()).is_none(),
                _ => false,
            };
            visit::visit_expr(self, e);
        }
        fn visit_expr_closure(&mut self, _: &'a ExprClosure) {}
        fn visit_item(&mut self, _: &'a Item) {}
    }
    let mut find = Find(false);
    find.visit_expr(e);
    find.0
}

/// Adds checks that values matched with numbers are host values.
fn host_numbers(m: &mut ExprMatch) {
    let pats: Vec<&Pat> = m.arms.iter().map(|arm| unguarded(&arm.pat).0).collect();
    match &mut *m.expr {
        Expr::Tuple(t) => {
            let width = t.elems.len();
            for (i, e) in t.elems.iter_mut().enumerate() {
                let mut parts = pats.iter().filter_map(|p| match p {
                    Pat::Tuple(p) if p.elems.len() == width => p.elems.get(i),
                    _ => None,
                });
                if parts.any(shows_number) {
                    *e = emit::host_number(e);
                }
            }
        }
        e if pats.iter().any(|p| shows_number(p)) => *e = emit::host_number(e),
        _ => {}
    }
}

/// Returns the value of a statement: the expression itself, or the one that it binds or assigns.
fn value_of(stmt: &mut Stmt) -> Option<&mut Expr> {
    match stmt {
        Stmt::Local(Local { init: Some(LocalInit { expr, diverge: None, .. }), .. }) => Some(expr),
        Stmt::Expr(Expr::Assign(a), _) => Some(&mut a.right),
        Stmt::Expr(e, _) => Some(e),
        _ => None,
    }
}

/// Returns the assigned value of an assignment.
fn assigned_value(stmt: &mut Stmt) -> Option<&mut Expr> {
    match stmt {
        Stmt::Expr(Expr::Assign(a), _) => Some(&mut a.right),
        Stmt::Expr(Expr::Binary(b), _) if super::rewrite::is_assignment(&b.op) => Some(&mut b.right),
        _ => None,
    }
}

/// Returns whether an expression has a body in which a jump has a statement of its own.
fn is_structured(e: &Expr) -> bool {
    matches!(e, Expr::If(_) | Expr::Match(_) | Expr::Block(_) | Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_))
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

/// If exactly one arm of the `if` in a statement certainly jumps, returns a function that moves the
/// rest of the block into the other arm.
fn split(stmt: &mut Stmt) -> Option<impl FnOnce(Vec<Stmt>) -> ExprIf> {
    let e = match value_of(stmt)? {
        Expr::If(e) if !has_let(&e.cond) && e.attrs.is_empty() => e,
        _ => return None,
    };
    let (jumps, has_else) = (
        [block_jumps(&e.then_branch), e.else_branch.as_ref().is_some_and(|(_, e)| expr_jumps(e))],
        e.else_branch.is_some(),
    );
    if jumps[0] == jumps[1] || (matches!(stmt, Stmt::Local(_) | Stmt::Expr(Expr::Assign(_), _)) && !has_else) {
        return None;
    }
    let stmt = std::mem::replace(stmt, Stmt::Item(Item::Verbatim(Default::default())));
    Some(move |rest: Vec<Stmt>| join(stmt, jumps[0], rest))
}

/// Moves `rest` to the end of the arm that does not jump, which becomes the second arm.
fn join(mut stmt: Stmt, first_jumps: bool, rest: Vec<Stmt>) -> ExprIf {
    let value = value_of(&mut stmt).expect("the statement has an `if`");
    let Expr::If(mut e) = std::mem::replace(value, Expr::Verbatim(Default::default())) else {
        unreachable!("the statement has an `if`")
    };
    let (else_token, second) = match e.else_branch.take() {
        Some((token, second)) => (token, Some(*second)),
        None => (Token![else](e.if_token.span), None),
    };
    let (jumping, going) = if first_jumps {
        (e.then_branch, second)
    } else {
        let cond = &e.cond;
        let not = Token![!](cond.span());
        e.cond = parse_quote!(#not (#cond));
        let going = std::mem::replace(&mut e.then_branch, Block { brace_token: Default::default(), stmts: vec![] });
        (block_of(second.expect("the second arm jumps")), Some(block_expr(going)))
    };
    let mut stmts = Vec::with_capacity(rest.len() + 1);
    if let Some(going) = going {
        match &mut stmt {
            Stmt::Expr(Expr::Verbatim(_), _) => match going {
                // Names of the arm would shadow names that the rest uses.
                Expr::Block(b) if b.label.is_none() && !b.block.stmts.iter().any(declares) => {
                    let mut own = b.block.stmts;
                    if let Some(Stmt::Expr(last, semi @ None)) = own.last_mut()
                        && !is_structured(last)
                    {
                        *semi = Some(Token![;](last.span()));
                    }
                    stmts.extend(own);
                }
                other => stmts.push(Stmt::Expr(other, None)),
            },
            other => {
                *value_of(other).expect("the statement has an `if`") = going;
                stmts.push(stmt);
            }
        }
    }
    stmts.extend(rest);
    e.then_branch = jumping;
    e.else_branch = Some((else_token, Box::new(block_expr(Block { brace_token: Default::default(), stmts }))));
    e
}

fn declares(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Local(_) | Stmt::Item(_) | Stmt::Macro(_))
}

fn block_of(e: Expr) -> Block {
    match e {
        Expr::Block(b) if b.label.is_none() && b.attrs.is_empty() => b.block,
        e => Block { brace_token: Default::default(), stmts: vec![Stmt::Expr(e, None)] },
    }
}

fn block_expr(block: Block) -> Expr {
    Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block })
}

/// Returns whether a condition has a `let` in its `&&` chain.
pub(super) fn has_let(cond: &Expr) -> bool {
    match cond {
        Expr::Let(_) => true,
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// Returns whether a block certainly jumps out of itself.
pub(super) fn block_jumps(block: &Block) -> bool {
    block.stmts.iter().any(|stmt| match stmt {
        Stmt::Local(Local { init: Some(init), .. }) => expr_jumps(&init.expr),
        Stmt::Expr(e, _) => expr_jumps(e),
        _ => false,
    })
}

/// Returns whether an expression certainly jumps out of itself.
pub(super) fn expr_jumps(e: &Expr) -> bool {
    match e {
        Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => true,
        Expr::Block(b) => b.label.is_none() && block_jumps(&b.block),
        Expr::If(e) => block_jumps(&e.then_branch) && e.else_branch.as_ref().is_some_and(|(_, e)| expr_jumps(e)),
        Expr::Match(m) => !m.arms.is_empty() && m.arms.iter().all(|arm| expr_jumps(&arm.body)),
        Expr::Paren(e) => expr_jumps(&e.expr),
        _ => false,
    }
}

/// The existence of jumps that leave a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Jumps {
    /// Whether there is a jump.
    pub(super) any: bool,
    /// Whether there is one inside a construct that may be staged, for example an `if`.
    pub(super) under_construct: bool,
}

impl Jumps {
    /// Returns the jumps that leave a statement.
    pub(super) fn leaving(stmt: &Stmt) -> Jumps {
        let mut find = FindJumps::default();
        find.visit_stmt(stmt);
        find.found
    }

    /// Returns the jumps that leave an expression that is not in canonical form yet.
    fn leaving_expr(e: &Expr) -> Jumps {
        let mut find = FindJumps { before: true, ..FindJumps::default() };
        find.visit_expr(e);
        find.found
    }

    /// Returns the jumps in the body of a loop that end the loop.
    pub(super) fn ending_loop(body: &Block, label: Option<&Label>) -> Jumps {
        let mut find = FindJumps::default();
        find.continues.extend(label.map(|l| l.name.ident.to_string()));
        find.in_loop_body = true;
        find.visit_block(body);
        find.found
    }

    /// Returns whether a `break` in the body of a loop ends this very loop.
    pub(super) fn breaks_loop(body: &Block, label: Option<&Label>) -> bool {
        let mut find = FindJumps { only_own_break: true, in_loop_body: true, ..FindJumps::default() };
        find.own = label.map(|l| l.name.ident.to_string());
        find.visit_block(body);
        find.found.any
    }
}

/// Returns whether a `break` in statements provides the value of the enclosing labeled block.
pub(super) fn give_value(stmts: &[Stmt], block: &str) -> bool {
    struct FindValue<'b>(&'b str, bool);
    impl<'a> Visit<'a> for FindValue<'_> {
        fn visit_expr_break(&mut self, b: &'a ExprBreak) {
            self.1 |= b.expr.is_some() && b.label.as_ref().is_some_and(|label| label.ident == self.0);
            visit::visit_expr_break(self, b);
        }
        fn visit_expr_closure(&mut self, _: &'a ExprClosure) {}
        fn visit_item(&mut self, _: &'a Item) {}
    }
    let mut find = FindValue(block, false);
    stmts.iter().for_each(|stmt| find.visit_stmt(stmt));
    find.1
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

/// A `match` on numbers, in which each arm has at most one condition.
struct Switch {
    m: ExprMatch,
}

impl Switch {
    /// Takes the `match` out of an expression if it is on numbers and its last arm always matches.
    fn of(e: &mut Expr) -> Option<Switch> {
        let Expr::Match(m) = e else {
            return None;
        };
        let mut tests = 0;
        let last = m.arms.len().checked_sub(1)?;
        let on_bool = is_match_on_bool(m);
        let of = numbers(&m.expr);
        for (i, arm) in m.arms.iter().enumerate() {
            let (pat, guard) = unguarded(&arm.pat);
            let has_test = has_test(pat, of.as_ref())?;
            tests += usize::from(has_test);
            let always = guard.is_none() && (!has_test || on_bool);
            // A value that is not a number may be moved into a name, which a guard would do twice.
            let moves_twice = guard.is_some() && of.as_ref().is_some_and(|of| may_move(pat, of, &m.arms));
            if !arm.attrs.iter().all(is_kept)
                || moves_twice
                || (i == last && !always)
                || (i != last && !has_test && guard.is_none())
            {
                return None;
            }
        }
        if tests == 0 || !m.attrs.iter().all(is_kept) {
            return None;
        }
        match std::mem::replace(e, Expr::Verbatim(Default::default())) {
            Expr::Match(m) => Some(Switch { m }),
            _ => unreachable!("the expression is a `match`"),
        }
    }

    /// Returns `let matched = scrutinee;` and the chain of `if`s.
    fn build(mut self, matched: Ident) -> (Stmt, Chain) {
        let mut attrs = std::mem::take(&mut self.m.attrs);
        let scrutinee = &*self.m.expr;
        let declaration = parse_quote!(let #matched = #scrutinee;);
        let matched: Expr = parse_quote!(#matched);
        let mut chain = Chain { arms: Vec::with_capacity(self.m.arms.len()), last: None };
        let last = self.m.arms.len() - 1;
        for (i, arm) in self.m.arms.into_iter().enumerate() {
            let (pat, guard) = unguarded(&arm.pat);
            let names = names(pat, &matched, guard.is_some());
            let mut block = block_of(under_attributes(arm.attrs, *arm.body));
            block.stmts.splice(0..0, names.clone());
            if i == last {
                chain.last = Some(block_expr(block));
                break;
            }
            let mut cond = test(pat, &matched);
            if let Some(guard) = guard {
                let guard: Expr = parse_quote!({ #(#names)* #guard });
                cond = Some(match cond {
                    Some(cond) => parse_quote!(#cond && #guard),
                    None => guard,
                });
            }
            chain.arms.push(ExprIf {
                attrs: std::mem::take(&mut attrs),
                if_token: Token![if](pat.span()),
                cond: Box::new(cond.expect("all arms but the last have a condition")),
                then_branch: block,
                else_branch: None,
            });
        }
        (declaration, chain)
    }
}

/// Returns whether an attribute of a `match` or an arm keeps its effect on the resulting `if`. An
/// attribute that removes code does not, because it is applied after the expansion.
fn is_kept(attr: &Attribute) -> bool {
    !["cfg", "cfg_attr"].iter().any(|name| attr.path().is_ident(name))
}

/// Returns the body of an arm under its attributes, which are allowed only on a statement.
fn under_attributes(attrs: Vec<Attribute>, body: Expr) -> Expr {
    if attrs.is_empty() {
        return body;
    }
    let name = emit::helper("arm", 0, body.span());
    parse_quote!({ #(#attrs)* let #name = #body; #name })
}

fn unguarded(pat: &Pat) -> (&Pat, Option<&Expr>) {
    match pat {
        Pat::Guard(g) => (&g.pat, Some(&g.guard)),
        pat => (pat, None),
    }
}

/// Returns whether this is `match b { true => .., false => .. }`.
fn is_match_on_bool(m: &ExprMatch) -> bool {
    let value = |pat: &Pat| match pat {
        Pat::Lit(ExprLit { lit: Lit::Bool(b), .. }) => Some(b.value),
        _ => None,
    };
    match &m.arms[..] {
        [a, b] => matches!((value(&a.pat), value(&b.pat)), (Some(a), Some(b)) if a != b),
        _ => false,
    }
}

fn is_number(e: &Expr) -> bool {
    match e {
        Expr::Lit(ExprLit { lit: Lit::Int(_) | Lit::Float(_), .. }) => true,
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => is_number(expr),
        _ => false,
    }
}

/// Returns the matched tuple, if it is written as one.
fn numbers(matched: &Expr) -> Option<ExprTuple> {
    match matched {
        Expr::Tuple(t) => Some(t.clone()),
        Expr::Paren(e) => numbers(&e.expr),
        _ => None,
    }
}

/// Returns the constant that a pattern names, by Rust's naming convention.
///
/// Constants are in capitals, whereas enum variants and bound names have lower-case letters. A
/// single capital after the name of a type is a variant, unless it is in parentheses: see
/// [`constants`].
fn constant(pat: &Pat) -> Option<Expr> {
    let in_capitals = |name: &Ident| {
        let name = name.to_string();
        name.starts_with(char::is_uppercase) && !name.contains(char::is_lowercase)
    };
    match pat {
        Pat::Paren(p) => match &*p.pat {
            Pat::Path(p) => Some(Expr::Path(p.clone())),
            _ => None,
        },
        Pat::Ident(PatIdent { by_ref: None, mutability: None, subpat: None, ident, .. }) => {
            in_capitals(ident).then(|| parse_quote!(#ident))
        }
        Pat::Path(p) => {
            let mut segments = p.path.segments.iter().rev();
            let name = &segments.next()?.ident;
            let of_type = p.qself.is_some()
                || segments
                    .next()
                    .is_some_and(|s| s.ident != "Self" && s.ident.to_string().starts_with(char::is_uppercase));
            let is_variant = of_type && name.to_string().chars().count() == 1;
            (in_capitals(name) && !is_variant).then(|| Expr::Path(p.clone()))
        }
        _ => None,
    }
}

/// Returns whether a pattern over numbers contains a literal, so that it matches nothing else.
fn shows_number(pat: &Pat) -> bool {
    struct Find(bool);
    impl<'a> Visit<'a> for Find {
        fn visit_pat(&mut self, pat: &'a Pat) {
            self.0 |= matches!(pat, Pat::Lit(_) | Pat::Range(_));
            visit::visit_pat(self, pat);
        }
    }
    let mut find = Find(false);
    find.visit_pat(pat);
    find.0 && has_test(pat, None) == Some(true)
}

/// Returns whether a pattern over numbers tests anything, or `None` for other patterns. `of` is the
/// matched value if it is a tuple.
fn has_test(pat: &Pat, of: Option<&ExprTuple>) -> Option<bool> {
    match pat {
        Pat::Lit(ExprLit { lit: Lit::Int(_) | Lit::Float(_) | Lit::Bool(_), .. }) => of.is_none().then_some(true),
        Pat::Range(r) => {
            // The ends of a range are constants.
            let ends = [&r.start, &r.end].into_iter().flatten();
            let mut ends = ends.map(|e| is_number(e) || matches!(**e, Expr::Path(_)));
            (of.is_none() && ends.all(|fits| fits)).then_some(true)
        }
        _ if constant(pat).is_some() => of.is_none().then_some(true),
        Pat::Or(or) => or.cases.iter().all(|p| has_test(p, of) == Some(true) && !binds(p)).then_some(true),
        Pat::Paren(p) => has_test(&p.pat, of),
        Pat::Wild(_) => Some(false),
        Pat::Tuple(p) => {
            let of = of.filter(|of| of.elems.len() == p.elems.len())?;
            p.elems.iter().zip(&of.elems).try_fold(false, |any, (p, e)| Some(has_test(p, numbers(e).as_ref())? || any))
        }
        Pat::Ident(PatIdent { by_ref: None, mutability: None, ident, subpat, .. }) => {
            let is_variable = ident.to_string().starts_with(|c: char| c.is_lowercase() || c == '_');
            match subpat {
                Some((_, p)) => has_test(p, of).filter(|_| is_variable && !binds(p)),
                None => is_variable.then_some(false),
            }
        }
        _ => None,
    }
}

/// Returns whether a pattern binds an item of a matched tuple that no pattern shows to be a number.
fn may_move(pat: &Pat, of: &ExprTuple, arms: &[Arm]) -> bool {
    let is_number = |i: usize| {
        arms.iter().any(|arm| match unguarded(&arm.pat).0 {
            Pat::Tuple(p) => p.elems.len() == of.elems.len() && has_test(&p.elems[i], None) == Some(true),
            _ => false,
        })
    };
    match pat {
        Pat::Tuple(p) => p.elems.iter().enumerate().any(|(i, p)| binds(p) && !is_number(i)),
        pat => binds(pat),
    }
}

/// Returns the names that a pattern over numbers binds, and their values.
fn bound<'a>(pat: &'a Pat, matched: &Expr) -> Vec<(&'a Ident, Expr)> {
    match pat {
        _ if constant(pat).is_some() => Vec::new(),
        Pat::Ident(p) => vec![(&p.ident, matched.clone())],
        Pat::Paren(p) => bound(&p.pat, matched),
        Pat::Tuple(p) => p.elems.iter().enumerate().flat_map(|(i, p)| bound(p, &item(matched, i))).collect(),
        _ => Vec::new(),
    }
}

/// Returns whether a pattern over numbers binds a name.
fn binds(pat: &Pat) -> bool {
    !bound(pat, &parse_quote!(matched)).is_empty()
}

/// Returns an item of a tuple.
fn item(matched: &Expr, i: usize) -> Expr {
    let i = Index::from(i);
    parse_quote!(#matched.#i)
}

/// Returns the bindings of the names of a pattern over numbers.
fn names(pat: &Pat, matched: &Expr, in_guard: bool) -> Vec<Stmt> {
    let bind = |(name, value): (&Ident, Expr)| match in_guard {
        false => parse_quote!(let #name = #value;),
        // The name is bound twice and may be used once.
        true => parse_quote!(#[allow(unused_variables)] let #name = #value;),
    };
    bound(pat, matched).into_iter().map(bind).collect()
}

/// Returns the condition that a pattern over numbers tests.
fn test(pat: &Pat, matched: &Expr) -> Option<Expr> {
    let at = pat.span();
    let mut matched = matched.clone();
    if let Expr::Path(p) = &mut matched
        && let Some(name) = p.path.segments.first_mut()
    {
        name.ident.set_span(name.ident.span().located_at(at));
    }
    if let Some(constant) = constant(pat) {
        let eq = Token![==](at);
        return Some(parse_quote!(#matched #eq #constant));
    }
    match pat {
        Pat::Lit(ExprLit { lit: Lit::Bool(b), .. }) if b.value => Some(matched),
        Pat::Lit(ExprLit { lit: Lit::Bool(_), .. }) => Some(parse_quote!(!#matched)),
        Pat::Lit(lit) => {
            let eq = Token![==](at);
            Some(parse_quote!(#matched #eq #lit))
        }
        Pat::Range(r) => {
            let (ge, lt, le) = (Token![>=](at), Token![<](at), Token![<=](at));
            let start = r.start.as_ref().map(|e| -> Expr { parse_quote!((#matched #ge #e)) });
            let end = r.end.as_ref().map(|e| -> Expr {
                match r.limits {
                    RangeLimits::HalfOpen(_) => parse_quote!((#matched #lt #e)),
                    RangeLimits::Closed(_) => parse_quote!((#matched #le #e)),
                }
            });
            match (start, end) {
                (Some(a), Some(b)) => Some(parse_quote!(#a & #b)),
                (a, b) => a.or(b),
            }
        }
        Pat::Or(or) => {
            let tests = or.cases.iter().filter_map(|p| test(p, &matched));
            tests.reduce(|a, b| parse_quote!((#a) | (#b)))
        }
        Pat::Paren(p) => test(&p.pat, &matched),
        Pat::Tuple(p) => {
            let tests = p.elems.iter().enumerate().filter_map(|(i, p)| test(p, &item(&matched, i)));
            tests.reduce(|a, b| parse_quote!((#a) & (#b)))
        }
        Pat::Ident(p) => p.subpat.as_ref().and_then(|(_, p)| test(p, &matched)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    #[track_caller]
    fn check(before: &str, after: &str) {
        let mut block: Block = parse_str(before).unwrap();
        canonical(&parse_quote!(fn f(x: Tensor<i32>)), &mut block);
        let expected: Block = parse_str(after).unwrap();
        let text = |b: &Block| b.to_token_stream().to_string().replace(' ', "");
        assert_eq!(text(&block), text(&expected));
    }

    #[test]
    fn what_follows_a_jump_moves_into_the_other_arm() {
        check("{ if c { return 1; } f(); 2 }", "{ if c { return 1; } else { f(); 2 } }");
        check("{ if c { f() } else { break } g(); }", "{ if !(c) { break } else { f(); g(); } }");
        check(
            "{ let x = if c { 1 } else { continue }; f(x) }",
            "{ if !(c) { continue } else { let x = { 1 }; f(x) } }",
        );
        check(
            "{ if a { return 1; } else if b { return 2; } f() }",
            "{ if a { return 1; } else { if b { return 2; } else { f() } } }",
        );
    }

    #[test]
    fn what_does_not_certainly_jump_stays() {
        for same in [
            "{ if c { if d { break; } } f(); }",
            "{ if let Some(x) = y { return x; } f() }",
            "{ if c { return 1; } else { return 2; } }",
            "{ while c { if d { break; } } f() }",
        ] {
            check(same, same);
        }
    }

    #[test]
    fn names_of_an_arm_do_not_hide_those_of_the_rest() {
        check(
            "{ if c { return 1; } else { let x = 2; f(x); } x }",
            "{ if c { return 1; } else { { let x = 2; f(x); } x } }",
        );
    }

    #[test]
    fn a_value_with_a_jump_is_assigned_after_it() {
        check(
            "{ x += if a { if b { break; } 1 } else { 2 }; f(); }",
            "{ let __value1 = if a { if b { break; } else { 1 } } else { 2 }; x += __value1; f(); }",
        );
    }

    #[test]
    fn a_match_on_numbers_is_a_chain() {
        check(
            "{ match n { 0 | 1 => a, 2..=5 => b, k if k > 9 => c, k => d(k) } }",
            "{ let __matched1 = n; if (__matched1 == 0) | (__matched1 == 1) { a } \
             else if (__matched1 >= 2) & (__matched1 <= 5) { b } \
             else if { #[allow(unused_variables)] let k = __matched1; k > 9 } { #[allow(unused_variables)] let k = __matched1; c } else { let k = __matched1; d(k) } }",
        );
        check("{ match b { true => 1, false => 2 } }", "{ let __matched1 = b; if __matched1 { 1 } else { 2 } }");
        let same = "{ match x { Some(1) => a, _ => b } }";
        check(same, same);
        check(
            "{ match (n, f(m)) { (0, 1..MAX) => a, (k, _) => b(k) } }",
            "{ let __matched1 = (n, f(m)); if (__matched1.0 == 0) & ((__matched1.1 >= 1) & (__matched1.1 < MAX)) { a } \
             else { let k = __matched1.0; b(k) } }",
        );
        check(
            "{ match n { A | Self::B => a, consts::C => b, i32::MAX => c, _ => d } }",
            "{ let __matched1 = n; if (__matched1 == A) | (__matched1 == Self::B) { a } \
             else if __matched1 == consts::C { b } else if __matched1 == i32::MAX { c } else { d } }",
        );
        // Such a `match` accepts only host values.
        let host = "{ match (::anabranch::__rt::host_number(n), s) { (0, Kind::A) => a, (1, _) => b, _ => c } }";
        check("{ match (n, s) { (0, Kind::A) => a, (1, _) => b, _ => c } }", host);
        let host = "{ match ::anabranch::__rt::host_number(n) { 0 => a, Max => b, _ => c } }";
        check("{ match n { 0 => a, Max => b, _ => c } }", host);
        let same = "{ match n { A => a, B => b } }";
        check(same, same);
    }

    #[test]
    fn a_let_of_numbers_is_a_condition() {
        check(
            "{ if let k @ 0..=9 = n { a(k) } else if let 12 = n { b } else { c } }",
            "{ let __matched1 = n; if (__matched1 >= 0) & (__matched1 <= 9) { let k = __matched1; a(k) } \
             else { let __matched2 = n; if __matched2 == 12 { b } else { c } } }",
        );
        check("{ while let 3 = n { f(); } }", "{ while { let __matched1 = n; __matched1 == 3 } { f(); } }");
        check(
            "{ 'a: while let k @ 3.. = n { f(k); } }",
            "{ 'a: loop { let __matched1 = n; if (__matched1 >= 3) { let k = __matched1; f(k); } else { break } } }",
        );
        check(
            "{ let k @ 1.. = n else { return 0 }; f(k) }",
            "{ let __matched1 = n; if !((__matched1 >= 1)) { return 0 } else { let k = __matched1; f(k) } }",
        );
        for same in [
            "{ if let Some(0) = n { a } }",
            "{ while let Some(x) = v.pop() { f(x); } }",
            "{ let S(x) = y else { return }; x }",
        ] {
            check(same, same);
        }
    }

    #[test]
    fn jumps_that_leave() {
        let leaving = |text: &str| {
            let jumps = Jumps::leaving(&parse_str::<Block>(&format!("{{ {text} }}")).unwrap().stmts[0]);
            (jumps.any, jumps.under_construct)
        };
        assert_eq!(leaving("while a { break; }"), (false, false));
        assert_eq!(leaving("while a { return; }"), (true, true));
        assert_eq!(leaving("while a { while b { break 'x; } }"), (true, true));
        assert_eq!(leaving("'x: while a { while b { break 'x; } }"), (false, false));
        assert_eq!(leaving("let Some(x) = y else { continue };"), (true, false));
        assert_eq!(leaving("f(|| return 1);"), (false, false));
        let ending = |text: &str| Jumps::ending_loop(&parse_str(text).unwrap(), None).any;
        assert!(ending("{ if a { break; } }") && ending("{ return; }") && !ending("{ if a { continue; } }"));
        assert!(!ending("{ loop { break; } }"));
    }
}
