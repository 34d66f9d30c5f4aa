// Products of two batches of matrices with elements of type f32: what the kernels share. This text
// is put before each of them. Operands may have any strides, so a transposed matrix is not copied.

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
    // The strides of the result.
    row_stride: u32,
    column_stride: u32,
    a: Operand,
    b: Operand,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
var<immediate> p: Params;

// Four indices from the first one on.
fn four(first: u32, step: u32) -> vec4<u32> {
    return vec4<u32>(first, first + step, first + 2u * step, first + 3u * step);
}

// The offsets of the first elements of four rows. Rows beyond the end repeat the last one, and are
// not stored.
fn offsets_of_rows(batch: u32, rows: vec4<u32>) -> vec4<u32> {
    return p.a.offset + batch * p.a.batch_stride + min(rows, vec4<u32>(p.m - 1u)) * p.a.row_stride;
}

// The offsets of the first elements of four columns, like those of rows.
fn offsets_of_columns(batch: u32, columns: vec4<u32>) -> vec4<u32> {
    return p.b.offset + batch * p.b.batch_stride + min(columns, vec4<u32>(p.n - 1u)) * p.b.column_stride;
}

// Stores elements of a row, except those beyond the end.
fn store(batch: u32, row: u32, columns: vec4<u32>, values: vec4<f32>) {
    if row >= p.m { return; }
    let first = batch * p.m * p.n + row * p.row_stride;
    if columns.x < p.n { c[first + columns.x * p.column_stride] = values.x; }
    if columns.y < p.n { c[first + columns.y * p.column_stride] = values.y; }
    if columns.z < p.n { c[first + columns.z * p.column_stride] = values.z; }
    if columns.w < p.n { c[first + columns.w * p.column_stride] = values.w; }
}
