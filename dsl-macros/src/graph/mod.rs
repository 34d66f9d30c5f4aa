//! `#[graph]`: parses, checks and expands a function, in stages.
//!
//! | stage | makes | knows | must never know |
//! |---|---|---|---|
//! | [`resolve`] | the [`tree`] of Rust, in fewer forms | scopes, written types, what is [`known`] by name | flags, slots, carried places |
//! | [`analyze`] | the [`facts`] of the tree | the parts of code in order of evaluation | expressions of Rust, scopes, the emitted code |
//! | [`emit`] | Rust of the tree and its facts | the interface of the expansion | scopes, types, why a fact holds |
//!
//! Each stage is a function. `resolve` moves code out of the syntax into the tree, leaves holes in
//! its place, and returns the tree. `analyze` fills the fact cells of the tree. `emit` fills the
//! holes. A stage imports the tree, the facts and the files that all may use ([`forms`], [`jumps`],
//! [`names`], [`place`], [`variables`], [`known`]), but no other stage. The files of a stage do not
//! import one another in a circle either: a file of its own has the state that they share.
//!
//! Each decision about a construct is made once, in the first stage that can make it. Whether a
//! condition may be a tensor follows from its form, in `resolve`. What a construct carries follows
//! from the code inside it, in `analyze`. How a jump leaves constructs is a fact as well, because
//! it depends on all constructs around the jump.

mod analyze;
mod emit;
mod facts;
mod forms;
#[cfg(test)]
mod growth;
mod jumps;
mod known;
mod names;
mod params;
mod place;
mod resolve;
mod scope;
#[cfg(test)]
mod tests;
mod tree;
mod variables;

use crate::ctxt::Ctxt;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, Item, ItemFn, MetaNameValue, Safety, Signature, Token};

/// Expands the macro, given the tokens of its arguments and of the function.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let cx = Ctxt::new();
    let loops = loop_options(&cx, arguments);
    let mut function = match parse(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            cx.push(error);
            let errors = cx.finish().expect_err("an error was added");
            return quote!(#errors #item);
        }
    };
    check_signature(&cx, &function.sig);
    let params = params::take(&cx, &mut function.sig);
    let signature_is_wrong = cx.has_errors();
    check_body(&cx, &function.block);
    if !check_depth(&cx, &function.block) {
        let (ItemFn { attrs, vis, sig, .. }, errors) = (function, cx.finish().err());
        return quote!(#errors #(#attrs)* #vis #sig { ::core::unreachable!() });
    }
    let tree = resolve::resolve(&mut function);
    analyze::analyze(&cx, &tree);
    let stmts = emit::emit(tree);
    let ItemFn { attrs, vis, sig, .. } = function;
    let guard = emit::guard(&sig.ident);
    let errors = cx.finish().err();
    // The function is always emitted, so that editors and later errors remain useful.
    if signature_is_wrong {
        return quote!(#errors #item);
    }
    quote! {
        #errors
        #(#attrs)*
        #vis #sig {
            #guard
            #(#loops)*
            #(#params)*
            #(#stmts)*
        }
    }
}

/// Parses the arguments `max_iterations = N` and `parallel_iterations = N`, each at most once.
/// Returns the statements that pass them to the tracer.
fn loop_options(cx: &Ctxt, arguments: TokenStream) -> Vec<TokenStream> {
    let wrong = |at: &dyn ToTokens| {
        cx.error(
            at,
            "unknown argument of `#[graph]`: write `max_iterations = N`, the largest number of iterations of each \
             loop, or `parallel_iterations = N`, the number of iterations that may overlap",
        );
    };
    let parsed = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(arguments.clone());
    let Ok(given) = parsed else {
        wrong(&arguments);
        return vec![];
    };
    let mut seen = Vec::new();
    let mut emitted = Vec::new();
    for MetaNameValue { path, value, .. } in &given {
        if path.is_ident("max_iterations") {
            emitted.push(emit::bound_loops(value));
        } else if path.is_ident("parallel_iterations") {
            emitted.push(emit::overlap_loops(path, value));
        } else {
            wrong(path);
        }
        if seen.contains(&path) {
            cx.error(path, format!("`{}` is given twice: remove one of the two", path.to_token_stream()));
        }
        seen.push(path);
    }
    emitted
}

