//! The queues of a session.
//!
//! ```text
//! step ──StepQueues──▶ StepTransaction ─┐
//!                                       ├─▶ SharedQueue ──▶ QueueState: a state machine
//! host ────────────▶ HostQueue ─────────┘    lock, waits
//! ```
//!
//! A step sees queues through a `StepTransaction`, which knows what the step has removed and
//! added. When the step has committed its variables, the elements that it added enter the queues.
//! When it fails, the elements that it removed return. See [`Queue`](anabranch_dsl::Queue) for what
//! users can rely on.
//!
//! Invariants, besides those of [`content`]:
//!
//! - A step that waits for a queue holds no step lock of a variable and no thread but that of its
//!   call. One that begins with the removal of elements waits before it begins. In any other wait
//!   its other devices get no work.
//! - No lock of a queue is held while a lock of a variable is acquired, or another queue is used. A
//!   snapshot locks several, in the order of their identities.
//! - All waits end when the session ends. Those of a step also end when it is stopped, and when an
//!   operation on another device or another process of the step has failed.

mod batch;
mod content;
mod feed;
mod host;
mod saved;
#[cfg(test)]
mod tests;
mod transaction;

pub use feed::QueueFeed;
pub use host::{HostQueue, QueueIter};
pub use saved::{QueueColumn, QueueContent};
pub(crate) use transaction::{EndOfStep, FirstRemoval, RunningTransaction, UsedQueue};

use crate::device::variables::CommitGate;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::var::DropWatcher;
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use content::{QueueFailure, QueueState, Waiter};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

/// The content of one queue in one session.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    id: u64,
    name: String,
    capacity: usize,
    state: Mutex<QueueState>,
    /// Signals each thread that waits, and keeps `state` locked meanwhile. Locked after `state`.
    signals: Mutex<HashMap<Waiter, Arc<Condvar>>>,
}

/// The time after which a waiting step looks again whether it was stopped.
const PATIENCE: Duration = Duration::from_millis(1);

/// The limits of a wait: it ends when a flag is set or the deadline has passed.
#[derive(Clone, Copy, Default)]
struct WaitLimits<'a> {
    stop: Option<&'a StopFlag>,
    deadline: Option<Instant>,
    /// Set when another part of the step has failed. Who sets it [looks](SharedQueue::look_again)
    /// for those that wait.
    interruption: Option<&'a AtomicBool>,
}

impl WaitLimits<'_> {
    /// Returns the reason to end the wait now.
    fn ended(&self) -> Option<WaitFailure> {
        let is_late = || self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let is_interrupted = || self.interruption.is_some_and(|flag| flag.load(Ordering::Relaxed));
        let ended = self.stop.and_then(StopFlag::get).or_else(|| is_late().then_some(ErrorKind::DeadlineExceeded));
        ended.map(WaitFailure::Ended).or_else(|| is_interrupted().then_some(WaitFailure::Interrupted))
    }

    /// Returns the time after which to look again.
    fn next_look(&self) -> Option<Duration> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match (self.stop.is_some(), left) {
            (true, Some(left)) => Some(left.min(PATIENCE)),
            (true, None) => Some(PATIENCE),
            (false, left) => left,
        }
    }
}

/// The end of a wait without success.
enum WaitFailure {
    Queue(QueueFailure),
    Ended(ErrorKind),
    /// Another part of the step has failed.
    Interrupted,
}

