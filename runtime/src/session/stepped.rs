//! Functions that run as several steps: one for each iteration of their outermost loop.
//!
//! See [`passes::split_at_commits`] for the parts. Here they are run in turn. Between steps no lock
//! is held, and the call may end.

use crate::options::CompileOptions;
use crate::session::Session;
use crate::session::call::RunningCall;
use crate::session::part::PartOfFunction;
use anabranch_dsl::passes::{self, CommitLoop, PartialStep, SteppedGraph};
use anabranch_dsl::trace::Traced;
use anabranch_dsl::{HostTensor, Result};

/// See the [module](self).
pub(crate) struct SteppedFunction {
    begin: PartOfFunction,
    condition: PartOfFunction,
    body: PartOfFunction,
    end: PartOfFunction,
    n_carried: usize,
    n_captured: usize,
}

impl SteppedFunction {
    /// Splits a traced function, and compiles the parts of which the types are known.
    pub(crate) fn new(
        session: &Session,
        traced: &Traced,
        commit: &CommitLoop,
        options: CompileOptions,
    ) -> Result<SteppedFunction> {
        let SteppedGraph { begin, condition, body, end, n_carried, n_captured } =
            passes::split_at_commits(&traced.graph, commit)?;
        let part = |PartialStep { graph, vars, queues }: PartialStep| {
            let vars = vars.into_iter().map(|id| traced.var(id).clone()).collect();
            let queues = queues.into_iter().map(|id| traced.queues[id.index()].clone()).collect();
            PartOfFunction::new(graph, vars, queues, options)
        };
        let [begin, condition, body, end] = [begin, condition, body, end].map(part);
        let parts = SteppedFunction { begin, condition, body, end, n_carried, n_captured };
        for part in parts.parts() {
            if part.open_input().is_none() {
                part.compiled_for(session, &part.input_types())?;
            }
        }
        Ok(parts)
    }

    fn parts(&self) -> [&PartOfFunction; 4] {
        [&self.begin, &self.condition, &self.body, &self.end]
    }

    /// Runs the steps.
    pub(crate) fn run(
        &self,
        session: &Session,
        inputs: &[HostTensor],
        call: Option<&RunningCall>,
    ) -> Result<Vec<HostTensor>> {
        let kept = self.begin.step(session, inputs, call)?;
        let mut n_committed = 0;
        self.run_loop(session, kept, call, &mut n_committed).map_err(|error| match error.kind.is_stop() {
            true => error.help(committed(n_committed)),
            false => error,
        })
    }

    /// Runs the steps after the first one, and counts the iterations that it commits.
    fn run_loop(
        &self,
        session: &Session,
        mut kept: Vec<HostTensor>,
        call: Option<&RunningCall>,
        n_committed: &mut u64,
    ) -> Result<Vec<HostTensor>> {
        let mut for_end = kept.split_off(self.n_carried + self.n_captured);
        while self.condition.step(session, &kept, call)?[0].data::<bool>()[0] {
            let next = self.body.step(session, &kept, call)?;
            *n_committed += 1;
            kept.splice(..self.n_carried, next);
        }
        kept.truncate(self.n_carried);
        kept.append(&mut for_end);
        self.end.step(session, &kept, call)
    }

    /// Returns the plans of the parts as text.
    pub(crate) fn explain(&self, session: &Session) -> Result<String> {
        let mut text = String::new();
        for (title, part) in ["before the loop", "condition", "iteration", "after the loop"].iter().zip(self.parts()) {
            text += &format!("; {title}, a step of its own\n");
            text += &match part.open_input() {
                None => part.compiled_for(session, &part.input_types())?.explain(&session.devices),
                Some(_) => format!("; compiled when the extents of its inputs are known\n{}", part.graph),
            };
        }
        Ok(text)
    }
}

/// Returns the help for a call that was stopped after the step before the loop and some iterations.
fn committed(n_iterations: u64) -> String {
    let iterations = match n_iterations {
        0 => "no iteration".to_owned(),
        1 => "1 iteration".to_owned(),
        n => format!("{n} iterations"),
    };
    format!("what comes before the loop was committed, and {iterations} of it, and no variable has changed since then")
}
