//! The steps of a session at its owner.

use super::{Caller, CallerArrival, CallerOptions, CallerOutput, NewValue, OWNER, PeerFrame, ProcessNumber};
use super::{StepFault, StepNumber, Time, ValueId, WireError, WireErrorKind, prefix};
use crate::peer::proto::frame::{PrintStream, StepProgress};
use crate::peer::proto::payload::{FRAME_BYTES, too_much_waits};
use std::collections::BTreeSet;
use std::time::Duration;

/// Returns how long a step that has failed waits for failures that come earlier, and for the others
/// to end.
pub(super) fn failure_patience(options: &CallerOptions) -> Duration {
    (options.failure_timeout / 50).min(Duration::from_millis(200))
}

/// A step in flight.
#[derive(Debug)]
pub(super) struct CallerStep {
    pub(super) name: String,
    pub(super) participants: Vec<Participant>,
    local: LocalPart,
    assigns: Vec<NewValue>,
    pub(super) begun: Time,
    deadline: Option<Time>,
    /// The longest time that a participant allows a step.
    step_limit: Duration,
    failure: Option<PendingFailure>,
}

#[derive(Debug)]
pub(super) struct Participant {
    pub(super) process: ProcessNumber,
    /// The number of outputs that the participant announced at its end.
    pub(super) ended: Option<u32>,
    /// Whether nothing more is awaited.
    pub(super) is_done: bool,
    pub(super) outputs: BTreeSet<u32>,
    prints: u64,
    pub(super) progress: StepProgress,
    pub(super) progress_at: Time,
    /// The last operation of its part.
    pub(super) runs_last: Option<u32>,
}

/// The part of a step that runs in this process.
#[derive(Debug)]
struct LocalPart {
    is_done: bool,
    progress: StepProgress,
    progress_at: Time,
}

/// The failure of a step that is not done yet.
#[derive(Debug)]
struct PendingFailure {
    rank: Rank,
    fault: StepFault,
    until: Time,
}

/// The order of failures. The first is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Position(Vec<u64>),
    LostPeer,
    Other,
    /// A consequence of the abort.
    Aborted,
}

impl CallerStep {
    /// Creates the state of a step that has just begun. Processes are busy until they say
    /// otherwise.
    pub(super) fn new(
        now: Time,
        step: StepNumber,
        name: String,
        participants: &[ProcessNumber],
        assigns: Vec<NewValue>,
        (deadline, step_limit): (Option<Time>, Duration),
    ) -> CallerStep {
        let progress = StepProgress { step, done: 0, is_busy: true, last: None };
        let participant = |&process| Participant {
            process,
            ended: None,
            is_done: false,
            outputs: BTreeSet::new(),
            prints: 0,
            progress,
            progress_at: now,
            runs_last: None,
        };
        let participants = participants.iter().map(participant).collect();
        let local = LocalPart { is_done: false, progress, progress_at: now };
        CallerStep { name, participants, local, assigns, begun: now, deadline, step_limit, failure: None }
    }

    /// Returns when the step last made progress anywhere.
    pub(super) fn last_progress(&self) -> Time {
        let others = self.participants.iter().filter(|participant| !participant.is_done);
        others.map(|participant| participant.progress_at).fold(self.local.progress_at, Time::max)
    }

    /// Returns when the step fails if it makes no progress.
    fn stuck_at(&self, options: &CallerOptions) -> Time {
        let mut others = self.participants.iter().filter(|participant| !participant.is_done);
        let mut patience = options.failure_timeout * 2;
        if !self.local.is_done && self.local.progress.is_busy {
            patience = options.busy_timeout;
        } else if others.any(|participant| participant.progress.is_busy) {
            // The peer stops the step at its limit, and then says so.
            patience = options.busy_timeout.min(self.step_limit.saturating_add(patience));
        }
        self.last_progress().saturating_add(patience)
    }

    pub(super) fn next_deadline(&self, options: &CallerOptions) -> Time {
        match &self.failure {
            Some(failure) => failure.until,
            None => self.deadline.into_iter().fold(self.stuck_at(options), Time::min),
        }
    }

    pub(super) fn involves(&self, process: ProcessNumber) -> bool {
        self.participants.iter().any(|participant| participant.process == process)
    }

    fn participant(&mut self, process: ProcessNumber) -> Option<&mut Participant> {
        self.participants.iter_mut().find(|participant| participant.process == process)
    }
}

impl Caller {
    /// Notes that the part of a step in this process has ended, or failed.
    pub(crate) fn end_local(
        &mut self,
        now: Time,
        step: StepNumber,
        outcome: Result<(), StepFault>,
        out: &mut Vec<CallerOutput>,
    ) {
        let Some(state) = self.steps.get_mut(&step) else { return };
        state.local.is_done = true;
        if let Err(failure) = outcome {
            let is_stop = failure.error.kind == WireErrorKind::Cancelled && state.failure.is_some();
            self.fail(now, step, OWNER, rank_of(&failure, is_stop), failure, out);
        }
        self.settle(step, out);
        self.release_leaving(now, out);
    }

