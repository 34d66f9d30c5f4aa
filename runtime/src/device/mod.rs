//! Devices: what runs kernels, and holds what they give.
//!
//! The interface is asynchronous, as a GPU or a device of another process needs it. A device is asked to *load* graphs once; in a step, work is
//! *enqueued*: to run a loaded [`Kernel`], or to [copy](Device::copy) a value to where it is used. Work that is over at once says so
//! ([`Progress::Complete`]); of other work the [`Step`] hears later, by an [`Event`] with the [`Ticket`] that the work was given. So
//! what computes and what is under way overlap, and nobody waits for one piece of work while another could go on.
//!
//! Invariants:
//!
//! - D1. A [`Buffer`] belongs to a [`Place`], a device or the host, and is used there alone. It comes to another place by a copy. It never changes.
//! - D2. Work is complete when what it gives may be used by other work of that place. Only a copy to the host makes it readable by the host.
//! - D3. Each ticket has one event, or none if its work was complete at once or is withdrawn; an error is the outcome of an event as well.
//! - D4. Work ends soon after the step's flag is set, and is withdrawn if it waits for a thread that is busy. A step is left only when none of its work runs, so
//!   no device holds anything of it then.
//!
//! Devices must never know graphs over several devices, frames or iterations: these are the executors' business.

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

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The memory of this process, where callers have their tensors.
    Host,
    Device(DeviceId),
}

/// A value at a place. A clone is the same memory.
///
/// The devices that there are compute in the memory of the host, so that is what a buffer has.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    place: Place,
    contents: Contents,
}

impl Buffer {
    /// A tensor that is at a place already.
    pub(crate) fn of_tensor(place: Place, tensor: HostTensor) -> Buffer {
        Buffer::new(place, Contents::Datum(Datum::Tensor(tensor)))
    }

    /// A value that is at a place already.
    fn new(place: Place, contents: Contents) -> Buffer {
        Buffer { place, contents }
    }

    /// Its contents, for who works at that place.
    fn at(self, place: Place) -> Contents {
        assert_eq!(self.place, place, "a value is used where it is");
        self.contents
    }

    /// The new value of a variable, which stays where it is. (The devices that there are keep their variables in the memory of the host.)
    pub(crate) fn resident(self) -> HostTensor {
        let Contents::Datum(Datum::Tensor(tensor)) = self.contents else { panic!("a variable is a tensor") };
        tensor
    }

    /// The tensor of a buffer of the host.
    pub(crate) fn into_host(self) -> HostTensor {
        let contents = self.at(Place::Host);
        let Contents::Datum(Datum::Tensor(tensor)) = contents else { panic!("only tensors are read by the host") };
        tensor
    }

    /// Its length in bytes, as far as that is known: stacks and lists never leave their device.
    fn n_bytes(&self) -> usize {
        match &self.contents {
            Contents::Datum(Datum::Tensor(t)) => t.shape().iter().product::<usize>() * t.dtype().size(),
            _ => 0,
        }
    }
}

/// What became of work that was enqueued.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It is over, and this is what it gave.
    Complete(Vec<Buffer>),
    /// An event will tell.
    Later,
}

/// A device. It may be used by several steps at once.
pub(crate) trait Device: Debug + Send + Sync {
    /// Its name; none of devices of which errors do not speak.
    fn name(&self) -> Option<DeviceName>;

    /// Whether its events are at times of a [modelled](step::Clock) clock.
    fn is_modelled(&self) -> bool;

    /// Compiles a graph without variables, whose inputs and outputs may be stacks and lists, to be run here.
    fn load(self: Arc<Self>, graph: Graph, options: program::Options) -> Result<Box<dyn Kernel>>;

    /// Begins to bring values to another place, which are given there in the same order; without any, what comes is the event itself. A device is asked for
    /// what is there, and for what comes to it from the host.
    fn copy(&self, values: Vec<Buffer>, to: Place, step: &Arc<Step>, ticket: Ticket) -> Progress;
}

/// A graph that a device has loaded.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// Begins to run it on values of its device. An error that is known at once may be given at once.
    fn enqueue(&self, inputs: Vec<Buffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress>;
}

/// The name of a device in messages.
pub(crate) fn name_of(device: &dyn Device) -> String {
    device.name().map_or_else(|| "a device".to_owned(), |name| name.to_string())
}

/// An error of a device.
pub(crate) fn error_on(device: &dyn Device, error: Diagnostic) -> Diagnostic {
    match device.name() {
        Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
        None => error,
    }
}

/// The devices of a session, and how graphs come to them.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) topology: Topology,
    /// The devices of the topology, in its order.
    pub(crate) all: Vec<Arc<dyn Device>>,
    /// Whether their time is modelled.
    pub(crate) is_modelled: bool,
    /// Which variables are where.
    pub(crate) rules: Rules,
    /// How graphs are cut.
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
        // A loop takes as long as its iterations on modelled devices, however many these turn out to be.
        let flow = flow::Options { lower_control: is_modelled, ..flow };
        Ok(Devices { topology, all, is_modelled, rules, flow })
    }

    /// Whether there is nothing to choose.
    pub(crate) fn is_one(&self) -> bool {
        self.topology.devices.len() == 1 && !self.is_modelled && !self.flow.lower_everything
    }
}
