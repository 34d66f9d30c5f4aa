// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn abs_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    return v1;
}

fn abs_i32(x: i32) -> i32 {
    let v1: i32 = abs(x);
    return v1;
}

fn abs_u32(x: u32) -> u32 {
    return x;
}

fn sign_f32(x: f32) -> f32 {
    let v2: bool = x < 0.0f;
    let v4: f32 = select(x, -1.0f, v2);
    let v5: bool = 0.0f < x;
    let v7: f32 = select(v4, 1.0f, v5);
    return v7;
}

fn sign_i32(x: i32) -> i32 {
    let v2: bool = x < bitcast<i32>(0u);
    let v4: i32 = select(x, bitcast<i32>(4294967295u), v2);
    let v5: bool = bitcast<i32>(0u) < x;
    let v7: i32 = select(v4, bitcast<i32>(1u), v5);
    return v7;
}

fn sign_u32(x: u32) -> u32 {
    let v2: bool = 0u < x;
    let v4: u32 = select(x, 1u, v2);
    return v4;
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

fn expm1_f32(x: f32) -> f32 {
    let v3: bool = 89.0f < x;
    let v4: f32 = select(x, 89.0f, v3);
    let v5: bool = v4 < -50.0f;
    let v6: f32 = select(v4, -50.0f, v5);
    let v8: f32 = v6 * 1.442695f;
    let v9: f32 = round(v8);
    let v10: i32 = i32(round(v8));
    let v12: f32 = fma(v9, -0.6931472f, v6);
    let v14: f32 = fma(v9, 1.9046542e-9f, v12);
    let v16: i32 = v10 - bitcast<i32>(1u);
    let v18: i32 = v16 + bitcast<i32>(127u);
    let v20: i32 = v18 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v21: f32 = bitcast<f32>(v20);
    let v22: f32 = v14 * v14;
    let v25: f32 = fma(v14, 0.00019914203f, 0.0013941008f);
    let v28: f32 = fma(v14, 0.008333273f, 0.041666355f);
    let v29: f32 = fma(v25, v22, v28);
    let v32: f32 = fma(v14, 0.16666667f, 0.5f);
    let v33: f32 = fma(v29, v22, v32);
    let v34: f32 = fma(v33, v22, v14);
    let v35: f32 = v21 - 0.5f;
    let v36: f32 = fma(v21, v34, v35);
    let v37: f32 = abs(x);
    let v39: bool = v37 < 2.9802322e-8f;
    let v40: f32 = v36 + v36;
    let v41: f32 = select(v40, x, v39);
    return v41;
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

fn log1p_f32(x: f32) -> f32 {
    let v2: f32 = 1.0f + x;
    let v3: f32 = v2 - 1.0f;
    let v4: f32 = v2 - v3;
    let v5: f32 = 1.0f - v4;
    let v6: f32 = x - v3;
    let v7: f32 = v5 + v6;
    let v9: bool = v2 < 1.1754944e-38f;
    let v11: f32 = v2 * 33554432.0f;
    let v12: f32 = select(v2, v11, v9);
    let v13: i32 = bitcast<i32>(v12);
    let v16: i32 = v13 - bitcast<i32>(1060439283u);
    let v17: i32 = v16 >> (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v18: i32 = v17 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v19: i32 = v13 - v18;
    let v20: f32 = bitcast<f32>(v19);
    let v22: i32 = v17 - bitcast<i32>(25u);
    let v23: i32 = select(v17, v22, v9);
    let v24: f32 = v20 - 1.0f;
    let v25: f32 = v7 / v2;
    let v26: f32 = f32(v23);
    let v28: f32 = v24 + 2.0f;
    let v29: f32 = v24 / v28;
    let v30: f32 = v29 * v29;
    let v31: f32 = v24 * v24;
    let v33: f32 = v31 * 0.5f;
    let v34: f32 = v30 * v30;
    let v37: f32 = fma(v30, 0.2358227f, 0.28537303f);
    let v40: f32 = fma(v30, 0.40000334f, 0.6666666f);
    let v41: f32 = fma(v37, v34, v40);
    let v42: f32 = fma(v30, v41, v33);
    let v44: f32 = fma(v26, -1.9046542e-9f, v25);
    let v45: f32 = fma(v29, v42, v44);
    let v47: f32 = v33 - v45;
    let v48: f32 = v24 - v47;
    let v49: f32 = fma(v26, 0.6931472f, v48);
    let v51: bool = x == 0.0f;
    let v53: bool = v2 == bitcast<f32>(infinity_bits);
    let v54: bool = v51 | v53;
    let v55: f32 = select(v49, bitcast<f32>(infinity_bits), v53);
    let v56: bool = v2 == 0.0f;
    let v57: f32 = -bitcast<f32>(infinity_bits);
    let v58: f32 = select(v55, v57, v56);
    let v59: bool = 0.0f <= v2;
    let v61: f32 = select(bitcast<f32>(nan_bits), v58, v59);
    let v62: f32 = select(v61, x, v54);
    return v62;
}

fn sqrt_f32(x: f32) -> f32 {
    let v1: f32 = sqrt(x);
    return v1;
}

fn rsqrt_f32(x: f32) -> f32 {
    let v2: f32 = sqrt(x);
    let v3: f32 = 1.0f / v2;
    return v3;
}

fn recip_f32(x: f32) -> f32 {
    let v2: f32 = 1.0f / x;
    return v2;
}

fn sin_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: f32 = v1 * 0.63661975f;
    let v4: f32 = round(v3);
    let v5: i32 = i32(round(v3));
    let v7: f32 = fma(v4, -1.5707964f, v1);
    let v9: f32 = fma(v4, 4.371139e-8f, v7);
    let v11: f32 = fma(v4, 1.7151245e-15f, v9);
    let v12: f32 = v11 * v11;
    let v13: f32 = v11 * v12;
    let v14: f32 = v12 * v12;
    let v17: f32 = fma(v12, 2.7183085e-6f, -0.00019839335f);
    let v20: f32 = fma(v12, 0.008333329f, -0.16666667f);
    let v21: f32 = fma(v17, v14, v20);
    let v22: f32 = fma(v13, v21, v11);
    let v25: f32 = fma(v12, -2.7210206e-7f, 2.479952e-5f);
    let v28: f32 = fma(v12, -0.0013888883f, 0.041666668f);
    let v29: f32 = fma(v25, v14, v28);
    let v31: f32 = fma(v12, v29, -0.5f);
    let v33: f32 = fma(v12, v31, 1.0f);
    let v35: i32 = v5 & bitcast<i32>(1u);
    let v37: bool = v35 == bitcast<i32>(0u);
    let v38: bool = !v37;
    let v39: f32 = select(v22, v33, v38);
    let v41: i32 = v5 & bitcast<i32>(2u);
    let v42: bool = v41 == bitcast<i32>(0u);
    let v43: bool = !v42;
    let v44: f32 = bitcast<f32>((bitcast<u32>(1.0f) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v46: bool = v44 < 0.0f;
    let v47: bool = v43 != v46;
    let v48: f32 = -v39;
    let v49: f32 = select(v39, v48, v47);
    let v51: bool = 1000000.0f < v1;
    return select(v49, sin(x), v51);
}

fn cos_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: f32 = v1 * 0.63661975f;
    let v4: f32 = round(v3);
    let v5: i32 = i32(round(v3));
    let v7: f32 = fma(v4, -1.5707964f, v1);
    let v9: f32 = fma(v4, 4.371139e-8f, v7);
    let v11: f32 = fma(v4, 1.7151245e-15f, v9);
    let v12: f32 = v11 * v11;
    let v13: f32 = v11 * v12;
    let v14: f32 = v12 * v12;
    let v17: f32 = fma(v12, 2.7183085e-6f, -0.00019839335f);
    let v20: f32 = fma(v12, 0.008333329f, -0.16666667f);
    let v21: f32 = fma(v17, v14, v20);
    let v22: f32 = fma(v13, v21, v11);
    let v25: f32 = fma(v12, -2.7210206e-7f, 2.479952e-5f);
    let v28: f32 = fma(v12, -0.0013888883f, 0.041666668f);
    let v29: f32 = fma(v25, v14, v28);
    let v31: f32 = fma(v12, v29, -0.5f);
    let v33: f32 = fma(v12, v31, 1.0f);
    let v35: i32 = v5 & bitcast<i32>(1u);
    let v37: bool = v35 == bitcast<i32>(0u);
    let v38: bool = !v37;
    let v39: f32 = select(v33, v22, v38);
    let v40: i32 = v5 + bitcast<i32>(1u);
    let v42: i32 = v40 & bitcast<i32>(2u);
    let v43: bool = v42 == bitcast<i32>(0u);
    let v44: bool = !v43;
    let v45: f32 = -v39;
    let v46: f32 = select(v39, v45, v44);
    let v48: bool = 1000000.0f < v1;
    return select(v46, cos(x), v48);
}

fn tan_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: f32 = v1 * 0.63661975f;
    let v4: f32 = round(v3);
    let v5: i32 = i32(round(v3));
    let v7: f32 = fma(v4, -1.5707964f, v1);
    let v9: f32 = fma(v4, 4.371139e-8f, v7);
    let v11: f32 = fma(v4, 1.7151245e-15f, v9);
    let v12: f32 = v11 * v11;
    let v13: f32 = v11 * v12;
    let v14: f32 = v12 * v12;
    let v17: f32 = fma(v12, 2.7183085e-6f, -0.00019839335f);
    let v20: f32 = fma(v12, 0.008333329f, -0.16666667f);
    let v21: f32 = fma(v17, v14, v20);
    let v22: f32 = fma(v13, v21, v11);
    let v25: f32 = fma(v12, -2.7210206e-7f, 2.479952e-5f);
    let v28: f32 = fma(v12, -0.0013888883f, 0.041666668f);
    let v29: f32 = fma(v25, v14, v28);
    let v31: f32 = fma(v12, v29, -0.5f);
    let v33: f32 = fma(v12, v31, 1.0f);
    let v35: i32 = v5 & bitcast<i32>(1u);
    let v37: bool = v35 == bitcast<i32>(0u);
    let v38: bool = !v37;
    let v39: f32 = -v33;
    let v40: f32 = select(v22, v39, v38);
    let v41: f32 = select(v33, v22, v38);
    let v42: f32 = v40 / v41;
    let v43: f32 = bitcast<f32>((bitcast<u32>(1.0f) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v45: bool = v43 < 0.0f;
    let v46: f32 = -v42;
    let v47: f32 = select(v42, v46, v45);
    let v49: bool = 1000000.0f < v1;
    return select(v47, tan(x), v49);
}

fn asin_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: bool = 0.5f < v1;
    let v5: f32 = 1.0f - v1;
    let v6: f32 = v5 * 0.5f;
    let v7: f32 = v1 * v1;
    let v8: f32 = select(v7, v6, v3);
    let v9: f32 = sqrt(v8);
    let v10: f32 = select(v1, v9, v3);
    let v11: f32 = v10 * v8;
    let v12: f32 = v8 * v8;
    let v15: f32 = fma(v8, 0.03757787f, 0.014394021f);
    let v18: f32 = fma(v8, 0.03181976f, 0.04451548f);
    let v19: f32 = fma(v15, v12, v18);
    let v22: f32 = fma(v8, 0.07500512f, 0.1666666f);
    let v23: f32 = fma(v19, v12, v22);
    let v24: f32 = v11 * v23;
    let v26: f32 = v10 + v10;
    let v28: f32 = v24 + v24;
    let v29: f32 = -4.371139e-8f - v28;
    let v30: f32 = v26 - v29;
    let v31: f32 = 1.5707964f - v30;
    let v32: f32 = v10 + v24;
    let v33: f32 = select(v32, v31, v3);
    let v34: f32 = bitcast<f32>((bitcast<u32>(v33) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    return v34;
}

fn acos_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: bool = 0.5f < v1;
    let v5: f32 = 1.0f - v1;
    let v6: f32 = v5 * 0.5f;
    let v7: f32 = v1 * v1;
    let v8: f32 = select(v7, v6, v3);
    let v9: f32 = sqrt(v8);
    let v10: f32 = select(v1, v9, v3);
    let v11: f32 = v10 * v8;
    let v12: f32 = v8 * v8;
    let v15: f32 = fma(v8, 0.03757787f, 0.014394021f);
    let v18: f32 = fma(v8, 0.03181976f, 0.04451548f);
    let v19: f32 = fma(v15, v12, v18);
    let v22: f32 = fma(v8, 0.07500512f, 0.1666666f);
    let v23: f32 = fma(v19, v12, v22);
    let v24: f32 = v11 * v23;
    let v28: bool = x < 0.0f;
    let v29: f32 = bitcast<f32>((bitcast<u32>(v10) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v30: f32 = bitcast<f32>((bitcast<u32>(v24) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v31: f32 = -4.371139e-8f - v30;
    let v32: f32 = v29 - v31;
    let v33: f32 = 1.5707964f - v32;
    let v34: f32 = v29 + v29;
    let v35: f32 = v30 + v30;
    let v36: f32 = v34 + v35;
    let v37: f32 = 1.5707964f + 1.5707964f;
    let v38: f32 = -4.371139e-8f + -4.371139e-8f;
    let v39: f32 = v36 + v38;
    let v40: f32 = v37 + v39;
    let v41: f32 = select(v36, v40, v28);
    let v42: f32 = select(v33, v41, v3);
    return v42;
}

fn atan_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v4: bool = 0.41421357f < v1;
    let v6: bool = 2.4142137f < v1;
    let v7: f32 = -1.0f;
    let v8: f32 = v1 - 1.0f;
    let v9: f32 = select(v1, v8, v4);
    let v10: f32 = select(v9, v7, v6);
    let v11: f32 = v1 + 1.0f;
    let v12: f32 = select(1.0f, v11, v4);
    let v13: f32 = select(v12, v1, v6);
    let v20: f32 = select(0.0f, 0.7853982f, v4);
    let v21: f32 = select(v20, 1.5707964f, v6);
    let v22: f32 = select(-0.0f, -2.1855694e-8f, v4);
    let v23: f32 = select(v22, -4.371139e-8f, v6);
    let v24: f32 = v10 / v13;
    let v25: f32 = v24 * v24;
    let v26: f32 = v24 * v25;
    let v27: f32 = v25 * v25;
    let v31: f32 = fma(v25, 0.10595144f, -0.1424374f);
    let v32: f32 = fma(-0.060811665f, v27, v31);
    let v35: f32 = fma(v25, 0.19998483f, -0.33333316f);
    let v36: f32 = fma(v32, v27, v35);
    let v37: f32 = fma(v26, v36, v23);
    let v38: f32 = v24 + v37;
    let v39: f32 = v21 + v38;
    let v40: f32 = bitcast<f32>((bitcast<u32>(v39) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    return v40;
}

fn sinh_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: bool = 89.5f < v1;
    let v4: f32 = select(v1, 89.5f, v3);
    let v6: f32 = v4 * 1.442695f;
    let v7: f32 = round(v6);
    let v8: i32 = i32(round(v6));
    let v10: f32 = fma(v7, -0.6931472f, v4);
    let v12: f32 = fma(v7, 1.9046542e-9f, v10);
    let v14: i32 = v8 - bitcast<i32>(2u);
    let v16: i32 = v14 + bitcast<i32>(127u);
    let v18: i32 = v16 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v19: f32 = bitcast<f32>(v18);
    let v20: f32 = v12 * v12;
    let v23: f32 = fma(v12, 0.00019914203f, 0.0013941008f);
    let v26: f32 = fma(v12, 0.008333273f, 0.041666355f);
    let v27: f32 = fma(v23, v20, v26);
    let v30: f32 = fma(v12, 0.16666667f, 0.5f);
    let v31: f32 = fma(v27, v20, v30);
    let v32: f32 = fma(v31, v20, v12);
    let v34: f32 = v19 - 0.25f;
    let v35: f32 = fma(v19, v32, v34);
    let v36: f32 = v35 + v35;
    let v38: bool = v1 < 2.9802322e-8f;
    let v39: f32 = v36 + 0.5f;
    let v40: f32 = v35 / v39;
    let v41: f32 = v36 + v40;
    let v42: f32 = bitcast<f32>((bitcast<u32>(v41) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v43: f32 = select(v42, x, v38);
    return v43;
}

fn cosh_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: bool = 89.5f < v1;
    let v4: f32 = select(v1, 89.5f, v3);
    let v6: f32 = v4 * 1.442695f;
    let v7: f32 = round(v6);
    let v8: i32 = i32(round(v6));
    let v10: f32 = fma(v7, -0.6931472f, v4);
    let v12: f32 = fma(v7, 1.9046542e-9f, v10);
    let v14: i32 = v8 - bitcast<i32>(2u);
    let v16: i32 = v14 + bitcast<i32>(127u);
    let v18: i32 = v16 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v19: f32 = bitcast<f32>(v18);
    let v20: f32 = v12 * v12;
    let v23: f32 = fma(v12, 0.00019914203f, 0.0013941008f);
    let v26: f32 = fma(v12, 0.008333273f, 0.041666355f);
    let v27: f32 = fma(v23, v20, v26);
    let v30: f32 = fma(v12, 0.16666667f, 0.5f);
    let v31: f32 = fma(v27, v20, v30);
    let v32: f32 = fma(v31, v20, v12);
    let v33: f32 = fma(v19, v32, v19);
    let v34: f32 = v33 + v33;
    let v36: f32 = 0.125f / v33;
    let v37: f32 = v34 + v36;
    return v37;
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

fn sigmoid_f32(x: f32) -> f32 {
    let v3: f32 = abs(x);
    let v4: f32 = -v3;
    let v6: bool = 89.0f < v4;
    let v7: f32 = select(v4, 89.0f, v6);
    let v9: bool = v7 < -120.0f;
    let v10: f32 = select(v7, -120.0f, v9);
    let v12: f32 = v10 * 1.442695f;
    let v13: f32 = round(v12);
    let v14: i32 = i32(round(v12));
    let v16: f32 = fma(v13, -0.6931472f, v10);
    let v18: f32 = fma(v13, 1.9046542e-9f, v16);
    let v19: f32 = v18 * v18;
    let v22: f32 = fma(v18, 0.00019914203f, 0.0013941008f);
    let v25: f32 = fma(v18, 0.008333273f, 0.041666355f);
    let v26: f32 = fma(v22, v19, v25);
    let v29: f32 = fma(v18, 0.16666667f, 0.5f);
    let v30: f32 = fma(v26, v19, v29);
    let v31: f32 = fma(v30, v19, v18);
    let v32: f32 = v31 + 1.0f;
    let v34: i32 = v14 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v36: i32 = v34 + bitcast<i32>(127u);
    let v38: i32 = v36 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v39: f32 = bitcast<f32>(v38);
    let v40: f32 = v32 * v39;
    let v41: i32 = v14 - v34;
    let v42: i32 = v41 + bitcast<i32>(127u);
    let v43: i32 = v42 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v44: f32 = bitcast<f32>(v43);
    let v45: f32 = v40 * v44;
    let v46: bool = x < 0.0f;
    let v47: f32 = select(1.0f, v45, v46);
    let v48: f32 = 1.0f + v45;
    let v49: f32 = v47 / v48;
    return v49;
}

fn relu_f32(x: f32) -> f32 {
    let v2: f32 = select(0.0f, x, is_nan(x) || x > 0.0f);
    return v2;
}

fn relu_i32(x: i32) -> i32 {
    let v2: i32 = max(x, bitcast<i32>(0u));
    return v2;
}

fn relu_u32(x: u32) -> u32 {
    let v2: u32 = max(x, 0u);
    return v2;
}

fn softplus_f32(x: f32) -> f32 {
    let v2: f32 = select(0.0f, x, is_nan(x) || x > 0.0f);
    let v3: f32 = abs(x);
    let v4: f32 = -v3;
    let v6: bool = 89.0f < v4;
    let v7: f32 = select(v4, 89.0f, v6);
    let v9: bool = v7 < -120.0f;
    let v10: f32 = select(v7, -120.0f, v9);
    let v12: f32 = v10 * 1.442695f;
    let v13: f32 = round(v12);
    let v14: i32 = i32(round(v12));
    let v16: f32 = fma(v13, -0.6931472f, v10);
    let v18: f32 = fma(v13, 1.9046542e-9f, v16);
    let v19: f32 = v18 * v18;
    let v22: f32 = fma(v18, 0.00019914203f, 0.0013941008f);
    let v25: f32 = fma(v18, 0.008333273f, 0.041666355f);
    let v26: f32 = fma(v22, v19, v25);
    let v29: f32 = fma(v18, 0.16666667f, 0.5f);
    let v30: f32 = fma(v26, v19, v29);
    let v31: f32 = fma(v30, v19, v18);
    let v33: f32 = v31 + 1.0f;
    let v35: i32 = v14 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v37: i32 = v35 + bitcast<i32>(127u);
    let v39: i32 = v37 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v40: f32 = bitcast<f32>(v39);
    let v41: f32 = v33 * v40;
    let v42: i32 = v14 - v35;
    let v43: i32 = v42 + bitcast<i32>(127u);
    let v44: i32 = v43 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v45: f32 = bitcast<f32>(v44);
    let v46: f32 = v41 * v45;
    let v47: f32 = 1.0f + v46;
    let v48: f32 = v47 - 1.0f;
    let v49: f32 = v47 - v48;
    let v50: f32 = 1.0f - v49;
    let v51: f32 = v46 - v48;
    let v52: f32 = v50 + v51;
    let v54: bool = v47 < 1.1754944e-38f;
    let v56: f32 = v47 * 33554432.0f;
    let v57: f32 = select(v47, v56, v54);
    let v58: i32 = bitcast<i32>(v57);
    let v60: i32 = v58 - bitcast<i32>(1060439283u);
    let v61: i32 = v60 >> (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v62: i32 = v61 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v63: i32 = v58 - v62;
    let v64: f32 = bitcast<f32>(v63);
    let v66: i32 = v61 - bitcast<i32>(25u);
    let v67: i32 = select(v61, v66, v54);
    let v68: f32 = v64 - 1.0f;
    let v69: f32 = v52 / v47;
    let v70: f32 = f32(v67);
    let v72: f32 = v68 + 2.0f;
    let v73: f32 = v68 / v72;
    let v74: f32 = v73 * v73;
    let v75: f32 = v68 * v68;
    let v76: f32 = v75 * 0.5f;
    let v77: f32 = v74 * v74;
    let v80: f32 = fma(v74, 0.2358227f, 0.28537303f);
    let v83: f32 = fma(v74, 0.40000334f, 0.6666666f);
    let v84: f32 = fma(v80, v77, v83);
    let v85: f32 = fma(v74, v84, v76);
    let v87: f32 = fma(v70, -1.9046542e-9f, v69);
    let v88: f32 = fma(v73, v85, v87);
    let v90: f32 = v76 - v88;
    let v91: f32 = v68 - v90;
    let v92: f32 = fma(v70, 0.6931472f, v91);
    let v93: bool = v46 == 0.0f;
    let v95: bool = v47 == bitcast<f32>(infinity_bits);
    let v96: bool = v93 | v95;
    let v97: f32 = select(v92, bitcast<f32>(infinity_bits), v95);
    let v98: bool = v47 == 0.0f;
    let v99: f32 = -bitcast<f32>(infinity_bits);
    let v100: f32 = select(v97, v99, v98);
    let v101: bool = 0.0f <= v47;
    let v103: f32 = select(bitcast<f32>(nan_bits), v100, v101);
    let v104: f32 = select(v103, v46, v96);
    let v105: f32 = v2 + v104;
    return v105;
}

fn erf_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v3: bool = 11.0f < v1;
    let v4: f32 = select(v1, 11.0f, v3);
    let v5: f32 = v4 * v4;
    let v8: f32 = -v5;
    let v9: f32 = fma(v4, v4, v8);
    let v10: f32 = v5 * -1.0f;
    let v11: f32 = v9 * -1.0f;
    let v13: bool = 89.0f < v10;
    let v14: f32 = select(v10, 89.0f, v13);
    let v16: bool = v14 < -120.0f;
    let v17: f32 = select(v14, -120.0f, v16);
    let v19: f32 = v17 * 1.442695f;
    let v20: f32 = round(v19);
    let v21: i32 = i32(round(v19));
    let v23: f32 = fma(v20, -0.6931472f, v17);
    let v25: f32 = fma(v20, 1.9046542e-9f, v23);
    let v26: f32 = v25 + v11;
    let v27: f32 = v26 * v26;
    let v30: f32 = fma(v26, 0.00019914203f, 0.0013941008f);
    let v33: f32 = fma(v26, 0.008333273f, 0.041666355f);
    let v34: f32 = fma(v30, v27, v33);
    let v37: f32 = fma(v26, 0.16666667f, 0.5f);
    let v38: f32 = fma(v34, v27, v37);
    let v39: f32 = fma(v38, v27, v26);
    let v40: f32 = v39 + 1.0f;
    let v42: f32 = v4 + 4.0f;
    let v43: f32 = v4 + v4;
    let v44: f32 = v43 + 1.0f;
    let v45: f32 = v42 * v44;
    let v46: f32 = 1.0f / v45;
    let v47: f32 = v4 - 4.0f;
    let v48: f32 = v47 * v44;
    let v49: f32 = v48 * v46;
    let v50: f32 = v49 * v49;
    let v53: f32 = fma(v49, -0.0006220722f, -0.0010698703f);
    let v56: f32 = fma(v49, 0.0051176692f, -0.016007055f);
    let v57: f32 = fma(v53, v50, v56);
    let v60: f32 = fma(v49, 0.03719945f, -0.06636726f);
    let v61: f32 = fma(v57, v50, v60);
    let v64: f32 = fma(v49, 0.09372258f, -0.10103611f);
    let v65: f32 = fma(v61, v50, v64);
    let v68: f32 = fma(v49, 0.0680979f, 0.01537956f);
    let v69: f32 = fma(v65, v50, v68);
    let v72: f32 = fma(v49, -0.13962114f, 1.2329952f);
    let v73: f32 = fma(v69, v50, v72);
    let v74: f32 = v42 * v46;
    let v75: f32 = v73 * v74;
    let v76: f32 = v40 * v75;
    let v78: i32 = v21 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v80: i32 = v78 + bitcast<i32>(127u);
    let v82: i32 = v80 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v83: f32 = bitcast<f32>(v82);
    let v84: f32 = v76 * v83;
    let v85: i32 = v21 - v78;
    let v86: i32 = v85 + bitcast<i32>(127u);
    let v87: i32 = v86 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v88: f32 = bitcast<f32>(v87);
    let v89: f32 = v84 * v88;
    let v90: f32 = 1.0f - v89;
    let v92: bool = v5 < 0.9f;
    let v93: f32 = v5 * v5;
    let v96: f32 = fma(v5, -1.0068e-5f, 0.00011389746f);
    let v99: f32 = fma(v5, -0.00084990176f, 0.00522192f);
    let v100: f32 = fma(v96, v93, v99);
    let v103: f32 = fma(v5, -0.0268657f, 0.112837866f);
    let v104: f32 = fma(v100, v93, v103);
    let v107: f32 = fma(v5, -0.37612638f, 0.12837917f);
    let v108: f32 = fma(v104, v93, v107);
    let v109: f32 = fma(v4, v108, v4);
    let v110: f32 = select(v90, v109, v92);
    let v111: f32 = bitcast<f32>((bitcast<u32>(v110) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    return v111;
}

fn gelu_f32(x: f32) -> f32 {
    let v4: f32 = abs(x);
    let v6: bool = 15.556349f < v4;
    let v7: f32 = select(v4, 15.556349f, v6);
    let v9: f32 = v7 * 0.70710677f;
    let v11: f32 = v7 * v7;
    let v12: f32 = -v11;
    let v13: f32 = fma(v7, v7, v12);
    let v14: f32 = v11 * -0.5f;
    let v15: f32 = v13 * -0.5f;
    let v17: bool = 89.0f < v14;
    let v18: f32 = select(v14, 89.0f, v17);
    let v20: bool = v18 < -120.0f;
    let v21: f32 = select(v18, -120.0f, v20);
    let v23: f32 = v21 * 1.442695f;
    let v24: f32 = round(v23);
    let v25: i32 = i32(round(v23));
    let v27: f32 = fma(v24, -0.6931472f, v21);
    let v29: f32 = fma(v24, 1.9046542e-9f, v27);
    let v30: f32 = v29 + v15;
    let v31: f32 = v30 * v30;
    let v34: f32 = fma(v30, 0.00019914203f, 0.0013941008f);
    let v37: f32 = fma(v30, 0.008333273f, 0.041666355f);
    let v38: f32 = fma(v34, v31, v37);
    let v40: f32 = fma(v30, 0.16666667f, 0.5f);
    let v41: f32 = fma(v38, v31, v40);
    let v42: f32 = fma(v41, v31, v30);
    let v43: f32 = v42 + 1.0f;
    let v44: f32 = v43 * 0.5f;
    let v46: f32 = v9 + 4.0f;
    let v47: f32 = v9 + v9;
    let v48: f32 = v47 + 1.0f;
    let v49: f32 = v46 * v48;
    let v50: f32 = 1.0f / v49;
    let v51: f32 = v9 - 4.0f;
    let v52: f32 = v51 * v48;
    let v53: f32 = v52 * v50;
    let v54: f32 = v53 * v53;
    let v57: f32 = fma(v53, -0.0006220722f, -0.0010698703f);
    let v60: f32 = fma(v53, 0.0051176692f, -0.016007055f);
    let v61: f32 = fma(v57, v54, v60);
    let v64: f32 = fma(v53, 0.03719945f, -0.06636726f);
    let v65: f32 = fma(v61, v54, v64);
    let v68: f32 = fma(v53, 0.09372258f, -0.10103611f);
    let v69: f32 = fma(v65, v54, v68);
    let v72: f32 = fma(v53, 0.0680979f, 0.01537956f);
    let v73: f32 = fma(v69, v54, v72);
    let v76: f32 = fma(v53, -0.13962114f, 1.2329952f);
    let v77: f32 = fma(v73, v54, v76);
    let v78: f32 = v46 * v50;
    let v79: f32 = v77 * v78;
    let v80: f32 = v44 * v79;
    let v82: f32 = select(-15.556349f, x, is_nan(x) || x > -15.556349f);
    let v83: f32 = v80 * v82;
    let v85: i32 = v25 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v87: i32 = v85 + bitcast<i32>(127u);
    let v89: i32 = v87 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v90: f32 = bitcast<f32>(v89);
    let v91: f32 = v83 * v90;
    let v92: i32 = v25 - v85;
    let v93: i32 = v92 + bitcast<i32>(127u);
    let v94: i32 = v93 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v95: f32 = bitcast<f32>(v94);
    let v96: f32 = v91 * v95;
    let v97: bool = x < 0.0f;
    let v98: f32 = v80 * v90;
    let v99: f32 = v98 * v95;
    let v100: f32 = 1.0f - v99;
    let v101: f32 = x * v100;
    let v102: f32 = select(v101, v96, v97);
    let v103: f32 = v11 * 0.5f;
    let v104: f32 = v103 * v103;
    let v107: f32 = fma(v103, -1.0068e-5f, 0.00011389746f);
    let v110: f32 = fma(v103, -0.00084990176f, 0.00522192f);
    let v111: f32 = fma(v107, v104, v110);
    let v114: f32 = fma(v103, -0.0268657f, 0.112837866f);
    let v115: f32 = fma(v111, v104, v114);
    let v118: f32 = fma(v103, -0.37612638f, 0.12837917f);
    let v119: f32 = fma(v115, v104, v118);
    let v120: f32 = fma(v9, v119, v9);
    let v121: f32 = bitcast<f32>((bitcast<u32>(v120) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v122: f32 = fma(v121, 0.5f, 0.5f);
    let v123: f32 = x * v122;
    let v125: bool = v103 < 0.25f;
    let v126: f32 = select(v102, v123, v125);
    return v126;
}

fn silu_f32(x: f32) -> f32 {
    let v1: f32 = abs(x);
    let v2: f32 = -v1;
    let v4: bool = 89.0f < v2;
    let v5: f32 = select(v2, 89.0f, v4);
    let v7: bool = v5 < -120.0f;
    let v8: f32 = select(v5, -120.0f, v7);
    let v10: f32 = v8 * 1.442695f;
    let v11: f32 = round(v10);
    let v12: i32 = i32(round(v10));
    let v14: f32 = fma(v11, -0.6931472f, v8);
    let v16: f32 = fma(v11, 1.9046542e-9f, v14);
    let v17: f32 = v16 * v16;
    let v20: f32 = fma(v16, 0.00019914203f, 0.0013941008f);
    let v23: f32 = fma(v16, 0.008333273f, 0.041666355f);
    let v24: f32 = fma(v20, v17, v23);
    let v27: f32 = fma(v16, 0.16666667f, 0.5f);
    let v28: f32 = fma(v24, v17, v27);
    let v29: f32 = fma(v28, v17, v16);
    let v31: f32 = v29 + 1.0f;
    let v32: f32 = select(-120.0f, x, is_nan(x) || x > -120.0f);
    let v33: f32 = v31 * v32;
    let v35: bool = x < 0.0f;
    let v37: i32 = v12 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v39: i32 = v37 + bitcast<i32>(127u);
    let v41: i32 = v39 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v42: f32 = bitcast<f32>(v41);
    let v43: f32 = v33 * v42;
    let v44: i32 = v12 - v37;
    let v45: i32 = v44 + bitcast<i32>(127u);
    let v46: i32 = v45 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v47: f32 = bitcast<f32>(v46);
    let v48: f32 = v43 * v47;
    let v49: f32 = select(x, v48, v35);
    let v50: f32 = v31 * v42;
    let v51: f32 = v50 * v47;
    let v52: f32 = 1.0f + v51;
    let v53: f32 = v49 / v52;
    return v53;
}

fn floor_f32(x: f32) -> f32 {
    let v1: f32 = floor(x);
    return v1;
}

fn ceil_f32(x: f32) -> f32 {
    let v1: f32 = ceil(x);
    return v1;
}

fn round_f32(x: f32) -> f32 {
    let v1: f32 = round(x);
    return v1;
}

fn add_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x + y;
    return v2;
}

fn add_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x + y;
    return v2;
}

fn add_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x + y;
    return v2;
}

fn sub_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x - y;
    return v2;
}

fn sub_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x - y;
    return v2;
}

fn sub_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x - y;
    return v2;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
    return v2;
}

fn mul_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x * y;
    return v2;
}

fn mul_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x * y;
    return v2;
}

fn div_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x / y;
    return v2;
}

fn div_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x / y;
    return v2;
}

fn div_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x / y;
    return v2;
}

fn rem_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x % y;
    return v2;
}

fn rem_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x % y;
    return v2;
}

fn rem_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x % y;
    return v2;
}

