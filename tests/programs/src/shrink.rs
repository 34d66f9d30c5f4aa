//! Shrinking: smaller programs that may still show the same error.

use crate::ast::*;
use crate::check::is_sound;

/// Returns every sound program that is this program with one simplification: statements removed,
/// constructs replaced by one of their blocks, expressions by a part or a literal of their type.
/// The smallest programs come first.
pub fn smaller(program: &RandomProgram) -> Vec<RandomProgram> {
    let size = size_of(program);
    let mut found: Vec<(usize, RandomProgram)> = Vec::new();
    for edit in 0.. {
        let mut p = program.clone();
        if !apply(&mut p, edit) {
            break;
        }
        let now = size_of(&p);
        if now < size && is_sound(&p) {
            found.push((now, p));
        }
    }
    found.sort_by_key(|(size, _)| *size);
    found.into_iter().map(|(_, p)| p).collect()
}

/// Returns the number of statements and expressions of a program. Complex expressions count more.
pub fn size_of(program: &RandomProgram) -> usize {
    let mut p = program.clone();
    let mut size = p.functions().map(|f| f.params.len()).sum();
    p.walk(&mut |part| match part {
        ExprOrBlock::Expr(x) => size += if x.is_plain() { 1 } else { 2 },
        ExprOrBlock::Block(b) => size += 2 * b.stmts.len(),
    });
    size
}

/// Applies the edit with this number. Returns whether it exists.
fn apply(program: &mut RandomProgram, edit: usize) -> bool {
    let mut left = edit;
    let mut done = false;
    let mut choose = |choices: usize| {
        if done || left >= choices {
            left = left.wrapping_sub(if done { 0 } else { choices });
            None
        } else {
            done = true;
            Some(left)
        }
    };
    program.walk(&mut |part| match part {
        ExprOrBlock::Block(b) => {
            // From the end: variables are declared before their uses.
            let choices: usize = b.stmts.iter().map(stmt_choices).sum();
            if let Some(mut n) = choose(choices) {
                let mut at = 0;
                while n >= stmt_choices(&b.stmts[at]) {
                    n -= stmt_choices(&b.stmts[at]);
                    at += 1;
                }
                edit_stmt(b, at, n);
            }
        }
        ExprOrBlock::Expr(x) => {
            let candidates = smaller_exprs(x);
            if let Some(n) = choose(candidates.len()) {
                **x = candidates.into_iter().nth(n).expect("there are that many");
            }
        }
    });
    done
}

/// Returns the blocks of a statement that can replace it.
fn blocks_of(s: &Stmt) -> Vec<Stmts> {
    let mut blocks = Vec::new();
    s.clone().parts(&mut |part| {
        if let ExprOrBlock::Block(b) = part {
            blocks.push(b.clone());
        }
    });
    blocks
}

/// Returns the number of edits of a statement: removing it, replacing it by one of its blocks, or
/// simplifying it.
fn stmt_choices(s: &Stmt) -> usize {
    1 + blocks_of(s).len() + less(s).len()
}

fn edit_stmt(b: &mut Stmts, at: usize, n: usize) {
    let blocks = blocks_of(&b.stmts[at]);
    if n == 0 {
        b.stmts.remove(at);
    } else if n <= blocks.len() {
        b.stmts.splice(at..=at, blocks[n - 1].stmts.clone());
    } else {
        b.stmts[at] = less(&b.stmts[at])[n - 1 - blocks.len()].clone();
    }
}

/// Returns simplified versions of a statement.
fn less(s: &Stmt) -> Vec<Stmt> {
    let mut found = Vec::new();
    match s {
        Stmt::If(arms, otherwise) => {
            if otherwise.is_some() {
                found.push(Stmt::If(arms.clone(), None));
            }
            for i in 0..arms.len() {
                let mut fewer = arms.clone();
                fewer.remove(i);
                if !fewer.is_empty() {
                    found.push(Stmt::If(fewer, otherwise.clone()));
                }
            }
        }
        Stmt::Match(x, arms, default) => {
            for i in 0..arms.len() {
                let mut fewer = arms.clone();
                fewer.remove(i);
                found.push(Stmt::Match(x.clone(), fewer, default.clone()));
            }
        }
        Stmt::HostIf(c, a, Some(_)) => found.push(Stmt::HostIf(c.clone(), a.clone(), None)),
        Stmt::Range(id, v, Some(_), high, b) => found.push(Stmt::Range(*id, v.clone(), None, high.clone(), b.clone())),
        _ => {}
    }
    found
}

/// Returns its parts of the same type, and a literal.
fn smaller_exprs(x: &Expr) -> Vec<Expr> {
    if x.is_plain() {
        return Vec::new();
    }
    let ty = x.ty();
    let mut found = vec![match ty {
        Ty::Int => Expr::Int(1),
        Ty::Float => Expr::Float(0.5),
        Ty::Bool => Expr::Bool(true),
        Ty::Host => Expr::Host(1),
    }];
    if ty == Ty::Bool {
        found.push(Expr::Bool(false));
    }
    x.clone().parts(&mut |part| match part {
        ExprOrBlock::Expr(part) if part.ty() == ty => found.push(part.clone()),
        ExprOrBlock::Block(b) => {
            if let (true, Some(value)) = (b.stmts.is_empty(), &b.value) {
                found.push((**value).clone());
            } else if b.value.is_some() && !matches!(x, Expr::Block(_)) {
                found.push(Expr::Block(b.clone()));
            }
        }
        ExprOrBlock::Expr(_) => {}
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Features, program};

    /// Shrinks as long as `shows` holds.
    fn shrunk(mut p: RandomProgram, shows: impl Fn(&RandomProgram) -> bool) -> RandomProgram {
        while let Some(next) = smaller(&p).into_iter().find(&shows) {
            p = next;
        }
        p
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let mut tried = 0;
        for seed in 0..6 {
            let loops = |p: &RandomProgram| {
                let mut n = 0;
                p.clone().walk(&mut |part| {
                    if let ExprOrBlock::Block(b) = part {
                        n += b.stmts.iter().filter(|s| matches!(s, Stmt::While(..))).count();
                    }
                });
                n
            };
            let p = program(seed, CheckMode::Values, &Features::all());
            if loops(&p) == 0 {
                continue;
            }
            tried += 1;
            let p = shrunk(p, |p| loops(p) > 0);
            assert_eq!(
                (loops(&p), p.main.body.stmts.len() + p.helpers.iter().map(|h| h.body.stmts.len()).sum::<usize>()),
                (1, 1)
            );
            assert!(size_of(&p) < 60, "{p:?}");
        }
        assert!(tried > 1, "{tried}");
    }
}
