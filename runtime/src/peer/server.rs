//! The work of a peer: it loads programs, keeps values, and runs its part of steps.
//!
//! The protocol decides what may happen; this module does it. Invariants:
//!
//! - S1. Nothing here waits on the thread of the net. Programs are loaded on [`Workers`], and steps
//!   run there unless they need microseconds only.
//! - S2. All state belongs to a session slot, except loaded programs and shared variables. When the
//!   session is dropped, so is its state, and work that still runs for it leaves nothing.
//! - S3. A panic in a program of another process ends its step or its loading with an error, and
//!   nothing else.

use super::net::LinkTestKind;
use super::node::{Node, lock, priority};
use super::notices::Notices;
use super::participant::{self, Advanced, Participation, RunningStep};
use super::program::{ProgramSpec, digest, panicked};
use super::proto::LinkNumber;
use super::proto::frame::{Digest, StepFault, TestedSpeed, ValueId, WireError, WireErrorKind};
use super::proto::host::{
    Begin, HostArrival, HostInput, HostOutput, LoadedAs, ProgramKey, SessionSlot, SharedValue, StepEnd, StepKey,
};
use super::workers::Workers;
use crate::device::{Device, DeviceBuffer};
use crate::flow::driver::Driver;
use crate::flow::remote::{Arrival, ProcessId};
use crate::flow::step_run::StepInputs;
use anabranch_dsl::device::DeviceKind;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc, Result, Type};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The maximum number of nodes of a program whose steps begin on the thread of the net. To begin
/// one takes time for each node.
const QUICK_NODES: usize = 2_000;

/// The number of input bytes from which on another thread frees them. With less, waking it costs as
/// much as it saves.
const FREED_LATER: u64 = 4 << 20;

/// A device that a peer offers.
#[derive(Clone, Debug)]
pub(super) struct OfferedDevice {
    pub(super) kind: DeviceKind,
    pub(super) index: u32,
    pub(super) device: Arc<dyn Device>,
}

/// A program that a peer has loaded.
#[derive(Debug)]
pub(super) struct LoadedProgram {
    pub(super) driver: Arc<Driver>,
    /// The priority of each edge.
    pub(super) priorities: Arc<[i32]>,
    /// For each variable its type, and its device if the device is of this peer.
    pub(super) vars: Vec<(Type, Option<Arc<dyn Device>>)>,
    /// Whether a step begins in microseconds.
    is_small: bool,
}

impl LoadedProgram {
    /// Returns whether all devices of a step at this peer compute in host memory.
    fn is_in_host_memory(&self) -> bool {
        let mut devices = self.vars.iter().filter_map(|(_, device)| device.as_ref()).chain(self.driver.devices());
        devices.all(|device| device.shares_host_memory())
    }
}

/// A function that runs a step on a worker, to its end or until it is parked.
type RestOfStep = Box<dyn FnOnce() -> Option<Result<StepEnd, StepFault>> + Send>;

/// A value of a variable. It waits in host memory until a step shows its device.
#[derive(Clone, Debug)]
enum PeerValue {
    Host(HostTensor),
    Device(Arc<dyn Device>, DeviceBuffer),
}

/// The new value of a variable, by number, and its device.
pub(super) type AssignedValue = (u32, Arc<dyn Device>, DeviceBuffer);

/// What a peer does for other processes.
pub(super) struct Server {
    node: Weak<Node>,
    devices: Vec<OfferedDevice>,
    workers: Arc<Workers>,
    state: Mutex<ServerState>,
    notices: Notices,
}

#[derive(Debug, Default)]
struct ServerState {
    /// The programs that are being loaded and are still wanted.
    loading: BTreeSet<ProgramKey>,
    programs: BTreeMap<ProgramKey, Arc<LoadedProgram>>,
    values: BTreeMap<(SessionSlot, ValueId), Arc<Mutex<PeerValue>>>,
    /// The values of shared variables. Sessions may have them, too.
    shared: BTreeMap<SharedValue, Arc<Mutex<PeerValue>>>,
    steps: BTreeMap<StepKey, Arc<RunningStep>>,
    /// The counters of bodies that began to arrive before their steps.
    early_counters: BTreeMap<StepKey, Arc<AtomicU64>>,
    /// The new values of variables of steps that have ended.
    assigned: BTreeMap<StepKey, Vec<AssignedValue>>,
}

