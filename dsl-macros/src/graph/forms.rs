//! Properties of Rust code that follow from its form.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{BinOp, Block, Expr, ExprBlock, ExprIf, Stmt};

/// Returns whether a condition has a `let` in its `&&` chain.
pub(crate) fn has_let(cond: &Expr) -> bool {
    match cond {
        Expr::Let(_) => true,
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

pub(crate) fn is_assignment(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

/// Returns the location of a comparison and the name of the function that it calls.
pub(crate) fn comparison(op: &BinOp) -> Option<(Span, &'static str)> {
    Some(match op {
        BinOp::Eq(t) => (t.spans[0], "eq"),
        BinOp::Ne(t) => (t.spans[0], "ne"),
        BinOp::Lt(t) => (t.spans[0], "lt"),
        BinOp::Le(t) => (t.spans[0], "le"),
        BinOp::Gt(t) => (t.spans[0], "gt"),
        BinOp::Ge(t) => (t.spans[0], "ge"),
        _ => return None,
    })
}

/// Returns an expression without its outer parentheses, which an argument does not need.
pub(crate) fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(e) if e.attrs.is_empty() => bare(&e.expr),
        e => e,
    }
}

/// Passes the names in code to `note`, including those in format strings.
pub(crate) fn note_names(code: TokenStream, note: &mut impl FnMut(String)) {
    for token in code {
        match token {
            TokenTree::Ident(ident) => note(ident.to_string()),
            TokenTree::Group(group) => note_names(group.stream(), note),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('{') {
                    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                    words.filter(|w| !w.is_empty()).for_each(|w| note(w.to_owned()));
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

pub(crate) fn block_of(e: Expr) -> Block {
    match e {
        Expr::Block(b) if b.label.is_none() && b.attrs.is_empty() => b.block,
        e => Block { brace_token: Default::default(), stmts: vec![Stmt::Expr(e, None)] },
    }
}

pub(crate) fn block_expr(block: Block) -> Expr {
    Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block })
}

/// Returns whether an expression has a body in which a jump has a statement of its own.
pub(crate) fn is_structured(e: &Expr) -> bool {
    matches!(e, Expr::If(_) | Expr::Match(_) | Expr::Block(_) | Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_))
}

/// Moves the expression out and leaves an empty one.
pub(crate) fn take(e: &mut Expr) -> Expr {
    std::mem::replace(e, Expr::Verbatim(TokenStream::new()))
}

/// Returns whether an `if` can have a value, because its last `else` has no condition.
pub(crate) fn ends_with_else(e: &ExprIf) -> bool {
    match e.else_branch.as_ref().map(|(_, e)| &**e) {
        Some(Expr::If(inner)) => ends_with_else(inner),
        otherwise => otherwise.is_some(),
    }
}
