//! The invariants of scopes and jumps of a tree.
//!
//! - A name refers to the variable with the number of the place: it is not shadowed.
//! - A jump is inside its loop and is the last statement of its block.
//! - If an `if` or `match` has a value, each of its arms has a value or ends with a jump. At least
//!   one arm of an `if` and the default arm of a `match` do not jump.

use crate::ast::*;

/// Returns whether all invariants hold.
pub fn is_sound(program: &RandomProgram) -> bool {
    program.helpers.iter().chain([&program.main]).all(|f| {
        let mut c = Check { scope: f.params.iter().map(|v| (v.name.clone(), v.id)).collect(), loops: Vec::new() };
        let body = f.body.stmts.iter().all(|s| c.stmt(s)) && !f.body.stmts.last().is_some_and(Stmt::is_jump);
        body && ends_with_jumps(&f.body) && f.result.iter().all(|x| c.expr(x))
    })
}

/// Returns whether at most the last statement is a jump.
fn ends_with_jumps(b: &Stmts) -> bool {
    let all_but_last = b.stmts.len().saturating_sub(1);
    !b.stmts[..all_but_last].iter().any(Stmt::is_jump) && b.value.is_none() | !b.stmts.last().is_some_and(Stmt::is_jump)
}

/// Returns whether the block of an expression has a value or jumps.
fn ends(b: &Stmts) -> bool {
    b.value.is_some() || b.stmts.last().is_some_and(Stmt::is_jump)
}

struct Check {
    scope: Vec<(String, u32)>,
    loops: Vec<LoopId>,
}

impl Check {
    fn declare(&mut self, v: &Local) {
        self.scope.push((v.name.clone(), v.id));
    }

    fn place(&self, p: &Assignee) -> bool {
        self.scope.iter().rev().find(|(name, _)| *name == p.name).is_some_and(|&(_, id)| id == p.id)
    }

