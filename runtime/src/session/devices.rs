//! The devices of a session.

use crate::device::{CpuDevice, Device, SimulatedDevice, measure};
use crate::device::{DeviceId, Topology};
use crate::flow;
use crate::place::Rules;
use anabranch_dsl::Result;
use std::sync::Arc;

/// Returns a device of the topology with memory that the host cannot see.
#[cfg(feature = "testing")]
fn opaque_device(id: DeviceId, topology: &Topology) -> Arc<dyn Device> {
    Arc::new(crate::device::OpaqueDevice::new(id, Some(topology.device(id).name), id.index() as u64))
}

#[cfg(not(feature = "testing"))]
fn opaque_device(id: DeviceId, _: &Topology) -> Arc<dyn Device> {
    panic!("{id:?}: only tests have opaque devices")
}

/// The devices of a session, with its placement rules and partitioning options.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) topology: Topology,
    /// The devices of the topology, in the same order.
    pub(crate) all: Vec<Arc<dyn Device>>,
    /// The CPU that interprets graphs.
    pub(crate) host: Arc<CpuDevice>,
    /// The placement rules for variables.
    pub(crate) rules: Rules,
    /// The options of the partitioner.
    pub(crate) flow: flow::PartitionOptions,
}

impl Devices {
    /// Creates `n` CPU devices that share the cores of this machine, or `limit` of the cores. If
    /// there are simulated devices, creates those instead. Adds `opaque` devices to the CPUs, for
    /// tests. If `measure` is set, measures the rates of several CPU devices. The limit changes no
    /// estimate, so placement and results do not depend on it.
    pub(crate) fn new(
        n: usize,
        limit: Option<usize>,
        simulated: &[SimulatedDevice],
        opaque: usize,
        measure: bool,
        rules: Rules,
        flow: flow::PartitionOptions,
    ) -> Result<Devices> {
        let is_simulated = !simulated.is_empty();
        let cpus = || Topology::with_gpus(n, opaque);
        let mut topology = if is_simulated { SimulatedDevice::topology(simulated)? } else { cpus() };
        rules.check(&topology)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / n).max(1);
        let (all, host): (Vec<Arc<dyn Device>>, _) = if is_simulated {
            let host = CpuDevice::new(DeviceId::from_index(0), None, cores);
            (SimulatedDevice::devices(&topology, true), Arc::new(host))
        } else {
            topology.alone = cores as f64 / threads as f64;
            let threads = limit.map_or(threads, |limit| limit / n);
            let cpu = |id: DeviceId| CpuDevice::new(id, Some(topology.device(id).name), threads);
            let cpus: Vec<_> = topology.ids().take(n).map(|id| Arc::new(cpu(id))).collect();
            if measure && cpus.len() > 1 {
                topology = measure::measured(&topology, &cpus[0])?;
            }
            let host = cpus[0].clone();
            let cpus = cpus.into_iter().map(|cpu| cpu as Arc<dyn Device>);
            (cpus.chain(topology.ids().skip(n).map(|id| opaque_device(id, &topology))).collect(), host)
        };
        // Simulated time of a loop must include all of its iterations, however many there are.
        let flow = flow::PartitionOptions { lower_control: is_simulated, ..flow };
        Ok(Devices { topology, all, host, rules, flow })
    }
}
