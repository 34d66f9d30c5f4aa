//! Devices: run kernels and own their results.
//!
//! Everything above this folder speaks to a [`Device`] and to what it compiles. A device *compiles*
//! a whole graph with its variables to an [`Executable`], whose runs are steps; subgraphs on
//! several devices are an [`Executable`], too.
//!
//! The interface for subgraphs is asynchronous, as GPUs and devices of other processes require. A
//! device *loads* a graph once. During a step, work is *enqueued*: runs of a [`LoadedKernel`], or a
//! [copy](Device::copy) of a value to the place of its use. Work that completes synchronously
//! returns [`Progress::Complete`]. Otherwise the [`Step`] later receives an [`Event`] with the
//! [`Ticket`] of the work. Computation and transfers thus overlap.
//!
//! Invariants:
//!
//! - D1. A [`DeviceBuffer`] belongs to a [`MemorySpace`], a device or the host, and is used only
//!   there. A copy brings it to another place. It is immutable.
//! - D2. Work is complete when its results may be used by other work of that place. Only a copy to
//!   the host makes a value readable by the host.
//! - D3. Each ticket has one event, or none if its work completed synchronously or is withdrawn. An
//!   error is also an outcome of an event.
//! - D4. Work ends soon after the step's stop flag is set, and is withdrawn if it still waits for a
//!   thread. A step ends only when none of its work runs, so no device then holds any of its
//!   values.
//!
//! Devices must not depend on partitions, frames or iterations, which belong to the executors.

pub(crate) mod cost;
mod cpu;
mod executable;
pub(crate) mod measure;
mod simulated;
mod step;
pub(crate) mod timeline;
mod topology;
pub(crate) mod variables;
mod whole;

pub(crate) use crate::cpu::optimize::optimize;
pub(crate) use crate::cpu::program::CompileOptions;
pub(crate) use cpu::{CpuDevice, is_thread_of_device};
pub(crate) use executable::{Crossing, Executable, StepCx};
pub use simulated::SimulatedDevice;
pub(crate) use step::{Event, PrintTo, Step, Ticket};
pub(crate) use topology::{DeviceId, DeviceInfo, Link, Topology};

use crate::cpu::program::Contents;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::RuntimeValue;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result};
use std::fmt::Debug;
use std::sync::Arc;

/// The memory in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemorySpace {
    /// The memory of this process, which holds the tensors of callers.
    Host,
    Device(DeviceId),
}

/// A value at a place. Clones share its memory.
///
/// All current devices compute in host memory, which is thus the memory of every buffer.
#[derive(Clone, Debug)]
pub(crate) struct DeviceBuffer {
    place: MemorySpace,
    contents: Contents,
}

impl DeviceBuffer {
    /// Returns a buffer for a tensor that is already at a place.
    pub(crate) fn of_tensor(place: MemorySpace, tensor: HostTensor) -> DeviceBuffer {
        DeviceBuffer::new(place, Contents::Value(RuntimeValue::Tensor(tensor)))
    }

    /// Returns a buffer for a value that is already at a place.
    fn new(place: MemorySpace, contents: Contents) -> DeviceBuffer {
        DeviceBuffer { place, contents }
    }

    /// Returns the contents, for use at `place`.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is at another place.
    fn at(self, place: MemorySpace) -> Contents {
        assert_eq!(self.place, place, "a value is used in its own memory space");
        self.contents
    }

    /// Returns the new value of a variable, which stays on its device. All current devices keep
    /// variables in host memory.
    pub(crate) fn resident(self) -> HostTensor {
        let Contents::Value(RuntimeValue::Tensor(tensor)) = self.contents else { panic!("a variable is a tensor") };
        tensor
    }

    /// Returns the tensor of a host buffer.
    pub(crate) fn into_host(self) -> HostTensor {
        let contents = self.at(MemorySpace::Host);
        let Contents::Value(RuntimeValue::Tensor(tensor)) = contents else {
            panic!("only tensors are read by the host")
        };
        tensor
    }

    /// Returns the length in bytes, or 0 for stacks and lists, which never leave their device.
    fn n_bytes(&self) -> usize {
        match &self.contents {
            Contents::Value(RuntimeValue::Tensor(t)) => t.shape().iter().product::<usize>() * t.dtype().size(),
            _ => 0,
        }
    }
}

/// The state of enqueued work.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The work is complete and has these results.
    Complete(Vec<DeviceBuffer>),
    /// An event will report the completion.
    Later,
}

/// A device. Several steps may use it concurrently.
pub(crate) trait Device: Debug + Send + Sync {
    /// Returns the name, or `None` for devices that errors do not mention.
    fn name(&self) -> Option<DeviceName>;

    /// Returns whether its events follow a [simulated clock](simulated::SimulatedClock).
    fn is_simulated(&self) -> bool;

    /// Compiles a whole graph for steps on the calling thread. Returns `None` if the device runs
    /// graphs in parts only, by [`load`](Self::load).
    fn compile(self: Arc<Self>, _graph: &Graph, _options: CompileOptions) -> Result<Option<Box<dyn Executable>>> {
        Ok(None)
    }

    /// Compiles a graph without variables. The inputs and outputs may be stacks and lists.
    fn load(self: Arc<Self>, graph: Graph, options: CompileOptions) -> Result<Box<dyn LoadedKernel>>;

    /// Starts copying values to another place. The values arrive in the same order.
    ///
    /// Without values, only the event is sent. Copies are requested from the device that has the
    /// values, or from the destination if they come from the host.
    fn copy(&self, values: Vec<DeviceBuffer>, to: MemorySpace, step: &Arc<Step>, ticket: Ticket) -> Progress;
}

/// A graph loaded on a device.
pub(crate) trait LoadedKernel: Debug + Send + Sync {
    /// Starts a run on values of the device. Errors that occur synchronously may be returned
    /// immediately.
    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress>;
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
