//! The test of a fuzz target: it takes its valid inputs, and no mutation of them makes it panic.

use super::mutations::Mutator;
use std::panic::catch_unwind;

/// Runs a target, which returns whether an input means something, on `n` mutations of its valid
/// inputs. Some of these must mean something, and others not.
#[track_caller]
pub fn survives_mutations(name: &str, run: fn(&[u8]) -> bool, valid: &[Vec<u8>], n: usize, seed: u64) {
    let (mut mutator, mut input, mut taken) = (Mutator::new(seed), Vec::new(), 0);
    for i in 0..n {
        mutator.mutate(valid, &mut input);
        let outcome = catch_unwind(|| run(&input));
        let is_valid = outcome.unwrap_or_else(|_| panic!("{name}: input {i} panics: {input:02x?}"));
        taken += usize::from(is_valid);
    }
    assert!((1..n).contains(&taken), "{name} takes {taken} of {n} mutated inputs");
}
