//! Functions and closures: their guards, the options of their loops, their parameters and results.

use super::jumps::{slot, with_slot};
use super::output::ToRust;
use crate::graph::names::{helper_span, rt, site};
use crate::graph::tree::{Async, Closure};
use proc_macro2::{Ident, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{Expr, Path, Stmt};

/// Returns the guard at the start of a graph function.
pub(crate) fn guard(name: &Ident) -> TokenStream {
    let at = name.span();
    let text = name.to_string();
    let (enter, site) = (rt(at, "enter"), site(at, &text));
    let guard = Ident::new("__guard", helper_span(at));
    quote_spanned!(helper_span(at)=> let #guard = #enter(#text, #site);)
}

/// Sets the bound of the loops of a function.
pub(crate) fn bound_loops(max_iterations: &Expr) -> TokenStream {
    let at = max_iterations.span();
    let bound_loops = rt(at, "bound_loops");
    quote_spanned!(at=> #bound_loops(#max_iterations);)
}

/// Sets how many iterations of the loops of a function may run at once.
pub(crate) fn overlap_loops(argument: &Path, parallel_iterations: &Expr) -> TokenStream {
    let at = argument.span();
    let (overlap_loops, site) = (rt(at, "overlap_loops"), site(at, "parallel_iterations"));
    quote_spanned!(at=> #overlap_loops(#parallel_iterations, #site);)
}

/// Names a parameter in the graph.
pub(crate) fn name_param(param: &Ident) -> TokenStream {
    let (at, text) = (param.span(), param.to_string());
    let name_param = rt(at, "name_param");
    quote_spanned!(helper_span(at)=> #name_param(::anabranch::Tensor::untyped(#param), #text);)
}

/// Checks the shape of a parameter.
pub(crate) fn expect_shape(param: &Ident, extents: &[TokenStream]) -> TokenStream {
    let (at, text) = (param.span(), param.to_string());
    let (expect, site) = (rt(at, "expect_shape"), site(at, &text));
    quote_spanned!(helper_span(at)=> #expect(::anabranch::Tensor::untyped(#param), #text, &[#(#extents),*], #site);)
}

impl ToRust for Closure {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (mut closure, body) = (self.syntax, self.body.emit());
        *closure.body = match self.facts.get() {
            Some(slot) => with_slot(&slot, &body),
            None => body,
        };
        Expr::Closure(closure)
    }
}

impl ToRust for Async {
    type Output = Expr;

    fn emit(self) -> Expr {
        let mut block = self.syntax;
        block.block = self.body.emit();
        if let Some(name) = self.facts.get() {
            block.block.stmts.insert(0, Stmt::Expr(Expr::Verbatim(slot(&name, None)), None));
        }
        Expr::Async(block)
    }
}