/// Parses the function.
fn parse(item: TokenStream) -> syn::Result<ItemFn> {
    syn::parse2(item).map_err(|error| {
        let message = format!("`#[graph]` is for functions and methods with a body ({error}): move it to one");
        syn::Error::new(error.span(), message)
    })
}

/// Rejects functions whose calls tracing cannot follow.
fn check_signature(cx: &Ctxt, sig: &Signature) {
    let refuse = |token: &dyn ToTokens, kind: &str, fix: &str| {
        cx.error(token.to_token_stream(), format!("a `#[graph]` function cannot be {kind}: {fix}"));
    };
    if let Some(token) = &sig.constness {
        refuse(token, "`const`", "remove `const`, because the function is traced when the program runs");
    }
    if let Some(token) = &sig.asyncness {
        refuse(token, "`async`", "remove `async`, and pass the values to await as arguments");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        refuse(token, "`unsafe`", "remove `unsafe`, and call unsafe code in a function without `#[graph]`");
    }
    if let Some(token) = &sig.abi {
        refuse(token, "`extern`", "remove the ABI, and call this function from an `extern` function");
    }
    if let Some(token) = &sig.variadic {
        refuse(token, "variadic", "take a slice instead");
    }
}

/// Rejects `#[cfg]` inside the body.
///
/// The compiler applies it after this macro, which would treat a removed jump or assignment as
/// present.
fn check_body(cx: &Ctxt, body: &Block) {
    struct Configured<'a>(&'a Ctxt);
    impl<'a> Visit<'a> for Configured<'_> {
        fn visit_attribute(&mut self, attribute: &'a Attribute) {
            if attribute.path().is_ident("cfg") {
                let message = "`#[cfg]` is not supported inside a `#[graph]` body, because it is applied after \
                               staging: use `if cfg!(..) { .. }`, or write two functions";
                self.0.error(attribute, message);
            }
        }
        fn visit_item(&mut self, _: &'a Item) {}
    }
    Configured(cx).visit_block(body);
}

/// The maximum nesting depth of constructs.
///
/// A deeper nest would overflow the compiler's stack during rewriting. Tracing has the same limit
/// for open constructs.
const MAX_DEPTH: usize = 128;

/// Rejects constructs that are nested too deeply. An `else if` is not deeper than its `if`. Returns
/// whether the depth is allowed.
fn check_depth(cx: &Ctxt, body: &Block) -> bool {
    struct Depth {
        depth: usize,
        too_deep: Option<Span>,
    }
    impl<'a> Visit<'a> for Depth {
        fn visit_expr(&mut self, e: &'a Expr) {
            let is_construct = matches!(
                e,
                Expr::If(_) | Expr::While(_) | Expr::ForLoop(_) | Expr::Loop(_) | Expr::Match(_) | Expr::Closure(_)
            );
            self.depth += usize::from(is_construct);
            if self.depth > MAX_DEPTH {
                self.too_deep.get_or_insert_with(|| e.span());
            } else if let Expr::If(e) = e {
                let mut next = Some(e);
                while let Some(e) = next.take() {
                    self.visit_expr(&e.cond);
                    self.visit_block(&e.then_branch);
                    match e.else_branch.as_ref().map(|(_, e)| &**e) {
                        Some(Expr::If(e)) => next = Some(e),
                        Some(last) => self.visit_expr(last),
                        None => {}
                    }
                }
            } else {
                visit::visit_expr(self, e);
            }
            self.depth -= usize::from(is_construct);
        }
        fn visit_item(&mut self, _: &'a Item) {}
    }
    let mut find = Depth { depth: 0, too_deep: None };
    find.visit_block(body);
    if let Some(at) = find.too_deep {
        let message = format!(
            "`if`s and loops are nested more than {MAX_DEPTH} levels deep: move the inner ones into another \
             `#[graph]` function"
        );
        cx.push(syn::Error::new(at, message));
    }
    find.too_deep.is_none()
}
