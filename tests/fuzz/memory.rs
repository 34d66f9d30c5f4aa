//! The memory of fuzz targets. A program that measures it has one test alone, since it looks at the
//! peak of its process, where the system tells it.

use super::mutations::Mutator;

/// The memory that all inputs of a target together may take, in bytes. They are a few kilobytes
/// long.
const MOST: u64 = 16 << 20;

/// Returns the largest address space that this process has had, in bytes: memory counts from its
/// allocation, used or not.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Runs a target on `n` mutations of its valid inputs, none of which may take much memory.
#[track_caller]
pub fn takes_little_memory(name: &str, run: fn(&[u8]) -> bool, valid: &[Vec<u8>], n: usize, seed: u64) {
    assert!(valid.iter().all(|input| run(input)), "{name} takes its valid inputs");
    let (mut mutator, mut input, before) = (Mutator::new(seed), Vec::new(), peak());
    for i in 0..n {
        mutator.mutate(valid, &mut input);
        run(&input);
        if let (Some(before), Some(after)) = (before, peak()) {
            let grown = after - before;
            assert!(grown < MOST, "{name}: {grown} bytes of memory after input {i}: {input:02x?}");
        }
    }
}

/// Fails if the memory of a decoder that trusts a length would not be seen. Comes last, since the
/// peak stays.
pub fn check_that_memory_is_seen() {
    let Some(before) = peak() else { return };
    drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 30)));
    assert!(peak().is_some_and(|after| after - before >= MOST));
}
