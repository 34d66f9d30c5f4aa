//! A graph that runs on several devices at once.

use crate::device::{CpuDevice, Device, Modelled};
use crate::flow;
use crate::flow::driver::Driver;
use crate::place::{DeviceId, place_at_random};
use crate::program::Options;
use anabranch_dsl::format::Stream;
use anabranch_dsl::{Graph, HostTensor, Result};
use std::fmt;
use std::sync::Arc;

/// Options of a random partition of a graph.
///
/// ```
/// use anabranch::runtime::Scatter;
///
/// let scatter = Scatter { devices: 3, seed: 17, parallel_iterations: 2, ..Scatter::default() };
/// # let _ = scatter;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
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
    /// Whether devices are [simulated](crate::Modelled): results, predicates and transfers then
    /// arrive later, as events.
    pub modelled: bool,
}

impl Default for Scatter {
    fn default() -> Scatter {
        Scatter {
            devices: 2,
            seed: 0,
            parallel_iterations: 32,
            lower_everything: false,
            interpreted: false,
            modelled: false,
        }
    }
}

/// A graph that runs on several devices of this process, each node on a randomly chosen one.
///
/// The placement is for tests: values do not depend on the choice.
///
/// ```
/// use anabranch::{Graph, HostTensor};
/// use anabranch::{runtime::Scatter, runtime::ScatteredProgram};
///
/// let graph = Graph::parse(
///     "graph @f(%x: f32[]) -> (f32[]) { %y = exp %x  %z = mul %y, %x  return %z }",
///     "f.ir",
/// );
/// let program = ScatteredProgram::new(graph.expect("the text is right"), Scatter::default())?;
/// assert_eq!(
///     program.run(&[HostTensor::scalar(0.0f32)], &mut vec![])?,
///     [HostTensor::scalar(0.0f32)]
/// );
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct ScatteredProgram(Driver);

impl fmt::Debug for ScatteredProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScatteredProgram").field("partition", self.0.partition()).finish_non_exhaustive()
    }
}

impl ScatteredProgram {
    /// Partitions and compiles a graph whose inputs have known shapes.
    pub fn new(graph: Graph, how: Scatter) -> Result<ScatteredProgram> {
        let n = how.devices as usize;
        let devices = if how.modelled {
            let gpus: Vec<_> = (0..n).map(|i| Modelled::new(&format!("/gpu:{i}"))).collect();
            Modelled::devices(&Modelled::topology(&gpus)?, false)
        } else {
            let cpu = |i| Arc::new(CpuDevice::new(DeviceId::from_index(i), None, 1)) as Arc<dyn Device>;
            (0..n).map(cpu).collect()
        };
        let placement = place_at_random(&graph, n, how.seed);
        let options = flow::Options {
            lower_everything: how.lower_everything,
            lower_control: how.modelled,
            parallel_iterations: how.parallel_iterations,
        };
        let partition = flow::partition(&graph, &placement, options);
        let options = Options { interpreted: how.interpreted, ..Options::default() };
        Ok(ScatteredProgram(Driver::new(graph, partition, &devices, options)?))
    }

    /// Runs the graph; see [`Program::run`](crate::Program::run).
    pub fn run(&self, inputs: &[HostTensor], vars: &mut [HostTensor]) -> Result<Vec<HostTensor>> {
        let print = Arc::new(|stream: Stream, text: &str| stream.write(text));
        let given = self.0.step(inputs, vars, print, Arc::default(), None)?;
        for (var, tensor) in given.assigned {
            vars[var.index()] = tensor;
        }
        Ok(given.outputs)
    }
}
