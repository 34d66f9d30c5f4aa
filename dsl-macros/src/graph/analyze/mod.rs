//! The second stage: finds what each construct modifies, and how it is left.
//!
//! It walks over the tree in the order of evaluation and keeps a stack of the constructs around the
//! current node. A modification of a place is recorded in each of them that starts after the
//! declaration of the variable ([`constructs`]). A jump is recorded in the constructs, flags and
//! targets that it leaves ([`jumps`], [`flags`]). What is known at the end of a node becomes its
//! facts. The stage knows neither the syntax around the parts of code nor the code that is emitted.
//!
//! Invariants:
//! - A variable is carried only by constructs inside its scope.
//! - The tree stays as it is, except for its facts, and each of them is set once.

use super::facts::FunctionFacts;
use super::tree::*;
use crate::ctxt::Ctxt;
use proc_macro2::Span;
use state::{Analysis, CodeContext, OpenOperand, TargetKind};

mod branches;

mod changes;

mod constructs;

mod exits;

mod flags;

mod jumps;

mod loops;

mod operands;
mod state;

#[cfg(test)]
mod tests;

/// Finds the facts of a function.
pub(crate) fn analyze(cx: &Ctxt, function: &FunctionTree) {
    Analysis::new(cx, &function.variables).function(function);
}

