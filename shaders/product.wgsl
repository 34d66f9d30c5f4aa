// Products of two batches of matrices in `f32`: what the kernels `product_*.wgsl` share. This text is
// put before each of them, with
//
// - functions that are printed for the tensors: `a_at` and `b_at` return an element of an operand,
//   and `finish` computes and writes an element of the result from that of the product;
// - the text of the operands (`matmul.wgsl` or `conv*.wgsl`): the sizes of the products; types `Row`,
//   `Column` and `Depth`, which hold what elements have in common, with functions from the indices;
//   where an element is stored; and whether elements are adjacent in memory along the depth.

struct Sizes {
    batch: u32,
    rows: u32,
    columns: u32,
    depth: u32,
}

// The part of the result that a workgroup computes, from its first row and column on.
struct Tile {
    batch: u32,
    row: u32,
    column: u32,
}

// Workgroups are numbered along the columns first. Those beyond the end have no batch.
fn tile_of(group: vec3<u32>, n_rows: u32, n_columns: u32) -> Tile {
    let i = group.x + group.y * 65535u;
    let across = (sizes().columns - 1u) / n_columns + 1u;
    let down = (sizes().rows - 1u) / n_rows + 1u;
    return Tile(i / across / down, i / across % down * n_rows, i % across * n_columns);
}

// Four indices from the first one on.
fn four(first: u32, step: u32) -> vec4<u32> {
    return vec4<u32>(first, first + step, first + 2u * step, first + 3u * step);
}

// What elements of four rows have in common. Rows beyond the end repeat the last one, and are not
// stored.
fn rows_of(batch: u32, rows: vec4<u32>) -> array<Row, 4> {
    let i = min(rows, vec4<u32>(sizes().rows - 1u));
    return array<Row, 4>(row_of(batch, i.x), row_of(batch, i.y), row_of(batch, i.z), row_of(batch, i.w));
}

// The same for columns.
fn columns_of(batch: u32, columns: vec4<u32>) -> array<Column, 4> {
    let i = min(columns, vec4<u32>(sizes().columns - 1u));
    return array<Column, 4>(
        column_of(batch, i.x),
        column_of(batch, i.y),
        column_of(batch, i.z),
        column_of(batch, i.w),
    );
}

// Elements of four rows, at an index along the depth.
fn elements_of_a(rows: array<Row, 4>, depth: Depth) -> vec4<f32> {
    return vec4<f32>(
        element_of_a(rows[0], depth),
        element_of_a(rows[1], depth),
        element_of_a(rows[2], depth),
        element_of_a(rows[3], depth),
    );
}

// Elements of four columns.
fn elements_of_b(depth: Depth, columns: array<Column, 4>) -> vec4<f32> {
    return vec4<f32>(
        element_of_b(depth, columns[0]),
        element_of_b(depth, columns[1]),
        element_of_b(depth, columns[2]),
        element_of_b(depth, columns[3]),
    );
}

// Stores elements of a row, except those beyond the end.
fn store(batch: u32, row: u32, columns: vec4<u32>, values: vec4<f32>) {
    let n = sizes();
    if row >= n.rows { return; }
    if columns.x < n.columns { finish(index_of(batch, row, columns.x), values.x); }
    if columns.y < n.columns { finish(index_of(batch, row, columns.y), values.y); }
    if columns.z < n.columns { finish(index_of(batch, row, columns.z), values.z); }
    if columns.w < n.columns { finish(index_of(batch, row, columns.w), values.w); }
}
