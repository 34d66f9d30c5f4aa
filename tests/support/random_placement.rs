//! Runs a graph over several devices, with each node on a randomly chosen one, and compares the
//! results.

use super::engines::Outcome;
use anabranch::Diagnostic;
use anabranch::dsl::equality::one_nan_each;
use anabranch::dsl::{Graph, HostTensor, interp};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};

/// The partitions to try: the number of devices, and whether everything is lowered, kernels are
/// interpreted, devices are simulated, and the number of opaque devices. Interpreted partitions
/// must return the interpreter's values, bitwise except for NaNs.
const CUTS: [(&str, u32, bool, bool, bool, u32); 11] = [
    ("one device, everything lowered", 1, true, true, false, 0),
    ("two devices", 2, false, true, false, 0),
    ("two devices, everything lowered", 2, true, true, false, 0),
    ("three devices", 3, false, true, false, 0),
    ("three devices, everything lowered", 3, true, true, false, 0),
    ("three devices, compiled", 3, false, false, false, 0),
    ("three simulated devices", 3, false, true, true, 0),
    ("two simulated devices, everything lowered", 2, true, true, true, 0),
    ("an opaque device", 1, false, true, false, 1),
    ("two opaque devices, everything lowered", 2, true, true, false, 2),
    ("two opaque devices and a CPU", 3, false, true, false, 2),
];

/// The numbers of concurrent loop iterations. Each partition gets one of them, which alternates
/// over the graphs, and all with `ANABRANCH_SLOW`.
const WINDOWS: [u32; 3] = [1, 2, 32];

/// A graph compiled for some of the partitions, or for all with `ANABRANCH_SLOW`.
pub struct RandomPlacements {
    graph: Graph,
    programs: Vec<(&'static str, RandomPlacement, Result<RandomlyPlacedProgram, Diagnostic>)>,
}

impl RandomPlacements {
    pub fn new(graph: Graph) -> RandomPlacements {
        let text = graph.to_string();
        // Each graph has its own random partition, which is the same in each run.
        let seed = text.bytes().fold(0, |seed: u64, b| seed.wrapping_mul(31).wrapping_add(b.into()));
        let mut programs = Vec::new();
        let all = std::env::var_os("ANABRANCH_SLOW").is_some();
        for (i, (name, devices, lower_everything, interpreted, simulated, opaque)) in CUTS.into_iter().enumerate() {
            if !all && !(i as u64 + seed).is_multiple_of(3) {
                continue;
            }
            for (k, parallel_iterations) in WINDOWS.into_iter().enumerate() {
                if !all && k != (i + (seed >> 32) as usize) % WINDOWS.len() {
                    continue;
                }
                let how = RandomPlacement {
                    devices,
                    seed,
                    parallel_iterations,
                    lower_everything,
                    interpreted,
                    simulated,
                    opaque,
                    gpus: 0,
                };
                programs.push((name, how, RandomlyPlacedProgram::new(graph.clone(), how)));
            }
        }
        if std::env::var_os("ANABRANCH_GPU").is_some() {
            let gpus = RandomPlacement::MAX_GPUS;
            let how =
                RandomPlacement { devices: gpus + 1, seed, parallel_iterations: 2, gpus, ..RandomPlacement::default() };
            programs.push(("two GPUs and a CPU", how, RandomlyPlacedProgram::new(graph.clone(), how)));
        }
        RandomPlacements { graph, programs }
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
        outcomes
    }
}
