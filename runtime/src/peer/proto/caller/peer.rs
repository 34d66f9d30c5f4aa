//! The peers of a session: opening, programs, values and requests.

use super::{Answer, Arc, Caller, CallerOptions, CallerOutput, Digest, Hello, KnownPeer, LinkNumber, LockNumber};
use super::{LinkLoss, PeerFrame, PeerLoss, WireError, prefix, seconds, too_large, unavailable};
use super::{PeerKey, ProcessNumber, ProgramNumber, ProgramOffer, ProgramState, RequestNumber, SessionLimits, Time};
use super::{RequestResult, ValueId, WireErrorKind};
use crate::peer::proto::codec::MAX_RELEASED;
use crate::peer::proto::frame::MAX_TEXT;
use crate::peer::proto::payload::MAX_BODY;
use anabranch_dsl::HostTensor;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A peer as the owner of a session sees it.
#[derive(Debug)]
pub(super) struct CallerPeer {
    pub(super) address: KnownPeer,
    pub(super) link: Option<LinkNumber>,
    incarnation: Option<u64>,
    pub(super) phase: PeerPhase,
    /// When the peer must have opened the session, since the session was last asked to open.
    pub(super) opens_until: Option<Time>,
    /// Why the peer was lost last, for messages.
    lost: Option<String>,
    /// Why the peer is about to leave.
    pub(super) leaving: Option<String>,
    pub(super) last_heard: Time,
    /// Bytes of bodies that have arrived from the peer, and when they last rose.
    pub(super) received: (u64, Time),
    /// Bytes of bodies that have arrived at the peer, and when it last said that they rose.
    pub(super) sent: (u64, Time),
    pub(super) limits: Option<SessionLimits>,
    programs: BTreeMap<ProgramNumber, CallerProgram>,
    pub(super) values: BTreeSet<ValueId>,
    /// The locks on shared variables that the session holds or has asked for.
    pub(super) locks: BTreeSet<LockNumber>,
    /// The processes to which the peer has no link.
    pub(super) unlinked: BTreeSet<ProcessNumber>,
}

/// A program at a peer.
#[derive(Debug)]
struct CallerProgram {
    state: ProgramState,
    /// The digest of the cut of this process.
    cut: Digest,
    /// The bytes, while the peer may ask for them.
    bytes: Option<Arc<[u8]>>,
    /// Whether a call has heard that the peer refused it.
    is_refusal_told: bool,
}

/// How far a peer is in opening the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerPhase {
    NotOpen,
    Opening { deadline: Time, was_open: bool },
    Open,
}

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) process: ProcessNumber,
    pub(super) kind: RequestKind,
    begun: Time,
    /// How long the request may take while no transfer goes on, or may wait for locks.
    patience: Duration,
    /// Whether nobody waits for the answer.
    pub(super) is_abandoned: bool,
}

/// How long a transfer may take in all: the largest payload at 64 kbit/s.
const LONGEST_TRANSFER: Duration = Duration::from_secs(MAX_BODY / 8_000);

/// The kind of a request.
#[derive(Clone, Debug)]
pub(super) enum RequestKind {
    Store(ValueId),
    Fetch,
    TestLink,
    Acquire(Acquisition),
    Prepare { is_alone: bool },
    Decide(LockNumber),
}

/// A request for the newest values of shared variables.
#[derive(Clone, Debug)]
pub(super) struct Acquisition {
    pub(super) lock: Option<LockNumber>,
    /// The ids under which the session gets the values.
    pub(super) values: Vec<ValueId>,
    /// The names of the variables, for messages.
    pub(super) names: String,
}

impl PendingRequest {
    /// Returns the error of a request that is not answered.
    pub(super) fn unanswered(&self, error: WireError) -> WireError {
        match self.kind {
            // A decision follows it at once.
            RequestKind::Prepare { is_alone: true } | RequestKind::Decide(_) => unknown_commit(error),
            _ => error,
        }
    }
}

/// Returns the error of a commit of which nobody knows whether it has happened.
pub(super) fn unknown_commit(error: WireError) -> WireError {
    let message = format!("it is unknown whether the step has changed its shared variables: {}", error.message);
    WireError { message: prefix(&message, MAX_TEXT).to_owned(), ..error }
}

