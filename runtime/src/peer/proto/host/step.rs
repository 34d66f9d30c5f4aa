//! The steps of a host.

use super::session::{HostProgram, HostSession, ProgramPhase};
use super::{
    Begin, CallerFrame, Host, HostArrival, HostOutput, LinkNumber, SessionSlot, Start, StepEnd, StepFault, StepKey,
};
use super::{StepMessage, StepNumber, WorkKey, exhausted, invalid, reply};
use crate::peer::proto::Time;
use crate::peer::proto::frame::{OWNER, PeerKey, ProcessNumber, StepProgress, ValueId};
use crate::peer::proto::frame::{WireError, WireErrorKind, prefix};
use crate::peer::proto::host::session::StoredValue;
use crate::peer::proto::payload::{FRAME_BYTES, too_much_waits};
use anabranch_dsl::memory::HeldBytes;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// Maximum number of steps whose frames wait.
const MAX_EARLY_STEPS: usize = 256;

/// A step that is running.
#[derive(Debug)]
pub(super) struct HostStep {
    participants: Vec<ProcessNumber>,
    routes: Routes,
    assigns: Vec<(u32, ValueId)>,
    /// The values that it reads.
    reads: Vec<ValueId>,
    /// The inputs that have not arrived.
    inputs: BTreeSet<u32>,
    deadline: Option<Time>,
    /// When the step has taken as long as this peer allows.
    exhausted_at: Time,
    pub(super) progress: StepProgress,
    /// Whether the process was told to end the step. Nothing is delivered any more.
    pub(super) is_stopped: bool,
    /// Whether the owner knows the outcome.
    pub(super) is_reported: bool,
}

impl HostStep {
    /// Returns when the step fails, unless the owner knows its outcome.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        (!self.is_reported).then(|| self.deadline.into_iter().fold(self.exhausted_at, Time::min))
    }
}

/// Frames of a step that has not begun.
pub(super) type EarlyFrames = Vec<(HostArrival, HeldBytes)>;

impl HostSession {
    /// Returns whether the number of a value is in use.
    pub(super) fn has_value(&self, value: ValueId) -> bool {
        self.values.contains_key(&value) || self.released.contains_key(&value)
    }

    /// Notes that a step reads values no longer.
    fn end_reads(&mut self, reads: &[ValueId]) {
        for value in reads {
            if let Some(state) = self.values.get_mut(value) {
                state.n_readers -= 1;
            } else if let Entry::Occupied(mut released) = self.released.entry(*value) {
                released.get_mut().n_readers -= 1;
                if released.get().n_readers == 0 {
                    self.value_bytes -= released.remove().bytes;
                }
            }
        }
    }

    /// Notes that no further steps up to `last` will begin.
    pub(super) fn skip(&mut self, last: StepNumber) {
        self.last_started = self.last_started.max(last);
        while let Some(early) = self.early.first_entry().filter(|early| *early.key() <= self.last_started) {
            early.remove();
        }
        self.refused_early = self.refused_early.filter(|[_, last]| self.last_started < *last);
    }

    /// Returns whether something that has arrived for a step was perhaps dropped.
    fn is_refused_early(&self, step: StepNumber) -> bool {
        let is_kept = self.early.contains_key(&step);
        !is_kept && self.refused_early.is_some_and(|[first, last]| first <= step && step <= last)
    }

    /// Makes room for what arrives for a step that has not begun. Returns whether there is room:
    /// of too many such steps, the last ones fail when they start.
    fn make_early_room(&mut self, step: StepNumber) -> bool {
        let is_refused = self.is_refused_early(step);
        if self.early.contains_key(&step) || is_refused || self.early.len() < MAX_EARLY_STEPS {
            return !is_refused;
        }
        let (&highest, _) = self.early.last_key_value().expect("frames of other steps wait");
        let refused = highest.max(step);
        self.early.remove(&refused);
        let [first, last] = self.refused_early.unwrap_or([refused; 2]);
        self.refused_early = Some([first.min(refused), last.max(refused)]);
        refused != step
    }

    /// Reports the failure of a step and stops it. It is over when the process reports its end.
    fn fail_step(&mut self, key: StepKey, error: WireError, out: &mut Vec<HostOutput>) {
        let Some(step) = self.steps.get_mut(&key.step) else { return };
        let is_new = !std::mem::replace(&mut step.is_reported, true);
        let stops = !std::mem::replace(&mut step.is_stopped, true);
        if is_new {
            let failure = StepFault { position: None, error: error.clone() };
            reply(self, CallerFrame::Failed { step: key.step, failure }, out);
        }
        if stops {
            out.push(HostOutput::Stop { key, reason: error });
        }
    }
}

