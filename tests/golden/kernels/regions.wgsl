// kernel [8]
//   in x f32[8] at [a0]
//   out e f32 [a0] = exp x

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
    let a0 = i;
    let x0 = t0[a0];
    let s0: f32 = exp_f32(x0);
    t1[a0] = s0;
}

// kernel []
//   in i i32[] at []
//   in n i32[] at []
//   out more bool [] = lt i, n

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn lt_i32(x: i32, y: i32) -> bool {
    let v2: bool = x < y;
    return v2;
}

@group(0) @binding(0) var<storage, read> t0: array<i32>;
@group(0) @binding(1) var<storage, read> t1: array<i32>;
@group(0) @binding(2) var<storage, read_write> t2: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 1u { return; }
    let x0 = t0[0u];
    let x1 = t1[0u];
    let s0: bool = lt_i32(x0, x1);
    t2[0u] = u32(s0);
}

// kernel [8]
//   in y f32[8] at [a0]
//   in x f32[8] at [a0]
//   a f32 [a0] = add y, x
//   out b f32 [a0] = tanh a

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

fn tanh_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v2: f32 = v1 + v1;
    let v4: bool = 20.0f < v2;
    let v5: f32 = select(v2, 20.0f, v4);
    let v7: f32 = v5 * 1.442695f;
    let v8: f32 = round(v7);
    let v9: i32 = i32(round(v7));
    let v11: f32 = fma(v8, -0.6931472f, v5);
    let v13: f32 = fma(v8, 1.9046542e-9f, v11);
    let v15: i32 = v9 - bitcast<i32>(0u);
    let v17: i32 = v15 + bitcast<i32>(127u);
    let v19: i32 = v17 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v20: f32 = bitcast<f32>(v19);
    let v21: f32 = v13 * v13;
    let v24: f32 = fma(v13, 0.00019914203f, 0.0013941008f);
    let v27: f32 = fma(v13, 0.008333273f, 0.041666355f);
    let v28: f32 = fma(v24, v21, v27);
    let v31: f32 = fma(v13, 0.16666667f, 0.5f);
    let v32: f32 = fma(v28, v21, v31);
    let v33: f32 = fma(v32, v21, v13);
    let v35: f32 = v20 - 1.0f;
    let v36: f32 = fma(v20, v33, v35);
    let v38: f32 = v36 + 2.0f;
    let v39: f32 = v36 / v38;
    let v40: f32 = bitcast<f32>((bitcast<u32>(v39) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    return v40;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 8u { return; }
    let a0 = i;
    let x0 = t0[a0];
    let x1 = t1[a0];
    let s0: f32 = add_f32(x0, x1);
    let s1: f32 = tanh_f32(s0);
    t2[a0] = s1;
}

// kernel []
//   in i i32[] at []
//   in one i32[] at []
//   out next i32 [] = add i, one

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn add_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x + y;
    return v2;
}

@group(0) @binding(0) var<storage, read> t0: array<i32>;
@group(0) @binding(1) var<storage, read> t1: array<i32>;
@group(0) @binding(2) var<storage, read_write> t2: array<i32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 1u { return; }
    let x0 = t0[0u];
    let x1 = t1[0u];
    let s0: i32 = add_i32(x0, x1);
    t2[0u] = s0;
}

// kernel [8]
//   in y f32[8] at [a0]
//   out z f32 [a0] = neg y

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
@group(0) @binding(1) var<storage, read_write> t1: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 8u { return; }
    let a0 = i;
    let x0 = t0[a0];
    let s0: f32 = neg_f32(x0);
    t1[a0] = s0;
}
