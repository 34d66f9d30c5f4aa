//! Running a partition on the devices of this process.
//!
//! The caller's thread drives all executors in turn: it hands messages over, runs short kernels itself, gives long ones to their devices, and
//! waits only if nothing else is to be done. So a loop of small operations over several devices never waits for a thread to wake up, and
//! long kernels of different devices run side by side.

use super::executor::{Action, Executor, TaskId, Token};
use super::{PartId, Partition, Sink, Source};
use crate::device::{CpuDevice, CpuKernel, Events, Outside};
use crate::program;
use anabranch_dsl::interp::{Datum, StopFlag, stopped};
use anabranch_dsl::ir::{Node, Op, VarId};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Loc, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

impl Token for Datum {
    fn truth(&self) -> bool {
        self.as_tensor().expect("a predicate is a tensor").data::<bool>()[0]
    }
}

/// A partition with the kernels of its parts, and executors for steps.
#[derive(Debug)]
pub(crate) struct Driver {
    graph: Graph,
    partition: Partition,
    kernels: Vec<Vec<Arc<CpuKernel>>>,
    /// The device of each part.
    devices: Vec<Arc<CpuDevice>>,
    /// Executors of steps that have ended.
    free: Mutex<Vec<Vec<Executor<Datum>>>>,
}

/// What a step gives.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) outputs: Vec<HostTensor>,
    /// New values of variables.
    pub(crate) assigned: Vec<(VarId, HostTensor)>,
}

/// Work that a device was given.
type Work = (PartId, TaskId);

/// How many things an executor does before it is the next one's turn.
const TURN: usize = 64;

/// How long to wait for a device before looking whether the call is to stop.
const PATIENCE: Duration = Duration::from_millis(2);

/// Executors that are kept.
const MAX_FREE: usize = 16;

impl Driver {
    /// Compiles the kernels of a partition of a graph for its devices.
    pub(crate) fn new(
        graph: Graph,
        partition: Partition,
        devices: &[Arc<CpuDevice>],
        options: program::Options,
    ) -> Result<Driver> {
        let kernels = partition.parts.iter().map(|part| {
            let kernels = part.kernels.iter();
            kernels.map(|k| CpuKernel::new(k.graph.clone(), options).map(Arc::new)).collect::<Result<Vec<_>>>()
        });
        Ok(Driver {
            kernels: kernels.collect::<Result<_>>()?,
            devices: partition.parts.iter().map(|part| devices[part.device as usize].clone()).collect(),
            graph,
            partition,
            free: Mutex::default(),
        })
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Runs a step. Nothing outside changes; `stop` ends it.
    pub(crate) fn step(
        &self,
        inputs: &[HostTensor],
        vars: &[HostTensor],
        print: Arc<dyn Fn(anabranch_dsl::format::Stream, &str) + Send + Sync>,
        stop: &StopFlag,
    ) -> Result<Given> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut executors = kept.unwrap_or_else(|| {
            let parts = self.partition.parts.iter();
            parts.cloned().map(Executor::new).collect()
        });
        for executor in &mut executors {
            executor.start(self.sources(executor, inputs, vars));
        }
        let outside = Outside { print, stop: Arc::new(StopFlag::new()) };
        let events = Arc::new(Events::new());
        let mut run = Run { driver: self, outside, events, stop, running: 0, given: BTreeMap::new(), last: None };
        let outcome = run.drive(&mut executors);
        if outcome.is_err() {
            // What runs is told to stop, and its memory is free when it has.
            run.outside.stop.stop(ErrorKind::Cancelled);
            while run.running > 0 {
                run.running -= u32::from(run.events.wait(PATIENCE).is_some());
            }
        }
        outcome?;
        let given = run.given();
        debug_assert!(executors.iter().all(|e| e.n_held() == 0), "a step leaves nothing behind");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(executors);
        }
        Ok(given)
    }

    fn sources(
        &self,
        executor: &Executor<Datum>,
        inputs: &[HostTensor],
        vars: &[HostTensor],
    ) -> HashMap<Source, Datum> {
        let sources = executor.part().nodes.iter().filter_map(|node| {
            let super::FlowOp::Source(source) = node.op else { return None };
            let tensor = match source {
                Source::Input(i) => &inputs[i as usize],
                Source::Var(var) => &vars[var.index()],
            };
            Some((source, Datum::Tensor(tensor.clone())))
        });
        sources.collect()
    }

    /// The error of a call that was stopped where it ran `node`.
    fn stopped(&self, kind: ErrorKind, node: Option<Node>) -> Diagnostic {
        let mut loops = Vec::new();
        let mut region = node.map(|n| self.graph.node(n).region);
        while let Some(owner) = region.and_then(|r| self.graph.region(r).owner) {
            let data = self.graph.node(owner);
            if matches!(data.op, Op::While) {
                loops.push(data.loc);
            }
            region = Some(data.region);
        }
        stopped(kind, &self.graph.name, loops, node.map_or(Loc::UNKNOWN, |n| self.graph.node(n).loc))
    }
}

