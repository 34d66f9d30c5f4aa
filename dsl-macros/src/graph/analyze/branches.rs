//! `if`s, `&&` and `||`, and the guards around statements that a jump may skip.

use super::flags::RaisedFlag;
use super::state::{Analysis, CodeContext, ConstructKind, TargetKind};
use crate::graph::facts::{Deferred, GuardFacts, IfFacts};
use crate::graph::tree::{IfExpr, LogicalExpr, Otherwise, RestOfBlock, StagedIfExpr, Statement};
use syn::spanned::Spanned;

impl Analysis<'_> {
    pub(super) fn branch(&mut self, branch: &IfExpr, is_value: bool, position: CodeContext) {
        match &branch.staged {
            Some(staged) => self.staged_if(branch, staged, is_value, position),
            None => self.host_if(branch, is_value, position),
        }
    }

    /// An `if` on a certain host value: `if let`, a `let` chain, a literal.
    fn host_if(&mut self, branch: &IfExpr, is_value: bool, position: CodeContext) {
        let position = if is_value { position } else { CodeContext { expected: None, value_of: 0, ..position } };
        self.code(&branch.condition, CodeContext::default());
        self.statements(&branch.then.stmts, position.clone());
        match &branch.otherwise {
            None => {}
            Some(Otherwise::Block(body)) => {
                self.statements(&body.stmts, position);
            }
            Some(Otherwise::If(inner)) => self.branch(inner, is_value, position),
        }
    }

    fn staged_if(&mut self, branch: &IfExpr, staged: &StagedIfExpr, is_value: bool, position: CodeContext) {
        self.code(&branch.condition, CodeContext::default());
        let jumps = staged.jumps;
        // If both arms jump, the `if` has no value, unless it ends a function or labeled block,
        // whose value the jumps provide.
        let never_ends = jumps == [true; 2] && position.tail.is_none_or(|t| self.targets[t].kind == TargetKind::Loop);
        let is_value = is_value && !never_ends;
        let at = branch.syntax.if_token.span;
        let type_of_outer = self.constructs.last().map(|c| c.type_by).filter(|_| staged.has_kind_of_outer);
        let index = self.open(ConstructKind::If, at, &position);
        let construct = self.innermost();
        construct.type_by = type_of_outer.unwrap_or(index);
        construct.has_value = is_value;
        construct.jumps = jumps;
        let arms = position.of_arms(is_value);
        let mut given = [self.statements(&branch.then.stmts, arms.clone()), false];
        self.other_arm();
        match &branch.otherwise {
            None => {}
            Some(Otherwise::Block(body)) => given[1] = self.statements(&body.stmts, arms),
            Some(Otherwise::If(inner)) => self.branch(inner, is_value, arms),
        }
        let closed = self.close(at);
        let leave = (is_value && closed.labels.iter().any(Option::is_some)).then(|| self.leave(at));
        self.check_given(&closed.deferred, jumps);
        let never_ends = never_ends.then(|| self.leave(at));
        staged.facts.set(IfFacts { closed, is_value, given, expected: position.expected, leave, never_ends });
    }

    /// Reports variables that are used after an `if` and initialized in only one of its arms,
    /// although the other arm may reach its end.
    fn check_given(&self, deferred: &[Deferred], jumps: [bool; 2]) {
        for d in deferred.iter().filter(|d| d.slot.is_some()) {
            if (0..2).any(|arm| !d.given_in[arm] && !jumps[arm]) {
                let name = &d.var;
                let message = format!(
                    "`{name}` is initialized in only one arm of this `if`: initialize it in both arms, or where it \
                     is declared"
                );
                self.cx.error(name, message);
            }
        }
    }

    /// Puts the statements after one that jumps leave under its flag. Returns whether the guard has
    /// a value.
    pub(super) fn guarded(
        &mut self,
        flag: RaisedFlag,
        stmt: &Statement,
        rest: &RestOfBlock,
        stmts: &[Statement],
        position: CodeContext,
    ) -> bool {
        let RaisedFlag { flag, values_for } = flag;
        let at = flag.name.span();
        // A block that certainly jumps has any type.
        let never_ends = position.tail.is_none() && rest.ends_in_jump;
        // At the end of a function or labeled block the value of the jump is the result. A loop
        // reads its value from the slot.
        let is_value_of = |t: &usize| values_for.contains(t) && self.targets[*t].kind != TargetKind::Loop;
        let slot = position.tail.filter(is_value_of).map(|t| self.targets[t].slot.clone());
        let gives_value = |t: usize| {
            let target = &self.targets[t];
            let label = target.label.as_ref().filter(|_| target.kind == TargetKind::Block);
            label.is_some_and(|label| rest.valued_breaks.contains(label))
        };
        let has_value =
            slot.is_some() || position.tail.is_some_and(gives_value) || (rest.has_value && !position.is_unit);
        self.open(ConstructKind::If, at, &position);
        self.innermost().has_value = has_value;
        self.other_arm();
        self.statements(stmts, position.of_arms(has_value));
        let closed = self.close(at);
        let leave = (has_value && closed.labels[1].is_some()).then(|| self.leave(at));
        let never_ends = (never_ends && !has_value).then(|| self.leave(at));
        stmt.guard.set(GuardFacts {
            flag,
            closed,
            slot,
            has_value,
            rest_has_value: has_value && !rest.ends_in_jump,
            expected: position.expected,
            leave,
            never_ends,
        });
        has_value
    }

    pub(super) fn logical(&mut self, logical: &LogicalExpr) {
        let at = logical.op.span();
        self.code(&logical.left, CodeContext::default());
        self.open(ConstructKind::Logical, at, &CodeContext::default());
        self.code(&logical.right, CodeContext::default());
        let closed = self.close(at);
        logical.facts.set(closed);
    }
}
