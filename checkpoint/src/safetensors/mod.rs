//! The format safetensors: `dsl/src/safetensors.rs` has the headers, with their invariants.
//!
//! What is written has them as well. Its tensors have the order of the Python library: types of
//! large elements first, then by name. So the bytes of a file are determined by its contents.

mod read;
mod write;

pub(crate) use anabranch_dsl::safetensors::{LONGEST_HEADER, TensorEntry, dtype_of, name_of};
pub(crate) use read::{Hashing, OpenedFile, open};
pub(crate) use write::{Layout, PIECE, write_values};

/// Reverses the bytes of each element if this machine stores the last byte first: the format stores
/// the first byte first.
fn swap_if_needed(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}
