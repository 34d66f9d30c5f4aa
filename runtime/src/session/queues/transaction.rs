//! The operations of one step on queues.

use super::content::{ElementRequest, QueueFailure, QueueState, QueuedElement};
use super::{SharedQueue, WaitFailure, WaitLimits, batch};
use crate::device::variables::{CommitGate, LockResumption, YieldingLocks};
#[cfg(debug_assertions)]
use crate::threads;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::{Op, QueueId, QueueOp};
use anabranch_dsl::ops::Effects;
use anabranch_dsl::queue::{AnyQueue, QueueOrder, StepQueues};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Loc, Result};
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// What a step has done with queues.
pub(crate) struct StepTransaction {
    /// The name of the function, for messages.
    function: String,
    queues: Vec<UsedQueue>,
    /// The step locks of the current attempt.
    locks: Mutex<Option<Arc<YieldingLocks>>>,
    stop: Option<Arc<StopFlag>>,
    interruption: Mutex<Arc<Interruption>>,
    log: Mutex<Vec<LogOfQueue>>,
    must_restart: AtomicBool,
    gate: Arc<CommitGate>,
    /// Whether the commit of its variables enters the gate.
    assigns: bool,
}

/// Whether another part of an attempt has failed, which ends its waits for queues.
#[derive(Default)]
struct Interruption {
    is_set: AtomicBool,
    /// Whether it has ended a wait, so that an error is not the reason for which the step fails.
    has_ended_a_wait: AtomicBool,
}

/// The queues as one attempt sees them. What happens to it later does not interrupt the next one.
struct QueuesOfAttempt {
    transaction: Arc<StepTransaction>,
    interruption: Arc<Interruption>,
}

/// A queue that a graph uses.
#[derive(Clone, Debug)]
pub(crate) struct UsedQueue {
    pub(super) queue: AnyQueue,
    pub(super) shared: Arc<SharedQueue>,
}

impl UsedQueue {
    pub(crate) fn new(queue: AnyQueue, shared: Arc<SharedQueue>) -> UsedQueue {
        UsedQueue { queue, shared }
    }
}

/// What a step has done with one queue.
///
/// When it starts again, what it has removed and the room that it has are *kept* for the next
/// attempt, until that waits. So it does not wait in line again, and is not starved by those who
/// wait for less.
#[derive(Default)]
struct LogOfQueue {
    removed: Vec<QueuedElement>,
    added: Vec<Vec<HostTensor>>,
    closes: bool,
    kept: VecDeque<QueuedElement>,
    kept_room: usize,
}

impl LogOfQueue {
    /// Keeps what was removed, and the room for what was added.
    fn rewind(&mut self) {
        let LogOfQueue { removed, added, mut kept, kept_room, .. } = std::mem::take(self);
        for element in removed.into_iter().rev() {
            kept.push_front(element);
        }
        *self = LogOfQueue { kept, kept_room: kept_room + added.len(), ..LogOfQueue::default() };
    }

    /// Returns the number of elements for which the step has room.
    fn n_reserved(&self) -> usize {
        self.added.len() + self.kept_room
    }
}

/// What becomes of a step.
pub(crate) enum EndOfStep<T> {
    Ended(Result<T>),
    /// Another step has assigned one of its variables while it waited.
    MustRestart,
}

/// The removal of elements with which a step begins: nothing that comes before it can fail or has
/// an effect.
///
/// It is waited for before the first attempt, so that a call that waits for elements holds no
/// locks, no threads but its caller's and no device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstRemoval {
    queue: QueueId,
    op: QueueOp,
    request: ElementRequest,
    loc: Loc,
}

impl FirstRemoval {
    /// Returns the removal with which the steps of a graph begin, if they do.
    pub(crate) fn of(graph: &Graph) -> Option<FirstRemoval> {
        let mut nodes = graph.region(graph.root()).nodes.iter().map(|&node| graph.node(node));
        let first = nodes.find(|data| {
            !data.regions.is_empty() || matches!(data.op.effects(), Effects::Fallible | Effects::Observable)
        })?;
        let Op::Queue(queue, op) = first.op else { return None };
        Some(FirstRemoval { queue, op, request: ElementRequest::of(op, None)?, loc: first.loc })
    }
}

