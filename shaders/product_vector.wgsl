// A product of few elements or of great depth. A workgroup of 64 threads computes 4 by 8 elements of
// the result: 32 pairs of threads divide the depth, and each thread of a pair sums for 4 columns. The
// sums of the pairs are then added in a tree. The text of `product.wgsl` is put before this one.

const PAIRS = 32u;

var<workgroup> sums: array<array<vec4<f32>, 4>, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let n = sizes();
    let tile = tile_of(group, 4u, 8u);
    if tile.batch >= n.batch { return; }
    let rows = four(tile.row, 1u);
    let columns = four(tile.column + thread % 2u * 4u, 1u);
    let of_a = rows_of(tile.batch, rows);
    let of_b = columns_of(tile.batch, columns);
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var i = thread / 2u; i < n.depth; i += PAIRS) {
        let depth = depth_of(i);
        let x = elements_of_a(of_a, depth);
        let y = elements_of_b(depth, of_b);
        sum0 += x.x * y;
        sum1 += x.y * y;
        sum2 += x.z * y;
        sum3 += x.w * y;
    }
    sums[thread] = array<vec4<f32>, 4>(sum0, sum1, sum2, sum3);
    // Threads of the same columns are an even number apart.
    for (var half = PAIRS; half > 1u; half >>= 1u) {
        workgroupBarrier();
        if thread < half {
            for (var i = 0u; i < 4u; i++) { sums[thread][i] += sums[thread + half][i]; }
        }
    }
    if thread < 2u {
        store(tile.batch, rows.x, columns, sums[thread][0]);
        store(tile.batch, rows.y, columns, sums[thread][1]);
        store(tile.batch, rows.z, columns, sums[thread][2]);
        store(tile.batch, rows.w, columns, sums[thread][3]);
    }
}
