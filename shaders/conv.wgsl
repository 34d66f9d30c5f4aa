// Convolutions over up to three axes and their gradients, each the sum of the same products of
// images `x` [batch, channels, ..], filters `w` [filters, channels / groups, ..] and positions `y`
// [batch, filters, ..]. A thread computes one element. Missing axes have extent 1.
//
// The text of `extents.wgsl` is put before this one, and the constant `RESULT`: 0 for `y`, 1 for `x`
// and 2 for `w`. The operands are the other two, in this order: `x`, `w`; `y`, `w`; `x`, `y`.

struct Params {
    size: u32,
    filters: u32,
    // The channels of an image and of a filter, and the filters of a group.
    channels: u32,
    channels_of_filter: u32,
    filters_of_group: u32,
    batch: u32,
    x0: u32, x1: u32, x2: u32,
    w0: u32, w1: u32, w2: u32,
    y0: u32, y1: u32, y2: u32,
    stride0: u32, stride1: u32, stride2: u32,
    padding0: u32, padding1: u32, padding2: u32,
    dilation0: u32, dilation1: u32, dilation2: u32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
var<immediate> p: Params;

fn x_extents() -> vec3<u32> { return vec3<u32>(p.x0, p.x1, p.x2); }
fn w_extents() -> vec3<u32> { return vec3<u32>(p.w0, p.w1, p.w2); }
fn y_extents() -> vec3<u32> { return vec3<u32>(p.y0, p.y1, p.y2); }
fn strides() -> vec3<u32> { return vec3<u32>(p.stride0, p.stride1, p.stride2); }
fn padding() -> vec3<u32> { return vec3<u32>(p.padding0, p.padding1, p.padding2); }
fn dilation() -> vec3<u32> { return vec3<u32>(p.dilation0, p.dilation1, p.dilation2); }

// The offset of an element in its plane, and whether there is such an element.
struct Element {
    offset: u32,
    exists: bool,
}

// The element of an image that a window meets with one of its elements. Differences wrap.
fn met(position: vec3<u32>, within: vec3<u32>) -> Element {
    let index = position * strides() + within * dilation() - padding();
    return Element(offset_in(x_extents(), index), all(index < x_extents()));
}

// The position of the window that meets an element of an image with one of its elements.
fn position_of(image: vec3<u32>, within: vec3<u32>) -> Element {
    let distance = image + padding();
    let before = within * dilation();
    let from_start = distance - before;
    let position = from_start / strides();
    let exists = all(distance >= before) && all(position * strides() == from_start) && all(position < y_extents());
    return Element(offset_in(y_extents(), position), exists);
}

fn element_of_y(i: u32) -> f32 {
    let plane = size_of(y_extents());
    let filter_of = i / plane % p.filters;
    let image = i / plane / p.filters;
    let position = index_in(y_extents(), i % plane);
    let first_channel = filter_of / p.filters_of_group * p.channels_of_filter;
    let x_plane = size_of(x_extents());
    let w_plane = size_of(w_extents());
    var sum = 0.0f;
    for (var c = 0u; c < p.channels_of_filter; c++) {
        let x_start = (image * p.channels + first_channel + c) * x_plane;
        let w_start = (filter_of * p.channels_of_filter + c) * w_plane;
        for (var k = 0u; k < w_plane; k++) {
            let x = met(position, index_in(w_extents(), k));
            if x.exists { sum += a[x_start + x.offset] * b[w_start + k]; }
        }
    }
    return sum;
}

fn element_of_x(i: u32) -> f32 {
    let plane = size_of(x_extents());
    let channel = i / plane % p.channels;
    let image = i / plane / p.channels;
    let index = index_in(x_extents(), i % plane);
    let first_filter = channel / p.channels_of_filter * p.filters_of_group;
    let y_plane = size_of(y_extents());
    let w_plane = size_of(w_extents());
    var sum = 0.0f;
    for (var o = first_filter; o < first_filter + p.filters_of_group; o++) {
        let y_start = (image * p.filters + o) * y_plane;
        let w_start = (o * p.channels_of_filter + channel % p.channels_of_filter) * w_plane;
        for (var k = 0u; k < w_plane; k++) {
            let y = position_of(index, index_in(w_extents(), k));
            if y.exists { sum += a[y_start + y.offset] * b[w_start + k]; }
        }
    }
    return sum;
}

fn element_of_w(i: u32) -> f32 {
    let plane = size_of(w_extents());
    let filter_of = i / plane / p.channels_of_filter;
    let channel = filter_of / p.filters_of_group * p.channels_of_filter + i / plane % p.channels_of_filter;
    let within = index_in(w_extents(), i % plane);
    let x_plane = size_of(x_extents());
    let y_plane = size_of(y_extents());
    var sum = 0.0f;
    for (var image = 0u; image < p.batch; image++) {
        let x_start = (image * p.channels + channel) * x_plane;
        let y_start = (image * p.filters + filter_of) * y_plane;
        for (var position = 0u; position < y_plane; position++) {
            let x = met(index_in(y_extents(), position), within);
            if x.exists { sum += a[x_start + x.offset] * b[y_start + position]; }
        }
    }
    return sum;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + group.y * 65535u) * 64u + thread;
    if i >= p.size { return; }
    switch RESULT {
        case 0u: { result[i] = element_of_y(i); }
        case 1u: { result[i] = element_of_x(i); }
        default: { result[i] = element_of_w(i); }
    }
}
