//! Devices: what runs kernels.
//!
//! To a device work is *given*, and it says when that is done; nobody waits for it in between. It says so to the [`Events`] of the step, from whatever thread
//! it likes. Values belong to the device that made them. One that another device needs goes there by an explicit copy, which is work like any other: on
//! devices that share the memory of the host it costs nothing, since a value never changes.

mod cpu;

pub(crate) use cpu::{CpuDevice, CpuKernel};

use anabranch_dsl::interp::{Datum, StopFlag};
use anabranch_dsl::{Result, format::Stream};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What kernels of a step meet outside of their graphs.
#[derive(Clone)]
pub(crate) struct Outside {
    /// Takes what is printed.
    pub(crate) print: Arc<dyn Fn(Stream, &str) + Send + Sync>,
    /// Ends the step.
    pub(crate) stop: Arc<StopFlag>,
}

/// What devices have done and nobody has looked at yet.
#[derive(Debug)]
pub(crate) struct Events<T> {
    done: Mutex<VecDeque<(T, Result<Vec<Datum>>)>>,
    more: Condvar,
}

impl<T> Events<T> {
    pub(crate) fn new() -> Events<T> {
        Events { done: Mutex::default(), more: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(T, Result<Vec<Datum>>)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work is done.
    pub(crate) fn push(&self, work: T, outcome: Result<Vec<Datum>>) {
        self.queue().push_back((work, outcome));
        self.more.notify_one();
    }

    /// What is done, if there is something.
    pub(crate) fn pop(&self) -> Option<(T, Result<Vec<Datum>>)> {
        self.queue().pop_front()
    }

    /// What is done next, if it is done within the time.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<(T, Result<Vec<Datum>>)> {
        let queue = self.queue();
        let wait = self.more.wait_timeout_while(queue, at_most, |queue| queue.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}
