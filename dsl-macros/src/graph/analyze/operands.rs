//! Operands that modify places used before them.
//!
//! A construct mutably borrows the places that it may modify. In plain Rust the same place may
//! already be borrowed for use after the operand (the receiver of a method, the left side of `+=`),
//! or the operand may be allowed to read it. In both cases the operand is evaluated first. Only a
//! modification of the same place counts: one field of a variable may change while another is
//! borrowed.

use super::changes::LaterChange;
use super::state::{Analysis, CodeContext};
use crate::graph::facts::OperandFacts;
use crate::graph::tree::{Call, Code, CompareExpr, LocalPlace, Part, TreeNode, UpdateExpr, number_of_hole};
use syn::Expr;

impl Analysis<'_> {
    fn changes_of(&self, start: usize, place: Option<&LocalPlace>) -> LaterChange {
        place.map_or(LaterChange::No, |place| self.changes_since(start, place))
    }

    pub(super) fn compare(&mut self, compare: &CompareExpr, position: &CodeContext) {
        self.code(&compare.left, CodeContext::default());
        let start = self.changed.len();
        self.code(&compare.right, CodeContext::default());
        let changes = self.changes_of(start, compare.place.as_ref());
        let bound = if changes == LaterChange::Perhaps { vec![(0, self.index())] } else { Vec::new() };
        let (copies_left, is_statement) = (changes == LaterChange::Exact, position.is_statement);
        compare.facts.set(OperandFacts { bound, copies_left, is_statement });
    }

    pub(super) fn update(&mut self, update: &UpdateExpr, position: &CodeContext) {
        let start = self.changed.len();
        self.code(&update.right, CodeContext::default());
        let is_first = update.is_right_first || self.changes_of(start, update.place.as_ref()) != LaterChange::No;
        let bound = if is_first { vec![(0, self.index())] } else { Vec::new() };
        self.code(&update.left, CodeContext::default());
        update.facts.set(OperandFacts { bound, copies_left: false, is_statement: position.is_statement });
    }

    /// A call with constructs in its arguments.
    ///
    /// A construct mutably borrows the places that it may modify. If something before it has
    /// already borrowed one of them, the arguments are evaluated before the call.
    ///
    /// Rust borrows a receiver before the arguments, uses it after them, and lets them read it
    /// meanwhile.
    pub(super) fn call(&mut self, call: &Call, position: &CodeContext) {
        self.code(&call.call, CodeContext::default());
        let start = self.changed.len();
        let mut held: Vec<&LocalPlace> = call.receiver.iter().collect();
        let mut first_after = 0;
        for (i, arg) in call.args.iter().enumerate() {
            self.code(&arg.code, CodeContext::default());
            if held.iter().any(|place| self.changes_since(start, place) == LaterChange::Perhaps) {
                first_after = i + 1;
            }
            held.extend(&arg.borrowed);
        }
        let before = call.args.iter().enumerate().take(first_after);
        let bound = before.filter(|(_, arg)| !stays(&arg.code)).map(|(i, _)| (i, self.index())).collect();
        call.facts.set(OperandFacts { bound, copies_left: false, is_statement: position.is_statement });
    }
}

/// Returns whether an argument need not be evaluated first: it has no effects, or gets its type
/// from the call.
fn stays(code: &Code) -> bool {
    let in_hole = |part: &Part| match part {
        Part::Node { node, .. } => match node {
            TreeNode::Closure(_) => true,
            TreeNode::Variable(passed) => *passed.is_reborrowed.peek(),
            _ => false,
        },
        _ => false,
    };
    match &code.syntax {
        Expr::Lit(_) | Expr::Reference(_) => true,
        e => number_of_hole(e).is_some() && code.parts.iter().any(in_hole),
    }
}
