//! The peers of a session, as the process that owns the session sees them.
//!
//! A [`PeerCluster`] connects to the peers, asks them for values of variables, and registers
//! programs. User threads wait here for answers; the thread of the net passes on what arrives.
//! Invariants:
//!
//! - K1. No wait is without a limit. The limits follow from the failure timeout; those of answers
//!   are the protocol's, those of steps and locks the peers'. What waits on
//!   behalf of a call ends with the call.
//! - K2. A value lives at its peer as long as its [`ValueHandle`] lives here. Handles that are
//!   dropped are released with the next event, at the latest with the next heartbeat.
//! - K3. A peer that was lost is connected again when something needs it, once for each call.

use super::net::{Link, LinkReport, LinkTestKind, NetOptions, NodeKey, Profile};
use super::node::{Node, key_of, lock, number_of};
use super::origins::Origins;
use super::participant;
use super::proto::caller::{
    Caller, CallerArrival, CallerInput, CallerOptions, CallerOutput, KnownPeer, LinkLoss, NewValue, RequestResult,
};
use super::proto::frame::{
    Hello, LockNumber, PeerKey, PrintStream, ProcessNumber, RequestNumber, SessionId, StepFault, StepNumber,
};
use super::proto::frame::{ValueId, WireError, WireErrorKind};
use super::proto::host::HostLimits;
use super::proto::payload::{MAX_WAITING, hold_outgoing};
use super::proto::{LinkNumber, Time};
use super::remote_device::{RemoteHandle, RemoteValue, RemoteValues};
use super::{PeerAddress, random_number};
use crate::device::{DeviceId, LinkSpeed};
use crate::flow::remote::{Arrival, Mailbox, ProcessId};
use anabranch_dsl::format::Stream;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::memory::{ByteGauge, HeldBytes};
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc, Result, Type};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long an operation of this process may run in a step: as long as the user lets the call run.
/// Peers limit their steps, and tell how long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

/// Settings of the peers of a session.
#[derive(Clone, Debug)]
pub(crate) struct ClusterOptions {
    pub(crate) key: Option<NodeKey>,
    pub(crate) peers: Vec<PeerAddress>,
    pub(crate) profile: Profile,
    pub(crate) failure_timeout: Duration,
    /// How links are tested for placement. The links between peers are tested thoroughly or not at
    /// all.
    pub(crate) link_tests: Option<LinkTestKind>,
    #[cfg(feature = "testing")]
    pub(crate) before_decisions: DecisionHook,
}

/// A function that tests call in each commit at several peers: all have prepared it, and none has
/// heard the decision.
#[cfg(feature = "testing")]
#[derive(Clone, Default)]
pub(crate) struct DecisionHook(pub(crate) Option<Arc<dyn Fn() + Send + Sync>>);

#[cfg(feature = "testing")]
impl fmt::Debug for DecisionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DecisionHook").field(&self.0.is_some()).finish()
    }
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            key: None,
            peers: Vec::new(),
            profile: Profile::default(),
            failure_timeout: Duration::from_secs(10),
            link_tests: Some(LinkTestKind::Brief),
            #[cfg(feature = "testing")]
            before_decisions: DecisionHook::default(),
        }
    }
}

/// A session's peers.
pub(crate) struct PeerCluster {
    pub(super) node: Arc<Node>,
    session: SessionId,
    pub(super) failure_timeout: Duration,
    peers: Vec<PeerAddress>,
    state: Mutex<ClusterState>,
    changed: Condvar,
    /// Values whose handles were dropped.
    released: Mutex<Vec<(ProcessNumber, ValueId)>>,
    /// The values that wait to be sent.
    outgoing: Arc<ByteGauge>,
    n_programs: AtomicU32,
    #[cfg(feature = "testing")]
    pub(super) before_decisions: DecisionHook,
}

