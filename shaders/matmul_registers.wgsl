// A product of matrices without shared memory. A thread computes 4 by 4 elements of the result in
// registers, and a workgroup 32 by 32. The text of `matmul.wgsl` is put before this one.

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let rows = four((group.y * 8u + local.y) * 4u, 1u);
    let columns = four((group.x * 8u + local.x) * 4u, 1u);
    if rows.x >= p.m || columns.x >= p.n { return; }
    var of_a = offsets_of_rows(group.z, rows);
    var of_b = offsets_of_columns(group.z, columns);
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
    store(group.z, rows.x, columns, sum0);
    store(group.z, rows.y, columns, sum1);
    store(group.z, rows.z, columns, sum2);
    store(group.z, rows.w, columns, sum3);
}
