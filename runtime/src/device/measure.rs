//! Rates of the CPU devices of a session, measured: how fast they multiply, how fast they read and write, what an operation takes
//! whatever its size, and how long a message is under way.
//!
//! Each figure is the best of some runs: what else the machine does meanwhile only makes them slower. The devices share the machine in
//! equal parts, so one of them is measured, alone. Placement looks at nothing but these figures; two sessions that measure
//! may place one graph differently, which is why sessions measure only if they are asked to.

use super::cpu::{CpuKernel, Loaded};
use super::{Buffer, CpuDevice, Step, Ticket};
use crate::place::{DeviceInfo, Link, Topology};
use crate::program::Options;
use anabranch_dsl::{Graph, HostTensor, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns of the matrices that are multiplied.
const SIDE: usize = 384;

/// Elements of the tensors that are added: more than caches hold.
const LARGE: usize = 4 << 20;

/// Operations in the chain of small ones.
const CHAIN: usize = 64;

/// Runs, of which the best counts.
const RUNS: usize = 8;

/// After so long no further run is begun.
const ENOUGH: Duration = Duration::from_millis(20);

/// The same devices with the rates that they turn out to have.
pub(super) fn measured(topology: &Topology, device: &Arc<CpuDevice>) -> Result<Topology> {
    let product = format!("%y = matmul %x, %x : f32[{SIDE}, {SIDE}]");
    let product = Probe::new(device, &[SIDE, SIDE], &product, "y")?.seconds()?;
    let sum = format!("%y = add %x, %x : f32[{LARGE}]");
    let sum = Probe::new(device, &[LARGE], &sum, "y")?.seconds()?;
    let steps = |n: usize| (0..n).map(|i| format!("%y{} = neg %y{i} : f32[16] ", i + 1)).collect::<String>();
    let chain = |n: usize| Probe::new(device, &[16], &steps(n).replace("%y0", "%x"), &format!("y{n}"));
    let (long, short) = (chain(CHAIN + 1)?, chain(1)?);
    let small = short.seconds()?;
    let rates = Rates {
        flops: 2.0 * (SIDE * SIDE * SIDE) as f64 / product,
        // One operand, as both are the same, and the result.
        bandwidth: (2 * LARGE * size_of::<f32>()) as f64 / sum,
        launch: ((long.seconds()? - small) / CHAIN as f64).max(1e-9),
        // There and back.
        latency: short.round_trip()? / 2.0,
    };
    let info =
        |d: &DeviceInfo| DeviceInfo { flops: rates.flops, bandwidth: rates.bandwidth, launch: rates.launch, ..*d };
    let link = Link { bandwidth: rates.bandwidth, latency: rates.latency };
    let mut measured = Topology::new(topology.devices.iter().map(info).collect(), |_, _| link);
    measured.alone = topology.alone;
    Ok(measured)
}

/// What is measured, as [`DeviceInfo`] and [`Link`] have it.
struct Rates {
    flops: f64,
    bandwidth: f64,
    launch: f64,
    latency: f64,
}

/// A kernel that is timed.
struct Probe {
    kernel: Loaded,
    input: Buffer,
}

impl Probe {
    /// A kernel on one tensor `%x`, of ones.
    fn new(device: &Arc<CpuDevice>, shape: &[usize], body: &str, result: &str) -> Result<Probe> {
        let ty = format!("f32{shape:?}");
        let text = format!("graph @probe(%x: {ty}) -> ({ty}) {{ {body} return %{result} }}");
        let graph = Graph::parse(&text, "probe").unwrap_or_else(|e| panic!("a probe is a graph: {}\n{text}", e[0]));
        // Each operation by itself: what they cost together depends on the program.
        let options = Options { fuse: false, native: false, ..Options::default() };
        let input = HostTensor::new(shape.to_vec(), vec![1.0f32; shape.iter().product()]);
        let kernel = Loaded::new(CpuKernel::new(graph, options)?, device.clone());
        let input = Buffer::of_tensor(device.place(), input);
        Ok(Probe { kernel, input })
    }

    /// Runs it on the device; gives the seconds that it ran, and those until that was known here.
    fn run(&self) -> Result<[f64; 2]> {
        let step = Step::new(Arc::new(|_, _| ()), Arc::default(), false);
        self.kernel.enqueue_on_thread(vec![self.input.clone()], &step, Ticket(0))?;
        let event = loop {
            if let Some(event) = step.wait(Duration::from_secs(1)) {
                break event;
            }
        };
        let all = step.now().as_secs_f64();
        event.outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok([(event.end - event.begin).as_secs_f64(), all])
    }

    fn best(&self, seconds: impl Fn([f64; 2]) -> f64) -> Result<f64> {
        // The first run takes memory that later ones have.
        self.run()?;
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        for _ in 0..RUNS {
            best = best.min(seconds(self.run()?));
            if begin.elapsed() > ENOUGH {
                break;
            }
        }
        Ok(best.max(1e-9))
    }

    /// Seconds of a run.
    fn seconds(&self) -> Result<f64> {
        self.best(|[run, _]| run)
    }

    /// Seconds from giving it to the device until it is known that it is done, without those that it runs.
    fn round_trip(&self) -> Result<f64> {
        self.best(|[run, all]| all - run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::DeviceId;

    #[test]
    fn rates_are_those_of_a_machine() {
        let device = Arc::new(CpuDevice::new(DeviceId::from_index(0), None, 1));
        let devices = Topology::cpus(3);
        let topology = measured(&devices, &device).unwrap();
        let ids: Vec<_> = topology.ids().collect();
        assert_eq!(ids.len(), 3);
        for (&id, before) in ids.iter().zip(&devices.devices) {
            let DeviceInfo { name, flops, bandwidth, launch } = *topology.device(id);
            // Debug builds and machines that do other things are slow; nothing is faster than this.
            assert_eq!(name, before.name);
            assert!((1e6..1e14).contains(&flops), "{flops} operations a second");
            assert!((1e6..1e13).contains(&bandwidth), "{bandwidth} bytes a second");
            assert!((1e-9..1e-2).contains(&launch), "{launch} seconds for an operation");
            let latency = topology.link(ids[0], ids[1]).latency;
            assert!((1e-9..1.0).contains(&latency), "{latency} seconds for a message");
        }
    }
}