impl Host {
    pub(super) fn start(
        &mut self,
        now: Time,
        slot: SessionSlot,
        start: Start,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let step = start.step;
        if step <= session.last_started {
            return Err("steps that start out of order".to_owned());
        }
        let mut participants = start.participants.iter();
        if !start.participants.is_sorted_by(|a, b| a < b)
            || participants.next() != Some(&OWNER)
            || !start.participants.contains(&session.you)
            || start.participants.last().is_none_or(|last| last.0 as usize >= session.members.len())
        {
            return Err("a step whose participants are wrong".to_owned());
        }
        let is_refused = session.is_refused_early(step);
        let early = match session.early.remove(&step) {
            Some(Some(frames)) => Ok(frames),
            Some(None) => Err(too_much_waits(&session.arrivals)),
            None if is_refused => {
                Err(exhausted(format!("messages of more than {MAX_EARLY_STEPS} steps came before the steps began")))
            }
            None => Ok(Vec::new()),
        };
        session.skip(step);
        let limit = if session.steps.len() >= self.limits.steps {
            Some(format!("{} steps of the session run at the peer, which allows no more", self.limits.steps))
        } else if work >= self.limits.work {
            Some(format!("{} steps and programs of this node run at the peer, which allows no more", self.limits.work))
        } else {
            None
        };
        let limit = limit.map(|limit| exhausted(limit).help("call functions from fewer threads at once"));
        let early = early.and_then(|early| limit.map_or(Ok(early), Err));
        let checked = early.and_then(|early| check_start(session, &start).map(|routes| (early, routes)));
        let (early, (program, routes)) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                let failure = StepFault { position: None, error };
                reply(session, CallerFrame::Failed { step, failure }, out);
                return Ok(());
            }
        };
        let deadline = start.deadline_ms.map(|ms| now + Duration::from_millis(ms.into()));
        let reads: Vec<ValueId> = start.vars.iter().map(|&(_, value)| value).collect();
        for value in &reads {
            session.values.get_mut(value).expect("the value is stored, as was checked").n_readers += 1;
        }
        let running = HostStep {
            participants: start.participants.clone(),
            routes: routes.clone(),
            assigns: start.assigns.clone(),
            reads,
            inputs: start.inputs.iter().copied().collect(),
            deadline,
            exhausted_at: now.saturating_add(self.limits.step_time),
            progress: StepProgress { step, ..StepProgress::default() },
            is_stopped: false,
            is_reported: false,
        };
        session.steps.insert(step, running);
        let key = StepKey { session: slot, step };
        self.work.insert(WorkKey::Step(key), session.owner);
        let (you, id) = (session.you, session.id);
        let (outgoing, working) = (session.outgoing.clone(), session.working.clone());
        let begin = Begin { key, session: id, program, you, routes, outgoing, working, start, deadline };
        out.push(HostOutput::Begin(Box::new(begin)));
        for (arrival, held) in early {
            self.deliver(key, arrival, Some(held), out);
        }
        Ok(())
    }

    /// Handles a message from another participant, or from the owner. The owner has told both which
    /// process the sender is, and may have lied to one of them. So a message in a wrong name says
    /// nothing against the sender, whose link other sessions use.
    pub(super) fn on_message(
        &mut self,
        slot: SessionSlot,
        (link, node): (LinkNumber, PeerKey),
        message: StepMessage,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let session = &self.sessions[&slot];
        let sender = session.members.get(message.from.0 as usize).map(|member| member.entry.node);
        if sender == Some(node) && message.from != session.you {
            self.arrived(slot, message.step, HostArrival::Message(message), out);
        } else if session.link == link {
            return Err(format!("a message in the name of process {}", message.from));
        }
        Ok(())
    }

    /// Delivers what arrives for a step, or keeps it until the step begins.
    pub(super) fn arrived(
        &mut self,
        slot: SessionSlot,
        step: StepNumber,
        arrival: HostArrival,
        out: &mut Vec<HostOutput>,
    ) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let held = session.arrivals.hold(FRAME_BYTES + bytes_of(&arrival));
        if step <= session.last_started {
            return self.deliver(StepKey { session: slot, step }, arrival, held, out);
        }
        if !session.make_early_room(step) {
            return;
        }
        let entry = session.early.entry(step).or_insert_with(|| Some(EarlyFrames::default()));
        match (entry.as_mut(), held) {
            (Some(frames), Some(held)) => frames.push((arrival, held)),
            // The step fails when it starts.
            _ => *entry = None,
        }
    }

    /// Fails a step for which a body was dropped, or notes that it fails when it starts.
    pub(super) fn body_discarded(
        &mut self,
        slot: SessionSlot,
        step: StepNumber,
        error: WireError,
        out: &mut Vec<HostOutput>,
    ) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        if step <= session.last_started {
            session.fail_step(StepKey { session: slot, step }, error, out);
        } else if session.make_early_room(step) {
            session.early.insert(step, None);
        }
    }

    /// Delivers what arrives for a step that runs, if there is room for it. Whatever is late is
    /// dropped.
    fn deliver(&mut self, key: StepKey, arrival: HostArrival, held: Option<HeldBytes>, out: &mut Vec<HostOutput>) {
        let Some(session) = self.sessions.get_mut(&key.session) else { return };
        let Some(step) = session.steps.get_mut(&key.step).filter(|step| !step.is_stopped) else { return };
        let is_expected = match &arrival {
            HostArrival::Input { index, .. } => step.inputs.remove(index),
            HostArrival::Message(message) => step.participants.contains(&message.from),
        };
        if let (true, Some(held)) = (is_expected, held) {
            out.push(HostOutput::Deliver { key, arrival, held });
        } else if is_expected {
            let error = too_much_waits(&session.arrivals);
            session.fail_step(key, error, out);
        } else {
            let what = match arrival {
                HostArrival::Input { index, .. } => format!("input {index}"),
                HostArrival::Message(message) => format!("a message of process {}", message.from),
            };
            session.fail_step(key, invalid(format!("the step received {what}, which it does not expect")), out);
        }
    }

    pub(super) fn abort(&mut self, slot: SessionSlot, step: StepNumber, reason: &str, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        // Also if its part here has ended: nobody needs what it sends.
        out.push(HostOutput::CancelBodies { session: session.id, step: Some(step) });
        let Some(running) = session.steps.get_mut(&step).filter(|running| !running.is_stopped) else { return };
        running.is_stopped = true;
        // The end is reported when it is known: an operation that comes earlier may have failed.
        let reason = WireError::new(WireErrorKind::Cancelled, prefix(reason, 1_000));
        out.push(HostOutput::Stop { key: StepKey { session: slot, step }, reason });
    }

    pub(super) fn progressed(&mut self, session: SessionSlot, progress: StepProgress) {
        if let Some(session) = self.sessions.get_mut(&session)
            && let Some(step) = session.steps.get_mut(&progress.step)
        {
            step.progress = progress;
        }
    }

    pub(super) fn step_ended(&mut self, key: StepKey, outcome: Result<StepEnd, StepFault>, out: &mut Vec<HostOutput>) {
        if self.work.remove(&WorkKey::Step(key)).is_none() {
            return;
        }
        let Some(session) = self.sessions.get_mut(&key.session) else { return };
        let Some(step) = session.steps.remove(&key.step) else { return };
        session.end_reads(&step.reads);
        let outcome = match outcome {
            Ok(_) if step.is_stopped => Err(StepFault::new(WireErrorKind::Cancelled, "the step was aborted")),
            Ok(end) => keep(session, &self.limits, &step, end).map_err(|error| StepFault { position: None, error }),
            Err(failure) => Err(failure),
        };
        let (keep, frame) = match outcome {
            Ok(outputs) => (Some(step.assigns), CallerFrame::Ended { step: key.step, outputs }),
            Err(failure) => (None, CallerFrame::Failed { step: key.step, failure }),
        };
        if keep.is_none() {
            out.push(HostOutput::CancelBodies { session: session.id, step: Some(key.step) });
        }
        out.push(HostOutput::Finish { key, keep });
        if !step.is_reported {
            reply(session, frame, out);
        }
    }

    /// Fails the steps of a session that use a link.
    pub(super) fn fail_steps_over(
        &mut self,
        slot: SessionSlot,
        link: LinkNumber,
        message: &str,
        out: &mut Vec<HostOutput>,
    ) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let over = session.steps.iter().filter(|(_, step)| step.routes.iter().any(|route| route.1 == link));
        let over: Vec<StepNumber> = over.map(|(&step, _)| step).collect();
        for step in over {
            let error = WireError::new(WireErrorKind::Unavailable, message);
            session.fail_step(StepKey { session: slot, step }, error, out);
        }
    }

    /// Fails the steps whose deadline has passed, and those that take too long.
    pub(super) fn check_deadlines(&mut self, now: Time, slot: SessionSlot, out: &mut Vec<HostOutput>) {
        let limit = self.limits.step_time.as_secs_f64();
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let due = session.steps.iter().filter(|(_, step)| step.next_deadline().is_some_and(|at| at <= now));
        let due: Vec<(StepNumber, bool)> =
            due.map(|(&number, step)| (number, step.deadline.is_some_and(|at| at <= now))).collect();
        for (step, is_deadline) in due {
            let error = match is_deadline {
                true => WireError::new(WireErrorKind::DeadlineExceeded, "the deadline of the call has passed"),
                false => exhausted(format!("the step took longer than {limit:.1} s, the limit of the peer"))
                    .help("divide the call into several, or raise the limit where the peer is started: `--step-time`"),
            };
            session.fail_step(StepKey { session: slot, step }, error, out);
        }
    }
}

