//! The peers of a session, as the process that owns the session sees them.
//!
//! A [`PeerCluster`] connects to the peers, asks them for values of variables, and registers
//! programs. User threads wait here for answers; the thread of the net passes on what arrives.
//! Invariants:
//!
//! - K1. No wait is without a limit. The limits follow from the failure timeout.
//! - K2. A value lives at its peer as long as its [`ValueHandle`] lives here. Handles that are
//!   dropped are released with the next event, at the latest with the next heartbeat.
//! - K3. A peer that was lost is connected again when something needs it, once for each call.

use super::net::{Link, LinkReport, NetOptions, NodeKey, Profile};
use super::node::{Node, key_of, lock};
use super::participant;
use super::proto::Time;
use super::proto::caller::{Caller, CallerArrival, CallerInput, CallerOptions, CallerOutput, KnownPeer, NewValue};
use super::proto::frame::{
    Hello, PeerKey, PrintStream, ProcessNumber, RequestNumber, SessionId, StepFault, StepNumber,
};
use super::proto::frame::{ValueId, WireError};
use super::proto::host::HostLimits;
use super::remote_device::{RemoteValue, RemoteValues};
use super::{PeerAddress, random_number};
use crate::device::DeviceId;
use crate::flow::remote::{Arrival, Mailbox, ProcessId, StepFailure};
use anabranch_dsl::format::Stream;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc, Result, Type};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How slow a link may be until a transfer is taken for lost, in bytes per second: 64 kbit/s.
const SLOWEST: u64 = 8_000;

/// How long an operation of a peer may run. The limits of calls are for the user to set.
const BUSY_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

/// Settings of the peers of a session.
#[derive(Clone, Debug)]
pub(crate) struct ClusterOptions {
    pub(crate) key: Option<NodeKey>,
    pub(crate) peers: Vec<PeerAddress>,
    pub(crate) profile: Profile,
    pub(crate) failure_timeout: Duration,
    /// Whether links are measured for placement.
    pub(crate) measure: bool,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            key: None,
            peers: Vec::new(),
            profile: Profile::default(),
            failure_timeout: Duration::from_secs(10),
            measure: false,
        }
    }
}

/// A session's peers.
pub(crate) struct PeerCluster {
    pub(super) node: Arc<Node>,
    session: SessionId,
    failure_timeout: Duration,
    peers: Vec<PeerAddress>,
    state: Mutex<ClusterState>,
    changed: Condvar,
    /// Values whose handles were dropped.
    released: Mutex<Vec<(ProcessNumber, ValueId)>>,
    n_programs: AtomicU32,
    /// Held while lost peers are connected again.
    connecting: Mutex<()>,
}

/// The protocol state of the session, and the answers that user threads wait for.
pub(super) struct ClusterState {
    pub(super) caller: Caller,
    pub(super) steps: BTreeMap<StepNumber, AwaitedStep>,
    answers: BTreeMap<RequestNumber, Result<Option<HostTensor>, WireError>>,
    /// The peers that failed to open the session, once all have answered.
    opened: Option<Vec<(ProcessNumber, WireError)>>,
    hellos: BTreeMap<PeerKey, Hello>,
}

