//! The corpus of operations, at peers in processes of their own. The corpora of control flow run
//! there as on all other engines.

use crate::support::real_peers::{AtRealPeers, COMPILED};
use anabranch::dsl::corpus::cases;
use anabranch::dsl::interp;

/// One of so many cases runs at peers, and each case that fails when it runs.
const EVERY: u64 = 8;

#[test]
fn operations_at_real_peers_return_the_interpreters_values() {
    let (mut results, mut errors) = (0, 0);
    for (seed, case) in (0..).zip(cases()) {
        // Some cases are about errors of the trace.
        let Ok(graph) = case.graph() else { continue };
        let expected = interp::run(&graph, &case.inputs, &mut Vec::new(), interp::InterpOptions::default());
        let every = if expected.is_ok() { EVERY } else { 1 };
        for (engine, outcome) in AtRealPeers::new(&graph, seed, every).run(&graph, &case.inputs, &[]) {
            if engine == COMPILED {
                let wrong = case.verdict(&outcome);
                assert_eq!(wrong, None, "{engine}: {}, {}", case.op, case.name);
                continue;
            }
            match (&expected, outcome) {
                // Compared by the engine.
                (Ok(_), Ok(_)) => results += 1,
                (Err(expected), Err(error)) => {
                    assert_eq!(error.message, expected.message, "{engine}: {}, {}", case.op, case.name);
                    errors += 1;
                }
                (expected, outcome) => {
                    panic!("{engine}: {}, {}: {outcome:?} is not {expected:?}", case.op, case.name)
                }
            }
        }
    }
    assert!(results > 80 && errors > 2, "{results} results and {errors} errors are too few");
}
