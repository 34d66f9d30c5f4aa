//! One session at its owner: the peers, what they hold, and the steps in flight.
//!
//! User threads call methods ([`Caller::begin`], [`Caller::store`], ..), and threads of the
//! transport pass what happened to [`Caller::handle`]. Both append what is to be done to a list.
//! The process keeps a caller behind a lock, and sends frames in the order in which they were
//! returned. It passes outputs on to mailboxes on which user threads wait.
//!
//! Invariants:
//!
//! - C1. A step is done once. It succeeds only if this process and all participants have ended, and
//!   all outputs that they announced have arrived. Only then are its assignments in effect.
//! - C2. Of several failures of a step the one with the earliest position is its error. A failed
//!   step is aborted at all other participants, and ends within
//!   [`failure_patience`](step::failure_patience).
//! - C3. A peer whose link is lost has lost the session, with all values. A step that reads a lost
//!   value fails before it begins anywhere.
//! - C4. Every wait ends: at its deadline, or when the peer is lost. A peer is lost if its link is,
//!   or if it has sent nothing for the failure timeout: neither a frame nor a part of a body.
//!   Transfers have time as long as they go on.
//! - C5. What a frame claims is checked against what the peer was asked. A peer that breaks the
//!   protocol is lost. A program runs only where its cut has the digest of this process's.
//! - C6. The bytes of what has arrived and was not taken by its step are limited. A step fails for
//!   which more arrives.
//! - C7. A value that this process does not know any more is released at its peer.
//! - C8. A lock on shared variables is renewed as long as the session holds it. After the loss of a
//!   peer, the decision about a commit at several peers is told again when the session is open.

mod begin;
mod blame;
mod events;
mod peer;
mod shared;
mod step;
#[cfg(test)]
mod tests;

use super::frame::{CallerFrame, Digest, Hello, LinkFrame, OWNER, Open, PeerFrame, PeerKey, WireFrame};
use super::frame::{LockNumber, ProcessEntry, ProcessNumber, ProgramNumber, RequestNumber, SessionLimits, StepFault};
use super::frame::{StepNumber, TestedSpeed, ValueId, WireError, WireErrorKind, prefix};
use super::{LinkNumber, Time};
use anabranch_dsl::HostTensor;
use anabranch_dsl::memory::ByteGauge;
pub(crate) use begin::{BeginError, StepPlan};
use blame::PeerLoss;
pub(crate) use events::{CallerArrival, CallerInput, CallerOptions, CallerOutput};
pub(crate) use events::{KnownPeer, LinkLoss, NewValue, ProgramOffer, ProgramState, RequestResult};
use peer::{CallerPeer, PeerPhase, PendingRequest};
pub(crate) use shared::{SharedAccess, WantedLock, outcome_alone};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use step::CallerStep;

/// The state of a session at its owner.
#[derive(Debug)]
pub(crate) struct Caller {
    node: PeerKey,
    options: CallerOptions,
    /// The peers. The first is process 1.
    peers: Vec<CallerPeer>,
    /// Whether peers are opening the session, and which have failed.
    opening: Option<Vec<(ProcessNumber, WireError)>>,
    /// The number of the last attempt to open the session.
    attempt: u64,
    steps: BTreeMap<StepNumber, CallerStep>,
    requests: BTreeMap<RequestNumber, PendingRequest>,
    last_step: u64,
    last_request: u64,
    last_value: u64,
    /// What has arrived for steps, and was not taken by them.
    arrivals: Arc<ByteGauge>,
    last_lock: u64,
    /// When the locks on shared variables must be renewed.
    renew_at: Time,
    /// The decisions about commits at several peers that are not known to have been heard. `None`
    /// is not decided.
    decisions: BTreeMap<(ProcessNumber, LockNumber), Option<bool>>,
    is_closed: bool,
}

impl Caller {
    pub(crate) fn new(node: PeerKey, options: CallerOptions, peers: Vec<KnownPeer>) -> Caller {
        Caller {
            node,
            options,
            peers: peers.into_iter().map(CallerPeer::new).collect(),
            opening: None,
            attempt: 0,
            steps: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_step: 0,
            last_request: 0,
            last_value: 0,
            arrivals: ByteGauge::new(options.buffered_bytes),
            last_lock: 0,
            renew_at: Time::ZERO,
            decisions: BTreeMap::new(),
            is_closed: false,
        }
    }

