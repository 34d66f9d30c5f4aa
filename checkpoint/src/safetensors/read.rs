//! Reading a file from its begin to its end, one tensor at a time.

use super::{TensorEntry, swap_if_needed};
use crate::error::{ReadError, damaged, failed, shown};
use crate::storage::{FileStorage, StorageReader};
use anabranch_dsl::safetensors::TensorHeader;
use anabranch_dsl::{Buffer, DType, Diagnostic, ErrorKind, HostTensor, memory};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes, and a checksum of those that went by.
pub(crate) struct Hashing<I> {
    pub inner: I,
    hash: Xxh3Default,
}

impl<I> Hashing<I> {
    pub fn new(inner: I) -> Hashing<I> {
        Hashing { inner, hash: Xxh3Default::new() }
    }

    /// Returns the checksum of the bytes up to now.
    pub fn checksum(&self) -> u64 {
        self.hash.digest()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(to)?;
        self.hash.update(&to[..n]);
        Ok(n)
    }
}

impl<W: io::Write> io::Write for Hashing<W> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(from)?;
        self.hash.update(&from[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The bytes that are read at once: they fit in the cache, from which the checksum reads them.
const PIECE: usize = 1 << 18;

/// A file whose header was read, at the begin of its elements.
pub(crate) struct OpenedFile {
    path: PathBuf,
    pub header: TensorHeader,
    pub len: u64,
    rest: Hashing<BufReader<Box<dyn Read + Send>>>,
}

/// Opens a file and checks its header.
pub(crate) fn open(storage: &dyn FileStorage, path: &Path) -> Result<OpenedFile, ReadError> {
    let wrong = |why: String| ReadError::Damaged(damaged(path, why));
    let failed = |what: &str, error: io::Error| ReadError::of(&error, failed(what, path, &error));
    let StorageReader { bytes, len } = storage.read(path).map_err(|error| failed("open", error))?;
    let mut rest = Hashing::new(BufReader::with_capacity(PIECE, bytes));
    let mut header_len = [0; 8];
    let data_and_header = len.checked_sub(8);
    let cut = || wrong(format!("the file ends within its first eight bytes: it has {len} bytes"));
    let data_and_header = data_and_header.ok_or_else(cut)?;
    read_exactly(&mut rest, &mut header_len).map_err(|error| failed("read", error))?;
    let header_len = TensorHeader::len_of(header_len, len).map_err(wrong)?;
    let data_len = data_and_header - header_len;
    let mut json = vec![0; header_len as usize];
    read_exactly(&mut rest, &mut json).map_err(|error| failed("read", error))?;
    let header = TensorHeader::parse(&json, data_len).map_err(|why| ReadError::Damaged(damaged(path, why)))?;
    Ok(OpenedFile { path: path.to_owned(), header, len, rest })
}

fn read_exactly(from: &mut impl Read, to: &mut [u8]) -> io::Result<()> {
    // In pieces, so that the checksum finds the bytes in the cache.
    to.chunks_mut(PIECE).try_for_each(|piece| from.read_exact(piece))
}

impl OpenedFile {
    /// Reads the tensors for which `wanted` holds, and passes over the others. Returns them with
    /// the checksum of the whole file.
    pub fn read(
        mut self,
        mut wanted: impl FnMut(&TensorEntry) -> bool,
    ) -> Result<(Vec<(String, HostTensor)>, u64), ReadError> {
        let mut found = Vec::new();
        for entry in std::mem::take(&mut self.header.tensors) {
            if wanted(&entry) {
                found.push((entry.name.clone(), self.tensor(&entry)?));
            } else {
                let n = entry.n_bytes();
                let passed = io::copy(&mut (&mut self.rest).take(n), &mut io::sink());
                let passed =
                    passed.and_then(|read| if read == n { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
                passed.map_err(|error| self.not_read(&entry, error))?;
            }
        }
        Ok((found, self.rest.checksum()))
    }

    fn tensor(&mut self, entry: &TensorEntry) -> Result<HostTensor, ReadError> {
        let Some(dtype) = entry.dtype else {
            let why = format!("anabranch has no element type {}", entry.file_type);
            return Err(ReadError::Damaged(self.wrong(entry, why)));
        };
        memory::check(entry.n_bytes().into()).map_err(|error| {
            let error = self.wrong(entry, error).of_kind(ErrorKind::ResourceExhausted);
            ReadError::Failed(error.help(memory::SMALLER))
        })?;
        let n = usize::try_from(entry.n_bytes()).expect("there is memory for it") / dtype.size();
        let mut elements = Buffer::zeros(dtype, n);
        let read = match &mut elements {
            Buffer::F32(to) => self.fill(bytemuck::cast_slice_mut(to), 4),
            Buffer::F64(to) => self.fill(bytemuck::cast_slice_mut(to), 8),
            Buffer::F16(to) => self.fill(bytemuck::cast_slice_mut(to), 2),
            Buffer::BF16(to) => self.fill(bytemuck::cast_slice_mut(to), 2),
            Buffer::I32(to) => self.fill(bytemuck::cast_slice_mut(to), 4),
            Buffer::I64(to) => self.fill(bytemuck::cast_slice_mut(to), 8),
            Buffer::U32(to) => self.fill(bytemuck::cast_slice_mut(to), 4),
            Buffer::U8(to) => self.fill(to, 1),
            Buffer::Bool(to) => self.fill_bools(to),
            Buffer::Bytes(_) => unreachable!("the format has no strings"),
        };
        read.map_err(|error| self.not_read(entry, error))?;
        Ok(HostTensor::from_buffer(entry.shape.clone(), elements))
    }

    fn not_read(&self, entry: &TensorEntry, error: io::Error) -> ReadError {
        let text = match error.kind() {
            io::ErrorKind::UnexpectedEof => self.wrong(entry, "the file ends within it"),
            _ => self.wrong(entry, &error),
        };
        ReadError::of(&error, text)
    }

    fn fill(&mut self, to: &mut [u8], size: usize) -> io::Result<()> {
        read_exactly(&mut self.rest, to)?;
        swap_if_needed(to, size);
        Ok(())
    }

    fn fill_bools(&mut self, to: &mut [bool]) -> io::Result<()> {
        let mut piece = vec![0; PIECE.min(to.len())];
        for to in to.chunks_mut(PIECE) {
            let bytes = &mut piece[..to.len()];
            self.rest.read_exact(bytes)?;
            if let Some(wrong) = bytes.iter().find(|&&byte| byte > 1) {
                let why = format!("an element of {} is {wrong}, neither 0 nor 1", DType::Bool);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte == 1);
        }
        Ok(())
    }

    fn wrong(&self, entry: &TensorEntry, why: impl std::fmt::Display) -> Diagnostic {
        damaged(&self.path, format!("the tensor {}: {why}", shown(&entry.name)))
    }
}
