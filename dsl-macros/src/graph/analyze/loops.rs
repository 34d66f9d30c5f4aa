//! Loops.
//!
//! - A `while` whose condition may be a tensor, and a `for` whose iterable may be one, become a
//!   staged `while`.
//! - A `loop` becomes a staged `while` on its flag if a jump that ends it is under a condition.
//! - A loop that is a host loop by its form stays as it is. If a jump in it is under a condition,
//!   the rest of the loop is traced under its flag.

use super::operands::is_reborrowed;
use super::state::{Analysis, CodeContext, ConstructKind, TargetKind};
use crate::graph::facts::{FlagLoopFacts, HostLoopFacts, LoopFacts, StagedLoopFacts, StopFacts};
use crate::graph::names;
use crate::graph::place::PlaceExpr;
use crate::graph::tree::{Body, Change, For, HostLoopExpr, Loop, WhileExpr};
use proc_macro2::Span;
use syn::Label;

impl Analysis<'_> {
    pub(super) fn while_loop(&mut self, w: &WhileExpr) {
        let condition = |analysis: &mut Self| analysis.code(&w.condition, CodeContext::default());
        let facts = self.staged_while(w.at, w.label.as_ref(), w.stops, condition, |_| {}, &w.body);
        w.facts.set(LoopFacts::Staged(facts));
    }

    /// A loop that becomes a staged `while`. `condition` and `item` walk over the code before the
    /// body.
    fn staged_while(
        &mut self,
        at: Span,
        label: Option<&Label>,
        stops: bool,
        condition: impl FnOnce(&mut Self),
        item: impl FnOnce(&mut Self),
        body: &Body,
    ) -> StagedLoopFacts {
        if stops {
            self.open_flag(at, Some(self.targets.len()));
        }
        let stop = stops.then(|| self.flag_name());
        let target = self.add_target(TargetKind::Loop, label, at);
        let index = self.open(ConstructKind::While, at, &CodeContext::statement());
        if stops {
            self.open(ConstructKind::Logical, at, &CodeContext::default());
        }
        // A jump out of the condition leaves a part of an expression.
        self.construct_of(index).nested = true;
        condition(self);
        let construct = self.construct_of(index);
        construct.nested = false;
        let leaves_condition = construct.left[0];
        let head = stops.then(|| self.close(at));
        item(self);
        if stops {
            self.open_guard(at, target);
        }
        self.statements(&body.stmts, CodeContext::tail_of(target));
        let guard = stops.then(|| self.close(at));
        let closed = self.close(at);
        let (_, label) = self.remove_target(label);
        let flag = if stops { self.close_flag().map(|flag| flag.flag) } else { None };
        let stop = match (stop, head, guard) {
            (Some(name), Some(head), Some(guard)) => Some(StopFacts { name, head, guard }),
            _ => None,
        };
        StagedLoopFacts { closed, label, flag, stop, leaves_condition, looping: None }
    }

    /// Opens the guard around the body of a loop that a flag may stop.
    fn open_guard(&mut self, at: Span, target: usize) {
        self.open(ConstructKind::If, at, &CodeContext::tail_of(target));
        self.exclude_from_flag();
    }

    /// The body of a loop that is a host loop by its form.
    fn host_body(&mut self, body: &Body, label: Option<&Label>, stops: bool, at: Span) -> HostLoopFacts {
        if stops {
            self.open_flag(at, Some(self.targets.len()));
        }
        let target = self.add_target(TargetKind::Loop, label, at);
        if stops {
            self.open_guard(at, target);
        }
        self.statements(&body.stmts, CodeContext::tail_of(target));
        let guard = stops.then(|| (self.close(at), self.flag_name()));
        let (_, label) = self.remove_target(label);
        let flag = if stops { self.close_flag().map(|flag| flag.flag) } else { None };
        HostLoopFacts { label, flag, guard }
    }

    pub(super) fn host_while(&mut self, w: &HostLoopExpr) {
        self.code(&w.condition, CodeContext::default());
        let at = w.syntax.while_token.span;
        w.facts.set(LoopFacts::Host(self.host_body(&w.body, w.syntax.label.as_ref(), w.stops, at)));
    }

    pub(super) fn for_loop(&mut self, f: &For) {
        let (at, label) = (f.syntax.for_token.span, f.syntax.label.as_ref());
        self.code(&f.iterable, CodeContext::default());
        // A mutable reference is a host iterator.
        if f.is_host || is_reborrowed(&f.iterable) {
            self.declare(&f.declared);
            return f.facts.set(LoopFacts::Host(self.host_body(&f.body, label, f.stops_under_construct, at)));
        }
        let index = self.index();
        let position = names::position(index, at);
        let binding = self.declare_helper();
        let item = |analysis: &mut Self| {
            analysis.change(PlaceExpr::variable(&position, at), binding, &Change::Exact, 0);
            analysis.declare(&f.declared);
        };
        let facts = self.staged_while(at, label, f.stops, |_| {}, item, &f.body);
        f.facts.set(LoopFacts::Staged(StagedLoopFacts { looping: Some(index), ..facts }));
    }

    pub(super) fn loop_loop(&mut self, l: &Loop, position: CodeContext) {
        let (at, label) = (l.syntax.loop_token.span, l.syntax.label.as_ref());
        if !l.stops {
            return l.facts.set(LoopFacts::Host(self.host_body(&l.body, label, false, at)));
        }
        self.open_flag(at, Some(self.targets.len()));
        let stop = self.flag_name();
        let target = self.add_target(TargetKind::Loop, label, at);
        self.open(ConstructKind::Loop, at, &CodeContext::statement());
        self.exclude_from_flag();
        self.statements(&l.body.stmts, CodeContext::tail_of(target));
        let closed = self.close(at);
        let (target, label) = self.remove_target(label);
        let flag = self.close_flag().map(|flag| flag.flag);
        let slot = target.used_slot();
        let never_ends = (slot.is_none() && !l.is_broken).then(|| self.never_value(at, &position));
        let slot = slot.map(|slot| (slot, position.expected));
        l.facts.set(LoopFacts::OnFlag(FlagLoopFacts { closed, label, flag, stop, slot, never_ends }));
    }
}
