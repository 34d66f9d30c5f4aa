// kernel [8]
//   in x i32[8] at [a0]
//   out n i32 [a0] = neg x

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn neg_i32(x: i32) -> i32 {
    let v1: i32 = -x;
    return v1;
}

@group(0) @binding(0) var<storage, read> t0: array<i32>;
@group(0) @binding(1) var<storage, read_write> t1: array<i32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 8u { return; }
    let a0 = i;
    let x0 = t0[a0];
    let s0: i32 = neg_i32(x0);
    t1[a0] = s0;
}

// kernel [8]
//   in n i32[8] at [a0]
//   in y i32[8] at [a0]
//   out q i32 [a0] = div n, y

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn div_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x / y;
    return v2;
}

@group(0) @binding(0) var<storage, read> t0: array<i32>;
@group(0) @binding(1) var<storage, read> t1: array<i32>;
@group(0) @binding(2) var<storage, read_write> t2: array<i32>;
@group(0) @binding(3) var<storage, read_write> failure: atomic<u32>;
var<immediate> check: u32;

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
    if x1 == 0 { atomicMax(&failure, check); }
    let s0: i32 = div_i32(x0, x1);
    t2[a0] = s0;
}

// kernel [8]
//   in q i32[8] at [a0]
//   in x i32[8] at [a0]
//   out s i32 [a0] = add q, x

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
    if i >= 8u { return; }
    let a0 = i;
    let x0 = t0[a0];
    let x1 = t1[a0];
    let s0: i32 = add_i32(x0, x1);
    t2[a0] = s0;
}
