//! The places that a construct carries, and the checks of the places that it only uses.

use crate::graph::facts::{Closed, UsedPlace};
use crate::graph::names::{helper, helper_span, rt, site};
use crate::graph::place::{Place, Places, ReceiverExpr, typed};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Expr;

/// The places that a construct carries, as arguments of its calls.
pub(super) struct Carried {
    /// `(construct.place(&mut a), (construct.place(&mut b), ()))`
    pub(super) places: TokenStream,
    /// The declaration of the variable for the sites.
    pub(super) declaration: TokenStream,
    pub(super) sites: TokenStream,
    /// The checks of places that are used but not carried.
    pub(super) uses: Option<TokenStream>,
}

impl Carried {
    pub(super) fn new(closed: &Closed) -> Carried {
        let Closed { name: construct, index, at, places, used, .. } = closed;
        let (index, at) = (*index, *at);
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

/// Infers from types which of the places that may be modified are modified.
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
fn typed_receiver(receiver: &Expr, at: Span) -> TokenStream {
    let (at, indexed) = (helper_span(at), rt(at, "indexed"));
    typed(receiver, &|base| quote_spanned!(at=> #indexed(&#base).index()))
}

/// Returns the kind of a receiver: whether its type has methods of known names that leave it
/// unmodified.
fn receiver_kind(receiver: &ReceiverExpr, expr: &TokenStream, at: Span) -> TokenStream {
    let wrapper = match receiver {
        ReceiverExpr::Itself => rt(at, "Receiver"),
        ReceiverExpr::Item => rt(at, "ItemOf"),
        ReceiverExpr::OfTrait { method, of_trait, receiver } => {
            let expr = typed_receiver(receiver, method.span());
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

/// Returns the checks that the used places are not mutable references, located at each of them.
fn uses(used: &[UsedPlace], construct: &Ident, at: Span) -> Option<TokenStream> {
    let checks = used.iter().flat_map(|UsedPlace { expr: written, receiver, is_closure }| {
        let at = helper_span(written.span);
        let mut construct = construct.clone();
        construct.set_span(at);
        let used = rt(at, "Used");
        let prefixes = written.prefixes();
        let receiver = receiver.as_ref().map(|r| receiver_kind(r, &prefixes[prefixes.len() - 1], at));
        let closure = is_closure.then(|| rt(at, "MutReferences"));
        prefixes.into_iter().map(move |p| match &receiver {
            _ if closure.is_some() => quote_spanned!(at=> #construct.uses(#closure);),
            None => quote_spanned!(at=> #construct.uses((&#used(&#p)).kind());),
            Some(receiver) => quote_spanned!(at=> #construct.uses(((&#used(&#p)).kind(), #receiver));),
        })
    });
    (!used.is_empty()).then(|| type_checks(at, checks))
}
