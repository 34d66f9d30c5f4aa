//! The devices of a session.

use crate::device::{CpuDevice, Device, DeviceSource, SimulatedDevice, measure};
use crate::device::{DeviceId, DeviceInfo, LinkSpeed, Topology};
use crate::flow;
use crate::flow::remote::{ProcessId, Processes};
#[cfg(feature = "peers")]
use crate::peer::RemoteDevices;
use crate::place::Rules;
use anabranch_dsl::Result;
use anabranch_dsl::device::{DeviceKind, DeviceName};
use std::sync::Arc;

/// The devices of a session, with its placement rules and partitioning options.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) topology: Topology,
    /// The devices of the topology, in the same order.
    pub(crate) all: Vec<Arc<dyn Device>>,
    /// The device that interprets graphs.
    pub(crate) host: Arc<dyn Device>,
    /// The placement rules for variables.
    pub(crate) rules: Rules,
    /// The options of the partitioner.
    pub(crate) flow: flow::PartitionOptions,
    /// The process of each device.
    pub(crate) processes: Processes,
    /// The devices of other processes.
    #[cfg(feature = "peers")]
    pub(crate) remote: Option<RemoteDevices>,
}

/// The devices that a session asks of its own machine.
pub(crate) struct DevicesOfMachine<'a> {
    /// The number of CPU devices.
    pub(crate) n: usize,
    /// The number of threads of all of them.
    pub(crate) limit: Option<usize>,
    pub(crate) simulated: &'a [SimulatedDevice],
    /// The devices beside the CPUs.
    pub(crate) others: &'a [Arc<dyn DeviceSource>],
    /// Whether the rates of the CPU devices are measured.
    pub(crate) measure: bool,
}

impl Devices {
    /// Creates `n` CPU devices that share the cores of this machine, or `limit` of the cores. If
    /// there are simulated devices, creates those instead. Adds `others` to the CPUs. If `measure`
    /// is set, measures the rates of several CPU devices. Devices of peers come last. The limit
    /// changes no estimate, so placement and results do not depend on it.
    pub(crate) fn new(
        DevicesOfMachine { n, limit, simulated, others, measure }: DevicesOfMachine<'_>,
        rules: Rules,
        flow: flow::PartitionOptions,
        #[cfg(feature = "peers")] remote: Option<RemoteDevices>,
    ) -> Result<Devices> {
        let is_simulated = !simulated.is_empty();
        #[cfg(feature = "peers")]
        let n_local = n + others.len();
        #[cfg(feature = "peers")]
        let (remote_infos, process_of, link_between) = {
            let infos: Vec<DeviceInfo> = remote.iter().flat_map(|remote| remote.infos()).collect();
            let remote = remote.as_ref();
            let process = move |id: DeviceId| match (remote, id.index().checked_sub(n_local)) {
                (Some(remote), Some(index)) => remote.process(index),
                _ => ProcessId::CALLER,
            };
            let between = move |from, to| remote.map_or(LinkSpeed::LOCAL, |remote| remote.link(from, to));
            (infos, process, between)
        };
        #[cfg(not(feature = "peers"))]
        let (remote_infos, process_of, link_between) =
            (Vec::new(), |_: DeviceId| ProcessId::CALLER, |_: ProcessId, _: ProcessId| LinkSpeed::LOCAL);
        let mut topology = match is_simulated {
            true => SimulatedDevice::topology(simulated)?,
            false => {
                let source = |id: DeviceId| others.get(id.index().checked_sub(n)?);
                let link = |from, to| match (process_of(from), process_of(to)) {
                    (a, b) if a != b => link_between(a, b),
                    _ => source(from).or_else(|| source(to)).map_or(LinkSpeed::LOCAL, |source| source.link()),
                };
                let name = |i| DeviceName::local(DeviceKind::Gpu, i);
                let devices = (0..n as u32)
                    .map(DeviceInfo::cpu)
                    .chain(others.iter().zip(0..).map(|(source, i)| source.info(name(i))))
                    .chain(remote_infos)
                    .collect();
                let host_link = |id| {
                    let shares_memory = process_of(id) == ProcessId::CALLER && source(id).is_none();
                    (!shares_memory).then(|| link(id, DeviceId::from_index(0)))
                };
                Topology::new(devices, link).with_host_links(host_link)
            }
        };
        rules.check(&topology)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / n).max(1);
        let (all, host): (Vec<Arc<dyn Device>>, Arc<dyn Device>) = if is_simulated {
            let host = CpuDevice::new(DeviceId::from_index(0), None, cores);
            (SimulatedDevice::devices(&topology, true), Arc::new(host))
        } else {
            topology.alone = cores as f64 / threads as f64;
            let threads = limit.map_or(threads, |limit| limit / n);
            let cpu = |id: DeviceId| CpuDevice::new(id, Some(topology.device(id).name), threads);
            let cpus: Vec<_> = topology.ids().take(n).map(|id| Arc::new(cpu(id))).collect();
            if measure && cpus.len() > 1 && others.is_empty() {
                topology = measure::measured(&topology, &cpus[0])?;
            }
            let host = cpus[0].clone();
            let cpus = cpus.into_iter().map(|cpu| cpu as Arc<dyn Device>);
            let open = |(source, id): (&Arc<dyn DeviceSource>, DeviceId)| source.open(id, topology.device(id).name);
            let others = others.iter().zip(topology.ids().skip(n)).map(open).collect::<Result<Vec<_>>>()?;
            #[cfg_attr(not(feature = "peers"), expect(unused_mut, reason = "devices of peers are added to it"))]
            let mut all: Vec<Arc<dyn Device>> = cpus.chain(others).collect();
            #[cfg(feature = "peers")]
            all.extend(remote.iter().flat_map(|remote| remote.open(n_local)));
            (all, host)
        };
        let processes = Processes::new(ProcessId::CALLER, topology.ids().map(process_of).collect());
        // Simulated time of a loop must include all of its iterations, however many there are.
        let flow = flow::PartitionOptions { lower_control: is_simulated, ..flow };
        Ok(Devices {
            topology,
            all,
            host,
            rules,
            flow,
            processes,
            #[cfg(feature = "peers")]
            remote,
        })
    }
}
