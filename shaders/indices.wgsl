// Indices along the middle axis of a tensor [outer, extent, inner], which another tensor [outer,
// length, inner] has for its elements. The constant `INDICES` is put before this text: how they
// follow from the tensor `ids`.

const ONE_FOR_ALL_ROWS = 0u;
const ONE_FOR_EACH_ELEMENT = 1u;

struct Params {
    size: u32,
    length: u32,
    inner: u32,
    extent: u32,
    // The number of parts of the middle axis that threads share out.
    parts: u32,
    check: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> failure: atomic<u32>;
var<immediate> p: Params;

// The index for an element. A negative number is a large one here. Consecutive indices that do not
// all fit are `extent`.
fn index_for(outer: u32, along: u32, inner: u32) -> u32 {
    switch INDICES {
        case ONE_FOR_ALL_ROWS: { return ids[along]; }
        case ONE_FOR_EACH_ELEMENT: { return ids[(outer * p.length + along) * p.inner + inner]; }
        // Consecutive indices from a start.
        default: { return select(p.extent, ids[0] + along, ids[0] <= p.extent - p.length); }
    }
}

// Returns an index, or 0 after a report if it is out of bounds.
fn checked(index: u32) -> u32 {
    if index < p.extent { return index; }
    atomicMax(&failure, p.check);
    return 0u;
}
