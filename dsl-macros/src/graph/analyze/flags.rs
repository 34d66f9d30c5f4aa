//! Flags, which record that a statement was left or that a loop ends.
//!
//! Code after a staged construct that a jump leaves must not run. A jump that does not end its
//! target therefore raises the flags of the statements and loops that it leaves.
//!
//! Invariants:
//! - Each flag is declared before its statement or loop, so that all constructs inside carry it.
//! - The types of the conditions of the constructs between a flag and its jumps decide whether the
//!   flag is a `bool` or a tensor.

use super::state::{Analysis, OpenFlag, Way};
use crate::graph::facts::JumpFlag;
use crate::graph::names;
use crate::graph::place::BindingId;
use crate::graph::tree::JumpKind;
use proc_macro2::{Ident, Span};

/// The minimum number of condition types shared by two nested flags to be joined into one for the
/// outer flag.
const MIN_JOINED: usize = 4;

/// A flag that a jump raises, after all of its jumps are known.
pub(super) struct RaisedFlag {
    pub(super) flag: JumpFlag,
    /// The targets that receive a value from such a jump.
    pub(super) values_for: Vec<usize>,
}

impl Analysis<'_> {
    /// Opens the flag of a statement or, if `loop_target` is given, of the loop whose target is
    /// added next.
    pub(super) fn open_flag(&mut self, at: Span, loop_target: Option<usize>) {
        let index = self.index();
        let is_statement =
            |f: &&OpenFlag| loop_target.is_none() && f.loop_target.is_none() && f.targets == self.targets.len();
        let around = self.flags.last().filter(is_statement).map(|f| (f.name.clone(), f.binding));
        let is_shared = around.is_some();
        let (name, binding) = around.unwrap_or_else(|| {
            let name = names::helper(if loop_target.is_some() { "stop" } else { "left" }, index, at);
            (name, self.declare_helper())
        });
        self.flags.push(OpenFlag {
            name,
            binding,
            is_shared,
            targets: self.targets.len(),
            constructs: self.constructs.len(),
            loop_target,
            excluded: None,
            raised: false,
            values_for: Vec::new(),
            types: Vec::new(),
        });
    }

    /// Returns the name of the innermost flag.
    pub(super) fn flag_name(&self) -> Ident {
        self.flags.last().expect("a flag is open").name.clone()
    }

    /// Excludes the innermost construct from the condition types that decide the type of the
    /// innermost flag.
    pub(super) fn exclude_from_flag(&mut self) {
        let index = self.constructs.last().map(|c| c.index);
        self.flags.last_mut().expect("a flag is open").excluded = index;
    }

    /// Closes the innermost flag. Returns `None` if no jump raised it.
    pub(super) fn close_flag(&mut self) -> Option<RaisedFlag> {
        let flag = self.flags.pop().expect("a flag is open");
        let place = self.flags.len();
        let joined = self.join_types(&flag);
        let mut declared = Vec::new();
        self.types.retain(|&(construct, by)| {
            if by == place {
                declared.push(construct);
            }
            by != place
        });
        let whole = joined.iter().find(|(_, of)| of.len() == flag.types.len());
        let types = whole.map_or(flag.types, |(joined, _)| vec![*joined]);
        flag.raised.then_some(RaisedFlag {
            flag: JumpFlag { name: flag.name, is_shared: flag.is_shared, declared, types, joined },
            values_for: flag.values_for,
        })
    }

    /// Joins the condition types that a flag shares with an enclosing flag into one condition type
    /// of the enclosing flag.
    ///
    /// The list of a flag thus grows only with the constructs directly inside its statement.
    /// Returns the new condition types and their members.
    fn join_types(&mut self, flag: &OpenFlag) -> Vec<(usize, Vec<usize>)> {
        let mut joined: Vec<(usize, Vec<usize>)> = Vec::new();
        for i in 0..self.flags.len() {
            let shared = |ty: &&usize| self.flags[i].types.contains(ty);
            let common: Vec<usize> = flag.types.iter().filter(shared).copied().collect();
            if common.len() < MIN_JOINED {
                continue;
            }
            let known = joined.iter().find(|(_, of)| *of == common).map(|(ty, _)| *ty);
            let ty = known.unwrap_or_else(|| {
                let ty = self.index();
                self.types.push((ty, i));
                ty
            });
            // The joined type replaces the first of its members: the earlier the compiler finds a
            // tensor, the earlier it knows the type of the flag.
            let around = &mut self.flags[i].types;
            let first = around.iter().position(|ty| common.contains(ty)).expect("the type is common to both");
            around[first] = ty;
            around.retain(|ty| !common.contains(ty));
            if known.is_none() {
                joined.push((ty, common));
            }
        }
        // A type that no other flag needs is declared with this flag.
        for (construct, by) in self.types.iter_mut().filter(|(construct, _)| flag.types.contains(construct)) {
            *by = self.flags.iter().position(|f| f.types.contains(construct)).unwrap_or(self.flags.len());
        }
        joined
    }

    fn is_raised(&self, flag: &OpenFlag, way: Way) -> bool {
        let leaves = match flag.loop_target {
            Some(own) => way.target < own || way.target == own && way.kind == JumpKind::Break,
            None => way.target < flag.targets,
        };
        leaves && self.constructs.len() > flag.constructs
    }

    /// Records a jump in the flags that it raises. Returns their names and bindings.
    pub(super) fn raise(&mut self, way: Way) -> Vec<(Ident, BindingId)> {
        let raised: Vec<usize> = (0..self.flags.len()).filter(|&i| self.is_raised(&self.flags[i], way)).collect();
        for &i in &raised {
            let flag = &mut self.flags[i];
            flag.raised = true;
            if way.has_value && !flag.values_for.contains(&way.target) {
                flag.values_for.push(way.target);
            }
            for ty in self.constructs[flag.constructs..].iter().map(|c| c.type_by) {
                if flag.excluded == Some(ty) {
                    continue;
                }
                if !flag.types.contains(&ty) {
                    flag.types.push(ty);
                }
                match self.types.iter_mut().find(|(t, _)| *t == ty) {
                    Some((_, by)) => *by = (*by).min(i),
                    None => self.types.push((ty, i)),
                }
            }
        }
        let own = raised.into_iter().map(|i| &self.flags[i]).filter(|f| !f.is_shared);
        own.map(|f| (f.name.clone(), f.binding)).collect()
    }
}
