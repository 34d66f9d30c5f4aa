// The elements of a tensor [outer, extent, inner] at indices along its middle axis, of which each
// element of the result [outer, length, inner] has one. The type `Element` is put before this text.

@group(0) @binding(1) var<storage, read> x: array<Element>;
@group(0) @binding(2) var<storage, read_write> y: array<Element>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    let inner = i % p.inner;
    let row = i / p.inner;
    let outer = row / p.length;
    let index = checked(index_for(outer, row % p.length, inner));
    y[i] = x[(outer * p.extent + index) * p.inner + inner];
}
