//! Runs a graph over several devices, with each node on a randomly chosen one, and compares the
//! results.

use super::engines::Outcome;
use super::real_peers::AtRealPeers;
use anabranch::Diagnostic;
use anabranch::dsl::equality::one_nan_each;
use anabranch::dsl::{Graph, HostTensor, interp};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};

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
/// over the graphs, and all with `ANABRANCH_SLOW`.
const WINDOWS: [u32; 3] = [1, 2, 32];

/// A graph compiled for some of the partitions, or for all with `ANABRANCH_SLOW`.
pub struct RandomPlacements {
    graph: Graph,
    programs: Vec<(&'static str, RandomPlacement, Result<RandomlyPlacedProgram, Diagnostic>)>,
    at_peers: AtRealPeers,
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
            for (k, parallel_iterations) in WINDOWS.into_iter().enumerate() {
                if !all && k != (i + (seed >> 32) as usize) % WINDOWS.len() {
                    continue;
                }
                let how = RandomPlacement { seed, parallel_iterations, ..cut };
                programs.push((name, how, RandomlyPlacedProgram::new(graph.clone(), how)));
            }
        }
        if std::env::var_os("ANABRANCH_GPU").is_some() {
            let gpus = RandomPlacement::MAX_GPUS;
            let how =
                RandomPlacement { devices: gpus + 1, seed, parallel_iterations: 2, gpus, ..RandomPlacement::default() };
            programs.push(("two GPUs and a CPU", how, RandomlyPlacedProgram::new(graph.clone(), how)));
        }
        let at_peers = AtRealPeers::new(&graph, seed, AT_PEERS);
        RandomPlacements { graph, programs, at_peers }
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
                // The second run reuses the executors of the first run.
                let second = program.run(inputs, &mut vars.to_vec())?;
                let again = one_nan_each(&second);
                assert_eq!(one_nan_each(&first), again, "{how:?}: the second run\n{graph}");
                Ok(first)
            });
            if let (true, Ok(got), Ok(expected)) = (how.interpreted, &outcome, &expected) {
                assert_eq!(one_nan_each(got), one_nan_each(expected), "{name}, {how:?}\n{graph}");
                let (after, expected) = (one_nan_each(&after), one_nan_each(&expected_vars));
                assert_eq!(after, expected, "{name}, {how:?}: variables\n{graph}");
            }
            outcomes.push((*name, outcome));
        }
        outcomes.extend(self.at_peers.run(graph, inputs, vars));
        outcomes
    }
}
