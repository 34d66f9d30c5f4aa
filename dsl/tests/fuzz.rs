//! The fuzz targets of this crate, with some mutations of their valid inputs.

use crate::wire::mutations::Mutator;

#[path = "../../tests/fuzz/bodies/strings.rs"]
mod body;

#[test]
fn fuzz_targets_take_their_valid_inputs_and_survive_mutations() {
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 50_000 } else { 1_000 };
    for (name, _, inputs) in body::TARGETS {
        let valid = inputs();
        assert!(valid.iter().all(|input| body::run(name, input)), "{name} takes its valid inputs");
        let (mut mutator, mut input, mut taken) = (Mutator::new(1), Vec::new(), 0);
        for i in 0..n {
            mutator.mutate(&valid, &mut input);
            let outcome = std::panic::catch_unwind(|| body::run(name, &input));
            let is_valid = outcome.unwrap_or_else(|_| panic!("{name}: input {i} panics: {input:02x?}"));
            taken += usize::from(is_valid);
        }
        assert!((1..n).contains(&taken), "{name} takes {taken} of {n} mutated inputs");
    }
}
