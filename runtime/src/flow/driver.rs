//! The driver: runs a partition on its devices.
//!
//! The caller's thread drives all executors in turn. That thread submits the actions of the
//! executors to the devices, reports completions to the executors, and blocks only if nothing else
//! is left to do. A loop of small operations over several devices therefore never waits for a
//! thread to wake up. Long kernels of different devices, and copies between them, overlap. The
//! driver knows only the [`Device`] interface. The step decides whether time is real or simulated.
//!
//! Other processes may run some of the subgraphs ([`remote`](super::remote)). Each of them has a
//! driver of the same partition, which drives the executors of its own subgraphs.

use super::executor::Executor;
use super::remote::{Mailbox, Others, Position, ProcessId, Processes};
use super::step_run::{OtherSide, StepInputs, StepRun};
#[cfg(feature = "peers")]
use super::{FlowOp, Source};
use super::{KernelId, OutputSource, Partition, SubgraphId};
#[cfg(feature = "peers")]
use crate::device::DeviceId;
use crate::device::{Device, DeviceBuffer, HostSide, LoadedKernel, Step};
use crate::guests::KeptMemory;
use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{StopFlag, stopped};
use anabranch_dsl::ir::{Node, Op, RegionData, VarId};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Loc, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A partition with its compiled kernels, and executors for steps.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) graph: Graph,
    pub(super) partition: Partition,
    pub(super) processes: Processes,
    /// The kernels of each subgraph of this process.
    pub(super) kernels: Vec<Vec<Box<dyn LoadedKernel>>>,
    /// The device of each subgraph.
    pub(super) devices: Vec<Arc<dyn Device>>,
    /// The name of each of these devices for messages, if they mention it.
    pub(super) names: Vec<Option<DeviceName>>,
    /// Idle executors of finished steps, and the bytes of their states.
    free: Mutex<Vec<(Executors, u64)>>,
    /// The memory of these states.
    kept: KeptMemory,
}

/// An executor for each subgraph of this process.
type Executors = Vec<Option<Executor<DeviceBuffer>>>;

/// Begins a step with these inputs in the other processes. Their messages go to the mailbox.
pub(crate) type Begin<'a> = &'a dyn Fn(&StepInputs, &Arc<Mailbox>) -> Result<Box<dyn Others>>;

/// The results of a step.
#[derive(Debug)]
pub(crate) struct StepResults {
    /// The outputs. The caller of the step has all of them, a participant those that it computed.
    pub(crate) outputs: Vec<Option<HostTensor>>,
    /// The new values of variables, on the devices that assigned them.
    pub(crate) assigned: Vec<(VarId, DeviceBuffer)>,
    /// The values that the step has read. Freeing large ones takes a while.
    #[cfg(feature = "peers")]
    pub(crate) inputs: StepInputs,
}

/// Maximum number of idle executor sets kept for reuse.
const MAX_FREE: usize = 16;

impl Drop for Driver {
    fn drop(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.kept.release(free.iter().map(|(_, bytes)| bytes).sum());
    }
}

impl Driver {
    /// Compiles the kernels of a partition for those of its devices that are in this process.
    pub(crate) fn new(
        graph: Graph,
        partition: Partition,
        devices: &[Arc<dyn Device>],
        processes: Processes,
        options: CompileOptions,
    ) -> Result<Driver> {
        Driver::new_while(graph, partition, devices, processes, options, &|| Ok(()))
    }

