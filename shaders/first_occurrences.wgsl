// For each element of a vector, the index of the first element that is equal to it.

struct Params {
    size: u32,
}

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    let element = x[i];
    var first = 0u;
    while x[first] != element { first++; }
    y[i] = first;
}