/// The protocol state of the session, and the answers that user threads wait for.
pub(super) struct ClusterState {
    pub(super) caller: Caller,
    pub(super) steps: BTreeMap<StepNumber, AwaitedStep>,
    pub(super) answers: BTreeMap<RequestNumber, Result<RequestResult, WireError>>,
    /// The peers that failed to open the session, once all have answered.
    opened: Option<Vec<(ProcessNumber, WireError)>>,
    /// Whether a thread connects to peers.
    is_connecting: bool,
    /// The number of attempts to connect to peers that have begun, and the last one that failed.
    attempts: u64,
    last_failure: Option<FailedAttempt>,
    /// The attempts to connect to peers, with their outcomes.
    dials: BTreeMap<ProcessNumber, Option<Result<LinkNumber>>>,
    /// The links that were lost before the session knew their processes, and why.
    early_losses: VecDeque<(LinkNumber, LinkLoss)>,
    hellos: BTreeMap<PeerKey, Hello>,
    /// The user threads that wait for a change.
    n_waiting: usize,
}

/// An attempt to connect to peers that failed.
struct FailedAttempt {
    number: u64,
    process: ProcessNumber,
    error: Diagnostic,
}

/// The right of one thread to connect to peers, until it is dropped.
struct ConnectingTurn<'a>(&'a PeerCluster);

impl Drop for ConnectingTurn<'_> {
    fn drop(&mut self) {
        self.0.state().is_connecting = false;
        self.0.changed.notify_all();
    }
}

/// The end of a wait without what was waited for.
enum WaitEnd {
    TimedOut,
    /// The call was ended.
    Stopped(ErrorKind),
}

/// Maximum number of links of which is kept why they were lost early.
const MAX_EARLY_LOSSES: usize = 64;

/// How often a thread that waits looks whether its call was ended.
const STOP_CHECK: Duration = Duration::from_millis(5);

/// A step that this process has begun.
pub(super) struct AwaitedStep {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) origins: Arc<Origins>,
    /// The bytes of bodies that have arrived for the step.
    pub(super) received: Arc<AtomicU64>,
    pub(super) done: Option<Result<Vec<NewValue>, StepFault>>,
}

/// The right to a value at a peer. The value is released when it is dropped.
pub(super) struct ValueHandle {
    cluster: Weak<PeerCluster>,
    pub(super) process: ProcessNumber,
    pub(super) value: ValueId,
}

impl fmt::Debug for ValueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value {} of process {}", self.value, self.process)
    }
}

impl Drop for ValueHandle {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.released).push((self.process, self.value));
        }
    }
}

impl fmt::Debug for PeerCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCluster").field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// Converts an error of a peer that is not about a graph.
pub(super) fn from_wire(error: WireError) -> Diagnostic {
    error.into_diagnostic(|_| Loc::UNKNOWN)
}

/// Returns the error of a call that was stopped while it waited for peers.
fn stopped_while(kind: ErrorKind, what: &str) -> Diagnostic {
    let message = match kind {
        ErrorKind::DeadlineExceeded => "the deadline of the call has passed",
        _ => "the call was cancelled",
    };
    Diagnostic::new(message).of_kind(kind).at(Loc::UNKNOWN, what)
}

/// Checks that no two peers are one.
fn check_different(peers: &[PeerAddress]) -> Result<()> {
    for (j, peer) in peers.iter().enumerate() {
        if let Some(i) = peers[..j].iter().position(|other| other.node() == peer.node()) {
            let is_same = peers[i].socket_addr() == peer.socket_addr();
            let message = format!("`/peer:{i}` and `/peer:{j}` have the same key, {}", peer.node());
            return Err(Diagnostic::new(message).help(match is_same {
                true => "add each peer once; its address names all of its devices",
                false => {
                    "give each process a key of its own, with `anabranch peer --key PATH` or `--temporary-key`: with \
                     the key of another, it claims to be the other"
                }
            }));
        }
    }
    Ok(())
}

