// Marks elements of a list as written. Reports a failed check if an index is out of bounds or, with
// the constant `IS_FIRST` that is put before this text, if an element was marked before. A negative
// index is a large one here.

struct Params {
    // The number of indices.
    size: u32,
    n_elements: u32,
    check: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> written: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> failure: atomic<u32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    var fails = ids[i] >= p.n_elements;
    if !fails { fails = atomicExchange(&written[ids[i]], 1u) != 0u && IS_FIRST; }
    if fails { atomicMax(&failure, p.check); }
}
