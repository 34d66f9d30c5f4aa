//! `if`s, and the guards around statements that a jump may skip.

use super::carried::Carried;
use super::code::with_attributes;
use super::expressions::{checked_condition, some};
use super::jumps::{exit_block, is_up, pass_on, slot};
use super::output::ToRust;
use crate::graph::facts::{Closed, Deferred, Exit, GuardFacts, IfEnd, IfFacts};
use crate::graph::names::{helper, helper_span, label, rt};
use crate::graph::tree::{IfExpr, Otherwise, StagedIfExpr};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Block, Expr, ExprBlock, ExprIf, Lifetime, Stmt, Type, parse_quote, token};

/// The form of an arm's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ArmValue {
    /// The arm has no value, or never reaches its end.
    None,
    /// The value is that of the block.
    Some,
    /// The block returns an `Option` of the value.
    Maybe,
}

impl ArmValue {
    pub(super) fn some_if(has_value: bool) -> ArmValue {
        if has_value { ArmValue::Some } else { ArmValue::None }
    }
}

/// An arm of an `if`.
pub(super) struct Arm {
    pub(super) block: Block,
    /// The label, if a jump leaves the arm.
    pub(super) label: Option<Lifetime>,
    /// The form of the value at the end of the arm, if the `if` has a value.
    pub(super) value: ArmValue,
    /// Whether the arm may reach its end.
    pub(super) ends: bool,
}

/// The parts of an `if`.
pub(super) struct IfParts {
    pub(super) closed: Box<Closed>,
    pub(super) condition: Expr,
    pub(super) arms: [Option<Arm>; 2],
}

