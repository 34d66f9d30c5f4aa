//! Any bytes are an error or a verified graph, which has one wire form.

use anabranch_dsl::ir::verify;
use anabranch_dsl::ir::wire::{WireLimits, decode, encode};

/// Decodes bytes. Returns whether they are a graph.
///
/// # Panics
/// Panics if the decoded graph is not right.
pub fn run(data: &[u8]) -> bool {
    match decode(data, &WireLimits::default()) {
        Ok(graph) => {
            if let Err(errors) = verify(&graph) {
                panic!("{}", errors[0]);
            }
            let bytes = encode(&graph);
            let again = decode(&bytes, &WireLimits::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
            assert!(again.same_structure(&graph), "{graph}\n{again}");
            assert_eq!(encode(&again), bytes, "{graph}");
            true
        }
        Err(error) => {
            assert!(error.to_string().starts_with("error: "));
            false
        }
    }
}
