//! Programs that run partly at peers, and their steps, at the process that calls them.

use super::cluster::{AwaitedStep, ClusterState, PeerCluster, ValueHandle, from_wire};
use super::net::{BodyPurpose, Link};
use super::node::{priority, send_value};
use super::origins::Origins;
use super::participant::{self, step_message};
use super::program::ProgramSpec;
use super::proto::Time;
use super::proto::caller::{BeginError, CallerOutput, NewValue, ProgramOffer, ProgramState, StepPlan};
use super::proto::frame::{
    Digest, OWNER, PeerFrame, ProcessNumber, ProgramNumber, SessionId, StepFault, StepNumber, ValueId, WireFrame,
};
use super::remote_device::{RemoteHandle, RemoteValue};
use super::shared::{SharedSnapshot, StepUse};
use crate::device::{DeviceBuffer, DeviceId, Event, MemorySpace, Step, is_thread_of_device};
use crate::flow::executor::DeviceMessage;
use crate::flow::remote::{Mailbox, OtherProcesses, Others, ProcessId, StepFailure};
use crate::flow::step_run::StepInputs;
use crate::flow::{FlowOp, NodeId, Partition, Sink, Source, SubgraphId};
use anabranch_dsl::interp::{self, StopFlag};
use anabranch_dsl::ir::VarId;
use anabranch_dsl::memory::HeldBytes;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc, Result, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A variable at a peer.
#[derive(Clone, Debug)]
struct RemoteVar {
    name: String,
    process: ProcessNumber,
    device: DeviceId,
    ty: Type,
    is_read: bool,
    is_assigned: bool,
}

impl RemoteVar {
    /// Returns the value among those of all variables of the graph.
    fn value_in(&self, number: u32, vars: &[Option<DeviceBuffer>]) -> Arc<RemoteValue> {
        let value = vars[number as usize].clone().expect("a session has the values of its variables");
        let value = value.open::<RemoteValue>(MemorySpace::Device(self.device));
        value.unwrap_or_else(|other| panic!("a variable of type {} is at no peer", other.ty()))
    }
}

/// A program that runs partly at peers.
pub(super) struct RemoteProgram {
    cluster: Arc<PeerCluster>,
    number: ProgramNumber,
    /// The name of the function.
    name: String,
    bytes: Arc<[u8]>,
    digest: Digest,
    /// The digest of this process's cut.
    cut: Digest,
    participants: Vec<ProcessNumber>,
    /// The last operation of each of them.
    run_last: Vec<(ProcessNumber, u32)>,
    /// The variables at peers, by number.
    vars: Vec<(u32, RemoteVar)>,
    /// The priority of each edge.
    priorities: Arc<[i32]>,
    /// The inputs that each peer needs, the first used first.
    inputs: Vec<(ProcessNumber, u32)>,
    origins: Arc<Origins>,
}

impl fmt::Debug for RemoteProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteProgram").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What the peers read and write in a step.
struct PeerUses {
    participants: BTreeSet<ProcessNumber>,
    /// The inputs, with the place of their first use.
    inputs: BTreeMap<(ProcessNumber, u32), f32>,
    reads: BTreeSet<u32>,
    assigns: BTreeSet<u32>,
}

impl PeerUses {
    fn of(partition: &Partition, process_of: impl Fn(DeviceId) -> ProcessId) -> PeerUses {
        let (participants, inputs) = (BTreeSet::new(), BTreeMap::new());
        let mut uses = PeerUses { participants, inputs, reads: BTreeSet::new(), assigns: BTreeSet::new() };
        for part in &partition.parts {
            let ProcessId(process) = process_of(part.device);
            let process = ProcessNumber(process);
            if process == OWNER {
                continue;
            }
            uses.participants.insert(process);
            for (id, node) in (0..).map(NodeId).zip(&part.nodes) {
                match node.op {
                    FlowOp::Source(Source::Input(input)) => {
                        let first = uses.inputs.entry((process, input)).or_insert(1.0);
                        *first = first.min(part.first_use(id));
                    }
                    FlowOp::Source(Source::Var(var)) => drop(uses.reads.insert(var.index() as u32)),
                    FlowOp::Sink(Sink::Assign(var)) => drop(uses.assigns.insert(var.index() as u32)),
                    _ => {}
                }
            }
        }
        uses
    }