impl StepTransaction {
    fn log(&self) -> MutexGuard<'_, Vec<LogOfQueue>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a step that has not ended, and gives up its locks.
    fn abandon(&self) {
        self.undo();
        self.give_up_locks();
    }

    fn commit(&self) {
        self.end_with(|state, log| {
            state.add(std::mem::take(&mut log.added));
            state.settle(&std::mem::take(&mut log.removed));
            if log.closes {
                state.close(None, false);
            }
        });
    }

    fn undo(&self) {
        self.end_with(|_, _| {});
    }

    /// Calls `end` for each queue that the step has changed, and returns what is then still in its
    /// log.
    fn end_with(&self, end: impl Fn(&mut QueueState, &mut LogOfQueue)) {
        for (used, log) in self.queues.iter().zip(&mut *self.log()) {
            let mut log = std::mem::take(log);
            if log.removed.is_empty() && log.kept.is_empty() && log.n_reserved() == 0 && !log.closes {
                continue;
            }
            used.shared.change(|state| {
                end(state, &mut log);
                state.free_room(log.n_reserved());
                state.give_back(log.removed.into_iter().chain(log.kept));
            });
        }
    }

    /// Keeps what the attempt has removed, and the room that it has, for the next attempt.
    fn rewind(&self) {
        for (used, log) in self.queues.iter().zip(&mut *self.log()) {
            log.rewind();
            // The next batch by priority may be another one.
            if used.queue.order() == QueueOrder::Priority && !log.kept.is_empty() {
                used.shared.change(|state| state.give_back(std::mem::take(&mut log.kept)));
            }
        }
    }

