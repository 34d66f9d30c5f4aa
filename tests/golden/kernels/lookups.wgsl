// kernel [3, 4]
//   in table f32[10, 4] at [ids, a1]
//   in pos f32[3, 4] at [a0, a1]
//   in ids i32[3] at [a0]
//   out moved f32 [a0, a1] = add table, pos

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

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read> t2: array<i32>;
@group(0) @binding(3) var<storage, read_write> t3: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 12u { return; }
    let a1 = i % 4u;
    let a0 = i / 4u;
    let i0 = min(u32(t2[a0]), 9u);
    let x0 = t0[a1 + i0 * 4u];
    let x1 = t1[a0 * 4u + a1];
    let s0: f32 = add_f32(x0, x1);
    t3[a0 * 4u + a1] = s0;
}

// kernel [3, 4]
//   in table f32[10, 4] at [-2 ids + 7, a1]
//   in ids i32[3] at [a0]
//   square f32 [a0, a1] = mul table, table
//   out sum f32 [a0] = sum of square over a1

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

var<workgroup> partial_f32: array<f32, 4>;

fn tree_add_f32(thread: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[0];
    workgroupBarrier();
    return result;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<i32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

@compute @workgroup_size(4)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + group.y * 65535u;
    if row >= 3u { return; }
    let a0 = row;
    var r1: f32 = 0.0f;
    for (var i = thread; i < 4u; i += 4u) {
        let a1 = i;
        let i0 = min(u32(t1[a0]), 3u);
        let x0 = t0[a1 + 28u - i0 * 8u];
        let s0: f32 = mul_f32(x0, x0);
        r1 = add_f32(r1, s0);
    }
    let s1 = tree_add_f32(thread, r1);
    if thread == 0u { t2[a0] = s1; }
}

// kernel [4, 1]
//   in x f32[4, 6] at [a0, at]
//   in at i32[4, 1] at [a0, a1]
//   out n f32 [a0, a1] = neg x

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn neg_f32(x: f32) -> f32 {
    let v1: f32 = -x;
    return v1;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<i32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 4u { return; }
    let a0 = i;
    let i0 = min(u32(t1[a0]), 5u);
    let x0 = t0[a0 * 6u + i0 * 1u];
    let s0: f32 = neg_f32(x0);
    t2[a0] = s0;
}

// kernel [2, 4]
//   in kept f32[2, 4] at [a0, a1]
//   out e f32 [a0, a1] = exp kept

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn exp_f32(x: f32) -> f32 {
    let v2: bool = 89.0f < x;
    let v3: f32 = select(x, 89.0f, v2);
    let v5: bool = v3 < -120.0f;
    let v6: f32 = select(v3, -120.0f, v5);
    let v8: f32 = v6 * 1.442695f;
    let v9: f32 = round(v8);
    let v10: i32 = i32(round(v8));
    let v12: f32 = fma(v9, -0.6931472f, v6);
    let v14: f32 = fma(v9, 1.9046542e-9f, v12);
    let v15: f32 = v14 * v14;
    let v18: f32 = fma(v14, 0.00019914203f, 0.0013941008f);
    let v21: f32 = fma(v14, 0.008333273f, 0.041666355f);
    let v22: f32 = fma(v18, v15, v21);
    let v25: f32 = fma(v14, 0.16666667f, 0.5f);
    let v26: f32 = fma(v22, v15, v25);
    let v27: f32 = fma(v26, v15, v14);
    let v29: f32 = v27 + 1.0f;
    let v31: i32 = v10 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v33: i32 = v31 + bitcast<i32>(127u);
    let v35: i32 = v33 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v36: f32 = bitcast<f32>(v35);
    let v37: f32 = v29 * v36;
    let v38: i32 = v10 - v31;
    let v39: i32 = v38 + bitcast<i32>(127u);
    let v40: i32 = v39 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v41: f32 = bitcast<f32>(v40);
    let v42: f32 = v37 * v41;
    return v42;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read_write> t1: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 8u { return; }
    let a1 = i;
    let x0 = t0[a1];
    let s0: f32 = exp_f32(x0);
    t1[a1] = s0;
}
