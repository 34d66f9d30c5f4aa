// The index of the first largest or smallest element along the middle axis of a tensor [outer,
// length, inner], or of the first NaN. A thread searches one row. The type `Element` and the
// function `is_nan_element` are put before this text.

struct Params {
    rows: u32,
    length: u32,
    inner: u32,
    is_smallest: u32,
}

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read_write> y: array<i32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = (group.x + group.y * 65535u) * 64u + thread;
    if row >= p.rows { return; }
    let first = row / p.inner * p.length * p.inner + row % p.inner;
    var best = x[first];
    var index = 0u;
    for (var i = 1u; i < p.length && !is_nan_element(best); i++) {
        let element = x[first + i * p.inner];
        let is_better = select(element > best, element < best, p.is_smallest == 1u);
        if is_better || is_nan_element(element) {
            best = element;
            index = i;
        }
    }
    y[row] = i32(index);
}