/// A running step.
struct Run<'a> {
    driver: &'a Driver,
    outside: Outside,
    events: Arc<Events<Work>>,
    stop: &'a StopFlag,
    /// Kernels that devices have.
    running: u32,
    given: BTreeMap<Sink, HostTensor>,
    /// The node that was run last.
    last: Option<Node>,
}

impl Run<'_> {
    fn drive(&mut self, executors: &mut [Executor<Datum>]) -> Result<()> {
        loop {
            let mut idle = true;
            for i in 0..executors.len() {
                for _ in 0..TURN {
                    let Some(action) = executors[i].poll() else { break };
                    idle = false;
                    if let Some(kind) = self.stop.get() {
                        return Err(self.driver.stopped(kind, self.last));
                    }
                    self.act(executors, i, action)?;
                }
            }
            while let Some((work, outcome)) = self.events.pop() {
                idle = false;
                self.done(executors, work, outcome)?;
            }
            if !idle {
                continue;
            }
            if executors.iter().all(Executor::is_finished) {
                return Ok(());
            }
            assert!(self.running > 0, "a step is stuck\n{}", self.driver.graph);
            if let Some((work, outcome)) = self.events.wait(PATIENCE) {
                self.done(executors, work, outcome)?;
            }
            if let Some(kind) = self.stop.get() {
                return Err(self.driver.stopped(kind, self.last));
            }
        }
    }

    fn act(&mut self, executors: &mut [Executor<Datum>], i: usize, action: Action<Datum>) -> Result<()> {
        match action {
            Action::Run { task, kernel, inputs } => {
                self.last = self.driver.partition.parts[i].kernels[kernel.index()].members.last().copied();
                let kernel = &self.driver.kernels[i][kernel.index()];
                if kernel.is_short() {
                    let results = kernel.run(inputs, &self.outside)?;
                    executors[i].done(task, results);
                } else {
                    let work = (PartId(i as u32), task);
                    self.driver.devices[i].give(kernel, inputs, &self.outside, work, &self.events)?;
                    self.running += 1;
                }
            }
            Action::Send { to, message } => executors[to.index()].arrived(PartId(i as u32), message),
            Action::Give { sink, value } => {
                let Datum::Tensor(tensor) = value else { panic!("a step gives tensors") };
                self.given.insert(sink, tensor);
            }
        }
        Ok(())
    }

    fn done(&mut self, executors: &mut [Executor<Datum>], work: Work, outcome: Result<Vec<Datum>>) -> Result<()> {
        self.running -= 1;
        let (part, task) = work;
        executors[part.index()].done(task, outcome?);
        Ok(())
    }

    fn given(self) -> Given {
        let mut given = Given::default();
        for (sink, tensor) in self.given {
            match sink {
                Sink::Output(_) => given.outputs.push(tensor),
                Sink::Assign(var) => given.assigned.push((var, tensor)),
            }
        }
        given
    }
}
