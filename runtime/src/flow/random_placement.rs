//! A graph that runs on several devices at once.

use crate::device::{CpuDevice, Device, DeviceBuffer, DeviceId, HostSide, OpaqueDevice, SimulatedDevice, Support};
use crate::flow;
#[cfg(feature = "peers")]
use crate::flow::distributed::{CompletedStep, DistributedGraph};
use crate::flow::driver::Driver;
use crate::flow::in_one_process;
use crate::flow::remote::{ProcessId, Processes};
use crate::flow::step_run::StepInputs;
use crate::options::CompileOptions;
use crate::place::{Placement, place_at_random_where};
use anabranch_dsl::format::Stream;
#[cfg(feature = "gpu")]
use anabranch_dsl::ir::Node;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{Graph, HostTensor, Result};
use std::fmt;
use std::sync::Arc;

/// Options of a random partition of a graph.
///
/// ```
/// use anabranch::runtime::RandomPlacement;
///
/// let default = RandomPlacement::default();
/// let placement = RandomPlacement { devices: 3, seed: 17, parallel_iterations: 2, ..default };
/// # let _ = placement;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomPlacement {
    /// The number of devices.
    pub devices: u32,
    /// The seed of the choice of a device for each node.
    pub seed: u64,
    /// The number of iterations of a loop that may run at once.
    pub parallel_iterations: u32,
    /// Whether all control flow is lowered, even on a single device, and every node runs by itself.
    pub lower_everything: bool,
    /// Whether the interpreter runs kernels, so that values are bitwise identical to its own.
    pub interpreted: bool,
    /// Whether devices are [simulated](crate::SimulatedDevice): results, predicates and transfers
    /// then arrive later, as events.
    pub simulated: bool,
    /// The number of processes that the devices belong to, in turn. They are simulated: a thread
    /// each, which exchange messages. Without effect on simulated devices.
    pub processes: u32,
    /// The number of devices whose memory the host cannot see, and which complete work late and in
    /// a random order. The other devices are CPUs. Without
    /// effect on simulated devices.
    pub opaque: u32,
    /// The number of GPUs, at most [`RandomPlacement::MAX_GPUS`], which all programs share: devices
    /// on the first adapter of this machine. They come first. Nodes without a shader go to the last
    /// device, which should not be a GPU. Without effect if devices are simulated.
    #[cfg(feature = "gpu")]
    pub gpus: u32,
    /// Whether each node that has a shader is on the first GPU.
    #[cfg(feature = "gpu")]
    pub prefers_gpu: bool,
}

impl RandomPlacement {
    /// The most GPUs.
    #[cfg(feature = "gpu")]
    pub const MAX_GPUS: u32 = 2;

    pub(crate) fn partition_options(&self) -> flow::PartitionOptions {
        flow::PartitionOptions {
            lower_everything: self.lower_everything,
            lower_control: self.simulated,
            parallel_iterations: self.parallel_iterations,
        }
    }

    pub(crate) fn compile_options(&self) -> CompileOptions {
        CompileOptions { interpreted: self.interpreted, ..CompileOptions::default() }
    }

    fn prefers_gpu(&self) -> bool {
        #[cfg(feature = "gpu")]
        return self.prefers_gpu;
        #[cfg(not(feature = "gpu"))]
        false
    }

    fn has_gpu(&self) -> bool {
        #[cfg(feature = "gpu")]
        return self.gpus > 0 && !self.simulated;
        #[cfg(not(feature = "gpu"))]
        false
    }
}

impl Default for RandomPlacement {
    fn default() -> RandomPlacement {
        RandomPlacement {
            devices: 2,
            seed: 0,
            parallel_iterations: 32,
            lower_everything: false,
            interpreted: false,
            simulated: false,
            processes: 1,
            opaque: 0,
            #[cfg(feature = "gpu")]
            gpus: 0,
            #[cfg(feature = "gpu")]
            prefers_gpu: false,
        }
    }
}

