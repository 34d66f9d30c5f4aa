//! Patterns such as `K::D`, whose name may be that of a constant or of a variant.
//!
//! A number is never compared with a variant. An expression is known to be a number from a number
//! in another arm, from a type that is written nearby, or from the arithmetic that computes it. The
//! name in the pattern then gets parentheses, by which [`constant`](super::constant) recognizes it.

use super::{constant, numbers, shows_number};
use std::collections::HashSet;
use syn::parse::Parser;
use syn::visit_mut::{self, VisitMut};
use syn::*;

/// Puts parentheses around the patterns that must be constants because they are compared with
/// numbers.
pub(super) fn mark(signature: &Signature, body: &mut Block) {
    let mut marks = Marks { numbers: HashSet::new() };
    for input in &signature.inputs {
        if let FnArg::Typed(input) = input {
            marks.declare(&input.pat, is_number_type(&input.ty));
        }
    }
    marks.visit_block_mut(body);
}

struct Marks {
    /// The variables that are numbers or tensors.
    numbers: HashSet<String>,
}

impl Marks {
    fn declare(&mut self, pat: &Pat, is_number: bool) {
        if let Pat::Ident(p) = pat {
            let name = p.ident.to_string();
            if is_number {
                self.numbers.insert(name);
            } else {
                self.numbers.remove(&name);
            }
        }
    }

    /// Returns whether an expression is a number or a tensor by its form.
    fn is_number(&self, e: &Expr) -> bool {
        match e {
            Expr::Path(p) => p.path.get_ident().is_some_and(|name| self.numbers.contains(&name.to_string())),
            Expr::Paren(e) => self.is_number(&e.expr),
            Expr::Group(e) => self.is_number(&e.expr),
            Expr::Unary(e) => !matches!(e.op, UnOp::Not(_)) && self.is_number(&e.expr),
            Expr::Binary(b) => {
                use BinOp::*;
                matches!(b.op, Add(_) | Sub(_) | Mul(_) | Div(_) | Rem(_))
            }
            Expr::Cast(c) => is_number_type(&c.ty),
            e => super::is_number(e),
        }
    }

    fn patterns(&self, matched: &Expr, pats: &mut [&mut Pat]) {
        if let Some(tuple) = numbers(matched) {
            for (i, matched) in tuple.elems.iter().enumerate() {
                let mut items: Vec<&mut Pat> = pats
                    .iter_mut()
                    .filter_map(|pat| match unguarded(pat) {
                        Pat::Tuple(p) if p.elems.len() == tuple.elems.len() => p.elems.get_mut(i),
                        _ => None,
                    })
                    .collect();
                self.patterns(matched, &mut items);
            }
        } else if self.is_number(matched) || pats.iter_mut().any(|pat| shows_number(unguarded(pat))) {
            pats.iter_mut().for_each(|pat| in_parentheses(unguarded(pat)));
        }
    }
}

fn unguarded(pat: &mut Pat) -> &mut Pat {
    match pat {
        Pat::Guard(g) => &mut g.pat,
        pat => pat,
    }
}

fn in_parentheses(pat: &mut Pat) {
    match pat {
        Pat::Path(_) if constant(pat).is_none() => *pat = parse_quote!((#pat)),
        Pat::Or(or) => or.cases.iter_mut().for_each(in_parentheses),
        Pat::Ident(PatIdent { subpat: Some((_, pat)), .. }) => in_parentheses(pat),
        Pat::Paren(PatParen { pat, .. }) if !matches!(**pat, Pat::Path(_)) => in_parentheses(pat),
        _ => {}
    }
}

fn is_number_type(ty: &Type) -> bool {
    let names =
        ["Tensor", "i8", "i16", "i32", "i64", "isize", "u8", "u16", "u32", "u64", "usize", "f16", "bf16", "f32", "f64"];
    match ty {
        // The type is an argument of a `macro_rules!` macro.
        Type::Group(ty) => is_number_type(&ty.elem),
        Type::Paren(ty) => is_number_type(&ty.elem),
        Type::Path(p) => p.path.segments.last().is_some_and(|s| names.iter().any(|name| s.ident == name)),
        _ => false,
    }
}

impl VisitMut for Marks {
    fn visit_local_mut(&mut self, local: &mut Local) {
        visit_mut::visit_local_mut(self, local);
        let (pat, of_type) = match &local.pat {
            Pat::Type(p) => (&*p.pat, is_number_type(&p.ty)),
            pat => (pat, false),
        };
        let is_number = of_type || local.init.as_ref().is_some_and(|init| self.is_number(&init.expr));
        self.declare(pat, is_number);
        if let Some(init) = &local.init {
            self.patterns(&init.expr, &mut [&mut local.pat]);
        }
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        visit_mut::visit_expr_mut(self, e);
        match e {
            Expr::Match(m) => {
                let mut pats: Vec<&mut Pat> = m.arms.iter_mut().map(|arm| &mut arm.pat).collect();
                self.patterns(&m.expr, &mut pats);
            }
            Expr::Let(l) => self.patterns(&l.expr, &mut [&mut l.pat]),
            Expr::Macro(m) if super::known::macro_name(&m.mac).as_deref() == Some("matches") => {
                if let Ok((matched, mut pat, rest)) = super::matches_arguments.parse2(m.mac.tokens.clone()) {
                    self.patterns(&matched, &mut [&mut pat]);
                    m.mac.tokens = quote::quote!(#matched, #pat #rest);
                }
            }
            _ => {}
        }
    }
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    #[track_caller]
    fn check(before: &str, after: &str) {
        let mut function: ItemFn = parse_str(&format!("fn f(t: Tensor<i32>, k: Kind) {before}")).unwrap();
        mark(&function.sig, &mut function.block);
        let expected: Block = parse_str(after).unwrap();
        assert_eq!(function.block.to_token_stream().to_string(), expected.to_token_stream().to_string());
    }

    #[test]
    fn what_is_compared_with_numbers_is_a_constant() {
        check("{ match t { K::D | K::E => a, _ => b } }", "{ match t { (K::D) | (K::E) => a, _ => b } }");
        check("{ match g() { 1 => a, K::D => b, _ => c } }", "{ match g() { 1 => a, (K::D) => b, _ => c } }");
        check("{ match (k, t) { (K::D, K::E) => a, _ => b } }", "{ match (k, t) { (K::D, (K::E)) => a, _ => b } }");
        check("{ let n = t % 3; if let K::D = n { a } }", "{ let n = t % 3; if let (K::D) = n { a } }");
        check("{ matches!(t, K::D if c) }", "{ matches!(t, (K::D) if c) }");
        for same in [
            "{ match k { K::D => a, _ => b } }",
            "{ match g(t) { K::D => a, _ => b } }",
            "{ let t = k.kind(); match t { K::D => a, _ => b } }",
        ] {
            check(same, same);
        }
    }
}
