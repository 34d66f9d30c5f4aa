//! Parquet files, by the crate `parquet`. The format is that of
//! <https://github.com/apache/parquet-format>.
//!
//! A row group is read at once: of it, the columns that rows need. The offset in the position of a
//! file is the index of the row group, and the record is the row in it.

mod cells;
mod columns;
mod page_head;
mod pages;
mod rows;

use super::{RecordFormat, RecordReader, records};
use crate::{DataFile, Dataset};
use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use anabranch_dsl::{Diagnostic, Result};
use columns::{ColumnSource, ColumnValues};
use rows::{RowFields, deserialize_row};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the rows of Parquet files. Only the columns that a row needs are read.
///
/// A row becomes a struct whose fields have the names of columns, by `serde`. Other columns are
/// ignored. A tuple has all columns, in order. A map, and a struct with `#[serde(flatten)]`, has
/// all columns that are supported. A column of a group has the names of both, `group.column`, and a
/// field with the name of a group is an error.
///
/// | column | field |
/// |---|---|
/// | numbers, 16-bit floats included | a number |
/// | bools | `bool` |
/// | dates, times | an integer, as it is stored |
/// | strings | `String` |
/// | bytes | `String` if they are UTF-8, `Vec<u8>` |
/// | lists of these | `Vec<T>`, or `[T; n]` if all have `n` elements, at most 32 |
/// | one with nulls | `Option<T>`; of elements of lists that are null, `Vec<Option<T>>` |
///
/// A null in another field is an error that names the file, the row group, the row in it and the
/// column. The next row follows. If a row group cannot be read, the next one follows. Lists of
/// lists or of groups, maps, decimals and 96-bit times are not supported, nor encrypted files.
///
/// Pages may be compressed by Snappy, gzip or LZ4. For other codecs, depend on the crate `parquet`
/// of the same version, with its feature `zstd` or `brotli`.
///
/// ```no_run
/// use anabranch::data::parquet;
///
/// #[derive(serde::Deserialize)]
/// struct Sample {
///     pixels: Vec<f32>,
///     label: i64,
/// }
///
/// let samples = parquet::rows(["digits.parquet"]).map(|s: Sample| (s.pixels, s.label)).batch(32);
/// for batch in samples.iter() {
///     let (pixels, labels) = batch?;
///     assert_eq!(pixels.shape()[1], 784);
/// }
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn rows<T: DeserializeOwned + Send + 'static>(files: impl IntoIterator<Item = impl Into<DataFile>>) -> Dataset<T> {
    records("rows", files, ParquetFormat { row: PhantomData })
}

struct ParquetFormat<T> {
    row: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> RecordFormat<T> for ParquetFormat<T> {
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<T>>> {
        let metadata = read_metadata(file)?;
        let fields = RowFields::of::<T>();
        let columns = columns::wanted(metadata.file_metadata().schema_descr(), &fields);
        let columns = columns.map_err(|(what, help)| file.broken("the schema", what).help(help))?;
        let [group, row] = [offset, record].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (file, is_struct, loaded, row_type) = (file.clone(), fields.is_struct(), None, PhantomData);
        Ok(Box::new(ParquetReader { file, metadata, columns, is_struct, group, row, loaded, row_type }))
    }
}

const MAGIC: &[u8] = b"PAR1";

/// The length of the metadata and the magic bytes, at the end of a file.
const TAIL: u64 = 8;

/// Reads the metadata at the end of a file.
fn read_metadata(file: &DataFile) -> Result<ParquetMetaData> {
    let wrong = |what: String| file.broken("the end of the file", what);
    let len = file.len().map_err(|error| file.unreadable(&error))?;
    let no_parquet = || wrong("this is no Parquet file".to_owned());
    let tail = bytes_at(file, len.checked_sub(TAIL).ok_or_else(no_parquet)?, TAIL)?;
    let (length, magic) = tail.split_at(4);
    if magic == b"PARE" {
        return Err(wrong("the file is encrypted".to_owned()));
    }
    if magic != MAGIC {
        return Err(no_parquet());
    }
    let length = u64::from(u32::from_le_bytes(length.try_into().expect("four bytes")));
    let Some(begin) = (len - TAIL).checked_sub(length) else {
        return Err(wrong(format!("the metadata would have {length} bytes, and the file has {len}")));
    };
    let metadata = bytes_at(file, begin, length)?;
    guarded(|| ParquetMetaDataReader::decode_metadata(&metadata)).map_err(|what| file.broken("the metadata", what))
}

/// Reads bytes of a file, which must have them.
fn bytes_at(file: &DataFile, offset: u64, n: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.open(offset).and_then(|from| from.take(n).read_to_end(&mut bytes));
    read.map_err(|error| file.unreadable(&error))?;
    match bytes.len() as u64 == n {
        true => Ok(bytes),
        false => Err(file.broken(format_args!("{n} bytes at byte {offset}"), "the file ends before")),
    }
}

/// Returns the result of a decoder, whose panics are errors too: it may not expect what is in a
/// damaged file.
fn guarded<T>(decode: impl FnOnce() -> ::parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged: its decoder panicked".to_owned()),
    }
}