    /// Returns the inputs in the order of their first use.
    fn inputs_in_order(&self) -> Vec<(ProcessNumber, u32)> {
        let mut inputs: Vec<_> = self.inputs.iter().map(|(&input, &first)| (first, input)).collect();
        inputs.sort_by(|a, b| a.0.total_cmp(&b.0));
        inputs.into_iter().map(|(_, input)| input).collect()
    }
}

/// Returns the last operation that each peer runs. A peer without kernels has reads, assignments,
/// loops, and values that it passes on.
fn last_operations(partition: &Partition, process_of: impl Fn(DeviceId) -> ProcessId) -> Vec<(ProcessNumber, u32)> {
    let mut last = BTreeMap::new();
    for part in &partition.parts {
        let ProcessId(process) = process_of(part.device);
        let computed = part.kernels.iter().filter_map(|kernel| kernel.members.last()).max();
        let node = computed.copied().or_else(|| part.nodes.iter().filter_map(|node| node.origin).max());
        let node = node.map(|node| node.index() as u32);
        let known = last.entry(ProcessNumber(process)).or_insert(node);
        *known = node.max(*known);
    }
    last.into_iter().filter_map(|(process, node)| Some((process, node?))).collect()
}

impl RemoteProgram {
    /// Prepares a program, and lets the peers that take part load it. The first step waits for
    /// them.
    pub(super) fn new(cluster: &Arc<PeerCluster>, spec: &ProgramSpec) -> Result<RemoteProgram> {
        let bytes: Arc<[u8]> = spec.encode().into();
        let (partition, cut) = spec.cut();
        let uses = PeerUses::of(&partition, |device| spec.devices[device.index()].process);
        let graph = &spec.graph;
        let vars = (0..).zip(graph.vars.iter().zip(spec.devices_of_vars())).map(|(i, (var, device))| {
            let ProcessId(process) = spec.devices[device.index()].process;
            let (is_read, is_assigned) = (uses.reads.contains(&i), uses.assigns.contains(&i));
            let (name, ty) = (var.name.clone(), Type::Tensor(var.ty.clone()));
            (i, RemoteVar { name, process: ProcessNumber(process), device, ty, is_read, is_assigned })
        });
        let program = RemoteProgram {
            cluster: cluster.clone(),
            name: graph.name.clone(),
            run_last: last_operations(&partition, |device| spec.devices[device.index()].process),
            number: ProgramNumber(cluster.next_program()),
            digest: super::program::digest(&bytes),
            bytes,
            cut,
            participants: uses.participants.iter().copied().collect(),
            vars: vars.filter(|(_, var)| var.process != OWNER && (var.is_read || var.is_assigned)).collect(),
            priorities: partition.first_uses().into_iter().map(priority).collect(),
            inputs: uses.inputs_in_order(),
            origins: Arc::new(Origins::of(graph)),
        };
        // The first step reports what goes wrong.
        let _ = program.register();
        Ok(program)
    }

    /// Registers the program where it is not registered.
    fn register(&self) -> Result<()> {
        for &process in &self.participants {
            let register = |state: &mut ClusterState, now: Time, outputs: &mut Vec<CallerOutput>| {
                let offer = ProgramOffer { bytes: &self.bytes, digest: self.digest, cut: self.cut };
                state.caller.register(process, self.number, offer, now, outputs)
            };
            self.cluster.with(register).map_err(from_wire)?;
        }
        Ok(())
    }

    /// Registers the program where it is not registered, and waits until all peers have loaded it,
    /// unless the call is stopped.
    fn ensure_loaded(&self, stop: &StopFlag) -> Result<()> {
        self.cluster.connect_to(&self.participants, Some(stop))?;
        self.register()?;
        for &process in &self.participants {
            let what = || format!("{} was loading the program", self.name(process));
            let loaded =
                self.cluster.wait_for(Some(stop), what, |state| match state.caller.program(process, self.number) {
                    Some(ProgramState::Loading { .. }) => None,
                    Some(ProgramState::Ready) => Some(Ok(())),
                    Some(ProgramState::Refused { error }) => Some(Err(Some(error.clone()))),
                    None => Some(Err(state.caller.why_unavailable(process))),
                });
            match loaded? {
                Ok(()) => {}
                Err(Some(error)) => {
                    // The next call tries again.
                    self.cluster.with(|state, _, _| state.caller.tell_refusals(self.number));
                    let fault = StepFault { position: None, error };
                    let error = self.origins.failure(fault).error;
                    let loading = format!("{} was loading the program of `{}`", self.name(process), self.name);
                    return Err(error.at(Loc::UNKNOWN, loading));
                }
                Err(None) => {
                    let message = format!("{} does not know a program that it has loaded", self.name(process));
                    return Err(Diagnostic::new(message).of_kind(ErrorKind::Unavailable));
                }
            }
        }
        Ok(())
    }