/// Returns an `if` up to its end, and the code after its end. `arm` emits each arm.
///
/// A host condition runs only one arm, and the compiler sees this, because [`staged`] never returns
/// a value for a host condition. A value may therefore be moved in both arms.
///
/// [`staged`]: ../../../anabranch_dsl/staged/struct.If.html
fn if_parts(
    parts: IfParts,
    values: Option<TokenStream>,
    arm: impl Fn(usize, Arm, &[Deferred]) -> TokenStream,
) -> (TokenStream, Carried, Option<TokenStream>) {
    let IfParts { closed, condition, arms } = parts;
    let carried = Carried::new(&closed);
    let Closed { name: construct, index, at, deferred, condition_type: kind, .. } = *closed;
    let (places, sites) = (&carried.places, &carried.sites);
    let (new, condition, here) = (rt(at, "If"), checked_condition(at, &condition), helper_span(at));
    let new = quote_spanned!(at=> #new::new(#condition));
    let has_kind = kind.map(|kind| quote_spanned!(here=> #construct.has_kind(&#kind);));
    let done = label("done", index, at);
    let stays = Ident::new("__stays", here);
    let [then_arm, else_arm] = arms;
    let then_call = quote_spanned!(at=> #construct.then_arm(#places, #sites));
    let then_arm = then_arm.map(|a| arm(0, a, &deferred));
    let arms = match else_arm {
        None => quote!(if #then_call { #then_arm }),
        Some(else_arm) => {
            let else_call = quote_spanned!(at=> #construct.else_arm(#places, #sites));
            let else_arm = arm(1, else_arm, &deferred);
            let next = quote_spanned!(here=>
                match #construct.staged() {
                    ::core::option::Option::None => break #done,
                    ::core::option::Option::Some(#stays) => { #construct.stay(#stays); }
                }
            );
            quote!(#done: { if #then_call { #then_arm #next } if #else_call { #else_arm } })
        }
    };
    let (slots, given) = slots(&deferred, here);
    let (declaration, uses) = (&carried.declaration, &carried.uses);
    let tokens = quote! {
        #slots
        let mut #construct = #new;
        #has_kind
        #declaration
        #values
        #[allow(unreachable_code, reason = "an arm of the user may leave")]
        #arms
        #uses
    };
    (tokens, carried, given)
}

/// Returns the declarations of the slots of deferred variables, and the code that takes the values
/// out of them, if any.
pub(super) fn slots(deferred: &[Deferred], here: Span) -> (TokenStream, Option<TokenStream>) {
    let declarations = deferred.iter().filter_map(|d| d.slot.as_ref()).map(|name| slot(name, None)).collect();
    let given = deferred.iter().filter_map(|d| {
        let (var, slot) = (&d.var, d.slot.as_ref()?);
        Some(quote_spanned!(here=> #var = #slot.take();))
    });
    let given: TokenStream = given.collect();
    let given =
        (!given.is_empty()).then(|| quote!(#[allow(unused_assignments, reason = "it may not be read")] { #given }));
    (declarations, given)
}

/// Returns the block of an arm with its own copies of the deferred variables. `value` is the
/// variable for the value of the arm.
pub(super) fn arm_block(i: usize, arm: &Arm, deferred: &[Deferred], value: Option<&Ident>) -> TokenStream {
    let stmts = &arm.block.stmts;
    let declarations = deferred.iter().filter(|d| d.is_declared_in(i)).map(|d| {
        let (var, is_mut, ty) = (&d.var, d.is_mut.then(|| quote!(mut)), d.ty.as_ref().map(|ty| quote!(: #ty)));
        quote!(#[allow(unused_mut, unused_assignments, reason = "it stands for the outer one")] let #is_mut #var #ty;)
    });
    // An arm without a value for a variable panics.
    let given = deferred.iter().filter(|d| arm.ends && d.given_in[i]);
    let given = given.filter_map(|d| Some(pass_on(d.slot.as_ref()?, &d.var)));
    let block = match value {
        None => quote!(#(#declarations)* { #(#stmts)* } #(#given)*),
        Some(value) => quote!(#(#declarations)* let #value = { #(#stmts)* }; #(#given)* #value),
    };
    with_types_of_outer(block, i, deferred, value)
}

/// Appends assignments that are never reached to an arm that certainly jumps, so that the outer
/// variables have the types of the arm's own variables.
fn with_types_of_outer(block: TokenStream, i: usize, deferred: &[Deferred], value: Option<&Ident>) -> TokenStream {
    let typed: Vec<&Ident> = deferred.iter().filter(|d| d.is_type_of_outer(i)).map(|d| &d.var).collect();
    if typed.is_empty() {
        return block;
    }
    let own: Vec<Ident> = (0..).zip(&typed).map(|(i, var)| helper("own", i, var.span())).collect();
    match value {
        None => quote!(#(let #own;)* { #block #(#own = #typed;)* } #(#typed = #own;)*),
        Some(value) => quote! {
            #(let #own;)*
            let #value = { let #value = { #block }; #(#own = #typed;)* #value };
            #(#typed = #own;)*
            #value
        },
    }
}

/// Returns an `if`.
fn if_expr(parts: IfParts, end: IfEnd) -> TokenStream {
    match end {
        IfEnd::Statement => if_statement(parts),
        IfEnd::Value { expected, leave } => if_value(parts, expected.as_deref(), leave),
        IfEnd::Never(exit) => if_without_end(parts, exit),
    }
}

/// Returns an `if` that certainly jumps, and the exit after it.
///
/// If an arm ends with a value, the code has the type of that value.
fn if_without_end(parts: IfParts, exit: Exit) -> TokenStream {
    let exit = exit_block(exit);
    if parts.arms.iter().flatten().all(|arm| arm.value == ArmValue::None) {
        let statement = if_statement(parts);
        return quote!(#statement #exit);
    }
    let value = helper("value", parts.closed.index, parts.closed.at);
    let statement = if_statement(parts);
    quote! {
        let mut #value = ::core::option::Option::None;
        #statement
        match #value {
            ::core::option::Option::Some(#value) => #value,
            ::core::option::Option::None => #exit,
        }
    }
}

/// Returns an `if` without a value. The value at the end of an arm is assigned to a variable, which
/// the caller declares.
pub(super) fn if_statement(parts: IfParts) -> TokenStream {
    let (construct, index, at) = (parts.closed.name.clone(), parts.closed.index, parts.closed.at);
    let (value, given) = (helper("value", index, at), helper("given", index, at));
    let (tokens, Carried { places, sites, .. }, first_values) = if_parts(parts, None, |i, arm, deferred| {
        let label = arm.label.as_ref().map(|l| quote!(#l:));
        if arm.value != ArmValue::None {
            let block = arm_block(i, &arm, deferred, Some(&given));
            quote!(#label { #value = ::core::option::Option::Some({ #block }); })
        } else if deferred.is_empty() {
            let stmts = &arm.block.stmts;
            quote!(#label { #(#stmts)* })
        } else {
            let block = arm_block(i, &arm, deferred, None);
            quote!(#label { #block })
        }
    });
    let end = quote_spanned!(at=> #construct.end(#places, #sites););
    quote!({ #tokens #end #first_values })
}

/// Returns an `if` with a value.
///
/// `expected` is its type if it is written nearby. If jumps leave its arms, `leave` continues after
/// the case that all arms that ran were left.
fn if_value(parts: IfParts, expected: Option<&Type>, leave: Option<Exit>) -> TokenStream {
    let (construct, index, at) = (parts.closed.name.clone(), parts.closed.index, parts.closed.at);
    let value = helper("value", index, at);
    let ty = expected.map(|ty| quote!(: ::anabranch::__rt::Values<#ty>));
    let values = quote_spanned!(helper_span(at)=> #construct.values());
    let values = quote!(let mut #value #ty = #values;);
    let given = helper("given", index, at);
    let (tokens, Carried { places, sites, .. }, after) = if_parts(parts, Some(values), |i, arm, deferred| {
        let label = arm.label.as_ref().map(|l| quote!(#l:));
        let field = Ident::new(["then", "otherwise"][i], Span::call_site());
        let has_value = arm.value != ArmValue::None;
        let block = match (arm.value, deferred.is_empty()) {
            (ArmValue::None, _) => {
                let block = arm_block(i, &arm, deferred, None);
                quote!(#block ::core::option::Option::None)
            }
            (ArmValue::Maybe, _) => {
                let block = arm_block(i, &arm, deferred, Some(&given));
                quote!({ #block })
            }
            (ArmValue::Some, true) => some_block(&arm.block),
            (ArmValue::Some, false) => {
                let block = arm_block(i, &arm, deferred, Some(&given));
                quote!(::core::option::Option::Some({ #block }))
            }
        };
        match label {
            None if has_value => quote!(#value.#field = #block;),
            label => quote!(#value.#field = #label { #block };),
        }
    });
    let end = match leave {
        None => quote_spanned!(at=> #construct.end_value(#places, #sites, #value)),
        Some(leave) => {
            let leave = exit_block(leave);
            let (end, ended) =
                (quote_spanned!(at=> #construct.end_unless_left(#places, #sites, #value)), helper("ended", index, at));
            quote!(match #end {
                ::core::option::Option::Some(#ended) => #ended,
                ::core::option::Option::None => #leave,
            })
        }
    };
    match after {
        None => quote!({ #tokens #end }),
        Some(after) => quote!({ #tokens let #value = #end; #after #value }),
    }
}

/// Returns `Some` of the value of a block. The user's braces are dropped, so that no lint reports
/// them as unneeded.
fn some_block(block: &Block) -> TokenStream {
    match &block.stmts[..] {
        [syn::Stmt::Expr(e, None)] => some(e),
        stmts => quote!(::core::option::Option::Some({ #(#stmts)* })),
    }
}

impl ToRust for IfExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (condition, then) = (self.condition.emit(), self.then.emit());
        let otherwise = self.otherwise.map(ToRust::emit);
        match self.staged {
            Some(staged) => staged_if(&self.syntax, condition, then, otherwise, staged),
            None => host_if(self.syntax, condition, then, otherwise),
        }
    }
}

/// The code after `else`.
pub(super) enum Second {
    Block(Block),
    If { at: Span, e: Box<Expr> },
}

impl ToRust for Otherwise {
    type Output = Second;

    fn emit(self) -> Second {
        match self {
            Otherwise::Block(body) => Second::Block(body.emit()),
            Otherwise::If(inner) => Second::If { at: inner.syntax.if_token.span, e: Box::new(inner.emit()) },
        }
    }
}

fn staged_if(syntax: &ExprIf, condition: Expr, then: Block, otherwise: Option<Second>, staged: StagedIfExpr) -> Expr {
    let StagedIfExpr { jumps, facts, .. } = staged;
    let IfFacts { mut closed, has_value, end } = facts.get();
    let [then_label, else_label] = std::mem::take(&mut closed.labels);
    let arm = |i: usize, block: Block, label: Option<Lifetime>| Arm {
        block,
        label,
        value: ArmValue::some_if(has_value[i]),
        ends: !jumps[i],
    };
    let otherwise = otherwise.map(|otherwise| match otherwise {
        Second::Block(block) => block,
        Second::If { at, e } => Block { brace_token: token::Brace(at), stmts: vec![Stmt::Expr(*e, None)] },
    });
    let arms = [Some(arm(0, then, then_label)), otherwise.map(|block| arm(1, block, else_label))];
    let parts = IfParts { closed, condition, arms };
    let is_block = !matches!(end, IfEnd::Never(_));
    let expansion = if_expr(parts, end);
    with_attributes(&syntax.attrs, Expr::Verbatim(if is_block { expansion } else { quote!({ #expansion }) }))
}

/// Returns an `if` on a certain host value.
fn host_if(mut syntax: ExprIf, condition: Expr, then: Block, otherwise: Option<Second>) -> Expr {
    *syntax.cond = condition;
    syntax.then_branch = then;
    let block_expr = |block| Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block });
    if let (Some((_, branch)), Some(otherwise)) = (&mut syntax.else_branch, otherwise) {
        **branch = match otherwise {
            Second::Block(block) => block_expr(block),
            Second::If { e, .. } if matches!(*e, Expr::If(_)) => *e,
            Second::If { e, .. } => {
                block_expr(Block { brace_token: Default::default(), stmts: vec![Stmt::Expr(*e, None)] })
            }
        };
    }
    Expr::If(syntax)
}

/// Returns the guard around the statements after a statement that jumps leave.
pub(super) fn guarded(guard: GuardFacts, stmts: Vec<Stmt>) -> TokenStream {
    let GuardFacts { flag, mut closed, slot, rest_has_value, end } = guard;
    let brace = token::Brace(closed.at);
    let [_, label] = std::mem::take(&mut closed.labels);
    let left_value = if slot.is_some() { ArmValue::Maybe } else { ArmValue::None };
    // The slot is empty if tracing did not reach the jump.
    let left = slot.map(|slot| Stmt::Expr(parse_quote!(#slot.taken()), None));
    let left = Block { brace_token: brace, stmts: left.into_iter().collect() };
    let rest = Block { brace_token: brace, stmts };
    let arms = [
        // A variable that is initialized after the jump has no value here.
        Some(Arm { block: left, label: None, value: left_value, ends: false }),
        Some(Arm { block: rest, label, value: ArmValue::some_if(rest_has_value), ends: true }),
    ];
    if_expr(IfParts { closed, condition: is_up(&flag), arms }, end)
}
