// Reports a failed check if an index is not below `n`. A negative number is a large one here.

struct Params {
    size: u32,
    n: u32,
    check: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> failure: atomic<u32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    if ids[i] >= p.n { atomicMax(&failure, p.check); }
}
