//! Statements and blocks.

use super::branches::guarded;
use super::jumps::{exit, flag, with_slot};
use super::macros::{Emitted, macro_call};
use super::output::ToRust;
use crate::graph::facts::{FactCell, GuardFacts, SequenceFacts};
use crate::graph::tree::{Body, Labeled, Let, MacroCall, SequenceBlock, Statement, StatementKind};
use quote::quote;
use syn::{Block, Expr, ExprBlock, Local, Stmt, StmtMacro};

impl ToRust for Body {
    type Output = Block;

    fn emit(self) -> Block {
        Block { brace_token: self.brace, stmts: statements(self.stmts) }
    }
}

/// Returns statements. If jumps leave a statement, the statements after it are under its flag.
fn statements(stmts: Vec<Statement>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(stmts.len());
    let mut after = stmts.into_iter();
    while let Some(stmt) = after.next() {
        let start = out.len();
        statement(stmt.kind, &mut out);
        if stmt.guard.is_decided() {
            let rest = statements(after.collect());
            put_under_flag(&mut out, start, stmt.guard, rest);
            return out;
        }
    }
    out
}

/// Appends the guard around `rest`, and declares its flag before the statement at `start`.
fn put_under_flag(out: &mut Vec<Stmt>, start: usize, guard: FactCell<GuardFacts>, rest: Vec<Stmt>) {
    let guard = guard.get();
    out.insert(start, Stmt::Expr(Expr::Verbatim(flag(&guard.flag)), None));
    out.push(Stmt::Expr(Expr::Verbatim(guarded(guard, rest)), None));
}

/// Appends a statement to `out`.
fn statement(kind: StatementKind, out: &mut Vec<Stmt>) {
    match kind {
        StatementKind::Let(local) => out.push(Stmt::Local(local.emit())),
        StatementKind::Expr(code, semi) => out.push(Stmt::Expr(code.emit(), semi)),
        StatementKind::Macro(call) => macro_statement(*call, out),
        StatementKind::Item(item) => out.push(Stmt::Item(item)),
    }
}

impl ToRust for Let {
    type Output = Local;

    fn emit(self) -> Local {
        let Let { mut syntax, init, diverge, .. } = self;
        if let Some(written) = &mut syntax.init {
            if let Some(e) = init {
                *written.expr = e.emit();
            }
            if let (Some((_, written)), Some(e)) = (&mut written.diverge, diverge) {
                **written = e.emit();
            }
        }
        syntax
    }
}

fn macro_statement((m, call): (StmtMacro, MacroCall), out: &mut Vec<Stmt>) {
    let StmtMacro { attrs, mac, semi_token } = m;
    match macro_call(mac, call) {
        Emitted::Expr(e) => out.push(Stmt::Expr(e, semi_token)),
        Emitted::Checked(checks, mac) => {
            out.push(Stmt::Expr(Expr::Verbatim(checks), None));
            out.push(Stmt::Macro(StmtMacro { attrs, mac, semi_token }));
        }
        Emitted::Macro(mac) => out.push(Stmt::Macro(StmtMacro { attrs, mac, semi_token })),
    }
}

impl ToRust for Labeled {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (mut block, facts) = (self.syntax, self.facts.get());
        block.block = self.body.emit();
        block.label = facts.label;
        match facts.slot {
            Some(slot) => with_slot(&slot, &Expr::Block(block)),
            None => Expr::Block(block),
        }
    }
}

impl ToRust for SequenceBlock {
    type Output = Expr;

    /// The exit to each destination is emitted once, after the block.
    fn emit(self) -> Expr {
        let mut block = self.syntax;
        block.block = self.body.emit();
        match self.facts.maybe() {
            None => Expr::Block(block),
            Some(facts) => with_ways(block, facts),
        }
    }
}

fn with_ways(block: ExprBlock, SequenceFacts { next, ways }: SequenceFacts) -> Expr {
    let ways = ways.into_iter().fold(quote!(break #next #block;), |before, (way, label)| {
        let on = exit(way);
        quote!(#label: { #before } #on)
    });
    Expr::Verbatim(quote! {
        #next: {
            #[allow(unreachable_code, reason = "an arm of the user may leave")]
            { #ways }
        }
    })
}
