// kernel [8, 4, 32]
//   in x f32[8, 4, 32] at [a0, a1, a2]
//   in n f32[] at []
//   in g f32[32] at [a2]
//   s f32 [a0, a1] = sum of x over a2
//   mean f32 [a0, a1] = mul s, n
//   d f32 [a0, a1, a2] = sub x, mean
//   q f32 [a0, a1, a2] = mul d, d
//   v f32 [a0, a1] = sum of q over a2
//   r f32 [a0, a1] = rsqrt v
//   y f32 [a0, a1, a2] = mul d, r
//   out z f32 [a0, a1, a2] = mul y, g

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

fn rsqrt_f32(x: f32) -> f32 {
    let v2: f32 = sqrt(x);
    let v3: f32 = 1.0f / v2;
    return v3;
}

fn sub_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x - y;
    return v2;
}

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
@group(0) @binding(2) var<storage, read> t2: array<f32>;
@group(0) @binding(3) var<storage, read_write> t3: array<f32>;

@compute @workgroup_size(32)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + group.y * 65535u;
    if row >= 32u { return; }
    let a1 = row;
    let x1 = t1[0u];
    var r0: f32 = 0.0f;
    for (var i = thread; i < 32u; i += 32u) {
        let a2 = i;
        let x0 = t0[a1 * 32u + a2];
        r0 = add_f32(r0, x0);
    }
    let s0 = tree_add_f32(thread, r0);
    let s1: f32 = mul_f32(s0, x1);
    var r4: f32 = 0.0f;
    for (var i = thread; i < 32u; i += 32u) {
        let a2 = i;
        let x0 = t0[a1 * 32u + a2];
        let s2: f32 = sub_f32(x0, s1);
        let s3: f32 = mul_f32(s2, s2);
        r4 = add_f32(r4, s3);
    }
    let s4 = tree_add_f32(thread, r4);
    let s5: f32 = rsqrt_f32(s4);
    for (var i = thread; i < 32u; i += 32u) {
        let a2 = i;
        let x0 = t0[a1 * 32u + a2];
        let x2 = t2[a2];
        let s2: f32 = sub_f32(x0, s1);
        let s6: f32 = mul_f32(s2, s5);
        let s7: f32 = mul_f32(s6, x2);
        t3[a1 * 32u + a2] = s7;
    }
}
