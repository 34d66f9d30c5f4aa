//! Runs a graph over several devices, with each node on a randomly chosen one, and compares the
//! results.

use super::engines::Outcome;
use super::real_peers::AtRealPeers;
use anabranch::dsl::equality::{one_nan_each, same_number};
use anabranch::dsl::{Buffer, Graph, HostTensor, corpus, interp};
use anabranch::{Diagnostic, ErrorKind};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};
use std::cell::Cell;

/// The partitions to try. Those with interpreted kernels must return the interpreter's values,
/// bitwise except for NaNs.
fn cuts() -> [(&'static str, RandomPlacement); 15] {
    let on = |devices| RandomPlacement { devices, interpreted: true, ..RandomPlacement::default() };
    let lowered = |how| RandomPlacement { lower_everything: true, ..how };
    let simulated = |how| RandomPlacement { simulated: true, ..how };
    let opaque = |n, how| RandomPlacement { opaque: n, ..how };
    let processes = |n, how| RandomPlacement { processes: n, ..how };
    [
        ("one device, everything lowered", lowered(on(1))),
        ("two devices", on(2)),
        ("two devices, everything lowered", lowered(on(2))),
        ("three devices", on(3)),
        ("three devices, everything lowered", lowered(on(3))),
        ("three devices, compiled", RandomPlacement { interpreted: false, ..on(3) }),
        ("three simulated devices", simulated(on(3))),
        ("two simulated devices, everything lowered", simulated(lowered(on(2)))),
        ("an opaque device", opaque(1, on(1))),
        ("two opaque devices, everything lowered", opaque(2, lowered(on(2)))),
        ("two opaque devices and a CPU", opaque(2, on(3))),
        ("two processes", processes(2, on(2))),
        ("two processes, everything lowered", processes(2, lowered(on(2)))),
        ("three processes", processes(3, on(3))),
        ("five devices in three processes, one of them opaque", processes(3, opaque(1, on(5)))),
    ]
}

/// The numbers of concurrent loop iterations. Each partition gets one of them, which alternates
/// over the graphs and over the [seeds of runs](corpus::seed).
const WINDOWS: [u32; 3] = [1, 2, 32];

/// A graph compiled for some of the partitions, or for all with `ANABRANCH_SLOW`.
pub struct RandomPlacements {
    graph: Graph,
    programs: Vec<(&'static str, RandomPlacement, Result<RandomlyPlacedProgram, Diagnostic>)>,
    at_peers: AtRealPeers,
    on_gpu: Option<OnGpu>,
    /// Whether the next run is repeated with the same inputs: the first one, and in long runs each.
    is_repeated: Cell<bool>,
}

/// One of so many graphs also runs at real peers.
const AT_PEERS: u64 = 4;

impl RandomPlacements {
    pub fn new(graph: Graph) -> RandomPlacements {
        let text = graph.to_string();
        // Each graph has its own random partition, which is the same in each run.
        let seed = text.bytes().fold(0, |seed: u64, b| seed.wrapping_mul(31).wrapping_add(b.into()));
        let mut programs = Vec::new();
        let all = std::env::var_os("ANABRANCH_SLOW").is_some();
        for (i, (name, cut)) in cuts().into_iter().enumerate() {
            if !all && !(i as u64 + seed).is_multiple_of(3) {
                continue;
            }
            let window = (i as u64).wrapping_add(seed >> 32).wrapping_add(corpus::seed()) % WINDOWS.len() as u64;
            let how = RandomPlacement { seed, parallel_iterations: WINDOWS[window as usize], ..cut };
            programs.push((name, how, RandomlyPlacedProgram::new(graph.clone(), how)));
        }
        if std::env::var_os("ANABRANCH_GPU").is_some() {
            let gpus = RandomPlacement::MAX_GPUS;
            let how =
                RandomPlacement { devices: gpus + 1, seed, parallel_iterations: 2, gpus, ..RandomPlacement::default() };
            programs.push(("two GPUs and a CPU", how, RandomlyPlacedProgram::new(graph.clone(), how)));
        }
        let at_peers = AtRealPeers::new(&graph, seed, AT_PEERS);
        let on_gpu = std::env::var_os("ANABRANCH_GPU").is_some().then(|| OnGpu::new(&text, seed));
        RandomPlacements { graph, programs, at_peers, on_gpu, is_repeated: Cell::new(true) }
    }

    /// Returns the outcome of each partition. Compares the values of interpreted partitions.
    pub fn run(&self, inputs: &[HostTensor], vars: &[HostTensor]) -> Vec<(&'static str, Outcome)> {
        let graph = &self.graph;
        let mut expected_vars = vars.to_vec();
        let expected = interp::run(graph, inputs, &mut expected_vars, interp::InterpOptions::default());
        let mut outcomes = Vec::new();
        for (name, how, program) in &self.programs {
            let mut after = vars.to_vec();
            let outcome = program.as_ref().map_err(Clone::clone).and_then(|program| {
                let first = program.run(inputs, &mut after)?;
                // Each run reuses the executors of the one before it, also with other inputs.
                if self.is_repeated.get() {
                    let second = program.run(inputs, &mut vars.to_vec())?;
                    let again = one_nan_each(&second);
                    assert_eq!(one_nan_each(&first), again, "{how:?}: the second run\n{graph}");
                }
                Ok(first)
            });
            if let (true, Ok(got), Ok(expected)) = (how.interpreted, &outcome, &expected) {
                assert_eq!(one_nan_each(got), one_nan_each(expected), "{name}, {how:?}\n{graph}");
                let (after, expected) = (one_nan_each(&after), one_nan_each(&expected_vars));
                assert_eq!(after, expected, "{name}, {how:?}: variables\n{graph}");
            }
            outcomes.push((*name, outcome));
        }
        self.is_repeated.set(std::env::var_os("ANABRANCH_SLOW").is_some());
        outcomes.extend(self.at_peers.run(graph, inputs, vars));
        if let Some(on_gpu) = &self.on_gpu {
            on_gpu.check(inputs, vars);
        }
        outcomes
    }
}

/// A graph with `f32` in place of `f64`, on a GPU as far as there are shaders: GPUs have no `f64`.
struct OnGpu {
    graph: Graph,
    program: Result<RandomlyPlacedProgram, Diagnostic>,
}

impl OnGpu {
    fn new(text: &str, seed: u64) -> OnGpu {
        let text = text.replace("f64", "f32");
        let graph = Graph::parse(&text, "single.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let how = RandomPlacement { devices: 2, gpus: 1, prefers_gpu: true, seed, ..RandomPlacement::default() };
        OnGpu { program: RandomlyPlacedProgram::new(graph.clone(), how), graph }
    }

    /// Compares the outcome with that of the interpreter.
    fn check(&self, inputs: &[HostTensor], vars: &[HostTensor]) {
        let [inputs, vars] = [inputs, vars].map(|all| all.iter().map(single).collect::<Vec<_>>());
        let options = interp::InterpOptions::default();
        let expected = interp::run(&self.graph, &inputs, &mut vars.clone(), options);
        let outcome = self.program.as_ref().map_err(Clone::clone).and_then(|p| p.run(&inputs, &mut vars.clone()));
        match (&outcome, &expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got.len(), expected.len(), "{}", self.graph);
                for (got, expected) in got.iter().zip(expected) {
                    assert!(is_near(got, expected), "{}\n{got:?} is not {expected:?}", self.graph);
                }
            }
            // Engines need different amounts of memory.
            (Err(got), Err(expected)) if [got, expected].iter().all(|e| e.kind == ErrorKind::ResourceExhausted) => {}
            (Err(got), Err(expected)) => assert_eq!(got.message, expected.message, "{}", self.graph),
            _ => panic!("{}\n{outcome:?} is not {expected:?}", self.graph),
        }
    }
}

fn single(tensor: &HostTensor) -> HostTensor {
    match tensor.buffer() {
        Buffer::F64(x) => HostTensor::new(tensor.shape(), x.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        _ => tensor.clone(),
    }
}

/// Returns whether tensors are equal but for an error relative to the largest element: the elements
/// of the state of a loop depend on each other. Infinities of both signs are equal, since WGSL does
/// not keep the sign of a zero.
fn is_near(a: &HostTensor, b: &HostTensor) -> bool {
    let all_near = |numbers: Vec<(f32, f32)>, tolerance: f32| {
        let largest = numbers.iter().map(|(_, b)| b.abs()).filter(|b| b.is_finite()).fold(1.0, f32::max);
        numbers.iter().all(|&(a, b)| {
            same_number(a.into(), b.into())
                || (a.is_infinite() && b.is_infinite())
                || (a - b).abs() <= tolerance * largest
        })
    };
    a.shape() == b.shape()
        && match (a.buffer(), b.buffer()) {
            (Buffer::F32(a), Buffer::F32(b)) => all_near(a.iter().copied().zip(b.iter().copied()).collect(), 1e-4),
            (Buffer::F16(a), Buffer::F16(b)) => {
                all_near(a.iter().zip(b).map(|(a, b)| (a.to_f32(), b.to_f32())).collect(), 1e-2)
            }
            (Buffer::BF16(a), Buffer::BF16(b)) => {
                all_near(a.iter().zip(b).map(|(a, b)| (a.to_f32(), b.to_f32())).collect(), 5e-2)
            }
            _ => a == b,
        }
}
