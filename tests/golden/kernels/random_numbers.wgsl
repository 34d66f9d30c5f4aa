// kernel [64, 32]
//   in x f32[64, 32] at [a0, a1]
//   in key u32[2] whole
//   u f32 [a0, a1] = random_uniform key {shape=[64, 32], dtype=f32}
//   out y f32 [a0, a1] = mul x, u

// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn mul_f32(x: f32, y: f32) -> f32 {
    let v2: f32 = x * y;
    return v2;
}

fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let rest = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (rest >> 16u);
}

fn philox(first: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var counter = first;
    var round_key = key;
    for (var round = 0u; round < 10u; round++) {
        let high = vec2<u32>(high_product(0xd2511f53u, counter.x), high_product(0xcd9e8d57u, counter.z));
        let low = vec2<u32>(0xd2511f53u * counter.x, 0xcd9e8d57u * counter.z);
        counter = vec4<u32>(high.y ^ counter.y ^ round_key.x, low.y, high.x ^ counter.w ^ round_key.y, low.x);
        round_key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

fn random_word(key: vec2<u32>, index: u32) -> u32 {
    let block = philox(vec4<u32>(index / 4u, 0u, 0u, 0u), key);
    return block[index % 4u];
}

@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<u32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= 2048u { return; }
    let a1 = i;
    let x0 = t0[a1];
    let s0: f32 = f32(random_word(vec2<u32>(t1[0], t1[1]), a1) >> 8u) * 0x1p-24f;
    let s1: f32 = mul_f32(x0, s0);
    t2[a1] = s1;
}