    fn interruption(&self) -> Arc<Interruption> {
        self.interruption.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn locks(&self) -> Option<Arc<YieldingLocks>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives up the step locks.
    fn give_up_locks(&self) {
        if let Some(locks) = self.locks() {
            locks.give_up();
        }
    }

    /// Acquires the step locks again after a wait.
    fn resume(&self, used: &UsedQueue, op: QueueOp, loc: Loc) -> Result<()> {
        let stop = self.stop.as_deref();
        match self.locks().map_or(LockResumption::Unchanged, |locks| locks.resume(stop)) {
            LockResumption::Unchanged => Ok(()),
            LockResumption::Changed => {
                self.must_restart.store(true, Ordering::Relaxed);
                let message = format!("{}: a variable of the step was assigned while it waited", op.name());
                Err(Diagnostic::new(message).of_kind(ErrorKind::Internal))
            }
            LockResumption::Stopped => {
                let kind = stop.and_then(StopFlag::get).expect("the flag ended the wait");
                Err(self.stopped(used, kind, loc))
            }
        }
    }

    /// Returns the error of a step that was stopped while it waited for a queue.
    fn stopped(&self, used: &UsedQueue, kind: ErrorKind, loc: Loc) -> Diagnostic {
        let (function, queue) = (&self.function, used.queue.name());
        let error = Diagnostic::new(match kind {
            ErrorKind::DeadlineExceeded => format!("the call of `{function}` did not end before its deadline"),
            _ => format!("the call of `{function}` was cancelled"),
        });
        error.of_kind(kind).at(loc, format!("it waited here for the queue `{queue}`"))
    }

    /// Runs one part of an operation, which may wait.
    fn wait<R>(
        &self,
        id: QueueId,
        op: QueueOp,
        loc: Loc,
        wait: impl FnOnce(&SharedQueue, WaitLimits<'_>, &dyn Fn()) -> Result<R, WaitFailure>,
        log: impl FnOnce(&mut LogOfQueue, R),
    ) -> Result<()> {
        #[cfg(debug_assertions)]
        assert!(!threads::is_at_work(), "a part of a kernel never waits for a queue");
        let used = &self.queues[id.index()];
        let stalled = OnceCell::new();
        let waits = || {
            self.release_kept(id, op);
            self.give_up_locks();
            let is_first = stalled.set(self.stall()).is_ok();
            assert!(is_first, "a wait begins once");
        };
        let interruption = self.interruption();
        let limits =
            WaitLimits { stop: self.stop.as_deref(), deadline: None, interruption: Some(&interruption.is_set) };
        let outcome = wait(&used.shared, limits, &waits);
        let stalled = stalled.into_inner();
        for (used, n) in self.queues.iter().zip(stalled.iter().flatten()).filter(|(_, n)| **n > 0) {
            used.shared.change(|state| state.goes_on(*n));
        }
        let outcome = outcome.map_err(|failure| match failure {
            WaitFailure::Ended(kind) => self.stopped(used, kind, loc),
            WaitFailure::Interrupted => {
                interruption.has_ended_a_wait.store(true, Ordering::Relaxed);
                let message = format!("{}: another part of the step has failed while it waited", op.name());
                Diagnostic::new(message).of_kind(ErrorKind::Internal)
            }
            WaitFailure::Queue(failure) => failed(used, op, failure, loc),
        })?;
        log(&mut self.log()[id.index()], outcome);
        match stalled {
            Some(_) => self.resume(used, op, loc),
            None => Ok(()),
        }
    }

    /// Gives back what an earlier attempt has left and this one has not used, before a wait of an
    /// operation. Others may need it to end the wait. Only room in the queue that the operation
    /// adds to stays.
    fn release_kept(&self, id: QueueId, op: QueueOp) {
        let adds = matches!(op, QueueOp::Enqueue | QueueOp::EnqueueMany);
        for (i, (used, log)) in self.queues.iter().zip(&mut *self.log()).enumerate() {
            let kept = std::mem::take(&mut log.kept);
            let room = if adds && i == id.index() { 0 } else { std::mem::take(&mut log.kept_room) };
            if room > 0 || !kept.is_empty() {
                used.shared.change(|state| {
                    state.free_room(room);
                    state.give_back(kept);
                });
            }
        }
    }

    /// Tells the queues in which the step has room that it waits. Returns this room for each queue.
    fn stall(&self) -> Vec<usize> {
        let rooms: Vec<usize> = self.log().iter().map(LogOfQueue::n_reserved).collect();
        for (used, &n) in self.queues.iter().zip(&rooms).filter(|(_, n)| **n > 0) {
            used.shared.change(|state| state.stalls(n));
        }
        rooms
    }

    /// Returns the room that the step lacks for `n` more elements, and the room that it has.
    fn room_for(&self, id: QueueId, n: usize) -> (usize, usize) {
        let log = &self.log()[id.index()];
        (n.saturating_sub(log.kept_room), log.n_reserved())
    }

    fn add(&self, id: QueueId, op: QueueOp, elements: Vec<Vec<HostTensor>>, loc: Loc) -> Result<()> {
        let n = elements.len();
        let (missing, reserved) = self.room_for(id, n);
        let take_room = |log: &mut LogOfQueue| {
            log.kept_room = (log.kept_room + missing) - n;
            log.added.extend(elements);
        };
        if missing == 0 {
            take_room(&mut self.log()[id.index()]);
            return Ok(());
        }
        let wait = |queue: &SharedQueue, limits: WaitLimits<'_>, waits: &dyn Fn()| {
            queue.wait(QueueState::producer, |state, waiter| state.reserve(waiter, missing, reserved), limits, waits)
        };
        self.wait(id, op, loc, wait, |log, ()| take_room(log))
    }

    /// Removes elements, and returns them.
    fn remove(&self, id: QueueId, op: QueueOp, request: ElementRequest, loc: Loc) -> Result<Vec<Vec<HostTensor>>> {
        let mut elements = Vec::new();
        let (reserved, closes) = {
            let log = &mut self.log()[id.index()];
            let n = request.n.min(log.kept.len());
            let kept: Vec<QueuedElement> = log.kept.drain(..n).collect();
            elements.extend(kept.iter().map(|element| element.tensors.clone()));
            log.removed.extend(kept);
            (log.added.len(), log.closes)
        };
        if elements.len() == request.n {
            return Ok(elements);
        }
        // Some elements suffice, of which there may be no more.
        let has_enough = request.up_to && !elements.is_empty();
        let missing = ElementRequest { n: request.n - elements.len(), ..request };
        let take = |state: &mut QueueState, waiter| match state.take(waiter, missing, reserved) {
            Poll::Ready(Err(QueueFailure::HasTooFew { .. } | QueueFailure::Producer(_))) if has_enough => {
                Poll::Ready(Ok(Vec::new()))
            }
            Poll::Pending if closes => {
                state.leave(waiter);
                Poll::Ready(Err(QueueFailure::ClosesItself))
            }
            other => other,
        };
        let wait = |queue: &SharedQueue, limits: WaitLimits<'_>, waits: &dyn Fn()| {
            queue.wait(QueueState::consumer, take, limits, waits)
        };
        self.wait(id, op, loc, wait, |log, removed| {
            elements.extend(removed.iter().map(|element| element.tensors.clone()));
            log.removed.extend(removed);
        })?;
        Ok(elements)
    }
}