impl Analysis<'_> {
    fn function(&mut self, function: &FunctionTree) {
        self.declare(&(0..function.parameters).collect::<Vec<_>>());
        self.add_target(TargetKind::Function, None, function.name.span());
        self.targets[0].returns_unit = function.returns_unit;
        let position = CodeContext { expected: function.expected.clone(), ..CodeContext::tail_of(0) };
        self.statements(&function.body.stmts, position);
        function.facts.set(self.targets[0].used_slot());
    }

    /// Walks over the parts of code.
    fn code(&mut self, code: &Code, position: CodeContext) {
        self.parts(&code.parts, &position);
    }

    fn parts(&mut self, parts: &[Part], position: &CodeContext) {
        for part in parts {
            match part {
                Part::Node { node, is_value: true, .. } => self.node_or_operand(node, position.clone()),
                Part::Node { node, .. } => self.node_or_operand(node, CodeContext::default()),
                Part::Change { place, how, is_value } => {
                    let skip = if *is_value { position.value_of } else { 0 };
                    if *how == Change::Perhaps {
                        self.called(place);
                    }
                    self.change(place.expr.clone(), self.ids[place.variable], how, skip);
                }
                Part::Declare(variables) => self.declare(variables),
                Part::Error(error) => self.cx.push(error.clone()),
            }
        }
    }

    /// Walks over a node. Constructs inside an operand must not be left by staged jumps.
    fn node_or_operand(&mut self, node: &TreeNode, position: CodeContext) {
        if position.is_statement || matches!(node, TreeNode::Variable(_)) {
            return self.node(node, position);
        }
        self.operands.push(OpenOperand { targets: self.targets.len(), constructs: self.constructs.len() });
        self.node(node, position);
        self.operands.pop();
    }

    fn node(&mut self, node: &TreeNode, position: CodeContext) {
        match node {
            TreeNode::Variable(passed) => self.passed(passed, position.value_of),
            TreeNode::If(branch) => {
                let is_value = branch.is_value && !(branch.is_statement && position.is_unit);
                self.branch(branch, is_value, position);
            }
            TreeNode::Block(block) => {
                self.statements(&block.1.stmts, position);
            }
            TreeNode::Labeled(block) => self.labeled_block(block, position),
            TreeNode::Sequence(sequence) => self.sequence(sequence, position),
            TreeNode::While(w) => self.while_loop(w),
            TreeNode::HostLoop(w) => self.host_while(w),
            TreeNode::For(f) => self.for_loop(f),
            TreeNode::Loop(l) => self.loop_loop(l, position),
            TreeNode::Closure(c) => {
                self.declare(&c.declared);
                let slot = self.in_function(c.at, |analysis| analysis.code(&c.body, CodeContext::tail_of(0)));
                c.facts.set(slot);
            }
            TreeNode::Async(a) => {
                let slot = self.in_function(a.syntax.async_token.span, |analysis| {
                    analysis.statements(&a.body.stmts, CodeContext::tail_of(0));
                });
                a.facts.set(slot);
            }
            TreeNode::Compare(compare) => self.compare(compare, &position),
            TreeNode::Logical(logical) => self.logical(logical),
            TreeNode::Update(update) => self.update(update, &position),
            TreeNode::Call(call) => self.call(call, &position),
            TreeNode::Cast(cast) => self.code(&cast.operand, CodeContext::default()),
            TreeNode::Await(a) => {
                self.code(&a.base, CodeContext::default());
                a.facts.set(self.constructs_from(self.function_start));
            }
            TreeNode::Jump(jump) => self.jump(jump),
            TreeNode::Macro(call) => self.macro_call(&call.1),
        }
    }

    /// Walks over statements. Returns whether they end in statements guarded by a flag that have a
    /// value.
    fn statements(&mut self, stmts: &[Statement], position: CodeContext) -> bool {
        for (i, stmt) in stmts.iter().enumerate() {
            let Some(rest) = &stmt.rest else {
                self.statement(stmt, &position);
                continue;
            };
            self.open_flag(rest.at, None);
            self.statement(stmt, &position);
            if let Some(flag) = self.close_flag() {
                return self.guarded(flag, stmt, rest, &stmts[i + 1..], position);
            }
        }
        false
    }

    fn statement(&mut self, stmt: &Statement, position: &CodeContext) {
        match &stmt.kind {
            StatementKind::Let(local) => {
                if let Some(init) = &local.init {
                    self.code(init, CodeContext { expected: local.expected.clone(), ..CodeContext::statement() });
                }
                if let Some(diverge) = &local.diverge {
                    self.code(diverge, CodeContext::statement());
                }
                self.declare(&local.declared);
                if let ([variable], None) = (&local.declared[..], &local.init) {
                    let binding = self.ids[*variable];
                    self.bindings[binding].ty.clone_from(&local.expected);
                }
            }
            StatementKind::Expr(code, _) => {
                self.code(code, if stmt.is_end { position.clone() } else { CodeContext::statement() });
            }
            StatementKind::Macro(call) => self.macro_call(&call.1),
            StatementKind::Item(_) => {}
        }
    }

    /// Walks over a body that `return` leaves. Returns the slot for its result if a jump needs it.
    fn in_function(&mut self, at: Span, f: impl FnOnce(&mut Self)) -> FunctionFacts {
        let start = std::mem::replace(&mut self.function_start, self.constructs.len());
        let first = std::mem::replace(&mut self.first_of_function, self.bindings.len());
        let (targets, flags) = (std::mem::take(&mut self.targets), std::mem::take(&mut self.flags));
        let (types, sequences) = (std::mem::take(&mut self.types), std::mem::take(&mut self.sequences));
        let operands = std::mem::take(&mut self.operands);
        self.add_target(TargetKind::Function, None, at);
        f(self);
        let slot = self.targets[0].used_slot();
        self.operands = operands;
        (self.targets, self.flags, self.types, self.sequences) = (targets, flags, types, sequences);
        (self.function_start, self.first_of_function) = (start, first);
        slot
    }

    fn macro_call(&mut self, call: &MacroCall) {
        let none = CodeContext::default();
        match call {
            MacroCall::Kept => {}
            MacroCall::Arguments(arguments) | MacroCall::Print { arguments, .. } => self.parts(&arguments.parts, &none),
            MacroCall::Repeat(value, _, count) => {
                self.code(value, none.clone());
                self.code(count, none);
            }
            MacroCall::Matches(scrutinee, _) => self.code(scrutinee, none),
            MacroCall::Assert { condition, message, index, .. } => {
                self.code(condition, none);
                self.message(message);
                index.set(self.index());
            }
            MacroCall::AssertEquality { sides, message, index, .. } => {
                sides.iter().for_each(|side| self.code(side, none.clone()));
                self.message(message);
                index.set(self.index());
            }
            MacroCall::Dbg(_, values) => values.iter().for_each(|(_, value)| self.code(value, none.clone())),
            MacroCall::Panic(_, facts) => self.panic(facts),
            // Constructs outside a closure count as well: the macro may modify captures.
            MacroCall::Opaque(_, constructs) => constructs.set(self.constructs_from(0)),
        }
    }

    fn message(&mut self, message: &CheckMessage) {
        if let CheckMessage::Arguments(arguments) = message {
            self.parts(&arguments.parts, &CodeContext::default());
        }
    }
}
