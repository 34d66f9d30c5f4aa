//! `#[derive(InOut)]`.

use crate::carry::{member, mentions_parameter, struct_fields};
use crate::ctxt::Ctxt;
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Fields, parse_quote};

/// The whole derive.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let cx = Ctxt::new();
    let tokens = syn::parse2(item).map(|input| implement(&cx, &input)).unwrap_or_else(|error| {
        cx.push(error);
        TokenStream::new()
    });
    cx.finish().map_or_else(|errors| errors, |()| tokens)
}

fn implement(cx: &Ctxt, input: &DeriveInput) -> TokenStream {
    let Some(fields) = struct_fields(cx, input, "InOut") else {
        return TokenStream::new();
    };
    let (name, vis) = (&input.ident, &input.vis);
    let arrays = format_ident!("{name}Arrays", span = name.span());
    let rt = quote!(::anabranch::__rt::function);
    let mut generics = input.generics.clone();
    let (mut layout, mut traces, mut feeds, mut flattens, mut rebuilds, mut built, mut tensors) =
        (quote!(#rt::Layout::NONE), vec![], vec![], vec![], vec![], vec![], vec![]);
    let (mut declared, mut hosts) = (vec![], vec![]);
    for (i, field) in fields.iter().enumerate() {
        let (member, ty, vis) = (member(i, field), &field.ty, &field.vis);
        // At the type of the field, so that a type that functions cannot take is reported there.
        let input_ty = quote_spanned!(ty.span()=> <#ty as #rt::Input>);
        let output_ty = quote_spanned!(ty.span()=> <#ty as #rt::Output>);
        let rebuild = format_ident!("__field{i}");
        layout = quote!(#layout.and(#input_ty::LAYOUT));
        traces.push(quote!(#member: #input_ty::trace(__inputs)?));
        feeds.push(quote!(#rt::Feed::<#ty>::feed(self.#member, __to);));
        flattens.push(quote!(#output_ty::flatten(&self.#member, __to);));
        rebuilds.push(quote!(let #rebuild = #output_ty::rebuild(&self.#member);));
        built.push(quote!(#member: #rebuild(__tensors)));
        tensors.push(quote!(#rt::Results::tensors_mut(&mut self.#member, __to);));
        let host = quote!(#output_ty::Host);
        let doc = match &member {
            syn::Member::Named(name) => format!("The arrays of `{name}`."),
            syn::Member::Unnamed(_) => format!("The arrays of field {i}."),
        };
        let label = field.ident.as_ref().map(|name| quote!(#name:));
        declared.push(quote!(#[doc = #doc] #vis #label #host));
        if mentions_parameter(ty, &input.generics) {
            let predicates = &mut generics.make_where_clause().predicates;
            predicates.push(parse_quote!(#ty: #rt::Input + #rt::Output + 'static));
            predicates.push(parse_quote!(#host: ::core::clone::Clone + ::core::fmt::Debug));
            hosts.push(quote!(#host: #rt::Feed<#ty>));
        }
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.generics.split_for_impl();
    let mut feeding = generics.clone();
    feeding
        .make_where_clause()
        .predicates
        .extend(hosts.into_iter().map(|h| -> syn::WherePredicate { parse_quote!(#h) }));
    let feed_where = &feeding.where_clause;
    let declared = match fields {
        Fields::Named(_) => quote!(#where_clause { #(#declared),* }),
        Fields::Unnamed(_) => quote!((#(#declared),*) #where_clause;),
        Fields::Unit => quote!(#where_clause;),
    };
    let params = &input.generics.params;
    let declared_generics = (!params.is_empty()).then(|| quote!(<#params>));
    let doc = format!("The arrays of a [`{name}`]: what is given for one in a call, and what a call returns for one.");
    quote! {
        #[doc = #doc]
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #vis struct #arrays #declared_generics #declared

        #[automatically_derived]
        impl #impl_generics #rt::Input for #name #ty_generics #where_clause {
            const LAYOUT: #rt::Layout = #layout;
            fn trace(__inputs: &mut #rt::Inputs<'_>) -> ::anabranch::Result<Self> {
                let _ = &__inputs;
                ::core::result::Result::Ok(Self { #(#traces),* })
            }
        }

        #[automatically_derived]
        impl #impl_generics #rt::Feed<#name #ty_generics> for #arrays #ty_generics #feed_where {
            fn feed(self, __to: &mut #rt::Arguments) {
                let _ = &__to;
                #(#feeds)*
            }
        }

        #[automatically_derived]
        impl #impl_generics #rt::Results for #arrays #ty_generics #where_clause {
            fn tensors_mut<'__a>(&'__a mut self, __to: &mut ::std::vec::Vec<&'__a mut ::anabranch::HostTensor>) {
                let _ = &__to;
                #(#tensors)*
            }
        }

        #[automatically_derived]
        impl #impl_generics #rt::Output for #name #ty_generics #where_clause {
            type Host = #arrays #ty_generics;
            fn flatten(&self, __to: &mut ::std::vec::Vec<::anabranch::Any>) {
                let _ = &__to;
                #(#flattens)*
            }
            fn rebuild(&self) -> #rt::Rebuild<Self::Host> {
                #(#rebuilds)*
                ::std::boxed::Box::new(move |__tensors| {
                    let _ = &__tensors;
                    #arrays { #(#built),* }
                })
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
    fn a_struct_of_arrays_has_the_fields_of_the_struct() {
        let out = derived("pub struct Batch<T: Element> { pub images: Tensor<T>, labels: Tensor<i32> }");
        assert!(out.contains("pub struct BatchArrays < T : Element > where"), "{out}");
        assert!(out.contains("pub images : < Tensor < T > as :: anabranch"), "{out}");
        assert!(out.find("self . images").unwrap() < out.find("self . labels").unwrap(), "{out}");
    }

    #[test]
    fn tuple_and_unit_structs_are_built_by_their_members() {
        assert!(derived("struct P(Tensor, Tensor);").contains("Self { 0 : < Tensor as :: anabranch"));
        assert!(derived("struct U;").contains("struct UArrays ;"));
    }

    #[test]
    fn enums_are_errors() {
        assert!(derived("enum E { A }").contains("is for structs, not an enum"));
    }
}