struct ParquetReader<T> {
    file: DataFile,
    metadata: ParquetMetaData,
    columns: Vec<ColumnSource>,
    is_struct: bool,
    /// The index of the row group, and that of the next row in it.
    group: usize,
    row: usize,
    /// The columns of the row group.
    loaded: Option<Vec<ColumnValues>>,
    row_type: PhantomData<fn() -> T>,
}

impl<T> ParquetReader<T> {
    /// Returns the number of rows of a row group.
    fn n_rows(&self, group: usize) -> usize {
        usize::try_from(self.metadata.row_group(group).num_rows()).unwrap_or(0)
    }

    /// Steps over row groups that have no more rows. Returns whether there is a row.
    fn find_row(&mut self) -> bool {
        while self.group < self.metadata.num_row_groups() {
            if self.row < self.n_rows(self.group) {
                return true;
            }
            (self.group, self.row, self.loaded) = (self.group + 1, 0, None);
        }
        false
    }

    /// Reads the columns of the row group.
    fn load(&self) -> Result<Vec<ColumnValues>> {
        let (group, n_rows) = (self.metadata.row_group(self.group), self.n_rows(self.group));
        let load = |column: &ColumnSource| {
            let place = || format!("row group {}, column `{}`", self.group, column.name);
            let (begin, length) = column.byte_range(group).map_err(|what| self.file.broken(place(), what))?;
            let bytes = bytes_at(&self.file, begin, length)?;
            let read = guarded(|| column.read(group, begin, bytes, n_rows));
            read.map_err(|what| self.file.broken(place(), what))
        };
        self.columns.iter().map(load).collect()
    }
}

impl<T: DeserializeOwned> RecordReader<T> for ParquetReader<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if !self.find_row() {
            return None;
        }
        if self.loaded.is_none() {
            match self.load() {
                Ok(columns) => self.loaded = Some(columns),
                Err(error) => {
                    (self.group, self.row) = (self.group + 1, 0);
                    return Some(Err(error));
                }
            }
        }
        let columns = self.loaded.as_deref().expect("the row group was just read");
        let (group, row) = (self.group, self.row);
        self.row += 1;
        Some(deserialize_row(columns, row, self.is_struct).map_err(|error| -> Diagnostic {
            let column = error.column.map(|name| format!(", column `{name}`")).unwrap_or_default();
            self.file.broken(format_args!("row group {group}, row {row}{column}"), error.what)
        }))
    }

    fn place(&self) -> (u64, u64) {
        let is_at_end = self.group < self.metadata.num_row_groups() && self.row >= self.n_rows(self.group);
        match is_at_end {
            true => (self.group as u64 + 1, 0),
            false => (self.group as u64, self.row as u64),
        }
    }

    fn is_broken(&self) -> bool {
        false
    }
}
