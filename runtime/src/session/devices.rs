//! The devices of a session.

use crate::device::{CpuDevice, Device, SimulatedDevice, measure};
use crate::device::{DeviceId, Topology};
use crate::flow;
use crate::place::Rules;
use anabranch_dsl::Result;
use std::sync::Arc;

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
    /// there are simulated devices, creates those instead. If `measure` is set, measures the rates
    /// of several CPU devices. The limit changes no estimate, so placement and results do not
    /// depend on it.
    pub(crate) fn new(
        n: usize,
        limit: Option<usize>,
        simulated: &[SimulatedDevice],
        measure: bool,
        rules: Rules,
        flow: flow::PartitionOptions,
    ) -> Result<Devices> {
        let is_simulated = !simulated.is_empty();
        let mut topology = if is_simulated { SimulatedDevice::topology(simulated)? } else { Topology::cpus(n) };
        rules.check(&topology)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / topology.devices.len()).max(1);
        let (all, host): (Vec<Arc<dyn Device>>, _) = if is_simulated {
            let host = CpuDevice::new(DeviceId::from_index(0), None, cores);
            (SimulatedDevice::devices(&topology, true), Arc::new(host))
        } else {
            topology.alone = cores as f64 / threads as f64;
            let threads = limit.map_or(threads, |limit| limit / topology.devices.len());
            let cpu = |id: DeviceId| CpuDevice::new(id, Some(topology.device(id).name), threads);
            let cpus: Vec<_> = topology.ids().map(|id| Arc::new(cpu(id))).collect();
            if measure && cpus.len() > 1 {
                topology = measure::measured(&topology, &cpus[0])?;
            }
            let host = cpus[0].clone();
            (cpus.into_iter().map(|cpu| cpu as Arc<dyn Device>).collect(), host)
        };
        // Simulated time of a loop must include all of its iterations, however many there are.
        let flow = flow::PartitionOptions { lower_control: is_simulated, ..flow };
        Ok(Devices { topology, all, host, rules, flow })
    }
}
