//! The memory of decoders: no input takes much, whatever lengths are in it. A program of its own,
//! since it looks at the memory of its process.

#[path = "../../tests/fuzz/bodies/checkpoint.rs"]
mod body;
#[path = "../../tests/fuzz/memory.rs"]
mod memory;
#[path = "../../tests/fuzz/mutations.rs"]
mod mutations;

/// One test, so that no other one runs meanwhile.
#[test]
fn no_input_of_a_fuzz_target_takes_much_memory() {
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 20_000 } else { 2000 };
    for (name, run, inputs) in body::TARGETS {
        memory::takes_little_memory(name, run, &inputs(), n, 2);
    }
    memory::check_that_memory_is_seen();
}