impl PeerCluster {
    /// Connects to the peers and opens a session at each of them.
    pub(crate) fn connect(options: ClusterOptions) -> Result<Arc<PeerCluster>> {
        let key = match options.key {
            Some(key) => key,
            None => NodeKey::generate()?,
        };
        let peers = options.peers;
        check_different(&peers)?;
        let net =
            NetOptions { profile: options.profile, failure_timeout: options.failure_timeout, ..NetOptions::default() };
        let hello = Hello { name: "a session".to_owned(), incarnation: random_number()?, devices: Vec::new() };
        let node = Node::bind(&key, net, hello, HostLimits::NONE)?;
        let session = SessionId(random_number()?);
        let caller_options = CallerOptions {
            session,
            failure_timeout: options.failure_timeout,
            busy_timeout: BUSY_TIMEOUT,
            buffered_bytes: MAX_WAITING,
        };
        let addresses = (0..).zip(&peers).map(|(i, peer): (u32, _)| KnownPeer {
            name: format!("/peer:{i}"),
            node: key_of(&peer.node()),
            addr: peer.socket_addr(),
        });
        let caller = Caller::new(key_of(&key.id()), caller_options, addresses.collect());
        let state = ClusterState {
            caller,
            steps: BTreeMap::new(),
            answers: BTreeMap::new(),
            opened: None,
            is_connecting: false,
            attempts: 0,
            last_failure: None,
            dials: BTreeMap::new(),
            early_losses: VecDeque::new(),
            hellos: BTreeMap::new(),
            n_waiting: 0,
        };
        let cluster = Arc::new(PeerCluster {
            node,
            session,
            failure_timeout: options.failure_timeout,
            peers,
            state: Mutex::new(state),
            changed: Condvar::new(),
            released: Mutex::default(),
            outgoing: ByteGauge::new(MAX_WAITING),
            n_programs: AtomicU32::new(0),
            #[cfg(feature = "testing")]
            before_decisions: options.before_decisions,
        });
        cluster.node.own(&cluster);
        let all: Vec<ProcessNumber> = cluster.processes().collect();
        cluster.connect_to(&all, None)?;
        Ok(cluster)
    }

    fn processes(&self) -> impl Iterator<Item = ProcessNumber> + use<> {
        (1..=self.peers.len() as u32).map(ProcessNumber)
    }

    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    fn peer(&self, process: ProcessNumber) -> &PeerAddress {
        &self.peers[process.0 as usize - 1]
    }

    /// Returns the number of peers.
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns how a peer describes itself. The peer is one of those that were connected.
    pub(super) fn hello(&self, process: ProcessId) -> Option<Hello> {
        let node = key_of(&self.peer(ProcessNumber(process.0)).node());
        lock(&self.state).hellos.get(&node).cloned()
    }

    /// Tests the link to a peer.
    pub(super) fn test_link(&self, process: ProcessId, kind: LinkTestKind) -> Result<LinkReport> {
        let number = lock(&self.state).caller.link(ProcessNumber(process.0));
        let link: Option<Link> = number.and_then(|number| self.node.link(number));
        let link = link.ok_or_else(|| {
            let message = format!("the link to {} was lost before it was tested", self.name(ProcessNumber(process.0)));
            Diagnostic::new(message).of_kind(ErrorKind::Unavailable)
        })?;
        self.node.net().test_link(&link, kind)
    }

    /// Lets a peer measure its link to another.
    pub(super) fn test_link_between(&self, [from, to]: [ProcessId; 2]) -> Result<LinkSpeed> {
        let ends = [ProcessNumber(from.0), ProcessNumber(to.0)];
        let ask = |state: &mut ClusterState, time: (Time, Duration), outputs: &mut Vec<CallerOutput>| {
            Ok((state.caller.test_link(ends, time, outputs)?, None))
        };
        let (RequestResult::Speed(speed), _) = self.request(ends[0], None, ask)? else { panic!("a test has a speed") };
        Ok(LinkSpeed { latency: speed.latency, bandwidth: speed.bandwidth })
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        lock(&self.state)
    }

