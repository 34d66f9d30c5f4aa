enable wgpu_int16;
// kernel [16, 4]
//   in x bf16[16, 8] whole
//   in w f16[8, 4] whole
//   p f32 [a0, a1] = matmul x, w
//   t f32 [a0, a1] = tanh p
//   out y bf16 [a0, a1] = cast t {dtype=bf16}

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn number_of_bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn bf16_of_number(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return 0x7fc0u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn number_of_f16(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let fraction = bits & 1023u;
    var x = bitcast<f32>(((exponent + 112u) << 23u) | (fraction << 13u));
    if exponent == 31u { x = bitcast<f32>(0x7f800000u | (fraction << 13u)); }
    // Without numbers that a device may flush to zero.
    if exponent == 0u { x = f32(fraction) * 0x1p-24f; }
    return bitcast<f32>(bitcast<u32>(x) | ((bits & 0x8000u) << 16u));
}

fn f16_of_number(x: f32) -> u32 {
    let magnitude = bitcast<u32>(x) & 0x7fffffffu;
    var bits = ((magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u) - 0x1c000u;
    if magnitude < 0x38800000u { bits = u32(round(abs(x) * 0x1p24f)); }
    if magnitude >= 0x47800000u { bits = 0x7c00u; }
    if magnitude > 0x7f800000u { bits = 0x7e00u; }
    return bits | ((bitcast<u32>(x) >> 16u) & 0x8000u);
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

@group(0) @binding(0) var<storage, read> t0: array<u16>;
@group(0) @binding(1) var<storage, read> t1: array<u16>;
@group(0) @binding(2) var<storage, read_write> t2: array<u16>;

fn operand0(i: u32) -> f32 { return number_of_bf16(u32(t0[i])); }
fn operand1(i: u32) -> f32 { return number_of_f16(u32(t1[i])); }
fn finish(i: u32, s0: f32) {
    let a1 = i;
    let s1: f32 = tanh_f32(s0);
    let s2: f32 = number_of_bf16(bf16_of_number(s1));
    t2[i] = u16(bf16_of_number(s2));
}

enable wgpu_int16;
// kernel [8, 4]
//   in v f16[8, 4] at [a0, a1]
//   out v32 f32 [a0, a1] = cast v {dtype=f32}

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn number_of_f16(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let fraction = bits & 1023u;
    var x = bitcast<f32>(((exponent + 112u) << 23u) | (fraction << 13u));
    if exponent == 31u { x = bitcast<f32>(0x7f800000u | (fraction << 13u)); }
    // Without numbers that a device may flush to zero.
    if exponent == 0u { x = f32(fraction) * 0x1p-24f; }
    return bitcast<f32>(bitcast<u32>(x) | ((bits & 0x8000u) << 16u));
}

fn f16_of_number(x: f32) -> u32 {
    let magnitude = bitcast<u32>(x) & 0x7fffffffu;
    var bits = ((magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u) - 0x1c000u;
    if magnitude < 0x38800000u { bits = u32(round(abs(x) * 0x1p24f)); }
    if magnitude >= 0x47800000u { bits = 0x7c00u; }
    if magnitude > 0x7f800000u { bits = 0x7e00u; }
    return bits | ((bitcast<u32>(x) >> 16u) & 0x8000u);
}

@group(0) @binding(0) var<storage, read> t0: array<u16>;
@group(0) @binding(1) var<storage, read_write> t1: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 32u { return; }
    let a1 = i;
    let x0 = number_of_f16(u32(t0[a1]));
    let s0: f32 = x0;
    t1[a1] = s0;
}

enable wgpu_int16;
// kernel [16, 4]
//   in x bf16[16, 8] whole
//   in v32 f32[8, 4] whole
//   out q f32 [a0, a1] = matmul x, v32

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn number_of_bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn bf16_of_number(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return 0x7fc0u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

@group(0) @binding(0) var<storage, read> t0: array<u16>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

fn operand0(i: u32) -> f32 { return number_of_bf16(u32(t0[i])); }
fn operand1(i: u32) -> f32 { return t1[i]; }
fn finish(i: u32, s0: f32) {
    let a1 = i;
    t2[i] = s0;
}

// kernel [8, 4]
//   in v32 f32[8, 4] at [a0, a1]
//   out n f32 [a0, a1] = neg v32

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
    if i >= 32u { return; }
    let a1 = i;
    let x0 = t0[a1];
    let s0: f32 = neg_f32(x0);
    t1[a1] = s0;
}
