//! `#[derive(Carry)]`.

use crate::ctxt::Ctxt;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Fields, parse_quote};

/// Expands the derive macro.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let cx = Ctxt::new();
    let tokens = syn::parse2(item).map(|input| implement(&cx, &input)).unwrap_or_else(|error| {
        cx.push(error);
        TokenStream::new()
    });
    cx.finish().map_or_else(|errors| errors, |()| tokens)
}

/// Returns whether a field has `#[attribute(word)]`. The attribute takes no other argument.
pub(crate) fn marked(cx: &Ctxt, field: &syn::Field, attribute: &str, word: &str) -> bool {
    let mut found = false;
    for attr in field.attrs.iter().filter(|a| a.path().is_ident(attribute)) {
        let parsed = attr.parse_nested_meta(|meta| {
            if meta.path.is_ident(word) {
                found = true;
                Ok(())
            } else {
                Err(meta.error(format!(
                    "unknown argument of `#[{attribute}]`: write `#[{attribute}({word})]`, or leave it out"
                )))
            }
        });
        if let Err(error) = parsed {
            cx.push(error);
        }
    }
    found
}

/// Returns the fields of a struct, or reports an error for anything else.
pub(crate) fn struct_fields<'a>(cx: &Ctxt, input: &'a DeriveInput, derive: &str) -> Option<&'a Fields> {
    let (token, kind): (&dyn quote::ToTokens, _) = match &input.data {
        Data::Struct(data) => return Some(&data.fields),
        Data::Enum(data) => (&data.enum_token, "an enum"),
        Data::Union(data) => (&data.union_token, "a union"),
    };
    let why = match derive {
        "Carry" => "whose variant would have to be decided while tracing: use a struct, or `Option`",
        "InOut" => "whose variant would have to be known while tracing: use a struct, or `Option`",
        _ => "because the variables must not depend on the variant: use a struct",
    };
    cx.error(quote!(#token), format!("`#[derive({derive})]` is for structs, not {kind}, {why}"));
    None
}

/// Returns the name or index by which a field is accessed.
pub(crate) fn member(index: usize, field: &syn::Field) -> syn::Member {
    field.ident.clone().map_or_else(|| syn::Member::from(index), syn::Member::from)
}

fn implement(cx: &Ctxt, input: &DeriveInput) -> TokenStream {
    let Some(fields) = struct_fields(cx, input, "Carry") else {
        return TokenStream::new();
    };
    let name = &input.ident;
    let (mut flatten, mut rebuild) = (Vec::new(), Vec::new());
    let mut generics = input.generics.clone();
    for (i, field) in fields.iter().enumerate() {
        let (member, ty) = (member(i, field), &field.ty);
        let enter = match &member {
            syn::Member::Named(name) => {
                let name = name.unraw().to_string();
                quote!(enter(#name))
            }
            syn::Member::Unnamed(_) => quote!(enter_item(#i)),
        };
        flatten.push(quote!(__state.#enter;));
        if marked(cx, field, "carry", "host") {
            if let Some(lifetime) = borrowed_for(ty) {
                let ty = ty.to_token_stream().to_string().replace("& ", "&");
                let message = format!(
                    "a `#[carry(host)]` field cannot borrow for `{lifetime}`, because its value is kept while the \
                     graph is traced: replace `{ty}` with an owned type such as `String` or `Rc<T>`, or borrow for \
                     `'static`"
                );
                cx.error(lifetime, message);
                continue;
            }
            if mentions_parameter(ty, &input.generics) {
                generics.make_where_clause().predicates.push(parse_quote!(#ty: ::anabranch::__rt::HostValue));
            }
            flatten.push(quote!(__state.host(&self.#member);));
            rebuild.push(quote!(#member: __state.host()));
        } else {
            // Located at the type of the field, so that a type that cannot be carried is reported
            // there.
            let carry = quote_spanned!(ty.span()=> <#ty as ::anabranch::__rt::Carry>);
            flatten.push(quote!(#carry::flatten(&self.#member, __state);));
            rebuild.push(quote!(#member: #carry::rebuild(__state)));
            if mentions_parameter(ty, &input.generics) {
                generics.make_where_clause().predicates.push(parse_quote!(#ty: ::anabranch::__rt::Carry));
            }
        }
        flatten.push(quote!(__state.leave();));
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::anabranch::__rt::Carry for #name #ty_generics #where_clause {
            fn flatten(&self, __state: &mut ::anabranch::__rt::FlatState) {
                #(#flatten)*
                let _ = __state;
            }
            fn rebuild(__state: &mut ::anabranch::__rt::Reader<'_>) -> Self {
                let _ = &__state;
                Self { #(#rebuild),* }
            }
        }
    }
}

/// Returns a lifetime in a type other than `'static`, if there is one.
pub(crate) fn borrowed_for(ty: &syn::Type) -> Option<&syn::Lifetime> {
    #[derive(Default)]
    struct FindLifetime<'a> {
        found: Option<&'a syn::Lifetime>,
        /// The lifetimes of `for<'a>`, which stand for any lifetime.
        any: Vec<&'a syn::Ident>,
    }
    impl<'a> syn::visit::Visit<'a> for FindLifetime<'a> {
        fn visit_lifetime(&mut self, lifetime: &'a syn::Lifetime) {
            if lifetime.ident != "static" && lifetime.ident != "_" && !self.any.contains(&&lifetime.ident) {
                self.found.get_or_insert(lifetime);
            }
        }
        fn visit_lifetime_param(&mut self, param: &'a syn::LifetimeParam) {
            self.any.push(&param.lifetime.ident);
        }
    }
    let mut find = FindLifetime::default();
    syn::visit::Visit::visit_type(&mut find, ty);
    find.found
}

/// Returns whether a type depends on a type parameter.
pub(crate) fn mentions_parameter(ty: &syn::Type, generics: &syn::Generics) -> bool {
    struct FindTypeParameter<'a>(&'a syn::Generics, bool);
    impl<'a> syn::visit::Visit<'a> for FindTypeParameter<'_> {
        fn visit_path(&mut self, path: &'a syn::Path) {
            self.1 |= self.0.type_params().any(|p| path.segments.first().is_some_and(|s| s.ident == p.ident));
            syn::visit::visit_path(self, path);
        }
    }
    let mut find = FindTypeParameter(generics, false);
    syn::visit::Visit::visit_type(&mut find, ty);
    find.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(text: &str) -> String {
        derive(text.parse().unwrap()).to_string()
    }

    #[test]
    fn fields_are_carried_in_order_and_host_fields_are_checked() {
        let out = derived("struct S<T: Element> { a: Tensor<T>, #[carry(host)] n: usize, b: Tensor }");
        let order: Vec<_> =
            ["self . a", "host (& self . n)", "self . b"].iter().map(|s| out.find(s).unwrap()).collect();
        assert!(order.is_sorted(), "{out}");
        assert!(out.contains("where Tensor < T > : :: anabranch :: __rt :: Carry {"), "{out}");
    }

    #[test]
    fn tuple_and_unit_structs_are_built_by_their_members() {
        assert!(derived("struct P(Tensor, Tensor);").contains("Self { 0 : < Tensor as :: anabranch"));
        assert!(derived("struct U;").contains("Self { }"));
    }

    #[test]
    fn enums_and_unknown_arguments_are_errors() {
        assert!(derived("enum E { A }").contains("is for structs, not an enum"));
        assert!(derived("struct S { #[carry(skip)] a: u8 }").contains("unknown argument of `#[carry]`: write"));
    }

    #[test]
    fn bounds_of_the_struct_are_kept_and_those_of_host_fields_added() {
        let out =
            derived("struct S<'a: 'a, T: Element, H> where H: Clone { a: Tensor<T>, #[carry(host)] h: H, b: B<'a> }");
        assert!(out.contains("impl < 'a : 'a , T : Element , H >"), "{out}");
        assert!(out.contains("H : Clone , Tensor < T > : :: anabranch :: __rt :: Carry"), "{out}");
        assert!(out.contains("H : :: anabranch :: __rt :: HostValue"), "{out}");
    }

    #[test]
    fn a_host_field_may_be_a_function_of_any_reference_but_not_of_a_borrowed_one() {
        let refused = "cannot borrow for `'a`";
        assert!(derived("struct S<'a> { #[carry(host)] f: fn(&'a u8) }").contains(refused));
        assert!(
            derived("struct S<'a, 'b> { #[carry(host)] f: &'static str, #[carry(host)] g: R<'b, 'a> }")
                .contains("`'b`")
        );
        for field in ["fn(&u8) -> &u8", "for<'b> fn(&'b u8) -> &'b u8", "Box<dyn for<'b> Fn(&'b u8)>", "&'static str"] {
            assert!(
                !derived(&format!("struct S {{ #[carry(host)] f: {field} }}")).contains("cannot borrow"),
                "{field}"
            );
        }
    }
}
