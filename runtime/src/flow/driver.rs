//! The driver: runs a partition on its devices.
//!
//! The caller's thread drives all executors in turn. That thread submits the actions of the
//! executors to the devices, reports completions to the executors, and blocks only if nothing else
//! is left to do. A loop of small operations over several devices therefore never waits for a
//! thread to wake up. Long kernels of different devices, and copies between them, overlap. The
//! driver knows only the [`Device`] interface. The step decides whether time is real or simulated.

use super::executor::{Action, DeviceMessage, Executor, Tag, TaskId};
use super::{EdgeId, KernelId, Partition, Sink, Source, SubgraphId};
use crate::device::timeline::{Span, Timeline};
use crate::device::variables::VarSet;
use crate::device::{
    CompileOptions, Crossing, Device, DeviceBuffer, Event, Executable, LoadedKernel, PrintTo, Progress, Step, StepCx,
    Ticket, error_on, name_of,
};
use anabranch_dsl::interp::{StopFlag, stopped};
use anabranch_dsl::ir::{Node, Op, RegionData, VarId};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Loc, Result};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A partition with its compiled kernels, and executors for steps.
#[derive(Debug)]
pub(crate) struct Driver {
    graph: Graph,
    partition: Partition,
    kernels: Vec<Vec<Box<dyn LoadedKernel>>>,
    /// The device of each subgraph.
    devices: Vec<Arc<dyn Device>>,
    /// Idle executors of finished steps.
    free: Mutex<Vec<Vec<Executor<DeviceBuffer>>>>,
}

/// The results of a step.
#[derive(Debug)]
pub(crate) struct StepResults {
    pub(crate) outputs: Vec<HostTensor>,
    /// The new values of variables, on the devices that assigned them.
    pub(crate) assigned: Vec<(VarId, DeviceBuffer)>,
}

