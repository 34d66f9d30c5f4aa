//! Modifications of places, first values of variables, and uses that may modify.

use super::state::{Analysis, Changed, ConstructKind, GivenInside};
use crate::graph::facts::UsedPlace;
use crate::graph::place::{BindingId, Place, PlaceExpr, Projection};
use crate::graph::tree::{Change, LocalPlace, Passed};
use crate::graph::variables::Access;

/// How an expression modifies a place that is used before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LaterChange {
    /// The expression does not modify the place, or the compiler accepts how it does.
    No,
    /// Only methods may modify the place. A construct borrows it mutably for them, where plain Rust
    /// may only read it.
    Perhaps,
    /// An assignment modifies the place, so the earlier use needs a copy of the old value.
    Exact,
}

impl Analysis<'_> {
    /// Records that a place is modified, in all but the `skip` innermost constructs.
    pub(super) fn change(&mut self, written: PlaceExpr, id: BindingId, how: &Change, skip: usize) {
        let binding = &self.bindings[id];
        let (access, is_known) = (binding.access, binding.is_known);
        let has_no_value = binding.deferred && binding.given.is_none();
        let whole_variable = written.projections.is_empty() && !written.indexed;
        let receiver = match how {
            Change::Unless(receiver) => Some(receiver.clone()),
            _ => None,
        };
        if receiver.is_some() && access == Access::Mut && !is_known {
            // The variable may hold mutable references and hand them out.
            self.used(id, &UsedPlace { receiver: receiver.clone(), ..UsedPlace::of(written.clone()) });
        }
        let is_exact = *how == Change::Exact;
        let written = match how {
            Change::Unless(_) if is_known => return,
            // Nothing is modified through a plain variable, unless it is a mutable reference.
            Change::Perhaps | Change::Unless(_) if access == Access::Plain => {
                return self.used(id, &UsedPlace { receiver, ..UsedPlace::of(written) });
            }
            Change::Perhaps | Change::Unless(_) => written.whole(access),
            Change::Exact if written.indexed => written.whole(access),
            Change::Exact => written,
        };
        if has_no_value && is_exact {
            if whole_variable {
                self.initial_value(id, &written);
            }
            return;
        }
        let constructs = self.constructs.len();
        self.changed.push(Changed { binding: id, written: written.clone(), constructs, is_exact });
        // A deferred variable has no value outside the construct that initializes it.
        let first = self.bindings[id].given.unwrap_or(0);
        let open = constructs - skip.min(constructs);
        for construct in self.constructs[..open].iter_mut().skip(first).filter(|c| id < c.first_inside) {
            let receivers = receiver.iter().cloned().collect();
            construct.carried[construct.arm].add(Place { written: written.clone(), binding: id, receivers });
        }
    }

    /// Records a call of a closure that modifies a captured variable. The closure is not `mut`,
    /// because it is called once. It modifies the variable whatever a tensor condition is.
    pub(super) fn called(&mut self, place: &LocalPlace) {
        let id = self.ids[place.variable];
        if self.variables[place.variable].changes.is_some() && self.bindings[id].access == Access::Plain {
            self.used(id, &UsedPlace { is_closure: true, ..UsedPlace::of(place.expr.clone()) });
        }
    }

    /// Records the use of a place whose variable is not known to be mutable.
    fn used(&mut self, id: BindingId, used: &UsedPlace) {
        let first = self.bindings[id].given.unwrap_or(0);
        for construct in self.constructs.iter_mut().skip(first).filter(|c| id < c.first_inside) {
            construct.add_used(id, used);
        }
    }

    /// Records the initialization of a variable declared by `let x;`.
    fn initial_value(&mut self, id: BindingId, written: &PlaceExpr) {
        let name = &written.root;
        let around = || self.constructs.iter().filter(|c| id < c.first_inside);
        if around().any(|c| matches!(c.kind, ConstructKind::While | ConstructKind::Logical)) {
            let message = format!(
                "`{name}` is initialized inside a `while`, `for`, `&&` or `||`, which may not run: initialize it \
                 where it is declared"
            );
            self.cx.error(name, message);
            self.bindings[id].deferred = false;
            return;
        }
        if around().next().is_none() {
            self.bindings[id].deferred = false;
            return;
        }
        self.bindings[id].given = Some(self.constructs.len());
        let stays_in = self.constructs.iter().rposition(|c| id < c.first_inside && self.stays_in_arm(c, c.arm, id));
        let first = stays_in.unwrap_or(0);
        for construct in self.constructs[first..].iter_mut().filter(|c| id < c.first_inside) {
            let arm = construct.arm;
            match construct.deferred.iter_mut().find(|given| given.id == id) {
                Some(given) => given.arms[arm] = true,
                None => {
                    let arms = [arm == 0, arm == 1];
                    construct.deferred.push(GivenInside { var: name.clone(), id, arms });
                }
            }
        }
    }

    /// Records a variable that is passed to a function, a pattern or a part of a value.
    ///
    /// A mutable reference is reborrowed, because its target may be modified there. A variable
    /// whose type may be a mutable reference is checked.
    pub(super) fn passed(&mut self, passed: &Passed, skip: usize) {
        let LocalPlace { expr, variable } = &passed.place;
        let id = self.ids[*variable];
        let binding = &self.bindings[id];
        let has_value = !binding.deferred || binding.given.is_some();
        let is_inside = has_value && self.constructs.iter().any(|c| id < c.first_inside);
        let is_reborrowed = is_inside && binding.access == Access::MutRef;
        passed.is_reborrowed.set(is_reborrowed);
        if is_reborrowed {
            let mut target = expr.clone();
            target.projections.push(Projection::Deref);
            self.change(target, id, &Change::Exact, skip);
        } else if is_inside && skip == 0 {
            let is_known = binding.is_known;
            self.moved(&passed.place, id);
            if !is_known {
                self.used(id, &UsedPlace::of(expr.clone()));
            }
        }
    }

    /// Reports a closure that modifies a captured variable and is moved into a construct: it would
    /// modify the variable whatever the condition is.
    fn moved(&self, place: &LocalPlace, id: BindingId) {
        let name = &place.expr.root;
        let Some(changed) = &self.variables[place.variable].changes else { return };
        if self.constructs.iter().any(|c| id < c.first_inside) {
            let message = format!(
                "the closure `{name}` modifies `{changed}` and cannot be moved under a tensor condition: write its \
                 body here, or pass `{changed}` as an argument"
            );
            self.cx.error(name, message);
        }
    }

    /// Returns how a place was modified in the current constructs since `changed` had the length
    /// `start`.
    pub(super) fn changes_since(&self, start: usize, place: &LocalPlace) -> LaterChange {
        let id = self.ids[place.variable];
        let changes = || self.changed[start..].iter().filter(|c| c.binding == id && c.written.overlaps(&place.expr));
        if changes().any(|c| c.is_exact) {
            LaterChange::Exact
        } else if changes().any(|c| c.constructs > self.constructs.len()) {
            LaterChange::Perhaps
        } else {
            LaterChange::No
        }
    }
}