fn failed(used: &UsedQueue, op: QueueOp, failure: QueueFailure, loc: Loc) -> Diagnostic {
    let from_producer = matches!(failure, QueueFailure::Producer(_));
    let mut error = used.shared.failure(op.name(), failure);
    // The first label is the place of the error.
    let labels = std::mem::take(&mut error.labels);
    let label = if from_producer { "an element is removed here" } else { "used here" };
    labels.into_iter().fold(error.at(loc, label), |error, (loc, label)| error.at(loc, label))
}

impl StepQueues for QueuesOfAttempt {
    fn run(&self, id: QueueId, op: QueueOp, operands: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>> {
        self.transaction.run(id, op, operands, loc)
    }

    fn interrupt(&self) {
        self.interruption.is_set.store(true, Ordering::Relaxed);
        self.transaction.queues.iter().for_each(|used| used.shared.look_again());
    }

    fn take_interruption(&self) -> bool {
        self.interruption.has_ended_a_wait.swap(false, Ordering::Relaxed)
    }
}

impl StepTransaction {
    fn run(&self, id: QueueId, op: QueueOp, operands: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>> {
        let UsedQueue { queue, shared } = &self.queues[id.index()];
        let placed = |mut error: Diagnostic| {
            error.message = format!("{}: {}", op.name(), error.message);
            error.at(loc, format!("the queue `{}` is used here", queue.name()))
        };
        let check = |element: &[HostTensor]| match batch::is_element(queue.element(), element) {
            true => Ok(()),
            false => Err(placed(not_an_element(queue, element))),
        };
        let stack =
            |elements: &[Vec<HostTensor>]| batch::stack(queue.order(), queue.element(), elements).map_err(placed);
        match op {
            QueueOp::Enqueue => {
                check(&operands)?;
                self.add(id, op, vec![operands], loc)?;
                Ok(Vec::new())
            }
            QueueOp::EnqueueMany => {
                let n = batch::count(&operands).map_err(placed)?;
                let (missing, reserved) = self.room_for(id, n);
                if missing.saturating_add(reserved) > shared.capacity {
                    let failure = QueueFailure::NeverRoom { n: missing, reserved };
                    return Err(failed(&self.queues[id.index()], op, failure, loc));
                }
                let elements = batch::unstack(&operands, n).map_err(placed)?;
                elements.iter().try_for_each(|element| check(element))?;
                self.add(id, op, elements, loc)?;
                Ok(Vec::new())
            }
            QueueOp::Dequeue | QueueOp::DequeueMany(_) | QueueOp::DequeueUpTo(_) => {
                let n = operands.first().map(|n| number_of_elements(n).map_err(placed)).transpose()?;
                let elements = match ElementRequest::of(op, n) {
                    Some(request) => self.remove(id, op, request, loc)?,
                    None => Vec::new(),
                };
                match op {
                    QueueOp::Dequeue => Ok(elements.into_iter().flatten().collect()),
                    _ => stack(&elements),
                }
            }
            QueueOp::Close => {
                self.log()[id.index()].closes = true;
                Ok(Vec::new())
            }
            QueueOp::Len => Ok(vec![HostTensor::scalar(shared.state().len() as i64)]),
        }
    }
}

/// Returns the number of elements that an operand asks for.
fn number_of_elements(operand: &HostTensor) -> Result<usize> {
    let n = operand.data::<i32>()[0];
    usize::try_from(n).map_err(|_| {
        Diagnostic::new(format!("the number of elements is negative: {n}")).help("remove 0 elements or more")
    })
}

/// Returns the error of tensors that are no element of a queue.
pub(super) fn not_an_element(queue: &AnyQueue, tensors: &[HostTensor]) -> Diagnostic {
    let list = |types: Vec<String>| types.join(", ");
    let expected = list(queue.element().iter().map(ToString::to_string).collect());
    let given = list(tensors.iter().map(|tensor| tensor.ty().to_string()).collect());
    Diagnostic::new(format!("an element of the queue `{}` is {expected}, but got {given}", queue.name()))
        .help("an unknown extent, `?` in the type, may differ between elements; others may not")
}

/// The transaction of a running step. Dropping it, in a panic for example, undoes it. Others may
/// keep handles for longer.
pub(crate) struct RunningTransaction(Arc<StepTransaction>);

impl RunningTransaction {
    /// Begins a step.
    pub(crate) fn begin(
        function: &str,
        queues: &[UsedQueue],
        stop: Option<Arc<StopFlag>>,
        gate: Arc<CommitGate>,
        assigns: bool,
    ) -> RunningTransaction {
        let log = queues.iter().map(|_| LogOfQueue::default()).collect();
        RunningTransaction(Arc::new(StepTransaction {
            function: function.to_owned(),
            queues: queues.to_vec(),
            locks: Mutex::default(),
            stop,
            interruption: Mutex::default(),
            log: Mutex::new(log),
            must_restart: AtomicBool::new(false),
            gate,
            assigns,
        }))
    }