    /// Compiles like [`new`](Self::new), unless the check fails before a kernel or between the
    /// stages of its compilation.
    pub(crate) fn new_while(
        graph: Graph,
        partition: Partition,
        devices: &[Arc<dyn Device>],
        processes: Processes,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Driver> {
        let devices: Vec<Arc<dyn Device>> =
            partition.parts.iter().map(|part| devices[part.device.index()].clone()).collect();
        let kernels = partition.parts.iter().zip(&devices).map(|(part, device)| {
            let kernels = part.kernels.iter().filter(|_| processes.is_here(part.device));
            let load = |kernel: &super::KernelGraph| {
                may_go_on()?;
                device.clone().load(kernel.graph.clone(), options, may_go_on)
            };
            kernels.map(load).collect::<Result<Vec<_>>>()
        });
        let kernels = kernels.collect::<Result<_>>()?;
        let names = devices.iter().map(|device| device.name()).collect();
        let kept = KeptMemory::new(options.is_of_guest);
        Ok(Driver { kernels, devices, names, processes, graph, partition, free: Mutex::default(), kept })
    }

    /// Returns the variables that the subgraphs of this process read.
    #[cfg(feature = "peers")]
    pub(crate) fn reads(&self) -> impl Iterator<Item = VarId> {
        let here = self.partition.parts.iter().filter(|part| self.processes.is_here(part.device));
        here.flat_map(|part| &part.nodes).filter_map(|node| match node.op {
            FlowOp::Source(Source::Var(var)) => Some(var),
            _ => None,
        })
    }

    /// Returns for each edge the place of the first use of its values, between 0 and 1.
    #[cfg(feature = "peers")]
    pub(crate) fn first_uses(&self) -> Vec<f32> {
        self.partition.first_uses()
    }

    /// Returns the devices of the subgraphs of this process.
    #[cfg(feature = "peers")]
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        let parts = self.partition.parts.iter().zip(&self.devices);
        parts.filter(|(part, _)| self.processes.is_here(part.device)).map(|(_, device)| device)
    }

    /// Returns the number of inputs of the graph.
    #[cfg(feature = "peers")]
    pub(crate) fn n_inputs(&self) -> usize {
        self.graph.inputs().len()
    }

    /// Sets the names of the devices that messages mention. A participant calls its devices by the
    /// names that they have for the caller.
    #[cfg(feature = "peers")]
    pub(crate) fn with_names(mut self, name: impl Fn(DeviceId) -> DeviceName) -> Driver {
        self.names = self.partition.parts.iter().map(|part| Some(name(part.device))).collect();
        self
    }

    /// Adds the name of the device of a subgraph to an error.
    pub(super) fn error_on(&self, part: SubgraphId, error: Diagnostic) -> Diagnostic {
        match self.names[part.index()] {
            Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
            None => error,
        }
    }

    /// Returns the process that runs a subgraph.
    pub(super) fn process_of(&self, part: SubgraphId) -> ProcessId {
        self.processes.of(self.partition.parts[part.index()].device)
    }

    /// Returns the process that has an output at the end of a step.
    pub(super) fn process_of_output(&self, output: u32) -> ProcessId {
        match self.partition.outputs[output as usize] {
            OutputSource::Computed(part) => self.process_of(part),
            OutputSource::Input(_) | OutputSource::Constant(_) => ProcessId::CALLER,
        }
    }

    /// Returns the outputs of a step in this process that are not computed.
    pub(super) fn given_outputs(&self, inputs: &StepInputs) -> Vec<Option<HostTensor>> {
        let value = |source: &OutputSource| match *source {
            _ if !self.is_caller() => None,
            OutputSource::Computed(_) => None,
            OutputSource::Input(input) => inputs.inputs[input as usize].clone(),
            OutputSource::Constant(node) => match &self.graph.node(node).op {
                Op::Constant(value) => Some(value.clone()),
                op => panic!("`{}` is on no device", op.name()),
            },
        };
        self.partition.outputs.iter().map(value).collect()
    }

    /// Returns whether this process called the function.
    pub(super) fn is_caller(&self) -> bool {
        self.processes.own == ProcessId::CALLER
    }

    /// Returns whether this process runs a subgraph.
    pub(super) fn is_here(&self, part: SubgraphId) -> bool {
        self.process_of(part) == self.processes.own
    }

    /// Returns a readable list of the operations in a kernel.
    pub(super) fn kernel_name(&self, part: SubgraphId, kernel: KernelId) -> String {
        let members = self.members(part, kernel);
        let mut names: Vec<&str> = members.iter().map(|&n| self.graph.node(n).op.name()).collect();
        names.retain(|&name| name != "constant" || members.len() == 1);
        let more = names.len().saturating_sub(4);
        let text = names[..names.len() - more].join(" ");
        if more > 0 { format!("{text} and {more} more") } else { text }
    }