fn neg_f32(x: f32) -> f32 {
    let v1: f32 = -x;
    return v1;
}

fn neg_i32(x: i32) -> i32 {
    let v1: i32 = -x;
    return v1;
}

fn neg_u32(x: u32) -> u32 {
    let v1: u32 = 0u - x;
    return v1;
}

fn pow_f32(x: f32, y: f32) -> f32 {
    let v5: f32 = abs(x);
    let v7: bool = v5 < 1.1754944e-38f;
    let v9: f32 = v5 * 33554432.0f;
    let v10: f32 = select(v5, v9, v7);
    let v11: i32 = bitcast<i32>(v10);
    let v14: i32 = v11 - bitcast<i32>(1060439283u);
    let v15: i32 = v14 >> (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v16: i32 = v15 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v17: i32 = v11 - v16;
    let v18: f32 = bitcast<f32>(v17);
    let v20: i32 = v15 - bitcast<i32>(25u);
    let v21: i32 = select(v15, v20, v7);
    let v22: f32 = v18 - 1.0f;
    let v23: f32 = f32(v21);
    let v25: f32 = 2.0f + v22;
    let v26: f32 = v25 - 2.0f;
    let v27: f32 = v22 - v26;
    let v28: f32 = v22 / v25;
    let v29: f32 = -v25;
    let v30: f32 = fma(v28, v29, v22);
    let v31: f32 = v28 * v27;
    let v32: f32 = v30 - v31;
    let v33: f32 = v32 / v25;
    let v34: f32 = v28 * v28;
    let v35: f32 = -v34;
    let v36: f32 = fma(v28, v28, v35);
    let v37: f32 = v28 + v28;
    let v38: f32 = fma(v37, v33, v36);
    let v39: f32 = v34 * v34;
    let v43: f32 = fma(v34, 0.28537303f, 0.40000334f);
    let v44: f32 = fma(0.2358227f, v39, v43);
    let v45: f32 = v34 * v44;
    let v47: f32 = 0.6666667f + v45;
    let v48: f32 = v47 - 0.6666667f;
    let v49: f32 = v45 - v48;
    let v51: f32 = v49 + -1.9868216e-8f;
    let v52: f32 = v34 * v47;
    let v53: f32 = -v52;
    let v54: f32 = fma(v34, v47, v53);
    let v55: f32 = fma(v38, v47, v54);
    let v56: f32 = fma(v34, v51, v55);
    let v57: f32 = v28 * v52;
    let v58: f32 = -v57;
    let v59: f32 = fma(v28, v52, v58);
    let v60: f32 = fma(v33, v52, v59);
    let v61: f32 = fma(v28, v56, v60);
    let v63: f32 = v23 * 0.6931472f;
    let v64: f32 = -v63;
    let v65: f32 = fma(v23, 0.6931472f, v64);
    let v67: f32 = fma(v23, -1.9046542e-9f, v65);
    let v68: f32 = v37 + v57;
    let v69: f32 = v68 - v37;
    let v70: f32 = v57 - v69;
    let v71: bool = v23 == 0.0f;
    let v72: f32 = v63 + v68;
    let v73: f32 = v72 - v63;
    let v74: f32 = v68 - v73;
    let v75: f32 = select(v72, v68, v71);
    let v76: f32 = select(v74, 0.0f, v71);
    let v77: f32 = v33 + v33;
    let v78: f32 = v61 + v77;
    let v79: f32 = v67 + v78;
    let v80: f32 = v70 + v79;
    let v81: f32 = v76 + v80;
    let v82: f32 = v75 + v81;
    let v83: f32 = v82 - v75;
    let v84: f32 = v81 - v83;
    let v85: f32 = y * v82;
    let v86: f32 = -v85;
    let v87: f32 = fma(y, v82, v86);
    let v88: f32 = fma(y, v84, v87);
    let v90: bool = -120.0f < v85;
    let v92: bool = v85 < 89.0f;
    let v93: bool = v90 & v92;
    let v94: f32 = select(0.0f, v88, v93);
    let v95: bool = 89.0f < v85;
    let v96: f32 = select(v85, 89.0f, v95);
    let v97: bool = v96 < -120.0f;
    let v98: f32 = select(v96, -120.0f, v97);
    let v100: f32 = v98 * 1.442695f;
    let v101: f32 = round(v100);
    let v102: i32 = i32(round(v100));
    let v104: f32 = fma(v101, -0.6931472f, v98);
    let v106: f32 = fma(v101, 1.9046542e-9f, v104);
    let v107: f32 = v106 + v94;
    let v108: f32 = v107 * v107;
    let v111: f32 = fma(v107, 0.00019914203f, 0.0013941008f);
    let v114: f32 = fma(v107, 0.008333273f, 0.041666355f);
    let v115: f32 = fma(v111, v108, v114);
    let v118: f32 = fma(v107, 0.16666667f, 0.5f);
    let v119: f32 = fma(v115, v108, v118);
    let v120: f32 = fma(v119, v108, v107);
    let v121: f32 = v120 + 1.0f;
    let v123: i32 = v102 >> (bitcast<u32>(bitcast<i32>(1u)) & 31u);
    let v125: i32 = v123 + bitcast<i32>(127u);
    let v126: i32 = v125 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v127: f32 = bitcast<f32>(v126);
    let v128: f32 = v121 * v127;
    let v129: i32 = v102 - v123;
    let v130: i32 = v129 + bitcast<i32>(127u);
    let v131: i32 = v130 << (bitcast<u32>(bitcast<i32>(23u)) & 31u);
    let v132: f32 = bitcast<f32>(v131);
    let v133: f32 = v128 * v132;
    let v134: bool = v5 == 0.0f;
    let v135: bool = y < 0.0f;
    let v136: bool = v134 != v135;
    let v137: f32 = select(bitcast<f32>(infinity_bits), 0.0f, v136);
    let v138: bool = v5 == bitcast<f32>(infinity_bits);
    let v139: bool = v134 | v138;
    let v140: f32 = select(v133, v137, v139);
    let v141: bool = 1.0f < v5;
    let v142: bool = v141 != v135;
    let v143: f32 = select(0.0f, bitcast<f32>(infinity_bits), v142);
    let v144: f32 = abs(y);
    let v145: bool = v144 == bitcast<f32>(infinity_bits);
    let v146: bool = v5 == 1.0f;
    let v147: f32 = select(v143, 1.0f, v146);
    let v148: f32 = select(v140, v147, v145);
    let v149: f32 = floor(y);
    let v150: bool = v149 == y;
    let v151: f32 = y * 0.5f;
    let v152: f32 = floor(v151);
    let v153: bool = v152 == v151;
    let v154: bool = !v153;
    let v155: bool = v150 & v154;
    let v156: f32 = bitcast<f32>((bitcast<u32>(1.0f) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v157: bool = v156 < 0.0f;
    let v158: bool = x < 0.0f;
    let v159: bool = !v158;
    let v160: bool = v150 | v159;
    let v161: bool = v160 | v138;
    let v163: f32 = select(bitcast<f32>(nan_bits), v148, v161);
    let v164: bool = v157 & v155;
    let v165: f32 = -v163;
    let v166: f32 = select(v163, v165, v164);
    let v167: bool = !is_nan(x);
    let v168: bool = !v167;
    let v169: bool = !is_nan(y);
    let v170: bool = !v169;
    let v171: bool = v168 | v170;
    let v172: f32 = x + y;
    let v173: f32 = select(v166, v172, v171);
    let v174: bool = x == 1.0f;
    let v175: bool = y == 0.0f;
    let v176: bool = v174 | v175;
    let v177: f32 = select(v173, 1.0f, v176);
    return v177;
}

fn maximum_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = select(y, x, is_nan(x) || x > y);
    return v2;
}

fn maximum_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = max(x, y);
    return v2;
}

fn maximum_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = max(x, y);
    return v2;
}

