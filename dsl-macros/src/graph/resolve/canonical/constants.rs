//! Patterns such as `K::D`, whose name may be that of a constant or of a variant.
//!
//! A number is never compared with a variant. An expression is known to be a number from a number
//! in another arm, from a type that is written nearby, or from the arithmetic that computes it. The
//! name in the pattern then gets parentheses, by which [`constant`] recognizes it.

use super::comparisons::matches_arguments;
use super::patterns::{self, constant, numbers, shows_number};
use crate::graph::known::{self, is_number_type};
use crate::graph::scope::Env;
use syn::parse::Parser;
use syn::visit_mut::{self, VisitMut};
use syn::*;

/// Puts parentheses around the patterns that must be constants because they are compared with
/// numbers.
pub(in crate::graph::resolve) fn mark(signature: &Signature, body: &mut Block) {
    let mut marks = Marks { env: Env::default() };
    signature.inputs.iter().for_each(|input| marks.env.declare_parameter(input));
    marks.visit_block_mut(body);
}

struct Marks {
    env: Env,
}

impl Marks {
    /// Walks in a scope of its own.
    fn scoped(&mut self, walk: impl FnOnce(&mut Self)) {
        let scope = self.env.enter();
        walk(self);
        self.env.leave(scope);
    }

    /// Returns whether an expression is a number or a tensor by its form.
    fn is_number(&self, e: &Expr) -> bool {
        match e {
            Expr::Path(p) => p.path.get_ident().is_some_and(|name| self.env.is_number(&name.to_string())),
            Expr::Paren(e) => self.is_number(&e.expr),
            Expr::Group(e) => self.is_number(&e.expr),
            Expr::Unary(e) => !matches!(e.op, UnOp::Not(_)) && self.is_number(&e.expr),
            Expr::Binary(b) => {
                use BinOp::*;
                matches!(b.op, Add(_) | Sub(_) | Mul(_) | Div(_) | Rem(_))
                    && (self.is_number(&b.left) || self.is_number(&b.right))
            }
            Expr::Cast(c) => is_number_type(&c.ty),
            e => patterns::is_number(e),
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

impl VisitMut for Marks {
    fn visit_block_mut(&mut self, block: &mut Block) {
        self.scoped(|marks| visit_mut::visit_block_mut(marks, block));
    }
    fn visit_local_mut(&mut self, local: &mut Local) {
        visit_mut::visit_local_mut(self, local);
        if let Some(init) = &local.init {
            self.patterns(&init.expr, &mut [&mut local.pat]);
        }
        let init = local.init.as_ref().map(|init| &*init.expr);
        let is_number = matches!(local.pat, Pat::Ident(_)) && init.is_some_and(|init| self.is_number(init));
        self.env.declare_let(&local.pat, init);
        if is_number {
            self.env.note_number();
        }
    }
    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.scoped(|marks| {
            marks.env.declare_pat(&arm.pat);
            visit_mut::visit_arm_mut(marks, arm);
        });
    }
    fn visit_expr_for_loop_mut(&mut self, f: &mut ExprForLoop) {
        self.visit_expr_mut(&mut f.expr);
        self.scoped(|marks| {
            marks.visit_pat_mut(&mut f.pat);
            marks.env.declare_pat(&f.pat);
            marks.visit_block_mut(&mut f.body);
        });
    }
    fn visit_expr_closure_mut(&mut self, c: &mut ExprClosure) {
        self.scoped(|marks| {
            c.inputs.iter().for_each(|pat| marks.env.declare_let(pat, None));
            visit_mut::visit_expr_closure_mut(marks, c);
        });
    }
    /// The variables of an `if let` are those of the first branch alone.
    fn visit_expr_if_mut(&mut self, e: &mut ExprIf) {
        self.scoped(|marks| {
            marks.visit_expr_mut(&mut e.cond);
            marks.visit_block_mut(&mut e.then_branch);
        });
        if let Some((_, otherwise)) = &mut e.else_branch {
            self.visit_expr_mut(otherwise);
        }
    }
    fn visit_expr_while_mut(&mut self, w: &mut ExprWhile) {
        self.scoped(|marks| visit_mut::visit_expr_while_mut(marks, w));
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        visit_mut::visit_expr_mut(self, e);
        match e {
            Expr::Match(m) => {
                let mut pats: Vec<&mut Pat> = m.arms.iter_mut().map(|arm| &mut arm.pat).collect();
                self.patterns(&m.expr, &mut pats);
            }
            Expr::Let(l) => {
                self.patterns(&l.expr, &mut [&mut l.pat]);
                self.env.declare_pat(&l.pat);
            }
            Expr::Macro(m) if known::macro_name(&m.mac).as_deref() == Some("matches") => {
                if let Ok((matched, mut pat, rest)) = matches_arguments.parse2(m.mac.tokens.clone()) {
                    self.visit_pat_mut(&mut pat);
                    self.patterns(&matched, &mut [&mut pat]);
                    m.mac.tokens = quote::quote!(#matched, #pat #rest);
                }
            }
            _ => {}
        }
    }
    /// Parentheses that the user wrote have no effect.
    fn visit_pat_mut(&mut self, pat: &mut Pat) {
        visit_mut::visit_pat_mut(self, pat);
        if let Pat::Paren(PatParen { pat: inner, .. }) = pat
            && let Pat::Path(path) = &**inner
        {
            *pat = Pat::Path(path.clone());
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
            "{ match g() + k { K::D => a, _ => b } }",
            "{ let t = k.kind(); match t { K::D => a, _ => b } }",
            "{ { let k: i32 = 3; g(k); } match k { K::D => a, K::E => b } }",
            "{ for t in kinds { match t { K::D => a, K::E => b } } }",
            "{ let g = |t| match t { K::D => a, K::E => b }; }",
            "{ if let Some(t) = k.kind() { match t { K::D => a, K::E => b } } }",
            "{ match k.kind() { Some(t) => match t { K::D => a, K::E => b }, None => c } }",
        ] {
            check(same, same);
        }
        // After the scope of another variable of the name, and in the branch without it.
        check(
            "{ { let t = k.kind(); g(t); } match t { K::D => a, _ => b } }",
            "{ { let t = k.kind(); g(t); } match t { (K::D) => a, _ => b } }",
        );
        check(
            "{ if let Some(t) = k.kind() { g(t) } else { match t { K::D => a, _ => b } } }",
            "{ if let Some(t) = k.kind() { g(t) } else { match t { (K::D) => a, _ => b } } }",
        );
    }

    #[test]
    fn parentheses_of_the_user_make_no_constant() {
        check("{ match k { (K::D) | (K::E) => a, _ => b } }", "{ match k { K::D | K::E => a, _ => b } }");
        check("{ matches!(k, (K::D)) }", "{ matches!(k, K::D) }");
    }
}
