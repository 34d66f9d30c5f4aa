//! Ending calls: deadlines, and handles that cancel from another thread.
//!
//! Each call that can be ended has a flag, which the running plan polls. A handle sets the flags of
//! its calls. One thread of the process, started by the first deadline, sets those whose deadline
//! has passed. So a loop polls one byte, however its call may be ended.

use crate::device::no_threads;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::{ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Options of [`Function::call_with`](crate::Function::call_with): the ways to end a call early.
///
/// ```
/// use anabranch::{CallOptions, CancelHandle};
/// use std::time::Duration;
///
/// let cancel = CancelHandle::new();
/// let options = CallOptions::new().timeout(Duration::from_secs(2)).cancelled_by(&cancel);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CallOptions {
    timeout: Option<Duration>,
    cancel: Option<CancelHandle>,
}

impl CallOptions {
    /// Creates options of a call that only ends by itself.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    /// Ends the call after this duration, with an error of the kind
    /// [`ErrorKind::DeadlineExceeded`].
    pub fn timeout(self, duration: Duration) -> CallOptions {
        CallOptions { timeout: Some(duration), ..self }
    }

    /// Ends the call when the handle cancels, with an error of the kind [`ErrorKind::Cancelled`].
    pub fn cancelled_by(self, handle: &CancelHandle) -> CallOptions {
        CallOptions { cancel: Some(handle.clone()), ..self }
    }

    /// Starts a call.
    pub(crate) fn begin(&self) -> Result<RunningCall> {
        let flag = Arc::new(StopFlag::new());
        if let Some(handle) = &self.cancel {
            handle.watch(&flag);
        }
        // A deadline that is too late to represent is none.
        let at = self.timeout.and_then(|d| Instant::now().checked_add(d));
        let deadline = at.map(|at| Deadline::set(at, &flag)).transpose()?;
        Ok(RunningCall { flag, _deadline: deadline })
    }
}

/// A call that may be ended early.
pub(crate) struct RunningCall {
    pub(crate) flag: Arc<StopFlag>,
    _deadline: Option<Deadline>,
}

/// A handle that ends calls from any thread. A clone is another handle of the same calls.
///
/// ```
/// use anabranch::{ErrorKind, prelude::*};
/// use anabranch::{CallOptions, CancelHandle, Session};
///
/// let session = Session::new()?;
/// let double = session.function(|x: Tensor| x * 2.0)?;
/// let cancel = CancelHandle::new();
/// let options = CallOptions::new().cancelled_by(&cancel);
/// assert_eq!(double.call_with(&options, 3.0)?, 6.0);
/// // From here on, on this thread or another one, running and later calls end.
/// cancel.cancel();
/// assert_eq!(double.call_with(&options, 3.0).unwrap_err().kind, ErrorKind::Cancelled);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    cancelled: bool,
    calls: Vec<Weak<StopFlag>>,
}

impl CancelHandle {
    /// Creates a handle without calls.
    pub fn new() -> CancelHandle {
        CancelHandle::default()
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the calls that have this handle, both running calls and later calls.
    pub fn cancel(&self) {
        let mut watched = self.watched();
        watched.cancelled = true;
        for flag in watched.calls.drain(..).filter_map(|flag| flag.upgrade()) {
            flag.stop(ErrorKind::Cancelled);
        }
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.watched().cancelled
    }

    fn watch(&self, flag: &Arc<StopFlag>) {
        let mut watched = self.watched();
        if watched.cancelled {
            flag.stop(ErrorKind::Cancelled);
            return;
        }
        watched.calls.retain(|flag| flag.strong_count() > 0);
        watched.calls.push(Arc::downgrade(flag));
    }
}

/// The deadlines of all running calls, the next deadline first.
#[derive(Default)]
struct Deadlines {
    deadlines: BTreeMap<(Instant, u64), Weak<StopFlag>>,
    next_id: u64,
    runs: bool,
}

static CLOCK: Mutex<Deadlines> = Mutex::new(Deadlines { deadlines: BTreeMap::new(), next_id: 0, runs: false });
static CHANGED: Condvar = Condvar::new();

fn clock() -> MutexGuard<'static, Deadlines> {
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deadline of a call, until it is dropped.
struct Deadline(Instant, u64);

impl Deadline {
    fn set(at: Instant, flag: &Arc<StopFlag>) -> Result<Deadline> {
        let mut clock = clock();
        if !clock.runs {
            let thread = std::thread::Builder::new().name("anabranch-deadlines".to_owned()).spawn(watch_the_clock);
            thread.map_err(|e| no_threads("the thread that watches deadlines", e))?;
            clock.runs = true;
        }
        let id = clock.next_id;
        clock.next_id += 1;
        clock.deadlines.insert((at, id), Arc::downgrade(flag));
        CHANGED.notify_one();
        Ok(Deadline(at, id))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        clock().deadlines.remove(&(self.0, self.1));
    }
}

/// Sets the flag of each call whose deadline has passed, as long as the process runs.
fn watch_the_clock() {
    let mut clock = clock();
    loop {
        let Some(((at, _), _)) = clock.deadlines.first_key_value() else {
            clock = CHANGED.wait(clock).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            clock = CHANGED.wait_timeout(clock, left).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        if let Some((_, flag)) = clock.deadlines.pop_first()
            && let Some(flag) = flag.upgrade()
        {
            flag.stop(ErrorKind::DeadlineExceeded);
        }
    }
}
