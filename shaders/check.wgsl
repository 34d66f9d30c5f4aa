// Reports a failed check if a predicate is false.

@group(0) @binding(0) var<storage, read> predicate: u32;
@group(0) @binding(1) var<storage, read_write> failure: atomic<u32>;
var<immediate> check: u32;

@compute @workgroup_size(1)
fn main() {
    if predicate == 0u { atomicMax(&failure, check); }
}