    /// Returns the nodes of a kernel.
    fn members(&self, part: SubgraphId, kernel: KernelId) -> &[Node] {
        &self.partition.parts[part.index()].kernels[kernel.index()].members
    }

    /// Returns the first node of a kernel. Copies of constants have no place of their own.
    pub(super) fn first_node(&self, part: SubgraphId, kernel: KernelId) -> Node {
        let members = self.members(part, kernel);
        let is_computed = |n: &&Node| !matches!(self.graph.node(**n).op, Op::Constant(_));
        *members.iter().find(is_computed).unwrap_or(&members[0])
    }

    /// Returns the node of a kernel that has failed at a location: the one there, or the construct
    /// around it.
    pub(super) fn failing_node(&self, part: SubgraphId, kernel: KernelId, loc: Option<Loc>) -> Node {
        let is_there = |n: Node| Some(self.graph.node(n).loc) == loc;
        let contains = |n: &&Node| {
            let mut found = is_there(**n);
            for &region in &self.graph.node(**n).regions {
                self.graph.visit_nodes(region, &mut |inner| found |= is_there(inner));
            }
            found
        };
        let members = self.members(part, kernel);
        *members.iter().find(contains).unwrap_or(&members[members.len() - 1])
    }

    /// Returns the last node of a kernel.
    pub(super) fn last_node(&self, part: SubgraphId, kernel: KernelId) -> Option<Node> {
        self.members(part, kernel).last().copied()
    }

    pub(super) fn device(&self, part: SubgraphId) -> &dyn Device {
        &*self.devices[part.index()]
    }

    pub(super) fn name(&self, part: SubgraphId) -> String {
        self.names[part.index()].map_or_else(|| "a device".to_owned(), |name| name.to_string())
    }

    /// Begins a step, which changes no outside state. `stop` cancels the step, and with it a step
    /// that fails [abandons](StopFlag::abandon) what it has begun. `is_timed` says whether the step
    /// records a timeline.
    ///
    /// `begin` begins the step in the other processes, if there are any.
    pub(crate) fn begin(
        self: &Arc<Driver>,
        inputs: StepInputs,
        host: HostSide,
        stop: Arc<StopFlag>,
        begin: Option<Begin<'_>>,
        is_timed: bool,
    ) -> Result<StepRun> {
        let simulated = self.devices.iter().any(|d| d.is_simulated());
        let step = Step::new(host, stop, simulated, begin.is_some());
        let others = match begin {
            None => None,
            Some(begin) => {
                let mailbox = Arc::new(Mailbox::new(step.clone()));
                let others = begin(&inputs, &mailbox)?;
                Some(OtherSide { awaited: others.awaited(), mailbox, others })
            }
        };
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let kept = kept.map(|(executors, bytes)| {
            self.kept.release(bytes);
            executors
        });
        let mut executors = kept.unwrap_or_else(|| {
            let parts = self.partition.parts.iter();
            parts.map(|part| self.processes.is_here(part.device).then(|| Executor::new(part.clone()))).collect()
        });
        executors.iter_mut().flatten().for_each(Executor::start);
        let spans = is_timed.then(Vec::new);
        Ok(StepRun::new(self.clone(), inputs, step, others, executors, spans))
    }

    /// Keeps the executors of a step that has ended.
    pub(super) fn free(&self, executors: Executors) {
        let bytes = executors.iter().flatten().map(Executor::state_bytes).sum();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE && self.kept.keep(bytes) {
            free.push((executors, bytes));
        }
    }

    /// Returns the error of a process that sent something that no correct process sends.
    pub(super) fn violation(&self, process: ProcessId, what: &str, wrong: &str) -> Diagnostic {
        let device = self.partition.parts.iter().position(|part| self.processes.of(part.device) == process);
        let from = match (process, device) {
            (_, Some(part)) => format!("the process of {}", self.name(SubgraphId(part as u32))),
            (ProcessId::CALLER, None) => "the process that called the function".to_owned(),
            (ProcessId(number), None) => format!("process {number}"),
        };
        Diagnostic::new(format!("{from} sent {what} that {wrong}"))
            .help("all processes must run the same version of anabranch; otherwise, please report this")
            .of_kind(ErrorKind::Internal)
    }

