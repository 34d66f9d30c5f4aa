//! Jumps, flags and slots.

use super::expressions::checks;
use super::output::ToRust;
use crate::graph::facts::{ArmExit, Exit, ExitEnd, ExitValue, FailedArm, FirstValue, JumpFacts, JumpFlag, LeftArm};
use crate::graph::names::{condition_type, helper_span, rt};
use crate::graph::tree::Jump;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Expr, Lifetime, Type};

/// Puts the value of a deferred variable into its slot.
pub(super) fn pass_on(slot: &Ident, var: &Ident) -> TokenStream {
    quote_spanned!(helper_span(var.span())=> #slot.set(#var);)
}

/// Declares the slot for the value of jumps.
pub(super) fn slot(name: &Ident, expected: Option<&Type>) -> TokenStream {
    let slot = rt(name.span(), "Slot");
    let ty = expected.map(|ty| quote!(: ::anabranch::__rt::Slot<#ty>));
    quote_spanned!(name.span()=> let mut #name #ty = #slot::new();)
}

/// Returns `{ declaration body }`, with the declaration of a slot.
pub(super) fn with_slot(name: &Ident, body: &Expr) -> Expr {
    let declaration = slot(name, None);
    Expr::Verbatim(quote!({ #declaration #body }))
}

/// Returns the condition type of host loops.
pub(super) fn host_kind(at: Span) -> TokenStream {
    let host_kind = rt(at, "host_kind");
    quote_spanned!(at=> #host_kind())
}

/// Declares a flag, unless an enclosing statement does, and the condition types that it needs.
pub(super) fn flag(flag: &JumpFlag) -> TokenStream {
    let (name, at) = (&flag.name, flag.name.span());
    let new = rt(at, "ConditionType");
    let declared = flag.declared.iter().map(|&i| condition_type(i, at));
    let declared = quote_spanned!(at=> #(let #declared = #new::new();)*);
    let variable = (!flag.is_shared).then(|| {
        let (new, types) = (rt(at, "flag"), types_of(&flag.types, at));
        quote_spanned!(at=> let mut #name = #new(#types);)
    });
    let joins = flag.joined.iter().map(|(joined, of)| join_types(*joined, of, at));
    quote!(#declared #variable #(#joins)*)
}

/// Infers a joined condition type as the type of a flag with the given condition types.
fn join_types(joined: usize, types: &[usize], at: Span) -> TokenStream {
    let (join, joined, types) = (rt(at, "join_kinds"), condition_type(joined, at), types_of(types, at));
    quote_spanned!(at=> #join(&#joined, #types);)
}

/// The maximum length of a list of condition types. The compiler recurses once for each member, and
/// its recursion is limited.
const MAX_TYPES: usize = 32;

/// Returns the list `(&a, (&b, ()))`.
///
/// If there are more than [`MAX_TYPES`], groups of them are joined:
/// `(&joined((&a, (&b, ()))), (&joined((&c, (&d, ()))), ()))`.
fn types_of(types: &[usize], at: Span) -> TokenStream {
    let mut members: Vec<TokenStream> = types.iter().map(|&i| condition_type(i, at).into_token_stream()).collect();
    let list = |members: &[TokenStream]| {
        let pair = |rest: TokenStream, member: &TokenStream| quote!((&#member, #rest));
        members.iter().rev().fold(quote!(()), pair)
    };
    while members.len() > MAX_TYPES {
        let joined = rt(at, "joined");
        let join = |members: &[TokenStream]| {
            let list = list(members);
            quote_spanned!(at=> #joined(#list))
        };
        members = members.chunks(MAX_TYPES).map(join).collect();
    }
    list(&members)
}

/// Raises a flag.
fn raise(name: &Ident, at: Span) -> TokenStream {
    let raise = rt(at, "raise");
    quote_spanned!(at=> #raise(&mut #name);)
}

/// Returns the test whether a jump has raised a flag.
pub(super) fn is_up(flag: &JumpFlag) -> Expr {
    let (name, at) = (&flag.name, flag.name.span());
    let (is_up, types) = (rt(at, "is_up"), types_of(&flag.types, at));
    Expr::Verbatim(quote_spanned!(at=> #is_up(#types, &#name)))
}

/// Returns the test whether a flag is down.
pub(super) fn is_down(name: &Ident) -> Expr {
    let is_down = rt(name.span(), "is_down");
    Expr::Verbatim(quote_spanned!(name.span()=> #is_down(&#name)))
}

/// Leaves an arm if its construct is staged, after `before`. `value` is the value of the arm, if
/// the construct has one.
fn leave(
    construct: &Ident,
    label: &Lifetime,
    at: Span,
    value: Option<TokenStream>,
    before: TokenStream,
) -> TokenStream {
    let here = helper_span(at);
    let (mut construct, mut label) = (construct.clone(), label.clone());
    construct.set_span(here);
    label.set_span(here);
    let stays = Ident::new("__stays", here);
    quote_spanned! {here=>
        if let ::core::option::Option::Some(#stays) = #construct.staged() {
            #before
            #construct.stay(#stays);
            break #label #value;
        }
    }
}

/// Fails the step and leaves an arm if its construct is staged.
pub(super) fn fail(arm: &FailedArm, at: Span, message: &TokenStream) -> TokenStream {
    let fails = rt(at, "fails");
    let value = arm.has_value.then(|| quote!(::core::option::Option::None));
    leave(&arm.construct, &arm.label, at, value, quote_spanned!(at=> #fails(#message);))
}

/// Returns code that is never reached.
fn never(at: Span) -> TokenStream {
    quote_spanned!(at=> ::core::unreachable!("what certainly jumps does not come to its end"))
}

/// Returns the way out of constructs.
pub(super) fn exit(exit: Exit) -> TokenStream {
    let Exit { at, arms, passed_on, end } = exit;
    let leave: TokenStream = arms.into_iter().map(|arm| leave_arm(arm, at)).collect();
    let passed_on = first_values(&passed_on);
    let value = |value: Option<ExitValue>| {
        value.map(|value| match value {
            ExitValue::Given(given) => given.into_token_stream(),
            ExitValue::Slot(slot) => quote_spanned!(at=> #slot.take()),
        })
    };
    let end = match end {
        ExitEnd::Sequence(label) => return quote_spanned!(at=> #leave #passed_on break #label;),
        ExitEnd::Return(result) => {
            let result = value(result);
            quote_spanned!(at=> return #result)
        }
        ExitEnd::Break(label, result) => {
            let result = value(result);
            quote_spanned!(at=> break #label #result)
        }
        ExitEnd::Continue(label) => quote_spanned!(at=> continue #label),
        ExitEnd::Never => never(at),
    };
    quote!(#leave #passed_on #end;)
}

/// Returns an exit as an expression.
pub(super) fn exit_block(of: Exit) -> Expr {
    let exit = exit(of);
    Expr::Verbatim(quote!({ #exit }))
}

fn leave_arm(arm: LeftArm, at: Span) -> TokenStream {
    let value = arm.value.map(|value| match value {
        ArmExit::Given(given) => quote!(::core::option::Option::Some(#given)),
        ArmExit::Slot(slot) => quote_spanned!(at=> #slot.taken()),
        ArmExit::Nothing => quote!(::core::option::Option::None),
    });
    leave(&arm.construct, &arm.label, at, value, first_values(&arm.passed_on))
}

fn first_values(values: &[FirstValue]) -> TokenStream {
    values.iter().map(|FirstValue { slot, var }| pass_on(slot, var)).collect()
}

impl ToRust for Jump {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (at, value) = (self.at, self.value.map(ToRust::emit));
        match self.facts.get() {
            JumpFacts::Wrong => Expr::Verbatim(never(at)),
            JumpFacts::Native(label) => with_label(self.syntax, label, value),
            JumpFacts::AtEnd { checks: constructs, given, exit: way } => {
                let checks = checks("allows_nested_jump", at, &constructs);
                let value = value.map_or_else(|| quote!(()), |value| value.into_token_stream());
                let leave = exit(way);
                Expr::Verbatim(quote!({ #checks let #given = #value; #leave }))
            }
            JumpFacts::Raising { checks: constructs, raised, slot, exit: way } => {
                let checks = checks("allows_nested_jump", at, &constructs);
                let given = slot.map(|slot| quote_spanned!(at=> #slot.set(#value);));
                let raise: TokenStream = raised.iter().map(|flag| raise(flag, at)).collect();
                let leave = exit(way);
                Expr::Verbatim(quote!({ #checks #given #raise #leave }))
            }
        }
    }
}

/// Returns a jump of Rust with its value, and with the label `needed`, if there is one.
fn with_label(mut jump: Expr, needed: Option<Lifetime>, value: Option<Expr>) -> Expr {
    let (label, of_jump) = match &mut jump {
        Expr::Break(b) => (Some(&mut b.label), Some(&mut b.expr)),
        Expr::Continue(c) => (Some(&mut c.label), None),
        Expr::Return(r) => (None, Some(&mut r.expr)),
        _ => (None, None),
    };
    if let (Some(label), Some(needed)) = (label, needed) {
        *label = Some(needed);
    }
    if let (Some(of_jump), Some(value)) = (of_jump, value) {
        *of_jump = Some(Box::new(value));
    }
    jump
}