    fn name(&self, process: ProcessNumber) -> String {
        self.cluster.name(process)
    }

    fn plan(&self, StepInputs { inputs, vars }: &StepInputs, shared: &SharedSnapshot) -> StepPlan {
        let value = |number: u32, var: &RemoteVar| match &var.value_in(number, vars).handle {
            RemoteHandle::Own(handle) => handle.value,
            RemoteHandle::Shared(_) => shared.value(number).expect("the snapshot has all shared variables of the step"),
        };
        let input = |i: u32| inputs[i as usize].clone().expect("a call has all inputs");
        let is_shared = |number: u32, var: &RemoteVar| {
            matches!(var.value_in(number, vars).handle, RemoteHandle::Shared(_)).then_some(number)
        };
        let reads = self.vars.iter().filter(|(_, var)| var.is_read);
        let assigns = self.vars.iter().filter(|(_, var)| var.is_assigned);
        StepPlan {
            program: self.number,
            name: self.name.clone(),
            participants: self.participants.clone(),
            run_last: self.run_last.clone(),
            deadline: None,
            reads: reads.map(|(number, var)| (var.process, *number, value(*number, var))).collect(),
            shared: self.vars.iter().filter_map(|(number, var)| is_shared(*number, var)).collect(),
            assigns: assigns.map(|(number, var)| (var.process, *number)).collect(),
            inputs: self.inputs.iter().map(|&(process, i)| (process, i, input(i))).collect(),
        }
    }

    /// Returns the shared variables that the program uses.
    fn shared_uses(&self, vars: &[Option<DeviceBuffer>]) -> Vec<StepUse> {
        let shared_use = |(number, var): &(u32, RemoteVar)| match &var.value_in(*number, vars).handle {
            RemoteHandle::Own(_) => None,
            RemoteHandle::Shared(variable) => Some(StepUse {
                number: *number,
                variable: variable.clone(),
                is_read: var.is_read,
                is_assigned: var.is_assigned,
                initial: None,
            }),
        };
        self.vars.iter().filter_map(shared_use).collect()
    }

    /// Names the function in the error of a call that was stopped.
    fn stopped(&self, error: Diagnostic) -> Diagnostic {
        if !error.kind.is_stop() {
            return error;
        }
        let mut stopped = interp::stopped(error.kind, &self.name, [], Loc::UNKNOWN);
        stopped.labels = error.labels;
        stopped
    }

    fn begin_error(&self, error: BeginError) -> Diagnostic {
        match error {
            BeginError::Unavailable(error) => from_wire(error),
            BeginError::LostVariables(lost) => {
                let name = |number: &u32| {
                    let found = self.vars.iter().find(|(of, _)| of == number);
                    found.map_or_else(String::new, |(_, var)| format!("`{}`", var.name))
                };
                let mut names: Vec<String> = lost.iter().map(|(_, number)| name(number)).collect();
                names.dedup();
                let peers: BTreeSet<ProcessNumber> = lost.iter().map(|(process, _)| *process).collect();
                let gone =
                    peers.iter().find_map(|&process| self.cluster.with(|s, _, _| s.caller.why_unavailable(process)));
                let peers: Vec<String> = peers.into_iter().map(|process| self.name(process)).collect();
                let names = names.join(", ");
                match gone {
                    Some(error) => from_wire(error)
                        .at(Loc::UNKNOWN, format!("the values of the variables {names} were lost with it"))
                        .help("once it is back, set them again, with `session.set` or `session.load_state`"),
                    None => {
                        let message =
                            format!("the values of the variables {names} were lost with {}", peers.join(" and "));
                        Diagnostic::new(message)
                            .of_kind(ErrorKind::Unavailable)
                            .help("set them again, with `session.set` or `session.load_state`")
                    }
                }
            }
        }
    }
}

impl Drop for RemoteProgram {
    fn drop(&mut self) {
        self.cluster.with(|state, _, outputs| state.caller.unregister(self.number, outputs));
    }
}

