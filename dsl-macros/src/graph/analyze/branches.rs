//! `if`s, `&&` and `||`, and the guards around statements that a jump may skip.

use super::flags::RaisedFlag;
use super::state::{Analysis, CodeContext, ConstructKind, TargetKind};
use crate::graph::facts::{Deferred, GuardFacts, IfEnd, IfFacts};
use crate::graph::tree::{
    Body, Code, EndValue, IfExpr, LogicalExpr, MacroCall, Otherwise, Part, RestOfBlock, StagedIfExpr, Statement,
    StatementKind, TreeNode, number_of_hole,
};
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
        // The body of a loop is `()`.
        let has_type = is_value && position.tail.is_none();
        let ends_with_value = is_value && !never_ends;
        let at = branch.syntax.if_token.span;
        let type_of_outer = self.constructs.last().map(|c| c.type_by).filter(|_| staged.has_kind_of_outer);
        let index = self.open(ConstructKind::If, at, &position);
        let construct = self.innermost();
        construct.type_by = type_of_outer.unwrap_or(index);
        construct.has_value = ends_with_value;
        construct.jumps = jumps;
        let arms = position.of_arms(ends_with_value);
        let mut given = [self.statements(&branch.then.stmts, arms.clone()), false];
        self.other_arm();
        match &branch.otherwise {
            None => {}
            Some(Otherwise::Block(body)) => given[1] = self.statements(&body.stmts, arms),
            Some(Otherwise::If(inner)) => self.branch(inner, is_value, arms),
        }
        let closed = self.close(at);
        let panics = [panics(&branch.then), matches!(&branch.otherwise, Some(Otherwise::Block(body)) if panics(body))];
        self.check_given(&closed.deferred, [0, 1].map(|arm| jumps[arm] || panics[arm]));
        let values = staged.values;
        let (has_value, end) = if never_ends {
            (values.map(|value| has_type && value == EndValue::Some), IfEnd::Never(self.leave(at)))
        } else if ends_with_value {
            let leave = closed.labels.iter().any(Option::is_some).then(|| self.leave(at));
            (
                [0, 1].map(|i| values[i] != EndValue::None || given[i]),
                IfEnd::Value { expected: position.expected, leave },
            )
        } else {
            ([false; 2], IfEnd::Statement)
        };
        staged.facts.set(IfFacts { closed, has_value, end });
    }

    /// Reports variables that are used after an `if` and initialized in only one of its arms,
    /// although the other arm may reach its end.
    fn check_given(&self, deferred: &[Deferred], never_ends: [bool; 2]) {
        for d in deferred.iter().filter(|d| d.slot.is_some()) {
            if (0..2).any(|arm| !d.given_in[arm] && !never_ends[arm]) {
                let name = &d.var;
                let message = format!(
                    "`{name}` is initialized in only one arm of this `if`: initialize it in both arms, or where it \
                     is declared"
                );
                self.cx.error(name, message);
            }
        }
    }

    /// Puts the statements after a statement that jumps leave under its flag. Returns whether the
    /// guard has a value.
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
        // At the end of a function or labeled block the value of the jump is the result. A loop
        // reads its value from the slot.
        let is_value_of = |t: &usize| values_for.contains(t) && self.targets[*t].kind != TargetKind::Loop;
        let slot = position.tail.filter(is_value_of).map(|t| self.targets[t].slot.clone());
        // The block that ends with the statements, and the jumps in them that end it.
        let block = position.tail.map(|t| &self.targets[t]).filter(|target| target.kind == TargetKind::Block);
        let own_label = block.and_then(|target| target.label.as_ref());
        let mut to_end = rest.labels.iter().filter(|(label, _)| Some(label) == own_label).peekable();
        let never_ends = rest.jumps && (position.tail.is_none() || (block.is_some() && to_end.peek().is_none()));
        let gives_value = to_end.any(|(_, has_value)| *has_value);
        let rest_is_value = rest.value == EndValue::Some && !position.is_unit;
        // Statements that certainly jump have no value, unless they end a function or labeled
        // block, whose value the jumps provide.
        let has_value = slot.is_some() || gives_value || (rest_is_value && !(rest.jumps && position.tail.is_none()));
        let never_ends = never_ends && !has_value;
        self.open(ConstructKind::If, at, &position);
        self.innermost().has_value = has_value;
        self.other_arm();
        self.statements(stmts, position.of_arms(has_value));
        let closed = self.close(at);
        let (rest_has_value, end) = if never_ends {
            (rest_is_value, IfEnd::Never(self.leave(at)))
        } else if has_value {
            let leave = closed.labels[1].is_some().then(|| self.leave(at));
            (rest.value != EndValue::None, IfEnd::Value { expected: position.expected, leave })
        } else {
            (false, IfEnd::Statement)
        };
        stmt.guard.set(GuardFacts { flag, closed, slot, rest_has_value, end });
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

/// Returns whether a statement of a block is a macro that panics.
fn panics(body: &Body) -> bool {
    let is_panic = |call: &MacroCall| matches!(call, MacroCall::Panic(..));
    body.stmts.iter().any(|stmt| match &stmt.kind {
        StatementKind::Macro(call) => is_panic(&call.1),
        StatementKind::Expr(Code { syntax, parts }, _) => match &parts[..] {
            [Part::Node { hole, node: TreeNode::Macro(call), .. }] => {
                number_of_hole(syntax) == Some(*hole) && is_panic(&call.1)
            }
            _ => false,
        },
        _ => false,
    })
}
