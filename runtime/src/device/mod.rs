//! Devices: run kernels and own their results.
//!
//! The interface is asynchronous, as GPUs and devices of other processes require. A device *loads*
//! a graph once. During a step, work is *enqueued*: runs of a loaded [`Kernel`], or a
//! [copy](Device::copy) of a value to the place of its use. Work that completes synchronously
//! returns [`Progress::Complete`]. Otherwise the [`Step`] later receives an [`Event`] with the
//! [`Ticket`] of the work. Computation and transfers thus overlap.
//!
//! Invariants:
//!
//! - D1. A [`Buffer`] belongs to a [`Place`], a device or the host, and is used only there. A copy
//!   brings it to another place. It is immutable.
//! - D2. Work is complete when its results may be used by other work of that place. Only a copy to
//!   the host makes a value readable by the host.
//! - D3. Each ticket has one event, or none if its work completed synchronously or is withdrawn. An
//!   error is also an outcome of an event.
//! - D4. Work ends soon after the step's stop flag is set, and is withdrawn if it still waits for a
//!   thread. A step ends only when none of its work runs, so no device then holds any of its
//!   values.
//!
//! Devices must not depend on partitions, frames or iterations, which belong to the executors.

mod cpu;
mod measure;
mod modelled;
mod step;

pub(crate) use cpu::CpuDevice;
pub(crate) use cpu::is_thread_of_device;
pub use modelled::Modelled;
pub(crate) use step::{Event, Step, Ticket};

use crate::flow;
use crate::place::{DeviceId, Rules, Topology};
use crate::program::{self, Contents};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::Datum;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result};
use std::fmt::Debug;
use std::sync::Arc;

/// The memory in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The memory of this process, which holds the tensors of callers.
    Host,
    Device(DeviceId),
}

/// A value at a place. Clones share its memory.
///
/// All current devices compute in host memory, which is thus the memory of every buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    place: Place,
    contents: Contents,
}

impl Buffer {
    /// Returns a buffer for a tensor that is already at a place.
    pub(crate) fn of_tensor(place: Place, tensor: HostTensor) -> Buffer {
        Buffer::new(place, Contents::Datum(Datum::Tensor(tensor)))
    }

    /// Returns a buffer for a value that is already at a place.
    fn new(place: Place, contents: Contents) -> Buffer {
        Buffer { place, contents }
    }

    /// Returns the contents, for use at `place`.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is at another place.
    fn at(self, place: Place) -> Contents {
        assert_eq!(self.place, place, "a value is used in its own memory space");
        self.contents
    }

    /// Returns the new value of a variable, which stays on its device. All current devices keep
    /// variables in host memory.
    pub(crate) fn resident(self) -> HostTensor {
        let Contents::Datum(Datum::Tensor(tensor)) = self.contents else { panic!("a variable is a tensor") };
        tensor
    }

    /// Returns the tensor of a host buffer.
    pub(crate) fn into_host(self) -> HostTensor {
        let contents = self.at(Place::Host);
        let Contents::Datum(Datum::Tensor(tensor)) = contents else { panic!("only tensors are read by the host") };
        tensor
    }

    /// Returns the length in bytes, or 0 for stacks and lists, which never leave their device.
    fn n_bytes(&self) -> usize {
        match &self.contents {
            Contents::Datum(Datum::Tensor(t)) => t.shape().iter().product::<usize>() * t.dtype().size(),
            _ => 0,
        }
    }
}

/// The state of enqueued work.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The work is complete and has these results.
    Complete(Vec<Buffer>),
    /// An event will report the completion.
    Later,
}

/// A device. Several steps may use it concurrently.
pub(crate) trait Device: Debug + Send + Sync {
    /// Returns the name, or `None` for devices that errors do not mention.
    fn name(&self) -> Option<DeviceName>;

    /// Returns whether its events follow a [simulated clock](modelled::Clock).
    fn is_modelled(&self) -> bool;

    /// Compiles a graph without variables. Its inputs and outputs may be stacks and lists.
    fn load(self: Arc<Self>, graph: Graph, options: program::Options) -> Result<Box<dyn Kernel>>;

    /// Starts copying values to another place. They arrive in the same order.
    ///
    /// Without values, only the event is sent. Copies are requested from the device that has the
    /// values, or from the destination if they come from the host.
    fn copy(&self, values: Vec<Buffer>, to: Place, step: &Arc<Step>, ticket: Ticket) -> Progress;
}

/// A graph loaded on a device.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// Starts a run on values of the device. Errors that occur synchronously may be returned
    /// immediately.
    fn enqueue(&self, inputs: Vec<Buffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress>;
}

/// Returns the name of a device for messages.
pub(crate) fn name_of(device: &dyn Device) -> String {
    device.name().map_or_else(|| "a device".to_owned(), |name| name.to_string())
}

/// Adds the name of a device to an error.
pub(crate) fn error_on(device: &dyn Device, error: Diagnostic) -> Diagnostic {
    match device.name() {
        Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
        None => error,
    }
}

/// The devices of a session, with its placement rules and partitioning options.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) topology: Topology,
    /// The devices of the topology, in the same order.
    pub(crate) all: Vec<Arc<dyn Device>>,
    /// Whether the devices are simulated.
    pub(crate) is_modelled: bool,
    /// The placement rules for variables.
    pub(crate) rules: Rules,
    /// The options of the partitioner.
    pub(crate) flow: flow::Options,
}

impl Devices {
    /// `n` CPU devices that share the cores of this machine, or as many of them as `limit` says; or
    /// the modelled ones if there are some. What several CPU devices can do is measured if
    /// `measure` says so. The limit changes no estimate: placement, and so what is computed, does
    /// not depend on it.
    pub(crate) fn new(
        n: usize,
        limit: Option<usize>,
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
        let all: Vec<Arc<dyn Device>> = if is_modelled {
            Modelled::devices(&topology, true)
        } else {
            topology.alone = cores as f64 / threads as f64;
            let threads = limit.map_or(threads, |limit| limit / topology.devices.len());
            let cpu = |id: DeviceId| CpuDevice::new(id, Some(topology.device(id).name), threads);
            let cpus: Vec<_> = topology.ids().map(|id| Arc::new(cpu(id))).collect();
            if measure && cpus.len() > 1 {
                topology = measure::measured(&topology, &cpus[0])?;
            }
            cpus.into_iter().map(|cpu| cpu as Arc<dyn Device>).collect()
        };
        // Simulated time of a loop must include all of its iterations, however many there are.
        let flow = flow::Options { lower_control: is_modelled, ..flow };
        Ok(Devices { topology, all, is_modelled, rules, flow })
    }

    /// Returns whether there is a single real device and nothing to place.
    pub(crate) fn is_one(&self) -> bool {
        self.topology.devices.len() == 1 && !self.is_modelled && !self.flow.lower_everything
    }
}
