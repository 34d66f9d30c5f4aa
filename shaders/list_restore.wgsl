// Copies the elements that are marked as written, and sets the others to zero. Elements consist of
// words of 32 bits.

struct Params {
    // The number of words.
    size: u32,
    n_words: u32,
}

@group(0) @binding(0) var<storage, read> elements: array<u32>;
@group(0) @binding(1) var<storage, read> written: array<u32>;
@group(0) @binding(2) var<storage, read_write> list: array<u32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i < p.size { list[i] = select(0u, elements[i], written[i / p.n_words] != 0u); }
}
