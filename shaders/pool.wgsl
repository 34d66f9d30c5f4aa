// Poolings of windows over up to three axes and the operations of their gradients. `x` has the
// elements of windows and `y` an element for each position of a window. A thread computes one
// element: of `y` from its window, or of `x` from the positions whose windows have it. Missing axes
// have extent 1. Every window has an element that is not padding.
//
// The text of `extents.wgsl` is put before this one, and the constant `RESULT`: the operation.
//
// | `RESULT` | operation | operands | result |
// |---|---|---|---|
// | 0 | `max_pool` | `x` | `y` |
// | 1 | `max_pool_pick` | `x`, another `x` | `y` |
// | 2 | `max_pool_grad` | `x`, `y` | `x` |
// | 3 | `avg_pool` | `x` | `y` |
// | 4 | `avg_pool_grad` | `y` | `x` |
//
// An operation with one operand has it as both `a` and `b`.

struct Params {
    size: u32,
    counts_padding: u32,
    x0: u32, x1: u32, x2: u32,
    window0: u32, window1: u32, window2: u32,
    y0: u32, y1: u32, y2: u32,
    stride0: u32, stride1: u32, stride2: u32,
    padding0: u32, padding1: u32, padding2: u32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
var<immediate> p: Params;

fn x_extents() -> vec3<u32> { return vec3<u32>(p.x0, p.x1, p.x2); }
fn window() -> vec3<u32> { return vec3<u32>(p.window0, p.window1, p.window2); }
fn y_extents() -> vec3<u32> { return vec3<u32>(p.y0, p.y1, p.y2); }
fn strides() -> vec3<u32> { return vec3<u32>(p.stride0, p.stride1, p.stride2); }
fn padding() -> vec3<u32> { return vec3<u32>(p.padding0, p.padding1, p.padding2); }

// Adjacent indices along each axis.
struct Range {
    first: vec3<u32>,
    extents: vec3<u32>,
}

// The elements in the window at a position, without padding.
fn elements_at(position: vec3<u32>) -> Range {
    let start = position * strides();
    let first = max(start, padding()) - padding();
    let end = min(start + window() - padding(), x_extents());
    return Range(first, end - first);
}

// The positions of the windows that have an element.
fn positions_of(element: vec3<u32>) -> Range {
    let distance = element + padding();
    let first = select(vec3<u32>(), (distance - window()) / strides() + vec3<u32>(1u), distance >= window());
    let end = min(distance / strides() + vec3<u32>(1u), y_extents());
    return Range(first, end - first);
}

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// The index in `a` of the first maximum in the window at a position. `start` is the index of the
// first element of its plane. A NaN is larger than every number.
fn index_of_maximum(start: u32, position: vec3<u32>) -> u32 {
    let elements = elements_at(position);
    var best = start + offset_in(x_extents(), elements.first);
    for (var k = 1u; k < size_of(elements.extents) && !is_nan(a[best]); k++) {
        let i = start + offset_in(x_extents(), elements.first + index_in(elements.extents, k));
        if a[i] > a[best] || is_nan(a[i]) { best = i; }
    }
    return best;
}

fn sum_of_window(start: u32, position: vec3<u32>) -> f32 {
    let elements = elements_at(position);
    var sum = 0.0f;
    for (var k = 0u; k < size_of(elements.extents); k++) {
        sum += a[start + offset_in(x_extents(), elements.first + index_in(elements.extents, k))];
    }
    return sum;
}

// The number by which the sum of the window at a position is divided.
fn count_at(position: vec3<u32>) -> f32 {
    return f32(select(size_of(elements_at(position).extents), size_of(window()), p.counts_padding == 1u));
}

fn element_of_y(i: u32) -> f32 {
    let position = index_in(y_extents(), i % size_of(y_extents()));
    let start = i / size_of(y_extents()) * size_of(x_extents());
    switch RESULT {
        case 0u: { return a[index_of_maximum(start, position)]; }
        case 1u: { return b[index_of_maximum(start, position)]; }
        default: { return sum_of_window(start, position) / count_at(position); }
    }
}

fn element_of_x(i: u32) -> f32 {
    let plane = i / size_of(x_extents());
    let start = plane * size_of(x_extents());
    let positions = positions_of(index_in(x_extents(), i - start));
    var sum = 0.0f;
    for (var k = 0u; k < size_of(positions.extents); k++) {
        let position = positions.first + index_in(positions.extents, k);
        let y = b[plane * size_of(y_extents()) + offset_in(y_extents(), position)];
        if RESULT == 4u {
            sum += y / count_at(position);
        } else if index_of_maximum(start, position) == i {
            sum += y;
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
        case 2u, 4u: { result[i] = element_of_x(i); }
        default: { result[i] = element_of_y(i); }
    }
}
