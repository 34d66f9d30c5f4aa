// Adds the elements of a tensor [outer, length, inner] to those of another one, [outer, extent,
// inner], at indices along its middle axis. A thread adds all elements that belong to a part of a
// column, in order, so the result does not depend on the order of threads. The type `Element` is put
// before this text.

@group(0) @binding(1) var<storage, read> updates: array<Element>;
@group(0) @binding(2) var<storage, read_write> y: array<Element>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    let inner = i % p.inner;
    let part = i / p.inner % p.parts;
    let outer = i / p.inner / p.parts;
    let rows = (p.extent + p.parts - 1u) / p.parts;
    for (var along = 0u; along < p.length; along++) {
        let index = index_for(outer, along, inner);
        if index >= p.extent {
            atomicMax(&failure, p.check);
        } else if index / rows == part {
            y[(outer * p.extent + index) * p.inner + inner] += updates[(outer * p.length + along) * p.inner + inner];
        }
    }
}
