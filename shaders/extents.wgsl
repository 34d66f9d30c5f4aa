// Indices of tensors with three axes, put before the shaders of windows.

fn size_of(extents: vec3<u32>) -> u32 { return extents.x * extents.y * extents.z; }
fn index_in(extents: vec3<u32>, offset: u32) -> vec3<u32> {
    return vec3<u32>(offset / (extents.y * extents.z), offset / extents.z % extents.y, offset % extents.z);
}
fn offset_in(extents: vec3<u32>, index: vec3<u32>) -> u32 {
    return (index.x * extents.y + index.y) * extents.z + index.z;
}
