//! Simulated devices: compute correct values by CPU kernels, and report completion in simulated
//! time.
//!
//! A kernel runs when it is enqueued, on the calling thread. Its event occurs at the simulated
//! time, on a [`SimulatedClock`] shared by the devices of a step. Events are handled in order of
//! time, then of creation, so every run is the same.

use super::cost::kernel_seconds;
use super::cpu::{CpuKernel, moved};
use super::{Device, DeviceBuffer, Event, LoadedKernel, MemorySpace, Progress, Step, Support, Ticket};
use super::{DeviceId, DeviceInfo, LinkSpeed, Topology, reason_against_gpus};
use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::{DeviceKind, DeviceName, LOCAL};
use anabranch_dsl::ir::Op;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Result, Type};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

/// A simulated device, which computes correct results and simulates their time.
///
/// Times follow from the given rates, on a clock independent of the machine. Use it to estimate how
/// a program would run on devices that you do not have, and to test which work overlaps. Each
/// device runs one kernel at a time in the order of submission. Copies overlap with kernels and run
/// one at a time on each link. Transfers to and from the host (inputs, predicates and results) also
/// use the link of the device. Variables are on their devices. The time of a kernel is the sum over
/// its operations. In branches and loops, only the kernels that run take time.
///
/// ```
/// use anabranch::{Session, SimulatedDevice};
/// use std::time::Duration;
///
/// let gpu = |i| {
///     SimulatedDevice::new(&format!("/gpu:{i}"))
///         .flops(10e12)
///         .bandwidth(1e12)
///         .launch(Duration::from_micros(5))
/// };
/// let session = Session::builder().simulated([gpu(0), gpu(1)]).build()?;
/// assert_eq!(session.devices().len(), 2);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct SimulatedDevice {
    name: String,
    pub(crate) flops: f64,
    pub(crate) bandwidth: f64,
    pub(crate) launch: Duration,
    pub(crate) link_bandwidth: f64,
    pub(crate) link_latency: Duration,
}

impl SimulatedDevice {
    /// Creates a device with 10 TFLOP/s, 500 GB/s, 5 µs per operation, and outgoing links of 10
    /// GB/s and 10 µs.
    pub fn new(name: &str) -> SimulatedDevice {
        SimulatedDevice {
            name: name.to_owned(),
            flops: 10e12,
            bandwidth: 500e9,
            launch: Duration::from_micros(5),
            link_bandwidth: 10e9,
            link_latency: Duration::from_micros(10),
        }
    }

    /// Sets the floating-point operations per second in matmuls.
    pub fn flops(self, flops: f64) -> SimulatedDevice {
        SimulatedDevice { flops, ..self }
    }

    /// Sets the memory bandwidth in bytes per second.
    pub fn bandwidth(self, bandwidth: f64) -> SimulatedDevice {
        SimulatedDevice { bandwidth, ..self }
    }

    /// Sets the fixed overhead of each operation.
    pub fn launch(self, launch: Duration) -> SimulatedDevice {
        SimulatedDevice { launch, ..self }
    }

    /// Sets the bandwidth in bytes per second and the latency of outgoing links.
    pub fn link(self, bandwidth: f64, latency: Duration) -> SimulatedDevice {
        SimulatedDevice { link_bandwidth: bandwidth, link_latency: latency, ..self }
    }

    fn info(&self) -> Result<DeviceInfo> {
        let name: DeviceName = self.name.parse()?;
        if name.peer() != LOCAL {
            let message = format!("the simulated device {name} belongs to another peer");
            return Err(Diagnostic::new(message).help("omit the peer"));
        }
        for (what, rate) in
            [("flops", self.flops), ("bandwidth", self.bandwidth), ("link bandwidth", self.link_bandwidth)]
        {
            if !(rate.is_finite() && rate > 0.0) {
                let message = format!("the simulated device {name}: {what} is {rate}, not a positive rate");
                return Err(Diagnostic::new(message).help("rates are finite numbers above 0"));
            }
        }
        Ok(DeviceInfo { name, flops: self.flops, bandwidth: self.bandwidth, launch: self.launch.as_secs_f64() })
    }

    /// Returns the topology of simulated devices.
    pub(crate) fn topology(devices: &[SimulatedDevice]) -> Result<Topology> {
        let infos = devices.iter().map(SimulatedDevice::info).collect::<Result<Vec<_>>>()?;
        for (i, info) in infos.iter().enumerate() {
            if infos[..i].iter().any(|other| other.name == info.name) {
                let error = Diagnostic::new(format!("two simulated devices have the name {}", info.name));
                return Err(error.help("give each device a number of its own, such as `/gpu:0` and `/gpu:1`"));
            }
        }
        let link = |from: DeviceId| {
            let from = &devices[from.index()];
            LinkSpeed { bandwidth: from.link_bandwidth, latency: from.link_latency.as_secs_f64() }
        };
        Ok(Topology::new(infos, |from, _| link(from)).with_host_links(|of| Some(link(of))))
    }

    /// Creates the devices of a topology. Errors mention them only if they are `named`.
    pub(crate) fn devices(topology: &Topology, named: bool) -> Vec<Arc<dyn Device>> {
        let topology = Arc::new(topology.clone());
        let name = |id| named.then(|| topology.device(id).name);
        let device = |id| Arc::new(ClockedDevice { id, name: name(id), topology: topology.clone() });
        topology.ids().map(|id| device(id) as Arc<dyn Device>).collect()
    }
}