impl SharedQueue {
    fn new(queue: &AnyQueue) -> SharedQueue {
        SharedQueue {
            id: queue.id(),
            name: queue.name().to_owned(),
            capacity: queue.capacity(),
            state: Mutex::new(QueueState::new(queue)),
            signals: Mutex::new(HashMap::new()),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the content, and wakes those whom it may serve.
    fn change<R>(&self, change: impl FnOnce(&mut QueueState) -> R) -> R {
        let mut state = self.state();
        let before = state.end();
        let outcome = change(&mut state);
        match state.end() == before {
            true => self.wake(&state),
            // Waits anywhere in the lines end.
            false => self.signals().values().for_each(|signal| signal.notify_one()),
        }
        outcome
    }

    /// Wakes all that wait, so that they look at their limits. What was set before is seen.
    fn look_again(&self) {
        let _state = self.state();
        self.signals().values().for_each(|signal| signal.notify_one());
    }

    fn signals(&self) -> MutexGuard<'_, HashMap<Waiter, Arc<Condvar>>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those whom a change may serve.
    fn wake(&self, state: &QueueState) {
        let signals = self.signals();
        for waiter in state.may_be_served() {
            if let Some(signal) = signals.get(&waiter) {
                signal.notify_one();
            }
        }
    }

    /// Registers a waiter and polls until it is served. `waits` is called once, before the first
    /// wait, while nothing is locked.
    fn wait<R>(
        &self,
        register: impl FnOnce(&mut QueueState) -> Waiter,
        mut poll: impl FnMut(&mut QueueState, Waiter) -> Poll<Result<R, QueueFailure>>,
        limits: WaitLimits<'_>,
        waits: impl FnOnce(),
    ) -> Result<R, WaitFailure> {
        let mut poll = |state: &mut QueueState, waiter| {
            let len = state.len();
            let outcome = poll(state, waiter);
            // A consumer may have taken a part of what it requests, which makes room.
            if outcome.is_ready() || state.len() != len {
                self.wake(state);
            }
            outcome
        };
        let mut state = self.state();
        let waiter = register(&mut state);
        if let Poll::Ready(outcome) = poll(&mut state, waiter) {
            return outcome.map_err(WaitFailure::Queue);
        }
        let signal = Arc::new(Condvar::new());
        self.signals().insert(waiter, signal.clone());
        // Those who wait for room in vain are served, now that someone needs elements.
        self.wake(&state);
        drop(state);
        waits();
        state = self.state();
        let outcome = loop {
            if let Poll::Ready(outcome) = poll(&mut state, waiter) {
                break outcome.map_err(WaitFailure::Queue);
            }
            if let Some(failure) = limits.ended() {
                state.leave(waiter);
                self.wake(&state);
                break Err(failure);
            }
            state = match limits.next_look() {
                Some(time) => signal.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                None => signal.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        };
        self.signals().remove(&waiter);
        outcome
    }

    /// Returns the error of a host operation of this name whose wait has ended.
    fn wait_failure(&self, op: &str, failure: WaitFailure) -> Diagnostic {
        match failure {
            WaitFailure::Queue(failure) => self.failure(op, failure),
            WaitFailure::Ended(kind) => {
                let message = format!("{op}: the queue `{}` did not serve it before the deadline", self.name);
                Diagnostic::new(message).of_kind(kind)
            }
            WaitFailure::Interrupted => unreachable!("only operations of steps are interrupted"),
        }
    }

    /// Returns the error of an operation of this name that the queue has not served.
    fn failure(&self, op: &str, failure: QueueFailure) -> Diagnostic {
        let SharedQueue { name, capacity, .. } = self;
        let closed = |what: String| Diagnostic::new(what).of_kind(ErrorKind::Closed);
        match failure {
            QueueFailure::TakesNone => {
                closed(format!("{op}: the queue `{name}` is closed")).help("add elements before the queue is closed")
            }
            QueueFailure::HasTooFew { n, left } => {
                closed(format!("{op}: the queue `{name}` is closed and has {left} of {n} elements"))
                    .help("use `dequeue_up_to` for the rest of a closed queue")
            }
            QueueFailure::Producer(cause) => {
                let Diagnostic { message, .. } = &*cause;
                let error = closed(format!("{op}: the queue `{name}` was closed by an error: {message}"));
                let error = cause.labels.iter().fold(error, |error, (loc, label)| error.at(*loc, label.clone()));
                match cause.help {
                    Some(help) => error.help(help),
                    None => error,
                }
            }
            QueueFailure::NeverRoom { n, reserved: 0 } => {
                Diagnostic::new(format!("{op}: {n} elements never fit in the queue `{name}` of capacity {capacity}"))
                    .help("add fewer elements at once, or create the queue with a larger capacity")
            }
            QueueFailure::NeverRoom { n, reserved } => Diagnostic::new(format!(
                "{op}: {n} elements and the {reserved} that the call has added before never fit in the queue `{name}` \
                 of capacity {capacity}"
            ))
            .help("what a call adds counts until it returns: add less in a call, or use a larger capacity"),
            QueueFailure::WaitsForItself { reserved } => Diagnostic::new(format!(
                "{op}: the queue `{name}` has too few elements but for {reserved} that the call itself has added"
            ))
            .help("what a call adds can be removed after it has returned: pass it on as a value instead"),
            QueueFailure::ClosesItself => Diagnostic::new(format!(
                "{op}: the queue `{name}` has too few elements, and the call itself closes it"
            ))
            .help("a queue is closed when the call that closes it has returned: remove elements before that, or later"),
            QueueFailure::SessionEnded => {
                let error = Diagnostic::new(format!("{op}: the session of the queue `{name}` has ended"));
                error.of_kind(ErrorKind::Cancelled)
            }
        }
    }
}

/// Returns the contents of queues at one moment.
pub(crate) fn contents<'q>(queues: impl IntoIterator<Item = &'q Arc<SharedQueue>>) -> Vec<QueueContent> {
    let queues: Vec<&SharedQueue> = queues.into_iter().map(|queue| &**queue).collect();
    // In the order of identities, and each once.
    let distinct: BTreeMap<u64, &SharedQueue> = queues.iter().map(|queue| (queue.id, *queue)).collect();
    let locked: BTreeMap<u64, _> = distinct.into_iter().map(|(id, queue)| (id, queue.state())).collect();
    queues.iter().map(|queue| locked[&queue.id].content()).collect()
}

/// Replaces the contents of queues at one moment.
///
/// # Errors
/// Changes nothing and fails if a running call has elements of one of them, or room in it: it would
/// use an element that is then in the queue again. Also fails if the session has ended, since its
/// queues stay closed.
pub(crate) fn restore(contents: Vec<(Arc<SharedQueue>, QueueContent)>) -> Result<()> {
    let distinct: BTreeMap<u64, &SharedQueue> = contents.iter().map(|(queue, _)| (queue.id, &**queue)).collect();
    let mut locked: BTreeMap<u64, _> = distinct.iter().map(|(&id, queue)| (id, queue.state())).collect();
    if let Some((id, _)) = locked.iter().find(|(_, state)| state.has_session_ended()) {
        return Err(distinct[id].failure("restore", QueueFailure::SessionEnded));
    }
    if let Some((id, _)) = locked.iter().find(|(_, state)| state.is_in_use()) {
        let name = &distinct[id].name;
        let error = Diagnostic::new(format!("the queue `{name}` is restored while a running call uses it"));
        return Err(error.help("restore before the calls on the queue begin, or after they have ended"));
    }
    for (queue, content) in &contents {
        let state = locked.get_mut(&queue.id).expect("the queue is locked");
        state.restore(content.clone());
    }
    locked.iter().for_each(|(id, state)| distinct[id].wake(state));
    Ok(())
}

/// The queues that a session has used and that still have a handle.
#[derive(Debug, Default)]
pub(crate) struct QueueStore {
    queues: Mutex<HashMap<u64, Arc<SharedQueue>>>,
    /// Whether all waits have ended, for good.
    is_closed: AtomicBool,
    gate: Arc<CommitGate>,
}

impl QueueStore {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<SharedQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the gate of all commits to queues.
    pub(crate) fn gate(&self) -> Arc<CommitGate> {
        self.gate.clone()
    }

    /// Returns the content of a queue, which is empty at first.
    pub(crate) fn get(self: &Arc<QueueStore>, queue: &AnyQueue) -> Arc<SharedQueue> {
        let new = || {
            let watcher: Weak<QueueStore> = Arc::downgrade(self);
            queue.watch(watcher);
            let shared = Arc::new(SharedQueue::new(queue));
            if self.is_closed.load(Ordering::Relaxed) {
                shared.change(QueueState::end_session);
            }
            shared
        };
        self.lock().entry(queue.id()).or_insert_with(new).clone()
    }

    /// Ends all waits. Later operations fail.
    pub(crate) fn close(&self) {
        let queues = self.lock();
        // Queues are added under the lock.
        self.is_closed.store(true, Ordering::Relaxed);
        queues.values().for_each(|queue| queue.change(QueueState::end_session));
    }
}

impl DropWatcher for QueueStore {
    fn dropped(&self, id: u64) {
        let queue = self.lock().remove(&id);
        drop(queue);
    }
}

impl Drop for QueueStore {
    fn drop(&mut self) {
        self.close();
    }
}
