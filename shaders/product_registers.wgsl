// A product without shared memory. A thread computes 4 by 4 elements of the result in registers, and
// a workgroup 32 by 32. The text of `product.wgsl` is put before this one.

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let n = sizes();
    let tile = tile_of(group, 32u, 32u);
    let rows = four(tile.row + local.y * 4u, 1u);
    let columns = four(tile.column + local.x * 4u, 1u);
    if tile.batch >= n.batch || rows.x >= n.rows || columns.x >= n.columns { return; }
    let of_a = rows_of(tile.batch, rows);
    let of_b = columns_of(tile.batch, columns);
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var i = 0u; i < n.depth; i++) {
        let depth = depth_of(i);
        let x = elements_of_a(of_a, depth);
        let y = elements_of_b(depth, of_b);
        sum0 += x.x * y;
        sum1 += x.y * y;
        sum2 += x.z * y;
        sum3 += x.w * y;
    }
    store(tile.batch, rows.x, columns, sum0);
    store(tile.batch, rows.y, columns, sum1);
    store(tile.batch, rows.z, columns, sum2);
    store(tile.batch, rows.w, columns, sum3);
}
