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

fn lt_f32(x: f32, y: f32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn lt_i32(x: i32, y: i32) -> bool {
    let v2: bool = x < y;
    return v2;
}

fn maximum_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = select(y, x, is_nan(x) || x > y);
    return v2;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
    return v2;
}

var<workgroup> partial_f32: array<f32, 256>;

fn sub_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x - y;
    return v2;
}

fn tree128_add_f32(thread: u32, lane: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 64u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[thread - lane];
    workgroupBarrier();
    return result;
}

fn tree32_maximum_f32(thread: u32, lane: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 16u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half { partial_f32[thread] = maximum_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[thread - lane];
    workgroupBarrier();
    return result;
}

fn tree64_add_f32(thread: u32, lane: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half { partial_f32[thread] = add_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[thread - lane];
    workgroupBarrier();
    return result;
}

fn tree64_maximum_f32(thread: u32, lane: u32, x: f32) -> f32 {
    partial_f32[thread] = x;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half { partial_f32[thread] = maximum_f32(partial_f32[thread], partial_f32[thread + half]); }
    }
    workgroupBarrier();
    let result = partial_f32[thread - lane];
    workgroupBarrier();
    return result;
}

@group(0) @binding(0) var<storage, read_write> words: array<u32>;

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
                let x0 = bitcast<i32>(words[241u + 0u]);
                let x1 = bitcast<i32>(words[242u + 0u]);
                let s0: bool = lt_i32(x0, x1);
                words[244u + 0u] = u32(s0);
            }
        }
        barrier();
        if thread == 0u { shared_word = words[244u + 0] | (atomicLoad(&failure) << 1u); }
        let c0 = workgroupUniformLoad(&shared_word);
        if c0 > 1u { if c0 / 2u != 1u || is_first { state = 2u; } break; }
        if c0 == 0u { state = 1u; break; }
        if !is_first && steps + 74u > 32768u { break; }
        steps += 74u;
        {
            for (var first = 0u; first < 1u; first += 2u) {
                let lane = thread % 128u;
                let is_row = first + thread / 128u < 1u;
                let row = min(first + thread / 128u, 0u);
                var r0: f32 = 0.0f;
                for (var i = lane; i < 120u; i += 128u) {
                    let a1 = i;
                    let x0 = bitcast<f32>(words[1u + a1]);
                    r0 = add_f32(r0, x0);
                }
                let s0 = tree128_add_f32(thread, lane, r0);
                if is_row && lane == 0u { words[245u + 0u] = bitcast<u32>(s0); }
            }
        }
        {
            for (var first = 0u; first < 1u; first += 2u) {
                let lane = thread % 128u;
                let is_row = first + thread / 128u < 1u;
                let row = min(first + thread / 128u, 0u);
                var r0: f32 = 0.0f;
                for (var i = lane; i < 120u; i += 128u) {
                    let a1 = i;
                    let x0 = bitcast<f32>(words[121u + a1]);
                    r0 = add_f32(r0, x0);
                }
                let s0 = tree128_add_f32(thread, lane, r0);
                if is_row && lane == 0u { words[246u + 0u] = bitcast<u32>(s0); }
            }
        }
        barrier();
        {
            for (var i = thread; i < 1u; i += 256u) {
                let x0 = bitcast<f32>(words[245u + 0u]);
                let x1 = bitcast<f32>(words[246u + 0u]);
                let s0: bool = lt_f32(x0, x1);
                words[247u + 0u] = u32(s0);
            }
        }
        barrier();
        if thread == 0u { shared_word = words[247u + 0] | (atomicLoad(&failure) << 1u); }
        let c1 = workgroupUniformLoad(&shared_word);
        if (c1 & 1u) == 1u {
            for (var first = 0u; first < 6u; first += 4u) {
                let lane = thread % 64u;
                let is_row = first + thread / 64u < 6u;
                let row = min(first + thread / 64u, 5u);
                let begin = row / 1u * 20u + row % 1u;
                var largest = -bitcast<f32>(infinity_bits);
                for (var i = lane; i < 20u; i += 64u) { largest = maximum_f32(largest, bitcast<f32>(words[121u + begin + i * 1u])); }
                largest = tree64_maximum_f32(thread, lane, largest);
                let is_finite = (bitcast<u32>(largest) & 0x7fffffffu) < 0x7f800000u;
                let shift = select(0.0f, largest, is_finite);
                var sum = 0.0f;
                for (var i = lane; i < 20u; i += 64u) { sum += exp_f32(bitcast<f32>(words[121u + begin + i * 1u]) - shift); }
                sum = tree64_add_f32(thread, lane, sum);
                if is_row { for (var i = lane; i < 20u; i += 64u) { words[368u + begin + i * 1u] = bitcast<u32>(exp_f32(bitcast<f32>(words[121u + begin + i * 1u]) - shift) / sum); } }
            }
            barrier();
            for (var i = thread; i < 120u; i += 256u) {
                words[248u + i] = words[368u + i];
            }
            barrier();
        } else {
            {
                for (var first = 0u; first < 6u; first += 8u) {
                    let lane = thread % 32u;
                    let is_row = first + thread / 32u < 6u;
                    let row = min(first + thread / 32u, 5u);
                    let a0 = row;
                    var r0: f32 = -bitcast<f32>(infinity_bits);
                    for (var i = lane; i < 20u; i += 32u) {
                        let a1 = i;
                        let x0 = bitcast<f32>(words[121u + a0 * 20u + a1]);
                        r0 = maximum_f32(r0, x0);
                    }
                    let s0 = tree32_maximum_f32(thread, lane, r0);
                    if is_row && lane == 0u { words[488u + a0] = bitcast<u32>(s0); }
                }
            }
            barrier();
            {
                for (var i = thread; i < 120u; i += 256u) {
                    let a1 = i % 20u;
                    let a0 = i / 20u;
                    let x0 = bitcast<f32>(words[1u + a0 * 20u + a1]);
                    let x1 = bitcast<f32>(words[488u + a0]);
                    let s0: f32 = sub_f32(x0, x1);
                    words[494u + a0 * 20u + a1] = bitcast<u32>(s0);
                }
            }
            barrier();
            for (var i = thread; i < 120u; i += 256u) {
                words[248u + i] = words[494u + i];
            }
            barrier();
        }
        for (var i = thread; i < 120u; i += 256u) {
            words[614u + i] = words[248u + i];
        }
        for (var i = thread; i < 1u; i += 256u) {
            words[734u + i] = words[243u + i];
        }
        barrier();
        loop {
            {
                for (var i = thread; i < 1u; i += 256u) {
                    let x0 = bitcast<i32>(words[734u + 0u]);
                    let x1 = bitcast<i32>(words[241u + 0u]);
                    let s0: bool = lt_i32(x0, x1);
                    words[735u + 0u] = u32(s0);
                }
            }
            barrier();
            if thread == 0u { shared_word = words[735u + 0] | (atomicLoad(&failure) << 1u); }
            let c2 = workgroupUniformLoad(&shared_word);
            if c2 != 1u { break; }
            if steps + 8u > 32768u { atomicMax(&failure, 1u); break; }
            steps += 8u;
            {
                for (var i = thread; i < 60u; i += 256u) {
                    let a1 = i % 10u;
                    let a0 = i / 10u;
                    let x0 = bitcast<f32>(words[614u + a0 * 20u + a1 + 10u]);
                    let s0: f32 = mul_f32(x0, x0);
                    words[736u + a0 * 10u + a1] = bitcast<u32>(s0);
                }
            }
            barrier();
            for (var i = thread; i < 60u; i += 256u) {
                let a1 = i / 1u % 10u;
                let a0 = i / 10u % 6u;
                words[796u + a0 * 20u + a1] = words[736u + a0 * 10u + a1];
            }
            for (var i = thread; i < 60u; i += 256u) {
                let a1 = i / 1u % 10u;
                let a0 = i / 10u % 6u;
                words[796u + a0 * 20u + a1 + 10u] = words[614u + a0 * 20u + a1];
            }
            {
                for (var i = thread; i < 1u; i += 256u) {
                    let x0 = bitcast<i32>(words[734u + 0u]);
                    let x1 = bitcast<i32>(words[243u + 0u]);
                    let s0: i32 = add_i32(x0, x1);
                    words[916u + 0u] = bitcast<u32>(s0);
                }
            }
            barrier();
            for (var i = thread; i < 120u; i += 256u) {
                words[614u + i] = words[796u + i];
            }
            for (var i = thread; i < 1u; i += 256u) {
                words[734u + i] = words[916u + i];
            }
            barrier();
        }
        {
            for (var i = thread; i < 1u; i += 256u) {
                let x0 = bitcast<i32>(words[241u + 0u]);
                let x1 = bitcast<i32>(words[243u + 0u]);
                let s0: i32 = add_i32(x0, x1);
                words[917u + 0u] = bitcast<u32>(s0);
            }
        }
        for (var i = thread; i < 120u; i += 256u) {
            words[918u + i] = words[121u + i];
        }
        barrier();
        if thread == 0u { shared_word = 1u | (atomicLoad(&failure) << 1u); }
        let c3 = workgroupUniformLoad(&shared_word);
        if c3 > 1u { if c3 / 2u != 1u || is_first { state = 2u; } break; }
        barrier();
        for (var i = thread; i < 120u; i += 256u) {
            words[1u + i] = words[918u + i];
        }
        for (var i = thread; i < 120u; i += 256u) {
            words[121u + i] = words[614u + i];
        }
        for (var i = thread; i < 1u; i += 256u) {
            words[241u + i] = words[917u + i];
        }
        barrier();
    }
    if thread == 0u { words[0] = state; }
}
