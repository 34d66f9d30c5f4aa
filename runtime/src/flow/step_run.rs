//! A running step: what the driver does with the actions of executors, the events of devices and
//! the arrivals from other processes.

use super::driver::{Driver, StepResults};
use super::executor::{Action, DeviceMessage, Executor, Tag, TaskId};
use super::remote::{Arrival, Mailbox, Others, Position, ProcessId, StepFailure, check_message};
use super::{EdgeId, KernelId, Sink, Source, SubgraphId};
use crate::device::timeline::{Span, Timeline};
use crate::device::{DeviceBuffer, Event, MemorySpace, Progress, Step, Ticket};
use anabranch_dsl::ir::{Node, VarId};
use anabranch_dsl::memory::HeldBytes;
use anabranch_dsl::{Diagnostic, HostTensor, Loc, Result};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The inputs and variables that a step reads, by number.
#[derive(Debug, Default)]
pub(crate) struct StepInputs {
    /// The inputs of the graph. A participant has none at first: they arrive.
    pub(crate) inputs: Vec<Option<HostTensor>>,
    /// The values of the variables. A participant has those that its subgraphs read.
    pub(crate) vars: Vec<Option<DeviceBuffer>>,
}

/// The other processes of a step.
#[derive(Debug)]
pub(super) struct OtherSide {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) others: Box<dyn Others>,
    /// The participants that have not ended.
    pub(super) awaited: Vec<ProcessId>,
}

/// The bytes that a running kernel holds of the budget: for its memory, and for its inputs.
#[derive(Debug)]
#[expect(dead_code, reason = "the bytes count until it is dropped")]
pub(super) struct KernelMemory {
    working: Option<HeldBytes>,
    inputs: Vec<Arc<HeldBytes>>,
}

