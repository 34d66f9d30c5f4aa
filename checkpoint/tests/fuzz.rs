//! The fuzz targets of this crate, with some mutations of their valid inputs.

#[path = "../../tests/fuzz/bodies/checkpoint.rs"]
mod body;
#[path = "../../tests/fuzz/mutations.rs"]
mod mutations;
#[path = "../../tests/fuzz/survive.rs"]
mod survive;

#[test]
fn fuzz_targets_take_their_valid_inputs_and_survive_mutations() {
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 20_000 } else { 500 };
    for (name, run, inputs) in body::TARGETS {
        let valid = inputs();
        assert!(valid.iter().all(|input| run(input)), "{name} takes its valid inputs");
        survive::survives_mutations(name, run, &valid, n, 1);
    }
}
