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

fn ge_f32(x: f32, y: f32) -> bool {
    let v2: bool = y <= x;
    return v2;
}

fn lt_f32(x: f32, y: f32) -> bool {
    let v2: bool = x < y;
    return v2;
}

struct Params {
    n: u32,
    first: u32,
    max_steps: u32,
    check: u32,
}

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read> m5: array<f32>;
@group(0) @binding(2) var<storage, read> m6: array<i32>;
@group(0) @binding(3) var<storage, read> m7: array<f32>;
@group(0) @binding(4) var<storage, read_write> elements1: array<f32>;
@group(0) @binding(5) var<storage, read_write> marks1: array<u32>;
@group(0) @binding(6) var<storage, read_write> terms2: array<f32>;
@group(0) @binding(7) var<storage, read_write> counters: array<u32>;
@group(0) @binding(8) var<storage, read_write> failure: atomic<u32>;
var<immediate> p: Params;
// The number of steps, and whether the iteration fails or takes too many of them.
var<private> steps: u32;
var<private> is_stuck: bool;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = p.first + (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.n { return; }
    let w0 = bitcast<i32>((words[0] + 1u * i));
    let w3 = bitcast<i32>(words[3]);
    let w4 = bitcast<i32>(words[4]);
    let w8 = bitcast<f32>(words[8]);
    is_stuck = is_stuck || u32(w0) >= words[5];
    let at0 = select(0u, u32(w0), u32(w0) < words[5]);
    let v31 = m5[at0 * 3u + 1u];
    is_stuck = is_stuck || u32(w0) >= words[6];
    let at1 = select(0u, u32(w0), u32(w0) < words[6]);
    let v33 = m6[at1];
    is_stuck = is_stuck || u32(v33) >= 5u;
    let at2 = select(0u, u32(v33), u32(v33) < 5u);
    let v34 = m7[at2];
    var v42: f32 = v34;
    loop {
        is_stuck = is_stuck || steps >= p.max_steps;
        steps++;
        let v38: bool = lt_f32(v42, w8);
        if is_stuck || !(v38) { break; }
        let v41: f32 = add_f32(v42, v42);
        let next0 = v41;
        v42 = next0;
    }
    let v43: bool = ge_f32(v42, v31);
    is_stuck = is_stuck || !(v43);
    is_stuck = is_stuck || u32(w0) >= words[1];
    let at3 = select(0u, u32(w0), u32(w0) < words[1]);
    is_stuck = is_stuck || marks1[at3] != 0u;
    if !is_stuck {
        marks1[at3] = 1u;
        elements1[at3 * 2u] = v31;
        elements1[at3 * 2u + 1u] = v42;
    }
    let v48: f32 = add_f32((-0.0f), v42);
    let v49: i32 = add_i32(w0, w4);
    terms2[i] = v48;
    if i == p.n - 1u {
        counters[0] = bitcast<u32>(v49);
    }
    if is_stuck { atomicMax(&failure, p.check); }
}