/// A pending operation and its purpose.
#[derive(Debug)]
pub(super) enum PendingOp {
    /// A copy of a step input to the device of a subgraph.
    Load { part: SubgraphId, task: TaskId },
    /// A kernel running on a device.
    Run { part: SubgraphId, task: TaskId, kernel: KernelId, memory: KernelMemory },
    /// A copy of a predicate to the host, for all who decide by it.
    Decide { part: SubgraphId, predicate: DeviceBuffer, uses: Vec<DecisionUse> },
    /// A transfer of a value to another subgraph.
    Send { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// The first leg of a transfer between devices without a way from one to the other: to the
    /// host.
    SendToHost { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// The second leg.
    SendFromHost { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// A copy to the host of a value for another process.
    SendAway { from: SubgraphId, to: SubgraphId, edge: EdgeId, tag: Tag },
    /// A transfer of any other message to another subgraph.
    Tell { from: SubgraphId, to: SubgraphId, message: DeviceMessage<DeviceBuffer> },
    /// A copy of a step output to the host.
    Give { part: SubgraphId, output: u32 },
    /// The fence of a device at the end of the step.
    Fence { part: SubgraphId },
}

/// A use of a predicate that the host has read.
#[derive(Debug)]
pub(super) enum DecisionUse {
    /// A switch of the subgraph that computes it.
    Read { task: TaskId },
    /// The switches of another subgraph.
    Send { to: SubgraphId, edge: EdgeId, tag: Tag },
}

impl PendingOp {
    /// Returns the subgraph whose device does the work.
    fn part(&self) -> SubgraphId {
        match *self {
            PendingOp::Load { part, .. }
            | PendingOp::Run { part, .. }
            | PendingOp::Decide { part, .. }
            | PendingOp::Give { part, .. }
            | PendingOp::Fence { part }
            | PendingOp::SendFromHost { to: part, .. } => part,
            PendingOp::Send { from, .. }
            | PendingOp::SendToHost { from, .. }
            | PendingOp::SendAway { from, .. }
            | PendingOp::Tell { from, .. } => from,
        }
    }
}

/// A kernel that failed, here or in another process.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) position: Position,
    pub(super) error: Diagnostic,
    /// The time of the first failure of the step.
    since: Instant,
}

/// Maximum number of actions of one executor before the next executor's turn.
const TURN: usize = 64;

/// Maximum wait for a device before checking the stop flag again.
const PATIENCE: Duration = Duration::from_millis(2);

/// Maximum time for which a step that has failed looks for failures that come earlier. Kernels
/// before the failed one may never end, or wait for a thread that is busy.
const FAILURE_PATIENCE: Duration = Duration::from_millis(100);

/// What a round of a step has come to.
enum Round {
    /// All is done.
    Ended,
    /// Something happened, so there may be more to do.
    Active,
    /// The step waits for its devices or for other processes.
    Idle,
    /// The next kernel must run on another thread.
    Postponed,
}

/// The thread that runs a round.
#[derive(Clone, Copy, PartialEq)]
enum OnThread {
    /// The thread is there for the step.
    Own,
    /// Others wait for the thread, so only brief kernels run on it, for some time.
    #[cfg(feature = "peers")]
    Shared { until: Instant },
}

impl OnThread {
    /// Returns whether the step must leave the thread to others.
    fn is_over(self) -> bool {
        match self {
            OnThread::Own => false,
            #[cfg(feature = "peers")]
            OnThread::Shared { until } => until <= Instant::now(),
        }
    }
}

/// What has become of a step that ran without waiting.
#[cfg(feature = "peers")]
#[derive(Debug)]
pub(crate) enum Progressed {
    Ended(Result<StepResults, StepFailure>),
    /// The step waits for an arrival, and for nothing else.
    Waiting(StepRun),
    /// The step has more to do, or waits for its devices. [`StepRun::work`] goes on with it.
    Working(StepRun),
}

/// A running step.
///
/// A step runs on the threads that call [`run`](Self::run), [`advance`](Self::advance) or
/// [`work`](Self::work), one at a time.
pub(crate) struct StepRun {
    driver: Arc<Driver>,
    inputs: StepInputs,
    /// The bytes that inputs which have arrived and states of iterations hold of the budget.
    held: Vec<HeldBytes>,
    /// Those of the outputs.
    held_by_outputs: Vec<Arc<HeldBytes>>,
    /// The bytes of the states of iterations that are counted.
    state_bytes: u64,
    /// The loads of inputs that have not arrived.
    loads: Vec<(u32, SubgraphId, TaskId)>,
    step: Arc<Step>,
    others: Option<OtherSide>,
    /// The executors of the subgraphs of this process.
    executors: Vec<Option<Executor<DeviceBuffer>>>,
    pending: Pending,
    vectors: SpareVectors,
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
    /// A kernel that waits for another thread.
    postponed: Option<(SubgraphId, Action<DeviceBuffer>)>,
}

/// Vectors for the values of one operation, which are used again. A step gives back only what it
/// took: otherwise it would keep more with each operation.
#[derive(Default)]
struct SpareVectors {
    free: Vec<Vec<DeviceBuffer>>,
    n_taken: usize,
}

impl SpareVectors {
    /// Returns a vector that has the value, if there is one.
    fn take(&mut self, value: Option<DeviceBuffer>) -> Vec<DeviceBuffer> {
        self.n_taken += 1;
        let mut values = self.free.pop().unwrap_or_default();
        values.extend(value);
        values
    }

    fn give_back(&mut self, values: Vec<DeviceBuffer>) {
        self.n_taken = self.n_taken.checked_sub(1).expect("the vector was taken");
        self.free.push(values);
    }
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

impl StepRun {
    pub(super) fn new(
        driver: Arc<Driver>,
        inputs: StepInputs,
        step: Arc<Step>,
        others: Option<OtherSide>,
        executors: Vec<Option<Executor<DeviceBuffer>>>,
        spans: Option<Vec<Span>>,
    ) -> StepRun {
        let outputs = driver.given_outputs(&inputs);
        StepRun {
            driver,
            inputs,
            held: Vec::new(),
            held_by_outputs: Vec::new(),
            state_bytes: 0,
            loads: Vec::new(),
            step,
            others,
            executors,
            pending: Pending::default(),
            vectors: SpareVectors::default(),
            outputs,
            assigned: Vec::new(),
            is_fenced: false,
            last: None,
            failure: None,
            spans,
            postponed: None,
        }
    }

    fn executor(&mut self, part: SubgraphId) -> &mut Executor<DeviceBuffer> {
        self.executors[part.index()].as_mut().expect("the subgraph is in this process")
    }

    fn tag_of(&self, part: SubgraphId, task: TaskId) -> Tag {
        self.executors[part.index()].as_ref().expect("the subgraph is in this process").tag_of(task)
    }

    /// Runs the step to its end, and waits where it has to. If `timeline` is given, it receives the
    /// spans of the step.
    pub(crate) fn run(mut self, timeline: Option<&mut Timeline>) -> Result<StepResults, StepFailure> {
        let outcome = self.drive(false).map(|has_ended| assert!(has_ended, "the step waits on this thread"));
        self.finish(outcome, timeline)
    }

    /// Runs the step until it ends or waits for other processes alone.
    #[cfg(feature = "peers")]
    pub(crate) fn work(mut self) -> Progressed {
        match self.drive(true) {
            Ok(false) => Progressed::Waiting(self),
            outcome => Progressed::Ended(self.finish(outcome.map(drop), None)),
        }
    }

    /// Runs the step on a thread for which others wait: without waiting, for about the given time
    /// at most, and up to the first kernel that is not brief.
    #[cfg(feature = "peers")]
    pub(crate) fn advance(mut self, at_most: Duration) -> Progressed {
        let thread = OnThread::Shared { until: Instant::now() + at_most };
        loop {
            if !self.has_room() {
                return Progressed::Working(self);
            }
            match self.check_stop().and_then(|()| self.round(thread)) {
                Err(error) => return Progressed::Ended(self.finish(Err(error), None)),
                Ok(Round::Ended) => return Progressed::Ended(self.finish(Ok(()), None)),
                Ok(Round::Active) if !thread.is_over() => {}
                Ok(Round::Idle) if self.waits_for_others() => {
                    self.step.set_busy(false);
                    return Progressed::Waiting(self);
                }
                Ok(_) => return Progressed::Working(self),
            }
        }
    }

    /// Returns whether an idle step waits for other processes alone. A failed one looks for other
    /// failures for some time.
    fn waits_for_others(&self) -> bool {
        self.pending.len() == 0 && self.failure.is_none()
    }

    /// Runs the step to its end, or to a failure. If it `may_park`, returns `false` when it waits
    /// for other processes alone.
    fn drive(&mut self, may_park: bool) -> Result<bool> {
        loop {
            if self.has_room() {
                match self.round(OnThread::Own)? {
                    Round::Ended => return Ok(true),
                    Round::Active => continue,
                    Round::Idle if may_park && self.waits_for_others() => {
                        // Nobody looks at the flag of a step that is parked.
                        self.check_stop()?;
                        self.step.set_busy(false);
                        return Ok(false);
                    }
                    Round::Idle => {}
                    Round::Postponed => panic!("all kernels may run on this thread"),
                }
            }
            // The step waits for the running kernel, so a stop is reported there.
            let running = self.pending.work.iter().flatten().find_map(|work| match *work {
                PendingOp::Run { part, kernel, .. } => self.driver.last_node(part, kernel),
                _ => None,
            });
            self.last = running.or(self.last);
            self.step.set_busy(self.pending.len() > 0);
            let event = match &self.others {
                Some(other) => other.others.wait(&self.step, PATIENCE),
                None => self.step.wait(PATIENCE),
            };
            if let Some(event) = event {
                self.happened(event)?;
            }
            self.step.set_busy(true);
            self.check_stop()?;
        }
    }

    /// Returns whether the step can send more messages to other processes.
    fn has_room(&self) -> bool {
        self.others.as_ref().is_none_or(|other| other.others.has_room())
    }

    /// Does what can be done without waiting, a bounded part of it. On a thread for which others
    /// wait it ends after the action during which its time has passed.
    fn round(&mut self, thread: OnThread) -> Result<Round> {
        self.hold_states()?;
        let mut idle = true;
        if let Some((part, action)) = self.postponed.take() {
            idle = false;
            if self.perform(thread, part, action)? {
                return Ok(Round::Postponed);
            }
        }
        for part in (0..self.executors.len() as u32).map(SubgraphId) {
            for _ in 0..TURN {
                let Some(executor) = &mut self.executors[part.index()] else { break };
                let Some(action) = executor.poll() else { break };
                idle = false;
                self.step.progressed();
                if self.perform(thread, part, action)? {
                    return Ok(Round::Postponed);
                }
                if thread.is_over() {
                    return Ok(Round::Active);
                }
            }
        }
        while let Some(event) = self.step.event() {
            idle = false;
            self.happened(event)?;
            if thread.is_over() {
                return Ok(Round::Active);
            }
        }
        while let Some(arrival) = self.others.as_ref().and_then(|other| other.mailbox.pop()) {
            idle = false;
            self.arrived(arrival)?;
            if thread.is_over() {
                return Ok(Round::Active);
            }
        }
        if self.has_failed(idle) {
            return Ok(Round::Ended);
        }
        if !idle {
            return Ok(Round::Active);
        }
        if self.pending.len() == 0 && self.executors.iter().flatten().all(Executor::is_finished) {
            if !self.is_fenced {
                self.fence()?;
                return Ok(Round::Active);
            }
            if self.others.as_ref().is_none_or(|other| other.awaited.is_empty()) {
                return Ok(Round::Ended);
            }
        }
        assert!(self.pending.len() > 0 || self.others.is_some(), "a step is stuck\n{}", self.driver.graph);
        Ok(Round::Idle)
    }

    /// Does what an executor wants, unless the step has failed before. Returns true if it must
    /// happen on another thread.
    fn perform(&mut self, thread: OnThread, part: SubgraphId, action: Action<DeviceBuffer>) -> Result<bool> {
        self.check_stop()?;
        if let Action::Run { task, kernel, .. } = action {
            if !self.is_before_failure(part, task, kernel) {
                return Ok(false);
            }
            let is_brief = || self.driver.kernels[part.index()][kernel.index()].is_brief();
            if thread != OnThread::Own && !is_brief() {
                self.postponed = Some((part, action));
                return Ok(true);
            }
        }
        self.act(part, action)?;
        Ok(false)
    }

    /// Counts the states of iterations in the budget of the step. A loop can begin as many as its
    /// window allows while their values are awaited.
    fn hold_states(&mut self) -> Result<()> {
        let bytes: u64 = self.executors.iter().flatten().map(Executor::state_bytes).sum();
        let held = self.step.hold(|| bytes.saturating_sub(self.state_bytes))?;
        if held.is_some() {
            self.state_bytes = bytes;
        }
        self.held.extend(held);
        Ok(())
    }

    /// Ends the step, here and in the other processes, and returns its results.
    fn finish(mut self, outcome: Result<()>, timeline: Option<&mut Timeline>) -> Result<StepResults, StepFailure> {
        let mut outcome = match self.failure.take() {
            Some(failure) => Err(StepFailure { position: Some(failure.position.into()), error: failure.error }),
            None => outcome.map_err(StepFailure::from),
        };
        let total = self.step.now();
        self.end();
        let mut executors = std::mem::take(&mut self.executors);
        let is_checked = cfg!(debug_assertions) || self.others.is_some();
        if is_checked && outcome.is_ok() && executors.iter().flatten().any(|e| e.n_held() > 0) {
            assert!(self.others.is_some(), "a step leaves nothing behind");
            outcome = Err(Diagnostic::new("a peer sent a value that the step does not use").into());
        }
        if outcome.is_ok() && self.others.is_some() && self.driver.is_caller() {
            // Nothing is committed without them.
            outcome = self.check_outputs().map_err(StepFailure::from);
        }
        let mut assigned = std::mem::take(&mut self.assigned);
        if let (Ok(()), Some(other)) = (&outcome, &mut self.others) {
            outcome = other.others.ended().map(|elsewhere| assigned.extend(elsewhere));
        } else if let Err(failure) = outcome {
            executors.iter_mut().flatten().for_each(Executor::abandon);
            outcome = Err(match &mut self.others {
                Some(other) => other.others.failed(failure),
                None => failure,
            });
        }
        self.driver.free(executors);
        outcome?;
        if let (Some(timeline), Some(mut spans)) = (timeline, self.spans.take()) {
            spans.sort_by_key(|s| s.begin);
            *timeline = Timeline { spans, total, simulated: self.step.is_simulated(), left_out: 0 };
        }
        Ok(StepResults {
            outputs: std::mem::take(&mut self.outputs),
            assigned,
            #[cfg(feature = "peers")]
            inputs: std::mem::take(&mut self.inputs),
        })
    }

    /// Fails if another process has ended without an output that it computes.
    fn check_outputs(&self) -> Result<()> {
        let Some(missing) = self.outputs.iter().position(Option::is_none) else { return Ok(()) };
        let process = self.driver.process_of_output(missing as u32);
        Err(self.driver.violation(process, "an end of the step", &format!("lacks output {missing}")))
    }

    /// Fails if the call is to stop.
    fn check_stop(&self) -> Result<()> {
        let Some(kind) = self.step.stop.get() else { return Ok(()) };
        Err(self.driver.stopped(kind, self.last))
    }

    /// Handles the failure of a kernel: kernels that a sequential run would have run before still
    /// run for a while, since one of them may fail, too. Returns the error if the call was stopped.
    fn failed(&mut self, part: SubgraphId, task: TaskId, kernel: KernelId, error: Diagnostic) -> Result<()> {
        let driver = self.driver.clone();
        let error = driver.kernel_error(part, kernel, error);
        if error.kind.is_stop() {
            return Err(error);
        }
        let node = driver.failing_node(part, kernel, error.loc());
        let position = driver.position(node, &self.tag_of(part, task));
        self.failed_at(position, error);
        Ok(())
    }

    /// Keeps a failure if it is the first in the order of a sequential run.
    fn failed_at(&mut self, position: Position, error: Diagnostic) {
        let since = self.failure.as_ref().map_or_else(Instant::now, |failure| failure.since);
        if self.failure.as_ref().is_none_or(|earlier| position < earlier.position) {
            self.failure = Some(Failure { position, error, since });
        }
    }

    /// Returns whether a sequential run runs a kernel before the one that failed, if one has.
    fn is_before_failure(&self, part: SubgraphId, task: TaskId, kernel: KernelId) -> bool {
        self.failure.as_ref().is_none_or(|failure| {
            let node = self.driver.first_node(part, kernel);
            self.driver.position(node, &self.tag_of(part, task)) < failure.position
        })
    }

    /// Returns whether the step has failed and is over: its executors are idle and no pending
    /// operation can change its error, or it has looked for other failures long enough.
    ///
    /// Values that other processes still send may run kernels that come earlier. A participant
    /// waits for them as long as for its own kernels, and the caller, which then hears of the
    /// failures of participants, twice as long.
    fn has_failed(&self, idle: bool) -> bool {
        let Some(failure) = &self.failure else { return false };
        if let Some(other) = &self.others {
            return match other.others.awaited()[..] {
                [] => failure.since.elapsed() > FAILURE_PATIENCE,
                _ => other.awaited.is_empty() && idle || failure.since.elapsed() > 2 * FAILURE_PATIENCE,
            };
        }
        let may_change = |work: &PendingOp| match *work {
            PendingOp::Run { part, task, kernel, .. } => self.is_before_failure(part, task, kernel),
            _ => true,
        };
        failure.since.elapsed() > FAILURE_PATIENCE || idle && !self.pending.work.iter().flatten().any(may_change)
    }

    /// Stops all pending operations and waits until their memory is released.
    fn end(&mut self) {
        if self.pending.len() > 0 {
            // The step may begin again with this flag, which is that of its call.
            self.step.stop.abandon();
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
            if self.executors[part.index()].is_none() {
                continue;
            }
            let ticket = self.pending.ticket();
            let device = self.driver.device(part);
            let progress = device.fence(&self.step, ticket).map_err(|e| self.driver.error_on(part, e))?;
            self.begun(ticket, PendingOp::Fence { part }, progress)?;
        }
        Ok(())
    }

    /// Submits an action of an executor to its device.
    fn act(&mut self, part: SubgraphId, action: Action<DeviceBuffer>) -> Result<()> {
        let (driver, device) = (&*self.driver, self.driver.device(part));
        let ticket = self.pending.ticket();
        let begin = self.spans.as_ref().map(|_| self.step.now());
        let mut vector = |value: Option<DeviceBuffer>| self.vectors.take(value);
        let (work, progress) = match action {
            Action::Load { task, source } => {
                let progress = match source {
                    Source::Input(i) => {
                        let Some(input) = &self.inputs.inputs[i as usize] else {
                            self.loads.push((i, part, task));
                            return Ok(());
                        };
                        device.upload(vector(Some(DeviceBuffer::from_host(input.clone()))), &self.step, ticket)
                    }
                    Source::Var(var) => {
                        let value = self.inputs.vars[var.index()].clone();
                        Progress::Complete(vector(Some(value.expect("a step has the variables that it reads"))))
                    }
                };
                (PendingOp::Load { part, task }, progress)
            }
            Action::Run { task, kernel, inputs } => {
                self.last = driver.last_node(part, kernel);
                self.step.begun(self.last);
                let loaded = &driver.kernels[part.index()][kernel.index()];
                let working = self.step.hold(|| loaded.working_bytes());
                let of_inputs = inputs.iter().filter_map(DeviceBuffer::held).collect();
                let memory = working.map(|working| KernelMemory { working, inputs: of_inputs });
                match memory.and_then(|memory| Ok((memory, loaded.enqueue(inputs, &self.step, ticket)?))) {
                    Ok((memory, progress)) => (PendingOp::Run { part, task, kernel, memory }, progress),
                    // The step ends by the failure for which the wait was interrupted.
                    Err(_) if self.step.take_interruption() => return Ok(()),
                    Err(error) => return self.failed(part, task, kernel, error),
                }
            }
            Action::Read { task, predicate } => return self.decide(part, predicate, DecisionUse::Read { task }),
            Action::Send { to, message: DeviceMessage::Value { edge, tag, value } }
                if driver.partition.edges[edge.index()].decides =>
            {
                return self.decide(part, value, DecisionUse::Send { to, edge, tag });
            }
            Action::Send { to, message: DeviceMessage::Value { edge, tag, value } } if !driver.is_here(to) => {
                let progress = device.download(vector(Some(value)), &self.step, ticket);
                (PendingOp::SendAway { from: part, to, edge, tag }, progress)
            }
            Action::Send { to, message: DeviceMessage::Credit { of, tag, finished } } if !driver.is_here(to) => {
                return self.send_away(part, to, DeviceMessage::Credit { of, tag, finished });
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
        self.begun(ticket, work, progress)
    }

    /// Reads a predicate of a device, unless it is being read already, and decides by it.
    fn decide(&mut self, part: SubgraphId, predicate: DeviceBuffer, of: DecisionUse) -> Result<()> {
        if predicate.space() == MemorySpace::Host {
            return self.decided(part, predicate, of);
        }
        let being_read = self.pending.work.iter_mut().flatten().find_map(|work| match work {
            PendingOp::Decide { part: of, predicate: other, uses } if *of == part && other.is_same(&predicate) => {
                Some(uses)
            }
            _ => None,
        });
        if let Some(uses) = being_read {
            uses.push(of);
            return Ok(());
        }
        let ticket = self.pending.ticket();
        let values = self.vectors.take(Some(predicate.clone()));
        let progress = self.driver.device(part).download(values, &self.step, ticket);
        self.begun(ticket, PendingOp::Decide { part, predicate, uses: vec![of] }, progress)
    }

    /// Decides by a predicate that the host has read.
    fn decided(&mut self, part: SubgraphId, predicate: DeviceBuffer, of: DecisionUse) -> Result<()> {
        match of {
            DecisionUse::Read { task } => {
                let truth = predicate.into_host().data::<bool>()[0];
                self.executor(part).on_predicate(task, truth);
                Ok(())
            }
            DecisionUse::Send { to, edge, tag } if self.driver.is_here(to) => {
                self.deliver(part, to, DeviceMessage::Value { edge, tag, value: predicate })
            }
            DecisionUse::Send { to, edge, tag } => {
                self.send_away(part, to, DeviceMessage::Value { edge, tag, value: predicate.into_host() })
            }
        }
    }

    /// Sends a message to a subgraph of another process.
    fn send_away(&self, from: SubgraphId, to: SubgraphId, message: DeviceMessage<HostTensor>) -> Result<()> {
        let (driver, other) = (&self.driver, self.others.as_ref().expect("the subgraph is in another process"));
        let producer = match &message {
            DeviceMessage::Value { edge, .. } => driver.graph.producer(driver.partition.edges[edge.index()].value),
            DeviceMessage::Credit { .. } => None,
        };
        let sent = other.others.send(driver.process_of(to), from, to, message);
        sent.map_err(|error| {
            let loc = producer.map_or(Loc::UNKNOWN, |node| driver.graph.node(node).loc);
            driver.error_on(from, error.at(loc, "this value was to be sent"))
        })
    }

    /// Registers an operation that has begun, or handles its completion.
    fn begun(&mut self, ticket: Ticket, work: PendingOp, progress: Progress) -> Result<()> {
        match progress {
            Progress::Complete(values) => self.completed(work, values),
            Progress::Later => {
                self.pending.add(ticket, work);
                Ok(())
            }
        }
    }

    /// Handles an event of a device.
    fn happened(&mut self, event: Event) -> Result<()> {
        let work = self.pending.take(event.ticket);
        let outcome = event.outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let values = match (outcome, &work) {
            (Ok(values), _) => values,
            (Err(error), &PendingOp::Run { part, task, kernel, .. }) => return self.failed(part, task, kernel, error),
            (Err(error), work) => {
                // A device that failed notices it when values are copied or at the fence.
                let error = match self.last.filter(|_| error.loc().is_none()) {
                    Some(node) => error.at(self.driver.graph.node(node).loc, "after this operation had begun"),
                    None => error,
                };
                return Err(self.driver.error_on(work.part(), error));
            }
        };
        self.span(&work, event.begin, event.end);
        self.completed(work, values)
    }

    /// Handles what has arrived from another process.
    fn arrived(&mut self, arrival: Arrival) -> Result<()> {
        let driver = self.driver.clone();
        match arrival {
            Arrival::Message { process, from, to, message } => {
                check_message(&driver.partition, &driver.processes, process, (from, to), &message)
                    .map_err(|wrong| driver.violation(process, "a message", &wrong))?;
                match message {
                    DeviceMessage::Value { edge, tag, value } => {
                        let mut value = DeviceBuffer::from_host(value);
                        self.step.hold_arrival(&mut value).map_err(|error| driver.error_on(to, error))?;
                        if driver.partition.edges[edge.index()].decides {
                            return self.deliver(from, to, DeviceMessage::Value { edge, tag, value });
                        }
                        let ticket = self.pending.ticket();
                        let progress = driver.device(to).upload(self.vectors.take(Some(value)), &self.step, ticket);
                        self.begun(ticket, PendingOp::SendFromHost { from, to, edge, tag }, progress)
                    }
                    DeviceMessage::Credit { of, tag, finished } => {
                        self.deliver(from, to, DeviceMessage::Credit { of, tag, finished })
                    }
                }
            }
            Arrival::Input { index, tensor } => {
                let i = index as usize;
                let input = driver.graph.inputs().get(i).map(|&input| driver.graph.ty(input).element());
                if input.is_none_or(|ty| !ty.compatible(&tensor.ty())) || self.inputs.inputs[i].is_some() {
                    return Err(driver.violation(ProcessId::CALLER, "an input", "is none that the step waits for"));
                }
                self.inputs.inputs[i] = Some(tensor.clone());
                self.held.extend(self.step.hold(|| tensor.memory_bytes())?);
                let waiting = std::mem::take(&mut self.loads);
                for (waits_for, part, task) in waiting {
                    if waits_for != index {
                        self.loads.push((waits_for, part, task));
                        continue;
                    }
                    let ticket = self.pending.ticket();
                    let values = self.vectors.take(Some(DeviceBuffer::from_host(tensor.clone())));
                    let progress = driver.device(part).upload(values, &self.step, ticket);
                    self.begun(ticket, PendingOp::Load { part, task }, progress)?;
                }
                Ok(())
            }
            Arrival::Output { process, index, tensor } => {
                let output = driver.graph.outputs().get(index as usize);
                let fits = output.is_some_and(|&output| driver.graph.ty(output).element().compatible(&tensor.ty()));
                let is_expected = fits && driver.process_of_output(index) == process;
                if !is_expected || self.outputs[index as usize].is_some() {
                    return Err(driver.violation(process, "an output", "is none that the step expects from it"));
                }
                self.outputs[index as usize] = Some(tensor);
                Ok(())
            }
            Arrival::Print { stream, text } => {
                self.step.print(stream, &text);
                Ok(())
            }
            Arrival::Ended { process } => {
                self.ended(process);
                Ok(())
            }
            Arrival::Failed { process, failure: StepFailure { position, error } } => {
                self.ended(process);
                match position {
                    Some(position) if !error.kind.is_stop() => self.failed_at(position.into(), error),
                    _ => return Err(error),
                }
                Ok(())
            }
            Arrival::Lost(error) => Err(error),
        }
    }

    /// Notes that a participant has ended.
    fn ended(&mut self, process: ProcessId) {
        if let Some(other) = &mut self.others {
            other.awaited.retain(|&awaited| awaited != process);
        }
    }

    /// Gives a message to an executor. A message of another process passes its gate.
    fn deliver(&mut self, from: SubgraphId, to: SubgraphId, message: DeviceMessage<DeviceBuffer>) -> Result<()> {
        let driver = self.driver.clone();
        let executor = self.executor(to);
        if !driver.is_here(from) {
            let admitted = executor.admit(from, &message);
            admitted.map_err(|wrong| driver.violation(driver.process_of(from), "a message", wrong))?;
        }
        executor.on_message(from, message);
        Ok(())
    }

    /// Reports the completion of an operation to its executor.
    fn completed(&mut self, work: PendingOp, mut values: Vec<DeviceBuffer>) -> Result<()> {
        if let PendingOp::SendToHost { from, to, edge, tag } = work {
            let ticket = self.pending.ticket();
            let progress = self.driver.device(to).upload(values, &self.step, ticket);
            return self.begun(ticket, PendingOp::SendFromHost { from, to, edge, tag }, progress);
        }
        let mut value = || values.pop().expect("a value was copied");
        match work {
            PendingOp::Decide { part, uses, .. } => {
                let predicate = value();
                for of in uses {
                    self.decided(part, predicate.clone(), of)?;
                }
            }
            PendingOp::Send { from, to, edge, tag } => {
                let message = DeviceMessage::Value { edge, tag, value: value() };
                self.deliver(from, to, message)?;
            }
            PendingOp::SendFromHost { from, to, edge, tag } => {
                let mut value = value();
                if self.driver.process_of(from) != self.driver.processes.own {
                    // It may have other memory now.
                    self.step.hold_arrival(&mut value).map_err(|error| self.driver.error_on(to, error))?;
                }
                self.deliver(from, to, DeviceMessage::Value { edge, tag, value })?;
            }
            PendingOp::SendAway { from, to, edge, tag } => {
                self.send_away(from, to, DeviceMessage::Value { edge, tag, value: value().into_host() })?;
            }
            PendingOp::Tell { from, to, message } => self.executor(to).on_message(from, message),
            PendingOp::Give { output, .. } => {
                let value = value();
                self.held_by_outputs.extend(value.held());
                self.outputs[output as usize] = Some(value.into_host());
            }
            PendingOp::Load { part, task } => {
                let value = value();
                self.executor(part).loaded(task, value);
            }
            PendingOp::Fence { .. } => return Ok(()),
            PendingOp::SendToHost { .. } => panic!("the second leg has begun"),
            PendingOp::Run { part, task, kernel, memory } => {
                // From here on, the results count one by one.
                drop(memory);
                if let Err(error) = values.iter_mut().try_for_each(|value| self.step.hold_value(value)) {
                    return self.failed(part, task, kernel, error);
                }
                self.executor(part).on_kernel_done(task, values);
                return Ok(());
            }
        }
        self.vectors.give_back(values);
        Ok(())
    }

    /// Records a span if a timeline was requested.
    fn span(&mut self, work: &PendingOp, begin: Duration, end: Duration) {
        let driver = self.driver.clone();
        let Some(spans) = &mut self.spans else { return };
        let executors = &self.executors;
        let tag_of = |part: &SubgraphId, task: &TaskId| {
            executors[part.index()].as_ref().expect("the subgraph is in this process").tag_of(*task)
        };
        let graph = &driver.graph;
        let (device, name, loc, iterations) = match work {
            PendingOp::Run { part, task, kernel, .. } => {
                let loc = driver.last_node(*part, *kernel).map_or(Loc::UNKNOWN, |n| graph.node(n).loc);
                let iterations = tag_of(part, task);
                (driver.name(*part), driver.kernel_name(*part, *kernel), loc, iterations)
            }
            PendingOp::Send { from, to, edge, tag }
            | PendingOp::SendToHost { from, to, edge, tag }
            | PendingOp::SendAway { from, to, edge, tag }
            | PendingOp::SendFromHost { from, to, edge, tag } => {
                let value = driver.partition.edges[edge.index()].value;
                let way = format!("{} -> {}", driver.name(*from), driver.name(*to));
                (way, value.to_string(), Loc::UNKNOWN, tag.clone())
            }
            PendingOp::Load { part, task } => {
                let iterations = tag_of(part, task);
                (format!("host -> {}", driver.name(*part)), "an input".to_owned(), Loc::UNKNOWN, iterations)
            }
            PendingOp::Decide { part, uses, .. } => {
                let iterations = match &uses[0] {
                    DecisionUse::Read { task } => tag_of(part, task),
                    DecisionUse::Send { tag, .. } => tag.clone(),
                };
                (format!("{} -> host", driver.name(*part)), "a predicate".to_owned(), Loc::UNKNOWN, iterations)
            }
            PendingOp::Give { part, output } => {
                let way = format!("{} -> host", driver.name(*part));
                (way, format!("output {output}"), Loc::UNKNOWN, Tag::new())
            }
            PendingOp::Tell { .. } | PendingOp::Fence { .. } => return,
        };
        spans.push(Span { device, name, loc, bytes: None, iterations: iterations.to_vec(), begin, end });
    }
}

impl fmt::Debug for StepRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepRun").field("step", &self.step).finish_non_exhaustive()
    }
}

impl Drop for StepRun {
    /// Stops and awaits pending operations, however the step ends.
    fn drop(&mut self) {
        self.end();
    }
}