/// A pending operation and its purpose.
#[derive(Debug)]
enum PendingOp {
    /// A copy of a step input to the device of a subgraph.
    Load { part: SubgraphId, task: TaskId },
    /// A kernel running on a device.
    Run { part: SubgraphId, task: TaskId, kernel: KernelId },
    /// A copy of a predicate to the host.
    Read { part: SubgraphId, task: TaskId },
    /// A transfer of a value to another subgraph.
    Send { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// The first leg of a transfer between devices without a way from one to the other: to the
    /// host.
    SendToHost { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// The second leg.
    SendFromHost { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// A transfer of any other message to another subgraph.
    Tell { from: SubgraphId, to: SubgraphId, message: DeviceMessage<DeviceBuffer> },
    /// A copy of a step output to the host.
    Give { part: SubgraphId, output: u32 },
    /// The fence of a device at the end of the step.
    Fence { part: SubgraphId },
}

impl PendingOp {
    /// Returns the subgraph whose device does the work.
    fn part(&self) -> SubgraphId {
        match *self {
            PendingOp::Load { part, .. }
            | PendingOp::Run { part, .. }
            | PendingOp::Read { part, .. }
            | PendingOp::Give { part, .. }
            | PendingOp::Fence { part }
            | PendingOp::SendFromHost { to: part, .. } => part,
            PendingOp::Send { from, .. } | PendingOp::SendToHost { from, .. } | PendingOp::Tell { from, .. } => from,
        }
    }
}

/// A kernel that failed.
#[derive(Debug)]
struct Failure {
    position: Position,
    error: Diagnostic,
    /// The time of the first failure of the step.
    since: Instant,
}

/// The position of a node in a sequential run: the index in its region of each enclosing node,
/// outermost first, with the iteration and the region entered, and then its own index. Positions
/// compare lexicographically.
type Position = SmallVec<[u64; 8]>;

/// Maximum number of actions of one executor before the next executor's turn.
const TURN: usize = 64;

/// Maximum wait for a device before checking the stop flag again.
const PATIENCE: Duration = Duration::from_millis(2);

/// Maximum time for which a step that has failed looks for failures that come earlier. Kernels
/// before the failed one may never end, or wait for a thread that is busy.
const FAILURE_PATIENCE: Duration = Duration::from_millis(100);

/// Maximum number of idle executor sets kept for reuse.
const MAX_FREE: usize = 16;

impl Driver {
    /// Compiles the kernels of a partition for its devices.
    pub(crate) fn new(
        graph: Graph,
        partition: Partition,
        devices: &[Arc<dyn Device>],
        options: CompileOptions,
    ) -> Result<Driver> {
        let devices: Vec<Arc<dyn Device>> =
            partition.parts.iter().map(|part| devices[part.device.index()].clone()).collect();
        let kernels = partition.parts.iter().zip(&devices).map(|(part, device)| {
            let kernels = part.kernels.iter();
            kernels.map(|k| device.clone().load(k.graph.clone(), options)).collect::<Result<Vec<_>>>()
        });
        Ok(Driver { kernels: kernels.collect::<Result<_>>()?, devices, graph, partition, free: Mutex::default() })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns a readable list of the operations in a kernel.
    fn kernel_name(&self, part: SubgraphId, kernel: KernelId) -> String {
        let members = self.members(part, kernel);
        let mut names: Vec<&str> = members.iter().map(|&n| self.graph.node(n).op.name()).collect();
        names.retain(|&name| name != "constant" || members.len() == 1);
        let more = names.len().saturating_sub(4);
        let text = names[..names.len() - more].join(" ");
        if more > 0 { format!("{text} and {more} more") } else { text }
    }

    /// Returns the nodes of a kernel.
    fn members(&self, part: SubgraphId, kernel: KernelId) -> &[Node] {
        &self.partition.parts[part.index()].kernels[kernel.index()].members
    }

    /// Returns the first node of a kernel. Copies of constants have no place of their own.
    fn first_node(&self, part: SubgraphId, kernel: KernelId) -> Node {
        let members = self.members(part, kernel);
        let is_computed = |n: &&Node| !matches!(self.graph.node(**n).op, Op::Constant(_));
        *members.iter().find(is_computed).unwrap_or(&members[0])
    }

    /// Returns the node of a kernel that has failed at a location: the one there, or the construct
    /// around it.
    fn failing_node(&self, part: SubgraphId, kernel: KernelId, loc: Option<Loc>) -> Node {
        let is_there = |n: Node| Some(self.graph.node(n).loc) == loc;
        let contains = |n: &&Node| {
            let mut found = is_there(**n);
            for &region in &self.graph.node(**n).regions {
                self.graph.visit_nodes(region, &mut |inner| found |= is_there(inner));
            }
            found
        };
        let members = self.members(part, kernel);
        *members.iter().find(contains).unwrap_or(&members[members.len() - 1])
    }

    /// Returns the last node of a kernel.
    fn last_node(&self, part: SubgraphId, kernel: KernelId) -> Option<Node> {
        self.members(part, kernel).last().copied()
    }

    fn device(&self, part: SubgraphId) -> &dyn Device {
        &*self.devices[part.index()]
    }

    fn name(&self, part: SubgraphId) -> String {
        name_of(self.device(part))
    }

    /// Runs a step without changing any outside state. `stop` cancels the step, and is set at the
    /// end of a step that fails. If `timeline` is given, it receives the spans of the step.
    pub(crate) fn run(
        &self,
        inputs: &[HostTensor],
        vars: &[DeviceBuffer],
        print: PrintTo,
        stop: Arc<StopFlag>,
        timeline: Option<&mut Timeline>,
    ) -> Result<StepResults> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut executors = kept.unwrap_or_else(|| {
            let parts = self.partition.parts.iter();
            parts.cloned().map(Executor::new).collect()
        });
        executors.iter_mut().for_each(Executor::start);
        let simulated = self.devices.iter().any(|d| d.is_simulated());
        let mut run = StepRun {
            driver: self,
            inputs,
            vars,
            step: Step::new(print, stop, simulated),
            executors,
            pending: Pending::default(),
            spare: Vec::new(),
            outputs: vec![None; self.graph.outputs().len()],
            assigned: Vec::new(),
            is_fenced: false,
            last: None,
            failure: None,
            spans: timeline.is_some().then(Vec::new),
        };
        let outcome = run.drive();
        let outcome = run.failure.take().map_or(outcome, |failure| Err(failure.error));
        let total = run.step.now();
        run.end();
        let mut executors = std::mem::take(&mut run.executors);
        if outcome.is_err() {
            executors.iter_mut().for_each(Executor::abandon);
        }
        debug_assert!(executors.iter().all(|e| e.n_held() == 0), "a step leaves nothing behind");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(executors);
        }
        drop(free);
        outcome?;
        if let (Some(timeline), Some(mut spans)) = (timeline, run.spans.take()) {
            spans.sort_by_key(|s| s.begin);
            *timeline = Timeline { spans, total, simulated };
        }
        Ok(run.given())
    }

    /// Returns the position of a node in a sequential run. `tag` has the iterations of the loops
    /// around it.
    fn position(&self, node: Node, tag: &[u64]) -> Position {
        let region = self.graph.node(node).region;
        let RegionData { nodes, owner, .. } = self.graph.region(region);
        let mut position = Position::new();
        if let Some(owner) = *owner {
            let (iteration, tag) = match (self.graph.as_while(owner), tag) {
                (Some(_), [around @ .., iteration]) => (Some(*iteration), around),
                _ => (None, tag),
            };
            position = self.position(owner, tag);
            position.extend(iteration);
            let regions = &self.graph.node(owner).regions;
            position.push(regions.iter().position(|&r| r == region).expect("an owner has its regions") as u64);
        }
        position.push(nodes.iter().position(|&n| n == node).expect("a region has its nodes") as u64);
        position
    }

    /// Returns the loops around a node, innermost first.
    fn loops_around(&self, node: Node) -> impl Iterator<Item = Node> {
        let owner = |&n: &Node| self.graph.region(self.graph.node(n).region).owner;
        std::iter::successors(owner(&node), owner).filter(|&n| self.graph.as_while(n).is_some())
    }

    /// Returns the error of a call that was stopped while running `node`.
    fn stopped(&self, kind: ErrorKind, node: Option<Node>) -> Diagnostic {
        let loops = node.into_iter().flat_map(|n| self.loops_around(n)).map(|n| self.graph.node(n).loc);
        stopped(kind, &self.graph.name, loops, node.map_or(Loc::UNKNOWN, |n| self.graph.node(n).loc))
    }

    /// Adds the enclosing loops and the device to an error of a kernel.
    fn kernel_error(&self, part: SubgraphId, kernel: KernelId, error: Diagnostic) -> Diagnostic {
        let node = self.last_node(part, kernel);
        let known = error.labels.iter().any(|(loc, _)| *loc != Loc::UNKNOWN);
        let error = match (error.kind, node) {
            (kind, _) if !kind.is_stop() => error,
            // A loop inside was running.
            (_, Some(node)) if known => {
                let loops = self.loops_around(node).map(|n| self.graph.node(n).loc);
                loops.fold(error, |e, loc| e.at(loc, "inside this one"))
            }
            (kind, _) => self.stopped(kind, node),
        };
        error_on(self.device(part), error)
    }
}

impl Driver {
    /// Runs a step and commits it.
    fn step_in(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
        cx: &StepCx<'_>,
        timeline: Option<&mut Timeline>,
    ) -> Result<Vec<HostTensor>> {
        let stop = cx.stop.cloned().unwrap_or_default();
        let given = self.run(inputs, &vars.snapshot(DeviceBuffer::clone), cx.print.clone(), stop, timeline)?;
        vars.commit(given.assigned.into_iter().map(|(var, value)| (var.index(), value)));
        Ok(given.outputs)
    }
}

impl Executable for Driver {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn may_split(&self) -> bool {
        true
    }

    fn step(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        self.step_in(inputs, vars, cx, None)
    }

    fn profile(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<(Vec<HostTensor>, Timeline)> {
        let mut timeline = Timeline::default();
        let outputs = self.step_in(inputs, vars, cx, Some(&mut timeline))?;
        Ok((outputs, timeline))
    }

    fn crossings(&self) -> Vec<Crossing> {
        self.partition.crossings().collect()
    }

    fn explain(&self) -> String {
        let names: Vec<String> = self.devices.iter().map(|device| name_of(&**device)).collect();
        self.partition.explain(&self.graph, &names)
    }
}

/// A running step.
struct StepRun<'a> {
    driver: &'a Driver,
    inputs: &'a [HostTensor],
    vars: &'a [DeviceBuffer],
    step: Arc<Step>,
    executors: Vec<Executor<DeviceBuffer>>,
    pending: Pending,
    /// Empty vectors for reuse.
    spare: Vec<Vec<DeviceBuffer>>,
    outputs: Vec<Option<HostTensor>>,
    assigned: Vec<(VarId, DeviceBuffer)>,
    /// Whether the fences of the devices were requested.
    is_fenced: bool,
    /// The node that ran last.
    last: Option<Node>,
    /// Of the failures found so far, the one that a sequential run finds first.
    failure: Option<Failure>,
    /// The recorded spans, if a timeline was requested.
    spans: Option<Vec<Span>>,
}

/// The pending operations by ticket.
#[derive(Debug, Default)]
struct Pending {
    work: Vec<Option<PendingOp>>,
    free: Vec<u32>,
}

impl Pending {
    /// Returns a ticket that no pending operation has.
    fn ticket(&self) -> Ticket {
        Ticket(self.free.last().copied().unwrap_or(self.work.len() as u32))
    }

    /// Registers a pending operation, whose completion is an event with `ticket`.
    fn add(&mut self, ticket: Ticket, work: PendingOp) {
        self.free.pop();
        if ticket.index() == self.work.len() {
            self.work.push(None);
        }
        self.work[ticket.index()] = Some(work);
    }

    fn take(&mut self, ticket: Ticket) -> PendingOp {
        self.free.push(ticket.0);
        self.work[ticket.index()].take().expect("pending work has exactly one event")
    }

    fn len(&self) -> usize {
        self.work.len() - self.free.len()
    }
}

impl StepRun<'_> {
    fn drive(&mut self) -> Result<()> {
        loop {
            let mut idle = true;
            for part in 0..self.executors.len() {
                for _ in 0..TURN {
                    let Some(action) = self.executors[part].poll() else { break };
                    idle = false;
                    self.check_stop()?;
                    if let Action::Run { task, kernel, .. } = action
                        && !self.is_before_failure(SubgraphId(part as u32), task, kernel)
                    {
                        continue;
                    }
                    self.act(SubgraphId(part as u32), action)?;
                }
            }
            while let Some(event) = self.step.event() {
                idle = false;
                self.happened(event)?;
            }
            if self.has_failed(idle) {
                return Ok(());
            }
            if !idle {
                continue;
            }
            if self.pending.len() == 0 {
                assert!(self.executors.iter().all(Executor::is_finished), "a step is stuck\n{}", self.driver.graph);
                if self.is_fenced {
                    return Ok(());
                }
                self.fence()?;
                continue;
            }
            // The step waits for the running kernel, so a stop is reported there.
            let running = self.pending.work.iter().flatten().find_map(|work| match *work {
                PendingOp::Run { part, kernel, .. } => self.driver.last_node(part, kernel),
                _ => None,
            });
            self.last = running.or(self.last);
            if let Some(event) = self.step.wait(PATIENCE) {
                self.happened(event)?;
            }
            self.check_stop()?;
        }
    }

    /// Fails if the call is to stop.
    fn check_stop(&self) -> Result<()> {
        let Some(kind) = self.step.stop.get() else { return Ok(()) };
        Err(self.driver.stopped(kind, self.last))
    }

    /// Handles the failure of a kernel: kernels that a sequential run would have run before still
    /// run for a while, since one of them may fail, too. Returns the error if the call was stopped.
    fn failed(&mut self, part: SubgraphId, task: TaskId, kernel: KernelId, error: Diagnostic) -> Result<()> {
        let driver = self.driver;
        let error = driver.kernel_error(part, kernel, error);
        if error.kind.is_stop() {
            return Err(error);
        }
        let node = driver.failing_node(part, kernel, error.loc());
        let position = driver.position(node, &self.executors[part.index()].tag_of(task));
        let since = self.failure.as_ref().map_or_else(Instant::now, |failure| failure.since);
        if self.failure.as_ref().is_none_or(|earlier| position < earlier.position) {
            self.failure = Some(Failure { position, error, since });
        }
        Ok(())
    }

    /// Returns whether a sequential run runs a kernel before the one that failed, if one has.
    fn is_before_failure(&self, part: SubgraphId, task: TaskId, kernel: KernelId) -> bool {
        self.failure.as_ref().is_none_or(|failure| {
            let node = self.driver.first_node(part, kernel);
            self.driver.position(node, &self.executors[part.index()].tag_of(task)) < failure.position
        })
    }

    /// Returns whether the step has failed and is over: its executors are idle and no pending
    /// operation can change its error, or it has looked for other failures long enough.
    fn has_failed(&self, idle: bool) -> bool {
        let Some(failure) = &self.failure else { return false };
        let may_change = |work: &PendingOp| match *work {
            PendingOp::Run { part, task, kernel } => self.is_before_failure(part, task, kernel),
            _ => true,
        };
        failure.since.elapsed() > FAILURE_PATIENCE || idle && !self.pending.work.iter().flatten().any(may_change)
    }

    /// Stops all pending operations and waits until their memory is released.
    fn end(&mut self) {
        if self.pending.len() > 0 {
            self.step.stop.stop(ErrorKind::Cancelled);
            for ticket in self.step.withdraw() {
                self.pending.take(ticket);
            }
        }
        while self.pending.len() > 0 {
            if let Some(event) = self.step.wait(PATIENCE) {
                self.pending.take(event.ticket);
            }
        }
    }

    /// Requests the fences of all devices. Nothing is committed before they are complete.
    fn fence(&mut self) -> Result<()> {
        self.is_fenced = true;
        for part in (0..self.executors.len() as u32).map(SubgraphId) {
            let ticket = self.pending.ticket();
            let device = self.driver.device(part);
            let progress = device.fence(&self.step, ticket).map_err(|e| error_on(device, e))?;
            self.begun(ticket, PendingOp::Fence { part }, progress);
        }
        Ok(())
    }

    /// Submits an action of an executor to its device.
    fn act(&mut self, part: SubgraphId, action: Action<DeviceBuffer>) -> Result<()> {
        let (driver, device) = (self.driver, self.driver.device(part));
        let ticket = self.pending.ticket();
        let begin = self.spans.as_ref().map(|_| self.step.now());
        let mut vector = |value: Option<DeviceBuffer>| {
            let mut values = self.spare.pop().unwrap_or_default();
            values.extend(value);
            values
        };
        let (work, progress) = match action {
            Action::Load { task, source } => {
                let progress = match source {
                    Source::Input(i) => {
                        let input = DeviceBuffer::from_host(self.inputs[i as usize].clone());
                        device.upload(vector(Some(input)), &self.step, ticket)
                    }
                    Source::Var(var) => Progress::Complete(vector(Some(self.vars[var.index()].clone()))),
                };
                (PendingOp::Load { part, task }, progress)
            }
            Action::Run { task, kernel, inputs } => {
                self.last = driver.last_node(part, kernel);
                let loaded = &driver.kernels[part.index()][kernel.index()];
                match loaded.enqueue(inputs, &self.step, ticket) {
                    Ok(progress) => (PendingOp::Run { part, task, kernel }, progress),
                    Err(error) => return self.failed(part, task, kernel, error),
                }
            }
            Action::Read { task, predicate } => {
                (PendingOp::Read { part, task }, device.download(vector(Some(predicate)), &self.step, ticket))
            }
            Action::Send { to, message: DeviceMessage::Value { edge, tag, value } } => {
                match device.copy(vector(Some(value)), driver.device(to), &self.step, ticket) {
                    Ok(progress) => (PendingOp::Send { from: part, to, edge, tag }, progress),
                    Err(values) => {
                        let progress = device.download(values, &self.step, ticket);
                        (PendingOp::SendToHost { from: part, to, edge, tag }, progress)
                    }
                }
            }
            Action::Send { to, message } => {
                let progress = device.copy(vector(None), driver.device(to), &self.step, ticket);
                (PendingOp::Tell { from: part, to, message }, progress.unwrap_or_else(Progress::Complete))
            }
            Action::Give { sink: Sink::Assign(var), value } => {
                self.assigned.push((var, value));
                return Ok(());
            }
            Action::Give { sink: Sink::Output(i), value } => {
                (PendingOp::Give { part, output: i }, device.download(vector(Some(value)), &self.step, ticket))
            }
        };
        // A kernel that completed synchronously is timed here. A synchronous copy takes no time.
        if let (Some(begin), PendingOp::Run { .. }, Progress::Complete(_)) = (begin, &work, &progress) {
            self.span(&work, begin, self.step.now());
        }
        self.begun(ticket, work, progress);
        Ok(())
    }

    /// Registers an operation that has begun, or handles its completion.
    fn begun(&mut self, ticket: Ticket, work: PendingOp, progress: Progress) {
        match progress {
            Progress::Complete(values) => self.completed(work, values),
            Progress::Later => self.pending.add(ticket, work),
        }
    }

    /// Handles an event of a device.
    fn happened(&mut self, event: Event) -> Result<()> {
        let work = self.pending.take(event.ticket);
        let outcome = event.outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let values = match (outcome, &work) {
            (Ok(values), _) => values,
            (Err(error), &PendingOp::Run { part, task, kernel }) => return self.failed(part, task, kernel, error),
            (Err(error), work) => return Err(error_on(self.driver.device(work.part()), error)),
        };
        self.span(&work, event.begin, event.end);
        self.completed(work, values);
        Ok(())
    }

    /// Reports the completion of an operation to its executor.
    fn completed(&mut self, work: PendingOp, mut values: Vec<DeviceBuffer>) {
        if let PendingOp::SendToHost { from, to, edge, tag } = work {
            let ticket = self.pending.ticket();
            let progress = self.driver.device(to).upload(values, &self.step, ticket);
            return self.begun(ticket, PendingOp::SendFromHost { from, to, edge, tag }, progress);
        }
        let executors = &mut self.executors;
        let mut value = || values.pop().expect("a value was copied");
        match work {
            PendingOp::Read { part, task } => {
                executors[part.index()].on_predicate(task, value().into_host().data::<bool>()[0])
            }
            PendingOp::Send { from, to, edge, tag } | PendingOp::SendFromHost { from, to, edge, tag } => {
                executors[to.index()].on_message(from, DeviceMessage::Value { edge, tag, value: value() });
            }
            PendingOp::Tell { from, to, message } => executors[to.index()].on_message(from, message),
            PendingOp::Give { output, .. } => self.outputs[output as usize] = Some(value().into_host()),
            PendingOp::Load { part, task } => executors[part.index()].loaded(task, value()),
            PendingOp::Fence { .. } => {}
            PendingOp::SendToHost { .. } => panic!("the second leg has begun"),
            PendingOp::Run { part, task, .. } => return executors[part.index()].on_kernel_done(task, values),
        }
        self.spare.push(values);
    }

    /// Records a span if a timeline was requested.
    fn span(&mut self, work: &PendingOp, begin: Duration, end: Duration) {
        let driver = self.driver;
        let Some(spans) = &mut self.spans else { return };
        let graph = &driver.graph;
        let (device, name, loc, iterations) = match work {
            PendingOp::Run { part, task, kernel } => {
                let loc = driver.last_node(*part, *kernel).map_or(Loc::UNKNOWN, |n| graph.node(n).loc);
                let iterations = self.executors[part.index()].tag_of(*task);
                (driver.name(*part), driver.kernel_name(*part, *kernel), loc, iterations)
            }
            PendingOp::Send { from, to, edge, tag }
            | PendingOp::SendToHost { from, to, edge, tag }
            | PendingOp::SendFromHost { from, to, edge, tag } => {
                let value = driver.partition.edges[edge.index()].value;
                let way = format!("{} -> {}", driver.name(*from), driver.name(*to));
                (way, value.to_string(), Loc::UNKNOWN, tag.clone())
            }
            PendingOp::Load { part, task } => {
                let iterations = self.executors[part.index()].tag_of(*task);
                (format!("host -> {}", driver.name(*part)), "an input".to_owned(), Loc::UNKNOWN, iterations)
            }
            PendingOp::Read { part, task } => {
                let iterations = self.executors[part.index()].tag_of(*task);
                (format!("{} -> host", driver.name(*part)), "a predicate".to_owned(), Loc::UNKNOWN, iterations)
            }
            PendingOp::Give { part, output } => {
                let way = format!("{} -> host", driver.name(*part));
                (way, format!("output {output}"), Loc::UNKNOWN, Tag::new())
            }
            PendingOp::Tell { .. } | PendingOp::Fence { .. } => return,
        };
        spans.push(Span { device, name, loc, iterations: iterations.to_vec(), begin, end });
    }

    fn given(mut self) -> StepResults {
        let outputs = self.outputs.drain(..).map(|output| output.expect("the subgraphs compute all outputs")).collect();
        StepResults { outputs, assigned: std::mem::take(&mut self.assigned) }
    }
}

impl Drop for StepRun<'_> {
    /// Stops and awaits pending operations, however the step ends.
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::variables::{VarAccess, VarStore};
    use crate::device::{CpuDevice, DeviceId, OpaqueDevice};
    use crate::place::place_at_random;
    use anabranch_dsl::AnyVar;

