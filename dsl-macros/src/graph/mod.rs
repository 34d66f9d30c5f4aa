//! `#[graph]`: parses, checks, rewrites and expands a function.
//!
//! [`parse`] reads the function, and [`check_signature`] rejects kinds of functions that cannot be
//! traced. [`rewrite`](rewrite::rewrite) resolves scopes, finds the places that each construct
//! carries, and replaces the constructs. [`expand`] assembles the function. The templates of the
//! emitted code are in [`emit`].

mod canonical;
mod emit;
mod format;
mod forms;
#[cfg(test)]
mod growth;
mod jumps;
mod known;
mod marks;
mod names;
mod params;
mod place;
mod rewrite;
mod scope;

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
    let ItemFn { attrs, vis, sig, block, .. } = rewrite::rewrite(&cx, function).function;
    let guard = emit::guard(&sig.ident);
    let stmts = &block.stmts;
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
            "`#[graph]` takes the arguments `max_iterations = ..`, the largest number of iterations of each loop, \
             and `parallel_iterations = ..`, the number of iterations that may overlap",
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
            cx.error(path, "this argument is given twice");
        }
        seen.push(path);
    }
    emitted
}

/// Parses the function.
fn parse(item: TokenStream) -> syn::Result<ItemFn> {
    syn::parse2(item).map_err(|error| {
        syn::Error::new(
            error.span(),
            format!("`#[graph]` can only be used on functions and methods with a body: {error}"),
        )
    })
}

/// Rejects functions whose calls tracing cannot follow.
fn check_signature(cx: &Ctxt, sig: &Signature) {
    let refuse = |token: &dyn ToTokens, kind: &str| {
        cx.error(token.to_token_stream(), format!("a `#[graph]` function cannot be {kind}"));
    };
    if let Some(token) = &sig.constness {
        refuse(token, "`const`");
    }
    if let Some(token) = &sig.asyncness {
        refuse(token, "`async`");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        refuse(token, "`unsafe`");
    }
    if let Some(token) = &sig.abi {
        refuse(token, "`extern`");
    }
    if let Some(token) = &sig.variadic {
        refuse(token, "variadic");
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
        let message = format!("`if`s and loops are nested more than {MAX_DEPTH} levels deep");
        cx.push(syn::Error::new(at, message));
    }
    find.too_deep.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        expand(TokenStream::new(), text.parse().unwrap()).to_string()
    }

    #[test]
    fn an_ordinary_function_keeps_everything_but_its_body() {
        let out = expanded("/// Doc.\n#[inline] pub(crate) fn f<T: Copy>(x: T) -> T where T: Sized { x }");
        let sig = "# [inline] pub (crate) fn f < T : Copy > (x : T) -> T where T : Sized {";
        assert!(out.contains(sig), "{out}");
        assert!(out.contains("Doc."), "{out}");
        assert!(out.contains(":: anabranch :: __rt :: enter (\"f\""), "{out}");
    }

    #[test]
    fn all_errors_are_reported_and_the_function_stays() {
        let out = expanded("async unsafe fn f() { unsafe { g() } }");
        assert_eq!(out.matches("compile_error").count(), 3, "{out}");
        assert!(out.ends_with("async unsafe fn f () { unsafe { g () } }"), "{out}");
    }

    /// Uses a stack of the same size as the compiler's.
    #[test]
    fn constructs_nested_too_deep_are_an_error_and_long_chains_are_not() {
        let check = || {
            let nested = |n: usize| format!("fn f(x: T) -> T {{ {} x {} }}", "if x > 1 { ".repeat(n), "}".repeat(n));
            assert!(!expanded(&nested(128)).contains("compile_error"));
            for n in [129, 300] {
                assert!(expanded(&nested(n)).contains("nested more than 128 levels deep"));
            }
            let chain = format!("fn f(x: T) -> T {{ {} {{ x }} }}", "if f(x) { x + 1 } else ".repeat(1000));
            assert!(!expanded(&chain).contains("compile_error"));
        };
        std::thread::Builder::new().stack_size(8 << 20).spawn(check).unwrap().join().unwrap();
    }

    #[test]
    fn what_is_not_a_function_is_an_error() {
        let out = expanded("struct S;");
        assert!(out.contains("`#[graph]` can only be used on functions and methods with a body"), "{out}");
        assert!(out.ends_with("struct S ;"), "{out}");
    }
}
