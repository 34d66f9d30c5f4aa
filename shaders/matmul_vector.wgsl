// A product of matrices of which the first has few rows. A workgroup of 64 threads computes 4 by 8
// elements of the result: 32 pairs of threads divide the depth, and each thread of a pair sums for 4
// columns. The sums of the pairs are then added in a tree. The text of `matmul.wgsl` is put before
// this one.

const PAIRS = 32u;

var<workgroup> sums: array<array<vec4<f32>, 4>, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = thread / 2u;
    let rows = four(group.y * 4u, 1u);
    let columns = four((group.x * 2u + thread % 2u) * 4u, 1u);
    var of_a = offsets_of_rows(group.z, rows) + first * p.a.column_stride;
    var of_b = offsets_of_columns(group.z, columns) + first * p.b.row_stride;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var i = first; i < p.k; i += PAIRS) {
        let x = vec4<f32>(a[of_a.x], a[of_a.y], a[of_a.z], a[of_a.w]);
        let y = vec4<f32>(b[of_b.x], b[of_b.y], b[of_b.z], b[of_b.w]);
        sum0 += x.x * y;
        sum1 += x.y * y;
        sum2 += x.z * y;
        sum3 += x.w * y;
        of_a += PAIRS * p.a.column_stride;
        of_b += PAIRS * p.b.row_stride;
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
        store(group.z, rows.x, columns, sums[thread][0]);
        store(group.z, rows.y, columns, sums[thread][1]);
        store(group.z, rows.z, columns, sums[thread][2]);
        store(group.z, rows.w, columns, sums[thread][3]);
    }
}