/// A graph that runs on several devices, of this process or of a session with peers, each node on a
/// randomly chosen one.
///
/// For tests: results must be the same for every placement.
///
/// ```
/// use anabranch::{Graph, HostTensor};
/// use anabranch::{runtime::RandomPlacement, runtime::RandomlyPlacedProgram};
///
/// let graph = Graph::parse(
///     "graph @f(%x: f32[]) -> (f32[]) { %y = exp %x  %z = mul %y, %x  return %z }",
///     "f.ir",
/// );
/// let graph = graph.expect("the text is right");
/// let program = RandomlyPlacedProgram::new(graph, RandomPlacement::default())?;
/// assert_eq!(
///     program.run(&[HostTensor::scalar(0.0f32)], &mut vec![])?,
///     [HostTensor::scalar(0.0f32)]
/// );
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct RandomlyPlacedProgram {
    processes: RunningProcesses,
    /// The home of each variable.
    homes: Vec<Arc<dyn Device>>,
}

/// The processes that run a program.
enum RunningProcesses {
    /// A driver for each, on a thread of this process.
    Simulated(Vec<Arc<Driver>>),
    /// This process and peers.
    #[cfg(feature = "peers")]
    Real(Box<DistributedGraph>),
}

/// Returns the GPUs of this process. The host decides the predicates of all but the first one.
///
/// # Panics
/// Panics if this machine has no adapter.
#[cfg(feature = "gpu")]
fn shared_gpus() -> &'static [Arc<dyn Device>] {
    use crate::gpu::{GpuDevice, gpu_adapters};
    use anabranch_dsl::device::{DeviceKind, DeviceName};
    static SHARED: std::sync::OnceLock<Vec<Arc<dyn Device>>> = std::sync::OnceLock::new();
    SHARED.get_or_init(|| {
        let adapter = gpu_adapters().into_iter().next().expect("this machine has an adapter");
        let open = |i: u32| -> Arc<dyn Device> {
            let (id, name) = (DeviceId::from_index(i as usize), DeviceName::local(DeviceKind::Gpu, i));
            let adapter = if i == 0 { adapter.clone() } else { adapter.clone().with_predicates_on_host() };
            Arc::new(GpuDevice::new(id, name, &adapter).unwrap_or_else(|e| panic!("{e}")).unmentioned())
        };
        (0..RandomPlacement::MAX_GPUS).map(open).collect()
    })
}

impl fmt::Debug for RandomlyPlacedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RandomlyPlacedProgram").field("n_vars", &self.homes.len()).finish_non_exhaustive()
    }
}

impl RandomlyPlacedProgram {
    /// Partitions and compiles a graph whose inputs have known shapes.
    pub fn new(graph: Graph, how: RandomPlacement) -> Result<RandomlyPlacedProgram> {
        let n = how.devices as usize;
        let devices = if how.simulated {
            let gpus: Vec<_> = (0..n).map(|i| SimulatedDevice::new(&format!("/gpu:{i}"))).collect();
            SimulatedDevice::devices(&SimulatedDevice::topology(&gpus)?, false)
        } else {
            let device = |i| -> Arc<dyn Device> {
                let id = DeviceId::from_index(i);
                #[cfg(feature = "gpu")]
                if i < how.gpus as usize {
                    return shared_gpus()[i].clone();
                }
                match i < how.opaque as usize {
                    true => Arc::new(OpaqueDevice::new(id, None, how.seed.rotate_left(i as u32))),
                    false => Arc::new(CpuDevice::new(id, None, 1)),
                }
            };
            (0..n).map(device).collect()
        };
        // Devices for tests run everything.
        let has_shader = |device: DeviceId, node| devices[device.index()].supports_node(&graph, node) == Support::Yes;
        let supports = |device: DeviceId, node| {
            let is_first = device.index() == 0;
            !how.has_gpu()
                || (has_shader(device, node)
                    && (is_first || !how.prefers_gpu() || !has_shader(DeviceId::from_index(0), node)))
        };
        let placement = place_at_random_where(&graph, n, how.seed, supports);
        let partition = flow::partition(&graph, &placement, how.partition_options());
        let options = how.compile_options();
        let homes = homes(&graph, &placement, &devices);
        let n_processes = if how.simulated { 1 } else { how.processes.max(1) };
        let process_of = (0..how.devices).map(|device| ProcessId(device % n_processes)).collect::<Vec<_>>();
        let driver = |process| {
            let processes = Processes::new(ProcessId(process), process_of.clone());
            Driver::new(graph.clone(), partition.clone(), &devices, processes, options).map(Arc::new)
        };
        let drivers = (0..n_processes).map(driver).collect::<Result<_>>()?;
        Ok(RandomlyPlacedProgram { processes: RunningProcesses::Simulated(drivers), homes })
    }

