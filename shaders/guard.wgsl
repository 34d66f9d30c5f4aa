// Opens one of two guards by a predicate: copies the counts of workgroups into its row. Under a
// guard that is not open, the rows of counts are zeros. One workgroup.

struct Params {
    // The number of words of a row.
    n: u32,
    // The value of the predicate that opens the first guard. Any other one opens the second.
    expected: u32,
    // The first words of the rows, or NONE.
    rows: vec2<u32>,
    // The words to write to `progress`, unless they are 0: the first if the first guard opens, and
    // the second if the second does.
    progress: vec2<u32>,
}

const NONE = 0xffffffffu;

@group(0) @binding(0) var<storage, read> predicate: u32;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> first: array<u32>;
@group(0) @binding(3) var<storage, read_write> second: array<u32>;
@group(0) @binding(4) var<storage, read_write> progress: vec2<u32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32) {
    if predicate == p.expected {
        if thread == 0u && p.progress.x != 0u { progress.x = p.progress.x; }
        if p.rows.x != NONE {
            for (var i = thread; i < p.n; i += 64u) { first[p.rows.x + i] = counts[i]; }
        }
    } else {
        if thread == 0u && p.progress.y != 0u { progress.y = p.progress.y; }
        if p.rows.y != NONE {
            for (var i = thread; i < p.n; i += 64u) { second[p.rows.y + i] = counts[i]; }
        }
    }
}
