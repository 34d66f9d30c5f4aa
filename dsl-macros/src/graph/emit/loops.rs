//! Loops.

use super::branches::{Arm, ArmValue, IfParts, arm_block, if_statement, slots};
use super::carried::Carried;
use super::code::with_attributes;
use super::expressions::checked_condition;
use super::jumps::{exit_block, flag, host_kind, is_down, slot};
use super::output::ToRust;
use crate::graph::facts::{
    Closed, FactCell, FlagLoopFacts, HostLoopFacts, LoopFacts, NeverValue, StagedLoopFacts, StopFacts,
};
use crate::graph::forms::bare;
use crate::graph::names::{condition_type, helper, helper_span, label as label_name, label_of, position, rt};
use crate::graph::tree::{For, HostLoopExpr, Loop, WhileExpr};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, ExprForLoop, ExprLoop, ExprWhile, Label, Pat, Stmt, Token};

/// The parts of a `while`.
struct WhileCode {
    closed: Box<Closed>,
    label: Option<Label>,
    condition: Expr,
    /// Whether a jump leaves the condition through the label of the body.
    leaves_condition: bool,
    /// The binding of the item, before the body.
    item: Option<TokenStream>,
    body: Block,
}

/// Returns a `while`.
fn while_parts(parts: WhileCode) -> Expr {
    let WhileCode { closed, mut label, condition, leaves_condition, item, body } = parts;
    let carried = Carried::new(&closed);
    let Closed { name: construct, index, at, labels: [body_label, _], deferred, condition_type: kind, .. } = *closed;
    let Carried { places, declaration, sites, uses } = carried;
    let test = helper("test", index, at);
    let new = rt(at, "While");
    let condition = checked_condition(at, &condition);
    let new = quote_spanned!(at=> #new::new());
    let has_kind = kind.map(|kind| quote_spanned!(helper_span(at)=> #construct.has_kind(&#kind);));
    let more = quote_spanned!(at=> #construct.more(#places, #sites));
    let test_call = quote_spanned!(at=> #construct.test(#test, #places, #sites));
    let body_label = body_label.map(|l| quote!(#l:));
    let (slots, given) = slots(&deferred, helper_span(at));
    let stmts = &body.stmts;
    let body = match (&body_label, &item, deferred.is_empty()) {
        (_, _, true) if leaves_condition => quote!({ #item #(#stmts)* }),
        (None, None, true) => quote!(#body),
        (_, _, true) => quote!(#body_label { #item #(#stmts)* }),
        (_, _, false) => {
            assert!(item.is_none(), "only a `loop` gives a variable its first value");
            let block =
                arm_block(0, &Arm { block: body, label: None, value: ArmValue::None, ends: true }, &deferred, None);
            quote!(#body_label { #block })
        }
    };
    let test = quote!(let #test = #condition;);
    let pass = match leaves_condition {
        false => quote!(#test if !#test_call { break; } #body),
        true => {
            let name = label.get_or_insert_with(|| label_of(&label_name("loop", index, at))).name.clone();
            quote!(#body_label { #test if !#test_call { break #name; } #body })
        }
    };
    Expr::Verbatim(quote! {{
        #slots
        let mut #construct = #new;
        #has_kind
        #declaration
        #[allow(unreachable_code, reason = "the body of the user may leave")]
        #label loop {
            if !#more { break; }
            #pass
        }
        #uses
        #given
    }})
}

/// Returns the condition of a loop that a flag may stop. The flag is tested first.
fn stopped_condition(head: &Closed, (kind, stop): (&Ident, &Ident), condition: Expr) -> Expr {
    let Closed { name: construct, index, at, .. } = head;
    let (index, at) = (*index, *at);
    let Carried { places, declaration, sites, uses } = Carried::new(head);
    let here = helper_span(at);
    let (value, tested) = (helper("right", index, at), helper("tested", index, at));
    let (logical, head) = (rt(at, "Logical"), rt(at, "head"));
    let condition = checked_condition(at, &condition);
    let new = quote_spanned!(here=> #logical::and(#head(&#kind, &#stop)));
    let call = quote_spanned!(here=> #construct.right(#places, #sites));
    let end = quote_spanned!(here=> #construct.end(#places, #sites, #value));
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        let mut #value = ::core::option::Option::None;
        if #call {
            let #tested = #condition;
            #kind.of(&#tested);
            #value = ::core::option::Option::Some(#tested);
        }
        #uses
        #end
    }})
}

/// Returns a `for`, given the expansion of its `while`.
fn for_loop(looping: &Ident, position: &Ident, at: Span, iterable: &TokenStream, expansion: &Expr) -> Expr {
    let (function, methods) = (rt(at, "looping"), rt(at, "Looping"));
    let start = quote_spanned!(at=> #function(#iterable));
    Expr::Verbatim(quote! {
        match #start {
            mut #looping => {
                #[allow(clippy::let_unit_value, reason = "a host iterator has no position")]
                let mut #position = #methods::start(&#looping);
                #expansion
            }
        }
    })
}

/// Returns the test whether a `for` has another item.
fn another(looping: &Ident, position: &Ident, at: Span) -> Expr {
    let methods = rt(at, "Looping");
    Expr::Verbatim(quote_spanned!(at=> #methods::test(&mut #looping, &#position)))
}

/// Binds the item of a `for`.
fn item(looping: &Ident, position: &Ident, pat: &Pat, at: Span) -> TokenStream {
    let methods = rt(at, "Looping");
    let item = quote_spanned!(at=> #methods::item(&mut #looping, &mut #position));
    quote!(let #pat = #item;)
}

/// Returns the iterable of a `for`, with a check of its type unless `is_iterable`.
fn checked_iterable(iterable: &Expr, is_iterable: bool) -> TokenStream {
    let iterable = bare(iterable);
    if is_iterable {
        return quote!(#iterable);
    }
    let check = rt(iterable.span(), "iterable");
    quote_spanned!(iterable.span()=> #check(#iterable))
}

/// Counts an iteration of a host loop that only a panic ends.
fn count_endless(at: Span) -> Stmt {
    let count = rt(at, "count_endless");
    Stmt::Expr(Expr::Verbatim(quote_spanned!(at=> #count())), Some(Token![;](at)))
}

/// Returns the test whether a loop of this kind runs its body.
fn unless_stopped(kind: TokenStream, stop: &Ident, at: Span) -> Expr {
    let guard = rt(at, "guard");
    Expr::Verbatim(quote_spanned!(helper_span(at)=> #guard(&#kind, &#stop)))
}

/// Puts the body of a loop into an `if` on the condition that the loop was not left.
fn guarded_body(mut guard: Box<Closed>, condition: Expr, body: Block) -> Block {
    let brace_token = body.brace_token;
    let [label, _] = std::mem::take(&mut guard.labels);
    let arms = [Some(Arm { block: body, label, value: ArmValue::None, ends: true }), None];
    let parts = IfParts { closed: guard, condition, arms };
    Block { brace_token, stmts: vec![Stmt::Expr(Expr::Verbatim(if_statement(parts)), None)] }
}

/// Returns a loop that becomes a staged `while`.
fn staged_while(facts: FactCell<LoopFacts>, condition: Expr, item: Option<TokenStream>, body: Block) -> Expr {
    let LoopFacts::Staged(facts) = facts.get() else { unreachable!("the condition is staged") };
    let StagedLoopFacts { closed, label, flag: own, stop, leaves_condition, .. } = facts;
    let (mut condition, mut body) = (condition, body);
    if let Some(StopFacts { name: stop, head, guard }) = stop {
        let kind = condition_type(closed.index, closed.at);
        let at = closed.at;
        body = guarded_body(guard, unless_stopped(kind.to_token_stream(), &stop, at), body);
        condition = stopped_condition(&head, (&kind, &stop), condition);
    }
    let parts = WhileCode { closed, label, condition, leaves_condition, item, body };
    after(own.as_ref().map(flag), while_parts(parts))
}

/// Returns the body of a host loop, its label, and the declarations before the loop.
fn host_body(facts: FactCell<LoopFacts>, mut body: Block) -> (Block, Option<Label>, Option<TokenStream>) {
    let LoopFacts::Host(facts) = facts.get() else { unreachable!("the loop is of the host") };
    let HostLoopFacts { label, flag: own, guard } = facts;
    if let Some((guard, stop)) = guard {
        let at = guard.at;
        body = guarded_body(guard, unless_stopped(host_kind(at), &stop, at), body);
    }
    (body, label, own.as_ref().map(flag))
}

impl ToRust for WhileExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (condition, body) = (self.condition.emit(), self.body.emit());
        with_attributes(&self.attrs, staged_while(self.facts, condition, None, body))
    }
}

impl ToRust for HostLoopExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (condition, body) = (self.condition.emit(), self.body.emit());
        host_while(self.syntax, self.facts, condition, body, self.is_endless)
    }
}

fn host_while(mut w: ExprWhile, facts: FactCell<LoopFacts>, condition: Expr, body: Block, is_endless: bool) -> Expr {
    *w.cond = condition;
    let declaration;
    (w.body, w.label, declaration) = host_body(facts, body);
    if is_endless {
        w.body.stmts.insert(0, count_endless(w.while_token.span));
    }
    after(declaration, Expr::While(w))
}

impl ToRust for For {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (iterable, body) = (self.iterable.emit(), self.body.emit());
        let (at, iterable) = (iterable.span(), checked_iterable(&iterable, self.is_iterable));
        match self.facts.peek() {
            LoopFacts::Host(_) => host_for(self.syntax, self.facts, (iterable, at), body),
            LoopFacts::Staged(facts) => {
                let index = facts.looping.expect("a `for` has a position");
                staged_for(&self.syntax, index, self.facts, &iterable, body)
            }
            LoopFacts::OnFlag(_) => unreachable!("only a `loop` is a loop on its flag"),
        }
    }
}

fn host_for(mut f: ExprForLoop, facts: FactCell<LoopFacts>, (iterable, at): (TokenStream, Span), body: Block) -> Expr {
    let declaration;
    (f.body, f.label, declaration) = host_body(facts, body);
    let iter = rt(at, "host_iter");
    *f.expr = Expr::Verbatim(quote_spanned!(at=> #iter(#iterable)));
    after(declaration, Expr::ForLoop(f))
}

fn staged_for(f: &ExprForLoop, index: usize, facts: FactCell<LoopFacts>, iterable: &TokenStream, body: Block) -> Expr {
    let at = f.for_token.span;
    let (looping, position) = (helper("looping", index, at), position(index, at));
    let item = item(&looping, &position, &f.pat, at);
    let expansion = staged_while(facts, another(&looping, &position, at), Some(item), body);
    with_attributes(&f.attrs, for_loop(&looping, &position, at, iterable, &expansion))
}

impl ToRust for Loop {
    type Output = Expr;

    fn emit(self) -> Expr {
        let body = self.body.emit();
        match self.facts.peek() {
            LoopFacts::Host(_) => host_loop(self.syntax, self.facts, body, self.is_endless),
            _ => loop_on_flag(&self.syntax, self.facts, body),
        }
    }
}

fn host_loop(mut l: ExprLoop, facts: FactCell<LoopFacts>, body: Block, is_endless: bool) -> Expr {
    (l.body, l.label, _) = host_body(facts, body);
    if is_endless {
        l.body.stmts.insert(0, count_endless(l.loop_token.span));
    }
    Expr::Loop(l)
}

/// Returns a `loop` that its flag ends.
fn loop_on_flag(l: &ExprLoop, facts: FactCell<LoopFacts>, body: Block) -> Expr {
    let at = l.loop_token.span;
    let LoopFacts::OnFlag(facts) = facts.get() else { unreachable!("a `loop` has no condition") };
    let FlagLoopFacts { closed, label, flag: own, stop, slot: used, never_ends } = facts;
    let declaration = own.as_ref().map(flag);
    let parts = WhileCode { closed, label, condition: is_down(&stop), leaves_condition: false, item: None, body };
    let expansion = while_parts(parts);
    let slot_declaration = used.as_ref().map(|(name, expected)| slot(name, expected.as_deref()));
    let taken = |slot: &Ident| Expr::Verbatim(quote_spanned!(at=> #slot.take()));
    let value = match (&used, never_ends) {
        (Some((slot, _)), _) => Some(taken(slot)),
        (None, None) => None,
        (None, Some(NeverValue::Slot(slot))) => Some(taken(&slot)),
        (None, Some(NeverValue::Exit(exit))) => Some(exit_block(exit)),
    };
    with_attributes(&l.attrs, Expr::Verbatim(quote!({ #slot_declaration #declaration #expansion #value })))
}

/// Returns `{ declaration loop }`.
fn after(declaration: Option<TokenStream>, expansion: Expr) -> Expr {
    match declaration {
        None => expansion,
        Some(declaration) => Expr::Verbatim(quote!({ #declaration #expansion })),
    }
}