    /// Returns the nodes of a graph that no GPU runs, each with the reason.
    ///
    /// # Panics
    /// Panics if this machine has no adapter.
    #[cfg(feature = "gpu")]
    pub fn without_shader(graph: &Graph) -> Vec<(Node, String)> {
        let mut without = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if let Support::No(reason) = shared_gpus()[0].supports_node(graph, node) {
                without.push((node, reason));
            }
        });
        without
    }

    /// Returns a program that was placed and compiled for this process and peers.
    #[cfg(feature = "peers")]
    pub(crate) fn at_peers(
        program: DistributedGraph,
        graph: &Graph,
        placement: &Placement,
        devices: &[Arc<dyn Device>],
    ) -> RandomlyPlacedProgram {
        let processes = RunningProcesses::Real(Box::new(program));
        RandomlyPlacedProgram { processes, homes: homes(graph, placement, devices) }
    }

    /// Runs the graph; see [`Program::run`](crate::Program::run).
    pub fn run(&self, inputs: &[HostTensor], vars: &mut [HostTensor]) -> Result<Vec<HostTensor>> {
        let print = Arc::new(|stream: Stream, text: &str| stream.write(text));
        let stored = self.homes.iter().zip(&*vars).map(|(home, value)| home.store(value.clone()));
        let values: Vec<DeviceBuffer> = stored.collect::<Result<_>>()?;
        let step_inputs = || StepInputs {
            inputs: inputs.iter().cloned().map(Some).collect(),
            vars: values.iter().cloned().map(Some).collect(),
        };
        let results = match &self.processes {
            #[cfg(feature = "peers")]
            RunningProcesses::Real(distributed) => {
                let step = distributed.run(step_inputs(), HostSide::printing(print), Arc::default(), None)?;
                let CompletedStep { outputs, assigned } = step;
                self.fetch(assigned, vars)?;
                return Ok(outputs);
            }
            RunningProcesses::Simulated(drivers) => match &drivers[..] {
                [driver] => {
                    driver.begin(step_inputs(), HostSide::printing(print), Arc::default(), None, false)?.run(None)
                }
                drivers => in_one_process::run(drivers, inputs, &values, print),
            },
        };
        let results = results.map_err(|failure| failure.error)?;
        self.fetch(results.assigned, vars)?;
        Ok(results.outputs.into_iter().map(|output| output.expect("the subgraphs compute all outputs")).collect())
    }

    /// Replaces the variables that a step has assigned.
    fn fetch(&self, assigned: Vec<(VarId, DeviceBuffer)>, vars: &mut [HostTensor]) -> Result<()> {
        for (var, value) in assigned {
            vars[var.index()] = self.homes[var.index()].fetch(value)?;
        }
        Ok(())
    }
}

/// Returns the device of each variable.
fn homes(graph: &Graph, placement: &Placement, devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    let vars = (0..graph.vars.len()).map(VarId::from_index);
    vars.map(|var| devices[placement.of_var(var).index()].clone()).collect()
}
