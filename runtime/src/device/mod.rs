//! Devices: run kernels and own their results.
//!
//! Everything above this folder speaks to a [`Device`] and to what it compiles. A device *compiles*
//! a whole graph with its variables to an [`Executable`], whose runs are steps; subgraphs on
//! several devices are an [`Executable`], too.
//!
//! The interface for subgraphs is asynchronous, as GPUs and devices of other processes require. A
//! device *loads* a graph once. During a step, work is *enqueued*: runs of a [`LoadedKernel`],
//! [uploads](Device::upload) from the host, [downloads](Device::download) to it, and
//! [copies](Device::copy) to other devices. Work that completes synchronously returns
//! [`Progress::Complete`]. Otherwise the [`Step`] later receives an [`Event`] with the [`Ticket`]
//! of the work. Computation and transfers thus overlap.
//!
//! Invariants:
//!
//! - D1. A [`DeviceBuffer`] belongs to a [`MemorySpace`], a device or the host, and is used only
//!   there. Uploads, downloads and copies bring it to another space. It is immutable.
//! - D2. Work is complete when its results may be used by other work of that space. Only a download
//!   makes a value readable by the host. An error may be reported after the completion, by the
//!   [fence](Device::fence) of the step.
//! - D3. Each ticket has one event, or none if its work completed synchronously or is withdrawn. An
//!   error is also an outcome of an event.
//! - D4. Work ends soon after the step's stop flag is set, and is withdrawn if it still waits for a
//!   thread. A step ends only when none of its work runs, so no device then holds any of its
//!   values.
//!
//! Devices must not depend on partitions, frames or iterations, which belong to the executors.

mod buffer;
pub(crate) mod cost;
mod cpu;
mod executable;
#[cfg(any(feature = "gpu", feature = "peers"))]
pub(crate) mod gpu_support;
mod host_memory;
pub(crate) mod measure;
#[cfg(any(test, feature = "testing"))]
mod opaque;
mod optimize;
mod simulated;
mod source;
mod step;
mod step_lock;
pub(crate) mod timeline;
mod topology;
pub(crate) mod variables;
mod whole;

pub(crate) use buffer::{DeviceBuffer, DeviceMemory, MemorySpace};
pub(crate) use cpu::CpuDevice;
#[cfg(feature = "peers")]
pub(crate) use cpu::is_thread_of_device;
pub(crate) use executable::{Crossing, Executable, StepCx};
#[cfg(any(test, feature = "testing"))]
pub(crate) use opaque::OpaqueDevice;
#[cfg(feature = "testing")]
pub(crate) use opaque::OpaqueSource;
pub(crate) use optimize::optimize;
pub use simulated::SimulatedDevice;
pub(crate) use source::DeviceSource;
pub(crate) use step::{Event, HostSide, PrintTo, Step, Ticket};
pub(crate) use topology::{DeviceId, DeviceInfo, LinkSpeed, Topology};

use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::{Node, Op, Value};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Result, Type};
use smallvec::SmallVec;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// The state of enqueued work.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The work is complete and has these results.
    Complete(Vec<DeviceBuffer>),
    /// An event will report the completion.
    Later,
}

/// Whether a device runs an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    Yes,
    /// No, with the reason as the predicate of a sentence about the device: `has no f64`.
    No(String),
}

/// A device. Several steps may use it concurrently.
pub(crate) trait Device: Debug + Send + Sync {
    /// Returns the index among the devices of the session.
    fn id(&self) -> DeviceId;

    /// Returns the name, or `None` for devices that errors do not mention.
    fn name(&self) -> Option<DeviceName>;

    /// Returns whether its events follow a [simulated clock](simulated::SimulatedClock).
    fn is_simulated(&self) -> bool;

    /// Returns whether the device runs an operation on operands and results of these types.
    ///
    /// Placement asks this for every node, also for variables, constants, branches and loops.
    fn supports(&self, _op: &Op, _operands: &[&Type], _results: &[&Type]) -> Support {
        Support::Yes
    }