/// Returns the error of something that waits for a body for which there was no room.
pub(super) fn no_room_for_body(limit: u64) -> WireError {
    exhausted(format!("more than {limit} bytes of large values arrive at the peer at once for sessions of one node"))
        .help("send smaller values to other processes, or let fewer calls and iterations run at once")
}

/// The links to the other participants of a step.
type Routes = Vec<(ProcessNumber, LinkNumber)>;

/// Checks that a step can begin.
fn check_start(session: &HostSession, start: &Start) -> Result<(super::ProgramKey, Routes), WireError> {
    let Some(HostProgram { phase: ProgramPhase::Loaded(program), .. }) = session.programs.get(&start.program) else {
        return Err(invalid("the program is not registered at the peer"));
    };
    let is_stored = |value: &ValueId| session.values.get(value).is_some_and(|state: &StoredValue| state.is_stored);
    if let Some((variable, _)) = start.vars.iter().find(|(_, value)| !is_stored(value)) {
        return Err(invalid(format!("the peer has no value of variable {variable}")));
    }
    let running = session.steps.values().flat_map(|step| &step.assigns);
    let mut taken: BTreeSet<ValueId> = running.map(|&(_, value)| value).collect();
    if start.assigns.iter().any(|&(_, value)| session.has_value(value) || !taken.insert(value)) {
        return Err(invalid("the id of a new value is in use"));
    }
    let others = start.participants.iter().filter(|&&process| process != session.you);
    let routes = others.map(|&process| match session.members[process.0 as usize].link {
        Some(link) => Ok((process, link)),
        None => {
            let entry = &session.members[process.0 as usize].entry;
            let message = format!("there is no link to process {process} ({})", entry.node);
            Err(WireError::new(WireErrorKind::Unavailable, message))
        }
    });
    Ok((*program, routes.collect::<Result<_, _>>()?))
}

