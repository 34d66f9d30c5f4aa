//! A running step, as devices see it: what kernels meet outside of their graphs, and where events go.

use super::modelled::Clock;
use super::{Buffer, cpu};
use crate::session::PrintTo;
use anabranch_dsl::Result;
use anabranch_dsl::interp::{StopFlag, Surroundings};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::id::id;

id! {
    /// What tells one piece of work of a step from the others.
    Ticket, "ticket"
}

/// How work ended: by a panic at worst, which goes on where the event is looked at.
pub(crate) type Outcome = std::thread::Result<Result<Vec<Buffer>>>;

/// Work is complete.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) ticket: Ticket,
    pub(crate) outcome: Outcome,
    /// When the work was begun and when it was over, from the start of the step.
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

/// A running step.
pub(crate) struct Step {
    print: PrintTo,
    /// Ends the step.
    pub(crate) stop: Arc<StopFlag>,
    begin: Instant,
    /// The inputs of work that waits for a thread.
    waiting: Mutex<BTreeMap<Ticket, Vec<Buffer>>>,
    /// Events at which nobody has looked yet.
    events: Mutex<VecDeque<Event>>,
    more: Condvar,
    /// The clock of devices whose time is modelled, and the events that come then.
    clock: Option<Mutex<Clock>>,
}

impl Step {
    pub(crate) fn new(print: PrintTo, stop: Arc<StopFlag>, modelled: bool) -> Arc<Step> {
        let clock = modelled.then(Mutex::default);
        Arc::new(Step {
            print,
            stop,
            begin: Instant::now(),
            waiting: Mutex::default(),
            events: Mutex::default(),
            more: Condvar::new(),
            clock,
        })
    }

    /// What kernels of the step meet.
    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { print: &*self.print, stop: &self.stop }
    }

    /// The time since the step began.
    pub(crate) fn now(&self) -> Duration {
        self.clock().map_or_else(|| self.begin.elapsed(), |clock| clock.now())
    }

    /// The clock of a step on modelled devices.
    pub(super) fn clock(&self) -> Option<MutexGuard<'_, Clock>> {
        self.clock.as_ref().map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Ticket, Vec<Buffer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work waits for a thread, with these inputs.
    pub(super) fn wait_for_thread(&self, ticket: Ticket, inputs: Vec<Buffer>) {
        self.waiting().insert(ticket, inputs);
    }

    /// The inputs of work that has a thread now; none if it is not to be done any more.
    pub(super) fn begin(&self, ticket: Ticket) -> Option<Vec<Buffer>> {
        self.waiting().remove(&ticket)
    }

    /// Takes back the work that has no thread yet, and frees what it was given: it has no event. The thread may be busy with another step for as long as it likes.
    pub(crate) fn withdraw(&self) -> impl Iterator<Item = Ticket> + use<> {
        std::mem::take(&mut *self.waiting()).into_keys()
    }

    /// Work is complete. If it failed, the rest of the step ends soon.
    pub(super) fn complete(&self, event: Event) {
        let failed = !matches!(event.outcome, Ok(Ok(_)));
        self.events().push_back(event);
        self.more.notify_one();
        if failed {
            // Its event is there already: who sees the flag finds the reason.
            self.stop.stop(anabranch_dsl::ErrorKind::Cancelled);
        }
    }

    /// The next event, if there is one. Events of a modelled clock are not there before somebody waits for them.
    pub(crate) fn event(&self) -> Option<Event> {
        self.events().pop_front()
    }

    /// The next event, if there is one within the time. A modelled clock goes on to its next event at once.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Event> {
        if let Some(mut clock) = self.clock() {
            return clock.next();
        }
        while cpu::lend_this_thread() {
            if let Some(event) = self.event() {
                return Some(event);
            }
        }
        let wait = self.more.wait_timeout_while(self.events(), at_most, |events| events.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("begin", &self.begin).finish_non_exhaustive()
    }
}