    /// Returns the position of a node in a sequential run. `tag` has the iterations of the loops
    /// around it.
    pub(super) fn position(&self, node: Node, tag: &[u64]) -> Position {
        let region = self.graph.node(node).region;
        let RegionData { nodes, owner, .. } = self.graph.region(region);
        let mut position = Position::new();
        if let Some(owner) = *owner {
            let (iteration, tag) = match (self.graph.as_while(owner), tag) {
                (Some(_), [around @ .., iteration]) => (Some(*iteration), around),
                _ => (None, tag),
            };
            position = self.position(owner, tag);
            position.extend(iteration);
            let regions = &self.graph.node(owner).regions;
            position.push(regions.iter().position(|&r| r == region).expect("an owner has its regions") as u64);
        }
        position.push(nodes.iter().position(|&n| n == node).expect("a region has its nodes") as u64);
        position
    }

    /// Returns the loops around a node, innermost first.
    fn loops_around(&self, node: Node) -> impl Iterator<Item = Node> {
        let owner = |&n: &Node| self.graph.region(self.graph.node(n).region).owner;
        std::iter::successors(owner(&node), owner).filter(|&n| self.graph.as_while(n).is_some())
    }

    /// Returns the error of a call that was stopped while running `node`.
    pub(super) fn stopped(&self, kind: ErrorKind, node: Option<Node>) -> Diagnostic {
        let loops = node.into_iter().flat_map(|n| self.loops_around(n)).map(|n| self.graph.node(n).loc);
        stopped(kind, &self.graph.name, loops, node.map_or(Loc::UNKNOWN, |n| self.graph.node(n).loc))
    }