/// Stores the assignments of a step. Returns the number of its outputs.
fn keep(
    session: &mut HostSession,
    limits: &super::HostLimits,
    step: &HostStep,
    end: StepEnd,
) -> Result<u32, WireError> {
    let mut bytes = 0u64;
    for &(variable, value) in &step.assigns {
        let Some((_, len)) = end.assigned.iter().find(|(assigned, _)| *assigned == variable) else {
            let message = format!("the program does not assign variable {variable}");
            return Err(WireError::new(WireErrorKind::Internal, message));
        };
        if session.has_value(value) {
            return Err(invalid("the id of a new value is in use"));
        }
        bytes = bytes.saturating_add(*len);
    }
    let values = session.values.len() + step.assigns.len();
    if bytes > limits.value_bytes - session.value_bytes || values > limits.values {
        let message = format!("the session's variables exceed the {} bytes at the peer", limits.value_bytes);
        return Err(exhausted(message));
    }
    session.value_bytes += bytes;
    for &(variable, value) in &step.assigns {
        let len = end.assigned.iter().find(|(assigned, _)| *assigned == variable).map_or(0, |(_, len)| *len);
        session.values.insert(value, StoredValue { bytes: len, is_stored: true, n_readers: 0 });
    }
    Ok(end.outputs)
}

fn bytes_of(arrival: &HostArrival) -> u64 {
    match arrival {
        HostArrival::Input { tensor, .. } => tensor.memory_bytes(),
        HostArrival::Message(message) => message.memory_bytes(),
    }
}
