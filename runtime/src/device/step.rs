//! A running step as seen by devices: the context of kernels, and the queue of events.

use super::simulated::SimulatedClock;
use super::{DeviceBuffer, cpu};
use crate::spin::spin;
use anabranch_dsl::files::{NoFiles, StepFiles};
use anabranch_dsl::format::Stream;
use anabranch_dsl::interp::{RunContext, StopFlag};
use anabranch_dsl::ir::Node;
use anabranch_dsl::memory::{ByteGauge, HeldBytes};
use anabranch_dsl::queue::{NoQueues, StepQueues};
use anabranch_dsl::{Diagnostic, ErrorKind, Loc, Result, memory};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
#[cfg(feature = "peers")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::id::id;

id! {
    /// Identifies a piece of work within a step.
    Ticket, "ticket"
}

/// The most bytes of a value that the step computes which do not count in its budget.
const UNCOUNTED: u64 = 4 << 10;

/// The bytes as which a value of another process counts, beside its elements.
const ARRIVAL_BYTES: u64 = 64;

/// A receiver of the text that functions print.
pub(crate) type PrintTo = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// The host as the operations of a step reach it: the print callback, the queues and the files; and
/// the budget of its memory, if there is one.
#[derive(Clone)]
pub(crate) struct HostSide {
    pub(crate) print: PrintTo,
    pub(crate) queues: Arc<dyn StepQueues>,
    pub(crate) files: Arc<dyn StepFiles>,
    pub(crate) budget: Option<Arc<ByteGauge>>,
}

impl HostSide {
    /// Returns the host side of a step without queues and files.
    pub(crate) fn printing(print: PrintTo) -> HostSide {
        HostSide { print, queues: Arc::new(NoQueues), files: Arc::new(NoFiles), budget: None }
    }
}

/// The outcome of work. A panic resumes where the event is handled.
pub(crate) type WorkOutcome = std::thread::Result<Result<Vec<DeviceBuffer>>>;

/// The completion of a piece of work.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) ticket: Ticket,
    pub(crate) outcome: WorkOutcome,
    /// The time at which the work began, since the start of the step. `end` is its completion.
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

#[derive(Default)]
struct Events {
    queue: VecDeque<Event>,
    /// Whether something else has happened that the next wait must not wait for.
    is_woken: bool,
    /// Wakes a thread that does other work while it waits.
    waker: Option<Waker>,
    /// The threads that sleep until an event.
    n_asleep: usize,
}

/// A running step.
pub(crate) struct Step {
    host: HostSide,
    /// The flag that cancels the step.
    pub(crate) stop: Arc<StopFlag>,
    begin: Instant,
    /// The inputs of work that waits for a thread.
    waiting: Mutex<BTreeMap<Ticket, Vec<DeviceBuffer>>>,
    /// A count that rises with each operation begun, and whether an operation is running.
    n_begun: AtomicU64,
    /// One more than the node of the operation that was begun last.
    last: AtomicU32,
    is_busy: AtomicBool,
    /// Whether a wait looks for events for a while before it sleeps.
    spins: bool,
    /// Events not handled yet.
    events: Mutex<Events>,
    more: Condvar,
    /// The clock of simulated devices, with their future events.
    clock: Option<Mutex<SimulatedClock>>,
    /// The events of opaque devices.
    #[cfg(any(test, feature = "testing"))]
    pub(super) late_events: super::opaque::LateEvents,
}

/// Counts bytes in the budget of a step.
fn hold_in(budget: &Arc<ByteGauge>, bytes: u64) -> Result<HeldBytes> {
    budget.hold(bytes).ok_or_else(|| {
        let message = format!("{bytes} bytes more cannot be used: {}", usage(budget.held(), budget.limit()));
        Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted).help(
            "use smaller values, let fewer calls or iterations run at once, or raise the limit where the peer is \
             started: `--step-memory`",
        )
    })
}

/// Says how much of a budget is used.
fn usage(held: u64, limit: u64) -> String {
    format!("the steps of the session use {held} bytes at this peer, and at most {limit} may be")
}