impl CallerPeer {
    pub(super) fn new(address: KnownPeer) -> CallerPeer {
        CallerPeer {
            address,
            link: None,
            incarnation: None,
            phase: PeerPhase::NotOpen,
            opens_until: None,
            lost: None,
            leaving: None,
            last_heard: Time::ZERO,
            received: (0, Time::ZERO),
            sent: (0, Time::ZERO),
            limits: None,
            programs: BTreeMap::new(),
            values: BTreeSet::new(),
            locks: BTreeSet::new(),
            unlinked: BTreeSet::new(),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("`{}` ({}, {})", prefix(&self.address.name, 200), self.address.node, self.address.addr)
    }

    /// Returns whether the peer has the session, perhaps without links to all others.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, PeerPhase::Open | PeerPhase::Opening { was_open: true, .. })
    }

    pub(super) fn open_link(&self) -> Option<LinkNumber> {
        self.link.filter(|_| self.is_open())
    }

    /// Returns why nothing can be asked of the peer, if so.
    pub(super) fn why_unavailable(&self) -> Option<WireError> {
        // Only errors need it.
        let name = || self.name();
        match (&self.link, &self.lost) {
            (None, Some(lost)) => Some(unavailable(format!("{} {lost}", name()))),
            (None, None) => Some(unavailable(format!("{} is not connected", name()))),
            (Some(_), _) if !self.is_open() => Some(unavailable(format!("the session is not open at {}", name()))),
            _ => None,
        }
    }

    /// Forgets what the peer held. Returns the programs whose state has changed.
    pub(super) fn forget(&mut self) -> impl Iterator<Item = ProgramNumber> + use<> {
        self.phase = PeerPhase::NotOpen;
        self.limits = None;
        self.values.clear();
        self.locks.clear();
        self.unlinked.clear();
        std::mem::take(&mut self.programs).into_keys()
    }

    /// Returns when something ends that began at a time and waits for answers of the peer, if no
    /// bytes of bodies arrive here or there.
    fn patient_until(&self, begun: Time, patience: Duration, longest_transfer: Duration) -> Time {
        let last = begun.max(self.received.1).max(self.sent.1);
        (last + patience).min(begun + longest_transfer + patience)
    }

    /// Returns when a program must be loaded.
    fn loads_until(&self, begun: Time, options: &CallerOptions) -> Time {
        let load = self.limits.map_or(0, |limits| limits.load_ms);
        let load = Duration::from_millis(load).min(LONGEST_TRANSFER);
        self.patient_until(begun, load + options.failure_timeout * 2, LONGEST_TRANSFER)
    }

    pub(super) fn deadlines(&self, options: &CallerOptions) -> impl Iterator<Item = Time> {
        let silent = (self.phase != PeerPhase::NotOpen).then_some(self.last_heard + options.failure_timeout);
        let opening = match self.phase {
            PeerPhase::Opening { deadline, .. } => Some(deadline),
            _ => None,
        };
        let loading = self.programs.values().filter_map(|program| match program.state {
            ProgramState::Loading { begun } => Some(self.loads_until(begun, options)),
            _ => None,
        });
        silent.into_iter().chain(opening).chain(loading)
    }
}

impl PendingRequest {
    /// Says in an error what waited for the peer.
    fn explain(&self, error: WireError) -> WireError {
        let waited = match &self.kind {
            RequestKind::Store(_) => "the value of a variable was being sent to it",
            RequestKind::TestLink => "it was testing a link",
            RequestKind::Fetch => "the value of a variable was being fetched from it",
            RequestKind::Acquire(Acquisition { names, .. }) => {
                &format!("the call waited for the shared variables {names}")
            }
            RequestKind::Prepare { .. } | RequestKind::Decide(_) => "the call was committing its shared variables",
        };
        self.unanswered(error).at(None, waited)
    }
}

impl Caller {
    /// Returns when a request fails if no transfer goes on.
    pub(super) fn deadline_of(&self, request: &PendingRequest) -> Time {
        let peer = self.peer(request.process).expect("requests are made of peers");
        if matches!(request.kind, RequestKind::Acquire(Acquisition { lock: Some(_), .. })) {
            // It waits for other calls, not for a transfer.
            return request.begun.saturating_add(request.patience);
        }
        let longest = match request.kind {
            RequestKind::Store(_) | RequestKind::Fetch => LONGEST_TRANSFER,
            // They transfer nothing, but may wait behind a transfer in the buffers of the network.
            RequestKind::TestLink | RequestKind::Acquire(_) | RequestKind::Prepare { .. } | RequestKind::Decide(_) => {
                request.patience * 2
            }
        };
        peer.patient_until(request.begun, request.patience, longest)
    }

