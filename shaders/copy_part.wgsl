// Copies a tensor [outer, length, inner] into a part of another one, [outer, extent, inner]: its
// element i along the middle axis becomes the element start + i * step. The type `Element` is put
// before this text.

struct Params {
    // The number of elements of the tensor that is copied.
    size: u32,
    length: u32,
    inner: u32,
    extent: u32,
    start: u32,
    step: u32,
}

@group(0) @binding(0) var<storage, read> part: array<Element>;
@group(0) @binding(1) var<storage, read_write> whole: array<Element>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    let row = i / p.inner;
    let along = p.start + row % p.length * p.step;
    whole[(row / p.length * p.extent + along) * p.inner + i % p.inner] = part[i];
}
