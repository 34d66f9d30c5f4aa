//! TFRecord files: records of bytes with checksums.
//!
//! A record is its length as a `u64` in little-endian order, the masked checksum of these eight
//! bytes, the bytes, and their masked checksum. The checksum is CRC-32C; the mask is that of
//! TensorFlow's `crc32c.h`.

use super::{FileBytes, RecordFormat, RecordReader, open_at};
use crate::{DataFile, Dataset};
use anabranch_dsl::{Diagnostic, Result};
use std::io::{Read, Write};

/// Returns the records of TFRecord files. Files whose names end with `.gz` are decompressed.
///
/// A record whose bytes do not have their checksum is an error, and the next one follows. If a
/// length does not have its checksum, or the file ends in a record, the next file follows.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("anabranch-tfrecord-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("a.tfrecord");
/// use anabranch::data::tfrecord;
///
/// let mut file = std::fs::File::create(&path).unwrap();
/// tfrecord::write(&mut file, b"first").unwrap();
/// tfrecord::write(&mut file, b"second").unwrap();
/// let records = tfrecord::records([path]);
/// assert_eq!(records.iter().last().unwrap()?, b"second");
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn records(files: impl IntoIterator<Item = impl Into<DataFile>>) -> Dataset<Vec<u8>> {
    super::records("records", files, TfRecordFormat)
}

/// Writes a record.
///
/// # Errors
/// Returns the error of the writer.
pub fn write(to: &mut impl Write, record: &[u8]) -> std::io::Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    to.write_all(&length)?;
    to.write_all(&checksum(&length).to_le_bytes())?;
    to.write_all(record)?;
    to.write_all(&checksum(record).to_le_bytes())
}

/// Returns the masked checksum of bytes.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

struct TfRecordFormat;

impl RecordFormat<Vec<u8>> for TfRecordFormat {
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<Vec<u8>>>> {
        let bytes = Some(open_at(file, offset)?);
        Ok(Box::new(TfRecordReader { file: file.clone(), bytes, offset, record }))
    }
}

struct TfRecordReader {
    file: DataFile,
    /// Nothing if no further record can be found.
    bytes: Option<FileBytes>,
    offset: u64,
    record: u64,
}

/// The first eight bytes, and the checksum behind them.
const HEAD: usize = 12;

impl TfRecordReader {
    fn fail(&mut self, what: &str) -> Diagnostic {
        self.bytes = None;
        self.broken(what)
    }

    fn broken(&self, what: &str) -> Diagnostic {
        self.file.broken(format_args!("record {} at byte {}", self.record, self.offset), what)
    }

    /// Reads up to `n` bytes. The length of a record is not trusted with memory: what is there is
    /// read.
    fn read(&mut self, n: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let reader = self.bytes.as_mut().expect("a record is read from an open file");
        match reader.take(n).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(self.fail(&format!("it cannot be read: {error}"))),
        }
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>> {
        let head = self.read(HEAD as u64)?;
        if head.is_empty() {
            self.bytes = None;
            return Ok(None);
        }
        let Ok(head) = <[u8; HEAD]>::try_from(head) else {
            return Err(self.fail("the file ends in the length of the record"));
        };
        let (length, check) = (&head[..8], u32_of(&head[8..]));
        if checksum(length) != check {
            return Err(self.fail("the length does not have its checksum, so no further record can be found"));
        }
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let record = self.read(length)?;
        let check = self.read(4)?;
        if record.len() as u64 != length || check.len() != 4 {
            return Err(self.fail(&format!("the file ends in the record, which has {length} bytes")));
        }
        let error = (checksum(&record) != u32_of(&check)).then(|| self.broken("the bytes do not have their checksum"));
        self.offset += HEAD as u64 + length + 4;
        self.record += 1;
        match error {
            Some(error) => Err(error),
            None => Ok(Some(record)),
        }
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

impl RecordReader<Vec<u8>> for TfRecordReader {
    fn next(&mut self) -> Option<Result<Vec<u8>>> {
        self.bytes.as_ref()?;
        self.next_record().transpose()
    }

    fn place(&self) -> (u64, u64) {
        (self.offset, self.record)
    }

    fn is_broken(&self) -> bool {
        self.bytes.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values were computed with TensorFlow's mask and published test vectors of CRC-32C.
    #[test]
    fn checksums_are_those_of_tensorflow() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(b"123456789"), 0xc78a_b0e5);
        assert_eq!(checksum(&8_u64.to_le_bytes()), 0x0f24_86ff);
    }
}
