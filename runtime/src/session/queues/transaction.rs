//! The operations of one step on queues.

use super::content::{ElementRequest, QueueFailure, QueueState, QueuedElement};
use super::{SharedQueue, WaitFailure, WaitLimits, batch};
use crate::device::variables::{LockResumption, YieldingLocks};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::{QueueId, QueueOp};
use anabranch_dsl::queue::{AnyQueue, StepQueues};
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a step has done with queues.
pub(crate) struct StepTransaction {
    /// The name of the function, for messages.
    function: String,
    queues: Vec<UsedQueue>,
    /// The step locks, if the step assigns variables.
    locks: Option<YieldingLocks>,
    stop: Option<Arc<StopFlag>>,
    log: Mutex<Vec<LogOfQueue>>,
    must_restart: AtomicBool,
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
#[derive(Default)]
struct LogOfQueue {
    removed: Vec<QueuedElement>,
    added: Vec<Vec<HostTensor>>,
    closes: bool,
}

/// What becomes of a step.
pub(crate) enum EndOfStep<T> {
    Ended(Result<T>),
    /// Another step has assigned one of its variables while it waited.
    MustRestart,
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
        for (used, log) in self.queues.iter().zip(&mut *self.log()) {
            let LogOfQueue { added, closes, .. } = std::mem::take(log);
            if added.is_empty() && !closes {
                continue;
            }
            used.shared.change(|state| {
                state.add(added);
                if closes {
                    state.close(None, false);
                }
            });
        }
    }

    fn undo(&self) {
        for (used, log) in self.queues.iter().zip(&mut *self.log()) {
            let LogOfQueue { removed, added, .. } = std::mem::take(log);
            if removed.is_empty() && added.is_empty() {
                continue;
            }
            used.shared.change(|state| {
                state.free_room(added.len());
                state.give_back(removed);
            });
        }
    }

    /// Gives up the step locks.
    fn give_up_locks(&self) {
        if let Some(locks) = &self.locks {
            locks.give_up();
        }
    }

    /// Acquires the step locks again after a wait.
    fn resume(&self, used: &UsedQueue, op: QueueOp, loc: Loc) -> Result<()> {
        let stop = self.stop.as_deref();
        match self.locks.as_ref().map_or(LockResumption::Unchanged, |locks| locks.resume(stop)) {
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
        let used = &self.queues[id.index()];
        let has_waited = AtomicBool::new(false);
        let waits = || {
            has_waited.store(true, Ordering::Relaxed);
            self.give_up_locks();
        };
        let limits = WaitLimits { stop: self.stop.as_deref(), deadline: None };
        let outcome = wait(&used.shared, limits, &waits);
        let outcome = outcome.map_err(|failure| match failure {
            WaitFailure::Ended(kind) => self.stopped(used, kind, loc),
            WaitFailure::Queue(failure) => failed(used, op, failure, loc),
        })?;
        log(&mut self.log()[id.index()], outcome);
        match has_waited.into_inner() {
            true => self.resume(used, op, loc),
            false => Ok(()),
        }
    }

    fn add(&self, id: QueueId, op: QueueOp, elements: Vec<Vec<HostTensor>>, loc: Loc) -> Result<()> {
        let reserved = self.log()[id.index()].added.len();
        let n = elements.len();
        if n == 0 {
            return Ok(());
        }
        let wait = |queue: &SharedQueue, limits: WaitLimits<'_>, waits: &dyn Fn()| {
            queue.wait(QueueState::producer, |state, waiter| state.reserve(waiter, n, reserved), limits, waits)
        };
        self.wait(id, op, loc, wait, |log, ()| log.added.extend(elements))
    }

    /// Removes elements, and returns them.
    fn remove(&self, id: QueueId, op: QueueOp, request: ElementRequest, loc: Loc) -> Result<Vec<Vec<HostTensor>>> {
        let reserved = self.log()[id.index()].added.len();
        let mut elements = Vec::new();
        let wait = |queue: &SharedQueue, limits: WaitLimits<'_>, waits: &dyn Fn()| {
            queue.wait(QueueState::consumer, |state, waiter| state.take(waiter, request, reserved), limits, waits)
        };
        self.wait(id, op, loc, wait, |log, removed| {
            elements = removed.iter().map(|element| element.tensors.clone()).collect();
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

impl StepQueues for StepTransaction {
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
                let elements = batch::unstack(&operands).map_err(placed)?;
                elements.iter().try_for_each(|element| check(element))?;
                self.add(id, op, elements, loc)?;
                Ok(Vec::new())
            }
            QueueOp::Dequeue => {
                let elements = self.remove(id, op, ElementRequest { n: 1, up_to: false }, loc)?;
                Ok(elements.into_iter().flatten().collect())
            }
            QueueOp::DequeueMany(0) | QueueOp::DequeueUpTo(0) => stack(&[]),
            QueueOp::DequeueMany(n) | QueueOp::DequeueUpTo(n) => {
                let request = ElementRequest { n, up_to: matches!(op, QueueOp::DequeueUpTo(_)) };
                stack(&self.remove(id, op, request, loc)?)
            }
            QueueOp::Close => {
                self.log()[id.index()].closes = true;
                Ok(Vec::new())
            }
            QueueOp::Len => Ok(vec![HostTensor::scalar(shared.state().len() as i64)]),
        }
    }
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
    /// Begins a step. `locks` are its step locks, if it assigns variables.
    pub(crate) fn begin(
        function: &str,
        queues: &[UsedQueue],
        locks: Option<YieldingLocks>,
        stop: Option<Arc<StopFlag>>,
    ) -> RunningTransaction {
        let log = queues.iter().map(|_| LogOfQueue::default()).collect();
        RunningTransaction(Arc::new(StepTransaction {
            function: function.to_owned(),
            queues: queues.to_vec(),
            locks,
            stop,
            log: Mutex::new(log),
            must_restart: AtomicBool::new(false),
        }))
    }

    /// Returns the queues for the engine.
    pub(crate) fn queues(&self) -> Arc<dyn StepQueues> {
        self.0.clone()
    }

    /// Ends the step, whose variables are committed if it has succeeded.
    pub(crate) fn end<T>(self, outcome: Result<T>) -> EndOfStep<T> {
        if self.0.must_restart.load(Ordering::Relaxed) {
            return EndOfStep::MustRestart;
        }
        if outcome.is_ok() {
            self.0.commit();
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
