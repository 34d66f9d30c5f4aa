//! The templates of the emitted code.
//!
//! Helper variables have mixed-site hygiene, so they cannot be seen by the user's code; what is emitted in place of a token
//! has that token's location, so that messages of the compiler and of the tracer point at it.

use super::place::{Places, Written};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Block, Expr, ExprReference, Ident, Label, Token, Type};

/// The hygiene of helper variables at the location of a token.
fn helper_span(at: Span) -> Span {
    Span::mixed_site().located_at(at)
}

/// A helper variable.
pub(super) fn helper(name: &str, index: usize, at: Span) -> Ident {
    Ident::new(&format!("__{name}{index}"), helper_span(at))
}

/// A path into the interface of the expansion, at a token.
fn rt(at: Span, name: &str) -> TokenStream {
    let name = Ident::new(name, at);
    quote_spanned!(at=> ::anabranch::__rt::#name)
}

/// The site of a name.
fn site(at: Span, name: &str) -> TokenStream {
    let site = rt(at, "Site");
    quote_spanned!(at=> #site { name: #name, file: ::core::file!(), line: ::core::line!(), column: ::core::column!() })
}

/// The guard at the start of a graph function.
pub(super) fn guard(name: &Ident) -> TokenStream {
    let at = name.span();
    let text = name.to_string();
    let (enter, site) = (rt(at, "enter"), site(at, &text));
    let guard = Ident::new("__guard", helper_span(at));
    quote_spanned!(helper_span(at)=> let #guard = #enter(#text, #site);)
}

/// Names a parameter.
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

/// What a construct carries, in the forms that its calls need.
pub(super) struct Carried {
    /// `(construct.place(&mut a), (construct.place(&mut b), ()))`
    places: TokenStream,
    /// The sites as a variable, and its name.
    declaration: TokenStream,
    sites: TokenStream,
    /// Checks of what is used and not carried.
    uses: Option<TokenStream>,
}

impl Carried {
    pub(super) fn new(places: &Places, used: &[Written], construct: &Ident, index: usize, at: Span) -> Carried {
        let uses = uses(used, construct, at);
        // The whole call has the hygiene of helpers: so the compiler reports it at the user's assignment.
        let calls = places.iter().rev().fold(quote!(()), |rest, place| {
            let (at, borrow) = (helper_span(place.written.span), place.borrow());
            let mut construct = construct.clone();
            construct.set_span(at);
            let place = quote_spanned!(at=> #construct.place(#borrow));
            quote!((#place, #rest))
        });
        if places.is_empty() {
            return Carried { places: calls, declaration: TokenStream::new(), sites: quote!(&[]), uses };
        }
        let sites = places.iter().map(|p| site(p.written.span, &p.name()));
        let name = helper("sites", index, at);
        let ty = rt(at, "Site");
        let declaration = quote!(let #name: &[#ty] = &[#(#sites),*];);
        Carried { places: calls, declaration, sites: quote!(#name), uses }
    }
}

/// The checks that places are no mutable references, at each of them. They are compiled and not run, so they borrow nothing.
fn uses(used: &[Written], construct: &Ident, at: Span) -> Option<TokenStream> {
    if used.is_empty() {
        return None;
    }
    let checks = used.iter().flat_map(|written| {
        let at = helper_span(written.span);
        let mut construct = construct.clone();
        construct.set_span(at);
        let used = rt(at, "Used");
        let prefixes = written.prefixes().into_iter();
        prefixes.map(move |p| quote_spanned!(at=> #construct.uses(#used(&#p).kind());))
    });
    let at = helper_span(at);
    let (kind, never) = (rt(at, "UsedKind"), rt(at, "never"));
    Some(quote_spanned!(at=>
        #[allow(unreachable_code, unused_imports, reason = "the types are checked, nothing is run")]
        if false {
            use #kind as _;
            #never();
            #(#checks)*
        }
    ))
}

/// The parts of an `if`.
pub(super) struct IfParts {
    pub(super) construct: Ident,
    pub(super) index: usize,
    pub(super) if_token: Span,
    pub(super) condition: Expr,
    pub(super) then_arm: Block,
    pub(super) else_arm: Option<Block>,
}

/// An `if` without a value.
pub(super) fn if_statement(parts: IfParts, carried: Carried) -> Expr {
    let IfParts { construct, if_token, condition, then_arm, else_arm, .. } = parts;
    let Carried { places, declaration, sites, uses } = carried;
    let new = rt(if_token, "If");
    let condition = checked_condition(if_token, &condition);
    let new = quote_spanned!(if_token=> #new::new(#condition));
    let then_call = quote_spanned!(if_token=> #construct.then_arm(#places, #sites));
    let else_arm = else_arm.map(|block| {
        let call = quote_spanned!(if_token=> #construct.else_arm(#places, #sites));
        quote!(if #call #block)
    });
    let end = quote_spanned!(if_token=> #construct.end(#places, #sites););
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        if #then_call #then_arm
        #else_arm
        #uses
        #end
    }})
}

/// An `if` with a value; `expected` is its type where it is written nearby.
pub(super) fn if_value(parts: IfParts, carried: Carried, expected: Option<Type>) -> Expr {
    let IfParts { construct, index, if_token, condition, then_arm, else_arm } = parts;
    let else_arm = else_arm.expect("an `if` with a value has an `else`");
    let Carried { places, declaration, sites, uses } = carried;
    let value = helper("value", index, if_token);
    let new = rt(if_token, "If");
    let condition = checked_condition(if_token, &condition);
    let new = quote_spanned!(if_token=> #new::new(#condition));
    let then_call = quote_spanned!(if_token=> #construct.then_arm(#places, #sites));
    let else_call = quote_spanned!(if_token=> #construct.else_arm(#places, #sites));
    let end = quote_spanned!(if_token=> #construct.end_value(#places, #sites, #value));
    let ty = expected.map(|ty| quote!(: ::anabranch::__rt::Values<#ty>));
    let values = quote_spanned!(helper_span(if_token)=> #construct.values());
    let (then_arm, else_arm) = (some_block(&then_arm), some_block(&else_arm));
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        let mut #value #ty = #values;
        #[allow(unreachable_code, reason = "an arm of the user may leave")]
        if #then_call { #value.then = #then_arm; }
        #[allow(unreachable_code, reason = "an arm of the user may leave")]
        if #else_call { #value.otherwise = #else_arm; }
        #uses
        #end
    }})
}

/// `Some` of the value of a block. The braces are no longer the user's, so that no lint finds them unneeded.
fn some_block(block: &Block) -> TokenStream {
    match &block.stmts[..] {
        [syn::Stmt::Expr(e, None)] => some(e),
        stmts => quote!(::core::option::Option::Some({ #(#stmts)* })),
    }
}

/// An expression without parentheses around it: as an argument it needs none.
fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(e) if e.attrs.is_empty() => bare(&e.expr),
        e => e,
    }
}

/// `Some(value)`, at the value.
fn some(value: &Expr) -> TokenStream {
    let value = bare(value);
    quote_spanned!(value.span()=> ::core::option::Option::Some(#value))
}

/// A condition, with the check that it is one.
fn checked_condition(at: Span, condition: &Expr) -> TokenStream {
    let (check, condition) = (rt(at, "condition"), bare(condition));
    quote_spanned!(at=> #check(#condition))
}

/// The parts of a `while`.
pub(super) struct WhileParts {
    pub(super) construct: Ident,
    pub(super) index: usize,
    pub(super) label: Option<Label>,
    pub(super) while_token: Span,
    pub(super) condition: Expr,
    pub(super) body: Block,
}

/// A `while`.
pub(super) fn while_loop(parts: WhileParts, carried: Carried) -> Expr {
    let WhileParts { construct, index, label, while_token, condition, body } = parts;
    let Carried { places, declaration, sites, uses } = carried;
    let test = helper("test", index, while_token);
    let new = rt(while_token, "While");
    let condition = checked_condition(while_token, &condition);
    let new = quote_spanned!(while_token=> #new::new());
    let more = quote_spanned!(while_token=> #construct.more(#places, #sites));
    let test_call = quote_spanned!(while_token=> #construct.test(#test, #places, #sites));
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        #label loop {
            if !#more { break; }
            let #test = #condition;
            if !#test_call { break; }
            #body
        }
        #uses
    }})
}

/// `left && right` or `left || right`.
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

/// The name of the function that a comparison calls.
pub(super) fn comparison(op: &BinOp) -> Option<(Span, &'static str)> {
    Some(match op {
        BinOp::Eq(t) => (t.spans[0], "eq"),
        BinOp::Ne(t) => (t.spans[0], "ne"),
        BinOp::Lt(t) => (t.spans[0], "lt"),
        BinOp::Le(t) => (t.spans[0], "le"),
        BinOp::Gt(t) => (t.spans[0], "gt"),
        BinOp::Ge(t) => (t.spans[0], "ge"),
        _ => return None,
    })
}

/// A comparison.
pub(super) fn compare(at: Span, function: &str, left: &Expr, right: &Expr) -> Expr {
    let (compare, method) = (rt(at, "compare"), Ident::new(function, at));
    let (left, right) = (borrow(left), borrow(right));
    Expr::Verbatim(quote_spanned!(at=> #compare(#left, #right).#method()))
}

/// `&expr`, with parentheses where they are needed.
fn borrow(expr: &Expr) -> Expr {
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](helper_span(expr.span())),
        mutability: None,
        expr: Box::new(expr.clone()),
    })
}

/// The checks that something may stand in each of the constructs around it.
///
/// The whole call has the hygiene of helpers: so the compiler reports it at the token, not at the attribute.
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

/// `for` over host values.
pub(super) fn host_iter(at: Span, iterable: &Expr) -> Expr {
    let (function, iterable) = (rt(at, "host_iter"), bare(iterable));
    Expr::Verbatim(quote_spanned!(at=> #function(#iterable)))
}

/// `assert!`, or `debug_assert!` if `debug`.
pub(super) fn assert(index: usize, at: Span, debug: bool, condition: &Expr, text: &str, message: &TokenStream) -> Expr {
    let assertion = helper("assert", index, at);
    let new = rt(at, "Assert");
    let condition = checked_condition(at, condition);
    let new = quote_spanned!(at=> #new::new(#condition));
    let message = if message.is_empty() {
        let text = format!("assertion failed: {text}");
        quote!(::std::string::String::from(#text))
    } else {
        quote!(::std::format!(#message))
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