    /// Calls a function of the protocol, and does what it returns.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut ClusterState, Time, &mut Vec<CallerOutput>) -> R) -> R {
        let released = std::mem::take(&mut *lock(&self.released));
        let mut state = self.state();
        let mut outputs = Vec::new();
        for process in self.processes() {
            let of = |(_, value): &(ProcessNumber, ValueId)| *value;
            let values: Vec<ValueId> = released.iter().filter(|(of, _)| *of == process).map(of).collect();
            if !values.is_empty() {
                state.caller.release(process, values, &mut outputs);
            }
        }
        let result = f(&mut state, self.node.now(), &mut outputs);
        let mut frames = Vec::new();
        for output in outputs {
            match output {
                CallerOutput::Send { link, frame } => frames.push((link, frame)),
                other => {
                    self.node.send_all(&mut frames);
                    self.on_output(&mut state, other);
                }
            }
        }
        self.node.send_all(&mut frames);
        let deadline = state.caller.next_deadline();
        drop(state);
        self.node.set_tick(deadline);
        result
    }

    /// Passes an event to the protocol.
    pub(super) fn on_input(&self, input: CallerInput) {
        self.with(|state, now, outputs| {
            match &input {
                CallerInput::Linked { node, hello, .. } => {
                    state.hellos.insert(*node, hello.clone());
                    self.changed(state);
                }
                CallerInput::LinkLost { link, loss } if !state.caller.knows(*link) => {
                    state.early_losses.truncate(MAX_EARLY_LOSSES - 1);
                    state.early_losses.push_front((*link, loss.clone()));
                    self.changed(state);
                }
                CallerInput::Tick => {
                    let ClusterState { caller, steps, .. } = state;
                    for (&number, step) in steps.iter() {
                        let (done, is_busy, _) = step.mailbox.step().progress();
                        caller.progressed(now, number, done + step.received.load(Ordering::Relaxed), is_busy);
                    }
                }
                _ => {}
            }
            state.caller.handle(now, input, outputs);
        });
    }

    fn on_output(&self, state: &mut ClusterState, output: CallerOutput) {
        match output {
            CallerOutput::Send { .. } => panic!("frames were sent"),
            CallerOutput::CloseLink { link, reason } => return self.node.close_link(link, &reason),
            CallerOutput::Opened { failed } => state.opened = Some(failed),
            CallerOutput::ProgramChanged { .. } | CallerOutput::PeerLost { .. } => {}
            CallerOutput::RequestDone { request, outcome } => {
                state.answers.insert(request, outcome);
            }
            CallerOutput::Arrived { step, arrival, held } => {
                if let Some(step) = state.steps.get(&step) {
                    step.mailbox.push(arrived(arrival, &step.origins), held);
                }
                return;
            }
            CallerOutput::StepDone { step, outcome } => {
                if let Some(step) = state.steps.get_mut(&step) {
                    if let Err(fault) = &outcome {
                        step.mailbox.push(Arrival::Lost(step.origins.failure(fault.clone()).error), None);
                    }
                    step.done = Some(outcome);
                }
            }
        }
        self.changed(state);
    }

    /// Wakes the user threads that wait.
    fn changed(&self, state: &ClusterState) {
        // To notify nobody costs a system call.
        if state.n_waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until `f` returns a value, or until the call is stopped on whose behalf it waits.
    fn wait<T>(
        &self,
        at_most: Option<Duration>,
        stop: Option<&StopFlag>,
        mut f: impl FnMut(&mut ClusterState) -> Option<T>,
    ) -> Result<T, WaitEnd> {
        let until = at_most.map(|at_most| Instant::now() + at_most);
        let mut state = self.state();
        loop {
            if let Some(found) = f(&mut state) {
                return Ok(found);
            }
            if let Some(kind) = stop.and_then(StopFlag::get) {
                return Err(WaitEnd::Stopped(kind));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitEnd::TimedOut);
            }
            let check = stop.map(|_| STOP_CHECK);
            self.node.net().give_back();
            state.n_waiting += 1;
            state = match left.into_iter().chain(check).min() {
                Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.n_waiting -= 1;
        }
    }

    /// Waits until `f` returns a value. The protocol ends what it waits for in time. `what` says
    /// what that is, for the error of a call that is stopped.
    pub(super) fn wait_for<T>(
        &self,
        stop: Option<&StopFlag>,
        what: impl FnOnce() -> String,
        f: impl FnMut(&mut ClusterState) -> Option<T>,
    ) -> Result<T> {
        self.wait(None, stop, f).map_err(|end| match end {
            WaitEnd::Stopped(kind) => stopped_while(kind, &what()),
            WaitEnd::TimedOut => unreachable!("the wait has no limit of its own"),
        })
    }

    /// Waits for the end of a step that has ended in this process, for a fifth of the failure
    /// timeout, and forgets the step.
    pub(super) fn wait_for_end(&self, step: StepNumber) -> Option<Result<Vec<NewValue>, StepFault>> {
        let ended = |state: &mut ClusterState| {
            state.steps.get(&step)?.done.as_ref()?;
            state.steps.remove(&step)?.done
        };
        self.wait(Some(self.failure_timeout / 5), None, ended).ok()
    }

    /// Checks that a value of a step may be sent, and counts its bytes until they are.
    pub(super) fn hold_outgoing(&self, value: &HostTensor) -> Result<Option<HeldBytes>> {
        hold_outgoing(&self.outgoing, value).map_err(from_wire)
    }

    /// Returns the counter of the bytes that arrive for a step.
    pub(super) fn received_by(&self, step: StepNumber) -> Option<Arc<AtomicU64>> {
        self.state().steps.get(&step).map(|step| step.received.clone())
    }

    /// Returns a number for a program.
    pub(super) fn next_program(&self) -> u32 {
        self.n_programs.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the name, the key and the address of a peer, for messages.
    pub(super) fn name(&self, process: ProcessNumber) -> String {
        self.state().caller.name(process)
    }

    /// Connects to peers that were lost, or have lost each other, and opens the session at them.
    /// Ends early if the call is stopped on whose behalf it connects.
    ///
    /// One thread connects at a time. Those that wait meanwhile share the failure of an attempt
    /// that began after they did.
    pub(super) fn connect_to(&self, wanted: &[ProcessNumber], stop: Option<&StopFlag>) -> Result<()> {
        let attempts = {
            let state = self.state();
            if state.caller.is_ready(wanted) {
                return Ok(());
            }
            state.attempts
        };
        let turn = self.wait_for(
            stop,
            || "another call was connecting to the peers".to_owned(),
            |state| {
                if state.caller.is_ready(wanted) {
                    return Some(Ok(None));
                }
                let failed = state.last_failure.as_ref();
                let failed = failed.filter(|failed| failed.number > attempts && wanted.contains(&failed.process));
                if let Some(failed) = failed {
                    return Some(Err(failed.error.clone()));
                }
                let is_free = !std::mem::replace(&mut state.is_connecting, true);
                is_free.then(|| {
                    state.attempts += 1;
                    Ok(Some((state.attempts, ConnectingTurn(self))))
                })
            },
        )?;
        let Some((number, _turn)) = turn? else { return Ok(()) };
        self.connect_now(wanted, stop).map_err(|(process, error)| {
            if !error.kind.is_stop() {
                self.state().last_failure = Some(FailedAttempt { number, process, error: error.clone() });
            }
            error
        })
    }

    /// Connects to peers, and opens the session at them.
    fn connect_now(
        &self,
        wanted: &[ProcessNumber],
        stop: Option<&StopFlag>,
    ) -> Result<(), (ProcessNumber, Diagnostic)> {
        for &process in wanted {
            self.dial(process);
        }
        for &process in wanted {
            self.await_dial(process, stop).map_err(|error| (process, error))?;
        }
        self.with(|state, now, outputs| {
            state.opened = None;
            state.caller.open(now, outputs);
        });
        let names = || wanted.iter().map(|&process| self.name(process)).collect::<Vec<_>>().join(" and ");
        let what = || format!("the session was being opened at {}", names());
        let failed = self.wait_for(stop, what, |state| state.opened.take()).map_err(|error| (wanted[0], error))?;
        let relevant = failed.into_iter().find(|(process, _)| wanted.contains(process));
        // A peer may also have been lost before it was asked.
        let lost = || {
            let state = self.state();
            wanted.iter().find_map(|&process| Some((process, state.caller.why_unavailable(process)?)))
        };
        match relevant.or_else(lost) {
            Some((process, error)) => Err((process, self.error_of(process, from_wire(error)))),
            None => Ok(()),
        }
    }

    /// Begins to connect to a peer, unless it is connected or an attempt is under way.
    fn dial(&self, process: ProcessNumber) {
        let mut state = self.state();
        if state.caller.is_linked(process) || matches!(state.dials.get(&process), Some(None)) {
            return;
        }
        state.dials.insert(process, None);
        drop(state);
        let node = Arc::downgrade(&self.node);
        let done = move |link: Result<Link>| {
            let Some(cluster) = node.upgrade().and_then(|node| node.cluster()) else { return };
            cluster.state().dials.insert(process, Some(link.map(|link| number_of(&link))));
            cluster.changed.notify_all();
        };
        let peer = self.peer(process);
        self.node.net().connect_later(peer.socket_addr(), peer.node(), peer.token(), Box::new(done));
    }

    /// Waits until a peer is connected and has introduced itself.
    fn await_dial(&self, process: ProcessNumber, stop: Option<&StopFlag>) -> Result<()> {
        let is_linked = |state: &ClusterState| state.caller.is_linked(process);
        let what = || format!("{} was being connected", self.name(process));
        let dialed = self.wait_for(stop, what, |state| match state.dials.get(&process) {
            _ if is_linked(state) => Some(Ok(None)),
            Some(Some(outcome)) => Some(outcome.clone().map(Some)),
            Some(None) => None,
            None => Some(Ok(None)),
        })?;
        let dialed = dialed.map_err(|error| match error.kind {
            // It is the network that takes too long, not the call.
            ErrorKind::DeadlineExceeded => self.error_of(process, error.of_kind(ErrorKind::Unavailable)),
            _ => self.error_of(process, error),
        })?;
        // The peer has introduced itself when the session knows the link.
        let greeted = self.wait(Some(self.failure_timeout), stop, |state| {
            let lost = state.early_losses.iter().find(|(link, _)| Some(*link) == dialed);
            match lost {
                _ if is_linked(state) => Some(Ok(())),
                Some((_, loss)) => Some(Err(loss.clone())),
                None => None,
            }
        });
        let introduced = greeted.map_err(|end| match end {
            WaitEnd::Stopped(kind) => stopped_while(kind, &what()),
            WaitEnd::TimedOut => {
                let message =
                    format!("{} is stuck: it is connected, but does not introduce itself", self.name(process));
                Diagnostic::new(message).of_kind(ErrorKind::Unavailable)
            }
        })?;
        introduced.map_err(|loss| {
            let error = self.state().caller.lost_early(process, loss);
            self.error_of(process, from_wire(error))
        })
    }

    /// Returns how long a call waits for locks on shared variables at a peer: as long as the peer
    /// lets a step run that holds them.
    pub(super) fn lock_timeout(&self, process: ProcessNumber) -> Duration {
        self.state().caller.step_limit(process).unwrap_or(self.failure_timeout)
    }

    /// Names the peer in an error about it.
    pub(super) fn error_of(&self, process: ProcessNumber, error: Diagnostic) -> Diagnostic {
        let peer = self.peer(process).without_token();
        error.at(Loc::UNKNOWN, format!("/peer:{} is {peer}", process.0 - 1))
    }

    /// Gives up a request for which a call has waited, with the lock and the values that it is for.
    pub(super) fn give_up(
        &self,
        process: ProcessNumber,
        request: RequestNumber,
        lock: Option<LockNumber>,
        values: &[ValueId],
    ) {
        self.with(|state, _, outputs| {
            // The answer may have come in the meantime.
            state.answers.remove(&request);
            state.caller.give_up(process, request, lock, values.to_vec(), outputs);
        });
    }

    /// Sends a request, perhaps for a new value, and waits for its answer, or until the call is
    /// stopped on whose behalf it asks. If the peer was lost, connects to it again and asks once
    /// more. The request has time as long as the transfer goes on.
    fn request(
        &self,
        process: ProcessNumber,
        stop: Option<&StopFlag>,
        mut ask: impl FnMut(
            &mut ClusterState,
            (Time, Duration),
            &mut Vec<CallerOutput>,
        ) -> Result<(RequestNumber, Option<ValueId>), WireError>,
    ) -> Result<(RequestResult, Option<ValueId>)> {
        let patience = self.failure_timeout * 2;
        let mut ask = || self.with(|state, now, outputs| ask(state, (now, patience), outputs));
        let asked = match ask() {
            Err(error) if error.kind == WireErrorKind::Unavailable => {
                self.connect_to(&[process], stop)?;
                ask()
            }
            asked => asked,
        };
        let (request, value) = asked.map_err(|error| self.error_of(process, from_wire(error)))?;
        let what = || format!("a value was being sent to {}", self.name(process));
        let answer = self.wait_for(stop, what, |state| state.answers.remove(&request));
        let answer = answer.inspect_err(|_| self.give_up(process, request, None, value.as_slice()))?;
        Ok((answer.map_err(|error| self.error_of(process, from_wire(error)))?, value))
    }

    /// Returns a value of a peer.
    pub(super) fn fetch(&self, handle: &ValueHandle, ty: &Type) -> Result<HostTensor> {
        let ValueHandle { process, value, .. } = *handle;
        let ask = |state: &mut ClusterState, time: (Time, Duration), outputs: &mut Vec<CallerOutput>| {
            Ok((state.caller.fetch(process, value, time, outputs)?, None))
        };
        let (result, _) = self.request(process, None, ask)?;
        match result {
            RequestResult::Value(tensor) if ty.compatible(&Type::Tensor(tensor.ty())) => Ok(tensor),
            _ => {
                let message = format!("{} returned a value of another type", self.name(process));
                Err(Diagnostic::new(message).of_kind(ErrorKind::Internal))
            }
        }
    }

    /// Stores a value at a peer, unless the call is stopped on whose behalf it does.
    pub(super) fn store(
        self: &Arc<PeerCluster>,
        process: ProcessNumber,
        value: &HostTensor,
        stop: Option<&StopFlag>,
    ) -> Result<ValueHandle> {
        let ask = |state: &mut ClusterState, time: (Time, Duration), outputs: &mut Vec<CallerOutput>| {
            let (request, value) = state.caller.store(process, value.clone(), time, outputs)?;
            Ok((request, Some(value)))
        };
        let (_, value) = self.request(process, stop, ask)?;
        Ok(self.handle(process, value.expect("the request is for a value")))
    }

    /// Returns the handle of a new value at a peer.
    pub(super) fn handle(self: &Arc<PeerCluster>, process: ProcessNumber, value: ValueId) -> ValueHandle {
        ValueHandle { cluster: Arc::downgrade(self), process, value }
    }
}

impl Drop for PeerCluster {
    fn drop(&mut self) {
        let mut outputs = Vec::new();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.caller.close(&mut outputs);
        for output in outputs {
            if let CallerOutput::Send { link, frame } = output {
                self.node.send(link, frame);
            }
        }
    }
}

/// The values of variables at one peer.
pub(super) struct ValuesAt {
    pub(super) cluster: Arc<PeerCluster>,
    pub(super) process: ProcessId,
    pub(super) device: DeviceId,
}

impl fmt::Debug for ValuesAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "values of process {} on {:?}", self.process.0, self.device)
    }
}

