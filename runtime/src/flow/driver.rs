//! Running a partition on the devices of this process.
//!
//! The caller's thread drives all executors in turn: it hands messages over, runs short kernels itself, gives long ones to their devices, and
//! waits only if nothing else is to be done. So a loop of small operations over several devices never waits for a thread to wake up, and
//! long kernels of different devices run side by side.

use super::executor::{Action, Executor, TaskId, Token};
use super::{KernelId, PartId, Partition, Sink, Source, modelled};
use crate::device::{CpuDevice, CpuKernel, Done, Events, Outside};
use crate::place::{Topology, kernel_seconds};
use crate::program;
use crate::session::PrintTo;
use crate::timeline::{Span, Timeline};
use anabranch_dsl::interp::{Datum, StopFlag, Surroundings, stopped};
use anabranch_dsl::ir::{Node, Op, VarId};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Loc, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// What is known of the devices, if their time is modelled, and the seconds that each kernel takes.
    modelled: Option<(Topology, Vec<Vec<f64>>)>,
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
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    part: PartId,
    task: TaskId,
    kernel: KernelId,
}

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
        modelled: Option<Topology>,
        options: program::Options,
    ) -> Result<Driver> {
        let kernels = partition.parts.iter().map(|part| {
            let kernels = part.kernels.iter();
            kernels.map(|k| CpuKernel::new(k.graph.clone(), options).map(Arc::new)).collect::<Result<Vec<_>>>()
        });
        Ok(Driver {
            kernels: kernels.collect::<Result<_>>()?,
            devices: partition.parts.iter().map(|part| devices[part.device.index()].clone()).collect(),
            graph,
            modelled: modelled.map(|topology| {
                let seconds = partition.parts.iter().map(|part| {
                    let device = topology.device(part.device);
                    part.kernels.iter().map(|k| kernel_seconds(&k.graph, device)).collect()
                });
                let seconds = seconds.collect();
                (topology, seconds)
            }),
            partition,
            free: Mutex::default(),
        })
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The operations of a kernel, for people.
    pub(super) fn kernel_name(&self, part: usize, kernel: KernelId) -> String {
        let members = &self.partition.parts[part].kernels[kernel.index()].members;
        let mut names: Vec<&str> = members.iter().map(|&n| self.graph.node(n).op.name()).collect();
        names.retain(|&name| name != "constant" || members.len() == 1);
        let more = names.len().saturating_sub(4);
        let text = names[..names.len() - more].join(" ");
        if more > 0 { format!("{text} and {more} more") } else { text }
    }

    /// The last node of a kernel.
    fn last_node(&self, part: PartId, kernel: KernelId) -> Option<Node> {
        self.partition.parts[part.index()].kernels[kernel.index()].members.last().copied()
    }

    /// The place of the source that made a kernel.
    pub(super) fn kernel_loc(&self, part: usize, kernel: KernelId) -> Loc {
        self.last_node(PartId(part as u32), kernel).map_or(Loc::UNKNOWN, |n| self.graph.node(n).loc)
    }

    /// Runs a step. Nothing outside changes; `stop` ends it. A timeline is made if `timeline` is one.
    pub(crate) fn step(
        &self,
        inputs: &[HostTensor],
        vars: &[HostTensor],
        print: PrintTo,
        stop: &StopFlag,
        timeline: Option<&mut Timeline>,
    ) -> Result<Given> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut executors = kept.unwrap_or_else(|| {
            let parts = self.partition.parts.iter();
            parts.cloned().map(Executor::new).collect()
        });
        for executor in &mut executors {
            let tensor = |&source: &Source| match source {
                Source::Input(i) => (source, Datum::Tensor(inputs[i as usize].clone())),
                Source::Var(var) => (source, Datum::Tensor(vars[var.index()].clone())),
            };
            let sources = executor.part().sources.iter().map(tensor).collect();
            executor.start(sources);
        }
        let outside = Outside { print, stop: Arc::new(StopFlag::new()) };
        let mut run = Run {
            driver: self,
            outside,
            events: Arc::new(Events::new()),
            stop,
            running: Vec::new(),
            given: BTreeMap::new(),
            last: None,
            spans: timeline.is_some().then(Vec::new),
            begin: Instant::now(),
        };
        let outcome = match &self.modelled {
            Some((topology, seconds)) => {
                modelled::drive(&mut run, &mut executors, topology, seconds).map(modelled::duration)
            }
            None => run.drive(&mut executors).map(|()| run.begin.elapsed()),
        };
        if outcome.is_err() {
            // What runs is told to stop, and its memory is free when it has.
            run.outside.stop.stop(ErrorKind::Cancelled);
            while !run.running.is_empty() {
                if let Some(done) = run.events.wait(PATIENCE) {
                    run.running.retain(|work| *work != done.work);
                }
            }
            executors.iter_mut().for_each(Executor::abandon);
        }
        let spans = run.spans.take();
        let given = run.given();
        debug_assert!(executors.iter().all(|e| e.n_held() == 0), "a step leaves nothing behind");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(executors);
        }
        drop(free);
        let total = outcome?;
        if let (Some(timeline), Some(mut spans)) = (timeline, spans) {
            spans.sort_by_key(|s| s.begin);
            *timeline = Timeline { spans, total, modelled: self.modelled.is_some() };
        }
        Ok(given)
    }

    /// The error of a call that was stopped where it ran `node`.
    fn stopped(&self, kind: ErrorKind, node: Option<Node>) -> Diagnostic {
        let mut loops = Vec::new();
        let mut region = node.map(|n| self.graph.node(n).region);
        while let Some(owner) = region.and_then(|r| self.graph.region(r).owner) {
            let data = self.graph.node(owner);
            if matches!(data.op, Op::While { .. }) {
                loops.push(data.loc);
            }
            region = Some(data.region);
        }
        stopped(kind, &self.graph.name, loops, node.map_or(Loc::UNKNOWN, |n| self.graph.node(n).loc))
    }
}

