//! Operands that modify places used before them.
//!
//! A construct mutably borrows the places that it may modify. In plain Rust the same place may
//! already be borrowed for use after the operand (the receiver of a method, the left side of `+=`),
//! or the operand may be allowed to read it. In both cases the operand is evaluated first, except
//! that Rust has already copied a left side or receiver of a `Copy` type. Only a modification of
//! the same place counts: one field of a variable may change while another is borrowed.

use super::changes::LaterChange;
use super::state::{Analysis, CodeContext};
use crate::graph::facts::OperandFacts;
use crate::graph::tree::{Argument, Call, Code, CompareExpr, LocalPlace, Part, TreeNode, UpdateExpr};

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
        let early = compare.place.as_ref().filter(|place| !bound.is_empty() && !place.expr.indexed);
        let early = early.map(|_| self.index());
        let (copies_left, is_statement) = (changes == LaterChange::Exact, position.is_statement);
        compare.facts.set(OperandFacts { bound, copies_left, early, is_statement });
    }

    pub(super) fn update(&mut self, update: &UpdateExpr, position: &CodeContext) {
        let start = self.changed.len();
        self.code(&update.right, CodeContext::default());
        let is_first = update.is_right_first || self.changes_of(start, update.place.as_ref()) != LaterChange::No;
        let bound = if is_first { vec![(0, self.index())] } else { Vec::new() };
        self.code(&update.left, CodeContext::default());
        let is_statement = position.is_statement;
        update.facts.set(OperandFacts { bound, copies_left: false, early: None, is_statement });
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
        let stays = |arg: &Argument| arg.stays || is_reborrowed(&arg.code);
        let bound = before.filter(|(_, arg)| !stays(arg)).map(|(i, _)| (i, self.index())).collect();
        let receiver = call.receiver.as_ref().filter(|place| call.keeps_receiver && !place.expr.indexed);
        let is_changed = receiver.is_some_and(|place| self.changes_since(start, place) == LaterChange::Perhaps);
        let early = is_changed.then(|| self.index());
        call.facts.set(OperandFacts { bound, copies_left: false, early, is_statement: position.is_statement });
    }
}

/// Returns whether the code is a variable that is reborrowed. It is then no tensor.
pub(super) fn is_reborrowed(code: &Code) -> bool {
    let passed = |part: &Part| match part {
        Part::Node { node: TreeNode::Variable(passed), is_value: true, .. } => Some(*passed.is_reborrowed.peek()),
        _ => None,
    };
    code.parts.iter().find_map(passed).unwrap_or(false)
}
