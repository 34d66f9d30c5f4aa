// The gradient of a convolution by its filters: the product of positions `a` with windows of images
// `b`. Rows are the filters of a group, columns the elements of a filter, and the depth all positions
// of windows. The text of `conv_windows.wgsl` is put before this one.

fn sizes() -> Sizes { return Sizes(GROUPS, FILTERS_OF_GROUP, CHANNELS_OF_FILTER * W_SIZE, TERMS); }

fn row_of(group: u32, row: u32) -> Row { return (group * FILTERS_OF_GROUP + row) * Y_SIZE; }

fn column_of(group: u32, column: u32) -> Column {
    let offset = (group * CHANNELS_OF_FILTER + column / W_SIZE) * X_SIZE;
    return Column(offset, index_in(W, column % W_SIZE) * DILATION - PADDING);
}

fn depth_of(depth: u32) -> Depth {
    let image = depth / Y_SIZE;
    let position = depth % Y_SIZE;
    let of_a = image * FILTERS * Y_SIZE + position;
    return Depth(of_a, image * CHANNELS * X_SIZE, index_in(Y, position) * STRIDES);
}

fn element_of_b(depth: Depth, column: Column) -> f32 { return element_of_images(depth, column); }

fn index_of(group: u32, row: u32, column: u32) -> u32 {
    return (group * FILTERS_OF_GROUP + row) * CHANNELS_OF_FILTER * W_SIZE + column;
}

fn a_is_along_depth() -> bool { return true; }
fn b_is_along_depth() -> bool { return true; }
