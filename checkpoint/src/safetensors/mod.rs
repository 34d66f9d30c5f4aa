//! The format safetensors, version 0.8 of <https://github.com/huggingface/safetensors>: eight bytes
//! with the length of the header, the header in JSON, and the elements of all tensors.
//!
//! A header that was read has these invariants, so files from anywhere can be opened:
//!
//! - F1. The header is at most [`LONGEST_HEADER`] bytes and within the file.
//! - F2. Names are unique.
//! - F3. The bytes of a tensor are as many as its type and shape say.
//! - F4. The tensors cover all bytes after the header, each byte once. So the tensors together are
//!   never larger than the file, and memory for one is allocated only after this check.
//!
//! What is written has them as well. Its tensors have the order of the Python library: types of
//! large elements first, then by name. So the bytes of a file are determined by its contents.

mod header;
mod read;
mod write;

pub(crate) use header::{Header, LONGEST_HEADER, TensorEntry};
pub(crate) use read::{Hashing, OpenedFile, open};
pub(crate) use write::{Layout, PIECE, write_values};

use anabranch_dsl::DType;

/// The names and the bits of the element types of the format, and the types of anabranch that they
/// are.
const TYPES: &[(&str, u64, Option<DType>)] = &[
    ("BOOL", 8, Some(DType::Bool)),
    ("F4", 4, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, Some(DType::U8)),
    ("I8", 8, None),
    ("F8_E5M2", 8, None),
    ("F8_E4M3", 8, None),
    ("F8_E5M2FNUZ", 8, None),
    ("F8_E4M3FNUZ", 8, None),
    ("F8_E8M0", 8, None),
    ("I16", 16, None),
    ("U16", 16, None),
    ("F16", 16, Some(DType::F16)),
    ("BF16", 16, Some(DType::BF16)),
    ("I32", 32, Some(DType::I32)),
    ("U32", 32, Some(DType::U32)),
    ("F32", 32, Some(DType::F32)),
    ("C64", 64, None),
    ("F64", 64, Some(DType::F64)),
    ("I64", 64, Some(DType::I64)),
    ("U64", 64, None),
];

/// Returns the place of an element type in [`TYPES`].
fn rank_of(dtype: DType) -> usize {
    TYPES.iter().position(|(_, _, ty)| *ty == Some(dtype)).expect("the format has all plain element types")
}

/// Returns the name of an element type in the format.
pub(crate) fn name_of(dtype: DType) -> &'static str {
    TYPES[rank_of(dtype)].0
}

/// Returns the element type with this name in the format, if anabranch has it.
pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    TYPES.iter().find(|(other, ..)| *other == name).and_then(|(.., dtype)| *dtype)
}

/// Reverses the bytes of each element if this machine stores the last byte first: the format stores
/// the first byte first.
fn swap_if_needed(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}
