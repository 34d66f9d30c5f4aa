//! `#[derive(InOut)]`.

use crate::carry::{borrowed_for, member, struct_fields};
use crate::ctxt::Ctxt;
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{DeriveInput, Fields, parse_quote};

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
    let Some(fields) = struct_fields(cx, input, "InOut") else {
        return TokenStream::new();
    };
    let (name, vis) = (&input.ident, &input.vis);
    let arrays = format_ident!("{name}Arrays", span = name.span());
    let rt = quote!(::anabranch::__rt::function);
    let mut generics = input.generics.clone();
    let (mut layout, mut traces, mut feeds, mut flattens, mut rebuilds, mut built, mut tensors, mut paths) =
        (quote!(#rt::ParamLayout::NONE), vec![], vec![], vec![], vec![], vec![], vec![], vec![]);
    let (mut declared, mut copied, mut formatted) = (vec![], vec![], vec![]);
    for (i, field) in fields.iter().enumerate() {
        let (member, ty, vis) = (member(i, field), &field.ty, &field.vis);
        if let Some(lifetime) = borrowed_for(ty) {
            let message = "a field of a struct with `#[derive(InOut)]` cannot borrow, because it must be a tensor or \
                           consist of tensors: capture a host value in a closure instead, as in `move |x: Batch| \
                           f(x, value)`";
            cx.error(lifetime, message);
            continue;
        }
        // Located at the type of the field, so that a type that functions cannot take is reported
        // there.
        let of_field = quote_spanned!(ty.span()=> <#ty as #rt::Field>);
        let rebuild = format_ident!("__field{i}");
        layout = quote!(#layout.and(#of_field::LAYOUT));
        let (trace, segment, of_part) = match &member {
            syn::Member::Named(name) => {
                let name = name.unraw().to_string();
                (quote!(trace_field), quote!(#name), format!(", field `{name}`{{}}"))
            }
            syn::Member::Unnamed(_) => (quote!(trace_element), quote!(#i), format!(", element {i}{{}}")),
        };
        traces.push(quote!(#member: #of_field::#trace(__inputs, #segment)?));
        paths.push(quote! {
            if let ::core::option::Option::Some(__path) = #rt::Results::path_of(&self.#member, __i) {
                return ::core::option::Option::Some(::std::format!(#of_part, __path));
            }
        });
        feeds.push(quote!(#of_field::feed(self.#member, __to);));
        flattens.push(quote!(#of_field::flatten(&self.#member, __to);));
        rebuilds.push(quote!(let #rebuild = #of_field::rebuild(&self.#member);));
        built.push(quote!(#member: #rebuild(__tensors)));
        tensors.push(quote!(#rt::Results::tensors_mut(&mut self.#member, __to);));
        let host = quote!(#of_field::Host);
        let doc = match &member {
            syn::Member::Named(name) => format!("The arrays of `{name}`."),
            syn::Member::Unnamed(_) => format!("The arrays of field {i}."),
        };
        let label = field.ident.as_ref().map(|name| quote!(#name:));
        declared.push(quote!(#[doc = #doc] #vis #label #host));
        // Every field gets a bound, so that the compiler reports a missing bound once, at the type
        // of the field.
        let of_type = quote_spanned!(ty.span()=> ::anabranch::__rt::function::Field);
        generics.make_where_clause().predicates.push(parse_quote!(#ty: #of_type));
        let shown = match &member {
            syn::Member::Named(name) => name.unraw().to_string(),
            syn::Member::Unnamed(i) => i.index.to_string(),
        };
        copied.push(quote!(#member: ::core::clone::Clone::clone(&self.#member)));
        formatted.push((shown, quote!(&self.#member)));
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.generics.split_for_impl();
    let declared = match fields {
        Fields::Named(_) => quote!(#where_clause { #(#declared),* }),
        Fields::Unnamed(_) => quote!((#(#declared),*) #where_clause;),
        Fields::Unit => quote!(#where_clause;),
    };
    let arrays_name = arrays.to_string();
    let (debug, formatted) = match fields {
        Fields::Unnamed(_) => {
            (quote!(debug_tuple), formatted.into_iter().map(|(_, value)| quote!(.field(#value))).collect())
        }
        _ => {
            let field = |(name, value): (String, TokenStream)| quote!(.field(#name, #value));
            (quote!(debug_struct), formatted.into_iter().map(field).collect::<Vec<_>>())
        }
    };
    let params = &input.generics.params;
    let declared_generics = (!params.is_empty()).then(|| quote!(<#params>));
    let doc = format!("The arrays of a [`{name}`], as the argument or the result of a call.");
    quote! {
        #[doc = #doc]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        #vis struct #arrays #declared_generics #declared

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics ::core::clone::Clone for #arrays #ty_generics #where_clause {
            fn clone(&self) -> Self {
                Self { #(#copied),* }
            }
        }

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics ::core::fmt::Debug for #arrays #ty_generics #where_clause {
            fn fmt(&self, __to: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                __to.#debug(#arrays_name) #(#formatted)* .finish()
            }
        }

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics #rt::Input for #name #ty_generics #where_clause {
            const LAYOUT: #rt::ParamLayout = #layout;
            fn trace(__inputs: &mut #rt::Inputs<'_>) -> ::anabranch::Result<Self> {
                let _ = &__inputs;
                ::core::result::Result::Ok(Self { #(#traces),* })
            }
        }

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics #rt::Feed<#name #ty_generics> for #arrays #ty_generics #where_clause {
            fn feed(self, __to: &mut #rt::Arguments) {
                let _ = &__to;
                #(#feeds)*
            }
        }

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics #rt::Results for #arrays #ty_generics #where_clause {
            fn tensors_mut<'__a>(&'__a mut self, __to: &mut ::std::vec::Vec<&'__a mut ::anabranch::HostTensor>) {
                let _ = &__to;
                #(#tensors)*
            }
            fn path_of(&self, __i: &mut usize) -> ::core::option::Option<::std::string::String> {
                let _ = &__i;
                #(#paths)*
                ::core::option::Option::None
            }
        }

        #[automatically_derived]
        #[allow(trivial_bounds, reason = "a bound for each field")]
        impl #impl_generics #rt::Output for #name #ty_generics #where_clause {
            type Host = #arrays #ty_generics;
            fn flatten(&self, __to: &mut ::std::vec::Vec<::anabranch::AnyValue>) {
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
