//! `#[derive(Module)]`.

use crate::carry::{marked, member, mentions_parameter, struct_fields};
use crate::ctxt::Ctxt;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, parse_quote};

/// Expands the derive macro.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let cx = Ctxt::new();
    let tokens = syn::parse2(item).map(|input| implement(&cx, &input)).unwrap_or_else(|error| {
        cx.push(error);
        TokenStream::new()
    });
    cx.finish().map_or_else(|errors| errors, |()| tokens)
}

fn implement(cx: &Ctxt, input: &DeriveInput) -> TokenStream {
    let Some(fields) = struct_fields(cx, input, "Module") else {
        return TokenStream::new();
    };
    let name = &input.ident;
    let mut visits = Vec::new();
    let mut generics = input.generics.clone();
    for (i, field) in fields.iter().enumerate() {
        if marked(cx, field, "module", "skip") {
            continue;
        }
        let (member, ty) = (member(i, field), &field.ty);
        let path = member.to_token_stream().to_string();
        let path = path.strip_prefix("r#").unwrap_or(&path);
        // Located at the type of the field, so that a type that is not a module is reported there.
        visits.push(quote_spanned! {ty.span()=>
            __path.with(#path, |__path| <#ty as ::anabranch::__rt::Module>::visit(&self.#member, __path, __visit));
        });
        if mentions_parameter(ty, &input.generics) {
            generics.make_where_clause().predicates.push(parse_quote!(#ty: ::anabranch::__rt::Module));
        }
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::anabranch::__rt::Module for #name #ty_generics #where_clause {
            fn visit(
                &self,
                __path: &mut ::anabranch::__rt::VarPath,
                __visit: &mut dyn ::core::ops::FnMut(&::core::primitive::str, &::anabranch::__rt::AnyVar),
            ) {
                let _ = (&__path, &__visit);
                #(#visits)*
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(text: &str) -> String {
        derive(text.parse().unwrap()).to_string()
    }

    #[test]
    fn fields_are_visited_in_order_under_their_names() {
        let out = derived("struct Net<M> { w: Var, #[module(skip)] width: usize, inner: M }");
        assert!(out.find("\"w\"").unwrap() < out.find("\"inner\"").unwrap(), "{out}");
        assert!(!out.contains("width"), "{out}");
        assert!(out.contains("where M : :: anabranch :: __rt :: Module"), "{out}");
    }

    #[test]
    fn tuple_structs_have_numbers_for_names() {
        let out = derived("struct P(Var, Var);");
        assert!(out.contains("\"0\"") && out.contains("\"1\""), "{out}");
    }

    #[test]
    fn enums_are_errors() {
        assert!(derived("enum E { A }").contains("is for structs, not an enum"));
    }
}