    /// Waits for the elements of the removal with which the step begins. Its first attempt finds
    /// them kept.
    pub(crate) fn wait_for(&self, first: FirstRemoval) -> Result<()> {
        let FirstRemoval { queue, op, request, loc } = first;
        self.0.remove(queue, op, request, loc)?;
        self.0.log()[queue.index()].rewind();
        Ok(())
    }

    /// Begins an attempt with these step locks.
    pub(crate) fn attempt(&self, locks: YieldingLocks) {
        *self.0.locks.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(locks));
        *self.0.interruption.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// Returns the queues for the engine, in the attempt that was begun last.
    pub(crate) fn queues(&self) -> Arc<dyn StepQueues> {
        Arc::new(QueuesOfAttempt { transaction: self.0.clone(), interruption: self.0.interruption() })
    }

    /// Ends an attempt, whose variables are committed if it has succeeded.
    pub(crate) fn end<T>(&self, outcome: Result<T>) -> EndOfStep<T> {
        if self.0.must_restart.swap(false, Ordering::Relaxed) {
            self.0.rewind();
            self.0.give_up_locks();
            return EndOfStep::MustRestart;
        }
        if outcome.is_ok() {
            // The variables have entered it, if some are assigned.
            let _in_gate = (!self.0.assigns).then(|| self.0.gate.enter());
            self.0.commit();
            if let Some(locks) = self.0.locks() {
                locks.leave_gate();
            }
        }
        EndOfStep::Ended(outcome)
    }
}

impl Drop for RunningTransaction {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl fmt::Debug for StepTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepTransaction").field("function", &self.function).finish_non_exhaustive()
    }
}
