// Reports a failed check if a word is not 1: a predicate, or the state of a loop over scalars, which
// is 1 if the loop has ended.

@group(0) @binding(0) var<storage, read> predicate: u32;
@group(0) @binding(1) var<storage, read_write> failure: atomic<u32>;
var<immediate> check: u32;

@compute @workgroup_size(1)
fn main() {
    if predicate != 1u { atomicMax(&failure, check); }
}
