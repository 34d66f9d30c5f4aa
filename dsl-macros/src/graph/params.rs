//! Parameters: their names in messages, and the shapes that `#[shape(..)]` declares.

use super::emit;
use super::known::is_tensor;
use crate::ctxt::Ctxt;
use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Expr, FnArg, Ident, Lit, Pat, PatType, Signature, Token};

/// Removes the `#[shape(..)]` attributes from the parameters. Returns the statements that name and
/// check the parameters.
pub(super) fn take(cx: &Ctxt, sig: &mut Signature) -> Vec<TokenStream> {
    let mut statements = Vec::new();
    for param in &mut sig.inputs {
        let FnArg::Typed(PatType { attrs, pat, ty, .. }) = param else {
            continue;
        };
        let (shapes, rest) = std::mem::take(attrs).into_iter().partition(|a| a.path().is_ident("shape"));
        *attrs = rest;
        let shapes: Vec<syn::Attribute> = shapes;
        let name = match &**pat {
            Pat::Ident(p) if is_tensor(ty) => &p.ident,
            _ => {
                for shape in &shapes {
                    cx.error(shape, "`#[shape(..)]` can only be used on a parameter of the form `name: Tensor<..>`");
                }
                continue;
            }
        };
        statements.push(emit::name_param(name));
        for shape in &shapes {
            match shape.parse_args_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
                Ok(extents) => {
                    let extents: Vec<_> = extents.iter().map(|e| extent(cx, e)).collect();
                    statements.push(emit::expect_shape(name, &extents));
                }
                Err(error) => cx.push(error),
            }
        }
    }
    statements
}

/// Expands one extent of a `#[shape(..)]`.
fn extent(cx: &Ctxt, e: &Expr) -> TokenStream {
    let extent = quote!(::anabranch::__rt::Extent);
    match e {
        Expr::Infer(_) => quote!(#extent::Any),
        Expr::Lit(l) if matches!(l.lit, Lit::Int(_)) => quote!(#extent::Is(#l)),
        Expr::Path(p) if p.path.get_ident().is_some() => {
            let name = p.path.get_ident().map(Ident::to_string);
            quote!(#extent::Named(#name))
        }
        Expr::Block(b) if b.label.is_none() && b.attrs.is_empty() => quote!(#extent::Is(#b)),
        _ => {
            cx.error(
                e,
                "expected an extent: a number, a name that parameters with the same extent share, `_`, or a host \
                 value in `{ .. }`",
            );
            TokenStream::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> (String, Vec<String>) {
        let mut sig: Signature = syn::parse_str(text).unwrap();
        let cx = Ctxt::new();
        let statements = take(&cx, &mut sig).iter().map(TokenStream::to_string).collect();
        assert!(cx.finish().is_ok());
        (quote!(#sig).to_string(), statements)
    }

    #[test]
    fn shapes_are_taken_off_and_tensors_are_named() {
        let (sig, statements) = taken("fn f(#[shape(n, 8, _, { K })] mut x: Tensor<i32>, y: Tensor, z: usize)");
        assert_eq!(sig, "fn f (mut x : Tensor < i32 > , y : Tensor , z : usize)");
        assert_eq!(statements.len(), 3, "{statements:?}");
        for part in ["Named (\"n\")", "Is (8)", "Any", "Is ({ K })"] {
            assert!(statements[1].contains(part), "no {part} in {}", statements[1]);
        }
    }
}