    /// Notes the progress of the part of a step in this process.
    pub(crate) fn progressed(&mut self, now: Time, step: StepNumber, done: u64, is_busy: bool) {
        if let Some(state) = self.steps.get_mut(&step) {
            let progress = StepProgress { step, done, is_busy, last: None };
            if state.local.progress != progress {
                state.local.progress = progress;
                state.local.progress_at = now;
            }
        }
    }

    pub(super) fn heartbeat(&mut self, now: Time, process: ProcessNumber, steps: &[StepProgress]) {
        for progress in steps {
            let Some(state) = self.steps.get_mut(&progress.step) else { continue };
            if let Some(participant) = state.participant(process)
                && participant.progress != *progress
            {
                participant.progress = *progress;
                participant.progress_at = now;
            }
        }
    }

    /// Passes on what a participant sent for a step.
    pub(super) fn step_arrived(
        &mut self,
        now: Time,
        process: ProcessNumber,
        step: StepNumber,
        arrival: CallerArrival,
        out: &mut Vec<CallerOutput>,
    ) {
        let Some(state) = self.steps.get_mut(&step).filter(|state| state.failure.is_none()) else { return };
        let Some(participant) = state.participant(process) else { return };
        participant.progress_at = now;
        let is_expected = match &arrival {
            CallerArrival::Output { index, .. } => {
                participant.outputs.insert(*index)
                    && participant.ended.is_none_or(|n| participant.outputs.len() <= n as usize)
            }
            // A message with a body may arrive after the participant has ended.
            _ => true,
        };
        if !is_expected {
            let fault = StepFault::new(WireErrorKind::Internal, format!("{} sent too much", self.name(process)));
            return self.fail(now, step, process, Rank::Other, fault, out);
        }
        let bytes = match &arrival {
            CallerArrival::Message(message) => message.memory_bytes(),
            CallerArrival::Output { tensor, .. } => tensor.memory_bytes(),
            _ => 0,
        };
        let Some(held) = self.arrivals.hold(FRAME_BYTES + bytes) else {
            let error = too_much_waits(&self.arrivals);
            return self.fail(now, step, process, Rank::Other, StepFault { position: None, error }, out);
        };
        out.push(CallerOutput::Arrived { step, arrival, held: Some(held) });
        self.participant_done(process, step, out);
        self.settle(step, out);
    }

    pub(super) fn printed(
        &mut self,
        now: Time,
        process: ProcessNumber,
        step: StepNumber,
        number: u64,
        (stream, text): (PrintStream, String),
        out: &mut Vec<CallerOutput>,
    ) {
        let Some(state) = self.steps.get_mut(&step) else { return };
        let Some(participant) = state.participant(process) else { return };
        if participant.prints != number || participant.ended.is_some() {
            let fault = StepFault::new(WireErrorKind::Internal, format!("{} lost a print", self.name(process)));
            return self.fail(now, step, process, Rank::Other, fault, out);
        }
        participant.prints += 1;
        participant.progress_at = now;
        let Some(held) = self.arrivals.hold(FRAME_BYTES + text.len() as u64) else {
            let error = too_much_waits(&self.arrivals);
            return self.fail(now, step, process, Rank::Other, StepFault { position: None, error }, out);
        };
        // Prints that happened before a failure are shown.
        out.push(CallerOutput::Arrived { step, arrival: CallerArrival::Print { stream, text }, held: Some(held) });
    }

    pub(super) fn participant_ended(
        &mut self,
        now: Time,
        process: ProcessNumber,
        step: StepNumber,
        outputs: u32,
        out: &mut Vec<CallerOutput>,
    ) {
        let Some(state) = self.steps.get_mut(&step) else { return };
        let is_failing = state.failure.is_some();
        let Some(participant) = state.participant(process) else { return };
        if participant.ended.replace(outputs).is_some() || participant.outputs.len() > outputs as usize {
            let fault = StepFault::new(WireErrorKind::Internal, format!("{} sent too much", self.name(process)));
            self.fail(now, step, process, Rank::Other, fault, out);
        } else {
            participant.progress_at = now;
            // The outputs of a step that fails are not awaited.
            participant.is_done |= is_failing;
            self.participant_done(process, step, out);
        }
        self.settle(step, out);
    }

    /// Notes that a participant is done if it has ended and its outputs have arrived.
    fn participant_done(&mut self, process: ProcessNumber, step: StepNumber, out: &mut Vec<CallerOutput>) {
        let Some(state) = self.steps.get_mut(&step) else { return };
        let Some(participant) = state.participant(process) else { return };
        if !participant.is_done && participant.ended == Some(participant.outputs.len() as u32) {
            participant.is_done = true;
            out.push(CallerOutput::Arrived { step, arrival: CallerArrival::Ended { process }, held: None });
        }
    }

