//! Places: the targets of assignments.

use super::variables::Access;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Member, UnOp};

/// A projection from a place to a part of it.
#[derive(Clone, Debug)]
pub(crate) enum Projection {
    /// `.name` or `.0`
    Field(Member),
    /// `*`
    Deref,
}

/// A place as it is written: a variable and the path to a part of it.
#[derive(Clone, Debug)]
pub(crate) struct PlaceExpr {
    pub(crate) root: Ident,
    pub(crate) projections: Vec<Projection>,
    /// Whether an index follows the projections, so that the place is only a part of their target.
    pub(crate) indexed: bool,
    pub(crate) span: Span,
}

impl PlaceExpr {
    /// Returns the place of a whole variable, located at `span`.
    pub(crate) fn variable(name: &Ident, span: Span) -> PlaceExpr {
        let mut root = name.clone();
        root.set_span(name.span().located_at(span));
        PlaceExpr { root, projections: Vec::new(), indexed: false, span }
    }

    /// Returns the place that an expression names, if it names a place.
    pub(crate) fn of(expr: &Expr) -> Option<PlaceExpr> {
        let span = expr.span();
        let mut place = match expr {
            Expr::Path(p) if p.qself.is_none() => {
                let root = p.path.get_ident()?.clone();
                PlaceExpr { root, projections: Vec::new(), indexed: false, span }
            }
            Expr::Field(e) => {
                let mut base = PlaceExpr::of(&e.base)?;
                if !base.indexed {
                    base.projections.push(Projection::Field(e.member.clone()));
                }
                base
            }
            Expr::Index(e) => PlaceExpr { indexed: true, ..PlaceExpr::of(&e.expr)? },
            Expr::Unary(e) if matches!(e.op, UnOp::Deref(_)) => {
                let mut base = PlaceExpr::of(&e.expr)?;
                if !base.indexed {
                    base.projections.push(Projection::Deref);
                }
                base
            }
            Expr::Paren(e) => PlaceExpr::of(&e.expr)?,
            Expr::Group(e) => PlaceExpr::of(&e.expr)?,
            _ => return None,
        };
        place.span = span;
        Some(place)
    }