/// Converts an error for another process.
pub(super) fn to_wire(error: &Diagnostic) -> WireError {
    WireError::from_diagnostic(error, |loc: Loc| loc.node().map(|node| node.index() as u32))
}

/// Does work for another process. A panic becomes an error, so that the request has an answer.
fn attempt<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T, WireError> {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked(what)));
    outcome.map_err(|error| to_wire(&error))
}

impl Server {
    pub(super) fn new(
        node: &Arc<Node>,
        devices: Vec<OfferedDevice>,
        on_event: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Arc<Server> {
        let workers = Arc::default();
        let notices = Notices::new(on_event);
        Arc::new(Server { node: Arc::downgrade(node), devices, workers, state: Mutex::default(), notices })
    }

    pub(super) fn joined(&self, node: super::net::NodeId) {
        self.notices.send(format!("{node} has joined with a token"));
    }

    pub(super) fn refused(&self, addr: SocketAddr, why: &Diagnostic) {
        self.notices.send(format!("refused {addr}: {}", why.message));
    }

    fn device(&self, kind: DeviceKind, index: u32) -> Option<Arc<dyn Device>> {
        let found = self.devices.iter().find(|offered| (offered.kind, offered.index) == (kind, index));
        found.map(|offered| offered.device.clone())
    }

    /// Reports an event to the protocol.
    fn report(&self, input: HostInput) {
        if let Some(node) = self.node.upgrade() {
            node.host(input);
        }
    }

    /// Does what the protocol asks for. Called while the host is locked.
    pub(super) fn on_output(self: &Arc<Server>, output: HostOutput, inputs: &mut VecDeque<HostInput>) {
        match output {
            HostOutput::Load { key, process, digest, bytes, room } => {
                lock(&self.state).loading.insert(key);
                let this = self.clone();
                let job = move || {
                    let outcome = this.load(key, ProcessId(process.0), digest, (&bytes, room));
                    this.report(HostInput::Loaded { key, outcome: outcome.map_err(|error| to_wire(&error)) });
                };
                if let Err(error) = self.workers.run(Box::new(job)) {
                    lock(&self.state).loading.remove(&key);
                    inputs.push_back(HostInput::Loaded { key, outcome: Err(no_thread(&error)) });
                }
            }
            HostOutput::Unload { key } => {
                let mut state = lock(&self.state);
                state.loading.remove(&key);
                state.programs.remove(&key);
            }
            HostOutput::StoreValue { key, value, tensor } => {
                let kept = Arc::new(Mutex::new(PeerValue::Host(tensor)));
                lock(&self.state).values.insert((key.session, value), kept);
                inputs.push_back(HostInput::Stored { key, outcome: Ok(()) });
            }
            HostOutput::FetchValue { key, value } => {
                let kept = lock(&self.state).values.get(&(key.session, value)).cloned();
                let Some(kept) = kept else {
                    let outcome = Err(WireError::new(WireErrorKind::Internal, "the value does not exist"));
                    return inputs.push_back(HostInput::Fetched { key, outcome });
                };
                let this = self.clone();
                let job = move || {
                    let value = lock(&kept).clone();
                    let fetch = || match value {
                        PeerValue::Host(tensor) => Ok(tensor),
                        PeerValue::Device(device, buffer) => device.fetch(buffer),
                    };
                    this.report(HostInput::Fetched { key, outcome: attempt("fetched a value of", fetch) });
                };
                if let Err(error) = self.workers.run(Box::new(job)) {
                    inputs.push_back(HostInput::Fetched { key, outcome: Err(no_thread(&error)) });
                }
            }
            HostOutput::TestLink { key, link } => {
                let this = self.clone();
                let job = move || {
                    let outcome = attempt("tested a link for", || this.test_link(link));
                    this.report(HostInput::LinkTested { key, outcome });
                };
                if let Err(error) = self.workers.run(Box::new(job)) {
                    inputs.push_back(HostInput::LinkTested { key, outcome: Err(no_thread(&error)) });
                }
            }
            HostOutput::DropValues { session, values } => {
                let mut state = lock(&self.state);
                values.iter().for_each(|&value| drop(state.values.remove(&(session, value))));
            }
            HostOutput::ShareValue { session, value, to } => {
                let mut state = lock(&self.state);
                let kept = state.values.get(&(session, value)).expect("the session has the value").clone();
                state.shared.insert(to, kept);
            }
            HostOutput::LendValue { from, session, value } => {
                let mut state = lock(&self.state);
                let kept = state.shared.get(&from).expect("the variable has the value").clone();
                state.values.insert((session, value), kept);
            }
            HostOutput::DropShared { value } => drop(lock(&self.state).shared.remove(&value)),
            HostOutput::Begin(begin) => {
                let key = begin.key;
                let step = {
                    let mut state = lock(&self.state);
                    let received = state.early_counters.remove(&key).unwrap_or_default();
                    let step = Arc::new(RunningStep::new(received));
                    state.steps.insert(key, step.clone());
                    step
                };
                let is_quick = |program: Arc<LoadedProgram>| program.is_small && program.is_in_host_memory();
                let is_quick = self.program(begin.program).is_some_and(is_quick) && self.are_in_host_memory(&begin);
                let (this, begun) = (self.clone(), step.clone());
                let begin =
                    move || Participation::begin(&this, *begin, &begun).map_err(|e| participant::fault(&e.into()));
                if !is_quick {
                    let this = self.clone();
                    let run = move || Some(begin().and_then(|participation| participation.run(&this)));
                    return self.on_worker(key, Box::new(run), inputs);
                }
                let begun = catch_unwind(AssertUnwindSafe(begin));
                match begun.unwrap_or_else(|_| Err(participant::fault(&panicked("began").into()))) {
                    Ok(participation) => self.advance(key, &step, participation, inputs),
                    Err(fault) => inputs.push_back(HostInput::StepEnded { key, outcome: Err(fault) }),
                }
            }
            HostOutput::Deliver { key, arrival, held } => {
                let Some(step) = lock(&self.state).steps.get(&key).cloned() else { return };
                let arrival = match arrival {
                    HostArrival::Message(message) => participant::message(message),
                    HostArrival::Input { index, tensor } => Arrival::Input { index, tensor },
                };
                lock(&step.inbox).push(arrival, Some(held));
                self.advance_parked(key, &step, inputs);
            }
            HostOutput::Stop { key, reason } => {
                let Some(step) = lock(&self.state).steps.get(&key).cloned() else { return };
                step.stop.stop(match reason.kind {
                    WireErrorKind::DeadlineExceeded => ErrorKind::DeadlineExceeded,
                    _ => ErrorKind::Cancelled,
                });
                self.advance_parked(key, &step, inputs);
            }
            HostOutput::Finish { key, keep } => {
                let mut state = lock(&self.state);
                state.steps.remove(&key);
                let assigned = state.assigned.remove(&key).unwrap_or_default();
                for (var, value) in keep.unwrap_or_default() {
                    if let Some((_, device, buffer)) = assigned.iter().find(|(assigned, ..)| *assigned == var) {
                        let kept = PeerValue::Device(device.clone(), buffer.clone());
                        state.values.insert((key.session, value), Arc::new(Mutex::new(kept)));
                    }
                }
            }
            HostOutput::DropSession { session } => {
                let mut state = lock(&self.state);
                state.values.retain(|(of, _), _| *of != session);
                state.assigned.retain(|key, _| key.session != session);
                for (_, step) in state.steps.iter().filter(|(key, _)| key.session == session) {
                    step.stop.stop(ErrorKind::Cancelled);
                }
                state.steps.retain(|key, _| key.session != session);
            }
            other => panic!("{other:?} is not work"),
        }
    }

    fn test_link(&self, link: LinkNumber) -> Result<TestedSpeed> {
        let lost = || Diagnostic::new("the link was lost").of_kind(ErrorKind::Unavailable);
        let node = self.node().ok_or_else(lost)?;
        let report = node.net().test_link(&node.link(link).ok_or_else(lost)?, LinkTestKind::Thorough)?;
        Ok(TestedSpeed { latency: report.latency().as_secs_f64(), bandwidth: report.bandwidth() })
    }

    /// Goes on with a step that waited, if it occupies no thread.
    fn advance_parked(self: &Arc<Server>, key: StepKey, step: &Arc<RunningStep>, inputs: &mut VecDeque<HostInput>) {
        if let Some(participation) = step.unpark() {
            self.advance(key, step, participation, inputs);
        }
    }

    /// Runs a step on this thread as far as that takes microseconds, and then on a worker.
    fn advance(
        self: &Arc<Server>,
        key: StepKey,
        step: &Arc<RunningStep>,
        participation: Participation,
        inputs: &mut VecDeque<HostInput>,
    ) {
        let outcome = match catch_unwind(AssertUnwindSafe(|| participation.advance(self, step))) {
            Ok(Advanced::Parked) => return,
            Ok(Advanced::Ended(outcome)) => outcome,
            Ok(Advanced::Working(participation)) => {
                let (this, step) = (self.clone(), step.clone());
                return self.on_worker(key, Box::new(move || participation.work(&this, &step)), inputs);
            }
            Err(_) => Err(participant::fault(&panicked("ran").into())),
        };
        inputs.push_back(HostInput::StepEnded { key, outcome });
    }

    /// Runs a step on a worker until it ends or is parked.
    fn on_worker(self: &Arc<Server>, key: StepKey, run: RestOfStep, inputs: &mut VecDeque<HostInput>) {
        let this = self.clone();
        let job = move || {
            let outcome = catch_unwind(AssertUnwindSafe(run));
            let outcome = outcome.unwrap_or_else(|_| Some(Err(participant::fault(&panicked("ran").into()))));
            if let Some(outcome) = outcome {
                this.report(HostInput::StepEnded { key, outcome });
            }
        };
        if let Err(error) = self.workers.run(Box::new(job)) {
            let fault = StepFault { position: None, error: no_thread(&error) };
            inputs.push_back(HostInput::StepEnded { key, outcome: Err(fault) });
        }
    }

    fn load(&self, key: ProgramKey, own: ProcessId, expected: Digest, (bytes, room): (&[u8], u64)) -> Result<LoadedAs> {
        let load = || {
            if digest(bytes) != expected {
                return Err(Diagnostic::new("a program does not have its digest").of_kind(ErrorKind::Internal));
            }
            let (spec, bytes) = ProgramSpec::decode_within(bytes, room)?;
            let vars = spec.devices_of_vars().into_iter().zip(&spec.graph.vars).map(|(device, var)| {
                let device = spec.devices[device.index()];
                let here = (device.process == own).then(|| self.device(device.name.kind(), device.name.index()));
                (Type::Tensor(var.ty.clone()), here.flatten())
            });
            let vars = vars.collect();
            let is_small = spec.graph.n_nodes() <= QUICK_NODES;
            let names: Vec<_> = spec.devices.iter().map(|device| device.name).collect();
            let is_unwanted = || !lock(&self.state).loading.contains(&key);
            let (driver, cut) = spec.load(own, |kind, index| self.device(kind, index), is_unwanted)?;
            let driver = Arc::new(driver.with_names(|device| names[device.index()]));
            let priorities = driver.first_uses().into_iter().map(priority).collect();
            Ok((LoadedProgram { driver, priorities, vars, is_small }, LoadedAs { cut, bytes }))
        };
        let loaded = catch_unwind(AssertUnwindSafe(load));
        let loaded = loaded.unwrap_or_else(|_| Err(panicked("loaded")));
        let mut state = lock(&self.state);
        let is_wanted = state.loading.remove(&key);
        let (program, loaded) = loaded?;
        if is_wanted {
            state.programs.insert(key, Arc::new(program));
        }
        Ok(loaded)
    }

    pub(super) fn program(&self, key: ProgramKey) -> Option<Arc<LoadedProgram>> {
        lock(&self.state).programs.get(&key).cloned()
    }

    /// Returns a value on the device of its variable, and brings it there if necessary.
    pub(super) fn value(
        &self,
        session: SessionSlot,
        value: ValueId,
        ty: &Type,
        on: &Arc<dyn Device>,
    ) -> Result<DeviceBuffer> {
        let wrong = |what: &str| Err(Diagnostic::new(what).of_kind(ErrorKind::Internal));
        let Some(kept) = lock(&self.state).values.get(&(session, value)).cloned() else {
            return wrong("a step reads a value that does not exist");
        };
        // Others may need the value while it is copied, so it is not locked meanwhile.
        let current = lock(&kept).clone();
        let has_type = match &current {
            PeerValue::Host(tensor) => ty.compatible(&Type::Tensor(tensor.ty())),
            PeerValue::Device(_, buffer) => ty.compatible(&buffer.ty()),
        };
        match current {
            _ if !has_type => wrong("a step reads a value of another type"),
            PeerValue::Host(tensor) => {
                let buffer = on.store(tensor)?;
                *lock(&kept) = PeerValue::Device(on.clone(), buffer.clone());
                Ok(buffer)
            }
            PeerValue::Device(device, buffer) if device.id() == on.id() => Ok(buffer),
            // Sessions may have a shared variable on different devices.
            PeerValue::Device(device, buffer) => on.store(device.fetch(buffer)?),
        }
    }

    /// Returns whether the values that a step reads are in host memory.
    fn are_in_host_memory(&self, begin: &Begin) -> bool {
        let state = lock(&self.state);
        let mut values = begin.start.vars.iter().filter_map(|&(_, v)| state.values.get(&(begin.key.session, v)));
        values.all(|kept| match &*lock(kept) {
            PeerValue::Host(_) => true,
            PeerValue::Device(device, _) => device.shares_host_memory(),
        })
    }

    /// Keeps the new values of a step until the protocol says whether they are stored.
    pub(super) fn keep(&self, key: StepKey, assigned: Vec<AssignedValue>) {
        let mut state = lock(&self.state);
        // Otherwise the session was dropped.
        if state.steps.contains_key(&key) {
            state.assigned.insert(key, assigned);
        }
    }

    /// Frees what a step has read, large values on another thread: this one may have to send the
    /// outputs of the step.
    pub(super) fn free(&self, inputs: StepInputs) {
        let bytes: u64 = inputs.inputs.iter().flatten().map(HostTensor::memory_bytes).sum();
        if bytes >= FREED_LATER {
            // Without a thread, they are freed here.
            let _ = self.workers.run(Box::new(move || drop(inputs)));
        }
    }

    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    /// Returns the number of arrivals that running steps have not handled.
    pub(super) fn arrivals(&self) -> usize {
        let steps: Vec<Arc<RunningStep>> = lock(&self.state).steps.values().cloned().collect();
        steps.iter().map(|step| lock(&step.inbox).len()).sum()
    }

    /// Returns the counter of the bytes that arrive for a step, which may begin later.
    pub(super) fn received_by(&self, key: StepKey) -> Arc<AtomicU64> {
        let mut state = lock(&self.state);
        if let Some(step) = state.steps.get(&key) {
            return step.received.clone();
        }
        // Those of bodies that have arrived are of no use.
        state.early_counters.retain(|_, counter| Arc::strong_count(counter) > 1);
        state.early_counters.entry(key).or_default().clone()
    }

    /// Returns the progress of all running steps. A step also makes progress while it receives.
    pub(super) fn progress(&self) -> Vec<HostInput> {
        let state = lock(&self.state);
        let of = |(&key, step): (&StepKey, &Arc<RunningStep>)| {
            let (done, is_busy, last) = step.step.get()?.progress();
            let done = done + step.received.load(Ordering::Relaxed);
            Some(HostInput::Progressed { key, done, is_busy, last })
        };
        state.steps.iter().filter_map(of).collect()
    }
}

/// Returns the error of work that got no thread.
fn no_thread(error: &std::io::Error) -> WireError {
    WireError::new(WireErrorKind::ResourceExhausted, format!("the peer has no thread for this: {error}"))
}