impl OtherProcesses for RemoteProgram {
    fn begin(&self, inputs: &StepInputs, mailbox: &Arc<Mailbox>) -> Result<Box<dyn Others>> {
        let given = self.inputs.iter().filter_map(|&(_, i)| inputs.inputs[i as usize].as_ref());
        let held = given.map(|input| self.cluster.hold_outgoing(input)).collect::<Result<Vec<Option<HeldBytes>>>>()?;
        let uses = self.shared_uses(&inputs.vars);
        let stop = &mailbox.step().stop;
        let snapshot = || SharedSnapshot::acquire(uses.clone(), stop).map_err(|error| self.stopped(error));
        let mut shared = snapshot()?;
        let begin_if_room = |shared: &SharedSnapshot| {
            self.cluster.with(|state, now, outputs| {
                if !state.caller.has_room(&self.participants) {
                    return Ok(None);
                }
                let step = state.caller.begin(now, self.plan(inputs, shared), outputs)?;
                let (mailbox, origins) = (mailbox.clone(), self.origins.clone());
                let entry = AwaitedStep { mailbox, origins, received: Arc::default(), done: None };
                state.steps.insert(step, entry);
                let link = |&process: &ProcessNumber| Some((process, state.caller.link(process)?));
                let links: Vec<_> = self.participants.iter().filter_map(link).collect();
                Ok(Some((step, links)))
            })
        };
        // The steps that run hold all locks that they need, and a peer ends each at its limit of
        // time.
        let begin = |shared: &SharedSnapshot| -> Result<std::result::Result<_, BeginError>> {
            loop {
                if let Some(begun) = begin_if_room(shared).transpose() {
                    return Ok(begun);
                }
                let what = || "the call waited for other steps of the session to end".to_owned();
                let has_room = |state: &mut ClusterState| state.caller.has_room(&self.participants).then_some(());
                self.cluster.wait_for(Some(stop), what, has_room)?;
            }
        };
        let (step, links) = match begin(&shared)? {
            Ok(begun) => begun,
            Err(error @ BeginError::LostVariables(_)) => return Err(self.begin_error(error)),
            // A peer was lost. It may be back. Locks at it are lost; those at others are given up
            // before they are acquired again.
            Err(BeginError::Unavailable(_)) => {
                shared = SharedSnapshot::default();
                self.ensure_loaded(stop).map_err(|error| self.stopped(error))?;
                if !uses.is_empty() {
                    shared = snapshot()?;
                }
                begin(&shared)?.map_err(|error| self.begin_error(error))?
            }
        };
        let links = links.into_iter().filter_map(|(process, link)| Some((process, self.cluster.node.link(link)?)));
        Ok(Box::new(BegunStep {
            cluster: self.cluster.clone(),
            session: self.cluster.session(),
            step,
            links: links.collect(),
            participants: self.participants.clone(),
            priorities: self.priorities.clone(),
            vars: self.vars.clone(),
            shared: Some((uses.into_iter().map(|shared| shared.number).collect(), shared)),
            origins: self.origins.clone(),
            is_over: false,
            _inputs: held,
        }))
    }
}

/// A step that this process has begun at peers.
struct BegunStep {
    cluster: Arc<PeerCluster>,
    session: SessionId,
    step: StepNumber,
    links: Vec<(ProcessNumber, Link)>,
    participants: Vec<ProcessNumber>,
    priorities: Arc<[i32]>,
    vars: Vec<(u32, RemoteVar)>,
    /// The numbers of the shared variables, and their values and locks, until they are committed.
    shared: Option<(Vec<u32>, SharedSnapshot)>,
    origins: Arc<Origins>,
    /// Whether the protocol has forgotten the step.
    is_over: bool,
    /// The inputs, which count as waiting to be sent until the step ends.
    _inputs: Vec<Option<HeldBytes>>,
}

impl fmt::Debug for BegunStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BegunStep").field("step", &self.step).finish_non_exhaustive()
    }
}

impl BegunStep {
    /// Forgets the values that wait to be sent for the step.
    fn cancel_bodies(&self) {
        let (session, step) = (self.session.0, Some(self.step.0));
        for (_, link) in &self.links {
            link.cancel_bodies(|purpose| purpose == BodyPurpose { session, step });
        }
    }

    /// Ends the part of the step in this process, and waits for the end of the others.
    fn end(&mut self, outcome: Result<(), &StepFailure>) -> Option<Result<Vec<NewValue>, StepFault>> {
        let outcome = outcome.map_err(participant::fault);
        if outcome.is_err() {
            self.cancel_bodies();
        }
        self.cluster.with(|state, now, outputs| state.caller.end_local(now, self.step, outcome, outputs));
        let done = self.cluster.wait_for_end(self.step);
        self.is_over = done.is_some();
        done
    }
}

