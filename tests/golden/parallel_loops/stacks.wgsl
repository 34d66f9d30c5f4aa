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

fn gt_f32(x: f32, y: f32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
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
@group(0) @binding(2) var<storage, read_write> counters: array<u32>;
@group(0) @binding(3) var<storage, read_write> pushed: array<u32>;
@group(0) @binding(4) var<storage, read_write> depths: array<u32>;
@group(0) @binding(5) var<storage, read_write> needed: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> failure: atomic<u32>;
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
    let bottom1 = i;
    var depth1 = 0u;
    let bottom2 = (words[1]) * p.n + i;
    var depth2 = 0u;
    let w3 = bitcast<i32>(words[3]);
    let w4 = bitcast<i32>(words[4]);
    let w6 = bitcast<f32>(words[6]);
    is_stuck = is_stuck || u32(w0) >= words[5];
    let at0 = select(0u, u32(w0), u32(w0) < words[5]);
    let v23 = m5[at0];
    var v38: f32 = v23;
    var v39: i32 = w0;
    loop {
        is_stuck = is_stuck || steps >= p.max_steps;
        steps++;
        let v29: bool = gt_f32(v38, w6);
        if is_stuck || !(v29) { break; }
        if depth1 < words[1] {
            pushed[bottom1 + depth1 * p.n] = bitcast<u32>(v38);
        }
        depth1++;
        let v36: f32 = mul_f32(v38, w6);
        let v37: i32 = add_i32(v39, w4);
        let next0 = v36;
        let next1 = v37;
        v38 = next0;
        v39 = next1;
    }
    if depth2 < words[2] {
        pushed[bottom2 + depth2 * p.n] = bitcast<u32>(v39);
    }
    depth2++;
    let v42: i32 = add_i32(w0, w4);
    if i == p.n - 1u {
        counters[0] = bitcast<u32>(v42);
    }
    let has_failed = is_stuck;
    depths[0u * p.n + i] = depth1;
    if depth1 > words[1] {
        if !has_failed { atomicMax(&needed[0], depth1); }
        is_stuck = true;
    }
    depths[1u * p.n + i] = depth2;
    if depth2 > words[2] {
        if !has_failed { atomicMax(&needed[1], depth2); }
        is_stuck = true;
    }
    if is_stuck { atomicMax(&failure, p.check); }
}

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

fn gt_i32(x: i32, y: i32) -> bool {
    let v2: bool = y < x;
    return v2;
}

fn sub_i32(x: i32, y: i32) -> i32 {
    let v2: i32 = x - y;
    return v2;
}

struct Params {
    n: u32,
    first: u32,
    max_steps: u32,
    check: u32,
}

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read> popped0: array<u32>;
@group(0) @binding(2) var<storage, read> depths0: array<u32>;
@group(0) @binding(3) var<storage, read_write> elements1: array<f32>;
@group(0) @binding(4) var<storage, read_write> marks1: array<u32>;
@group(0) @binding(5) var<storage, read_write> counters: array<u32>;
@group(0) @binding(6) var<storage, read_write> failure: atomic<u32>;
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
    let bottom2 = words[2] + (p.n - 1u - i);
    var depth2 = depths0[words[6] + (p.n - 1u - i)];
    let bottom3 = words[3] + (p.n - 1u - i);
    var depth3 = depths0[words[7] + (p.n - 1u - i)];
    let w4 = bitcast<i32>(words[4]);
    let w5 = bitcast<i32>(words[5]);
    let v60: i32 = sub_i32(w4, w5);
    let v61: i32 = sub_i32(v60, w0);
    is_stuck = is_stuck || depth3 == 0u;
    depth3 = max(depth3, 1u) - 1u;
    let v63 = bitcast<i32>(popped0[bottom3 + depth3 * p.n]);
    var v80: f32 = (0.0f);
    var v81: i32 = v63;
    loop {
        is_stuck = is_stuck || steps >= p.max_steps;
        steps++;
        let v70: bool = gt_i32(v81, v61);
        if is_stuck || !(v70) { break; }
        is_stuck = is_stuck || depth2 == 0u;
        depth2 = max(depth2, 1u) - 1u;
        let v77 = bitcast<f32>(popped0[bottom2 + depth2 * p.n]);
        let v78: f32 = add_f32(v80, v77);
        let v79: i32 = sub_i32(v81, w5);
        let next0 = v78;
        let next1 = v79;
        v80 = next0;
        v81 = next1;
    }
    is_stuck = is_stuck || u32(v61) >= words[1];
    let at0 = select(0u, u32(v61), u32(v61) < words[1]);
    is_stuck = is_stuck || marks1[at0] != 0u;
    if !is_stuck {
        marks1[at0] = 1u;
        elements1[at0] = v80;
    }
    let v84: i32 = add_i32(w0, w5);
    if i == p.n - 1u {
        counters[0] = bitcast<u32>(v84);
    }
    is_stuck = is_stuck || depth2 != 0u;
    is_stuck = is_stuck || depth3 != 0u;
    if is_stuck { atomicMax(&failure, p.check); }
}