    /// Returns the id of the session.
    #[cfg(test)]
    pub(crate) fn session(&self) -> super::frame::SessionId {
        self.options.session
    }

    /// Returns the link to a peer that has opened the session.
    pub(crate) fn link(&self, process: ProcessNumber) -> Option<LinkNumber> {
        self.peer(process).and_then(CallerPeer::open_link)
    }

    /// Returns the link to a peer, open or not.
    #[cfg(test)]
    pub(crate) fn link_of(&self, process: ProcessNumber) -> Option<LinkNumber> {
        self.peer(process)?.link
    }

    /// Returns whether there is a link to a peer, on which it has introduced itself.
    pub(crate) fn is_linked(&self, process: ProcessNumber) -> bool {
        self.peer(process).is_some_and(|peer| peer.link.is_some())
    }

    /// Returns whether peers have opened the session, and have links to each other.
    pub(crate) fn is_ready(&self, processes: &[ProcessNumber]) -> bool {
        processes.iter().all(|&process| {
            let peer = self.peer(process);
            peer.is_some_and(|peer| peer.is_open() && !processes.iter().any(|other| peer.unlinked.contains(other)))
        })
    }

    /// Returns the name, the key and the address of a process, for messages.
    pub(crate) fn name(&self, process: ProcessNumber) -> String {
        self.peer(process).map_or_else(|| "the caller".to_owned(), CallerPeer::name)
    }

    /// Returns whether a value is known to exist at a peer.
    pub(crate) fn has_value(&self, process: ProcessNumber, value: ValueId) -> bool {
        self.peer(process).is_some_and(|peer| peer.values.contains(&value))
    }

    /// Returns the values that are known to exist at a peer.
    #[cfg(test)]
    pub(crate) fn values(&self, process: ProcessNumber) -> Vec<ValueId> {
        self.peer(process).map_or_else(Vec::new, |peer| peer.values.iter().copied().collect())
    }

