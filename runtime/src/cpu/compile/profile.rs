//! The times of the instructions of a plan during one run.
//!
//! Instructions on registers are not timed one by one, since reading the clock takes longer than
//! they do.

use super::explain::{KernelName, UpdateName};
use super::{Instr, Plan, TensorOpId};
use anabranch_dsl::Loc;
use std::time::{Duration, Instant};

/// Work of a plan that is timed.
#[derive(Clone, Copy)]
pub(super) enum PlanWork {
    /// The instruction of this number.
    Instr(usize),
    /// The update of variables of this number, in place.
    Update(usize),
    /// The assignment of a variable.
    Assign,
    /// An addition to rows of a variable.
    Addition(TensorOpId),
}

/// The times of one run.
pub(crate) struct PlanProfile {
    start: Instant,
    done: Vec<(PlanWork, Duration, Duration)>,
    n_left_out: u64,
}

/// How many spans are kept: those of loops have no bound.
const MAX_SPANS: usize = 100_000;

impl PlanProfile {
    /// Begins a profile whose times count from `start`.
    pub(crate) fn new(start: Instant) -> PlanProfile {
        PlanProfile { start, done: Vec::new(), n_left_out: 0 }
    }

    /// Notes work that has begun at a time and ends now.
    pub(super) fn add(&mut self, work: PlanWork, begin: Instant) {
        if self.done.len() == MAX_SPANS {
            self.n_left_out += 1;
            return;
        }
        self.done.push((work, begin - self.start, self.start.elapsed()));
    }

    /// Returns what was noted, as a person reads it.
    pub(crate) fn finish(self, plan: &Plan) -> PlanTimes {
        let timed = |(work, begin, end)| TimedWork { work: plan.describe(work), begin, end };
        PlanTimes { work: self.done.into_iter().map(timed).collect(), left_out: self.n_left_out }
    }
}

/// The work of a plan in one run, in the order of its ends.
#[derive(Default)]
pub(crate) struct PlanTimes {
    pub(crate) work: Vec<TimedWork>,
    /// How much work was left out.
    pub(crate) left_out: u64,
}

/// Work of a plan, when it began and when it ended.
pub(crate) struct TimedWork {
    pub(crate) work: WorkText,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

/// The description of some work, for a person.
pub(crate) struct WorkText {
    /// The operations.
    pub(crate) name: String,
    /// The user's line.
    pub(crate) loc: Loc,
    /// The bytes that it reads and writes, if known.
    pub(crate) bytes: Option<usize>,
}

impl Plan {
    fn describe(&self, work: PlanWork) -> WorkText {
        match work {
            PlanWork::Instr(i) => self.describe_instr(i),
            PlanWork::Update(i) => {
                let update = &self.updates[i];
                let bytes = Some(update.traffic().iter().sum());
                WorkText { name: format!("{}, in place", UpdateName(update)), loc: update.loc, bytes }
            }
            PlanWork::Assign => {
                WorkText { name: "assignment of a variable".to_owned(), loc: Loc::UNKNOWN, bytes: None }
            }
            PlanWork::Addition(id) => WorkText { name: "addition to rows".to_owned(), ..self.describe_ops(&[id]) },
        }
    }

    fn describe_instr(&self, i: usize) -> WorkText {
        let named = |name: &str, loc| WorkText { name: name.to_owned(), loc, bytes: None };
        let with_op = |name: &str, op: &TensorOpId| named(name, self.tensor_ops[op.index()].loc);
        match &self.code[i] {
            Instr::Run(op) => self.describe_ops(&[*op]),
            Instr::RunParallel(ops) => self.describe_ops(ops),
            Instr::List { op, .. } => self.describe_ops(&[*op]),
            instr @ (Instr::Native { entry, .. } | Instr::Lanes { entry, .. }) => {
                let around = self.loops.iter().filter(|l| l.code.contains(entry) || l.code.contains(&(i as u32)));
                let innermost = around.min_by_key(|l| l.code.len());
                let name = if let Instr::Lanes { .. } = instr { "loop in lanes" } else { "native loop" };
                named(name, innermost.map_or(Loc::UNKNOWN, |l| l.loc))
            }
            Instr::CheckFinite(op) => with_op("check of finite numbers", op),
            Instr::Assert { op, .. } => with_op("assertion", op),
            Instr::StackPush { op, .. } => with_op("value stored for the gradient", op),
            Instr::StackPop { op, .. } => with_op("stored value read for the gradient", op),
            Instr::StackAdd { op, .. } => with_op("sum of stored gradients", op),
            _ => named("move of stored values", Loc::UNKNOWN),
        }
    }

    /// Describes kernels that run at once.
    fn describe_ops(&self, ids: &[TensorOpId]) -> WorkText {
        let ops = || ids.iter().map(|id| &self.tensor_ops[id.index()]);
        let names: Vec<String> = ops().map(|op| KernelName(op).to_string()).collect();
        let bytes = ops().map(|op| op.traffic().map(|both| both.iter().sum::<usize>())).sum();
        let loc = ops().map(|op| op.loc).find(|loc| loc.is_known());
        WorkText { name: names.join(" and "), loc: loc.unwrap_or(Loc::UNKNOWN), bytes }
    }
}
