//! Jumps: their targets, and what they leave.
//!
//! A jump visits the constructs that it leaves, from the inside out. At the first staged construct
//! it leaves the current arm natively, and tracing continues after that arm. If no construct is
//! staged, it is the jump that the user wrote. The rest of the arm is therefore skipped while
//! tracing, whatever host code is in between.
//!
//! A jump from the end of its target needs nothing more: nothing follows there, and the value of
//! the jump becomes the value of the arm. Any other jump raises the flags of the statements and
//! loops that it leaves ([`flags`](super::flags)), and puts its value into the slot of its target,
//! which is declared before the target, so that all constructs inside carry it.

use super::state::{Analysis, CodeContext, ConstructKind, JumpTarget, OpenSequence, TargetKind, Way};
use crate::graph::facts::{
    BlockFacts, Exit, ExitEnd, ExitValue, FactCell, FailedArm, JumpFacts, PanicFacts, SequenceFacts,
};
use crate::graph::names;
use crate::graph::place::PlaceExpr;
use crate::graph::tree::{Change, Jump, JumpKind, Labeled, SequenceBlock};
use proc_macro2::{Ident, Span};
use syn::{Label, Lifetime};

impl Analysis<'_> {
    /// Adds a target. Returns its index.
    pub(super) fn add_target(&mut self, kind: TargetKind, label: Option<&Label>, at: Span) -> usize {
        let index = self.index();
        let (name, native) = match kind {
            TargetKind::Function => ("result", names::label("function", index, at)),
            TargetKind::Loop => ("broken", names::label("loop", index, at)),
            TargetKind::Block => ("broken", names::label("block", index, at)),
        };
        let slot_binding = self.declare_helper();
        self.targets.push(JumpTarget {
            kind,
            label: label.map(|l| l.name.ident.to_string()),
            native: label.map_or(native, |l| l.name.clone()),
            native_used: false,
            first_inside: match kind {
                TargetKind::Function => self.function_start,
                _ => self.constructs.len(),
            },
            first_binding: match kind {
                TargetKind::Function => self.first_of_function,
                _ => self.bindings.len(),
            },
            slot: names::helper(name, index, at),
            slot_binding,
            slot_used: false,
            is_broken: false,
            returns_unit: false,
        });
        self.targets.len() - 1
    }

    /// Removes the innermost target. Returns it, and the label to put on it.
    pub(super) fn remove_target(&mut self, label: Option<&Label>) -> (JumpTarget, Option<Label>) {
        let target = self.targets.pop().expect("a target was added");
        let generated = || target.native_used.then(|| names::label_of(&target.native));
        let label = label.cloned().or_else(generated);
        (target, label)
    }

    pub(super) fn labeled_block(&mut self, block: &Labeled, position: CodeContext) {
        let label = block.syntax.label.as_ref();
        let target = self.add_target(TargetKind::Block, label, block.body.brace.span.open());
        let end = CodeContext::tail_of(target);
        let inner = CodeContext { expected: position.expected, value_of: position.value_of, ..end };
        self.statements(&block.body.stmts, inner);
        let (target, label) = self.remove_target(label);
        block.facts.set(BlockFacts { label, slot: target.used_slot() });
    }

    /// A block of a long sequence. The exit to each destination is emitted once, after the block.
    pub(super) fn sequence(&mut self, sequence: &SequenceBlock, position: CodeContext) {
        let at = sequence.body.brace.span.open();
        let (targets, constructs) = (self.targets.len(), self.constructs.len());
        self.sequences.push(OpenSequence { targets, constructs, at, ways: Vec::new() });
        self.statements(&sequence.body.stmts, CodeContext { is_unit: sequence.is_unit, ..position });
        let open = self.sequences.pop().expect("the sequence was begun");
        if open.ways.is_empty() {
            return;
        }
        let next = names::label("next", self.index(), at);
        let ways = open.ways.into_iter().map(|(way, label)| {
            let exit = self.leave_sequences(way, at, self.sequences.len(), Vec::new(), &sequence.hidden);
            (exit, label)
        });
        let ways = ways.collect();
        sequence.facts.set(SequenceFacts { next, ways });
    }

    /// Returns the target of a `break` or `continue`.
    fn target_of(&self, label: Option<&Lifetime>) -> Option<usize> {
        let fits = |t: &JumpTarget| match label {
            Some(label) => t.label.as_ref().is_some_and(|l| label.ident == l),
            None => t.kind == TargetKind::Loop,
        };
        self.targets.iter().rposition(fits)
    }

    pub(super) fn jump(&mut self, jump: &Jump) {
        let label = jump.label.as_ref();
        let target = match jump.kind {
            JumpKind::Return => Some(0),
            _ => self.target_of(label),
        };
        if let Some(value) = &jump.value {
            self.code(value, CodeContext::default());
        }
        let Some(target) = target else {
            let message = match (label, jump.kind) {
                (Some(label), _) => {
                    format!("use of the undeclared label `{label}`: use the label of a loop or block around this jump")
                }
                (None, JumpKind::Continue) => {
                    "`continue` outside of a loop: use `return` to leave the function".to_owned()
                }
                (None, _) => "`break` outside of a loop: use `return` to leave the function, or `break 'label` to \
                              leave a block with a label"
                    .to_owned(),
            };
            self.cx.push(syn::Error::new(jump.at, message));
            return jump.facts.set(JumpFacts::Wrong);
        };
        let first = self.targets[target].first_inside;
        let facts = match self.constructs[first..].is_empty() {
            true => JumpFacts::Native(self.needed_label(jump, target)),
            false => self.staged_jump(jump, target),
        };
        jump.facts.set(facts);
    }

    /// Returns the label of its loop for a `break` or `continue` inside generated labeled blocks.
    fn needed_label(&mut self, jump: &Jump, target: usize) -> Option<Lifetime> {
        let is_inside = self.targets[target + 1..].iter().any(|t| t.kind == TargetKind::Block);
        let needs_label = is_inside && jump.kind != JumpKind::Return && jump.label.is_none();
        needs_label.then(|| self.native(target, jump.at))
    }

    fn staged_jump(&mut self, jump: &Jump, target: usize) -> JumpFacts {
        let &Jump { kind, at, ref value, ref hidden, .. } = jump;
        let first = self.targets[target].first_inside;
        // A staged jump out of an operand would not end the expression around it.
        let left = self.operands.iter().find(|operand| target < operand.targets);
        let in_operand = left.map_or(self.constructs.len(), |operand| operand.constructs);
        let constructs = self.constructs.iter().enumerate().skip(first);
        let nested = constructs.filter(|(i, c)| c.nested || *i >= in_operand);
        let checks: Vec<Ident> = nested.map(|(_, c)| c.name.clone()).collect();
        let is_loop = self.targets[target].kind == TargetKind::Loop;
        let at_end = self.constructs[first..].iter().all(|c| c.tail == Some(target));
        if at_end && !is_loop {
            // The value of the jump is the value of the arm.
            let given = names::helper("given", self.index(), at);
            let arms = self.leave_arms(target, first, Some(&given), Some(hidden));
            let end = match kind {
                JumpKind::Return => ExitEnd::Return(Some(ExitValue::Given(given.clone()))),
                _ => ExitEnd::Break(self.native(target, at), Some(ExitValue::Given(given.clone()))),
            };
            let exit = Exit { at, arms, passed_on: Vec::new(), end };
            return JumpFacts::AtEnd { checks, given, exit };
        }
        self.targets[target].is_broken |= kind == JumpKind::Break;
        let way = Way { kind, target, has_value: value.is_some() };
        let raised = self.raise(way);
        for (flag, id) in &raised {
            self.change(PlaceExpr::variable(flag, at), *id, &Change::Exact, 0);
        }
        let slot = value.is_some().then(|| {
            let target = &mut self.targets[target];
            target.slot_used = true;
            let (slot, id) = (target.slot.clone(), target.slot_binding);
            self.change(PlaceExpr::variable(&slot, at), id, &Change::Exact, 0);
            slot
        });
        let passed_on = match is_loop && kind == JumpKind::Break {
            true => self.passed_on(first, hidden),
            false => Vec::new(),
        };
        // First values cannot be passed on after a sequence, because their variables are out of
        // scope there.
        let may_share = self.constructs[first..].iter().all(|c| c.deferred.is_empty());
        let sequences = self.sequences.len() * usize::from(may_share);
        let exit = self.leave_sequences(way, at, sequences, passed_on, hidden);
        JumpFacts::Raising { checks, raised: raised.into_iter().map(|(name, _)| name).collect(), slot, exit }
    }

    /// Returns the label of a target for a jump to it.
    pub(super) fn native(&mut self, target: usize, at: Span) -> Lifetime {
        let target = &mut self.targets[target];
        target.native_used = true;
        let mut native = target.native.clone();
        native.set_span(native.span().located_at(at));
        native
    }

    /// A macro that panics. Under a tensor condition it becomes an assertion that fails.
    pub(super) fn panic(&mut self, facts: &FactCell<PanicFacts>) {
        let inside = &mut self.constructs[self.function_start..];
        if inside.is_empty() {
            return;
        }
        let is_logical = |kind: ConstructKind| kind == ConstructKind::Logical;
        let checks = inside.iter().filter(|c| is_logical(c.kind)).map(|c| c.name.clone()).collect();
        let arms = inside.iter_mut().rev().filter(|c| !is_logical(c.kind)).map(|c| {
            c.left[c.arm] = true;
            FailedArm { construct: c.name.clone(), label: c.label(), has_value: c.has_value }
        });
        let arms = arms.collect();
        facts.set(PanicFacts { checks, arms });
    }
}