/// A running step.
pub(super) struct Run<'a> {
    pub(super) driver: &'a Driver,
    outside: Outside,
    events: Arc<Events<Work>>,
    stop: &'a StopFlag,
    /// Kernels that devices have, in the order in which they were given.
    running: Vec<Work>,
    given: BTreeMap<Sink, HostTensor>,
    /// The node that was run last.
    last: Option<Node>,
    /// What was done when, if somebody wants to know.
    pub(super) spans: Option<Vec<Span>>,
    begin: Instant,
}

impl Run<'_> {
    fn drive(&mut self, executors: &mut [Executor<Datum>]) -> Result<()> {
        loop {
            let mut idle = true;
            for i in 0..executors.len() {
                for _ in 0..TURN {
                    let Some(action) = executors[i].poll() else { break };
                    idle = false;
                    self.check_stop()?;
                    self.act(executors, i, action)?;
                }
            }
            while let Some(done) = self.events.pop() {
                idle = false;
                self.done(executors, done)?;
            }
            if !idle {
                continue;
            }
            if executors.iter().all(Executor::is_finished) {
                return Ok(());
            }
            let Some(&oldest) = self.running.first() else { panic!("a step is stuck\n{}", self.driver.graph) };
            // It is what the step waits for, and so where it is if it is stopped.
            self.last = self.driver.last_node(oldest.part, oldest.kernel);
            if let Some(done) = self.events.wait(PATIENCE) {
                self.done(executors, done)?;
            }
            self.check_stop()?;
        }
    }

    /// Fails if the call is to end.
    pub(super) fn check_stop(&self) -> Result<()> {
        let Some(kind) = self.stop.get() else { return Ok(()) };
        Err(self.driver.stopped(kind, self.last))
    }

    /// Runs a kernel at once.
    pub(super) fn compute(&mut self, part: usize, kernel: KernelId, inputs: Vec<Datum>) -> Result<Vec<Datum>> {
        self.last = self.driver.last_node(PartId(part as u32), kernel);
        // What runs here is ended by the caller alone: this thread could not tell it to stop.
        let surroundings = Surroundings { print: &*self.outside.print, stop: self.stop };
        let results = self.driver.kernels[part][kernel.index()].run(inputs, surroundings);
        results.map_err(|e| self.driver.devices[part].error(e))
    }

    /// Keeps a result of the step.
    pub(super) fn give(&mut self, sink: Sink, value: Datum) {
        let Datum::Tensor(tensor) = value else { panic!("a step gives tensors") };
        self.given.insert(sink, tensor);
    }

    fn act(&mut self, executors: &mut [Executor<Datum>], i: usize, action: Action<Datum>) -> Result<()> {
        match action {
            Action::Run { task, kernel, inputs } => {
                let loaded = &self.driver.kernels[i][kernel.index()];
                if loaded.is_short() {
                    let begin = self.spans.is_some().then(|| self.begin.elapsed());
                    let results = self.compute(i, kernel, inputs)?;
                    if let Some(begin) = begin {
                        self.span(i, kernel, &executors[i].tag_of(task), begin, self.begin.elapsed());
                    }
                    executors[i].done(task, results);
                } else {
                    let work = Work { part: PartId(i as u32), task, kernel };
                    self.driver.devices[i].give(loaded, inputs, &self.outside, work, &self.events)?;
                    self.running.push(work);
                }
            }
            Action::Send { to, message } => executors[to.index()].arrived(PartId(i as u32), message),
            Action::Give { sink, value } => self.give(sink, value),
        }
        Ok(())
    }

    fn done(&mut self, executors: &mut [Executor<Datum>], done: Done<Work>) -> Result<()> {
        self.running.retain(|work| *work != done.work);
        let Work { part, task, kernel } = done.work;
        let results = done.outcome.map_err(|e| self.driver.devices[part.index()].error(e))?;
        if self.spans.is_some() {
            let since = |at: Instant| at.saturating_duration_since(self.begin);
            let tag = executors[part.index()].tag_of(task);
            self.span(part.index(), kernel, &tag, since(done.begin), since(done.end));
        }
        executors[part.index()].done(task, results);
        Ok(())
    }

    /// Notes when a kernel ran.
    fn span(&mut self, part: usize, kernel: KernelId, tag: &[u32], begin: Duration, end: Duration) {
        let span = Span {
            device: self.driver.devices[part].name(),
            name: self.driver.kernel_name(part, kernel),
            loc: self.driver.kernel_loc(part, kernel),
            iterations: tag.to_vec(),
            begin,
            end,
        };
        self.spans.as_mut().expect("somebody wants to know").push(span);
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