fn minimum_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = select(y, x, is_nan(x) || x < y);
    return v2;
}

fn minimum_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = min(x, y);
    return v2;
}

fn minimum_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = min(x, y);
    return v2;
}

fn atan2_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = abs(y);
    let v3: f32 = abs(x);
    let v6: f32 = select(v3, v2, is_nan(v2) || v2 > v3);
    let v7: f32 = select(v2, v3, is_nan(v3) || v3 < v2);
    let v8: bool = 8.5070587e37f < v6;
    let v9: f32 = v6 * 0.5f;
    let v10: f32 = select(v6, v9, v8);
    let v11: f32 = v7 * 0.5f;
    let v12: f32 = select(v7, v11, v8);
    let v14: f32 = v10 * 0.41421357f;
    let v15: bool = v14 < v12;
    let v16: f32 = v12 - v10;
    let v17: f32 = select(v12, v16, v15);
    let v18: f32 = v12 + v10;
    let v19: f32 = select(v10, v18, v15);
    let v24: f32 = select(0.0f, 0.7853982f, v15);
    let v25: f32 = select(-0.0f, -2.1855694e-8f, v15);
    let v26: f32 = v17 / v19;
    let v27: f32 = v26 * v26;
    let v28: f32 = v26 * v27;
    let v29: f32 = v27 * v27;
    let v33: f32 = fma(v27, 0.10595144f, -0.1424374f);
    let v34: f32 = fma(-0.060811665f, v29, v33);
    let v37: f32 = fma(v27, 0.19998483f, -0.33333316f);
    let v38: f32 = fma(v34, v29, v37);
    let v39: f32 = fma(v28, v38, v25);
    let v40: f32 = v26 + v39;
    let v41: f32 = v24 + v40;
    let v42: bool = v10 == 0.0f;
    let v43: f32 = select(v41, 0.0f, v42);
    let v45: bool = v12 == bitcast<f32>(infinity_bits);
    let v46: f32 = select(v43, 0.7853982f, v45);
    let v47: bool = v2 < v3;
    let v50: f32 = v46 - -4.371139e-8f;
    let v51: f32 = 1.5707964f - v50;
    let v52: f32 = select(v46, v51, v47);
    let v54: f32 = bitcast<f32>((bitcast<u32>(1.0f) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
    let v55: bool = v54 < 0.0f;
    let v58: f32 = v52 - -8.742278e-8f;
    let v59: f32 = 3.1415927f - v58;
    let v60: f32 = select(v52, v59, v55);
    let v61: bool = !is_nan(y);
    let v62: bool = !v61;
    let v63: bool = !is_nan(x);
    let v64: bool = !v63;
    let v65: bool = v62 | v64;
    let v66: f32 = y + x;
    let v67: f32 = bitcast<f32>((bitcast<u32>(v60) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
    let v68: f32 = select(v67, v66, v65);
    return v68;
}

fn eq_f32(x: f32, y: f32) -> bool {
    let v2: bool = x == y;
    return v2;
}

fn eq_i32(x: i32, y: i32) -> bool {
    let v2: bool = x == y;
    return v2;
}

fn eq_u32(x: u32, y: u32) -> bool {
    let v2: bool = x == y;
    return v2;
}

fn eq_bool(x: bool, y: bool) -> bool {
    let v2: bool = x == y;
    return v2;
}

fn ne_f32(x: f32, y: f32) -> bool {
    let v2: bool = x == y;
    let v3: bool = !v2;
    return v3;
}

fn ne_i32(x: i32, y: i32) -> bool {
    let v2: bool = x == y;
    let v3: bool = !v2;
    return v3;
}

fn ne_u32(x: u32, y: u32) -> bool {
    let v2: bool = x == y;
    let v3: bool = !v2;
    return v3;
}

fn ne_bool(x: bool, y: bool) -> bool {
    let v2: bool = x == y;
    let v3: bool = !v2;
    return v3;
}

fn lt_f32(x: f32, y: f32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn lt_i32(x: i32, y: i32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn lt_u32(x: u32, y: u32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn le_f32(x: f32, y: f32) -> bool {
    let v2: bool = x <= y;
    return v2;
}

fn le_i32(x: i32, y: i32) -> bool {
    let v2: bool = x <= y;
    return v2;
}

fn le_u32(x: u32, y: u32) -> bool {
    let v2: bool = x <= y;
    return v2;
}

fn gt_f32(x: f32, y: f32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn gt_i32(x: i32, y: i32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn gt_u32(x: u32, y: u32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn ge_f32(x: f32, y: f32) -> bool {
    let v2: bool = y <= x;
    return v2;
}

fn ge_i32(x: i32, y: i32) -> bool {
    let v2: bool = y <= x;
    return v2;
}

fn ge_u32(x: u32, y: u32) -> bool {
    let v2: bool = y <= x;
    return v2;
}

fn and_bool(x: bool, y: bool) -> bool {
    let v2: bool = x & y;
    return v2;
}

fn or_bool(x: bool, y: bool) -> bool {
    let v2: bool = x | y;
    return v2;
}

fn xor_bool(x: bool, y: bool) -> bool {
    let v2: bool = x != y;
    return v2;
}

fn not_bool(x: bool) -> bool {
    let v1: bool = !x;
    return v1;
}

fn is_nan_f32(x: f32) -> bool {
    let v1: bool = !is_nan(x);
    let v2: bool = !v1;
    return v2;
}

fn is_finite_f32(x: f32) -> bool {
    let v1: f32 = abs(x);
    let v3: bool = v1 < bitcast<f32>(infinity_bits);
    return v3;
}

fn select_f32(x: bool, y: f32, z: f32) -> f32 {
    let v3: f32 = select(z, y, x);
    return v3;
}

fn select_i32(x: bool, y: i32, z: i32) -> i32 {
    let v3: i32 = select(z, y, x);
    return v3;
}

fn select_u32(x: bool, y: u32, z: u32) -> u32 {
    let v3: u32 = select(z, y, x);
    return v3;
}

fn select_bool(x: bool, y: bool, z: bool) -> bool {
    let v3: bool = select(z, y, x);
    return v3;
}

fn bit_and_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x & y;
    return v2;
}

fn bit_and_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x & y;
    return v2;
}

fn bit_or_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x | y;
    return v2;
}

fn bit_or_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x | y;
    return v2;
}

fn bit_xor_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x ^ y;
    return v2;
}

fn bit_xor_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x ^ y;
    return v2;
}

fn bit_not_i32(x: i32) -> i32 {
    let v1: i32 = ~x;
    return v1;
}

fn bit_not_u32(x: u32) -> u32 {
    let v1: u32 = ~x;
    return v1;
}

fn shift_left_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x << (bitcast<u32>(y) & 31u);
    return v2;
}

fn shift_left_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x << (bitcast<u32>(y) & 31u);
    return v2;
}

fn shift_right_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x >> (bitcast<u32>(y) & 31u);
    return v2;
}

fn shift_right_u32(x: u32, y: u32) -> u32 {
    let v2: u32 = x >> (bitcast<u32>(y) & 31u);
    return v2;
}
