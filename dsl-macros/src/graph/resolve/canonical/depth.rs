//! Long sequences of jumps become trees, so that they do not nest as deeply as they are long.
//!
//! The code after a jump moves into the other arm of its `if`. Without this module, each jump of a
//! sequence would nest one level deeper than the previous jump.
//!
//! In a sequence of jumps, a few neighbors become a block, a few of these blocks another block, and
//! so on. The code after a block is under its flag, so the depth grows with the logarithm of the
//! length. A variable that is used after a block is declared outside it. If that leaves too many
//! jumps side by side, the block returns the variable.

use super::super::marks::{sequence, sequence_with_value};
use super::chain::MAX_NESTED;
use super::patterns::{has_test, numbers};
use crate::graph::forms::note_names;
use crate::graph::jumps::Jumps;
use crate::graph::known::{self, MacroKind};
use quote::ToTokens;
use std::collections::{HashMap, VecDeque};
use syn::visit::{self, Visit};
use syn::*;

/// The maximum number of jumps, or blocks of jumps, in a block.
///
/// A jump checks whether each construct that it leaves is staged, so few levels of nesting are more
/// important than few blocks.
const PER_BLOCK: usize = 4;

/// The maximum number of jumps side by side whose blocks need not return variables.
///
/// Under a tensor condition, a block can return only variables that a graph can have.
const MAX_WITHOUT_VALUES: usize = 32;

/// A statement of a sequence.
struct SequenceStmt {
    stmt: Stmt,
    /// Whether a conditional jump leaves the statement.
    jumps: bool,
    /// The names that the statement declares for those after it.
    declares: Vec<Ident>,
    /// The index of the last statement that uses any of the names.
    last_use: usize,
    /// Whether a block can return the declared variables.
    is_value: bool,
}

/// Returns the statements of a block, grouped into blocks if many of them jump.
pub(in crate::graph::resolve) fn in_blocks(stmts: Vec<Stmt>) -> Vec<Stmt> {
    let jumps: Vec<bool> = stmts.iter().map(leaves_under_construct).collect();
    let has_macro = || stmts.iter().any(|stmt| matches!(stmt, Stmt::Item(Item::Macro(_))));
    if jumps.iter().filter(|&&j| j).count() <= MAX_NESTED || has_macro() {
        return stmts;
    }
    // Items are visible in the whole block.
    let is_item = |(stmt, _): &(Stmt, bool)| matches!(stmt, Stmt::Item(_));
    let (mut items, stmts): (Vec<_>, Vec<_>) = stmts.into_iter().zip(jumps).partition(is_item);
    let mut steps: Vec<SequenceStmt> = stmts.into_iter().map(|(stmt, jumps)| SequenceStmt::new(stmt, jumps)).collect();
    // The last statement may be the value of the block.
    let value = match steps.last() {
        Some(SequenceStmt { stmt: Stmt::Expr(_, None) | Stmt::Macro(StmtMacro { semi_token: None, .. }), .. }) => {
            steps.pop()
        }
        _ => None,
    };
    for (most, with_values) in [(PER_BLOCK, false), (MAX_WITHOUT_VALUES, true)] {
        loop {
            let n = count(&steps);
            if n <= most {
                break;
            }
            steps = one_level(steps, value.as_ref(), with_values);
            if count(&steps) == n {
                break;
            }
        }
    }
    items.extend(steps.into_iter().chain(value).map(|step| (step.stmt, step.jumps)));
    items.into_iter().map(|(stmt, _)| stmt).collect()
}

fn count(steps: &[SequenceStmt]) -> usize {
    steps.iter().filter(|s| s.jumps).count()
}

fn leaves_under_construct(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Local(Local { pat, init: Some(LocalInit { expr, diverge: Some((_, diverge)), .. }), .. }) => {
            let pat = if let Pat::Type(p) = pat { &p.pat } else { pat };
            Jumps::leaving_expr(expr).under_construct
                || (has_test(pat, numbers(expr).as_ref()) == Some(true) && Jumps::leaving_expr(diverge).any)
        }
        Stmt::Local(Local { init: Some(init), .. }) => Jumps::leaving_expr(&init.expr).under_construct,
        Stmt::Expr(e, _) => Jumps::leaving_expr(e).under_construct,
        _ => false,
    }
}

impl SequenceStmt {
    fn new(stmt: Stmt, jumps: bool) -> SequenceStmt {
        let (mut declares, mut is_value) = (Vec::new(), false);
        if let Stmt::Local(local) = &stmt {
            let mut find = DeclaredNames(Vec::new(), true);
            find.visit_pat(&local.pat);
            (declares, is_value) = (find.0, find.1);
            is_value &= local.init.as_ref().is_some_and(|init| {
                init.diverge.is_none() && !matches!(*init.expr, Expr::Reference(_) | Expr::Closure(_))
            });
        }
        SequenceStmt { stmt, jumps, declares, last_use: 0, is_value }
    }

    /// Returns whether the statement must stay outside blocks: its declarations are not known,
    /// or no use of them is found.
    fn stays(&self) -> bool {
        match &self.stmt {
            Stmt::Local(local) => local.init.is_none() || (!self.declares.is_empty() && self.last_use == 0),
            Stmt::Macro(m) => {
                known::macro_name(&m.mac).is_none_or(|name| known::macro_kind(&name) == MacroKind::Opaque)
            }
            _ => false,
        }
    }
}

/// The names that a pattern declares, and whether all of them own the values that they are bound
/// to.
struct DeclaredNames(Vec<Ident>, bool);

