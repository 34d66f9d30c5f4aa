//! `while`.

use super::condition::{self, Condition, Refs, WhileParts};
use super::{State, StagedIf, StagedLazy};
use crate::trace::{self, Site, WhileTrace};
use crate::{Diagnostic, Tensor};

/// A `while`. The type of its condition is found out when it is tested.
#[must_use]
#[derive(Debug)]
pub struct While<C: Condition>(C::While);

impl<C: Condition> While<C> {
    /// Before the loop.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion makes one")]
    pub fn new() -> While<C> {
        While(C::While::default())
    }

    /// At the head of the loop: whether to compute the condition. In a staged loop it is passed twice, before the condition and
    /// after the body.
    #[inline]
    #[track_caller]
    pub fn more<R: Refs<C>>(&mut self, refs: R, sites: &[Site]) -> bool {
        self.0.more(refs, sites)
    }

    /// Whether to run the body.
    #[inline]
    #[track_caller]
    pub fn test<R: Refs<C>>(&mut self, condition: C, refs: R, sites: &[Site]) -> bool {
        self.0.test(condition, refs, sites)
    }
}

impl WhileParts<bool> for () {
    #[inline]
    fn more<R: Refs<bool>>(&mut self, _refs: R, _sites: &[Site]) -> bool {
        true
    }
    #[inline]
    fn test<R: Refs<bool>>(&mut self, condition: bool, _refs: R, _sites: &[Site]) -> bool {
        condition
    }
}

impl Condition for Tensor<bool> {
    type Itself = Tensor<bool>;
    fn itself(self) -> Tensor<bool> {
        self
    }
    type If = StagedIf;
    type While = StagedWhile;
    type Lazy = StagedLazy;
}

/// The state of a staged `while`: which part is being traced, with the loop variables at its start.
#[derive(Debug, Default)]
pub enum StagedWhile {
    /// Before the loop.
    #[default]
    Before,
    /// In the condition.
    Condition(WhileTrace, Vec<State>),
    /// In the body.
    Body(WhileTrace, Vec<State>),
    /// After the loop.
    After,
}

impl WhileParts<Tensor<bool>> for StagedWhile {
    #[track_caller]
    fn more<R: Refs<Tensor<bool>>>(&mut self, mut refs: R, sites: &[Site]) -> bool {
        match std::mem::replace(self, StagedWhile::After) {
            StagedWhile::Before => {
                let init = condition::save(&refs);
                let sites = condition::tensor_sites(&init, sites);
                let (trace, params) = WhileTrace::begin(&condition::tensors(&init), &sites);
                let params = condition::with_tensors(&init, params);
                refs.load(&params);
                *self = StagedWhile::Condition(trace, params);
                true
            }
            StagedWhile::Body(trace, params) => {
                let next = condition::save(&refs);
                condition::check_structure(&params, &next, sites, ["before the loop", "after one iteration"]);
                let sites = condition::tensor_sites(&next, sites);
                let results = trace.end(&condition::tensors(&next), &sites);
                refs.load(&condition::with_tensors(&next, results));
                false
            }
            StagedWhile::Condition(..) | StagedWhile::After => unreachable!("the parts of a loop follow each other"),
        }
    }

    #[track_caller]
    fn test<R: Refs<Tensor<bool>>>(&mut self, condition: Tensor<bool>, mut refs: R, sites: &[Site]) -> bool {
        let StagedWhile::Condition(mut trace, params) = std::mem::replace(self, StagedWhile::After) else {
            unreachable!("the parts of a loop follow each other")
        };
        let now = condition::save(&refs);
        condition::check_structure(&params, &now, sites, ["before the loop", "after its condition"]);
        for ((a, b), site) in params.iter().zip(&now).zip(sites) {
            if a.tensors() != b.tensors() {
                trace::fail(
                    Diagnostic::new(format!("the condition of a staged `while` changes `{}`", site.name))
                        .at(site.loc(), "changed here")
                        .help("change it in the body, and once more before the loop"),
                );
            }
        }
        let params = condition::with_tensors(&params, trace.begin_body(condition.any()));
        refs.load(&params);
        *self = StagedWhile::Body(trace, params);
        true
    }
}