    pub(super) fn linked(
        &mut self,
        now: Time,
        link: LinkNumber,
        node: PeerKey,
        hello: &Hello,
        out: &mut Vec<CallerOutput>,
    ) {
        let mut peers = self.processes().zip(&self.peers);
        let Some((process, peer)) = peers.find(|(_, peer)| peer.address.node == node) else { return };
        if peer.link.is_some() {
            if peer.incarnation == Some(hello.incarnation) {
                return;
            }
            self.peer_lost(now, process, PeerLoss::Restarted, out);
        }
        let peer = self.peer_mut(process).expect("the process is a peer");
        peer.link = Some(link);
        peer.incarnation = Some(hello.incarnation);
        peer.leaving = None;
        (peer.received, peer.sent) = ((0, now), (0, now));
        peer.last_heard = now;
    }

    /// Handles the loss of a peer: of its link, or of its trust.
    pub(super) fn peer_lost(&mut self, now: Time, process: ProcessNumber, why: PeerLoss, out: &mut Vec<CallerOutput>) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        peer.link = None;
        let was_opening = matches!(peer.phase, PeerPhase::Opening { .. });
        let why = peer.leaving.clone().map_or(why, PeerLoss::Left);
        let lost = why.predicate(now.saturating_sub(peer.last_heard));
        let error = unavailable(format!("{} {lost}", peer.name()));
        peer.lost = Some(lost);
        let programs = peer.forget();
        out.push(CallerOutput::PeerLost { process, error: error.clone() });
        programs.for_each(|program| out.push(CallerOutput::ProgramChanged { process, program }));
        let requests: Vec<RequestNumber> =
            self.requests.iter().filter(|(_, request)| request.process == process).map(|(&number, _)| number).collect();
        for request in requests {
            let state = self.requests.remove(&request).expect("the request exists");
            if !state.is_abandoned {
                let outcome = Err(state.explain(error.clone()));
                out.push(CallerOutput::RequestDone { request, outcome });
            }
        }
        self.fail_steps_of(now, process, &error, out);
        if was_opening {
            self.note_open_failure(process, error);
            self.settle_opening(out);
        }
    }

    /// Lets peers that leave go, when no step and no request needs them any more. Only this process
    /// knows: a peer whose part of a step has ended does not know whether the step has.
    pub(super) fn release_leaving(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        for process in self.processes() {
            let peer = &self.peers[process.0 as usize - 1];
            let (Some(link), Some(_)) = (peer.link, &peer.leaving) else { continue };
            let is_needed = !peer.locks.is_empty()
                || self.steps.values().any(|step| step.involves(process))
                || self.requests.values().any(|request| request.process == process && !request.is_abandoned);
            if !is_needed {
                self.peer_lost(now, process, PeerLoss::Link(LinkLoss::Local("the peer leaves".to_owned())), out);
                out.push(CallerOutput::CloseLink { link, reason: "the peer leaves".to_owned() });
            }
        }
    }

    pub(super) fn opened(&mut self, process: ProcessNumber, limits: SessionLimits, out: &mut Vec<CallerOutput>) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        if matches!(peer.phase, PeerPhase::Opening { .. }) {
            peer.phase = PeerPhase::Open;
            peer.limits = Some(limits);
            peer.unlinked.clear();
            self.tell_decisions(process, out);
            self.settle_opening(out);
        }
    }

    pub(super) fn open_failed(&mut self, process: ProcessNumber, error: WireError, out: &mut Vec<CallerOutput>) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        let PeerPhase::Opening { was_open, .. } = peer.phase else { return };
        peer.phase = if was_open { PeerPhase::Open } else { PeerPhase::NotOpen };
        let message = format!("the session does not open at {}: {}", peer.name(), error.message);
        self.note_open_failure(process, WireError { message: prefix(&message, MAX_TEXT).to_owned(), ..error });
        self.settle_opening(out);
    }

    fn note_open_failure(&mut self, process: ProcessNumber, error: WireError) {
        if let Some(failed) = &mut self.opening {
            failed.push((process, error));
        }
    }

    /// Reports the outcome of opening when all peers have answered.
    pub(super) fn settle_opening(&mut self, out: &mut Vec<CallerOutput>) {
        if self.peers.iter().any(|peer| matches!(peer.phase, PeerPhase::Opening { .. })) {
            return;
        }
        if let Some(failed) = self.opening.take() {
            out.push(CallerOutput::Opened { failed });
        }
    }

    /// Registers a program at a peer, once, and again after a refusal of which a call has
    /// [heard](Self::tell_refusals). Returns its state. [`CallerOutput::ProgramChanged`]
    /// says when to look again. `None` means that the peer is not available any more.
    pub(crate) fn register(
        &mut self,
        process: ProcessNumber,
        program: ProgramNumber,
        ProgramOffer { bytes, digest, cut }: ProgramOffer<'_>,
        now: Time,
        out: &mut Vec<CallerOutput>,
    ) -> Result<ProgramState, WireError> {
        let peer = self.peer_mut(process).ok_or_else(|| unavailable("there is no such peer"))?;
        if let Some(error) = peer.why_unavailable() {
            return Err(error);
        }
        if let Some(known) = peer.programs.get(&program).filter(|known| !known.is_refusal_told) {
            return Ok(known.state.clone());
        }
        let limit = peer.limits.map_or(MAX_BODY, |limits| limits.body_bytes.min(limits.program_bytes));
        if bytes.len() as u64 > limit {
            let (name, len) = (peer.name(), bytes.len());
            return Err(too_large(format!("the program has {len} bytes, more than the {limit} that {name} keeps")));
        }
        let state = ProgramState::Loading { begun: now };
        let known = CallerProgram { state: state.clone(), cut, bytes: Some(bytes.clone()), is_refusal_told: false };
        peer.programs.insert(program, known);
        self.send_to(process, PeerFrame::Register { program, digest, len: bytes.len() as u64 }, out);
        Ok(state)
    }

    /// Notes that a call has heard why peers refuse a program. The next registration tries again;
    /// until then, other calls hear the same.
    pub(crate) fn tell_refusals(&mut self, program: ProgramNumber) {
        for peer in &mut self.peers {
            if let Some(known) = peer.programs.get_mut(&program) {
                known.is_refusal_told = matches!(known.state, ProgramState::Refused { .. });
            }
        }
    }

    /// Returns the state of a program at a peer.
    pub(crate) fn program(&self, process: ProcessNumber, program: ProgramNumber) -> Option<&ProgramState> {
        self.peer(process)?.programs.get(&program).map(|program| &program.state)
    }

    /// Sends the bytes of a program for which the peer has asked.
    pub(super) fn upload(&mut self, process: ProcessNumber, program: ProgramNumber, out: &mut Vec<CallerOutput>) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        // Otherwise it was unregistered in the meantime, or the peer asks twice.
        if let Some(bytes) = peer.programs.get_mut(&program).and_then(|program| program.bytes.take()) {
            self.send_to(process, PeerFrame::Upload { program, bytes }, out);
        }
    }

    /// Drops a program at all peers. Steps that run it go on.
    pub(crate) fn unregister(&mut self, program: ProgramNumber, out: &mut Vec<CallerOutput>) {
        for process in self.processes() {
            let peer = self.peer_mut(process).expect("the process is a peer");
            if peer.programs.remove(&program).is_some() {
                self.send_to(process, PeerFrame::Unregister { program }, out);
            }
        }
    }

    pub(super) fn registered(
        &mut self,
        process: ProcessNumber,
        program: ProgramNumber,
        outcome: Result<Digest, WireError>,
        out: &mut Vec<CallerOutput>,
    ) {
        let name = self.name(process);
        let peer = self.peer_mut(process).expect("the process is a peer");
        // Otherwise it was unregistered in the meantime.
        let Some(CallerProgram { state: state @ ProgramState::Loading { .. }, cut: own, bytes, .. }) =
            peer.programs.get_mut(&program)
        else {
            return;
        };
        *bytes = None;
        let is_cut_alike = outcome.as_ref().is_ok_and(|cut| cut == own);
        *state = match outcome {
            Ok(_) if is_cut_alike => ProgramState::Ready,
            Ok(_) => {
                let message = format!("{name} divides the program in another way than this process");
                let error = WireError::new(WireErrorKind::Internal, message);
                ProgramState::Refused { error: error.help("all processes must run the same version of anabranch") }
            }
            Err(error) => ProgramState::Refused { error },
        };
        let is_refused = !matches!(state, ProgramState::Ready);
        if is_refused {
            // A peer that has refused it does not have it.
            self.send_to(process, PeerFrame::Unregister { program }, out);
        }
        out.push(CallerOutput::ProgramChanged { process, program });
    }

    /// Stores a tensor as a new value at a peer. It may be read after the request has succeeded.
    pub(crate) fn store(
        &mut self,
        process: ProcessNumber,
        tensor: HostTensor,
        (now, patience): (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<(RequestNumber, ValueId), WireError> {
        let peer = self.peer(process).ok_or_else(|| unavailable("there is no such peer"))?;
        if let Some(error) = peer.why_unavailable() {
            return Err(error);
        }
        let (body, value) = peer.limits.map_or((MAX_BODY, u64::MAX), |limits| (limits.body_bytes, limits.value_bytes));
        for (bytes, limit) in [(tensor.n_bytes(), body), (tensor.compacted_bytes(), value)] {
            if bytes > limit {
                return Err(too_large(format!(
                    "a value of {bytes} bytes is larger than the {limit} that {} keeps",
                    peer.name()
                )));
            }
        }
        let value = self.new_value();
        let request = self.request(process, RequestKind::Store(value), (now, patience));
        self.send_to(process, PeerFrame::Store { request, value, tensor }, out);
        Ok((request, value))
    }

    /// Fetches a value of a peer.
    pub(crate) fn fetch(
        &mut self,
        process: ProcessNumber,
        value: ValueId,
        (now, patience): (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<RequestNumber, WireError> {
        let peer = self.peer(process).ok_or_else(|| unavailable("there is no such peer"))?;
        if let Some(error) = peer.why_unavailable() {
            return Err(error);
        }
        if !peer.values.contains(&value) {
            return Err(unavailable(format!("the value was lost with {}", peer.name())));
        }
        let request = self.request(process, RequestKind::Fetch, (now, patience));
        self.send_to(process, PeerFrame::Fetch { request, value }, out);
        Ok(request)
    }

    /// Asks a peer to test its link to another. The answer is the latency in seconds and the bytes
    /// per second.
    pub(crate) fn test_link(
        &mut self,
        [from, to]: [ProcessNumber; 2],
        (now, patience): (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<RequestNumber, WireError> {
        let peer = self.peer(from).ok_or_else(|| unavailable("there is no such peer"))?;
        if let Some(error) = peer.why_unavailable() {
            return Err(error);
        }
        let request = self.request(from, RequestKind::TestLink, (now, patience));
        self.send_to(from, PeerFrame::TestLink { request, process: to }, out);
        Ok(request)
    }

    /// Releases values that this process does not hold any more.
    pub(crate) fn release(&mut self, process: ProcessNumber, mut values: Vec<ValueId>, out: &mut Vec<CallerOutput>) {
        if let Some(peer) = self.peer_mut(process) {
            values.retain(|value| peer.values.remove(value));
        }
        self.send_release(process, &values, out);
    }

    pub(super) fn send_release(&self, process: ProcessNumber, values: &[ValueId], out: &mut Vec<CallerOutput>) {
        for values in values.chunks(MAX_RELEASED) {
            self.send_to(process, PeerFrame::Release { values: values.to_vec() }, out);
        }
    }

    pub(super) fn new_value(&mut self) -> ValueId {
        self.last_value += 1;
        ValueId(self.last_value)
    }

    pub(super) fn request(
        &mut self,
        process: ProcessNumber,
        kind: RequestKind,
        (begun, patience): (Time, Duration),
    ) -> RequestNumber {
        self.last_request += 1;
        let number = RequestNumber(self.last_request);
        self.requests.insert(number, PendingRequest { process, kind, begun, patience, is_abandoned: false });
        number
    }

    pub(super) fn answered(
        &mut self,
        process: ProcessNumber,
        number: RequestNumber,
        answer: Answer,
        out: &mut Vec<CallerOutput>,
    ) -> Result<(), String> {
        let request = match self.requests.remove(&number) {
            Some(request) if request.process == process => request,
            _ => return Err("it answered a request that was not made".to_owned()),
        };
        let outcome = match (request.kind, answer) {
            (RequestKind::Store(value), Answer::Stored) if request.is_abandoned => {
                self.send_release(process, &[value], out);
                return Ok(());
            }
            (RequestKind::Store(value), Answer::Stored) => {
                self.peer_mut(process).expect("the process is a peer").values.insert(value);
                Ok(RequestResult::Done)
            }
            (RequestKind::Fetch, Answer::Fetched(tensor)) => Ok(RequestResult::Value(tensor)),
            (RequestKind::TestLink, Answer::LinkTested(speed)) => match speed.is_possible() {
                true => Ok(RequestResult::Speed(speed)),
                false => return Err("it has tested a link with a wrong result".to_owned()),
            },
            (
                RequestKind::Acquire(Acquisition { lock, values, .. }),
                answer @ (Answer::Acquired | Answer::Failed(_)),
            ) => {
                let outcome = match answer {
                    Answer::Failed(error) => Err(error),
                    _ => Ok(RequestResult::Done),
                };
                self.acquired(process, lock, values, outcome.is_ok(), request.is_abandoned, out);
                outcome
            }
            (RequestKind::Prepare { .. }, Answer::Prepared) => Ok(RequestResult::Done),
            (RequestKind::Decide(lock), answer @ (Answer::Decided | Answer::Failed(_))) => {
                self.decisions.remove(&(process, lock));
                match answer {
                    Answer::Failed(error) => Err(error),
                    _ => Ok(RequestResult::Done),
                }
            }
            (_, Answer::Failed(error)) => Err(error),
            _ => return Err("it gave a wrong answer to a request".to_owned()),
        };
        if !request.is_abandoned {
            out.push(CallerOutput::RequestDone { request: number, outcome });
        }
        Ok(())
    }

    pub(super) fn tick_peers(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        let timeout = self.options.failure_timeout;
        for process in self.processes() {
            let peer = self.peer_mut(process).expect("the process is a peer");
            if peer.phase == PeerPhase::NotOpen {
                continue;
            }
            let silent = now.saturating_sub(peer.last_heard);
            let is_late = matches!(peer.phase, PeerPhase::Opening { deadline, .. } if deadline <= now);
            if silent >= timeout || is_late {
                let why = match is_late && silent < timeout {
                    true => PeerLoss::NotOpening,
                    false => PeerLoss::Silent(silent),
                };
                if let Some(link) = peer.link {
                    out.push(CallerOutput::CloseLink { link, reason: why.predicate(silent) });
                }
                self.peer_lost(now, process, why, out);
                continue;
            }
            let peer = &self.peers[process.0 as usize - 1];
            let is_due = |program: &CallerProgram| match program.state {
                ProgramState::Loading { begun } => peer.loads_until(begun, &self.options) <= now,
                _ => false,
            };
            let due: Vec<ProgramNumber> =
                peer.programs.iter().filter(|(_, program)| is_due(program)).map(|(&program, _)| program).collect();
            for program in due {
                let peer = self.peer_mut(process).expect("the process is a peer");
                let message = format!("{} is stuck: it answers, but did not load the program in time", peer.name());
                let state = peer.programs.get_mut(&program).expect("the program is due");
                (state.state, state.bytes) = (ProgramState::Refused { error: unavailable(message) }, None);
                self.send_to(process, PeerFrame::Unregister { program }, out);
                out.push(CallerOutput::ProgramChanged { process, program });
            }
        }
    }

    pub(super) fn tick_requests(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        let is_due = |request: &PendingRequest| !request.is_abandoned && self.deadline_of(request) <= now;
        let due = self.requests.iter().filter(|(_, request)| is_due(request));
        let due: Vec<RequestNumber> = due.map(|(&number, _)| number).collect();
        for request in due {
            self.abandon(request, out);
            let state = &self.requests[&request];
            let (process, patience) = (state.process, seconds(state.patience));
            let name = self.name(process);
            let error = match &state.kind {
                RequestKind::Acquire(Acquisition { lock: Some(_), names, .. }) => {
                    let message = format!("the call waited {patience} for the locks of {names} at {name}, the limit");
                    too_large(message).help("other calls hold them: `anabranch status` names their nodes")
                }
                _ => state.explain(unavailable(format!(
                    "{name} is stuck: it is connected, but did not answer for {patience}"
                ))),
            };
            let outcome = Err(error);
            out.push(CallerOutput::RequestDone { request, outcome });
        }
    }
}