impl Others for BegunStep {
    fn send(
        &self,
        process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()> {
        let (priority, held) = match &message {
            DeviceMessage::Value { edge, value, .. } => {
                (self.priorities[edge.index()], self.cluster.hold_outgoing(value)?)
            }
            DeviceMessage::Credit { .. } => (0, None),
        };
        if let Some((_, link)) = self.links.iter().find(|(of, _)| of.0 == process.0) {
            let frame = PeerFrame::Message(step_message(self.step, OWNER, from, to, message));
            send_value(link, WireFrame::ToPeer { session: self.session, frame }, priority, held);
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.links.iter().all(|(_, link)| link.has_room())
    }

    fn wait(&self, step: &Step, at_most: Duration) -> Option<Event> {
        if step.is_simulated() || is_thread_of_device() {
            return step.wait(at_most);
        }
        let net = self.cluster.node.net();
        net.drive(|context| step.poll_event(context), at_most).unwrap_or_else(|| {
            let begun = Instant::now();
            let event = step.wait(at_most);
            if begun.elapsed() < at_most {
                net.waited();
            }
            event
        })
    }

    fn awaited(&self) -> Vec<ProcessId> {
        self.participants.iter().map(|process| ProcessId(process.0)).collect()
    }

    fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure> {
        // All participants have ended, so the step is done, unless one was lost just now.
        match self.end(Ok(())) {
            Some(Ok(new)) => self.commit(new).map_err(StepFailure::from),
            Some(Err(fault)) => Err(self.origins.failure(fault)),
            None => {
                Err(Diagnostic::new("a step did not end after all processes had").of_kind(ErrorKind::Internal).into())
            }
        }
    }

    fn failed(&mut self, mut own: StepFailure) -> StepFailure {
        if own.error.kind == ErrorKind::DeadlineExceeded {
            let slow = self.cluster.with(|state, now, _| state.caller.why_slow(now, self.step));
            let labels = slow.into_iter();
            let labels = labels.map(|(node, text)| (node.map_or(Loc::UNKNOWN, |node| self.origins.loc(node)), text));
            own.error.labels.extend(labels);
        }
        match self.end(Err(&own)) {
            // The error itself, which may have more to say than what crosses processes.
            Some(Err(fault)) if participant::fault(&own).error == fault.error => own,
            Some(Err(fault)) if !own.error.kind.is_stop() => self.origins.failure(fault),
            _ => own,
        }
    }
}

impl BegunStep {
    /// Commits the shared variables. Returns the new values of the others.
    fn commit(&mut self, new: Vec<NewValue>) -> Result<Vec<(VarId, DeviceBuffer)>> {
        let (numbers, snapshot) = self.shared.take().unwrap_or_default();
        let handle = |new: NewValue| (new.variable, self.cluster.handle(new.process, new.value));
        let all = new.into_iter().map(handle);
        let (shared, own): (Vec<_>, Vec<_>) = all.partition(|(number, _)| numbers.contains(number));
        let values: Vec<(u32, ValueId)> = shared.iter().map(|(number, handle)| (*number, handle.value)).collect();
        let unchanged = || "variables that are not shared have not changed".to_owned();
        snapshot.commit(&values).map_err(|error| error.at(Loc::UNKNOWN, unchanged()))?;
        Ok(own.into_iter().map(|(number, handle)| self.assigned(number, handle)).collect())
    }

    fn assigned(&self, variable: u32, handle: ValueHandle) -> (VarId, DeviceBuffer) {
        let (_, var) = self.vars.iter().find(|(number, _)| *number == variable).expect("the step assigns the variable");
        let n_bytes = var.ty.element().n_bytes().unwrap_or(0) as u64;
        let memory = RemoteValue { ty: var.ty.clone(), n_bytes, handle: RemoteHandle::Own(handle) };
        (VarId::from_index(variable as usize), DeviceBuffer::new(MemorySpace::Device(var.device), memory))
    }
}

impl Drop for BegunStep {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.cancel_bodies();
        self.cluster.with(|state, now, outputs| {
            // A step that ended in no other way was abandoned by a panic.
            if state.steps.remove(&self.step).is_some_and(|step| step.done.is_none()) {
                let stopped = Diagnostic::new("the caller has abandoned the step").of_kind(ErrorKind::Cancelled);
                state.caller.end_local(now, self.step, Err(participant::fault(&stopped.into())), outputs);
            }
        });
    }
}
