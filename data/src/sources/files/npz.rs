//! Files of NumPy's format `npz`: several arrays by name, in a ZIP archive.
//!
//! The archive is that of PKWARE's APPNOTE 6.3.10, with the extensions for large files (ZIP64),
//! which NumPy writes. Its members are stored or deflated.

use super::npy::{NpyElement, decode};
use crate::DataFile;
use anabranch_dsl::{Array, Diagnostic, Result};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::{self, BufReader, Read};

/// An open `npz` file, as `numpy.savez` and `numpy.savez_compressed` write them.
///
/// ```no_run
/// use anabranch::data::{Dataset, npz::NpzFile};
///
/// let file = NpzFile::open("digits.npz")?;
/// let data = Dataset::rows((file.read::<f32>("images")?, file.read::<i64>("classes")?))?;
/// # let _ = data;
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct NpzFile {
    file: DataFile,
    members: Vec<ZipMember>,
}

/// A file in an archive, as the directory of the archive describes it.
#[derive(Clone, Debug)]
struct ZipMember {
    name: String,
    flags: u16,
    method: u16,
    checksum: u32,
    /// The number of bytes in the archive, and of the file.
    packed: u64,
    size: u64,
    /// The offset of the head before the bytes.
    offset: u64,
}

/// An error of reading an archive.
enum ZipError {
    Io(io::Error),
    Broken(String),
}

impl From<io::Error> for ZipError {
    fn from(error: io::Error) -> ZipError {
        ZipError::Io(error)
    }
}

impl ZipError {
    fn broken(what: impl Into<String>) -> ZipError {
        ZipError::Broken(what.into())
    }

    fn at(self, file: &DataFile, place: &str) -> Diagnostic {
        match self {
            ZipError::Io(error) => file.unreadable(&error),
            ZipError::Broken(what) => file.broken(place, what),
        }
    }
}

impl NpzFile {
    /// Opens a file and reads its directory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is no archive.
    pub fn open(file: impl Into<DataFile>) -> Result<NpzFile> {
        let file = file.into();
        let members = directory(&file).map_err(|error| error.at(&file, "the directory of the archive"))?;
        Ok(NpzFile { file, members })
    }

    /// Returns the names of the arrays, in the order in which they are stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|member| member.name.strip_suffix(".npy"))
    }

    /// Reads an array.
    ///
    /// # Errors
    /// Returns an error if there is no array of this name, if it has elements of another type, if
    /// it is encrypted or compressed by another method than deflation, or if the file is damaged.
    pub fn read<T: NpyElement>(&self, name: &str) -> Result<Array<T>> {
        let Some(member) = self.members.iter().find(|member| member.name.strip_suffix(".npy") == Some(name)) else {
            let message = format!("`{}` has no array `{name}`", self.file);
            let names: Vec<String> = self.names().map(|name| format!("`{name}`")).collect();
            return Err(Diagnostic::new(message).help(format!("it has {}", names.join(", "))));
        };
        let place = format!("the array `{name}`");
        let bytes = member.read(&self.file).map_err(|error| error.at(&self.file, &place))?;
        decode(&bytes).map_err(|what| self.file.broken(place, what))
    }
}

/// The lengths of the fixed parts of the records of an archive.
const END: usize = 22;
const END64_LOCATOR: u64 = 20;
const END64: usize = 56;
const ENTRY: usize = 46;
const LOCAL: usize = 30;

/// Reads the directory of an archive.
fn directory(file: &DataFile) -> Result<Vec<ZipMember>, ZipError> {
    let no_archive = || ZipError::broken("this is no file of the format `npz`");
    let len = file.len()?;
    // The end record is followed by a comment of at most 65,535 bytes.
    let tail_at = len.saturating_sub(END as u64 + 0xffff);
    let tail = bytes_at(file, tail_at, usize::try_from(len - tail_at).map_err(|_| no_archive())?)?;
    let starts = (0..=tail.len().checked_sub(END).ok_or_else(no_archive)?).rev();
    let is_end = |&at: &usize| {
        tail[at..].starts_with(b"PK\x05\x06") && usize::from(u16_at(&tail, at + 20)) == tail.len() - at - END
    };
    let end = starts.into_iter().find(is_end).ok_or_else(no_archive)?;
    let (mut size, mut offset) = (u64::from(u32_at(&tail, end + 12)), u64::from(u32_at(&tail, end + 16)));
    if let Some(locator_at) = (tail_at + end as u64).checked_sub(END64_LOCATOR) {
        let locator = bytes_at(file, locator_at, END64_LOCATOR as usize)?;
        if locator.starts_with(b"PK\x06\x07") {
            let end64 = bytes_at(file, u64_at(&locator, 8), END64)?;
            if !end64.starts_with(b"PK\x06\x06") {
                return Err(ZipError::broken("the end record for large files is not where it should be"));
            }
            (size, offset) = (u64_at(&end64, 40), u64_at(&end64, 48));
        }
    }
    if offset.checked_add(size).is_none_or(|end| end > len) {
        return Err(ZipError::broken("it does not lie in the file"));
    }
    let size = usize::try_from(size).map_err(|_| ZipError::broken("it is too large"))?;
    let entries = bytes_at(file, offset, size)?;
    let mut rest = &entries[..];
    let mut members = Vec::new();
    while !rest.is_empty() {
        let (member, behind) = entry(rest).ok_or_else(|| ZipError::broken("an entry of it is damaged"))?;
        members.push(member);
        rest = behind;
    }
    Ok(members)
}

