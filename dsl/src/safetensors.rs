//! Headers of files of the format safetensors, version 0.8 of
//! <https://github.com/huggingface/safetensors>: the names, types, shapes and places of the tensors
//! of a file. The file has eight bytes with the length of the header, the header in JSON, and the
//! elements of all tensors.
//!
//! A header that was parsed has these invariants, so files from anywhere can be opened:
//!
//! - F1. The header is at most [`LONGEST_HEADER`] bytes and within the file.
//! - F2. Names are unique.
//! - F3. The bytes of a tensor are as many as its type and shape say.
//! - F4. The tensors cover all bytes after the header, each byte once. So the tensors together are
//!   never larger than the file, and memory for one is allocated only after this check.
//!
//! Files of weights and files of data have it, which are in different crates.

use crate::DType;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The names and the bits of the element types of the format, and the types of anabranch that they
/// are.
pub const TYPES: &[(&str, u64, Option<DType>)] = &[
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
pub fn rank_of(dtype: DType) -> usize {
    TYPES.iter().position(|(_, _, ty)| *ty == Some(dtype)).expect("the format has all plain element types")
}

/// Returns the name of an element type in the format.
pub fn name_of(dtype: DType) -> &'static str {
    TYPES[rank_of(dtype)].0
}

/// Returns the element type with this name in the format, if anabranch has it.
pub fn dtype_of(name: &str) -> Option<DType> {
    TYPES.iter().find(|(other, ..)| *other == name).and_then(|(.., dtype)| *dtype)
}

/// The maximum length of a header in bytes, that of the Python library.
pub const LONGEST_HEADER: u64 = 100_000_000;

/// The key of the metadata, which is no tensor.
pub const METADATA: &str = "__metadata__";

/// The entry of one tensor in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    pub name: String,
    /// The name of the element type in the format.
    pub file_type: &'static str,
    /// The element type, if anabranch has it.
    pub dtype: Option<DType>,
    pub shape: Vec<usize>,
    /// The first byte of its elements, from the end of the header.
    pub begin: u64,
    /// The byte after its elements.
    pub end: u64,
}

impl TensorEntry {
    pub fn n_bytes(&self) -> u64 {
        self.end - self.begin
    }

    /// Returns the type for messages: `f32[2, 3]`, or `F8_E4M3[2]` for a foreign element type.
    pub fn type_text(&self) -> String {
        match self.dtype {
            Some(dtype) => format!("{dtype}{:?}", self.shape),
            None => format!("{}{:?}", self.file_type, self.shape),
        }
    }
}

/// The tensors of a file in the order of their bytes, with invariants F1 to F4.
#[derive(Clone, Debug)]
pub struct TensorHeader {
    pub tensors: Vec<TensorEntry>,
}

/// The fault of a header.
pub type HeaderError = String;

impl TensorHeader {
    /// Returns the length of the header of a file, from the length of the file and its first eight
    /// bytes.
    pub fn len_of(first: [u8; 8], file_len: u64) -> Result<u64, HeaderError> {
        let len = u64::from_le_bytes(first);
        if len > LONGEST_HEADER {
            let why = format!("its header would have {len} bytes, more than {LONGEST_HEADER}");
            return Err(format!("{why}: this is no file of the format safetensors"));
        }
        match file_len.checked_sub(8) {
            Some(rest) if rest >= len => Ok(len),
            _ => Err(format!("the file ends within its header: it has {file_len} bytes")),
        }
    }

    /// Returns the header in the JSON of a file with `data_len` bytes after the header.
    pub fn parse(json: &[u8], data_len: u64) -> Result<TensorHeader, HeaderError> {
        if json.first() != Some(&b'{') {
            return Err("the header is not an object of JSON".to_owned());
        }
        let parsed: Parsed = serde_json::from_slice(json).map_err(|error| format!("the header is invalid: {error}"))?;
        let tensors = parsed.0.into_iter().map(|(name, tensor)| tensor.into_entry(name));
        let mut tensors: Vec<TensorEntry> = tensors.collect::<Result<_, _>>()?;
        tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let mut end = 0;
        for tensor in &tensors {
            if tensor.begin != end {
                let (name, begin) = (shown(&tensor.name), tensor.begin);
                let what = if begin < end { "overlaps the tensor before it" } else { "follows a hole" };
                return Err(format!("the tensor {name} {what}: it begins at byte {begin} and not at {end}"));
            }
            end = tensor.end;
        }
        if end != data_len {
            let last =
                tensors.last().map_or("no tensor".to_owned(), |last| format!("the tensor {}", shown(&last.name)));
            return Err(format!("there are {data_len} bytes of elements, but {last} ends at byte {end}"));
        }
        Ok(TensorHeader { tensors })
    }
}

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct ParsedTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl ParsedTensor {
    fn into_entry(self, name: String) -> Result<TensorEntry, HeaderError> {
        let ParsedTensor { dtype, shape, data_offsets: (begin, end) } = self;
        let wrong = |why: String| format!("the tensor {}: {why}", shown(&name));
        let Some(&(file_type, bits, ours)) = TYPES.iter().find(|(name, ..)| *name == dtype) else {
            return Err(wrong(format!("the element type {} is unknown", shown(&dtype))));
        };
        let extent = |n: u64| usize::try_from(n).map_err(|_| wrong(format!("the extent {n} is too large")));
        let shape: Vec<usize> = shape.into_iter().map(extent).collect::<Result<_, _>>()?;
        // An empty tensor may have any other extents.
        let n_bits = match shape.contains(&0) {
            true => Some(0),
            false => shape.iter().try_fold(bits, |n, &extent| n.checked_mul(extent as u64)),
        };
        let n_bytes = n_bits.filter(|n| n % 8 == 0).map(|n| n / 8);
        let Some(n_bytes) = n_bytes else {
            return Err(wrong(format!("{file_type} of shape {shape:?} is not a number of bytes that fits in 64 bits")));
        };
        match end.checked_sub(begin) {
            Some(given) if given == n_bytes => Ok(TensorEntry { name, file_type, dtype: ours, shape, begin, end }),
            Some(given) => {
                Err(wrong(format!("{file_type} of shape {shape:?} has {n_bytes} bytes, but the file has {given}")))
            }
            None => Err(wrong(format!("it ends at byte {end}, before its begin at byte {begin}"))),
        }
    }
}

/// The tensors of a header, with names that are unique.
struct Parsed(Vec<(String, ParsedTensor)>);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parsed, D::Error> {
        from.deserialize_map(ParsedVisitor)
    }
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut parsed = Parsed(Vec::new());
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let wrong = |error: &dyn fmt::Display| de::Error::custom(format!("{}: {error}", shown(&name)));
            if !seen.insert(name.clone()) {
                return Err(wrong(&"the name appears twice"));
            }
            if name == METADATA {
                map.next_value::<BTreeMap<String, String>>().map_err(|error| wrong(&error))?;
            } else {
                let tensor = map.next_value().map_err(|error: A::Error| wrong(&error))?;
                parsed.0.push((name, tensor));
            }
        }
        Ok(parsed)
    }
}

/// Returns a name from a file for a message: without control characters, and not too long.
pub fn shown(name: &str) -> String {
    const LONGEST: usize = 200;
    let mut text: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}
