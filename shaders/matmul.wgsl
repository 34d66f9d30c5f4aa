// Two batches of matrices as the operands of products (`product.wgsl`). They may have any strides,
// so a transposed matrix is not copied.

struct Operand {
    offset: u32,
    batch_stride: u32,
    row_stride: u32,
    column_stride: u32,
}

struct Params {
    batch: u32,
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

var<immediate> p: Params;

fn sizes() -> Sizes { return Sizes(p.batch, p.m, p.n, p.k); }

// The offsets of first elements, and the depth.
alias Row = u32;
alias Column = u32;
alias Depth = u32;

fn row_of(batch: u32, row: u32) -> Row { return p.a.offset + batch * p.a.batch_stride + row * p.a.row_stride; }
fn column_of(batch: u32, column: u32) -> Column {
    return p.b.offset + batch * p.b.batch_stride + column * p.b.column_stride;
}
fn depth_of(depth: u32) -> Depth { return depth; }

fn element_of_a(row: Row, depth: Depth) -> f32 { return a_at(row + depth * p.a.column_stride); }
fn element_of_b(depth: Depth, column: Column) -> f32 { return b_at(column + depth * p.b.row_stride); }

fn index_of(batch: u32, row: u32, column: u32) -> u32 {
    return batch * p.m * p.n + row * p.row_stride + column * p.column_stride;
}

fn a_is_along_depth() -> bool { return p.a.column_stride == 1u; }
fn b_is_along_depth() -> bool { return p.b.row_stride == 1u; }