impl RemoteValues for ValuesAt {
    fn store(&self, value: HostTensor) -> Result<RemoteValue> {
        let handle = self.cluster.store(ProcessNumber(self.process.0), &value, None)?;
        let (ty, n_bytes) = (Type::Tensor(value.ty()), value.compacted_bytes());
        Ok(RemoteValue { ty, n_bytes, handle: RemoteHandle::Own(handle) })
    }

    fn fetch(&self, value: &RemoteValue) -> Result<HostTensor> {
        match &value.handle {
            RemoteHandle::Own(handle) => self.cluster.fetch(handle, &value.ty),
            RemoteHandle::Shared(variable) => variable.get(),
        }
    }
}

/// Converts what has arrived for a step.
fn arrived(arrival: CallerArrival, origins: &Origins) -> Arrival {
    match arrival {
        CallerArrival::Message(message) => participant::message(message),
        CallerArrival::Output { process, index, tensor } => {
            Arrival::Output { process: ProcessId(process.0), index, tensor }
        }
        CallerArrival::Print { stream, text } => {
            let stream = match stream {
                PrintStream::Stdout => Stream::Stdout,
                PrintStream::Stderr => Stream::Stderr,
            };
            Arrival::Print { stream, text }
        }
        CallerArrival::Ended { process } => Arrival::Ended { process: ProcessId(process.0) },
        CallerArrival::Failed { process, failure: fault } => {
            Arrival::Failed { process: ProcessId(process.0), failure: origins.failure(fault) }
        }
    }
}
