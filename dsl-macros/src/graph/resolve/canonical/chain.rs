//! Long chains of `if`s become trees or blocks, so that their depth does not grow with the length.
//!
//! - A chain of conditions that compare one variable with numbers, like the arms of a `match`,
//!   becomes a tree of `if`s.
//! - Any other chain of `else if`s becomes a labeled block that its arms leave:
//!   `'chain: { if a { break 'chain x; } .. z }`. This is a sequence of jumps.

use super::super::marks::kind_of_outer;
use super::patterns::is_number;
use crate::graph::forms::{block_expr, block_of, comparison, is_structured, is_unit};
use crate::graph::jumps::{block_has_dead_value, block_jumps};
use crate::graph::{known, names};
use proc_macro2::{Span, TokenStream};
use syn::spanned::Spanned;
use syn::*;

/// The maximum number of arms, or of successive jumps, that stay nested.
pub(super) const MAX_NESTED: usize = 16;

/// The maximum number of arms in a leaf of a tree.
const PER_LEAF: usize = 4;

/// The arms of an `if`: the arms with a condition, without their `else`, and the last arm.
pub(super) struct IfChain {
    pub(super) arms: Vec<ExprIf>,
    pub(super) last: Option<Expr>,
}

impl IfChain {
    /// Moves the arms out of an `if`, if it is a long chain.
    pub(super) fn of_long(e: &mut Expr) -> Option<IfChain> {
        let mut n = 0;
        let mut next = Some(&*e);
        while let Some(Expr::If(arm)) = next {
            n += 1;
            next = arm.else_branch.as_ref().map(|(_, e)| &**e);
        }
        if n <= MAX_NESTED {
            return None;
        }
        let mut chain = IfChain { arms: Vec::with_capacity(n), last: None };
        let mut next = Some(std::mem::replace(e, Expr::Verbatim(TokenStream::new())));
        while let Some(e) = next.take() {
            match e {
                Expr::If(mut arm) => {
                    next = arm.else_branch.take().map(|(_, e)| *e);
                    chain.arms.push(arm);
                }
                last => chain.last = Some(last),
            }
        }
        Some(chain)
    }

    /// Returns the expression: nested `if`s for few arms, else a tree of `if`s or a block. `name`
    /// returns the names in the block.
    pub(super) fn build(self, name: impl FnMut(Span) -> (Lifetime, Ident)) -> Expr {
        if self.arms.len() <= MAX_NESTED {
            self.nested()
        } else if one_subject(&self.arms) {
            self.marked_tree()
        } else {
            self.block(name)
        }
    }

    /// Returns a tree in which each `if` but the outermost has the mark that [`has_kind_of_outer`]
    /// looks for.
    fn marked_tree(mut self) -> Expr {
        let attributes = std::mem::take(&mut self.arms[0].attrs);
        self.arms.iter_mut().for_each(|arm| arm.attrs.push(kind_of_outer()));
        let mut tree = self.tree();
        if let Expr::If(outermost) = &mut tree {
            outermost.attrs = attributes;
        }
        tree
    }

    /// Splits the arms in half until few are left.
    ///
    /// One condition tests whether the arm is in the first half. This is possible because the tests
    /// have no side effects.
    fn tree(mut self) -> Expr {
        if self.arms.len() <= PER_LEAF {
            return self.nested();
        }
        let second = self.arms.split_off(self.arms.len() / 2);
        let if_token = self.arms[0].if_token;
        let any = any_of(&self.arms);
        let last = self.arms.pop().expect("half of many arms are some");
        let first = IfChain { arms: self.arms, last: Some(block_expr(last.then_branch)) }.tree();
        let second = IfChain { arms: second, last: self.last }.tree();
        Expr::If(ExprIf {
            attrs: vec![kind_of_outer()],
            if_token,
            cond: Box::new(any),
            then_branch: block_of(first),
            else_branch: Some((Token![else](if_token.span), Box::new(block_expr(block_of(second))))),
        })
    }

    fn nested(self) -> Expr {
        let chain = self.arms.into_iter().rev().fold(self.last, |rest, mut arm| {
            let token = Token![else](arm.if_token.span);
            arm.else_branch = rest.map(|rest| (token, Box::new(rest)));
            Some(Expr::If(arm))
        });
        chain.expect("a chain has arms")
    }

