//! Variables declared by `let x;` that are initialized on the paths through a labeled block, or out
//! of a `loop`.
//!
//! `'a: { if c { x = 1; break 'a; } x = 2; }` becomes
//! `x = 'a: { let x; if c { break 'a 1; } x = 2; x };`, and `loop { if c { x = 1; break; } }`
//! becomes `x = 'a: loop { let x; if c { break 'a 1; } }`, because a jump can carry a value.
//!
//! All jumps of the statement are rewritten together, before any of them is resolved, because the
//! statement has this form only if each of them fits.

use crate::graph::jumps::block_jumps;
use crate::graph::names;
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::*;

/// Rewrites a block or loop to return the variables that it initializes.
///
/// This applies if a jump leaves the statement after the initialization of a variable inside an
/// arm.
pub(super) fn through(stmt: &Stmt, deferred: &[Local], new_label: impl FnOnce(Span) -> Lifetime) -> Option<Vec<Stmt>> {
    if deferred.is_empty() {
        return None;
    }
    let mut whole = match stmt {
        Stmt::Expr(Expr::Block(b), _) if b.label.is_some() => Expr::Block(b.clone()),
        Stmt::Expr(Expr::Loop(l), _) => Expr::Loop(labeled(l, new_label)),
        Stmt::Local(local @ Local { init: Some(LocalInit { expr, diverge: None, .. }), .. }) => match &**expr {
            Expr::Block(b) if b.label.is_some() && !is_made_here(&local.pat) => Expr::Block(b.clone()),
            _ => return None,
        },
        _ => return None,
    };
    let (label, body, is_loop) = match &mut whole {
        Expr::Block(b) => (&b.label, &mut b.block, false),
        Expr::Loop(l) => (&l.label, &mut l.body, true),
        _ => unreachable!("the value is a labeled block or a loop"),
    };
    let label = label.as_ref()?.name.ident.to_string();
    let mut find = FindAssignments {
        label: &label,
        jumps: false,
        has_value: false,
        assigned: Vec::new(),
        given: Vec::new(),
        depth: 0,
    };
    find.visit_block(body);
    let given: Vec<&Local> = deferred
        .iter()
        .enumerate()
        .filter(|(i, local)| {
            let name = name_of(local);
            let hidden = deferred[i + 1..].iter().any(|later| name_of(later) == name);
            !hidden && name.is_some_and(|name| find.given.iter().any(|n| name == n))
        })
        .map(|(_, local)| local)
        .collect();
    // The value of a `let` comes before those of the variables.
    let with_value = matches!(stmt, Stmt::Local(_));
    if given.is_empty() || find.has_value != with_value {
        return None;
    }
    let names: Vec<&Ident> = given.iter().copied().filter_map(name_of).collect();
    let value: Expr = match &names[..] {
        [name] => parse_quote!(#name),
        names => parse_quote!((#(#names),*)),
    };
    Leave { label: &label, value: &value }.visit_block_mut(body);
    if with_value {
        let jumps = block_jumps(body);
        match body.stmts.last_mut() {
            Some(Stmt::Expr(own, None)) => *own = parse_quote!((#own, #value)),
            _ if jumps => {}
            _ => return None,
        }
    } else if !is_loop {
        if let Some(Stmt::Expr(last, semi @ None)) = body.stmts.last_mut() {
            *semi = Some(Token![;](last.span()));
        }
        if !block_jumps(body) {
            body.stmts.push(Stmt::Expr(value.clone(), None));
        }
    }
    // A value that each jump provides directly needs no variable.
    let named = |local: &&&Local| name_of(local).is_some_and(|name| is_named(body.to_token_stream(), name));
    let declarations: Vec<Stmt> = given
        .iter()
        .filter(named)
        .map(|local| {
            let mut local = (*local).clone();
            local.attrs.push(parse_quote!(#[allow(unused_mut, reason = "it stands for the outer one")]));
            Stmt::Local(local)
        })
        .collect();
    body.stmts.splice(0..0, declarations);
    let Stmt::Local(local) = stmt else {
        return Some(vec![parse_quote!(#value = #whole;)]);
    };
    let (own, given) = (names::helper("own", 0, local.let_token.span), names::helper("given", 0, local.let_token.span));
    let mut local = local.clone();
    if let Some(init) = &mut local.init {
        *init.expr = parse_quote!(#own);
    }
    Some(vec![parse_quote!(let (#own, #given) = #whole;), parse_quote!(#value = #given;), Stmt::Local(local)])
}

/// Returns whether this is the pattern of a block that already returns the variables along with its
/// value.
fn is_made_here(pat: &Pat) -> bool {
    let own = names::helper("own", 0, Span::call_site()).to_string();
    matches!(pat, Pat::Tuple(t) if matches!(t.elems.first(), Some(Pat::Ident(first)) if first.ident == own))
}

/// Returns whether a name occurs in code.
fn is_named(code: TokenStream, name: &Ident) -> bool {
    code.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => is_named(group.stream(), name),
        _ => false,
    })
}

/// Returns the loop with a label on itself and on each `break` out of it.
fn labeled(l: &ExprLoop, new_label: impl FnOnce(Span) -> Lifetime) -> ExprLoop {
    struct AddLabel<'a>(&'a Lifetime);
    impl VisitMut for AddLabel<'_> {
        fn visit_expr_mut(&mut self, e: &mut Expr) {
            match e {
                Expr::Break(b) if b.label.is_none() => b.label = Some(self.0.clone()),
                Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) => return,
                Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => return,
                _ => {}
            }
            visit_mut::visit_expr_mut(self, e);
        }
        fn visit_item_mut(&mut self, _: &mut Item) {}
    }
    let mut l = l.clone();
    let label = l.label.get_or_insert_with(|| {
        let at = l.loop_token.span;
        Label { name: new_label(at), colon_token: Token![:](at) }
    });
    let name = label.name.clone();
    AddLabel(&name).visit_block_mut(&mut l.body);
    l
}

/// The effect of a statement on the uninitialized variables.
#[derive(Default)]
pub(in crate::graph::resolve) struct FirstValues {
    /// The names of variables that are assigned or declared.
    names: Vec<String>,
    /// The declaration of an uninitialized variable.
    deferred: Option<Local>,
}

impl FirstValues {
    /// Returns the effect of a statement. `deferred` are the uninitialized variables before it.
    pub(in crate::graph::resolve) fn of(stmt: &Stmt, deferred: &[Local]) -> FirstValues {
        let mut effect = FirstValues::default();
        if !deferred.is_empty() {
            let mut find = FindAssignments {
                label: "",
                jumps: false,
                has_value: false,
                assigned: Vec::new(),
                given: Vec::new(),
                depth: 0,
            };
            find.visit_stmt(stmt);
            effect.names = find.assigned;
        }
        if let Stmt::Local(local) = stmt {
            // A name that is declared again is another variable.
            let mut declared = Declared(std::mem::take(&mut effect.names));
            declared.visit_pat(&local.pat);
            effect.names = declared.0;
            effect.deferred = (local.init.is_none() && name_of(local).is_some()).then(|| local.clone());
        }
        effect
    }

    /// Updates the uninitialized variables after the statement.
    pub(in crate::graph::resolve) fn apply(self, deferred: &mut Vec<Local>) {
        deferred.retain(|local| name_of(local).is_some_and(|name| !self.names.iter().any(|n| name == n)));
        deferred.extend(self.deferred);
    }
}

/// Returns the name that a `let` declares, if it declares only one name.
fn name_of(local: &Local) -> Option<&Ident> {
    match &local.pat {
        Pat::Ident(p) => Some(&p.ident),
        Pat::Type(p) => match &*p.pat {
            Pat::Ident(p) => Some(&p.ident),
            _ => None,
        },
        _ => None,
    }
}

struct Declared(Vec<String>);

impl<'a> Visit<'a> for Declared {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push(p.ident.to_string());
        visit::visit_pat_ident(self, p);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}

/// A search for the assignments in a piece of code, and for the jumps that leave it by a label.
struct FindAssignments<'a> {
    label: &'a str,
    jumps: bool,
    /// Whether a jump has a value.
    has_value: bool,
    /// The assigned variables.
    assigned: Vec<String>,
    /// The variables assigned before a jump in the same inner block.
    given: Vec<String>,
    depth: usize,
}

impl<'a> Visit<'a> for FindAssignments<'_> {
    fn visit_block(&mut self, block: &'a Block) {
        let (first, jumps) = (self.assigned.len(), std::mem::take(&mut self.jumps));
        self.depth += 1;
        for stmt in &block.stmts {
            self.jumps = false;
            let assigned = self.assigned.len();
            self.visit_stmt(stmt);
            if self.jumps && self.depth > 1 {
                self.given.extend_from_slice(&self.assigned[first..assigned]);
            }
        }
        self.depth -= 1;
        self.jumps = jumps;
    }
    fn visit_expr(&mut self, e: &'a Expr) {
        match e {
            Expr::Assign(a) => self.visit_left(&a.left),
            Expr::Break(b) if b.label.as_ref().is_some_and(|l| l.ident == self.label) => {
                self.jumps = true;
                self.has_value |= b.expr.is_some();
            }
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, e);
    }
    fn visit_item(&mut self, _: &'a Item) {}
}

impl FindAssignments<'_> {
    fn visit_left(&mut self, left: &Expr) {
        match left {
            Expr::Path(p) => self.assigned.extend(p.path.get_ident().map(ToString::to_string)),
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.visit_left(e)),
            Expr::Paren(e) => self.visit_left(&e.expr),
            _ => {}
        }
    }
}

/// A rewriter that adds a value to the jumps to a label.
struct Leave<'a> {
    label: &'a str,
    value: &'a Expr,
}

impl Leave<'_> {
    /// Replaces `x = value; break 'a x;` by `break 'a value;`.
    fn given_at_once(&self, block: &mut Block) {
        let [.., Stmt::Expr(Expr::Assign(a), _), Stmt::Expr(Expr::Break(b), _)] = &mut block.stmts[..] else { return };
        let gives_variable = b.expr.as_deref() == Some(self.value) && *a.left == *self.value;
        if b.label.as_ref().is_some_and(|l| l.ident == self.label) && gives_variable && a.attrs.is_empty() {
            b.expr = Some(a.right.clone());
            let last = block.stmts.len() - 1;
            block.stmts.remove(last - 1);
        }
    }
}

impl VisitMut for Leave<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        visit_mut::visit_block_mut(self, block);
        self.given_at_once(block);
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        match e {
            Expr::Break(b) if b.label.as_ref().is_some_and(|l| l.ident == self.label) => {
                let value = self.value;
                b.expr = Some(match b.expr.take() {
                    Some(own) => parse_quote!((#own, #value)),
                    None => Box::new(value.clone()),
                });
            }
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => {}
            e => visit_mut::visit_expr_mut(self, e),
        }
    }
    fn visit_item_mut(&mut self, _: &mut Item) {}
}
