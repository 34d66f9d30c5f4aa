// kernel [4096, 1000]
//   in mask bool[1000] at [a1]
//   in x f32[4096, 1000] at [a0, a1]
//   in low f32[] at []
//   masked f32 [a0, a1] = select mask, x, low
//   largest f32 [a0] = max of masked over a1
//   less f32 [a0, a1] = sub masked, largest
//   e f32 [a0, a1] = exp less
//   total f32 [a0] = sum of e over a1
//   out y f32 [a0, a1] = div e, total
//   out log f32 [a0] = log total

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

fn div_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x / y;
    return v2;
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

fn log_f32(x: f32) -> f32 {
    let v2: bool = x < 1.1754944e-38f;
    let v4: f32 = x * 33554432.0f;
    let v5: f32 = select(x, v4, v2);
    let v6: i32 = bitcast<i32>(v5);
    let v9: i32 = v6 - bitcast<i32>(1060439283u);
    let v10: i32 = v9 >> (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v11: i32 = v10 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v12: i32 = v6 - v11;
    let v13: f32 = bitcast<f32>(v12);
    let v15: i32 = v10 - bitcast<i32>(25u);
    let v16: i32 = select(v10, v15, v2);
    let v18: f32 = v13 - 1.0f;
    let v20: f32 = f32(v16);
    let v22: f32 = v18 + 2.0f;
    let v23: f32 = v18 / v22;
    let v24: f32 = v23 * v23;
    let v25: f32 = v18 * v18;
    let v27: f32 = v25 * 0.5f;
    let v28: f32 = v24 * v24;
    let v31: f32 = fma(v24, 0.2358227f, 0.28537303f);
    let v34: f32 = fma(v24, 0.40000334f, 0.6666666f);
    let v35: f32 = fma(v31, v28, v34);
    let v36: f32 = fma(v24, v35, v27);
    let v38: f32 = fma(v20, -1.9046542e-9f, 0.0f);
    let v39: f32 = fma(v23, v36, v38);
    let v41: f32 = v27 - v39;
    let v42: f32 = v18 - v41;
    let v43: f32 = fma(v20, 0.6931472f, v42);
    let v45: bool = x == bitcast<f32>(infinity_bits);
    let v46: f32 = select(v43, bitcast<f32>(infinity_bits), v45);
    let v47: bool = x == 0.0f;
    let v48: f32 = -bitcast<f32>(infinity_bits);
    let v49: f32 = select(v46, v48, v47);
    let v50: bool = 0.0f <= x;
    let v52: f32 = select(bitcast<f32>(nan_bits), v49, v50);
    return v52;
}

fn maximum_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = select(y, x, is_nan(x) || x > y);
    return v2;
}

var<workgroup> partial_f32: array<f32, 256>;

fn select_f32(x: bool, y: f32, z: f32) -> f32 {
    let v3: f32 = select(z, y, x);
    return v3;
}

fn sub_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x - y;
    return v2;
}

fn tree_add_f32(thread: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[0];
    workgroupBarrier();
    return result;
}

fn tree_maximum_f32(thread: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 128u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if thread < half { partial_f32[thread] = maximum_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[0];
    workgroupBarrier();
    return result;
}

@group(0) @binding(0) var<storage, read> t0: array<u32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read> t2: array<f32>;
@group(0) @binding(3) var<storage, read_write> t3: array<f32>;
@group(0) @binding(4) var<storage, read_write> t4: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + group.y * 65535u;
    if row >= 4096u { return; }
    let a0 = row;
    let x2 = t2[0u];
    var r1: f32 = -bitcast<f32>(infinity_bits);
    for (var i = thread; i < 1000u; i += 256u) {
        let a1 = i;
        let x0 = t0[a1] != 0u;
        let x1 = t1[a0 * 1000u + a1];
        let s0: f32 = select_f32(x0, x1, x2);
        r1 = maximum_f32(r1, s0);
    }
    let s1 = tree_maximum_f32(thread, r1);
    var r4: f32 = 0.0f;
    for (var i = thread; i < 1000u; i += 256u) {
        let a1 = i;
        let x0 = t0[a1] != 0u;
        let x1 = t1[a0 * 1000u + a1];
        let s0: f32 = select_f32(x0, x1, x2);
        let s2: f32 = sub_f32(s0, s1);
        let s3: f32 = exp_f32(s2);
        r4 = add_f32(r4, s3);
    }
    let s4 = tree_add_f32(thread, r4);
    let s6: f32 = log_f32(s4);
    for (var i = thread; i < 1000u; i += 256u) {
        let a1 = i;
        let x0 = t0[a1] != 0u;
        let x1 = t1[a0 * 1000u + a1];
        let s0: f32 = select_f32(x0, x1, x2);
        let s2: f32 = sub_f32(s0, s1);
        let s3: f32 = exp_f32(s2);
        let s5: f32 = div_f32(s3, s4);
        t3[a0 * 1000u + a1] = s5;
    }
    if thread == 0u { t4[a0] = s6; }
}