    pub(super) fn participant_failed(
        &mut self,
        now: Time,
        process: ProcessNumber,
        step: StepNumber,
        failure: StepFault,
        out: &mut Vec<CallerOutput>,
    ) {
        let Some(state) = self.steps.get_mut(&step) else { return };
        let is_failing = state.failure.is_some();
        let Some(participant) = state.participant(process) else { return };
        participant.is_done = true;
        let is_stop = is_failing && failure.error.kind == WireErrorKind::Cancelled;
        let mut failure = self.with_lost_link(now, process, step, failure);
        if failure.position.is_none() && failure.error.kind == WireErrorKind::ResourceExhausted {
            failure.error = self.explain(now, step, process, failure.error);
        }
        self.fail(now, step, process, rank_of(&failure, is_stop), failure, out);
        self.settle(step, out);
    }

    /// Fails the steps in which a lost peer takes part.
    pub(super) fn fail_steps_of(
        &mut self,
        now: Time,
        process: ProcessNumber,
        error: &WireError,
        out: &mut Vec<CallerOutput>,
    ) {
        let steps: Vec<StepNumber> = self.steps.keys().copied().collect();
        for step in steps {
            let state = self.steps.get_mut(&step).expect("the step exists");
            let Some(participant) = state.participant(process) else { continue };
            // What it has stored is lost, even if it had ended.
            participant.is_done = true;
            let error = self.explain(now, step, process, error.clone());
            let fault = StepFault { position: None, error };
            self.fail(now, step, process, Rank::LostPeer, fault, out);
            self.settle(step, out);
        }
    }

    /// Notes a failure, and aborts the step at all participants if it is the first.
    fn fail(
        &mut self,
        now: Time,
        step: StepNumber,
        process: ProcessNumber,
        rank: Rank,
        fault: StepFault,
        out: &mut Vec<CallerOutput>,
    ) {
        let patience = failure_patience(&self.options);
        let Some(state) = self.steps.get_mut(&step) else { return };
        if let Some(known) = &mut state.failure {
            if rank < known.rank {
                known.rank = rank;
                known.fault = fault;
            }
            return;
        }
        let reason = prefix(&fault.error.message, 1_000).to_owned();
        let arrival = CallerArrival::Failed { process, failure: fault.clone() };
        out.push(CallerOutput::Arrived { step, arrival, held: None });
        state.failure = Some(PendingFailure { rank, fault, until: now + patience });
        let mut running = Vec::new();
        for participant in &mut state.participants {
            if participant.ended.is_some() {
                // Its outputs are not awaited any more.
                participant.is_done = true;
            } else if !participant.is_done {
                running.push(participant.process);
            }
        }
        for process in running {
            self.send_to(process, PeerFrame::Abort { step, reason: reason.clone() }, out);
        }
    }

    /// Ends a step if nothing more is awaited.
    fn settle(&mut self, step: StepNumber, out: &mut Vec<CallerOutput>) {
        let Some(state) = self.steps.get(&step) else { return };
        if state.local.is_done && state.participants.iter().all(|participant| participant.is_done) {
            self.finish(step, out);
        }
    }

    fn finish(&mut self, step: StepNumber, out: &mut Vec<CallerOutput>) {
        let state = self.steps.remove(&step).expect("the step exists");
        let outcome = match state.failure {
            None => {
                for new in &state.assigns {
                    self.peer_mut(new.process).expect("the process is a peer").values.insert(new.value);
                }
                Ok(state.assigns)
            }
            Some(failure) => {
                for participant in &state.participants {
                    let of = state.assigns.iter().filter(|new| new.process == participant.process);
                    let values: Vec<ValueId> = of.map(|new| new.value).collect();
                    self.send_release(participant.process, &values, out);
                }
                Err(failure.fault)
            }
        };
        out.push(CallerOutput::StepDone { step, outcome });
    }

    pub(super) fn tick_steps(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        let due = self.steps.iter().filter(|(_, state)| state.next_deadline(&self.options) <= now);
        let due: Vec<StepNumber> = due.map(|(&step, _)| step).collect();
        for step in due {
            let state = &self.steps[&step];
            if state.failure.is_some() {
                self.finish(step, out);
                continue;
            }
            let fault = match state.deadline {
                Some(deadline) if deadline <= now => {
                    let mut fault =
                        StepFault::new(WireErrorKind::DeadlineExceeded, "the deadline of the call has passed");
                    fault.error.labels = self.why_slow(now, step);
                    fault
                }
                _ => StepFault { position: None, error: self.why_stuck(now, step) },
            };
            self.fail(now, step, OWNER, Rank::Other, fault, out);
            self.settle(step, out);
        }
    }
}

fn rank_of(failure: &StepFault, is_stop: bool) -> Rank {
    match &failure.position {
        Some(position) => Rank::Position(position.clone()),
        None if is_stop => Rank::Aborted,
        None => Rank::Other,
    }
}
