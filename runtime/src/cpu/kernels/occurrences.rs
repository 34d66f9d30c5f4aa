//! The first of equal elements of a vector.

use crate::cpu::memory::Sources;
use crate::cpu::memory::View;
use anabranch_dsl::DType;
use bytemuck::Pod;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Writes the index of the first equal element for each element of a contiguous vector.
pub(crate) fn first_occurrences(view: &View, out: &mut [u8], sources: &Sources<'_>) {
    fn find<T: Pod + Eq + Hash>(x: &[T], out: &mut [i32]) {
        let mut firsts = FxHashMap::with_capacity_and_hasher(x.len(), Default::default());
        for ((i, &x), first) in (0..).zip(x).zip(out) {
            *first = *firsts.entry(x).or_insert(i);
        }
    }
    let out = bytemuck::cast_slice_mut::<u8, i32>(out);
    match view.dtype {
        DType::I32 => find(sources.contiguous::<i32>(view), out),
        DType::I64 => find(sources.contiguous::<i64>(view), out),
        DType::U32 => find(sources.contiguous::<u32>(view), out),
        DType::U8 => find(sources.contiguous::<u8>(view), out),
        other => panic!("first occurrences of {other}"),
    }
}
