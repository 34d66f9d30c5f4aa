//! The beginning of steps.

use super::step::CallerStep;
use super::{Caller, CallerOutput, HostTensor, NewValue, OWNER, PeerFrame, ProcessNumber, ProgramNumber};
use super::{ProgramState, StepNumber, Time, ValueId, WireError, too_large, unavailable};
use crate::peer::proto::codec::{MAX_INPUTS, MAX_VARS};
use crate::peer::proto::frame::Start;
use std::time::Duration;

/// A step to begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) program: ProgramNumber,
    /// The name of the function, for messages.
    pub(crate) name: String,
    /// The peers that take part, in ascending order.
    pub(crate) participants: Vec<ProcessNumber>,
    /// The last operation that each of them runs, for messages.
    pub(crate) run_last: Vec<(ProcessNumber, u32)>,
    pub(crate) deadline: Option<Duration>,
    /// The variables that a peer reads, with their values.
    pub(crate) reads: Vec<(ProcessNumber, u32, ValueId)>,
    /// The variables that sessions share. Their values can be acquired again.
    pub(crate) shared: Vec<u32>,
    /// The variables that a peer assigns.
    pub(crate) assigns: Vec<(ProcessNumber, u32)>,
    /// The inputs of the graph that a peer needs.
    pub(crate) inputs: Vec<(ProcessNumber, u32, HostTensor)>,
}

/// Why a step cannot begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BeginError {
    /// These variables of the session were lost with their peers.
    LostVariables(Vec<(ProcessNumber, u32)>),
    Unavailable(WireError),
}

impl Caller {
    /// Returns whether each of these peers lets another step of the session run.
    pub(crate) fn has_room(&self, participants: &[ProcessNumber]) -> bool {
        participants.iter().all(|&process| {
            let limit = self.peer(process).and_then(|peer| peer.limits).map_or(u32::MAX, |limits| limits.steps);
            let running = self.steps.values().filter(|step| step.involves(process)).count();
            // The first is tried in any case.
            running == 0 || running < limit as usize
        })
    }

    /// Begins a step at its participants. The process runs its own part, and reports its end by
    /// [`end_local`](Self::end_local).
    pub(crate) fn begin(
        &mut self,
        now: Time,
        plan: StepPlan,
        out: &mut Vec<CallerOutput>,
    ) -> Result<StepNumber, BeginError> {
        self.check_plan(&plan)?;
        self.last_step += 1;
        let step = StepNumber(self.last_step);
        let mut assigns = Vec::new();
        for &(process, variable) in &plan.assigns {
            assigns.push(NewValue { process, variable, value: self.new_value() });
        }
        let deadline = plan.deadline.map(|deadline| now.saturating_add(deadline));
        let all: Vec<ProcessNumber> = [OWNER].into_iter().chain(plan.participants.iter().copied()).collect();
        for &process in &plan.participants {
            let of = |of: ProcessNumber| of == process;
            let start = Start {
                step,
                program: plan.program,
                participants: all.clone(),
                deadline_ms: plan.deadline.map(|deadline| u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX)),
                vars: plan.reads.iter().filter(|read| of(read.0)).map(|&(_, var, value)| (var, value)).collect(),
                assigns: assigns.iter().filter(|new| of(new.process)).map(|new| (new.variable, new.value)).collect(),
                inputs: plan.inputs.iter().filter(|input| of(input.0)).map(|input| input.1).collect(),
            };
            self.send_to(process, PeerFrame::Start(start), out);
        }
        let limit_of = |&process: &ProcessNumber| self.step_limit(process);
        let step_limit = plan.participants.iter().filter_map(limit_of).max().unwrap_or_default();
        for (process, index, tensor) in plan.inputs {
            self.send_to(process, PeerFrame::Input { step, index, tensor }, out);
        }
        let mut state = CallerStep::new(now, step, plan.name, &plan.participants, assigns, (deadline, step_limit));
        for participant in &mut state.participants {
            let found = plan.run_last.iter().find(|(process, _)| *process == participant.process);
            participant.runs_last = found.map(|(_, node)| *node);
        }
        self.steps.insert(step, state);
        Ok(step)
    }

    fn check_plan(&self, plan: &StepPlan) -> Result<(), BeginError> {
        let unavailable = |message: String| Err(BeginError::Unavailable(unavailable(message)));
        if self.is_closed {
            return unavailable("the session is closed".to_owned());
        }
        let of_participants = |process: &ProcessNumber| plan.participants.contains(process);
        assert!(
            plan.participants.is_sorted_by(|a, b| a < b)
                && plan.reads.iter().map(|read| &read.0).all(of_participants)
                && plan.assigns.iter().map(|assign| &assign.0).all(of_participants)
                && plan.inputs.iter().map(|input| &input.0).all(of_participants),
            "the plan names processes that do not take part: {plan:?}"
        );
        let lost = plan.reads.iter().filter(|(process, _, value)| !self.has_value(*process, *value));
        let lost = lost.map(|&(process, variable, _)| (process, variable));
        let (shared, own): (Vec<_>, Vec<_>) = lost.partition(|(_, variable)| plan.shared.contains(variable));
        if !own.is_empty() {
            return Err(BeginError::LostVariables(own));
        }
        if let Some(&(process, _)) = shared.first() {
            let why = self.why_unavailable(process);
            let lost = || format!("{} was lost while the call was beginning", self.name(process));
            return why.map_or_else(|| unavailable(lost()), |error| Err(BeginError::Unavailable(error)));
        }
        for &process in &plan.participants {
            let Some(peer) = self.peer(process) else {
                return unavailable(format!("there is no process {process}"));
            };
            if let Some(error) = peer.why_unavailable() {
                return Err(BeginError::Unavailable(error));
            }
            // Only errors need it.
            let name = || peer.name();
            if let Some(reason) = &peer.leaving {
                return unavailable(format!("{} is leaving: {reason}", name()));
            }
            if let Some(&other) = peer.unlinked.iter().find(|other| plan.participants.contains(other)) {
                return unavailable(format!("{} has lost the link to {}", name(), self.name(other)));
            }
            if !matches!(self.program(process, plan.program), Some(ProgramState::Ready)) {
                return unavailable(format!("the program is not loaded at {}", name()));
            }
            let limit = peer.limits.map_or(u64::MAX, |limits| limits.body_bytes);
            let mut inputs = plan.inputs.iter().filter(|input| input.0 == process);
            if let Some((_, index, tensor)) = inputs.find(|(_, _, tensor)| tensor.n_bytes() > limit) {
                return Err(BeginError::Unavailable(too_large(format!(
                    "input {index} of {} bytes is larger than the {limit} that {} receives",
                    tensor.n_bytes(),
                    name()
                ))));
            }
            let vars = plan.reads.iter().filter(|read| read.0 == process).count()
                + plan.assigns.iter().filter(|assign| assign.0 == process).count();
            let inputs = plan.inputs.iter().filter(|input| input.0 == process).count();
            if vars > MAX_VARS || inputs > MAX_INPUTS {
                return unavailable(format!("a step uses {vars} variables and {inputs} inputs at {}", name()));
            }
        }
        Ok(())
    }
}