/// A simulated device of a topology.
#[derive(Debug)]
struct ClockedDevice {
    id: DeviceId,
    name: Option<DeviceName>,
    topology: Arc<Topology>,
}

impl ClockedDevice {
    fn place(&self) -> MemorySpace {
        MemorySpace::Device(self.id)
    }

    fn host_link(&self) -> LinkSpeed {
        self.topology.host_link(self.id).expect("simulated devices have memory of their own")
    }

    /// Starts a transfer over a link. It takes as long as the memory of the values says.
    fn transfer(
        &self,
        values: Vec<DeviceBuffer>,
        [from, to]: [MemorySpace; 2],
        link: LinkSpeed,
        step: &Step,
        ticket: Ticket,
    ) -> Progress {
        let n_bytes: u64 = values.iter().map(DeviceBuffer::n_bytes).sum();
        with_clock(step, |clock| {
            let (begin, sent) = clock.take((from, to), n_bytes as f64 / link.bandwidth);
            clock.at(sent + link.latency, begin, ticket, Ok(moved(values, to)));
        });
        Progress::Later
    }
}

/// Calls `f` with the clock of a step on simulated devices.
fn with_clock<T>(step: &Step, f: impl FnOnce(&mut SimulatedClock) -> T) -> T {
    f(&mut step.clock().expect("a step on simulated devices has their clock"))
}

impl Device for ClockedDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> Option<DeviceName> {
        self.name
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn supports(&self, _: &Op, operands: &[&Type], results: &[&Type]) -> Support {
        let is_gpu = self.name.is_some_and(|name| name.kind() == DeviceKind::Gpu);
        let reason = reason_against_gpus(operands.iter().chain(results).copied()).filter(|_| is_gpu);
        reason.map_or(Support::Yes, Support::No)
    }

    fn load(
        self: Arc<Self>,
        graph: Graph,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Box<dyn LoadedKernel>> {
        let seconds = kernel_seconds(&graph, self.topology.device(self.id));
        Ok(Box::new(ClockedKernel { kernel: CpuKernel::new(graph, options, may_go_on)?, seconds, device: self.id }))
    }

    fn upload(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        self.transfer(values, [MemorySpace::Host, self.place()], self.host_link(), step, ticket)
    }

    fn download(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        self.transfer(values, [self.place(), MemorySpace::Host], self.host_link(), step, ticket)
    }

    fn copy(
        &self,
        values: Vec<DeviceBuffer>,
        to: &dyn Device,
        step: &Arc<Step>,
        ticket: Ticket,
    ) -> std::result::Result<Progress, Vec<DeviceBuffer>> {
        if !to.is_simulated() {
            return Err(values);
        }
        let link = self.topology.link(self.id, to.id());
        Ok(self.transfer(values, [self.place(), MemorySpace::Device(to.id())], link, step, ticket))
    }

    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        Ok(DeviceBuffer::of_tensor(self.place(), value))
    }

    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        Ok(value.into_tensor(self.place()))
    }
}

#[derive(Debug)]
struct ClockedKernel {
    kernel: CpuKernel,
    seconds: f64,
    device: DeviceId,
}

impl LoadedKernel for ClockedKernel {
    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        let place = MemorySpace::Device(self.device);
        let outcome = self.kernel.run(inputs, place, step.run_context());
        with_clock(step, |clock| {
            let (begin, end) = clock.take((place, place), self.seconds);
            clock.at(end, begin, ticket, outcome);
        });
        Ok(Progress::Later)
    }
}

/// The clock of simulated devices in one step, which advances from event to event. Times are in
/// seconds.
#[derive(Debug, Default)]
pub(super) struct SimulatedClock {
    now: f64,
    coming: BinaryHeap<Reverse<Coming>>,
    n_events: u64,
    /// The time at which each device and each link becomes free.
    free: BTreeMap<(MemorySpace, MemorySpace), f64>,
}

/// A future event.
#[derive(Debug)]
struct Coming {
    at: f64,
    /// Number of events created before it.
    number: u64,
    event: Event,
}

impl Ord for Coming {
    fn cmp(&self, other: &Coming) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Coming {
    fn partial_cmp(&self, other: &Coming) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Coming {
    fn eq(&self, other: &Coming) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Coming {}

impl SimulatedClock {
    pub(super) fn now(&self) -> Duration {
        duration(self.now)
    }

    /// Schedules the completion of work.
    fn at(&mut self, end: f64, begin: f64, ticket: Ticket, outcome: Result<Vec<DeviceBuffer>>) {
        let event = Event { ticket, outcome: Ok(outcome), begin: duration(begin), end: duration(end) };
        self.coming.push(Reverse(Coming { at: end, number: self.n_events, event }));
        self.n_events += 1;
    }

    /// Reserves a device or link for a duration as soon as it is free. Returns the start and end.
    fn take(&mut self, what: (MemorySpace, MemorySpace), seconds: f64) -> (f64, f64) {
        let free = self.free.entry(what).or_insert(0.0);
        let begin = free.max(self.now);
        *free = begin + seconds;
        (begin, begin + seconds)
    }

    /// Advances to the next event.
    pub(super) fn next(&mut self) -> Option<Event> {
        let Reverse(next) = self.coming.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

/// Converts seconds to a duration. Saturates, because simulated devices may be arbitrarily slow.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
