// Running sums along the middle axis of a tensor [outer, length, inner], from its start or from its
// end. A thread computes one row. The type `Element` is put before this text.

struct Params {
    rows: u32,
    length: u32,
    inner: u32,
    is_reverse: u32,
}

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read_write> y: array<Element>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = (group.x + group.y * 65535u) * 64u + thread;
    if row >= p.rows { return; }
    let first = row / p.inner * p.length * p.inner + row % p.inner;
    var sum = Element();
    for (var i = 0u; i < p.length; i++) {
        let along = select(i, p.length - 1u - i, p.is_reverse == 1u);
        let at = first + along * p.inner;
        sum += x[at];
        y[at] = sum;
    }
}