impl Step {
    /// Creates a step. `spins` says whether it waits for other processes, whose answers come soon.
    pub(crate) fn new(host: HostSide, stop: Arc<StopFlag>, simulated: bool, spins: bool) -> Arc<Step> {
        let clock = simulated.then(Mutex::default);
        Arc::new(Step {
            host,
            stop,
            begin: Instant::now(),
            n_begun: AtomicU64::new(0),
            last: AtomicU32::new(0),
            is_busy: AtomicBool::new(true),
            spins,
            waiting: Mutex::default(),
            events: Mutex::default(),
            more: Condvar::new(),
            clock,
            #[cfg(any(test, feature = "testing"))]
            late_events: Default::default(),
        })
    }

    /// Returns the host side of a run for kernels of this step.
    pub(crate) fn run_context(&self) -> RunContext<'_> {
        let HostSide { print, queues, files, .. } = &self.host;
        RunContext { print: &**print, queues: &**queues, files: &**files, stop: &self.stop, fusion: None }
    }

    /// Returns the time since the step began.
    pub(crate) fn now(&self) -> Duration {
        self.clock().map_or_else(|| self.begin.elapsed(), |clock| clock.now())
    }

    /// Returns the clock of a step on simulated devices.
    pub(super) fn clock(&self) -> Option<MutexGuard<'_, SimulatedClock>> {
        self.clock.as_ref().map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Ticket, Vec<DeviceBuffer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers work that waits for a thread, with its inputs.
    pub(crate) fn wait_for_thread(&self, ticket: Ticket, inputs: Vec<DeviceBuffer>) {
        self.waiting().insert(ticket, inputs);
    }

    /// Returns the inputs of work that now has a thread, or `None` if it was withdrawn.
    pub(crate) fn begin(&self, ticket: Ticket) -> Option<Vec<DeviceBuffer>> {
        self.waiting().remove(&ticket)
    }

    /// Withdraws all work that has no thread yet and frees its inputs. Withdrawn work has no event,
    /// because the thread may be busy with another step for arbitrarily long.
    pub(crate) fn withdraw(&self) -> impl Iterator<Item = Ticket> + use<> {
        std::mem::take(&mut *self.waiting()).into_keys()
    }

    /// Ends the wait of an operation for a queue, because something has failed. The caller has
    /// reported the failure, or will report it as the event of a pending operation.
    pub(crate) fn interrupt_waits(&self) {
        self.host.queues.interrupt();
    }

    /// Returns whether the error of the last operation is that of a wait that was
    /// [interrupted](Self::interrupt_waits), and not the reason for which the step fails.
    pub(crate) fn take_interruption(&self) -> bool {
        self.host.queues.take_interruption()
    }

    /// Records the completion of work.
    pub(crate) fn complete(&self, event: Event) {
        if !matches!(event.outcome, Ok(Ok(_))) {
            // The event is still pending, so the step will hear of it.
            self.interrupt_waits();
        }
        self.happened(|events| events.queue.push_back(event));
    }

    /// Changes the events, and wakes whoever waits for them.
    fn happened(&self, change: impl FnOnce(&mut Events)) {
        let mut events = self.events();
        change(&mut events);
        let waker = events.waker.take();
        // To notify nobody costs a system call.
        let is_awaited = events.n_asleep > 0;
        drop(events);
        if is_awaited {
            self.more.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Runs a kernel, whose memory counts in the budget of the step, if there is one.
    pub(crate) fn within_budget<R>(&self, run: impl FnOnce() -> Result<R>) -> Result<R> {
        let Some(budget) = &self.host.budget else { return memory::within(None, run) };
        memory::within(Some(budget.clone()), || {
            // Growth may have been refused before, and then have succeeded with less.
            budget.take_refusal();
            run().map_err(|error| match budget.take_refusal() {
                Some(held) if error.kind == ErrorKind::ResourceExhausted => {
                    error.at(Loc::UNKNOWN, format!("{} (`--step-memory`)", usage(held, budget.limit())))
                }
                _ => error,
            })
        })
    }

    /// Counts bytes that the step uses from now on, if it has a budget. A few do not count.
    ///
    /// # Errors
    /// Fails if the budget would be exceeded.
    pub(crate) fn hold(&self, bytes: impl FnOnce() -> u64) -> Result<Option<HeldBytes>> {
        let Some(budget) = &self.host.budget else { return Ok(None) };
        let bytes = bytes();
        if bytes <= UNCOUNTED {
            return Ok(None);
        }
        hold_in(budget, bytes).map(Some)
    }

    /// Counts the bytes of a value that the step uses from now on.
    ///
    /// # Errors
    /// Fails if the budget would be exceeded.
    pub(crate) fn hold_value(&self, value: &mut DeviceBuffer) -> Result<()> {
        if self.host.budget.is_some() {
            value.hold(None);
            value.hold(self.hold(|| value.bytes_to_hold())?);
        }
        Ok(())
    }

    /// Counts the bytes of a value of another process, however few they are: the process decides
    /// how many of them wait.
    ///
    /// # Errors
    /// Fails if the budget would be exceeded.
    pub(crate) fn hold_arrival(&self, value: &mut DeviceBuffer) -> Result<()> {
        if let Some(budget) = &self.host.budget {
            value.hold(None);
            value.hold(Some(hold_in(budget, value.bytes_to_hold() + ARRIVAL_BYTES)?));
        }
        Ok(())
    }

    /// Counts an operation.
    pub(crate) fn progressed(&self) {
        self.n_begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the node of the operation that was begun last.
    pub(crate) fn begun(&self, node: Option<Node>) {
        if let Some(node) = node {
            self.last.store(node.index() as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Sets whether an operation is running. Otherwise the step waits for other processes.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Returns the number of operations begun, whether an operation is running, and the node of the
    /// operation that was begun last.
    #[cfg(feature = "peers")]
    pub(crate) fn progress(&self) -> (u64, bool, Option<u32>) {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1);
        (self.n_begun.load(Ordering::Relaxed), self.is_busy.load(Ordering::Relaxed), last)
    }

    /// Ends the current or the next wait, without an event.
    pub(crate) fn wake(&self) {
        self.happened(|events| events.is_woken = true);
    }

    /// Returns whether the step has a simulated clock.
    pub(crate) fn is_simulated(&self) -> bool {
        self.clock.is_some()
    }

    /// Returns the next event, or `None` if something else has happened, for a thread that does
    /// other work while it waits. The step must not be simulated.
    #[cfg(feature = "peers")]
    pub(crate) fn poll_event(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        let mut events = self.events();
        if events.queue.is_empty() && !events.is_woken {
            events.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        events.is_woken = false;
        Poll::Ready(events.queue.pop_front())
    }

    /// Prints text.
    pub(crate) fn print(&self, stream: Stream, text: &str) {
        (self.host.print)(stream, text);
    }

    /// Returns the next event, if there is one. Events of a simulated clock occur only in
    /// [`wait`](Self::wait).
    pub(crate) fn event(&self) -> Option<Event> {
        self.events().queue.pop_front()
    }

    /// Waits for the next event for at most the given time. A simulated clock advances to its next
    /// event immediately.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Event> {
        if let Some(mut clock) = self.clock() {
            return clock.next();
        }
        while cpu::run_queued_task() {
            if let Some(event) = self.event() {
                return Some(event);
            }
        }
        #[cfg(any(test, feature = "testing"))]
        if let Some(event) = self.late_events.take() {
            return Some(event);
        }
        if self.spins {
            let happened = |events: &Events| !events.queue.is_empty() || events.is_woken;
            spin(|| happened(&self.events()).then_some(()));
        }
        let is_idle = |events: &mut Events| events.queue.is_empty() && !events.is_woken;
        let mut events = self.events();
        events.n_asleep += 1;
        let wait = self.more.wait_timeout_while(events, at_most, is_idle);
        let mut events = wait.unwrap_or_else(PoisonError::into_inner).0;
        events.n_asleep -= 1;
        events.is_woken = false;
        events.queue.pop_front()
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("begin", &self.begin).finish_non_exhaustive()
    }
}
