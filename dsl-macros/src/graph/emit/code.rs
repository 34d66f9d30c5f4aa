//! Fills the holes in Rust code.

use super::output::ToRust;
use crate::graph::tree::{Code, HoleId, MacroArguments, Part, Passed, number_of_hole};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::visit_mut::{self, VisitMut};
use syn::*;

impl ToRust for Code {
    type Output = Expr;

    fn emit(self) -> Expr {
        let mut syntax = self.syntax;
        Fill::new(self.parts).visit(&mut syntax);
        syntax
    }
}

impl ToRust for MacroArguments {
    type Output = TokenStream;

    fn emit(mut self) -> TokenStream {
        let mut fill = Fill::new(self.parts);
        self.syntax.iter_mut().for_each(|argument| fill.visit(&mut argument.value));
        self.syntax.into_token_stream()
    }
}

impl ToRust for Passed {
    type Output = Expr;

    fn emit(self) -> Expr {
        let syntax = self.syntax;
        match self.is_reborrowed.get() {
            false => syntax,
            true => {
                let at = Span::mixed_site().located_at(self.place.expr.span);
                parse_quote_spanned!(at=> &mut *#syntax)
            }
        }
    }
}

/// The expressions for the holes of code, until they are used.
#[derive(Default)]
pub(super) struct Fill(Vec<(HoleId, Option<Expr>)>);

impl Fill {
    /// Emits the nodes among the parts of code.
    pub(super) fn new(parts: Vec<Part>) -> Fill {
        // Iterators would need more of the stack, which is limited.
        let mut fill = Fill::default();
        for part in parts {
            if let Part::Node { hole, node, .. } = part {
                fill.add(hole, node.emit());
            }
        }
        fill
    }

    /// Adds the expression for a hole.
    pub(super) fn add(&mut self, hole: HoleId, e: Expr) {
        self.0.push((hole, Some(e)));
    }

    /// Fills the holes in an expression.
    pub(super) fn visit(&mut self, e: &mut Expr) {
        if !self.0.is_empty() {
            self.0.sort_unstable_by_key(|(hole, _)| *hole);
            self.visit_expr_mut(e);
        }
    }
}

impl VisitMut for Fill {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        let Some(number) = number_of_hole(e) else { return visit_mut::visit_expr_mut(self, e) };
        let i = self.0.binary_search_by_key(&number, |(hole, _)| *hole).expect("each hole has a node");
        *e = self.0[i].1.take().expect("each hole is filled once");
    }
    fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
        self.visit_expr_mut(&mut field.expr);
        // `S { x }` is short for `S { x: x }`, which any other expression needs.
        if !matches!(field.expr, Expr::Path(_)) {
            field.colon_token.get_or_insert_default();
        }
    }
    /// The guard of an arm belongs to its pattern.
    fn visit_pat_mut(&mut self, pat: &mut Pat) {
        if let Pat::Guard(guard) = pat {
            self.visit_expr_mut(&mut guard.guard);
        }
    }
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_path_mut(&mut self, _: &mut Path) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
}

/// Returns an expansion with the attributes of the expression that it replaces.
pub(super) fn with_attributes(attrs: &[Attribute], expansion: Expr) -> Expr {
    if attrs.is_empty() { expansion } else { Expr::Verbatim(quote!(#(#attrs)* #expansion)) }
}

/// Returns `{ checks; expr }`.
pub(super) fn after_checks(checks: TokenStream, e: &Expr) -> Expr {
    Expr::Block(ExprBlock {
        attrs: Vec::new(),
        label: None,
        block: Block {
            brace_token: token::Brace(Span::mixed_site()),
            stmts: vec![
                Stmt::Expr(Expr::Verbatim(checks), None),
                Stmt::Expr(Expr::Verbatim(e.to_token_stream()), None),
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tree::hole;

    /// Returns code in which each number in brackets is a hole, filled with these expressions.
    fn filled(text: &str, filling: &[&str]) -> String {
        struct Holes;
        impl VisitMut for Holes {
            fn visit_expr_mut(&mut self, e: &mut Expr) {
                match e {
                    Expr::Array(a) if a.elems.len() == 1 => {
                        let number: HoleId = a.elems[0].to_token_stream().to_string().parse().unwrap();
                        *e = hole(number);
                    }
                    e => visit_mut::visit_expr_mut(self, e),
                }
            }
        }
        let mut code: Expr = parse_str(text).unwrap();
        Holes.visit_expr_mut(&mut code);
        let mut fill = Fill::default();
        (0..).zip(filling).for_each(|(i, e)| fill.add(i, parse_str(e).unwrap()));
        fill.visit(&mut code);
        code.to_token_stream().to_string().replace(' ', "")
    }

    #[test]
    fn holes_are_filled_by_number_wherever_they_are() {
        assert_eq!(filled("g([1], 1, [0])", &["a", "b"]), "g(b,1,a)");
        assert_eq!(filled("[0]", &["a"]), "a");
        assert_eq!(filled("match x { y if [0] => 1, _ => [1] }", &["a", "b"]), "matchx{yifa=>1,_=>b}");
    }

    #[test]
    fn code_in_a_hole_is_not_searched_for_holes() {
        assert_eq!(filled("g([0], [1])", &["1", "0"]), "g(1,0)");
    }

    #[test]
    fn a_filled_field_keeps_its_name() {
        assert_eq!(filled("S { x, y: [0] }", &["a + 1"]), "S{x,y:a+1}");
        let mut fill = Fill(vec![(0, Some(parse_quote!(&mut *x)))]);
        let mut code: Expr = parse_quote!(S { x });
        if let Expr::Struct(s) = &mut code {
            s.fields[0].expr = hole(0);
        }
        fill.visit(&mut code);
        assert_eq!(code.to_token_stream().to_string().replace(' ', ""), "S{x:&mut*x}");
    }
}
