// Convolutions over up to three axes, and their gradients, as products whose operands are elements
// of tensors at computed indices (`product.wgsl`). Each is the sum of the same products of images
// `x` [IMAGES, CHANNELS, ..X], filters `w` [FILTERS, CHANNELS_OF_FILTER, ..W] and positions `y`
// [IMAGES, FILTERS, ..Y]. Missing axes have extent 1. The groups of a convolution are the batch of
// the product, and `TERMS` is its depth.
//
// The text of `extents.wgsl` and the constants are put before this one, and after it that of one of
// `conv.wgsl`, `conv_input_grad.wgsl` and `conv_weight_grad.wgsl`.

// A shader must not divide by a constant zero, not even where there is nothing to divide.
const X_SIZE = max(X.x * X.y * X.z, 1u);
const W_SIZE = max(W.x * W.y * W.z, 1u);
const Y_SIZE = max(Y.x * Y.y * Y.z, 1u);

// The offset of the first element of `a`.
alias Row = u32;

// The offset of the first element of `b`, and an index that is one of the terms of its index along
// the axes of windows. Differences wrap.
struct Column {
    offset: u32,
    index: vec3<u32>,
}

struct Depth {
    of_a: u32,
    of_b: u32,
    index: vec3<u32>,
}

fn element_of_a(row: Row, depth: Depth) -> f32 { return a_at(row + depth.of_a); }

// An element of the images `b`, zero outside of them.
fn element_of_images(depth: Depth, column: Column) -> f32 {
    let index = column.index + depth.index;
    if any(index >= X) { return 0.0f; }
    return b_at(column.offset + depth.of_b + offset_in(X, index));
}
