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

fn div_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x / y;
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

fn f32_of_i32(x: i32) -> f32 {
    let v1: f32 = f32(x);
    return v1;
}

fn i32_of_f32(x: f32) -> i32 {
    let v1: i32 = select(select(i32(clamp(x, -2147483648.0f, 2147483520.0f)), 2147483647i, x >= 2147483648.0f), i32(0), is_nan(x));
    return v1;
}

fn le_i32(x: i32, y: i32) -> bool {
    let v2: bool = x <= y;
    return v2;
}

fn lt_i32(x: i32, y: i32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
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

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
// The number of steps, and whether the iteration fails or takes too many of them.
var<private> steps: u32;
var<private> is_stuck: bool;

@compute @workgroup_size(1)
fn main() {
    var w0: f32 = bitcast<f32>(words[1]);
    var w1: f32 = bitcast<f32>(words[2]);
    var w2: i32 = bitcast<i32>(words[3]);
    var w3: i32 = bitcast<i32>(words[4]);
    var w4: i32 = bitcast<i32>(words[5]);
    var w5: f32 = bitcast<f32>(words[6]);
    var w6: bool = words[7] != 0u;
    var state = 0u;
    loop {
        let is_first = steps == 0u;
        let v13: bool = lt_i32(w2, w3);
        if is_stuck { if steps < 32768u || is_first { state = 2u; } break; }
        if !(v13) { state = 1u; break; }
        if steps >= 32768u { break; }
        steps++;
        is_stuck = is_stuck || !(w6);
        let v22: i32 = sub_i32(w3, w2);
        is_stuck = is_stuck || v22 == 0;
        let v23: i32 = div_i32(w3, v22);
        var v42: f32 = w0;
        var v43: i32 = w4;
        loop {
            is_stuck = is_stuck || steps >= 32768u;
            steps++;
            let v29: bool = le_i32(v43, v23);
            if is_stuck || !(v29) { break; }
            let v36: f32 = mul_f32(v42, w5);
            let v37: f32 = exp_f32(v36);
            let v38: i32 = i32_of_f32(v37);
            let v39: f32 = f32_of_i32(v38);
            let v40: f32 = sub_f32(v37, v39);
            let v41: i32 = add_i32(v43, w4);
            let next0 = v40;
            let next1 = v41;
            v42 = next0;
            v43 = next1;
        }
        let v44: i32 = add_i32(w2, w4);
        if is_stuck { if steps < 32768u || is_first { state = 2u; } break; }
        let next0 = w1;
        let next1 = v42;
        let next2 = v44;
        w0 = next0;
        w1 = next1;
        w2 = next2;
    }
    words[1] = bitcast<u32>(w0);
    words[2] = bitcast<u32>(w1);
    words[3] = bitcast<u32>(w2);
    words[0] = state;
}
