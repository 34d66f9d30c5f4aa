// A product without shared memory, for drivers that compute on the CPU. There, each thread of a
// vector reads its elements one by one, which takes much longer than to multiply. So a thread
// computes 16 by 8 elements of the result in registers, in blocks of 4 by 4, and a workgroup 16 by
// 64. The text of `product.wgsl` is put before this one.

struct Block {
    row0: vec4<f32>,
    row1: vec4<f32>,
    row2: vec4<f32>,
    row3: vec4<f32>,
}

// Adds the products of elements of four rows and four columns.
fn add_products(sums: ptr<function, Block>, x: vec4<f32>, y: vec4<f32>) {
    (*sums).row0 += x.x * y;
    (*sums).row1 += x.y * y;
    (*sums).row2 += x.z * y;
    (*sums).row3 += x.w * y;
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let n = sizes();
    let tile = tile_of(group, 16u, 64u);
    let row = tile.row;
    let column = tile.column + thread * 8u;
    if tile.batch >= n.batch || column >= n.columns { return; }
    let rows0 = rows_of(tile.batch, four(row, 1u));
    let rows1 = rows_of(tile.batch, four(row + 4u, 1u));
    let rows2 = rows_of(tile.batch, four(row + 8u, 1u));
    let rows3 = rows_of(tile.batch, four(row + 12u, 1u));
    let columns0 = columns_of(tile.batch, four(column, 1u));
    let columns1 = columns_of(tile.batch, four(column + 4u, 1u));
    var sums00 = Block();
    var sums01 = Block();
    var sums10 = Block();
    var sums11 = Block();
    var sums20 = Block();
    var sums21 = Block();
    var sums30 = Block();
    var sums31 = Block();
    for (var i = 0u; i < n.depth; i++) {
        let depth = depth_of(i);
        let y0 = elements_of_b(depth, columns0);
        let y1 = elements_of_b(depth, columns1);
        let x0 = elements_of_a(rows0, depth);
        add_products(&sums00, x0, y0);
        add_products(&sums01, x0, y1);
        let x1 = elements_of_a(rows1, depth);
        add_products(&sums10, x1, y0);
        add_products(&sums11, x1, y1);
        let x2 = elements_of_a(rows2, depth);
        add_products(&sums20, x2, y0);
        add_products(&sums21, x2, y1);
        let x3 = elements_of_a(rows3, depth);
        add_products(&sums30, x3, y0);
        add_products(&sums31, x3, y1);
    }
    // A loop, since the driver takes long to compile many copies of the text of `finish`.
    var sums = array<Block, 8>(sums00, sums01, sums10, sums11, sums20, sums21, sums30, sums31);
    for (var i = 0u; i < 8u; i++) {
        let first = row + i / 2u * 4u;
        let columns = four(column + i % 2u * 4u, 1u);
        store(tile.batch, first, columns, sums[i].row0);
        store(tile.batch, first + 1u, columns, sums[i].row1);
        store(tile.batch, first + 2u, columns, sums[i].row2);
        store(tile.batch, first + 3u, columns, sums[i].row3);
    }
}
