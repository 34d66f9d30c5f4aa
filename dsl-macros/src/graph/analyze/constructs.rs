//! The constructs around the current node: their ends, and the variables that live on after them.

use super::state::{Analysis, CodeContext, Construct, ConstructKind, GivenInside};
use crate::graph::facts::{Closed, Deferred, UsedPlace};
use crate::graph::names;
use crate::graph::place::{BindingId, Place, PlaceExpr, Places};
use crate::graph::variables::Access;
use proc_macro2::Span;

impl Analysis<'_> {
    /// Opens a construct. Returns its index.
    pub(super) fn open(&mut self, kind: ConstructKind, at: Span, position: &CodeContext) -> usize {
        let index = self.index();
        let text = match kind {
            ConstructKind::If => "if",
            ConstructKind::While | ConstructKind::Loop => "while",
            ConstructKind::Logical => "logical",
        };
        self.constructs.push(Construct {
            name: names::helper(text, index, at),
            index,
            type_by: index,
            kind,
            first_inside: self.bindings.len(),
            carried: Default::default(),
            used: Vec::new(),
            arm: 0,
            left: [false; 2],
            jumps: [false; 2],
            has_value: false,
            tail: position.tail,
            nested: !position.is_statement,
            deferred: Vec::new(),
        });
        index
    }

    /// Closes the innermost construct.
    pub(super) fn close(&mut self, at: Span) -> Box<Closed> {
        self.forget_given();
        let mut construct = self.constructs.pop().expect("the construct is open");
        let [mut places, second] = std::mem::take(&mut construct.carried);
        for place in second.iter() {
            // The construct may be the end of a function or loop body. The variables declared there
            // go out of scope, so no common value is needed after the construct.
            let dies = construct.tail.is_some_and(|t| place.binding >= self.targets[t].first_binding)
                && place.is_owned(self.bindings[place.binding].access)
                && self.dies_around(place);
            if !dies || places.iter().any(|p| p.overlaps(place)) {
                places.add(place.clone());
            } else if place.is_certain() && !self.bindings[place.binding].is_known {
                // The variable may hold a mutable reference, whose target lives on.
                construct.add_used(place.binding, &UsedPlace::of(place.written.clone()));
            }
        }
        let deferred = self.close_deferred(&mut construct, &mut places);
        let is_carried = |id| places.iter().any(|p| p.binding == id && p.is_whole() && p.is_certain());
        let used = construct.used.drain(..).filter(|&(id, _)| !is_carried(id)).map(|(_, used)| used).collect();
        #[cfg(test)]
        self.carried.push(places.iter().map(Place::described).collect());
        let label = |arm: usize| {
            construct.arm = arm;
            construct.left[arm].then(|| construct.label())
        };
        let labels = [0, 1].map(label);
        let needs_type = self.types.iter().any(|&(i, _)| i == construct.index);
        let condition_type = needs_type.then(|| names::condition_type(construct.index, at));
        Box::new(Closed {
            name: construct.name,
            index: construct.index,
            at,
            places,
            used,
            labels,
            deferred,
            condition_type,
        })
    }

    /// Returns the deferred variables that a construct initializes. Those that live on after it are
    /// carried in slots.
    fn close_deferred(&mut self, construct: &mut Construct, places: &mut Places) -> Vec<Deferred> {
        let mut deferred = Vec::new();
        for GivenInside { var, id, arms: given_in } in std::mem::take(&mut construct.deferred) {
            let (is_mut, ty) = (self.bindings[id].access == Access::Mut, self.bindings[id].ty.clone());
            let own = [0, 1].map(|arm| given_in[arm] && self.stays_in_arm(construct, arm, id));
            if given_in == own {
                deferred.push(Deferred { var, is_mut, ty, given_in, own, slot: None });
                continue;
            }
            if !self.constructs.iter().any(|c| id < c.first_inside) {
                self.bindings[id].deferred = false;
            }
            let slot = self.lives_after(construct, id).then(|| construct.slot_of(&var));
            if let Some(slot) = &slot {
                self.bindings[id].given = Some(self.constructs.len());
                let written = PlaceExpr::variable(slot, var.span());
                places.add(Place { written, binding: BindingId::MAX - deferred.len(), receivers: Vec::new() });
            }
            deferred.push(Deferred { var, is_mut, ty, given_in, own, slot });
        }
        deferred
    }

    /// Forgets the values of deferred variables that were initialized in the innermost construct.
    fn forget_given(&mut self) {
        let depth = self.constructs.len();
        for binding in &mut self.bindings {
            binding.given = binding.given.filter(|&given| given < depth);
        }
    }

    /// Proceeds to the second arm of the innermost construct.
    pub(super) fn other_arm(&mut self) {
        self.forget_given();
        self.innermost().arm = 1;
    }

    pub(super) fn innermost(&mut self) -> &mut Construct {
        self.constructs.last_mut().expect("a construct is open")
    }

    pub(super) fn construct_of(&mut self, index: usize) -> &mut Construct {
        self.constructs.iter_mut().rfind(|c| c.index == index).expect("the construct is open")
    }

    /// Returns whether the enclosing constructs need no value of a place either: each of them is in
    /// its second arm, and its first arm does not modify the place.
    fn dies_around(&self, place: &Place) -> bool {
        let mut around = self.constructs.iter().filter(|c| place.binding < c.first_inside);
        around.all(|c| c.arm == 1 && !c.carried[0].iter().any(|p| p.overlaps(place)))
    }

    /// Returns whether a variable from outside a construct is in scope after it. A variable
    /// declared in the function or body that ends with the construct is not.
    pub(super) fn lives_after(&self, construct: &Construct, id: BindingId) -> bool {
        construct.tail.is_none_or(|t| id < self.targets[t].first_binding)
    }

    /// Returns whether nothing after the construct sees the value that a deferred variable gets in
    /// an arm.
    ///
    /// This holds if the arm jumps to the end of a function or a labeled block and provides its
    /// value. It does not hold in a `loop`, which passes first values out of its body.
    pub(super) fn stays_in_arm(&self, construct: &Construct, arm: usize, id: BindingId) -> bool {
        let in_loop = || self.constructs.iter().any(|c| c.kind == ConstructKind::Loop && id < c.first_inside);
        construct.jumps[arm] && self.lives_after(construct, id) && !in_loop()
    }
}
