//! Devices: what runs kernels.
//!
//! To a device work is *given*, and it says when that is done; nobody waits for it in between. It says so to the [`Events`] of the step, from whatever thread
//! it likes. Values belong to the device that made them. One that another device needs goes there by an explicit copy, which is work like any other: on
//! devices that share the memory of the host it costs nothing, since a value never changes.

mod cpu;
mod measure;
mod modelled;

pub(crate) use cpu::{CpuDevice, CpuKernel};
pub use modelled::Modelled;

use crate::flow;
use crate::place::{Rules, Topology};
use crate::session::PrintTo;
use anabranch_dsl::Result;
use anabranch_dsl::interp::{Datum, StopFlag};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The devices of a session, and how graphs come to them.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) topology: Topology,
    /// What computes for each of them.
    pub(crate) cpus: Vec<Arc<CpuDevice>>,
    /// Whether their time is modelled.
    pub(crate) is_modelled: bool,
    /// Which variables are where.
    pub(crate) rules: Rules,
    /// How graphs are cut.
    pub(crate) flow: flow::Options,
}

impl Devices {
    /// `n` CPU devices that share the cores of this machine, or the modelled ones if there are some. What several CPU devices can do is measured
    /// if `measure` says so.
    pub(crate) fn new(
        n: usize,
        modelled: &[Modelled],
        measure: bool,
        rules: Rules,
        flow: flow::Options,
    ) -> Result<Devices> {
        let is_modelled = !modelled.is_empty();
        let mut topology = if is_modelled { Modelled::topology(modelled)? } else { Topology::cpus(n) };
        rules.check(&topology)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / topology.devices.len()).max(1);
        if !is_modelled {
            topology.alone = cores as f64 / threads as f64;
        }
        let cpu = |d: &crate::place::DeviceInfo| Arc::new(CpuDevice::new(Some(d.name), threads));
        let cpus: Vec<_> = topology.devices.iter().map(cpu).collect();
        if measure && !is_modelled && cpus.len() > 1 {
            topology = measure::measured(&topology, &cpus[0])?;
        }
        Ok(Devices { cpus, topology, is_modelled, rules, flow })
    }

    /// Whether there is nothing to choose.
    pub(crate) fn is_one(&self) -> bool {
        self.topology.devices.len() == 1 && !self.is_modelled && !self.flow.lower_everything
    }
}

/// What kernels of a step meet outside of their graphs.
#[derive(Clone)]
pub(crate) struct Outside {
    /// Takes what is printed.
    pub(crate) print: PrintTo,
    /// Ends the step.
    pub(crate) stop: Arc<StopFlag>,
}

/// Work that is done.
#[derive(Debug)]
pub(crate) struct Done<T> {
    pub(crate) work: T,
    pub(crate) outcome: Result<Vec<Datum>>,
    /// When it began to run, and when it was done.
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

/// What devices have done and nobody has looked at yet.
#[derive(Debug)]
pub(crate) struct Events<T> {
    done: Mutex<VecDeque<Done<T>>>,
    more: Condvar,
}

impl<T> Events<T> {
    pub(crate) fn new() -> Events<T> {
        Events { done: Mutex::default(), more: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Done<T>>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work is done.
    pub(crate) fn push(&self, done: Done<T>) {
        self.queue().push_back(done);
        self.more.notify_one();
    }

    /// What is done, if there is something.
    pub(crate) fn pop(&self) -> Option<Done<T>> {
        self.queue().pop_front()
    }

    /// What is done next, if it is done within the time.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Done<T>> {
        let queue = self.queue();
        let wait = self.more.wait_timeout_while(queue, at_most, |queue| queue.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}