impl<'a> Visit<'a> for DeclaredNames {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push(p.ident.clone());
        self.1 &= p.by_ref.is_none();
        visit::visit_pat_ident(self, p);
    }
    fn visit_pat_type(&mut self, p: &'a PatType) {
        self.1 &= !matches!(*p.ty, Type::Reference(_));
        self.visit_pat(&p.pat);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}

/// Finds the last use of the variables of each statement. `value` follows the statements.
fn find_last_uses(steps: &mut [SequenceStmt], value: Option<&SequenceStmt>) {
    // The statements are visited from the end, so the first use found of a name is its last one.
    let mut used = HashMap::new();
    let end = steps.len();
    if let Some(value) = value {
        note_names(value.stmt.to_token_stream(), &mut |name| {
            used.insert(name, end);
        });
    }
    for i in (0..end).rev() {
        let step = &mut steps[i];
        step.last_use = 0;
        for name in &step.declares {
            step.last_use = step.last_use.max(used.remove(&name.to_string()).unwrap_or(0));
        }
        let mut note = |name| {
            used.entry(name).or_insert(i);
        };
        match &step.stmt {
            Stmt::Local(local) => {
                let init = local.init.as_ref();
                note_names(init.map(|init| init.expr.to_token_stream()).unwrap_or_default(), &mut note);
                let diverge = init.and_then(|init| init.diverge.as_ref());
                note_names(diverge.map(|(_, e)| e.to_token_stream()).unwrap_or_default(), &mut note);
            }
            stmt => note_names(stmt.to_token_stream(), &mut note),
        }
    }
}

/// Groups neighbors into blocks. Their variables must not be used after the block or, if
/// `with_values`, can be returned by it.
fn one_level(mut steps: Vec<SequenceStmt>, value: Option<&SequenceStmt>, with_values: bool) -> Vec<SequenceStmt> {
    find_last_uses(&mut steps, value);
    let mut out = Vec::with_capacity(steps.len());
    let mut rest: VecDeque<SequenceStmt> = steps.into();
    let mut start = 0;
    while !rest.is_empty() {
        let n = block_length(&rest, start, with_values);
        if n == 0 {
            out.extend(rest.pop_front());
            start += 1;
        } else {
            out.push(block_of_steps(rest.drain(..n).collect(), start + n));
            start += n;
        }
    }
    out
}

/// Returns how many of the next statements become a block. The first of them has the index `start`.
fn block_length(steps: &VecDeque<SequenceStmt>, start: usize, with_values: bool) -> usize {
    let (mut jumps, mut last_use, mut found) = (0, 0, 0);
    for (i, step) in steps.iter().enumerate() {
        if step.stays() || jumps == PER_BLOCK {
            break;
        }
        jumps += usize::from(step.jumps);
        last_use = last_use.max(step.last_use);
        let may_end = || {
            let used_behind = || steps.iter().take(i + 1).filter(|s| s.last_use > start + i);
            last_use <= start + i || (with_values && step.jumps && used_behind().all(|s| s.is_value))
        };
        if jumps > 1 && may_end() {
            found = i + 1;
        }
    }
    found
}

/// Returns a block of statements. It returns the variables that are used from index `end` on.
fn block_of_steps(steps: Vec<SequenceStmt>, end: usize) -> SequenceStmt {
    let mut shown: Vec<PatIdent> = Vec::new();
    let mut stmts: Vec<Stmt> = Vec::with_capacity(steps.len() + 1);
    let mut last_use = 0;
    for step in steps {
        let mut stmt = step.stmt;
        if step.last_use >= end
            && let Stmt::Local(local) = &mut stmt
        {
            last_use = last_use.max(step.last_use);
            let mut find = Idents(Vec::new());
            find.visit_pat(&local.pat);
            shown.retain(|p| find.0.iter().all(|new| new.ident != p.ident));
            shown.extend(find.0);
            local.attrs.push(parse_quote!(#[allow(unused_mut, reason = "it may change behind the block")]));
        }
        stmts.push(stmt);
    }
    let block_with = |mark, stmts| {
        let block = Block { brace_token: Default::default(), stmts };
        Expr::Block(ExprBlock { attrs: vec![mark], label: None, block })
    };
    if shown.is_empty() {
        let block = block_with(sequence(), stmts);
        return SequenceStmt::new(Stmt::Expr(block, None), true);
    }
    let (pat, value) = in_tuples(shown.into_iter().map(|p| (Pat::Ident(p.clone()), path(p.ident))).collect());
    stmts.push(Stmt::Expr(value, None));
    let block = block_with(sequence_with_value(), stmts);
    SequenceStmt::new(
        parse_quote!(#[allow(unused_mut, reason = "it may have changed in the block")] let #pat = #block;),
        true,
    )
}

fn path(name: Ident) -> Expr {
    parse_quote!(#name)
}

/// Returns a tuple of the patterns and a tuple of their values. If there are more than twelve
/// items, both consist of tuples.
fn in_tuples(mut items: Vec<(Pat, Expr)>) -> (Pat, Expr) {
    while items.len() > 1 {
        let tuples = items.chunks(12).map(|items| {
            let (pats, values): (Vec<_>, Vec<_>) = items.iter().cloned().unzip();
            (parse_quote!((#(#pats),*,)), parse_quote!((#(#values),*,)))
        });
        items = tuples.collect();
    }
    items.pop().expect("the stack of items is not empty")
}

struct Idents(Vec<PatIdent>);

impl<'a> Visit<'a> for Idents {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push(PatIdent { subpat: None, ..p.clone() });
        visit::visit_pat_ident(self, p);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}
