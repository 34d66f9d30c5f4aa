//! Writing a file, one tensor after the other. Only the header is built in memory.

use super::swap_if_needed;
use anabranch_dsl::safetensors::{LONGEST_HEADER, METADATA, TYPES, rank_of};
use anabranch_dsl::{Buffer, DType, Diagnostic, HostTensor, Result};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The tensors of a file that is to be written, in their order, and its header.
pub(crate) struct Layout {
    /// For each tensor of the file its number among those given.
    pub order: Vec<usize>,
    /// The header, with its length before it.
    pub header: Vec<u8>,
    /// The bytes of all elements.
    pub data_len: u64,
}

#[derive(Serialize)]
struct TensorRecord<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data_offsets: (u64, u64),
}

/// The header as a map in the order of the file.
struct HeaderRecord<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<(&'a str, TensorRecord<'a>)>,
}

impl Serialize for HeaderRecord<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        self.tensors.iter().try_for_each(|(name, tensor)| map.serialize_entry(name, tensor))?;
        map.end()
    }
}

impl Layout {
    /// Returns the layout of a file with tensors of these names, types and shapes.
    pub fn new(tensors: &[(&str, DType, &[usize])], metadata: &BTreeMap<String, String>) -> Result<Layout> {
        if tensors.iter().any(|(name, ..)| *name == METADATA) {
            let error = Diagnostic::new(format!("a variable has the path `{METADATA}`, which files do not allow"));
            return Err(error.help("give the part of the module another name"));
        }
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&i| (Reverse(rank_of(tensors[i].1)), tensors[i].0));
        let mut end = 0;
        let records = order.iter().map(|&i| {
            let (name, dtype, shape) = tensors[i];
            let begin = end;
            end += (shape.iter().product::<usize>() * dtype.size()) as u64;
            let dtype = TYPES[rank_of(dtype)].0;
            (name, TensorRecord { dtype, shape, data_offsets: (begin, end) })
        });
        let record = HeaderRecord { metadata, tensors: records.collect() };
        let mut header = vec![0; 8];
        serde_json::to_writer(&mut header, &record).expect("a header is valid JSON");
        header.resize(header.len().next_multiple_of(8), b' ');
        let len = header.len() as u64 - 8;
        if len > LONGEST_HEADER {
            let message = format!("the header of the file would have {len} bytes, more than {LONGEST_HEADER}");
            return Err(Diagnostic::new(message).help("use fewer variables, or shorter names"));
        }
        header[..8].copy_from_slice(&len.to_le_bytes());
        Ok(Layout { order, header, data_len: end })
    }
}

/// The bytes that are written at once: as many as fit in the cache, from which the checksum and
/// then the system read them.
pub(crate) const PIECE: usize = 1 << 18;

/// Writes the elements of a tensor.
pub(crate) fn write_values(to: &mut impl Write, tensor: &HostTensor) -> io::Result<()> {
    match tensor.buffer() {
        Buffer::F32(data) => write_bytes(to, bytemuck::cast_slice(data), 4),
        Buffer::F64(data) => write_bytes(to, bytemuck::cast_slice(data), 8),
        Buffer::F16(data) => write_bytes(to, bytemuck::cast_slice(data), 2),
        Buffer::BF16(data) => write_bytes(to, bytemuck::cast_slice(data), 2),
        Buffer::I32(data) => write_bytes(to, bytemuck::cast_slice(data), 4),
        Buffer::I64(data) => write_bytes(to, bytemuck::cast_slice(data), 8),
        Buffer::U32(data) => write_bytes(to, bytemuck::cast_slice(data), 4),
        Buffer::U8(data) => write_bytes(to, data, 1),
        Buffer::Bool(data) => write_bytes(to, bytemuck::cast_slice(data), 1),
        Buffer::Bytes(_) => unreachable!("the layout has no strings"),
    }
}

fn write_bytes(to: &mut impl Write, bytes: &[u8], size: usize) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        if cfg!(target_endian = "big") {
            let mut piece = piece.to_vec();
            swap_if_needed(&mut piece, size);
            to.write_all(&piece)?;
        } else {
            to.write_all(piece)?;
        }
    }
    Ok(())
}