    /// Returns expressions for the variable and each field on the path to this place.
    pub(crate) fn prefixes(&self) -> Vec<TokenStream> {
        let mut prefixes = vec![self.root.to_token_stream()];
        for projection in &self.projections {
            let Projection::Field(member) = projection else {
                break;
            };
            let base = &prefixes[prefixes.len() - 1];
            prefixes.push(quote!(#base.#member));
        }
        prefixes
    }

    /// Returns the fields on the path. Dereferences do not matter for the comparison of places.
    fn fields(&self) -> Vec<String> {
        let field = |p: &Projection| match p {
            Projection::Field(m) => Some(m.to_token_stream().to_string()),
            Projection::Deref => None,
        };
        self.projections.iter().filter_map(field).collect()
    }

    /// Returns whether two places of a variable overlap.
    pub(crate) fn overlaps(&self, other: &PlaceExpr) -> bool {
        let (a, b) = (self.fields(), other.fields());
        a.starts_with(&b) || b.starts_with(&a)
    }

    /// Returns the place to carry if all of this place may change. `access` is that of its
    /// variable.
    pub(crate) fn whole(mut self, access: Access) -> PlaceExpr {
        let through_reference = match access {
            Access::MutRef | Access::Item => true,
            Access::Plain => self.indexed,
            Access::Mut => false,
        };
        if self.projections.is_empty() && through_reference {
            self.projections.push(Projection::Deref);
        }
        self
    }
}

/// The value whose type decides whether a method with a known name modifies a place.
#[derive(Clone, Debug)]
pub(crate) enum ReceiverExpr {
    /// The place itself.
    Itself,
    /// An item of the place, found by an index. If the item may change, the place may.
    Item,
    /// The receiver as written, of a method that a trait declares with `&self`.
    OfTrait {
        /// The method, located at the call.
        method: Ident,
        /// The name of the trait in the expansion.
        of_trait: &'static str,
        receiver: Box<Expr>,
    },
}

impl PartialEq for ReceiverExpr {
    fn eq(&self, other: &ReceiverExpr) -> bool {
        match (self, other) {
            (ReceiverExpr::Itself, ReceiverExpr::Itself) | (ReceiverExpr::Item, ReceiverExpr::Item) => true,
            (
                ReceiverExpr::OfTrait { method: a, receiver: x, .. },
                ReceiverExpr::OfTrait { method: b, receiver: y, .. },
            ) => {
                let typed = |receiver: &Expr| typed(receiver, &|_| TokenStream::new()).to_string();
                a == b && typed(x) == typed(y)
            }
            _ => false,
        }
    }
}

/// Returns the expression of a place with each index replaced by `index(container)`.
///
/// The expression has the same type and uses only the variable of the place.
pub(crate) fn typed(place: &Expr, index: &impl Fn(&TokenStream) -> TokenStream) -> TokenStream {
    match place {
        Expr::Field(e) => {
            let (base, member) = (typed(&e.base, index), &e.member);
            quote!(#base.#member)
        }
        Expr::Index(e) => {
            let base = typed(&e.expr, index);
            let index = index(&base);
            quote!(#base[#index])
        }
        Expr::Unary(e) if matches!(e.op, UnOp::Deref(_)) => {
            let base = typed(&e.expr, index);
            quote!((*#base))
        }
        Expr::Paren(e) => typed(&e.expr, index),
        Expr::Group(e) => typed(&e.expr, index),
        other => other.to_token_stream(),
    }
}

/// The identifier of a variable or helper variable.
///
/// Ids grow in the order of declaration: a variable declared inside a construct has a larger id
/// than any variable declared before the construct.
pub(crate) type BindingId = usize;

/// A place that a construct carries.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) written: PlaceExpr,
    pub(crate) binding: BindingId,
    /// The receivers of methods that may modify the place, depending on their types. If there are
    /// no receivers, the place certainly changes.
    pub(crate) receivers: Vec<ReceiverExpr>,
}

impl Place {
    fn fields(&self) -> Vec<String> {
        self.written.fields()
    }

    /// Returns whether this is the whole variable, or the target of its reference.
    pub(crate) fn is_whole(&self) -> bool {
        self.fields().is_empty()
    }

    /// Returns whether this is a part of the variable itself, not of the target of a reference, as
    /// far as tokens show.
    ///
    /// Only a mutable reference modifies anything through a variable that is not `mut`.
    pub(crate) fn is_owned(&self, access: Access) -> bool {
        access == Access::Mut && self.derefs() == 0
    }

    /// Returns whether two places have a common part.
    pub(crate) fn overlaps(&self, other: &Place) -> bool {
        self.binding == other.binding && self.written.overlaps(&other.written)
    }

    fn derefs(&self) -> usize {
        self.written.projections.iter().filter(|p| matches!(p, Projection::Deref)).count()
    }

    /// Returns whether `other` is this place or a part of it.
    pub(crate) fn covers(&self, other: &Place) -> bool {
        let (a, b) = (self.fields(), other.fields());
        self.binding == other.binding && b.starts_with(&a) && (b.len() > a.len() || self.derefs() <= other.derefs())
    }

    /// Returns whether the place changes whatever its types are.
    pub(crate) fn is_certain(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Returns the name of the place, with a `?` if it may not change.
    #[cfg(test)]
    pub(crate) fn described(&self) -> String {
        self.name() + if self.is_certain() { "" } else { "?" }
    }

    /// Returns `a.b.0`, for messages.
    pub(crate) fn name(&self) -> String {
        std::iter::once(self.written.root.to_string()).chain(self.fields()).collect::<Vec<_>>().join(".")
    }

    /// Returns `&mut a.b.0`, located at the user's assignment.
    pub(crate) fn borrow(&self) -> TokenStream {
        let (at, expr) = (Span::mixed_site().located_at(self.written.span), self.expr());
        quote_spanned!(at=> &mut #expr)
    }

    /// Returns `a.b.0`.
    pub(crate) fn expr(&self) -> TokenStream {
        let mut expr = self.written.root.to_token_stream();
        let last = self.written.projections.len().wrapping_sub(1);
        for (i, projection) in self.written.projections.iter().enumerate() {
            expr = match projection {
                Projection::Field(member) => quote!(#expr.#member),
                Projection::Deref if i == last => quote!(*#expr),
                Projection::Deref => quote!((*#expr)),
            };
        }
        expr
    }
}

/// The places that a construct carries. No place is a part of another place that certainly changes.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    /// Adds a place, unless another one covers it.
    pub(crate) fn add(&mut self, place: Place) {
        if self.0.iter().any(|p| p.is_certain() && p.covers(&place)) {
            return;
        }
        if place.is_certain() {
            self.0.retain(|p| !place.covers(p));
        } else if let Some(same) = self.0.iter_mut().find(|p| p.covers(&place) && place.covers(p)) {
            for receiver in place.receivers {
                if !same.receivers.contains(&receiver) {
                    same.receivers.push(receiver);
                }
            }
            return;
        }
        self.0.push(place);
    }

    /// Returns the places that contain `part` and may change. A place that changes carries `part`
    /// with it.
    pub(crate) fn around<'a>(&'a self, part: &'a Place) -> impl Iterator<Item = (usize, &'a Place)> {
        self.iter().enumerate().filter(|(_, p)| !p.is_certain() && p.covers(part) && !part.covers(p))
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Place> + ExactSizeIterator {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_str;

    fn place(text: &str) -> Place {
        Place { written: PlaceExpr::of(&parse_str(text).unwrap()).unwrap(), binding: 0, receivers: Vec::new() }
    }

    fn after(texts: &[&str]) -> Vec<String> {
        let mut places = Places::default();
        texts.iter().for_each(|t| places.add(place(t)));
        places.iter().map(|p| p.borrow().to_string()).collect()
    }

    #[test]
    fn a_place_is_a_path_of_fields_up_to_the_first_index() {
        assert_eq!(place("a.b.0").name(), "a.b.0");
        assert_eq!(place("a.b[3].c").name(), "a.b");
        assert_eq!(place("(*a).b").borrow().to_string(), "& mut (* a) . b");
        assert!(PlaceExpr::of(&parse_str("f().x").unwrap()).is_none());
    }

    #[test]
    fn a_place_covers_its_parts() {
        assert_eq!(after(&["a.b", "a.b.c"]), ["& mut a . b"]);
        assert_eq!(after(&["a.b.c", "a.d", "a.b"]), ["& mut a . d", "& mut a . b"]);
        assert_eq!(after(&["*r", "r.x"]), ["& mut * r"]);
        assert_eq!(after(&["*r", "r"]), ["& mut r"]);
        assert_eq!(after(&["a.x", "a.xy"]), ["& mut a . x", "& mut a . xy"]);
    }

    #[test]
    fn a_place_that_perhaps_changes_leaves_its_parts_beside_it() {
        let receivers = |places: &[(&str, &[ReceiverExpr])]| {
            let mut all = Places::default();
            places.iter().for_each(|(text, receivers)| all.add(Place { receivers: receivers.to_vec(), ..place(text) }));
            all.iter().map(|p| (p.name(), p.receivers.clone(), all.around(p).count())).collect::<Vec<_>>()
        };
        let (itself, item) = (ReceiverExpr::Itself, ReceiverExpr::Item);
        let both = [item.clone(), itself.clone()];
        let (itself, item) = ([itself], [item]);
        assert_eq!(receivers(&[("a", &itself), ("a", &[])]), [("a".into(), vec![], 0)]);
        assert_eq!(receivers(&[("a", &[]), ("a.b", &itself)]), [("a".into(), vec![], 0)]);
        assert_eq!(receivers(&[("a", &item), ("a", &itself), ("a", &item)]), [("a".into(), both.to_vec(), 0)]);
        assert_eq!(
            receivers(&[("a.b", &[]), ("a", &itself)]),
            [("a.b".into(), vec![], 1), ("a".into(), itself.to_vec(), 0)]
        );
    }

    #[test]
    fn what_is_behind_a_reference_is_carried_by_its_target() {
        let whole = |text: &str, access| {
            let written = PlaceExpr::of(&parse_str(text).unwrap()).unwrap().whole(access);
            Place { written, binding: 0, receivers: Vec::new() }.borrow().to_string()
        };
        assert_eq!(whole("p", Access::MutRef), "& mut * p");
        assert_eq!(whole("v[i]", Access::Mut), "& mut v");
        assert_eq!(whole("v[i]", Access::Plain), "& mut * v");
        assert_eq!(whole("self.layers[i]", Access::MutRef), "& mut self . layers");
    }
}
