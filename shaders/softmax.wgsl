// The softmax along the middle axis of a tensor [outer, length, inner], its logarithm, or the
// logarithm of the sum of exponentials. A workgroup computes one row. Elements are shifted by the
// largest one, so that no exponential overflows. `exp_f32`, `log_f32` and what they use are put before
// this text.

const SOFTMAX = 0u;
const LOG_SOFTMAX = 1u;
const LOGSUMEXP = 2u;

struct Params {
    rows: u32,
    length: u32,
    inner: u32,
    result: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> p: Params;
var<workgroup> partial: array<f32, 64>;

fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
fn larger(a: f32, b: f32) -> f32 {
    if is_nan(a) { return a; }
    if is_nan(b) { return b; }
    return max(a, b);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + group.y * 65535u;
    if row >= p.rows { return; }
    let first = row / p.inner * p.length * p.inner + row % p.inner;
    var largest = -bitcast<f32>(infinity_bits);
    for (var i = thread; i < p.length; i += 64u) { largest = larger(largest, x[first + i * p.inner]); }
    partial[thread] = largest;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial[thread] = larger(partial[thread], partial[thread + half]); }
    }
    workgroupBarrier();
    largest = partial[0];
    workgroupBarrier();
    // With an infinite maximum, differences would be NaN.
    let shift = select(0.0f, largest, is_finite(largest));
    var sum = 0.0f;
    for (var i = thread; i < p.length; i += 64u) { sum += exp_f32(x[first + i * p.inner] - shift); }
    partial[thread] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial[thread] += partial[thread + half]; }
    }
    workgroupBarrier();
    sum = partial[0];
    if p.result == LOGSUMEXP {
        if thread == 0u { y[row] = shift + log_f32(sum); }
        return;
    }
    for (var i = thread; i < p.length; i += 64u) {
        let shifted = x[first + i * p.inner] - shift;
        y[first + i * p.inner] = select(shifted - log_f32(sum), exp_f32(shifted) / sum, p.result == SOFTMAX);
    }
}
