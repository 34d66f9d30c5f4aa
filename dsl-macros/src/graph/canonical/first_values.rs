//! Variables declared by `let x;` that get their first value on the ways through a labelled block.
//!
//! `'a: { if c { x = 1; break 'a; } x = 2; }` becomes `x = 'a: { let x; if c { x = 1; break 'a x; } x = 2; x };`, because a value is what a
//! jump takes along.

use super::*;

/// The block with the variables as its value, if the statement is a labelled block that a jump leaves after it gave one of them its
/// first value inside of an arm.
pub(super) fn through_block(stmt: &Stmt, deferred: &[Local]) -> Option<Stmt> {
    let Stmt::Expr(Expr::Block(block), _) = stmt else {
        return None;
    };
    let label = block.label.as_ref()?.name.ident.to_string();
    let mut find =
        Find { label: &label, jumps: false, has_value: false, assigned: Vec::new(), given: Vec::new(), depth: 0 };
    find.visit_block(&block.block);
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
    if given.is_empty() || find.has_value {
        return None;
    }
    let names: Vec<&Ident> = given.iter().copied().filter_map(name_of).collect();
    let value: Expr = match &names[..] {
        [name] => parse_quote!(#name),
        names => parse_quote!((#(#names),*)),
    };
    let mut block = block.clone();
    Leave { label: &label, value: &value }.visit_block_mut(&mut block.block);
    if let Some(Stmt::Expr(last, semi @ None)) = block.block.stmts.last_mut() {
        *semi = Some(Token![;](last.span()));
    }
    if !block_jumps(&block.block) {
        block.block.stmts.push(Stmt::Expr(value.clone(), None));
    }
    let declarations = given.iter().map(|local| -> Stmt {
        let mut local = (*local).clone();
        local.attrs.push(parse_quote!(#[allow(unused_mut, reason = "it stands for the outer one")]));
        Stmt::Local(local)
    });
    block.block.stmts.splice(0..0, declarations);
    Some(parse_quote!(#value = #block;))
}

/// Notes what a statement declares, and what has a value after it.
pub(super) fn after(stmt: &Stmt, deferred: &mut Vec<Local>) {
    let mut find =
        Find { label: "", jumps: false, has_value: false, assigned: Vec::new(), given: Vec::new(), depth: 0 };
    find.visit_stmt(stmt);
    deferred.retain(|local| name_of(local).is_some_and(|name| !find.assigned.iter().any(|n| name == n)));
    if let Stmt::Local(local) = stmt {
        // A name that is declared again is another variable.
        let mut declared = Declared(Vec::new());
        declared.visit_pat(&local.pat);
        deferred.retain(|local| name_of(local).is_some_and(|name| !declared.0.contains(&name.to_string())));
        if local.init.is_none() && name_of(local).is_some() {
            deferred.push(local.clone());
        }
    }
}

/// The name that a `let` declares, if it is a single one.
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

/// What is assigned in a piece of code, and jumps that leave it by a label.
struct Find<'a> {
    label: &'a str,
    jumps: bool,
    /// Whether a jump has a value.
    has_value: bool,
    /// What is assigned.
    assigned: Vec<String>,
    /// What is assigned before a jump in the same inner block.
    given: Vec<String>,
    depth: usize,
}

impl<'a> Visit<'a> for Find<'_> {
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

impl Find<'_> {
    fn visit_left(&mut self, left: &Expr) {
        match left {
            Expr::Path(p) => self.assigned.extend(p.path.get_ident().map(ToString::to_string)),
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.visit_left(e)),
            Expr::Paren(e) => self.visit_left(&e.expr),
            _ => {}
        }
    }
}

/// Gives jumps to a label a value.
struct Leave<'a> {
    label: &'a str,
    value: &'a Expr,
}

impl VisitMut for Leave<'_> {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        match e {
            Expr::Break(b) if b.label.as_ref().is_some_and(|l| l.ident == self.label) => {
                b.expr = Some(Box::new(self.value.clone()));
            }
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => {}
            e => visit_mut::visit_expr_mut(self, e),
        }
    }
    fn visit_item_mut(&mut self, _: &mut Item) {}
}