    /// Returns whether the device runs a node of a graph.
    fn supports_node(&self, graph: &Graph, node: Node) -> Support {
        let data = graph.node(node);
        let types = |values: &[Value]| values.iter().map(|&v| graph.ty(v)).collect::<SmallVec<[&Type; 4]>>();
        self.supports(&data.op, &types(&data.operands), &types(&data.results))
    }

    /// Compiles a whole graph for steps on the calling thread. Returns `None` if the device runs
    /// graphs in parts only, by [`load`](Self::load).
    fn compile(self: Arc<Self>, _graph: &Graph, _options: CompileOptions) -> Result<Option<Box<dyn Executable>>> {
        Ok(None)
    }

    /// Compiles a graph without variables. The inputs and outputs may be stacks and lists. Ends
    /// with the error of the check if that fails between two stages.
    fn load(
        self: Arc<Self>,
        graph: Graph,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Box<dyn LoadedKernel>>;

    /// Returns whether the device computes in host memory, so that nothing is copied between it and
    /// others of this kind.
    fn shares_host_memory(&self) -> bool {
        false
    }

    /// Starts copying values from the host to the device. The values arrive in the same order.
    fn upload(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress;

    /// Starts copying tensors of the device to the host. The values arrive in the same order.
    fn download(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress;

    /// Starts copying values of the device to another device. The values arrive in the same order.
    /// Without values, only the event is sent.
    ///
    /// Returns the values if there is no way from one device to the other. They are then downloaded
    /// and uploaded.
    fn copy(
        &self,
        values: Vec<DeviceBuffer>,
        to: &dyn Device,
        step: &Arc<Step>,
        ticket: Ticket,
    ) -> std::result::Result<Progress, Vec<DeviceBuffer>>;

    /// Waits for all work of a step on this device. A failure that was not known when the work
    /// completed is an error now. The step commits nothing before all its fences are complete.
    fn fence(&self, _step: &Arc<Step>, _ticket: Ticket) -> Result<Progress> {
        Ok(Progress::Complete(Vec::new()))
    }

    /// Stores the value of a variable on the device, outside of any step.
    fn store(&self, value: HostTensor) -> Result<DeviceBuffer>;

    /// Returns the value of a variable on the device, outside of any step.
    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor>;
}

/// A graph loaded on a device.
pub(crate) trait LoadedKernel: Debug + Send + Sync {
    /// Starts a run on values of the device. Errors that occur synchronously may be returned
    /// immediately.
    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress>;

    /// Returns the compiled graph as text, if the device tells.
    fn explain(&self) -> Option<String> {
        None
    }

    /// Returns the bytes that a run takes for its results and between its operations, as far as
    /// they are known before.
    fn working_bytes(&self) -> u64 {
        0
    }

    /// Returns whether a run ends within microseconds for all inputs, and waits for nothing. Such a
    /// kernel may run on a thread for which others wait.
    fn is_brief(&self) -> bool {
        false
    }
}

/// Returns the error of threads that cannot be started.
pub(crate) fn no_threads(threads: impl fmt::Display, error: impl fmt::Display) -> Diagnostic {
    Diagnostic::new(format!("could not start {threads}: {error}"))
        .of_kind(ErrorKind::ResourceExhausted)
        .help("the process has reached its limit of threads or memory: use fewer sessions, or raise the limit")
}

/// Returns why no GPU, real or simulated, holds values of these types.
pub(crate) fn reason_against_gpus<'a>(types: impl IntoIterator<Item = &'a Type>) -> Option<String> {
    let mut dtypes = types.into_iter().map(|ty| ty.element().dtype);
    dtypes.find(|dtype| !dtype.is_plain()).map(|strings| format!("has no {strings}"))
}

/// Returns the name of a device for messages.
pub(crate) fn name_of(device: &dyn Device) -> String {
    device.name().map_or_else(|| "a device".to_owned(), |name| name.to_string())
}

/// Adds the name of a device to an error.
#[cfg(feature = "gpu")]
pub(crate) fn error_on(device: &dyn Device, error: Diagnostic) -> Diagnostic {
    match device.name() {
        Some(name) => error.at(anabranch_dsl::Loc::UNKNOWN, format!("on {name}")),
        None => error,
    }
}
