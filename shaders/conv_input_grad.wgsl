// The gradient of a convolution by its images: the product of filters `a` with the positions `b`
// whose windows have an element of an image. Rows are the channels of a group, columns all elements
// of a channel, and the depth the elements of a channel of the filters of the group. The text of
// `conv_windows.wgsl` is put before this one.

fn sizes() -> Sizes { return Sizes(GROUPS, CHANNELS_OF_FILTER, IMAGES * X_SIZE, TERMS); }

fn row_of(group: u32, row: u32) -> Row { return (group * FILTERS_OF_GROUP * CHANNELS_OF_FILTER + row) * W_SIZE; }

fn column_of(group: u32, column: u32) -> Column {
    let offset = (column / X_SIZE * FILTERS + group * FILTERS_OF_GROUP) * Y_SIZE;
    return Column(offset, index_in(X, column % X_SIZE) + PADDING);
}

fn depth_of(depth: u32) -> Depth {
    let filter_of = depth / W_SIZE;
    let within = depth % W_SIZE;
    let of_a = filter_of * CHANNELS_OF_FILTER * W_SIZE + within;
    return Depth(of_a, filter_of * Y_SIZE, index_in(W, within) * DILATION);
}

// Zero unless there is such a position.
fn element_of_b(depth: Depth, column: Column) -> f32 {
    let from_start = column.index - depth.index;
    let position = from_start / STRIDES;
    let exists = all(column.index >= depth.index) && all(position * STRIDES == from_start) && all(position < Y);
    if !exists { return 0.0f; }
    return b_at(column.offset + depth.of_b + offset_in(Y, position));
}

fn index_of(group: u32, row: u32, column: u32) -> u32 {
    return (column / X_SIZE * CHANNELS + group * CHANNELS_OF_FILTER + row) * X_SIZE + column % X_SIZE;
}

fn a_is_along_depth() -> bool { return false; }
fn b_is_along_depth() -> bool { return false; }