    /// Adds the enclosing loops and the device to an error of a kernel.
    pub(super) fn kernel_error(&self, part: SubgraphId, kernel: KernelId, error: Diagnostic) -> Diagnostic {
        let node = self.last_node(part, kernel);
        let known = error.labels.iter().any(|(loc, _)| *loc != Loc::UNKNOWN);
        let error = match (error.kind, node) {
            (kind, _) if !kind.is_stop() => error,
            // A loop inside was running.
            (_, Some(node)) if known => {
                let loops = self.loops_around(node).map(|n| self.graph.node(n).loc);
                loops.fold(error, |e, loc| e.at(loc, "inside this one"))
            }
            (kind, _) => self.stopped(kind, node),
        };
        self.error_on(part, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::variables::{VarAccess, VarStore};
    use crate::device::{CpuDevice, DeviceId, Executable, OpaqueDevice, StepCx};
    use crate::flow::distributed::DistributedGraph;
    use crate::flow::executor::DeviceMessage;
    use crate::flow::remote::Arrival;
    use crate::flow::remote::StepFailure;
    use crate::place::place_at_random;
    use anabranch_dsl::{AnyVar, HostTensor};

    /// Of two values for another device, the one that is computed first is used last.
    #[cfg(feature = "peers")]
    #[test]
    fn values_know_which_of_them_is_used_first() {
        let text = "graph @order(%x: f32[]) -> f32[] {
            %late = exp %x : f32[]
            %early = sin %x : f32[]
            %c = cos %early : f32[]
            %d = abs %c : f32[]
            %e = add %d, %late : f32[]
            return %e
        }";
        let graph = Graph::parse(text, "order.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let devices = [0, 0, 1, 1, 1].map(DeviceId::from_index).to_vec();
        let placement = crate::place::Placement::computed_elsewhere(&graph, 2, devices, Vec::new());
        let options = crate::flow::PartitionOptions { lower_everything: true, ..Default::default() };
        let placement = placement.unwrap_or_else(|e| panic!("{e}"));
        let partition = super::super::partition(&graph, &placement, options);
        let ops = partition.edges.iter().map(|edge| graph.producer(edge.value).map(|node| graph.node(node).op.name()));
        let mut first_uses: Vec<_> = partition.first_uses().into_iter().zip(ops).collect();
        first_uses.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ops: Vec<_> = first_uses.iter().map(|(_, op)| op.unwrap_or("an input")).collect();
        assert_eq!(ops, ["sin", "exp"], "{first_uses:?}");
        assert!(first_uses[0].0 < first_uses[1].0 && first_uses[1].0 < 1.0, "{first_uses:?}");
    }

    /// A graph that assigns a variable and asserts that its input is positive, on devices that
    /// report failed assertions by their fences only.
    #[test]
    fn a_late_failure_stops_the_commit() {
        let text = "graph @late(%x: f32[]) -> f32[] {
            var @w: f32[]
            %w = read @w : f32[]
            %0 = constant 0.0 : f32[]
            %p = gt %x, %0 : bool[]
            assert %p, \"not positive\"
            %y = add %w, %x : f32[]
            assign @w, %y
            return %y
        }";
        let graph = Graph::parse(text, "late.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let stores = Arc::new(VarStore::default());
        for seed in 0..20 {
            let opaque = |i| OpaqueDevice::new(DeviceId::from_index(i), None, seed).failing_late();
            let cpu = CpuDevice::new(DeviceId::from_index(2), None, 1);
            let devices: [Arc<dyn Device>; 3] = [Arc::new(opaque(0)), Arc::new(opaque(1)), Arc::new(cpu)];
            let placement = place_at_random(&graph, 3, seed);
            let partition = super::super::partition(&graph, &placement, Default::default());
            let processes = Processes::only_caller();
            let driver = Driver::new(graph.clone(), partition, &devices, processes, CompileOptions::default());
            let driver = DistributedGraph::new(driver.unwrap_or_else(|e| panic!("{e}")), None);
            let w = AnyVar::new("w", HostTensor::scalar(1.0f32));
            let set = stores.set([(&w, VarAccess::Assign)]);
            let home = &devices[placement.of_var(VarId::from_index(0)).index()];
            assert_eq!(set.settle([home]).map_err(|e| e.message), Ok(true));
            let host = HostSide::printing(Arc::new(|_, _| ()));
            let step = |x: f32| {
                let cx = StepCx { host: &host, stop: None };
                driver.step(&[HostTensor::scalar(x)], &set, &cx)
            };
            let value = || stores.cell(&w).get().map_or_else(|e| panic!("{e}"), |w| w.data::<f32>()[0]);
            assert_eq!(step(2.0).map_err(|e| e.message), Ok(vec![HostTensor::scalar(3.0f32)]), "seed {seed}");
            let error = step(-1.0).expect_err("the assertion fails");
            assert_eq!((error.kind, value()), (ErrorKind::AssertionFailed, 3.0), "seed {seed}: {error}");
            assert!(step(1.0).is_ok(), "seed {seed}");
            assert_eq!(value(), 4.0, "seed {seed}");
        }
    }

    /// Other processes that do nothing but send what a test says.
    #[derive(Debug)]
    struct Silent;

    impl Others for Silent {
        fn send(&self, _: ProcessId, _: SubgraphId, _: SubgraphId, _: DeviceMessage<HostTensor>) -> Result<()> {
            Ok(())
        }

        fn awaited(&self) -> Vec<ProcessId> {
            vec![ProcessId(1), ProcessId(2)]
        }

        fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure> {
            Ok(Vec::new())
        }

        fn failed(&mut self, failure: StepFailure) -> StepFailure {
            failure
        }
    }

    /// A thread of the net does not wait for a turn of many brief kernels.
    #[cfg(feature = "peers")]
    #[test]
    fn a_step_leaves_a_shared_thread_when_its_time_has_passed() {
        use crate::flow::PartitionOptions;
        use crate::flow::step_run::Progressed;
        use std::time::Duration;

        let text = "graph @chain(%x: f32[]) -> (f32[]) {
            %a = neg %x : f32[]
            %b = neg %a : f32[]
            %c = neg %b : f32[]
            %d = neg %c : f32[]
            %e = neg %d : f32[]
            return %e
        }";
        let graph = Graph::parse(text, "chain.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(CpuDevice::new(DeviceId::from_index(0), None, 1))];
        let placement = place_at_random(&graph, 1, 0);
        let flow = PartitionOptions { lower_everything: true, ..PartitionOptions::default() };
        let partition = super::super::partition(&graph, &placement, flow);
        let processes = Processes::new(ProcessId::CALLER, vec![ProcessId::CALLER]);
        let driver = Driver::new(graph, partition, &devices, processes, CompileOptions::default());
        let driver = Arc::new(driver.unwrap_or_else(|e| panic!("{e}")));
        let inputs = StepInputs { inputs: vec![Some(HostTensor::scalar(1.0f32))], vars: Vec::new() };
        let host = HostSide::printing(Arc::new(|_, _| ()));
        let mut run = driver.begin(inputs, host, Arc::default(), None, false).unwrap_or_else(|e| panic!("{e}"));
        let mut turns = 0;
        let outputs = loop {
            turns += 1;
            run = match run.advance(Duration::ZERO) {
                Progressed::Working(run) | Progressed::Waiting(run) => run,
                Progressed::Ended(results) => break results.unwrap_or_else(|e| panic!("{}", e.error)).outputs,
            };
        };
        assert_eq!(outputs, [Some(HostTensor::scalar(-1.0f32))]);
        // Each kernel is an action of its own.
        assert!(turns > 5, "{turns} turns");
    }

    /// Three processes compute an output each. The outputs of processes 1 and 2 arrive as these
    /// processes.
    #[test]
    fn an_output_must_come_from_the_process_that_computes_it() {
        let text = "graph @outputs(%x: f32[]) -> (f32[], f32[], f32[]) {
            %a = neg %x : f32[]
            %b = exp %x : f32[]
            %c = abs %x : f32[]
            return %a, %b, %c
        }";
        let graph = Graph::parse(text, "outputs.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let devices: Vec<Arc<dyn Device>> =
            (0..3).map(|i| Arc::new(CpuDevice::new(DeviceId::from_index(i), None, 1)) as _).collect();
        let seed = (0..).find(|&seed| {
            let placement = place_at_random(&graph, 3, seed);
            (0..3).all(|i| placement.of(graph.producer(graph.outputs()[i]).expect("a node")).index() == i)
        });
        let placement = place_at_random(&graph, 3, seed.expect("some seed spreads the nodes"));
        let partition = super::super::partition(&graph, &placement, Default::default());
        let processes = Processes::new(ProcessId::CALLER, (0..3).map(ProcessId).collect());
        let driver = Driver::new(graph, partition, &devices, processes, CompileOptions::default());
        let driver = Arc::new(driver.unwrap_or_else(|e| panic!("{e}")));
        let step = |from: [u32; 2]| {
            let begin = |_: &StepInputs, mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
                for (index, process) in (1..).zip(from.map(ProcessId)) {
                    let tensor = HostTensor::scalar(index as f32);
                    mailbox.push(Arrival::Output { process, index, tensor }, None);
                }
                [1, 2].iter().for_each(|&i| mailbox.push(Arrival::Ended { process: ProcessId(i) }, None));
                Ok(Box::new(Silent))
            };
            let inputs = StepInputs { inputs: vec![Some(HostTensor::scalar(1.0f32))], vars: Vec::new() };
            driver
                .begin(inputs, HostSide::printing(Arc::new(|_, _| ())), Arc::default(), Some(&begin), false)?
                .run(None)
        };
        let outputs = step([1, 2]).unwrap_or_else(|e| panic!("{}", e.error)).outputs;
        assert_eq!(outputs, [-1.0f32, 1.0, 2.0].map(|x| Some(HostTensor::scalar(x))));
        for from in [[2, 2], [1, 1], [0, 2]] {
            let error = step(from).expect_err("an output is forged").error;
            assert_eq!(error.kind, ErrorKind::Internal, "{error}");
            assert!(error.message.ends_with("sent an output that is none that the step expects from it"), "{error}");
        }
    }
}
