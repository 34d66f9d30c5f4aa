// A convolution: the product of filters `a` with windows of images `b`. Rows are the filters of a
// group, columns all positions of windows, and the depth the elements of a filter. The text of
// `conv_windows.wgsl` is put before this one.

fn sizes() -> Sizes { return Sizes(GROUPS, FILTERS_OF_GROUP, IMAGES * Y_SIZE, TERMS); }

fn row_of(group: u32, row: u32) -> Row { return (group * FILTERS_OF_GROUP + row) * CHANNELS_OF_FILTER * W_SIZE; }

fn column_of(group: u32, column: u32) -> Column {
    let offset = (column / Y_SIZE * CHANNELS + group * CHANNELS_OF_FILTER) * X_SIZE;
    return Column(offset, index_in(Y, column % Y_SIZE) * STRIDES - PADDING);
}

fn depth_of(depth: u32) -> Depth {
    return Depth(depth, depth / W_SIZE * X_SIZE, index_in(W, depth % W_SIZE) * DILATION);
}

fn element_of_b(depth: Depth, column: Column) -> f32 { return element_of_images(depth, column); }

fn index_of(group: u32, row: u32, column: u32) -> u32 {
    return (column / Y_SIZE * FILTERS + group * FILTERS_OF_GROUP + row) * Y_SIZE + column % Y_SIZE;
}

fn a_is_along_depth() -> bool { return true; }
fn b_is_along_depth() -> bool { return false; }