/// Returns the first entry of a directory, and the bytes behind it.
fn entry(bytes: &[u8]) -> Option<(ZipMember, &[u8])> {
    if bytes.len() < ENTRY || !bytes.starts_with(b"PK\x01\x02") {
        return None;
    }
    let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
    let (name, rest) = bytes[ENTRY..].split_at_checked(name_len)?;
    let (mut extra, rest) = rest.split_at_checked(extra_len)?;
    let (_, rest) = rest.split_at_checked(comment_len)?;
    let mut member = ZipMember {
        name: String::from_utf8_lossy(name).into_owned(),
        flags: u16_at(bytes, 8),
        method: u16_at(bytes, 10),
        checksum: u32_at(bytes, 16),
        packed: u32_at(bytes, 20).into(),
        size: u32_at(bytes, 24).into(),
        offset: u32_at(bytes, 42).into(),
    };
    // Numbers that do not fit are in a field behind the name, in this order.
    while let Some((head, behind)) = extra.split_first_chunk::<4>() {
        let (mut field, behind) = behind.split_at_checked(usize::from(u16_at(head, 2)))?;
        if u16_at(head, 0) == 1 {
            for number in [&mut member.size, &mut member.packed, &mut member.offset] {
                if *number == u64::from(u32::MAX) {
                    let (large, rest) = field.split_first_chunk::<8>()?;
                    (*number, field) = (u64::from_le_bytes(*large), rest);
                }
            }
        }
        extra = behind;
    }
    Some((member, rest))
}

impl ZipMember {
    /// Returns the bytes of the file. Its size in the directory is not trusted with memory: what is
    /// there is read.
    fn read(&self, file: &DataFile) -> Result<Vec<u8>, ZipError> {
        if self.flags & 1 != 0 {
            return Err(ZipError::broken("it is encrypted"));
        }
        let head = bytes_at(file, self.offset, LOCAL)?;
        if !head.starts_with(b"PK\x03\x04") {
            return Err(ZipError::broken("its bytes are not where the directory says"));
        }
        let behind = u64::from(u16_at(&head, 26)) + u64::from(u16_at(&head, 28));
        let begin = self.offset.saturating_add(LOCAL as u64 + behind);
        let packed = BufReader::new(file.open(begin)?).take(self.packed);
        let mut bytes = Vec::new();
        let read = match self.method {
            0 => packed.take(self.size).read_to_end(&mut bytes),
            8 => DeflateDecoder::new(packed).take(self.size).read_to_end(&mut bytes),
            method => {
                return Err(ZipError::broken(format!("it is compressed by the method {method}, not by deflation")));
            }
        };
        if let Err(error) = read {
            let is_damaged = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
            let is_cut = error.kind() == io::ErrorKind::UnexpectedEof;
            return Err(if is_damaged || is_cut { ZipError::broken(error.to_string()) } else { ZipError::Io(error) });
        }
        let mut checksum = Crc::new();
        checksum.update(&bytes);
        if bytes.len() as u64 != self.size || checksum.sum() != self.checksum {
            return Err(ZipError::broken("its bytes do not have the size and the checksum of the directory"));
        }
        Ok(bytes)
    }
}

/// Reads bytes of a file, which must have them.
fn bytes_at(file: &DataFile, offset: u64, n: usize) -> Result<Vec<u8>, ZipError> {
    let mut bytes = Vec::new();
    file.open(offset)?.take(n as u64).read_to_end(&mut bytes)?;
    if bytes.len() == n { Ok(bytes) } else { Err(ZipError::broken("the file ends before")) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
