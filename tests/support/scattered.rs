//! Runs a graph over several devices, each node on one chosen at random, and compares.

use anabranch::Diagnostic;
use anabranch::dsl::{Graph, HostTensor, interp};
use anabranch_runtime::{Scatter, ScatteredProgram};

type Outcome = Result<Vec<HostTensor>, Diagnostic>;

/// The ways in which a graph is cut. Those that are interpreted must give the interpreter's values, bit by bit.
const CUTS: [(&str, u32, bool, bool); 6] = [
    ("one device, everything lowered", 1, true, true),
    ("two devices", 2, false, true),
    ("two devices, everything lowered", 2, true, true),
    ("three devices", 3, false, true),
    ("three devices, everything lowered", 3, true, true),
    ("three devices, compiled", 3, false, false),
];

/// How many iterations of a loop run at once: each cut gets each of these, in turn over the graphs.
const WINDOWS: [u32; 3] = [1, 2, 32];

/// The outcome of two of the cuts, and of all with `ANABRANCH_SLOW`. Values of the interpreted ones are compared here.
pub fn run_scattered(graph: &Graph, inputs: &[HostTensor], vars: &[HostTensor]) -> Vec<(&'static str, Outcome)> {
    let text = graph.to_string();
    // Each graph is cut in its own way, the same in each run.
    let seed = text.bytes().fold(0, |seed: u64, b| seed.wrapping_mul(31).wrapping_add(b.into()));
    let mut expected_vars = vars.to_vec();
    let expected = interp::run(graph, inputs, &mut expected_vars, interp::Options::default());
    let mut outcomes = Vec::new();
    let all = std::env::var_os("ANABRANCH_SLOW").is_some();
    for (i, (name, devices, lower_everything, interpreted)) in CUTS.into_iter().enumerate() {
        if !all && !(i as u64 + seed).is_multiple_of(3) {
            continue;
        }
        let parallel_iterations = WINDOWS[(i + (seed >> 32) as usize) % WINDOWS.len()];
        let how = Scatter { devices, seed, parallel_iterations, lower_everything, interpreted };
        let mut after = vars.to_vec();
        let outcome = ScatteredProgram::new(graph.clone(), how).and_then(|program| {
            let first = program.run(inputs, &mut after)?;
            // The second run finds the executors as the first one left them.
            let second = program.run(inputs, &mut vars.to_vec())?;
            assert_eq!(format!("{first:?}"), format!("{second:?}"), "{how:?}: the second run\n{graph}");
            Ok(first)
        });
        if let (true, Ok(got), Ok(expected)) = (interpreted, &outcome, &expected) {
            assert_eq!(got, expected, "{name}, {how:?}\n{graph}");
            assert_eq!(after, expected_vars, "{name}, {how:?}: variables\n{graph}");
        }
        outcomes.push((name, outcome));
    }
    outcomes
}
