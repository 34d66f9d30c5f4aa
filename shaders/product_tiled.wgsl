// A product through shared memory. A workgroup of 256 threads computes 64 by 64 elements of the
// result, a thread 4 by 4 of them, 16 apart. All threads copy a part of the operands of depth 16,
// and then multiply it. The text of `product.wgsl` is put before this one.

const TILE = 64u;
const DEPTH = 16u;
// The distance of rows in shared memory: threads that write one column use different banks.
const PITCH = 66u;

var<workgroup> a_part: array<f32, DEPTH * PITCH>;
var<workgroup> b_part: array<f32, DEPTH * PITCH>;

// The depth and the row or column of an element that a thread copies. Threads in order copy elements
// that are adjacent in memory, if some are.
fn copied(element: u32, is_along_depth: bool) -> vec2<u32> {
    return select(
        vec2<u32>(element / TILE, element % TILE),
        vec2<u32>(element % DEPTH, element / DEPTH),
        is_along_depth,
    );
}

// Elements beyond the end are zeros.
fn copied_of_a(batch: u32, row: u32, depth: u32) -> f32 {
    if row >= sizes().rows || depth >= sizes().depth { return 0.0f; }
    return element_of_a(row_of(batch, row), depth_of(depth));
}
fn copied_of_b(batch: u32, depth: u32, column: u32) -> f32 {
    if column >= sizes().columns || depth >= sizes().depth { return 0.0f; }
    return element_of_b(depth_of(depth), column_of(batch, column));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let n = sizes();
    let tile = tile_of(group, TILE, TILE);
    if tile.batch >= n.batch { return; }
    let row = thread / 16u;
    let column = thread % 16u;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var start = 0u; start < n.depth; start += DEPTH) {
        for (var element = thread; element < DEPTH * TILE; element += 256u) {
            let of_a = copied(element, a_is_along_depth());
            let of_b = copied(element, b_is_along_depth());
            a_part[of_a.x * PITCH + of_a.y] = copied_of_a(tile.batch, tile.row + of_a.y, start + of_a.x);
            b_part[of_b.x * PITCH + of_b.y] = copied_of_b(tile.batch, start + of_b.x, tile.column + of_b.y);
        }
        workgroupBarrier();
        for (var depth = 0u; depth < DEPTH; depth++) {
            let i = four(depth * PITCH + row, 16u);
            let j = four(depth * PITCH + column, 16u);
            let x = vec4<f32>(a_part[i.x], a_part[i.y], a_part[i.z], a_part[i.w]);
            let y = vec4<f32>(b_part[j.x], b_part[j.y], b_part[j.z], b_part[j.w]);
            sum0 += x.x * y;
            sum1 += x.y * y;
            sum2 += x.z * y;
            sum3 += x.w * y;
        }
        workgroupBarrier();
    }
    let rows = four(tile.row + row, 16u);
    let columns = four(tile.column + column, 16u);
    store(tile.batch, rows.x, columns, sum0);
    store(tile.batch, rows.y, columns, sum1);
    store(tile.batch, rows.z, columns, sum2);
    store(tile.batch, rows.w, columns, sum3);
}
