// Products of two batches of matrices with elements of type f32.
//
// A thread computes 4 by 4 elements of the result in registers, and a workgroup 32 by 32. Operands
// may have any strides, so a transposed matrix is not copied.

struct Operand {
    offset: u32,
    batch_stride: u32,
    row_stride: u32,
    column_stride: u32,
}

struct Params {
    // Rows, columns and depth of the products.
    m: u32,
    n: u32,
    k: u32,
    padding: u32,
    a: Operand,
    b: Operand,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
var<immediate> p: Params;

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = (group.y * 8u + local.y) * 4u;
    let column = (group.x * 8u + local.x) * 4u;
    if row >= p.m || column >= p.n { return; }
    // Rows and columns beyond the end repeat the last one, and are not written.
    let rows = min(vec4<u32>(row, row + 1u, row + 2u, row + 3u), vec4<u32>(p.m - 1u));
    let columns = min(vec4<u32>(column, column + 1u, column + 2u, column + 3u), vec4<u32>(p.n - 1u));
    var of_a = p.a.offset + group.z * p.a.batch_stride + rows * p.a.row_stride;
    var of_b = p.b.offset + group.z * p.b.batch_stride + columns * p.b.column_stride;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var i = 0u; i < p.k; i++) {
        let x = vec4<f32>(a[of_a.x], a[of_a.y], a[of_a.z], a[of_a.w]);
        let y = vec4<f32>(b[of_b.x], b[of_b.y], b[of_b.z], b[of_b.w]);
        sum0 += x.x * y;
        sum1 += x.y * y;
        sum2 += x.z * y;
        sum3 += x.w * y;
        of_a += p.a.column_stride;
        of_b += p.b.row_stride;
    }
    let first = (group.z * p.m + row) * p.n + column;
    let width = min(p.n - column, 4u);
    for (var j = 0u; j < width; j++) {
        c[first + j] = sum0[j];
        if row + 1u < p.m { c[first + p.n + j] = sum1[j]; }
        if row + 2u < p.m { c[first + 2u * p.n + j] = sum2[j]; }
        if row + 3u < p.m { c[first + 3u * p.n + j] = sum3[j]; }
    }
}
