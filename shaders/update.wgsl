// Writes a tensor [outer, length, inner] to a part of another one, [outer, extent, inner], at
// indices along its middle axis that differ from each other. The type `Element` is put before this
// text.

@group(0) @binding(1) var<storage, read> part: array<Element>;
@group(0) @binding(2) var<storage, read_write> whole: array<Element>;

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
    let index = index_for(outer, row % p.length, inner);
    if index >= p.extent {
        atomicMax(&failure, p.check);
        return;
    }
    whole[(outer * p.extent + index) * p.inner + inner] = part[i];
}
