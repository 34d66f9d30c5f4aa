//! Which thread drives a net.
//!
//! A net has a thread of its own, which runs its tasks. A thread that waits for an answer of
//! another process can run them in the meantime: what arrives then reaches it without a switch
//! between threads, which takes as long as a short round trip.
//!
//! Invariants:
//!
//! - D1. One thread drives at a time, as the runtime ensures. While a net is *lent*, its own thread
//!   leaves the driving to others.
//! - D2. A net that is lent is driven again by its own thread after [`IDLE`] without another
//!   driver, or as soon as it is given back. So a net is never without a driver for longer.
//! - D3. A thread borrows the net only if it waits often, since to take over costs more than one
//!   switch.

use super::link::lock;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

/// The time without waits after which the own thread drives again.
const IDLE: Duration = Duration::from_millis(1);

/// The runtime of a net, which several threads can drive.
#[derive(Debug)]
pub(super) struct SharedRuntime {
    runtime: Runtime,
    lending: Mutex<Lending>,
    /// Signals that the own thread may have to drive again.
    changed: Condvar,
    /// Asks the own thread to let others drive.
    asked: Notify,
}

#[derive(Debug, Default)]
struct Lending {
    is_lent: bool,
    is_closed: bool,
    /// The threads that drive or wait for their turn.
    n_drivers: usize,
    /// The end of the last wait of another thread.
    last_wait: Option<Instant>,
}

impl Lending {
    /// Returns whether another thread has waited a short time ago.
    fn is_recent(&self) -> bool {
        self.last_wait.is_some_and(|last| last.elapsed() < IDLE)
    }
}

impl SharedRuntime {
    pub(super) fn new(runtime: Runtime) -> Arc<SharedRuntime> {
        Arc::new(SharedRuntime { runtime, lending: Mutex::default(), changed: Condvar::new(), asked: Notify::new() })
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs the net on its own thread until `main` ends, except while it is lent.
    pub(super) fn run(&self, main: impl Future<Output = ()>) {
        let mut main = pin!(main);
        loop {
            let mut asked = pin!(self.asked.notified());
            let has_ended = self.runtime.block_on(std::future::poll_fn(|context| {
                if main.as_mut().poll(context).is_ready() {
                    return Poll::Ready(true);
                }
                asked.as_mut().poll(context).map(|()| false)
            }));
            if has_ended {
                break;
            }
            self.wait_until_unused();
        }
        self.close();
        let lending = lock(&self.lending);
        drop(self.changed.wait_while(lending, |lending| lending.n_drivers > 0).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until no other thread has driven for a while.
    fn wait_until_unused(&self) {
        let mut lending = lock(&self.lending);
        while !lending.is_closed && (lending.n_drivers > 0 || lending.is_recent()) {
            lending = self.changed.wait_timeout(lending, IDLE).unwrap_or_else(PoisonError::into_inner).0;
        }
        lending.is_lent = false;
    }

    /// Ends the lending for good.
    pub(super) fn close(&self) {
        lock(&self.lending).is_closed = true;
        self.changed.notify_all();
    }

    /// Lets the own thread drive again, because this thread waits in another way.
    pub(super) fn give_back(&self) {
        let mut lending = lock(&self.lending);
        if lending.is_lent {
            lending.last_wait = None;
            drop(lending);
            self.changed.notify_all();
        }
    }

    /// Drives the net until `poll` is ready, or for the given time. Returns `None` if this thread
    /// cannot drive, or should not: it then waits in another way.
    pub(super) fn drive<T>(
        &self,
        poll: impl FnMut(&mut Context<'_>) -> Poll<Option<T>>,
        at_most: Duration,
    ) -> Option<Option<T>> {
        // A thread of another runtime, whose tasks would wait.
        if Handle::try_current().is_ok() || !self.borrow() {
            return None;
        }
        let driver = DrivingThread(self);
        let outcome = self.runtime.block_on(async { tokio::time::timeout(at_most, std::future::poll_fn(poll)).await });
        drop(driver);
        Some(outcome.unwrap_or(None))
    }

    /// Notes that a thread has waited in another way, until something happened. If it soon waits
    /// again, it drives.
    pub(super) fn waited(&self) {
        let mut lending = lock(&self.lending);
        if !lending.is_lent {
            lending.last_wait = Some(Instant::now());
        }
    }

    /// Returns whether this thread may drive.
    fn borrow(&self) -> bool {
        let mut lending = lock(&self.lending);
        let is_frequent = lending.is_recent();
        lending.last_wait = Some(Instant::now());
        if lending.is_closed || !lending.is_lent && !is_frequent {
            return false;
        }
        if !lending.is_lent {
            lending.is_lent = true;
            self.asked.notify_one();
        }
        lending.n_drivers += 1;
        true
    }
}

/// A thread that drives.
struct DrivingThread<'a>(&'a SharedRuntime);

impl Drop for DrivingThread<'_> {
    fn drop(&mut self) {
        let mut lending = lock(&self.0.lending);
        lending.n_drivers -= 1;
        lending.last_wait = Some(Instant::now());
        if lending.is_closed {
            self.0.changed.notify_all();
        }
    }
}
