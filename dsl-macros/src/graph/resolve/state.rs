//! The state of the walk over a body: the scopes, and the parts of the code that is being resolved.

use super::canonical::Canonical;
use super::jumps::{FoundJumps, JumpMark};
use crate::graph::scope::Env;
use crate::graph::tree::{Code, HoleId, Part, TreeNode, hole};
use crate::graph::variables::VarId;
use syn::{Expr, Label};

/// The state of the walk over a body.
#[derive(Default)]
pub(super) struct Resolver {
    pub(super) env: Env,
    /// The parts so far of the code that is being resolved.
    pub(super) parts: Vec<Part>,
    /// The number of constructs that may be open around the current code.
    ///
    /// Where there is none, it does not matter which variables the code uses or may modify by a
    /// call, and no part says so.
    pub(super) around: usize,
    pub(super) canonical: Canonical,
    /// Whether the code is not brought to canonical form: arguments of macros, and guards.
    pub(super) is_as_written: bool,
    /// The jumps so far.
    pub(super) jumps: FoundJumps,
    next_hole: HoleId,
}

impl Resolver {
    /// Resolves an expression as code of its own.
    pub(super) fn code(&mut self, e: Expr) -> Code {
        self.code_of(e, |resolver, e| resolver.expr(e, true))
    }

    /// Resolves an expression whose value is passed on.
    pub(super) fn passed_code(&mut self, e: Expr) -> Code {
        self.code_of(e, |resolver, e| {
            resolver.pass(e, true);
            resolver.expr(e, true);
        })
    }

    /// Collects the parts that `f` finds in an expression.
    pub(super) fn code_of(&mut self, mut e: Expr, f: impl FnOnce(&mut Self, &mut Expr)) -> Code {
        let outer = std::mem::take(&mut self.parts);
        f(self, &mut e);
        Code { syntax: e, parts: std::mem::replace(&mut self.parts, outer) }
    }

    /// Resolves code that is not brought to canonical form.
    pub(super) fn as_written<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.is_as_written, true);
        let result = f(self);
        self.is_as_written = outer;
        result
    }

    /// Resolves code inside a construct that may be staged.
    pub(super) fn in_construct<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.jumps.nesting.staged += 1;
        let result = f(self);
        self.jumps.nesting.staged -= 1;
        result
    }

    /// Resolves code in an arm that a host value selects.
    pub(super) fn in_host_arm<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.jumps.nesting.host += 1;
        let result = f(self);
        self.jumps.nesting.host -= 1;
        result
    }

    /// Resolves the body of a loop. Returns its start as well.
    pub(super) fn in_loop<T>(&mut self, label: Option<&Label>, f: impl FnOnce(&mut Self) -> T) -> (T, JumpMark) {
        self.in_construct(|resolver| {
            let start = resolver.jumps.enter(label, true);
            let result = f(resolver);
            resolver.jumps.leave();
            (result, start)
        })
    }

    /// Resolves the statements of a labeled block.
    pub(super) fn in_labeled<T>(&mut self, label: &Label, f: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.jumps.enter(Some(label), false);
        let result = f(self);
        self.jumps.leave();
        self.jumps.depend_on_breaks(start);
        result
    }

    /// Resolves code that jumps cannot leave, or whose jumps do not count for the code around it.
    pub(super) fn without_jumps<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.jumps.start();
        let result = f(self);
        self.jumps.forget(start);
        result
    }

    /// Resolves a scope.
    pub(super) fn scoped<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let scope = self.env.enter();
        let result = f(self);
        self.env.leave(scope);
        result
    }

    /// Declares variables. Returns their ids.
    pub(super) fn declare(&mut self, f: impl FnOnce(&mut Env)) -> Vec<VarId> {
        let first = self.env.next_id();
        f(&mut self.env);
        (first..self.env.next_id()).collect()
    }

    /// Returns a new hole and the expression that marks its place.
    pub(super) fn hole(&mut self) -> (HoleId, Expr) {
        let number = self.next_hole;
        self.next_hole += 1;
        (number, hole(number))
    }

    /// Puts a node into a hole in the place of an expression.
    pub(super) fn node(&mut self, e: &mut Expr, node: TreeNode, is_value: bool) {
        let (hole, syntax) = self.hole();
        *e = syntax;
        self.parts.push(Part::Node { hole, node, is_value });
    }
}
