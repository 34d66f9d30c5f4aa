// Adds the terms of the iterations of a loop to a number, in an order that depends on their number
// alone.

@group(0) @binding(0) var<storage, read> start: Element;
@group(0) @binding(1) var<storage, read> terms: array<Element>;
@group(0) @binding(2) var<storage, read_write> y: Element;
var<immediate> n: u32;

var<workgroup> sums: array<Element, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    var sum = NOTHING;
    for (var i = thread; i < n; i += 256u) { sum += terms[i]; }
    sums[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half { sums[thread] += sums[thread + half]; }
    }
    if thread == 0u { y = start + sums[0]; }
}
