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

fn eq_i32(x: i32, y: i32) -> bool {
    let v2: bool = x == y;
    return v2;
}

fn gt_i32(x: i32, y: i32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn mul_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x * y;
    return v2;
}

fn rem_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x % y;
    return v2;
}

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
// The number of steps, and whether the iteration fails or takes too many of them.
var<private> steps: u32;
var<private> is_stuck: bool;

@compute @workgroup_size(1)
fn main() {
    var w0: i32 = bitcast<i32>(words[1]);
    var w1: i32 = bitcast<i32>(words[2]);
    var w2: i32 = bitcast<i32>(words[3]);
    var w3: i32 = bitcast<i32>(words[4]);
    var w4: i32 = bitcast<i32>(words[5]);
    var w5: i32 = bitcast<i32>(words[6]);
    var state = 0u;
    loop {
        let is_first = steps == 0u;
        let v11: bool = gt_i32(w0, w2);
        if is_stuck { if steps < 32768u || is_first { state = 2u; } break; }
        if !(v11) { state = 1u; break; }
        if steps >= 32768u { break; }
        steps++;
        let v18: i32 = div_i32(w0, w3);
        let v19: i32 = rem_i32(w0, w3);
        let v20: bool = eq_i32(v19, w5);
        var v31: i32;
        if v20 {
            v31 = v18;
        } else {
            let v29: i32 = mul_i32(w0, w4);
            let v30: i32 = add_i32(v29, w2);
            v31 = v30;
        }
        let v32: i32 = add_i32(w1, w2);
        if is_stuck { if steps < 32768u || is_first { state = 2u; } break; }
        let next0 = v31;
        let next1 = v32;
        w0 = next0;
        w1 = next1;
    }
    words[1] = bitcast<u32>(w0);
    words[2] = bitcast<u32>(w1);
    words[0] = state;
}
