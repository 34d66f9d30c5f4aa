// The sums of the elements of two tensors. A thread computes one element. The type `Element` and the
// function `added` are put before this text.

struct Params {
    size: u32,
}

@group(0) @binding(0) var<storage, read> a: array<Element>;
@group(0) @binding(1) var<storage, read> b: array<Element>;
@group(0) @binding(2) var<storage, read_write> sum: array<Element>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i < p.size { sum[i] = added(a[i], b[i]); }
}
