// kernel [64, 32]
//   in x f32[64, 32] at [a0, a1]
//   in g f32[32] at [a1]
//   y f32 [a0, a1] = mul x, g
//   out s f32 [a0] = sum of y over a1

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn add_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x + y;
    return v2;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
    return v2;
}

var<workgroup> partial_f32: array<f32, 32>;

fn tree_add_f32(thread: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 16u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[0];
    workgroupBarrier();
    return result;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

@compute @workgroup_size(32)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + group.y * 65535u;
    if row >= 64u { return; }
    let a0 = row;
    var r1: f32 = 0.0f;
    for (var i = thread; i < 32u; i += 32u) {
        let a1 = i;
        let x0 = t0[a0 * 32u + a1];
        let x1 = t1[a1];
        let s0: f32 = mul_f32(x0, x1);
        r1 = add_f32(r1, s0);
    }
    let s1 = tree_add_f32(thread, r1);
    if thread == 0u { t2[a0] = s1; }
}
