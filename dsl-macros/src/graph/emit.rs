//! The templates of the emitted code.
//!
//! Helper variables have mixed-site hygiene, so the user's code cannot see them. Code that is
//! emitted in place of a token has the location of that token, so that messages of the compiler and
//! of the tracer point to it.

use super::forms::bare;
use super::known::{is_cast_target, is_range};
use super::names::{self, helper, helper_span, label, label_of, rt};
use super::place::{Place, Places, Receiver, Written, typed};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprCall, ExprCast, ExprRange, ExprReference, Ident, Label, Lifetime, Pat, Path, RangeLimits,
    Token, Type,
};

/// Returns the site of a name.
fn site(at: Span, name: &str) -> TokenStream {
    let site = rt(at, "Site");
    quote_spanned!(at=> #site { name: #name, file: ::core::file!(), line: ::core::line!(), column: ::core::column!() })
}

/// Returns the guard at the start of a graph function.
pub(super) fn guard(name: &Ident) -> TokenStream {
    let at = name.span();
    let text = name.to_string();
    let (enter, site) = (rt(at, "enter"), site(at, &text));
    let guard = Ident::new("__guard", helper_span(at));
    quote_spanned!(helper_span(at)=> let #guard = #enter(#text, #site);)
}

/// Sets the bound of the loops of a function.
pub(super) fn bound_loops(max_iterations: &Expr) -> TokenStream {
    let at = max_iterations.span();
    let bound_loops = rt(at, "bound_loops");
    quote_spanned!(at=> #bound_loops(#max_iterations);)
}

/// Sets how many iterations of the loops of a function may run at once.
pub(super) fn overlap_loops(argument: &Path, parallel_iterations: &Expr) -> TokenStream {
    let at = argument.span();
    let (overlap_loops, site) = (rt(at, "overlap_loops"), site(at, "parallel_iterations"));
    quote_spanned!(at=> #overlap_loops(#parallel_iterations, #site);)
}

/// Names a parameter in the graph.
pub(super) fn name_param(param: &Ident) -> TokenStream {
    let (at, text) = (param.span(), param.to_string());
    let name_param = rt(at, "name_param");
    quote_spanned!(helper_span(at)=> #name_param(::anabranch::Tensor::untyped(#param), #text);)
}

/// Checks the shape of a parameter.
pub(super) fn expect_shape(param: &Ident, extents: &[TokenStream]) -> TokenStream {
    let (at, text) = (param.span(), param.to_string());
    let (expect, site) = (rt(at, "expect_shape"), site(at, &text));
    quote_spanned!(helper_span(at)=> #expect(::anabranch::Tensor::untyped(#param), #text, &[#(#extents),*], #site);)
}

/// The places that a construct carries, in the forms that its calls need.
pub(super) struct Carried {
    /// `(construct.place(&mut a), (construct.place(&mut b), ()))`
    places: TokenStream,
    /// The declaration of the variable for the sites.
    declaration: TokenStream,
    sites: TokenStream,
    /// The checks of places that are used but not carried.
    uses: Option<TokenStream>,
}

impl Carried {
    pub(super) fn new(places: &Places, used: &[Used], construct: &Ident, index: usize, at: Span) -> Carried {
        let uses = uses(used, construct, at);
        // The variable for the inferred kind of a place that may be modified.
        let changes = |i: usize, place: &Place| {
            let is_certain = place.is_certain() && places.around(place).next().is_none();
            (!is_certain).then(|| helper(&format!("changes{i}_"), index, place.written.span))
        };
        // The whole call has the hygiene of helpers, so that the compiler reports it at the user's
        // assignment.
        let calls = places.iter().enumerate().rev().fold(quote!(()), |rest, (i, place)| {
            let (at, borrow) = (helper_span(place.written.span), place.borrow());
            let mut construct = construct.clone();
            construct.set_span(at);
            let place = match changes(i, place) {
                None => quote_spanned!(at=> #construct.place(#borrow)),
                Some(changes) => {
                    let stays = Ident::new("__stays", at);
                    quote_spanned!(at=> #construct.place_if(#changes, match #construct.changes(#changes) {
                        ::core::option::Option::None => ::core::option::Option::None,
                        ::core::option::Option::Some(#stays) => {
                            #construct.change(#changes, #stays);
                            ::core::option::Option::Some(#borrow)
                        }
                    }))
                }
            };
            quote!((#place, #rest))
        });
        if places.is_empty() {
            return Carried { places: calls, declaration: TokenStream::new(), sites: quote!(&[]), uses };
        }
        let sites = places.iter().map(|p| site(p.written.span, &p.name()));
        let name = helper("sites", index, at);
        let ty = rt(at, "Site");
        let changing = changing(places, at, changes);
        let declaration = quote!(#changing let #name: &[#ty] = &[#(#sites),*];);
        Carried { places: calls, declaration, sites: quote!(#name), uses }
    }
}

/// Declares, for each place that may be modified, whether it is, as inferred from its types.
fn changing(places: &Places, at: Span, name: impl Fn(usize, &Place) -> Option<Ident>) -> Option<TokenStream> {
    let uncertain: Vec<_> = places.iter().enumerate().filter_map(|(i, place)| Some((place, name(i, place)?))).collect();
    if uncertain.is_empty() {
        return None;
    }
    let names = uncertain.iter().filter(|(place, _)| !place.is_certain()).map(|(_, name)| name);
    let found = uncertain.iter().filter_map(|(place, name)| {
        let (at, expr) = (helper_span(place.written.span), place.expr());
        let either = rt(at, "either");
        let kinds = place.receivers.iter().map(|receiver| receiver_kind(receiver, &expr, at));
        let kind = kinds.reduce(|a, b| quote_spanned!(at=> #either(#a, #b)))?;
        Some(quote!(#name = ::core::option::Option::Some(#kind);))
    });
    // Larger places come first: a part of a place that is modified is carried with it.
    let mut sorted = uncertain.clone();
    sorted.sort_by_key(|(place, _)| place.written.projections.len());
    let decided = sorted.iter().map(|(place, changes)| {
        let at = helper_span(place.written.span);
        let (found, unless) = (rt(at, "inferred_kind"), rt(at, "part_unless_whole"));
        let own = match place.is_certain() {
            false => quote_spanned!(at=> #found(#changes)),
            true => rt(at, "MaybeModified"),
        };
        let around = places.around(place).filter_map(|(i, p)| name(i, p));
        let kind = around.fold(own, |kind, around| quote_spanned!(at=> #unless(#around, #kind)));
        quote_spanned!(at=> let #changes = #kind;)
    });
    let checks = type_checks(at, found);
    Some(quote!(#(let mut #names = ::core::option::Option::None;)* #checks #(#decided)*))
}

/// Returns the receiver of a method as an expression that is valid before the enclosing construct.
pub(super) fn typed_receiver(receiver: &Expr, at: Span) -> TokenStream {
    let (at, indexed) = (helper_span(at), rt(at, "indexed"));
    typed(receiver, &|base| quote_spanned!(at=> #indexed(&#base).index()))
}

/// Returns the kind of a receiver: whether its type has methods of known names that leave it
/// unmodified.
fn receiver_kind(receiver: &Receiver, expr: &TokenStream, at: Span) -> TokenStream {
    let wrapper = match receiver {
        Receiver::Itself => rt(at, "Receiver"),
        Receiver::Item => rt(at, "ItemOf"),
        Receiver::OfTrait { method, of_trait, expr } => {
            let (by_trait, of_trait) = (rt(at, "by_trait"), rt(at, of_trait));
            let (decided, called) = (rt(at, "decided"), rt(at, "Called"));
            return quote_spanned!(at=> #decided(
                (&&&&#by_trait::<#of_trait, _>(&#expr)).kind(),
                (&#called(#expr.#method())).kind(),
            ));
        }
    };
    quote_spanned!(at=> (&&&&#wrapper(&#expr)).kind())
}

/// Returns code that is compiled but never run, so that it borrows nothing.
fn type_checks(at: Span, checks: impl Iterator<Item = TokenStream>) -> TokenStream {
    let at = helper_span(at);
    let (kinds, never) = (rt(at, "kinds"), rt(at, "never"));
    quote_spanned!(at=>
        #[allow(unreachable_code, unused_imports, unused_assignments, reason = "the types are checked, nothing is run")]
        if false {
            use #kinds::*;
            #never();
            #(#checks)*
        }
    )
}

/// A used place of a variable that is not known to be mutable.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) written: Written,
    /// The receiver, if the place is only used to call a method with a known name.
    pub(super) receiver: Option<Receiver>,
}

/// Returns the checks that the used places are not mutable references, located at each of them.
fn uses(used: &[Used], construct: &Ident, at: Span) -> Option<TokenStream> {
    let checks = used.iter().flat_map(|Used { written, receiver }| {
        let at = helper_span(written.span);
        let mut construct = construct.clone();
        construct.set_span(at);
        let used = rt(at, "Used");
        let prefixes = written.prefixes();
        let receiver = receiver.as_ref().map(|r| receiver_kind(r, &prefixes[prefixes.len() - 1], at));
        prefixes.into_iter().map(move |p| match &receiver {
            None => quote_spanned!(at=> #construct.uses((&#used(&#p)).kind());),
            Some(receiver) => quote_spanned!(at=> #construct.uses(((&#used(&#p)).kind(), #receiver));),
        })
    });
    (!used.is_empty()).then(|| type_checks(at, checks))
}

/// A variable declared by `let x;` that is initialized in the arms of an `if` or in the body of a
/// `loop`.
///
/// Each arm and iteration has its own variable, and the slot passes its value on.
pub(super) struct Deferred {
    pub(super) var: Ident,
    pub(super) is_mut: bool,
    /// The arms that initialize the variable.
    pub(super) given_in: [bool; 2],
    /// The arms whose value is not visible after the construct.
    pub(super) own: [bool; 2],
    /// The slot, or `None` if nothing after the construct uses the variable.
    pub(super) slot: Option<Ident>,
}

impl Deferred {
    /// Returns whether an arm has its own variable.
    ///
    /// Without a slot, the first arm that initializes the variable assigns the outer one, which
    /// gets its type from that.
    fn is_declared_in(&self, arm: usize) -> bool {
        let is_outer = arm == 0 || !self.given_in[0] || self.own[0];
        self.given_in[arm] && (self.slot.is_some() || self.own[arm] || !is_outer)
    }
}

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
    pub(super) construct: Ident,
    pub(super) index: usize,
    pub(super) at: Span,
    pub(super) condition: Expr,
    pub(super) arms: [Option<Arm>; 2],
    pub(super) deferred: Vec<Deferred>,
    pub(super) kind: Option<Ident>,
}

/// Returns an `if` up to its end, and the code after its end. `arm` emits each arm.
///
/// A host condition runs one arm, and the compiler knows that: the second arm follows the first
/// only if [`staged`] returns a value, which it cannot do for a host condition. A value may
/// therefore be moved in both arms.
///
/// [`staged`]: ../../../anabranch_dsl/staged/struct.If.html
fn if_parts(
    parts: IfParts,
    carried: Carried,
    values: Option<TokenStream>,
    arm: impl Fn(usize, Arm, &[Deferred]) -> TokenStream,
) -> (TokenStream, Carried, Option<TokenStream>) {
    let IfParts { construct, index, at, condition, arms, deferred, kind } = parts;
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
fn slots(deferred: &[Deferred], here: Span) -> (TokenStream, Option<TokenStream>) {
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

/// Returns the block of an arm with its own variables for the deferred ones. `value` is the
/// variable for the value of the arm.
fn arm_block(i: usize, arm: &Arm, deferred: &[Deferred], value: Option<&Ident>) -> TokenStream {
    let stmts = &arm.block.stmts;
    let declarations = deferred.iter().filter(|d| d.is_declared_in(i)).map(|d| {
        let (var, is_mut) = (&d.var, d.is_mut.then(|| quote!(mut)));
        quote!(#[allow(unused_mut, unused_assignments, reason = "it stands for the outer one")] let #is_mut #var;)
    });
    let given = deferred.iter().filter(|_| arm.ends).filter_map(|d| Some(pass_on(d.slot.as_ref()?, &d.var)));
    match value {
        None => quote!(#(#declarations)* { #(#stmts)* } #(#given)*),
        Some(value) => quote!(#(#declarations)* let #value = { #(#stmts)* }; #(#given)* #value),
    }
}

/// Puts the value of a deferred variable into its slot.
pub(super) fn pass_on(slot: &Ident, var: &Ident) -> TokenStream {
    quote_spanned!(helper_span(var.span())=> #slot.set(#var);)
}

/// Returns an `if` without a value.
pub(super) fn if_statement(parts: IfParts, carried: Carried) -> Expr {
    let (construct, at) = (parts.construct.clone(), parts.at);
    let (tokens, Carried { places, sites, .. }, given) = if_parts(parts, carried, None, |i, arm, deferred| {
        let label = arm.label.as_ref().map(|l| quote!(#l:));
        if deferred.is_empty() {
            let stmts = &arm.block.stmts;
            quote!(#label { #(#stmts)* })
        } else {
            let block = arm_block(i, &arm, deferred, None);
            quote!(#label { #block })
        }
    });
    let end = quote_spanned!(at=> #construct.end(#places, #sites););
    Expr::Verbatim(quote!({ #tokens #end #given }))
}

/// Returns an `if` with a value.
///
/// `expected` is its type if it is written nearby. If jumps leave its arms, `leave` continues after
/// the case that all arms that ran were left.
pub(super) fn if_value(parts: IfParts, carried: Carried, expected: Option<Type>, leave: Option<Expr>) -> Expr {
    let (construct, at) = (parts.construct.clone(), parts.at);
    let parts_index = parts.index;
    let value = helper("value", parts.index, at);
    let ty = expected.map(|ty| quote!(: ::anabranch::__rt::Values<#ty>));
    let values = quote_spanned!(helper_span(at)=> #construct.values());
    let values = quote!(let mut #value #ty = #values;);
    let given = helper("given", parts.index, at);
    let (tokens, Carried { places, sites, .. }, after) = if_parts(parts, carried, Some(values), |i, arm, deferred| {
        let label = arm.label.as_ref().map(|l| quote!(#l:));
        let field = Ident::new(["then", "otherwise"][i], Span::call_site());
        let has_value = arm.value != ArmValue::None;
        let block = match (arm.value, deferred.is_empty()) {
            (ArmValue::None, _) => {
                let block = arm_block(i, &without_dead_value(arm), deferred, None);
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
            let (end, ended) = (
                quote_spanned!(at=> #construct.end_unless_left(#places, #sites, #value)),
                helper("ended", parts_index, at),
            );
            quote!(match #end {
                ::core::option::Option::Some(#ended) => #ended,
                ::core::option::Option::None => #leave,
            })
        }
    };
    Expr::Verbatim(match after {
        None => quote!({ #tokens #end }),
        Some(after) => quote!({ #tokens let #value = #end; #after #value }),
    })
}

/// Discards the final value of an arm that jumps, because it is unreachable.
fn without_dead_value(mut arm: Arm) -> Arm {
    if arm.block.stmts.len() > 1
        && let Some(syn::Stmt::Expr(e, semi @ None)) = arm.block.stmts.last_mut()
    {
        *e = Expr::Verbatim(quote!(let _ = #e));
        *semi = Some(Default::default());
    }
    arm
}

/// Returns `Some` of the value of a block. The user's braces are dropped, so that no lint reports
/// them as unneeded.
fn some_block(block: &Block) -> TokenStream {
    match &block.stmts[..] {
        [syn::Stmt::Expr(e, None)] => some(e),
        stmts => quote!(::core::option::Option::Some({ #(#stmts)* })),
    }
}

/// Returns `Some(value)`, located at the value.
fn some(value: &Expr) -> TokenStream {
    let value = bare(value);
    quote_spanned!(value.span()=> ::core::option::Option::Some(#value))
}

/// Returns a condition with a check of its type.
fn checked_condition(at: Span, condition: &Expr) -> TokenStream {
    let (check, condition) = (rt(at, "condition"), bare(condition));
    quote_spanned!(at=> #check(#condition))
}

/// The parts of a `while`.
pub(super) struct WhileParts {
    pub(super) construct: Ident,
    pub(super) index: usize,
    pub(super) label: Option<Label>,
    pub(super) at: Span,
    pub(super) condition: Expr,
    /// Whether a jump leaves the condition through the label of the body.
    pub(super) leaves_condition: bool,
    /// The label of the body, if a jump leaves it.
    pub(super) body_label: Option<Lifetime>,
    /// The binding of the item, before the body.
    pub(super) item: Option<TokenStream>,
    pub(super) body: Block,
    pub(super) deferred: Vec<Deferred>,
    pub(super) kind: Option<Ident>,
}

impl WhileParts {
    pub(super) fn new(construct: Ident, index: usize, at: Span, condition: Expr, body: Block) -> WhileParts {
        let (label, body_label, item, deferred, kind) = (None, None, None, Vec::new(), None);
        let leaves_condition = false;
        WhileParts { construct, index, label, at, condition, leaves_condition, body_label, item, body, deferred, kind }
    }
}

/// Returns a `while`.
pub(super) fn while_loop(parts: WhileParts, carried: Carried) -> Expr {
    let WhileParts { construct, index, mut label, at, condition, leaves_condition, .. } = parts;
    let WhileParts { body_label, item, body, deferred, kind, .. } = parts;
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
            let name = label.get_or_insert_with(|| label_of(&names::label("loop", index, at))).name.clone();
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
pub(super) fn stopped_condition(
    construct: Ident,
    index: usize,
    at: Span,
    (kind, stop): (&Ident, &Ident),
    condition: Expr,
    carried: Carried,
) -> Expr {
    let Carried { places, declaration, sites, uses } = carried;
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
pub(super) fn for_loop(looping: &Ident, position: &Ident, at: Span, iterable: &Expr, expansion: &Expr) -> Expr {
    let (function, methods, iterable) = (rt(at, "looping"), rt(at, "Looping"), bare(iterable));
    let iterable = checked_iterable(iterable);
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

/// Returns a condition that must be of the host, with a check that it is a `bool`.
pub(super) fn host_bool(at: Span, condition: &Expr) -> Expr {
    let (host_bool, condition) = (rt(at, "host_bool"), bare(condition));
    syn::parse_quote_spanned!(at=> #host_bool(#condition))
}

/// Returns a condition that is of the host by the name of its method, with a check that it is a
/// `bool`.
pub(super) fn named_bool(at: Span, condition: &Expr) -> Expr {
    let named_bool = rt(at, "named_bool");
    syn::parse_quote_spanned!(at=> #named_bool(#condition))
}

/// Replaces `range(a..b)` by `range((a, b))`, because one end may be a tensor and the other a host
/// number.
pub(super) fn bounds(call: &mut ExprCall) {
    if !is_range(&call.func) || call.args.len() != 1 {
        return;
    }
    if let Some(Expr::Range(ExprRange { start: Some(start), limits, end: Some(end), .. })) = call.args.first() {
        let bounds = match limits {
            RangeLimits::HalfOpen(_) => quote!((#start, #end)),
            RangeLimits::Closed(_) => {
                let inclusive = rt(limits.span(), "Inclusive");
                quote!(#inclusive(#start, #end))
            }
        };
        call.args[0] = syn::parse_quote!(#bounds);
    }
}

/// Adds checks that the ends of a range are host numbers. Methods may be called on the range, as in
/// `(a..b).rev()`.
pub(super) fn host_ends(iterator: &mut Expr) {
    match iterator {
        Expr::MethodCall(m) => host_ends(&mut m.receiver),
        Expr::Paren(e) => host_ends(&mut e.expr),
        Expr::Range(range) => {
            for end in [&mut range.start, &mut range.end].into_iter().flatten() {
                if !matches!(**end, Expr::Lit(_)) {
                    let host_end = rt(end.span(), "host_end");
                    **end = syn::parse_quote_spanned!(end.span()=> #host_end(#end));
                }
            }
        }
        _ => {}
    }
}

/// Adds a check that the operand of `as` with a numeric type is not a tensor, unless it is a
/// literal.
pub(super) fn cast_operand(cast: &mut ExprCast) {
    fn is_literal(e: &Expr) -> bool {
        match e {
            Expr::Lit(_) => true,
            Expr::Unary(e) => is_literal(&e.expr),
            Expr::Paren(e) => is_literal(&e.expr),
            _ => false,
        }
    }
    if !is_literal(&cast.expr) && matches!(&*cast.ty, Type::Path(p) if p.qself.is_none() && is_cast_target(&p.path)) {
        let at = cast.as_token.span;
        let (operand, methods) = (rt(at, "CastOperand"), rt(at, "HostCast"));
        let (expr, ty) = (bare(&cast.expr), &cast.ty);
        *cast.expr = Expr::Verbatim(quote_spanned!(at=> ({
            #[allow(unused_imports, reason = "a tensor has the method itself")]
            use #methods as _;
            #operand(#expr).value::<#ty>()
        })));
    }
}

/// Returns the test for another item of a `for`.
pub(super) fn another(looping: &Ident, position: &Ident, at: Span) -> Expr {
    let methods = rt(at, "Looping");
    Expr::Verbatim(quote_spanned!(at=> #methods::test(&mut #looping, &#position)))
}

/// Binds the item of a `for`.
pub(super) fn item(looping: &Ident, position: &Ident, pat: &Pat, at: Span) -> TokenStream {
    let methods = rt(at, "Looping");
    let item = quote_spanned!(at=> #methods::item(&mut #looping, &mut #position));
    quote!(let #pat = #item;)
}

/// Declares the slot for the value of jumps.
pub(super) fn slot(name: &Ident, expected: Option<&Type>) -> TokenStream {
    let slot = rt(name.span(), "Slot");
    let ty = expected.map(|ty| quote!(: ::anabranch::__rt::Slot<#ty>));
    quote_spanned!(name.span()=> let mut #name #ty = #slot::new();)
}

/// Returns the variable for the kind of a construct.
pub(super) fn kind(construct: usize, at: Span) -> Ident {
    helper("kind", construct, at)
}

/// Returns the kind of host loops.
pub(super) fn host_kind(at: Span) -> TokenStream {
    let host_kind = rt(at, "host_kind");
    quote_spanned!(at=> #host_kind())
}

/// Declares the kinds of constructs and, if it has a name, a flag.
pub(super) fn flag(name: Option<&Ident>, declared: &[usize], kinds: &[usize], at: Span) -> TokenStream {
    let new = rt(at, "ConditionType");
    let declared = declared.iter().map(|&i| kind(i, at));
    let declared = quote_spanned!(at=> #(let #declared = #new::new();)*);
    let flag = name.map(|name| {
        let (flag, kinds) = (rt(at, "flag"), kinds_of(kinds, at));
        quote_spanned!(at=> let mut #name = #flag(#kinds);)
    });
    quote!(#declared #flag)
}

/// Infers a joined kind as that of the flag which the given kinds make.
pub(super) fn join_kinds(joined: usize, kinds: &[usize], at: Span) -> TokenStream {
    let (join, joined, kinds) = (rt(at, "join_kinds"), kind(joined, at), kinds_of(kinds, at));
    quote_spanned!(at=> #join(&#joined, #kinds);)
}

/// The maximum length of a list of kinds. The compiler recurses once for each member, and its
/// recursion is limited.
const MAX_KINDS: usize = 32;

/// Returns the list `(&a, (&b, ()))`.
///
/// If there are more than [`MAX_KINDS`], groups of them are joined:
/// `(&joined((&a, (&b, ()))), (&joined((&c, (&d, ()))), ()))`.
fn kinds_of(kinds: &[usize], at: Span) -> TokenStream {
    let mut members: Vec<TokenStream> = kinds.iter().map(|&i| kind(i, at).into_token_stream()).collect();
    let list = |members: &[TokenStream]| {
        let pair = |rest: TokenStream, member: &TokenStream| quote!((&#member, #rest));
        members.iter().rev().fold(quote!(()), pair)
    };
    while members.len() > MAX_KINDS {
        let joined = rt(at, "joined");
        let join = |members: &[TokenStream]| {
            let list = list(members);
            quote_spanned!(at=> #joined(#list))
        };
        members = members.chunks(MAX_KINDS).map(join).collect();
    }
    list(&members)
}

/// Raises a flag.
pub(super) fn raise(name: &Ident, at: Span) -> TokenStream {
    let raise = rt(at, "raise");
    quote_spanned!(at=> #raise(&mut #name);)
}

/// Returns the test whether a jump under constructs of these kinds has raised a flag.
pub(super) fn is_up(name: &Ident, kinds: &[usize]) -> Expr {
    let at = name.span();
    let (is_up, kinds) = (rt(at, "is_up"), kinds_of(kinds, at));
    Expr::Verbatim(quote_spanned!(at=> #is_up(#kinds, &#name)))
}

/// Returns the test whether a flag is down.
pub(super) fn is_down(name: &Ident) -> Expr {
    let is_down = rt(name.span(), "is_down");
    Expr::Verbatim(quote_spanned!(name.span()=> #is_down(&#name)))
}

/// Counts an iteration of a host loop that only a panic ends.
pub(super) fn count_endless(at: Span) -> syn::Stmt {
    let count = rt(at, "count_endless");
    syn::Stmt::Expr(Expr::Verbatim(quote_spanned!(at=> #count())), Some(Token![;](at)))
}

/// Returns the test whether a loop of this kind runs its body.
pub(super) fn unless_stopped(kind: TokenStream, stop: &Ident, at: Span) -> Expr {
    let guard = rt(at, "guard");
    Expr::Verbatim(quote_spanned!(helper_span(at)=> #guard(&#kind, &#stop)))
}

/// Returns `Some(value)`.
pub(super) fn some_of(value: &Ident) -> TokenStream {
    quote!(::core::option::Option::Some(#value))
}

/// Returns `None`.
pub(super) fn none() -> TokenStream {
    quote!(::core::option::Option::None)
}

/// Leaves an arm if its construct is staged, after `before`. `value` is the value of the arm, if
/// the construct has one.
pub(super) fn leave(
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
pub(super) fn fail(
    construct: &Ident,
    label: &Lifetime,
    at: Span,
    has_value: bool,
    message: &TokenStream,
) -> TokenStream {
    let fails = rt(at, "fails");
    leave(construct, label, at, has_value.then(none), quote_spanned!(at=> #fails(#message);))
}

/// Returns the message of a macro that panics.
pub(super) fn panic_message(name: &str, at: Span, tokens: &TokenStream) -> TokenStream {
    let prefix = match name {
        "todo" => "not yet implemented",
        "unimplemented" => "not implemented",
        "unreachable" => "internal error: entered unreachable code",
        _ => "explicit panic",
    };
    match (tokens.is_empty(), name) {
        (true, _) => message_from(at, prefix),
        (false, "panic") => message_of(at, tokens),
        (false, _) => {
            let (prefix, message) = (message_from(at, &format!("{prefix}: ")), message_of(at, tokens));
            quote!(#prefix.then(#message))
        }
    }
}

/// Returns a message with a fixed text.
fn message_from(at: Span, text: &str) -> TokenStream {
    let message = rt(at, "Message");
    quote!(#message::from(#text))
}

/// Returns a message from a format string and its arguments.
fn message_of(at: Span, tokens: &TokenStream) -> TokenStream {
    let message = rt(at, "message");
    quote_spanned!(at=> #message(::core::format_args!(#tokens)))
}

/// Returns code that is never reached.
pub(super) fn never(at: Span) -> TokenStream {
    quote_spanned!(at=> ::core::unreachable!("what certainly jumps does not come to its end"))
}

/// Returns the expansion of `left && right` or `left || right`.
pub(super) fn logical(construct: Ident, index: usize, op: &BinOp, sides: (Expr, Expr), carried: Carried) -> Expr {
    let (at, function) = match op {
        BinOp::And(t) => (t.spans[0], "and"),
        BinOp::Or(t) => (t.spans[0], "or"),
        _ => unreachable!("only `&&` and `||` are lazy"),
    };
    let (left, right) = sides;
    let Carried { places, declaration, sites, uses } = carried;
    let function = Ident::new(function, at);
    let value = helper("right", index, at);
    let logical = rt(at, "Logical");
    let left = checked_condition(at, &left);
    let right = some(&Expr::Verbatim(checked_condition(at, &right)));
    let new = quote_spanned!(at=> #logical::#function(#left));
    let call = quote_spanned!(at=> #construct.right(#places, #sites));
    let end = quote_spanned!(at=> #construct.end(#places, #sites, #value));
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        let mut #value = ::core::option::Option::None;
        #[allow(unreachable_code, reason = "an arm of the user may leave")]
        if #call { #value = #right; }
        #uses
        #end
    }})
}

/// Evaluates operands in order before an expression. Temporaries that they borrow live until the
/// end of the expression.
pub(super) fn with_operands(e: &mut Expr, operands: Vec<(Ident, Expr)>, is_statement: bool) {
    if operands.is_empty() {
        return;
    }
    let whole = operands
        .into_iter()
        .rev()
        .fold(quote!(#e), |inner, (name, operand)| quote!(match #operand { #name => #inner }));
    let mut whole = proc_macro2::Group::new(
        // A part of an expression must not look like a statement.
        if is_statement { proc_macro2::Delimiter::Brace } else { proc_macro2::Delimiter::Parenthesis },
        whole,
    );
    whole.set_span(Span::mixed_site());
    *e = Expr::Verbatim(quote!(#whole));
}

/// Returns a comparison.
pub(super) fn compare(at: Span, function: &str, left: &Expr, right: &Expr) -> Expr {
    let (compare, method) = (rt(at, "compare"), Ident::new(function, at));
    let (left, right) = (borrow(left), borrow(right));
    Expr::Verbatim(quote_spanned!(at=> #compare(#left, #right).#method()))
}

/// Returns `&expr`, with parentheses if needed.
fn borrow(expr: &Expr) -> Expr {
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](helper_span(expr.span())),
        mutability: None,
        expr: Box::new(expr.clone()),
    })
}

/// Returns the checks that a token is allowed in each of the given constructs.
///
/// The whole call has the hygiene of helpers, so that the compiler reports it at the token and not
/// at the attribute.
pub(super) fn checks<'a>(
    method: &'static str,
    at: Span,
    constructs: impl Iterator<Item = &'a Ident> + Clone,
) -> Option<TokenStream> {
    constructs.clone().next()?;
    let at = helper_span(at);
    let method = Ident::new(method, at);
    let checks = constructs.map(|c| {
        let mut construct = c.clone();
        construct.set_span(at);
        quote_spanned!(at=> #construct.#method();)
    });
    Some(quote!(#(#checks)*))
}

/// Returns the iterator of a `for` over host values.
pub(super) fn host_iter(at: Span, iterable: &Expr) -> Expr {
    let (function, iterable) = (rt(at, "host_iter"), bare(iterable));
    let iterable = checked_iterable(iterable);
    Expr::Verbatim(quote_spanned!(at=> #function(#iterable)))
}

/// Returns the iterable of a `for`, with a check that it is one unless its form shows that.
fn checked_iterable(iterable: &Expr) -> TokenStream {
    fn can(e: &Expr) -> bool {
        let is_literal = |e: &Option<Box<Expr>>| e.as_ref().is_none_or(|e| matches!(**e, Expr::Lit(_)));
        match e {
            Expr::Range(r) => is_literal(&r.start) && is_literal(&r.end),
            Expr::MethodCall(m) => can(&m.receiver),
            Expr::Paren(e) => can(&e.expr),
            Expr::Call(c) => is_range(&c.func),
            _ => false,
        }
    }
    if can(iterable) {
        return quote!(#iterable);
    }
    let check = rt(iterable.span(), "iterable");
    quote_spanned!(iterable.span()=> #check(#iterable))
}

/// Returns the expansion of `assert!`, or of `debug_assert!` if `debug` is true.
pub(super) fn assert(index: usize, at: Span, debug: bool, condition: &Expr, text: &str, message: &TokenStream) -> Expr {
    let assertion = helper("assert", index, at);
    let new = rt(at, "Assert");
    let condition = checked_condition(at, condition);
    let new = quote_spanned!(at=> #new::new(#condition));
    let message = if message.is_empty() {
        message_from(at, &format!("assertion failed: {text}"))
    } else {
        message_of(at, message)
    };
    let check = quote_spanned!(at=> #assertion.check(#message););
    let guard = debug.then(|| quote!(if ::core::cfg!(debug_assertions)));
    Expr::Verbatim(quote! {
        {
            #guard {
                let #assertion = #new;
                if #assertion.needs_message() { #check }
            }
        }
    })
}

/// Returns the expansion of `assert_eq!`, or of `assert_ne!` if `equal` is false. If `debug` is
/// true, it applies to debug builds only.
pub(super) fn assert_equality(
    index: usize,
    at: Span,
    (debug, equal): (bool, bool),
    [left, right]: &[Expr; 2],
    [left_text, right_text]: &[String; 2],
    message: &TokenStream,
) -> Expr {
    let [assertion, a, b] = ["assert", "left", "right"].map(|name| helper(name, index, at));
    let (new, sides) = (rt(at, "Assert"), rt(at, "Sides"));
    let (compare, check) = (rt(at, "compare"), rt(at, "condition"));
    let new = quote_spanned!(at=> #new::new(#check(#compare(#a, #b).eq())));
    let message = match message.is_empty() {
        true => quote!(::core::option::Option::None),
        false => {
            let message = message_of(at, message);
            quote!(::core::option::Option::Some(&|| #message))
        }
    };
    let sides = quote_spanned!(at=> #sides {
        equal: #equal,
        written: [#left_text, #right_text],
        values: [&#a, &#b],
        message: #message,
    });
    let call = quote_spanned!(at=> #assertion.check_equality(&#sides););
    let guard = debug.then(|| quote!(if ::core::cfg!(debug_assertions)));
    let (left, right) = (borrow(left), borrow(right));
    Expr::Verbatim(quote! {
        {
            #guard {
                match (#left, #right) {
                    (#a, #b) => {
                        let #assertion = #new;
                        #call
                    }
                }
            }
        }
    })
}

/// Returns the expansion of `print!` and similar macros. The arguments begin with the format
/// string.
pub(super) fn print(at: Span, error: bool, line: bool, arguments: &TokenStream) -> Expr {
    let (print, stream) = (rt(at, "print"), rt(at, "Stream"));
    let stream_name = Ident::new(if error { "Stderr" } else { "Stdout" }, at);
    let end = if line { "\n" } else { "" };
    let arguments = if arguments.is_empty() { quote!("") } else { arguments.clone() };
    Expr::Verbatim(quote_spanned!(at=> #print(#stream::#stream_name, ::core::format_args!(#arguments), #end)))
}

/// Returns the expansion of `dbg!(value)`. `written` is the source text of the value.
pub(super) fn dbg(at: Span, written: &TokenStream, value: &Expr) -> Expr {
    let (dbg, name) = (rt(at, "dbg"), Ident::new("__debugged", helper_span(at)));
    Expr::Verbatim(quote_spanned!(at=>
        match #value {
            #name => {
                #dbg(::core::stringify!(#written), &#name);
                #name
            }
        }
    ))
}

/// Returns the expansion of `dbg!()`.
pub(super) fn dbg_here(at: Span) -> Expr {
    let dbg_here = rt(at, "dbg_here");
    Expr::Verbatim(quote_spanned!(at=> #dbg_here()))
}
