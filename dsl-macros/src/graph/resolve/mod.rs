//! The first stage: makes the tree of a body, in fewer forms than Rust has ([`canonical`]).
//!
//! It resolves names to variables, and decides whatever follows from names, written types and forms
//! alone: which places a piece of code may modify, which conditions and iterators are certainly of
//! the host, what certainly jumps. It knows nothing of flags, slots and carried places.
//!
//! Invariants:
//! - Every block of the user is in the tree once.
//! - Items and constants inside the body stay as they are.
//! - Errors become parts of the tree, so that they are reported in the order of the code.

mod canonical;
mod conditions;
mod ends;
mod expressions;
mod jumps;
mod loops;
mod macros;
mod marks;
mod places;
mod state;
#[cfg(test)]
mod tests;

use super::forms::{start, take};
use super::tree::*;
use canonical::{FirstValues, in_blocks, is_number};
use ends::{end_value, jump};
use proc_macro2::TokenStream;
use state::Resolver;
use std::collections::VecDeque;
use std::rc::Rc;
use syn::visit::{self, Visit};
use syn::*;

/// Makes the tree of a function, and takes the statements out of it.
pub(crate) fn resolve(function: &mut ItemFn) -> FunctionTree {
    let mut resolver = Resolver::default();
    for parameter in &function.sig.inputs {
        resolver.env.declare_parameter(parameter);
    }
    let parameters = resolver.env.next_id();
    let (expected, returns_unit) = match &function.sig.output {
        ReturnType::Type(_, ty) => (nameable(ty), matches!(&**ty, Type::Tuple(t) if t.elems.is_empty())),
        ReturnType::Default => (None, true),
    };
    let body = resolver.body(&mut function.block);
    let name = function.sig.ident.clone();
    let variables = resolver.env.into_variables();
    FunctionTree { variables, parameters, name, expected, returns_unit, body, facts: Default::default() }
}

impl Resolver {
    /// Resolves the statements of a block inside a construct.
    fn body_inside(&mut self, block: &mut Block) -> Body {
        self.around += 1;
        let body = self.body(block);
        self.around -= 1;
        body
    }

    /// Resolves the statements of a block, and takes them out of it.
    fn body(&mut self, block: &mut Block) -> Body {
        let stmts = std::mem::take(&mut block.stmts);
        let deferred = self.canonical.deferred.clone();
        let stmts = self.scoped(|resolver| resolver.statements(stmts));
        self.canonical.deferred = deferred;
        Body { brace: block.brace_token, stmts }
    }

    fn statements(&mut self, stmts: Vec<Stmt>) -> Vec<Statement> {
        let mut out = Vec::with_capacity(stmts.len());
        let mut after: VecDeque<Stmt> = if self.is_as_written { stmts.into() } else { in_blocks(stmts).into() };
        // Statements after a statement that certainly jumps never run.
        let mut is_dead = false;
        let around = self.around;
        // The statements that a jump may leave, and the starts of the rests after them.
        let mut left = Vec::new();
        while let Some(stmt) = self.next_statement(&mut after) {
            let is_last = after.is_empty();
            let first_values = FirstValues::of(&stmt, &self.canonical.deferred);
            let is_end = is_last && !is_dead && !matches!(stmt, Stmt::Expr(_, Some(_)));
            let (at, own) = (start(&stmt), self.jumps.start());
            let kind = self.statement(stmt, is_end, is_dead);
            first_values.apply(&mut self.canonical.deferred);
            let jumps = kind.jumps();
            is_dead |= jumps;
            if !is_last && !is_dead && self.jumps.leaving(own).under_construct {
                left.push((out.len(), at, self.jumps.start()));
                // The rest may be guarded.
                self.around += 1;
            }
            out.push(Statement { kind, is_end, jumps, rest: None, guard: Default::default() });
        }
        self.around = around;
        for (i, at, start) in left {
            let rest = &out[i + 1..];
            let (jumps, value) = (jump(rest), end_value(rest));
            let labels = self.jumps.labels(start);
            out[i].rest = Some(RestOfBlock { at, jumps, value, labels });
        }
        out
    }

    fn next_statement(&mut self, rest: &mut VecDeque<Stmt>) -> Option<Stmt> {
        if self.is_as_written { rest.pop_front() } else { self.canonical.next_statement(&mut self.env, rest) }
    }

    /// Resolves a statement. A dead statement is never run.
    fn statement(&mut self, stmt: Stmt, is_end: bool, is_dead: bool) -> StatementKind {
        match stmt {
            Stmt::Local(local) => StatementKind::Let(Box::new(self.local(local))),
            Stmt::Item(item) => StatementKind::Item(item),
            Stmt::Expr(Expr::If(e), semi) => {
                let code = self.code_of(Expr::Verbatim(TokenStream::new()), |resolver, hole| {
                    let mut branch = resolver.branch(e, true);
                    if !is_end && !((semi.is_some() || is_dead) && branch.arms_have_values()) {
                        branch.set_no_value();
                    }
                    resolver.node(hole, TreeNode::If(Box::new(branch)), true);
                });
                StatementKind::Expr(code, semi)
            }
            Stmt::Expr(e, semi) => StatementKind::Expr(if is_end { self.passed_code(e) } else { self.code(e) }, semi),
            Stmt::Macro(m) => {
                let call = self.macro_call(&m.mac);
                StatementKind::Macro(Box::new((m, call)))
            }
        }
    }

    fn local(&mut self, mut local: Local) -> Let {
        let expected = match &local.pat {
            Pat::Type(p) => nameable(&p.ty),
            _ => None,
        };
        let (mut init, mut diverge, mut source) = (None, None, None);
        if let Some(written) = &mut local.init {
            source = Some(written.expr.clone());
            let e = take(&mut written.expr);
            init = Some(self.code_of(e, |resolver, e| {
                resolver.matched(&local.pat, e);
                resolver.pass(e, true);
                resolver.expr(e, true);
            }));
            diverge = written.diverge.as_mut().map(|(_, e)| self.code(take(e)));
        } else {
            // If a construct combines several assignments, `mut` is unused. If the arms have their
            // own copies, the variable is unused.
            local.attrs.push(parse_quote!(#[allow(unused_mut, unused_variables, reason = "its arms may change it")]));
        }
        let is_number =
            matches!(local.pat, Pat::Ident(_)) && source.as_ref().is_some_and(|init| is_number(&self.env, init));
        let declared = self.declare(|env| env.declare_let(&local.pat, source.as_deref()));
        if is_number {
            self.env.note_number();
        }
        Let { syntax: local, expected, init, diverge, declared }
    }
}

/// Returns a type if it can be written on a local variable.
fn nameable(ty: &Type) -> Option<Rc<Type>> {
    struct Opaque(bool);
    impl<'a> Visit<'a> for Opaque {
        fn visit_type_impl_trait(&mut self, _: &'a TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut opaque = Opaque(matches!(ty, Type::Never(_)));
    visit::Visit::visit_type(&mut opaque, ty);
    (!opaque.0).then(|| Rc::new(ty.clone()))
}
