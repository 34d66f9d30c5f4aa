//! Measurement of the rates of CPU devices: matmul throughput, memory bandwidth, overhead of an
//! operation, and latency of a message.
//!
//! Each rate is the best of several runs, because other load on the machine can only lower it. The
//! devices share the machine equally, so one of them is measured alone. Placement depends on
//! nothing but these rates. Two sessions that measure may therefore place a graph differently, so
//! measurement is optional.

use super::cpu::{CpuKernel, Loaded};
use super::{CpuDevice, DeviceBuffer, HostSide, Step, Ticket};
use super::{DeviceInfo, LinkSpeed, Topology};
use crate::options::{CompileOptions, CpuOptions};
use anabranch_dsl::{Graph, HostTensor, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns of the multiplied matrices.
const SIDE: usize = 384;

/// Elements of the added tensors, which exceed all caches.
const LARGE: usize = 4 << 20;

/// Number of operations in the chain of small operations.
const CHAIN: usize = 64;

/// The maximum number of runs. The fastest one counts.
const RUNS: usize = 8;

/// Time after which no further run begins.
const ENOUGH: Duration = Duration::from_millis(20);

/// Returns the topology with measured rates.
pub(crate) fn measured(topology: &Topology, device: &Arc<CpuDevice>) -> Result<Topology> {
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
        // One operand, since both are the same, and the result.
        bandwidth: (2 * LARGE * size_of::<f32>()) as f64 / sum,
        launch: ((long.seconds()? - small) / CHAIN as f64).max(1e-9),
        // There and back.
        latency: short.round_trip()? / 2.0,
    };
    let info =
        |d: &DeviceInfo| DeviceInfo { flops: rates.flops, bandwidth: rates.bandwidth, launch: rates.launch, ..*d };
    let link = LinkSpeed { bandwidth: rates.bandwidth, latency: rates.latency };
    let mut measured = Topology::new(topology.devices.iter().map(info).collect(), |_, _| link);
    measured.alone = topology.alone;
    Ok(measured)
}

/// The measured rates, as in [`DeviceInfo`] and [`LinkSpeed`].
struct Rates {
    flops: f64,
    bandwidth: f64,
    launch: f64,
    latency: f64,
}

/// A kernel to be timed.
struct Probe {
    kernel: Loaded,
    input: DeviceBuffer,
}

impl Probe {
    /// Compiles a kernel of one tensor `%x` of ones.
    fn new(device: &Arc<CpuDevice>, shape: &[usize], body: &str, result: &str) -> Result<Probe> {
        let ty = format!("f32{shape:?}");
        let text = format!("graph @probe(%x: {ty}) -> ({ty}) {{ {body} return %{result} }}");
        let graph = Graph::parse(&text, "probe").unwrap_or_else(|e| panic!("a probe is a graph: {}\n{text}", e[0]));
        // Operations are measured individually, because the cost of fused operations depends on the
        // program.
        let options = CompileOptions {
            fuse: false,
            cpu: CpuOptions { native: false, ..CpuOptions::default() },
            ..CompileOptions::default()
        };
        let input = HostTensor::new(shape.to_vec(), vec![1.0f32; shape.iter().product()]);
        let kernel = Loaded::new(CpuKernel::new(graph, options, &|| Ok(()))?, device.clone());
        let input = DeviceBuffer::of_tensor(device.place(), input);
        Ok(Probe { kernel, input })
    }

    /// Runs the kernel on the device. Returns the seconds of the run, and those until its
    /// completion was known.
    fn run(&self) -> Result<[f64; 2]> {
        let step = Step::new(HostSide::printing(Arc::new(|_, _| ())), Arc::default(), false, false);
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
        // The first run allocates memory that later runs reuse.
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

    /// Returns the seconds of a run.
    fn seconds(&self) -> Result<f64> {
        self.best(|[run, _]| run)
    }

    /// Returns the seconds from enqueueing until completion is known, without those of the run.
    fn round_trip(&self) -> Result<f64> {
        self.best(|[run, all]| all - run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    #[test]
    fn rates_are_those_of_a_machine() {
        let device = Arc::new(CpuDevice::new(DeviceId::from_index(0), None, 1));
        let devices = Topology::cpus(3);
        let topology = measured(&devices, &device).unwrap();
        let ids: Vec<_> = topology.ids().collect();
        assert_eq!(ids.len(), 3);
        for (&id, before) in ids.iter().zip(&devices.devices) {
            let DeviceInfo { name, flops, bandwidth, launch } = *topology.device(id);
            // Only upper bounds are strict: debug builds and loaded machines are slow.
            assert_eq!(name, before.name);
            assert!((1e6..1e14).contains(&flops), "{flops} operations a second");
            assert!((1e6..1e13).contains(&bandwidth), "{bandwidth} bytes a second");
            assert!((1e-9..1e-2).contains(&launch), "{launch} seconds for an operation");
            let latency = topology.link(ids[0], ids[1]).latency;
            assert!((1e-9..1.0).contains(&latency), "{latency} seconds for a message");
        }
    }
}
