//! If one arm of an `if` jumps, the code after the `if` moves into the other arm.

use crate::graph::forms::{block_expr, block_of, has_let, is_structured};
use crate::graph::jumps::{block_has_dead_value, block_jumps, expr_has_dead_value, expr_jumps};
use syn::spanned::Spanned;
use syn::*;

/// If exactly one arm of the `if` in a statement certainly jumps, returns a function that moves the
/// rest of the block into the other arm.
pub(super) fn split(stmt: &mut Stmt) -> Option<impl FnOnce(Vec<Stmt>) -> ExprIf> {
    let e = match value_of(stmt)? {
        Expr::If(e) if !has_let(&e.cond) && e.attrs.is_empty() => e,
        _ => return None,
    };
    let (jumps, has_else) = (
        [block_jumps(&e.then_branch), e.else_branch.as_ref().is_some_and(|(_, e)| expr_jumps(e))],
        e.else_branch.is_some(),
    );
    if jumps[0] == jumps[1] {
        return None;
    }
    // A value after a jump has the type of this `if`, and not that of the rest.
    let has_dead_value = match &e.else_branch {
        Some((_, second)) if jumps[1] => expr_has_dead_value(second),
        _ => block_has_dead_value(&e.then_branch),
    };
    if has_dead_value && !has_else {
        discard_value(&mut e.then_branch);
    }
    if (has_dead_value && has_else) || (matches!(stmt, Stmt::Local(_) | Stmt::Expr(Expr::Assign(_), _)) && !has_else) {
        return None;
    }
    let stmt = std::mem::replace(stmt, Stmt::Item(Item::Verbatim(Default::default())));
    Some(move |rest: Vec<Stmt>| join(stmt, jumps[0], rest))
}

/// Moves `rest` to the end of the arm that does not jump, which becomes the second arm.
fn join(mut stmt: Stmt, first_jumps: bool, rest: Vec<Stmt>) -> ExprIf {
    let value = value_of(&mut stmt).expect("the statement has an `if`");
    let Expr::If(mut e) = std::mem::replace(value, Expr::Verbatim(Default::default())) else {
        unreachable!("the statement has an `if`")
    };
    let (else_token, second) = match e.else_branch.take() {
        Some((token, second)) => (token, Some(*second)),
        None => (Token![else](e.if_token.span), None),
    };
    let (jumping, going) = if first_jumps {
        (e.then_branch, second)
    } else {
        let cond = &e.cond;
        let not = Token![!](cond.span());
        e.cond = parse_quote!(#not (#cond));
        let going = std::mem::replace(&mut e.then_branch, Block { brace_token: Default::default(), stmts: vec![] });
        (block_of(second.expect("the second arm jumps")), Some(block_expr(going)))
    };
    let mut stmts = Vec::with_capacity(rest.len() + 1);
    if let Some(going) = going {
        match &mut stmt {
            Stmt::Expr(Expr::Verbatim(_), _) => match going {
                // Names of the arm would shadow names that the rest uses.
                Expr::Block(b) if b.label.is_none() && !b.block.stmts.iter().any(declares) => {
                    let mut own = b.block.stmts;
                    if let Some(Stmt::Expr(last, semi @ None)) = own.last_mut()
                        && !is_structured(last)
                    {
                        *semi = Some(Token![;](last.span()));
                    }
                    stmts.extend(own);
                }
                other => stmts.push(Stmt::Expr(other, None)),
            },
            other => {
                *value_of(other).expect("the statement has an `if`") = going;
                stmts.push(stmt);
            }
        }
    }
    stmts.extend(rest);
    e.then_branch = jumping;
    e.else_branch = Some((else_token, Box::new(block_expr(Block { brace_token: Default::default(), stmts }))));
    e
}

/// Ends the last expression of a block with a semicolon.
fn discard_value(block: &mut Block) {
    match block.stmts.last_mut() {
        Some(Stmt::Expr(last, semi)) => *semi = Some(Token![;](last.span())),
        Some(Stmt::Macro(last)) => last.semi_token = Some(Token![;](last.mac.path.span())),
        _ => {}
    }
}

fn declares(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Local(_) | Stmt::Item(_) | Stmt::Macro(_))
}

/// Returns the expression whose value a statement computes, binds or assigns.
pub(super) fn value_of(stmt: &mut Stmt) -> Option<&mut Expr> {
    match stmt {
        Stmt::Local(Local { init: Some(LocalInit { expr, diverge: None, .. }), .. }) => Some(expr),
        Stmt::Expr(Expr::Assign(a), _) => Some(&mut a.right),
        Stmt::Expr(e, _) => Some(e),
        _ => None,
    }
}
