//! Properties of Rust code that follow from its form.

use super::known;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::{Attribute, BinOp, Block, Expr, ExprBlock, Stmt};

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

/// Returns whether an expression is `()` by its form.
pub(crate) fn is_unit(e: &Expr) -> bool {
    match e {
        Expr::Assign(_) | Expr::While(_) | Expr::ForLoop(_) => true,
        Expr::Binary(b) => is_assignment(&b.op),
        Expr::If(e) => e.else_branch.is_none(),
        Expr::Macro(m) => known::is_unit_macro(&m.mac),
        _ => false,
    }
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

/// Returns the location of the first token of a statement.
pub(crate) fn start(stmt: &Stmt) -> Span {
    let start_or = |attrs: &[Attribute], span| attrs.first().map_or(span, |attr| attr.pound_token.span);
    match stmt {
        Stmt::Local(local) => start_or(&local.attrs, local.let_token.span),
        Stmt::Expr(e, _) => start_of(e),
        Stmt::Macro(m) => start_or(&m.attrs, m.mac.path.span()),
        Stmt::Item(item) => item.span(),
    }
}

/// Returns the location of the first token of an expression, without a search for the last token of
/// a long expression.
fn start_of(e: &Expr) -> Span {
    let (attrs, label, token) = match e {
        Expr::If(e) => (&e.attrs, None, e.if_token.span),
        Expr::Match(e) => (&e.attrs, None, e.match_token.span),
        Expr::While(e) => (&e.attrs, e.label.as_ref(), e.while_token.span),
        Expr::ForLoop(e) => (&e.attrs, e.label.as_ref(), e.for_token.span),
        Expr::Loop(e) => (&e.attrs, e.label.as_ref(), e.loop_token.span),
        Expr::Block(e) => (&e.attrs, e.label.as_ref(), e.block.brace_token.span.join()),
        Expr::Assign(e) if e.attrs.is_empty() => return start_of(&e.left),
        Expr::Binary(e) if e.attrs.is_empty() => return start_of(&e.left),
        Expr::Call(e) if e.attrs.is_empty() => return start_of(&e.func),
        Expr::MethodCall(e) if e.attrs.is_empty() => return start_of(&e.receiver),
        e => return e.span(),
    };
    let token = label.map_or(token, |label| label.name.apostrophe);
    attrs.first().map_or(token, |attr| attr.pound_token.span)
}

/// Replaces the expression by an empty one, and returns it.
pub(crate) fn take(e: &mut Expr) -> Expr {
    std::mem::replace(e, Expr::Verbatim(TokenStream::new()))
}