    /// A graph that assigns a variable and asserts that its input is positive, on devices that
    /// report failed assertions by their fences only.
    #[test]
    fn a_late_failure_stops_the_commit() {
        let text = "graph @late(%x: f32[]) -> f32[] {
            var @w: f32[]
            %w = read @w : f32[]
            %0 = constant 0.0 : f32[]
            %p = gt %x, %0 : bool[]
            assert %p, \"not positive\"
            %y = add %w, %x : f32[]
            assign @w, %y
            return %y
        }";
        let graph = Graph::parse(text, "late.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let stores = Arc::new(VarStore::default());
        for seed in 0..20 {
            let opaque = |i| OpaqueDevice::new(DeviceId::from_index(i), None, seed).failing_late();
            let cpu = CpuDevice::new(DeviceId::from_index(2), None, 1);
            let devices: [Arc<dyn Device>; 3] = [Arc::new(opaque(0)), Arc::new(opaque(1)), Arc::new(cpu)];
            let placement = place_at_random(&graph, 3, seed);
            let partition = super::super::partition(&graph, &placement, Default::default());
            let driver = Driver::new(graph.clone(), partition, &devices, CompileOptions::default());
            let driver = driver.unwrap_or_else(|e| panic!("{e}"));
            let w = AnyVar::new("w", HostTensor::scalar(1.0f32));
            let set = stores.set([(&w, VarAccess::Assign)]);
            let home = &devices[placement.of_var(VarId::from_index(0)).index()];
            assert_eq!(set.settle([home]).map_err(|e| e.message), Ok(true));
            let print: PrintTo = Arc::new(|_, _| ());
            let step = |x: f32| {
                let cx = StepCx { print: &print, stop: None };
                driver.step(&[HostTensor::scalar(x)], &set, &cx)
            };
            let value = || stores.cell(&w).get().map_or_else(|e| panic!("{e}"), |w| w.data::<f32>()[0]);
            assert_eq!(step(2.0).map_err(|e| e.message), Ok(vec![HostTensor::scalar(3.0f32)]), "seed {seed}");
            let error = step(-1.0).expect_err("the assertion fails");
            assert_eq!((error.kind, value()), (ErrorKind::AssertionFailed, 3.0), "seed {seed}: {error}");
            assert!(step(1.0).is_ok(), "seed {seed}");
            assert_eq!(value(), 4.0, "seed {seed}");
        }
    }
}