/// A step that this process has begun.
pub(super) struct AwaitedStep {
    pub(super) mailbox: Arc<Mailbox>,
    /// The location of each node of the graph.
    pub(super) locs: Arc<Vec<Loc>>,
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

/// Converts a failure of a peer, with the locations of the nodes of the graph.
pub(super) fn failure(fault: StepFault, locs: &[Loc]) -> StepFailure {
    let loc = |node: u32| locs.get(node as usize).copied().unwrap_or(Loc::UNKNOWN);
    StepFailure { position: fault.position.map(Vec::into_boxed_slice), error: fault.error.into_diagnostic(loc) }
}

/// Checks that no two peers are one.
fn check_different(peers: &[PeerAddress]) -> Result<()> {
    for (j, peer) in peers.iter().enumerate() {
        if let Some(i) = peers[..j].iter().position(|other| other.node() == peer.node()) {
            let is_same = peers[i].socket_addr() == peer.socket_addr();
            let message = format!("`/peer:{i}` and `/peer:{j}` have the same key, {}", peer.node());
            return Err(Diagnostic::new(message).help(match is_same {
                true => "add each peer once; its address names all of its devices",
                false => "give each process a key of its own: with a copied key, it claims to be the other",
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
        let caller_options =
            CallerOptions { session, failure_timeout: options.failure_timeout, busy_timeout: BUSY_TIMEOUT };
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
            hellos: BTreeMap::new(),
        };
        let cluster = Arc::new(PeerCluster {
            node,
            session,
            failure_timeout: options.failure_timeout,
            peers,
            state: Mutex::new(state),
            changed: Condvar::new(),
            released: Mutex::default(),
            n_programs: AtomicU32::new(0),
            connecting: Mutex::default(),
        });
        cluster.node.own(&cluster);
        let all: Vec<ProcessNumber> = cluster.processes().collect();
        cluster.connect_to(&all)?;
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

    /// Measures the link to a peer.
    pub(super) fn test_link(&self, process: ProcessId) -> Result<LinkReport> {
        let number = lock(&self.state).caller.link(ProcessNumber(process.0));
        let link: Option<Link> = number.and_then(|number| self.node.link(number));
        let link = link.ok_or_else(|| Diagnostic::new("the link to a peer was lost while it was measured"))?;
        self.node.net().test_link(&link)
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
        for output in outputs {
            self.on_output(&mut state, output);
        }
        let deadline = state.caller.next_deadline();
        drop(state);
        self.node.set_tick(deadline);
        result
    }

    /// Passes an event to the protocol.
    pub(super) fn on_input(&self, input: CallerInput) {
        let received = if matches!(input, CallerInput::Tick) { self.node.received_bytes() } else { 0 };
        self.with(|state, now, outputs| {
            match &input {
                CallerInput::Linked { node, hello, .. } => {
                    state.hellos.insert(*node, hello.clone());
                    self.changed.notify_all();
                }
                CallerInput::Tick => {
                    let ClusterState { caller, steps, .. } = state;
                    for (&number, step) in steps.iter() {
                        let (done, is_busy) = step.mailbox.step().progress();
                        caller.progressed(now, number, done + received, is_busy);
                    }
                }
                _ => {}
            }
            state.caller.handle(now, input, outputs);
        });
    }

    fn on_output(&self, state: &mut ClusterState, output: CallerOutput) {
        match output {
            CallerOutput::Send { link, frame } => return self.node.send(link, frame),
            CallerOutput::CloseLink { link, reason } => return self.node.close_link(link, &reason),
            CallerOutput::Opened { failed } => state.opened = Some(failed),
            CallerOutput::ProgramChanged { .. } | CallerOutput::PeerLost { .. } => {}
            CallerOutput::RequestDone { request, outcome } => {
                state.answers.insert(request, outcome);
            }
            CallerOutput::Arrived { step, arrival } => {
                if let Some(step) = state.steps.get(&step) {
                    step.mailbox.push(arrived(arrival, &step.locs));
                }
                return;
            }
            CallerOutput::StepDone { step, outcome } => {
                if let Some(step) = state.steps.get_mut(&step) {
                    if let Err(fault) = &outcome {
                        step.mailbox.push(Arrival::Lost(failure(fault.clone(), &step.locs).error));
                    }
                    step.done = Some(outcome);
                }
            }
        }
        self.changed.notify_all();
    }

    /// Waits until `f` returns a value. Returns `None` if it takes too long.
    pub(super) fn wait<T>(&self, at_most: Duration, mut f: impl FnMut(&mut ClusterState) -> Option<T>) -> Option<T> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        loop {
            if let Some(found) = f(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connects to peers again if some of them were lost, or have lost each other.
    pub(super) fn connect_if_lost(&self, wanted: &[ProcessNumber]) -> Result<()> {
        let is_ready = self.state().caller.is_ready(wanted);
        if is_ready { Ok(()) } else { self.connect_to(wanted) }
    }

    /// Returns a number for a program.
    pub(super) fn next_program(&self) -> u32 {
        self.n_programs.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the name, the key and the address of a peer, for messages.
    pub(super) fn name(&self, process: ProcessNumber) -> String {
        self.state().caller.name(process)
    }

    /// Connects to peers that are not connected, and opens the session at them.
    pub(super) fn connect_to(&self, wanted: &[ProcessNumber]) -> Result<()> {
        let _connecting = lock(&self.connecting);
        let is_linked = |state: &mut ClusterState, process| state.caller.is_linked(process).then_some(());
        for &process in wanted {
            if is_linked(&mut self.state(), process).is_some() {
                continue;
            }
            let peer = self.peer(process);
            let link = self.node.net().connect(peer.socket_addr(), Some(peer.node()), peer.token());
            link.map_err(|error| match error.kind {
                // It is the network that takes too long, not the call.
                ErrorKind::DeadlineExceeded => self.error_of(process, error.of_kind(ErrorKind::Unavailable)),
                _ => self.error_of(process, error),
            })?;
            // The peer has introduced itself when the session knows the link.
            let greeted = self.wait(self.failure_timeout, |state| is_linked(state, process));
            if greeted.is_none() {
                let error = Diagnostic::new("the peer does not introduce itself").of_kind(ErrorKind::Unavailable);
                return Err(self.error_of(process, error));
            }
        }
        self.with(|state, now, outputs| {
            state.opened = None;
            state.caller.open(now, outputs);
        });
        let failed = self.wait(self.failure_timeout * 3, |state| state.opened.take());
        let failed = failed
            .ok_or_else(|| Diagnostic::new("the peers do not open the session").of_kind(ErrorKind::Unavailable))?;
        let relevant = failed.into_iter().find(|(process, _)| wanted.contains(process));
        match relevant {
            Some((process, error)) => Err(self.error_of(process, from_wire(error))),
            None => Ok(()),
        }
    }

    /// Names the peer in an error about it.
    fn error_of(&self, process: ProcessNumber, error: Diagnostic) -> Diagnostic {
        let peer = self.peer(process);
        error.at(Loc::UNKNOWN, format!("/peer:{} is {peer}", process.0 - 1))
    }

    /// Returns how long a transfer of some bytes may take.
    fn time_for(&self, n_bytes: u64) -> Duration {
        self.failure_timeout * 2 + Duration::from_secs(n_bytes / SLOWEST)
    }

    /// Sends a request, and waits for its answer. If the peer was lost, connects to it again and
    /// asks once more.
    fn request<T>(
        &self,
        process: ProcessNumber,
        n_bytes: u64,
        mut ask: impl FnMut(&mut ClusterState, Time, &mut Vec<CallerOutput>) -> Result<(RequestNumber, T), WireError>,
    ) -> Result<(Option<HostTensor>, T)> {
        let time = self.time_for(n_bytes);
        let (request, value) = match self.with(|state, now, outputs| ask(state, now + time, outputs)) {
            Ok(asked) => asked,
            Err(_) => {
                self.connect_to(&[process])?;
                let asked = self.with(|state, now, outputs| ask(state, now + time, outputs));
                asked.map_err(|error| self.error_of(process, from_wire(error)))?
            }
        };
        let answer = self.wait(time * 2, |state| state.answers.remove(&request));
        let answer = answer.ok_or_else(|| Diagnostic::new("a peer does not answer").of_kind(ErrorKind::Unavailable))?;
        Ok((answer.map_err(|error| self.error_of(process, from_wire(error)))?, value))
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
        let process = ProcessNumber(self.process.0);
        let ty = Type::Tensor(value.ty());
        let n_bytes = (value.len() * value.dtype().size()) as u64;
        let ask = |state: &mut ClusterState, deadline: Time, outputs: &mut Vec<CallerOutput>| {
            state.caller.store(process, value.clone(), deadline, outputs)
        };
        let (_, value) = self.cluster.request(process, n_bytes, ask)?;
        Ok(RemoteValue { ty, n_bytes, handle: self.cluster.handle(process, value) })
    }

    fn fetch(&self, value: &RemoteValue) -> Result<HostTensor> {
        let process = ProcessNumber(self.process.0);
        let ask = |state: &mut ClusterState, deadline: Time, outputs: &mut Vec<CallerOutput>| {
            let request = state.caller.fetch(process, value.handle.value, deadline, outputs)?;
            Ok((request, ()))
        };
        let (tensor, ()) = self.cluster.request(process, value.n_bytes, ask)?;
        match tensor {
            Some(tensor) if value.ty.compatible(&Type::Tensor(tensor.ty())) => Ok(tensor),
            _ => Err(Diagnostic::new("a peer returned a value of another type").of_kind(ErrorKind::Internal)),
        }
    }
}

/// Converts what has arrived for a step.
fn arrived(arrival: CallerArrival, locs: &[Loc]) -> Arrival {
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
            Arrival::Failed { process: ProcessId(process.0), failure: failure(fault, locs) }
        }
    }
}