    fn expr(&mut self, x: &Expr) -> bool {
        match x {
            Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) | Expr::Host(_) => true,
            Expr::Get(place) => self.place(place),
            Expr::FromHost(x) | Expr::Unary(_, x) => self.expr(x),
            Expr::Binary(_, a, b) | Expr::Compare(_, a, b) | Expr::Logic(_, a, b) => self.expr(a) && self.expr(b),
            Expr::If(c, a, b) => {
                (a.value.is_some() || b.value.is_some())
                    && [a, b].into_iter().all(ends)
                    && self.expr(c)
                    && self.block(a)
                    && self.block(b)
            }
            Expr::Match(x, arms, default) => {
                default.value.is_some()
                    && self.expr(x)
                    && arms.iter().all(|(p, b)| self.pattern(p) && ends(b) && self.block(b))
                    && self.block(default)
            }
            Expr::Block(b) => b.value.is_some() && self.block(b),
            Expr::Labeled(id, _, b) => ends(b) && self.body(*id, b),
            Expr::Call(_, _, args) => args.iter().all(|x| self.expr(x)),
            Expr::Loop(l, last) => self.expr(last) && self.body(l.id, &l.body),
        }
    }

    fn pattern(&mut self, p: &Pattern) -> bool {
        match p {
            Pattern::Guarded(p, guard) => self.pattern(p) && self.expr(guard),
            Pattern::Any(_) | Pattern::Range(..) => true,
        }
    }

    fn block(&mut self, b: &Stmts) -> bool {
        let scope = self.scope.len();
        let sound = ends_with_jumps(b) && b.stmts.iter().all(|s| self.stmt(s)) && b.value.iter().all(|x| self.expr(x));
        self.scope.truncate(scope);
        sound
    }

    fn body(&mut self, id: LoopId, b: &Stmts) -> bool {
        self.loops.push(id);
        let sound = self.block(b);
        self.loops.pop();
        sound
    }

    /// Checks a body with a variable of its own.
    fn body_with(&mut self, id: LoopId, v: &Local, b: &Stmts) -> bool {
        let scope = self.scope.len();
        self.declare(v);
        let sound = self.body(id, b);
        self.scope.truncate(scope);
        sound
    }

    fn stmt(&mut self, s: &Stmt) -> bool {
        match s {
            Stmt::Let(v, x) => {
                let sound = self.expr(x);
                self.declare(v);
                sound
            }
            Stmt::LetLater(v, c, a, b) => {
                let sound = a.value.is_some() && b.value.is_some() && self.expr(c) && self.block(a) && self.block(b);
                self.declare(v);
                sound
            }
            Stmt::LetTuple(vars, xs) => {
                let sound = xs.iter().all(|x| self.expr(x));
                vars.iter().for_each(|v| self.declare(v));
                sound
            }
            Stmt::Assign(p, _, x) => self.place(p) && self.expr(x),
            Stmt::AssignTuple(ps, xs) => ps.iter().all(|p| self.place(p)) && xs.iter().all(|x| self.expr(x)),
            Stmt::If(arms, otherwise) => {
                arms.iter().all(|(c, b)| self.expr(c) && self.block(b)) && otherwise.iter().all(|b| self.block(b))
            }
            Stmt::Match(x, arms, default) => {
                self.expr(x) && arms.iter().all(|(p, b)| self.pattern(p) && self.block(b)) && self.block(default)
            }
            Stmt::While(c, l, _) => self.expr(c) && self.body(l.id, &l.body),
            Stmt::Loop(l) => self.body(l.id, &l.body),
            Stmt::Range(id, v, low, high, b) => {
                low.iter().all(|x| self.expr(x)) && self.expr(high) && self.body_with(*id, v, b)
            }
            Stmt::HostFor(id, v, _, b) => self.body_with(*id, v, b),
            Stmt::HostIf(c, a, b) => self.expr(c) && self.block(a) && b.iter().all(|b| self.block(b)),
            Stmt::Break(id, x) => self.loops.contains(id) && x.iter().all(|x| self.expr(x)),
            Stmt::Continue(id) => self.loops.contains(id),
            Stmt::Return(xs) => xs.iter().all(|x| self.expr(x)),
            Stmt::Block(b) => self.block(b),
            Stmt::Labeled(id, b) => self.body(*id, b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Features, program};

    #[test]
    fn generated_programs_are_sound() {
        for seed in 0..2_000 {
            let kind = if seed % 2 == 0 { CheckMode::Values } else { CheckMode::Gradients };
            assert!(is_sound(&program(seed, kind, &Features::all())), "seed {seed}");
        }
    }

    #[test]
    fn what_is_hidden_or_has_no_loop_is_found() {
        let mut p = program(1, CheckMode::Values, &Features::none());
        let sound = |stmts: Vec<Stmt>, p: &mut RandomProgram| {
            p.main.body.stmts = stmts;
            p.main.result = vec![Expr::Int(0), Expr::Float(0.0)];
            is_sound(p)
        };
        let a = p.main.params[0].clone();
        let other = Local { id: 1_000, ..a.clone() };
        let use_a =
            Stmt::Assign(Assignee { id: a.id, name: a.name.clone(), field: None, ty: Ty::Int }, None, Expr::Int(1));
        assert!(sound(vec![use_a.clone()], &mut p));
        assert!(!sound(vec![Stmt::Let(other.clone(), Expr::Int(2)), use_a.clone()], &mut p));
        let inner = Stmt::Block(Stmts { stmts: vec![Stmt::Let(other, Expr::Int(2))], value: None });
        assert!(sound(vec![inner, use_a.clone()], &mut p));
        let repeat = |stmts| vec![Stmt::Loop(BoundedLoop { id: 7, trips: 2, body: Stmts { stmts, value: None } })];
        assert!(sound(repeat(vec![use_a.clone(), Stmt::Break(7, None)]), &mut p));
        assert!(!sound(repeat(vec![Stmt::Break(8, None)]), &mut p));
        assert!(!sound(repeat(vec![Stmt::Break(7, None), use_a]), &mut p));
    }
}
