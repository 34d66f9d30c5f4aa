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

fn add_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x + y;
    return v2;
}

fn lt_i32(x: i32, y: i32) -> bool {
    let v2: bool = x < y;
    return v2;
}

var<workgroup> partial_f32: array<f32, 256>;

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

fn tree8_add_f32(thread: u32, lane: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 4u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[thread - lane];
    workgroupBarrier();
    return result;
}

@group(0) @binding(0) var<storage, read> m0: array<f32>;
@group(0) @binding(1) var<storage, read> m1: array<f32>;
@group(0) @binding(2) var<storage, read_write> words: array<u32>;

// A word that one thread writes and all read.
var<workgroup> shared_word: u32;
// 1 if the steps end inside of an iteration, and 2 if it fails.
var<workgroup> failure: atomic<u32>;

fn fail() {
    atomicMax(&failure, 2u);
}

fn barrier() {
    storageBarrier();
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    if thread == 0u { atomicStore(&failure, 0u); }
    workgroupBarrier();
    var steps = 0u;
    var state = 0u;
    loop {
        let is_first = steps == 0u;
        {
            for (var i = thread; i < 1u; i += 256u) {
                let x0 = bitcast<i32>(words[25u + 0u]);
                let x1 = bitcast<i32>(words[26u + 0u]);
                let s0: bool = lt_i32(x0, x1);
                words[28u + 0u] = u32(s0);
            }
        }
        barrier();
        if thread == 0u { shared_word = words[28u + 0] | (atomicLoad(&failure) << 1u); }
        let c0 = workgroupUniformLoad(&shared_word);
        if c0 > 1u { if c0 / 2u != 1u || is_first { state = 2u; } break; }
        if c0 == 0u { state = 1u; break; }
        if !is_first && steps + 13u > 32768u { break; }
        steps += 13u;
        for (var i = thread; i < 24u; i += 256u) {
            let inner = i % 24u;
            let outer = i / 24u;
            var at = words[25u + 0] + (i / 24u % 1u);
            if at >= 8u { fail(); at = 0u; }
            words[29u + i] = bitcast<u32>(m0[(outer * 8u + at) * 24u + inner]);
        }
        barrier();
        {
            for (var first = 0u; first < 24u; first += 32u) {
                let lane = thread % 8u;
                let is_row = first + thread / 8u < 24u;
                let row = min(first + thread / 8u, 23u);
                let a1 = row;
                let x2 = bitcast<f32>(words[29u + a1]);
                var r0: f32 = 0.0f;
                for (var i = lane; i < 24u; i += 8u) {
                    let a2 = i;
                    let x0 = bitcast<f32>(words[1u + a2]);
                    let x1 = m1[a1 + a2 * 24u];
                    r0 = add_f32(r0, x0 * x1);
                }
                let s0 = tree8_add_f32(thread, lane, r0);
                let s1: f32 = add_f32(s0, x2);
                let s2: f32 = tanh_f32(s1);
                if is_row && lane == 0u { words[53u + a1] = bitcast<u32>(s2); }
            }
        }
        {
            for (var i = thread; i < 1u; i += 256u) {
                let x0 = bitcast<i32>(words[25u + 0u]);
                let x1 = bitcast<i32>(words[27u + 0u]);
                let s0: i32 = add_i32(x0, x1);
                words[77u + 0u] = bitcast<u32>(s0);
            }
        }
        barrier();
        if thread == 0u { shared_word = 1u | (atomicLoad(&failure) << 1u); }
        let c1 = workgroupUniformLoad(&shared_word);
        if c1 > 1u { if c1 / 2u != 1u || is_first { state = 2u; } break; }
        barrier();
        for (var i = thread; i < 24u; i += 256u) {
            words[1u + i] = words[53u + i];
        }
        for (var i = thread; i < 1u; i += 256u) {
            words[25u + i] = words[77u + i];
        }
        barrier();
    }
    if thread == 0u { words[0] = state; }
}
