//! Exits: the ways out of constructs.

use super::state::{Analysis, CodeContext, ConstructKind, TargetKind, Way};
use crate::graph::facts::{ArmExit, Exit, ExitEnd, ExitValue, FirstValue, LeftArm, NeverValue};
use crate::graph::names;
use crate::graph::tree::JumpKind;
use crate::graph::variables::Hidden;
use proc_macro2::{Ident, Span};

impl Analysis<'_> {
    /// Returns the exit of a jump whose flags are raised.
    ///
    /// If the jump leaves some of the first `n` sequences, it goes to the end of the innermost
    /// staged arm in the innermost of them, or else to the end of that sequence, where another exit
    /// follows.
    pub(super) fn leave_sequences(
        &mut self,
        way: Way,
        at: Span,
        n: usize,
        passed_on: Vec<FirstValue>,
        hidden: &[Hidden],
    ) -> Exit {
        let Way { kind, target, has_value } = way;
        let first = self.targets[target].first_inside;
        let sequence = self.sequences[..n].iter().rposition(|s| s.targets > target && s.constructs > first);
        if let Some(i) = sequence {
            let arms = self.leave_arms(target, self.sequences[i].constructs, None, Some(hidden));
            let known = self.sequences[i].ways.iter().find(|(known, _)| *known == way).map(|(_, label)| label.clone());
            let label = known.unwrap_or_else(|| {
                let label = names::label("way", self.index(), self.sequences[i].at);
                self.sequences[i].ways.push((way, label.clone()));
                label
            });
            return Exit { at, arms, passed_on, end: ExitEnd::Sequence(label) };
        }
        let arms = self.leave_arms(target, first, None, Some(hidden));
        let is_loop = self.targets[target].kind == TargetKind::Loop;
        let taken = has_value.then(|| ExitValue::Slot(self.targets[target].slot.clone()));
        let end = match kind {
            JumpKind::Return => ExitEnd::Return(taken),
            JumpKind::Continue => ExitEnd::Continue(self.native(target, at)),
            // A loop reads its value from the slot.
            JumpKind::Break => ExitEnd::Break(self.native(target, at), taken.filter(|_| !is_loop)),
        };
        Exit { at, arms, passed_on, end }
    }

    /// Leaves the arm of the innermost staged construct among those from index `first` on. `given`
    /// is the value of the jump. First values are passed on if the hidden variables are given.
    pub(super) fn leave_arms(
        &mut self,
        target: usize,
        first: usize,
        given: Option<&Ident>,
        hidden: Option<&[Hidden]>,
    ) -> Vec<LeftArm> {
        let mut arms = Vec::new();
        let of_target = &self.targets[target];
        let has_slot = of_target.slot_used && of_target.kind != TargetKind::Loop;
        let slot = of_target.slot.clone();
        for i in (first..self.constructs.len()).rev() {
            let passed_on = hidden.map_or_else(Vec::new, |hidden| self.passed_on(i, hidden));
            let c = &mut self.constructs[i];
            if c.kind != ConstructKind::Logical {
                c.left[c.arm] = true;
                // At the end of the target the value of the jump is the value of the arm.
                let value = c.has_value.then(|| match given {
                    Some(given) => ArmExit::Given(given.clone()),
                    None if has_slot && c.tail == Some(target) => ArmExit::Slot(slot.clone()),
                    None => ArmExit::Nothing,
                });
                arms.push(LeftArm { construct: c.name.clone(), label: c.label(), value, passed_on });
            }
        }
        arms
    }

    /// Returns the values of the variables that were initialized in a construct that is left.
    pub(super) fn passed_on(&self, construct: usize, hidden: &[Hidden]) -> Vec<FirstValue> {
        let c = &self.constructs[construct];
        let mut passed_on = Vec::new();
        for given in c.deferred.iter().filter(|given| given.arms[c.arm]) {
            let (var, id) = (&given.var, given.id);
            let by = hidden.iter().find(|h| self.ids[h.variable] == id).map(|h| self.ids[h.by]);
            if by.is_some_and(|by| by >= c.first_inside) {
                let message =
                    format!("`{var}` is shadowed where this jump needs its value: rename one of the two variables");
                self.cx.error(var, message);
                continue;
            }
            let binding = &self.bindings[id];
            let has_value = binding.deferred && binding.given.is_some_and(|given| given > construct);
            if has_value && self.lives_after(c, id) && !self.stays_in_arm(c, c.arm, id) {
                passed_on.push(FirstValue { slot: c.slot_of(var), var: var.clone() });
            }
        }
        passed_on
    }

    /// Returns the exit after code that certainly jumps. It continues after the innermost staged
    /// arm.
    pub(super) fn leave(&mut self, at: Span) -> Exit {
        let mut target = self.targets.len() - 1;
        // The end of a labeled block cannot be reached if no jump leads to it.
        while self.targets[target].kind == TargetKind::Block && !self.targets[target].is_broken {
            target -= 1;
        }
        let first = self.targets[target].first_inside.max(self.function_start);
        // The jumps before have already passed on the first values.
        let arms = self.leave_arms(target, first, None, None);
        let taken = self.targets[target].used_slot().map(ExitValue::Slot);
        let end = match self.targets[target].kind {
            TargetKind::Block => ExitEnd::Break(self.native(target, at), taken),
            TargetKind::Loop => ExitEnd::Continue(self.native(target, at)),
            TargetKind::Function if taken.is_some() || self.targets[target].returns_unit => ExitEnd::Return(taken),
            TargetKind::Function => ExitEnd::Never,
        };
        Exit { at, arms, passed_on: Vec::new(), end }
    }

    /// Returns the value of code that is left only by jumps to enclosing targets.
    pub(super) fn never_value(&mut self, at: Span, position: &CodeContext) -> NeverValue {
        match position.tail.map(|t| &self.targets[t]) {
            Some(target) if target.slot_used && target.kind != TargetKind::Loop => {
                NeverValue::Slot(target.slot.clone())
            }
            _ => NeverValue::Exit(self.leave(at)),
        }
    }
}
