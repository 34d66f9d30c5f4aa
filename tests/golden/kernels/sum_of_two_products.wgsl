// kernel [16, 4]
//   in x f32[16, 8] whole
//   in w f32[8, 4] whole
//   out p f32 [a0, a1] = matmul x, w

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

fn operand0(i: u32) -> f32 { return t0[i]; }
fn operand1(i: u32) -> f32 { return t1[i]; }
fn finish(i: u32, s0: f32) {
    let a1 = i;
    t2[i] = s0;
}

// kernel [16, 4]
//   in h f32[16, 4] whole
//   in u f32[4, 4] whole
//   in p f32[16, 4] at [a0, a1]
//   q f32 [a0, a1] = matmul h, u
//   s f32 [a0, a1] = add p, q
//   out y f32 [a0, a1] = tanh s

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
@group(0) @binding(2) var<storage, read> t2: array<f32>;
@group(0) @binding(3) var<storage, read_write> t3: array<f32>;

fn operand0(i: u32) -> f32 { return t0[i]; }
fn operand1(i: u32) -> f32 { return t1[i]; }
fn finish(i: u32, s0: f32) {
    let a1 = i;
    let x2 = t2[a1];
    let s1: f32 = add_f32(x2, s0);
    let s2: f32 = tanh_f32(s1);
    t3[i] = s2;
}