    /// Returns the number of steps and requests in flight.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn in_flight(&self) -> usize {
        self.steps.len() + self.requests.values().filter(|request| !request.is_abandoned).count()
    }

    fn peer(&self, process: ProcessNumber) -> Option<&CallerPeer> {
        self.peers.get((process.0 as usize).checked_sub(1)?)
    }

    fn peer_mut(&mut self, process: ProcessNumber) -> Option<&mut CallerPeer> {
        self.peers.get_mut((process.0 as usize).checked_sub(1)?)
    }

    fn processes(&self) -> impl Iterator<Item = ProcessNumber> + use<> {
        (1..=self.peers.len() as u32).map(ProcessNumber)
    }

    /// Opens the session at all peers that are linked, or opens it again after some were lost.
    /// Those that have it already keep what they hold and restore their links to the others.
    pub(crate) fn open(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        for peer in &mut self.peers {
            peer.opens_until = None;
        }
        self.open_again(now, out);
    }

    /// Opens the session at all peers that are linked. Those that are opening it get no more time,
    /// so a peer that reports a lost link again and again cannot keep an owner waiting.
    fn open_again(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        if self.is_closed {
            return;
        }
        let owner = ProcessEntry { node: self.node, addr: None, is_needed: true };
        let entries = self.peers.iter().map(|peer| ProcessEntry {
            node: peer.address.node,
            addr: Some(peer.address.addr),
            is_needed: peer.link.is_some(),
        });
        let processes: Vec<ProcessEntry> = [owner].into_iter().chain(entries).collect();
        let timeout = self.options.failure_timeout;
        self.opening = Some(Vec::new());
        self.attempt += 1;
        for process in self.processes() {
            let (attempt, first_step) = (self.attempt, StepNumber(self.last_step + 1));
            let peer = self.peer_mut(process).expect("the process is a peer");
            let Some(link) = peer.link else { continue };
            // Before, it had no reason to send anything.
            if peer.phase == PeerPhase::NotOpen {
                peer.last_heard = now;
            }
            // The peer's own time to open begins when the frame arrives.
            let deadline = *peer.opens_until.get_or_insert(now + timeout * 2);
            peer.phase = PeerPhase::Opening { deadline, was_open: peer.is_open() };
            let frame = PeerFrame::Open(Open {
                attempt,
                you: process,
                processes: processes.clone(),
                failure_timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
                first_step,
            });
            self.send(link, frame, out);
        }
        self.settle_opening(out);
    }

    /// Closes the session. Its steps and requests fail.
    pub(crate) fn close(&mut self, out: &mut Vec<CallerOutput>) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let error = WireError::new(WireErrorKind::Cancelled, "the session is closed");
        for step in std::mem::take(&mut self.steps).into_keys() {
            out.push(CallerOutput::StepDone { step, outcome: Err(StepFault { position: None, error: error.clone() }) });
        }
        for (request, state) in std::mem::take(&mut self.requests) {
            if !state.is_abandoned {
                out.push(CallerOutput::RequestDone { request, outcome: Err(state.unanswered(error.clone())) });
            }
        }
        for process in self.processes() {
            let peer = self.peer_mut(process).expect("the process is a peer");
            let link = peer.link.take();
            let programs = peer.forget();
            programs.for_each(|program| out.push(CallerOutput::ProgramChanged { process, program }));
            if let Some(link) = link {
                self.send(link, PeerFrame::Close, out);
            }
        }
        if let Some(failed) = self.opening.take() {
            out.push(CallerOutput::Opened { failed });
        }
    }

    /// Handles an event. Appends what is to be done.
    pub(crate) fn handle(&mut self, now: Time, input: CallerInput, out: &mut Vec<CallerOutput>) {
        if self.is_closed {
            return;
        }
        match input {
            CallerInput::Linked { link, node, hello } => self.linked(now, link, node, &hello, out),
            CallerInput::Frame { link, frame } => {
                let Some(process) = self.process_of(link) else { return };
                if let Err(reason) = self.on_frame(now, process, frame, out) {
                    out.push(CallerOutput::CloseLink { link, reason: reason.clone() });
                    self.peer_lost(now, process, PeerLoss::Violation(reason), out);
                }
            }
            CallerInput::LinkLost { link, loss } => {
                // A link whose process is not known yet is the affair of who dialed.
                let Some(process) = self.process_of(link) else { return };
                self.peer_lost(now, process, PeerLoss::Link(loss), out);
            }
            CallerInput::Received { link, bytes } => {
                let Some(process) = self.process_of(link) else { return };
                let peer = self.peer_mut(process).expect("the link leads to a peer");
                if bytes > peer.received.0 {
                    peer.received = (bytes, now);
                    peer.last_heard = now;
                }
            }
            CallerInput::Tick => self.tick(now, out),
        }
        self.release_leaving(now, out);
    }

    /// Returns how long a peer lets a step run, if it has opened the session.
    pub(crate) fn step_limit(&self, process: ProcessNumber) -> Option<Duration> {
        Some(Duration::from_millis(self.peer(process)?.limits?.step_ms))
    }

    /// Returns whether a link leads to a peer that has introduced itself on it.
    pub(crate) fn knows(&self, link: LinkNumber) -> bool {
        self.process_of(link).is_some()
    }

    fn process_of(&self, link: LinkNumber) -> Option<ProcessNumber> {
        self.processes().zip(&self.peers).find(|(_, peer)| peer.link == Some(link)).map(|(process, _)| process)
    }

    fn on_frame(
        &mut self,
        now: Time,
        process: ProcessNumber,
        frame: WireFrame,
        out: &mut Vec<CallerOutput>,
    ) -> Result<(), String> {
        let peer = self.peer_mut(process).expect("the link leads to a peer");
        let frame = match frame {
            WireFrame::Link(LinkFrame::Leave { reason }) => {
                peer.leaving = Some(prefix(&reason, 1_000).to_owned());
                return Ok(());
            }
            WireFrame::ToCaller { session, frame } if session == self.options.session => frame,
            _ => return Ok(()),
        };
        let current_attempt = self.attempt;
        let peer = self.peer_mut(process).expect("the link leads to a peer");
        peer.last_heard = now;
        match frame {
            CallerFrame::Opened { attempt, limits } if attempt == current_attempt => self.opened(process, limits, out),
            CallerFrame::OpenFailed { attempt, error } if attempt == current_attempt => {
                self.open_failed(process, error, out);
            }
            // The answer to an earlier attempt.
            CallerFrame::Opened { .. } | CallerFrame::OpenFailed { .. } => {}
            CallerFrame::Wanted { program } => self.upload(process, program, out),
            CallerFrame::Registered { program, cut } => self.registered(process, program, Ok(cut), out),
            CallerFrame::Refused { program, error } => self.registered(process, program, Err(error), out),
            CallerFrame::Stored { request } => return self.answered(process, request, Answer::Stored, out),
            CallerFrame::Fetched { request, tensor } => {
                return self.answered(process, request, Answer::Fetched(tensor), out);
            }
            CallerFrame::LinkTested { request, speed } => {
                return self.answered(process, request, Answer::LinkTested(speed), out);
            }
            CallerFrame::RequestFailed { request, error } => {
                return self.answered(process, request, Answer::Failed(error), out);
            }
            CallerFrame::Acquired { request } => return self.answered(process, request, Answer::Acquired, out),
            CallerFrame::Prepared { request } => return self.answered(process, request, Answer::Prepared, out),
            CallerFrame::Decided { request } => return self.answered(process, request, Answer::Decided, out),
            CallerFrame::Heartbeat { steps, received } => {
                if received > peer.sent.0 {
                    peer.sent = (received, now);
                }
                self.heartbeat(now, process, &steps);
            }
            CallerFrame::Unlinked { process: other } => {
                if other.0 as usize > self.peers.len() {
                    return Err(format!("it lost the link to process {other}, which does not exist"));
                }
                let peer = self.peer_mut(process).expect("the link leads to a peer");
                peer.unlinked.insert(other);
                // The other waits for a link of which this one did not know that it was lost.
                if matches!(self.peer(other), Some(CallerPeer { phase: PeerPhase::Opening { .. }, .. })) {
                    self.open_again(now, out);
                }
            }
            CallerFrame::Message(message) => {
                if message.from != process {
                    return Err(format!("a message in the name of process {}", message.from));
                }
                let step = message.step;
                self.step_arrived(now, process, step, CallerArrival::Message(message), out);
            }
            CallerFrame::Output { step, index, tensor } => {
                self.step_arrived(now, process, step, CallerArrival::Output { process, index, tensor }, out);
            }
            CallerFrame::Print { step, number, stream, text } => {
                self.printed(now, process, step, number, (stream, text), out);
            }
            CallerFrame::Ended { step, outputs } => self.participant_ended(now, process, step, outputs, out),
            CallerFrame::Failed { step, failure } => self.participant_failed(now, process, step, failure, out),
        }
        Ok(())
    }

    /// Returns when the caller next needs [`CallerInput::Tick`].
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        if self.is_closed {
            return None;
        }
        let peers = self.peers.iter().flat_map(|peer| peer.deadlines(&self.options));
        let requests = self.requests.values().filter(|request| !request.is_abandoned);
        let requests = requests.map(|request| self.deadline_of(request));
        let steps = self.steps.values().map(|step| step.next_deadline(&self.options));
        let renewal = self.peers.iter().any(|peer| !peer.locks.is_empty()).then_some(self.renew_at);
        peers.chain(requests).chain(steps).chain(renewal).min()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        self.tick_peers(now, out);
        self.tick_requests(now, out);
        self.tick_steps(now, out);
        self.renew_locks(now, out);
    }

    fn send(&self, link: LinkNumber, frame: PeerFrame, out: &mut Vec<CallerOutput>) {
        out.push(CallerOutput::Send { link, frame: WireFrame::ToPeer { session: self.options.session, frame } });
    }

    /// Sends a frame to a peer that has opened the session.
    fn send_to(&self, process: ProcessNumber, frame: PeerFrame, out: &mut Vec<CallerOutput>) {
        if let Some(link) = self.link(process) {
            self.send(link, frame, out);
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
enum Answer {
    Stored,
    Fetched(HostTensor),
    LinkTested(TestedSpeed),
    Acquired,
    Prepared,
    Decided,
    Failed(WireError),
}

fn unavailable(message: impl AsRef<str>) -> WireError {
    WireError::new(WireErrorKind::Unavailable, message)
}

/// Returns the error of something that is larger than a peer allows.
fn too_large(message: impl AsRef<str>) -> WireError {
    WireError::new(WireErrorKind::ResourceExhausted, message)
}

/// Returns a duration for messages, in seconds.
fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