    fn block(mut self, mut name: impl FnMut(Span) -> (Lifetime, Ident)) -> Expr {
        let first = self.arms.first_mut().expect("a long chain has arms");
        let (attrs, at) = (std::mem::take(&mut first.attrs), first.if_token.span);
        let (label, _) = name(at);
        let mut is_left = false;
        let mut stmts: Vec<Stmt> = Vec::with_capacity(self.arms.len() + 1);
        for mut arm in self.arms {
            if !block_jumps(&arm.then_branch) || block_has_dead_value(&arm.then_branch) {
                let (_, value) = name(arm.if_token.span);
                leave_at_end(&mut arm.then_branch, &label, value);
                is_left = true;
            }
            stmts.push(Stmt::Expr(Expr::If(arm), None));
        }
        stmts.extend(self.last.map(block_of).into_iter().flat_map(|last| last.stmts));
        let block = Block { brace_token: token::Brace(at), stmts };
        let label = is_left.then(|| names::label_of(&label));
        under_attributes(attrs, Expr::Block(ExprBlock { attrs: Vec::new(), label, block }))
    }
}

/// Returns whether all conditions compare one variable with numbers.
fn one_subject(arms: &[ExprIf]) -> bool {
    fn subject<'e>(cond: &'e Expr, found: &mut Vec<&'e Ident>) -> bool {
        match cond {
            Expr::Paren(e) => subject(&e.expr, found),
            Expr::Binary(b) if matches!(b.op, BinOp::BitAnd(_) | BinOp::BitOr(_)) => {
                subject(&b.left, found) && subject(&b.right, found)
            }
            Expr::Binary(b) if comparison(&b.op).is_some() => match (&*b.left, &*b.right) {
                (Expr::Path(p), number) if is_number(number) => {
                    found.extend(p.path.get_ident());
                    p.path.get_ident().is_some()
                }
                _ => false,
            },
            _ => false,
        }
    }
    let mut found = Vec::new();
    arms.iter().all(|arm| subject(&arm.cond, &mut found)) && found.iter().all(|name| *name == found[0])
}

/// Returns the condition that selects any of the arms.
fn any_of(arms: &[ExprIf]) -> Expr {
    let equals: Option<Vec<i128>> = arms.iter().map(|arm| equals_number(&arm.cond)).collect();
    // Consecutive numbers are a range.
    if let Some(equals) = equals
        && equals.windows(2).all(|w| w[1] == w[0] + 1)
        && let (Some(first), Some(last)) = (arms.first(), arms.last())
        && let (Expr::Binary(first), Expr::Binary(last)) = (&*first.cond, &*last.cond)
    {
        let (subject, low, high) = (&first.left, &first.right, &last.right);
        return parse_quote!((#subject >= #low) & (#subject <= #high));
    }
    match arms {
        [one] => (*one.cond).clone(),
        arms => {
            let (a, b) = arms.split_at(arms.len() / 2);
            let (a, b) = (any_of(a), any_of(b));
            parse_quote!((#a) | (#b))
        }
    }
}

/// Returns the integer in a condition `x == integer`.
fn equals_number(cond: &Expr) -> Option<i128> {
    fn integer(e: &Expr) -> Option<i128> {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Int(n), .. }) => n.base10_parse().ok(),
            Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => integer(expr).map(|n| -n),
            _ => None,
        }
    }
    match cond {
        Expr::Binary(b) if matches!(b.op, BinOp::Eq(_)) => integer(&b.right),
        _ => None,
    }
}

/// Ends an arm with a `break` that has its value.
fn leave_at_end(arm: &mut Block, label: &Lifetime, name: Ident) {
    let at = name.span();
    let leave = |value: Option<Expr>| -> Stmt {
        Stmt::Expr(
            Expr::Break(ExprBreak {
                attrs: Vec::new(),
                break_token: Token![break](at),
                label: Some(label.clone()),
                expr: value.map(Box::new),
            }),
            Some(Token![;](at)),
        )
    };
    match arm.stmts.pop() {
        // The compiler and the tracer know that a panic never reaches the end of the arm.
        Some(Stmt::Macro(m)) if known::macro_name(&m.mac).is_some_and(|n| known::is_panic(&n)) => {
            arm.stmts.push(Stmt::Macro(m))
        }
        Some(Stmt::Macro(StmtMacro { attrs, mac, semi_token: None })) => {
            arm.stmts.push(leave(Some(Expr::Macro(ExprMacro { attrs, mac }))));
        }
        Some(Stmt::Expr(value, None)) if is_structured(&value) => {
            if is_unit(&value) {
                arm.stmts.extend([Stmt::Expr(value, None), leave(None)]);
            } else {
                arm.stmts.push(parse_quote!(let #name = #value;));
                arm.stmts.push(leave(Some(parse_quote!(#name))));
            }
        }
        Some(Stmt::Expr(value, None)) => arm.stmts.push(leave(Some(value))),
        last => {
            arm.stmts.extend(last);
            arm.stmts.push(leave(None));
        }
    }
}

/// Returns the body of an arm under its attributes, which are allowed only on a statement.
pub(super) fn under_attributes(attrs: Vec<Attribute>, body: Expr) -> Expr {
    if attrs.is_empty() {
        return body;
    }
    let name = names::helper("arm", 0, body.span());
    parse_quote!({ #(#attrs)* let #name = #body; #name })
}
