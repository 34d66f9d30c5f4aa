//! Records of files.
//!
//! Position: the index of the file, the offset in its (decompressed) bytes, the number of the
//! record in the file, and whether the file is being read.
//!
//! A file is opened when its first record is asked for. If it cannot be opened, or no further
//! record can be found in it, that is an error in the place of a record, and the next file follows.

pub mod csv;
pub mod example;
pub mod idx;
#[cfg(feature = "images")]
pub mod images;
pub mod npy;
pub mod npz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod safetensors;
pub mod text;
pub mod tfrecord;

use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use crate::{DataFile, Dataset};
use anabranch_dsl::Result;
use flate2::bufread::MultiGzDecoder;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the files of a folder whose names end with `ending`, sorted by name: systems list them
/// in any order.
///
/// # Errors
/// Returns an error if the folder cannot be read, or if one of these names stands for nothing: it
/// may be a link to a file that does not exist.
pub fn files_in(folder: impl AsRef<Path>, ending: &str) -> Result<Vec<PathBuf>> {
    let folder = folder.as_ref();
    let unreadable = |path: &Path, error: &std::io::Error| DataFile::from(path).unreadable(error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        if !path.to_string_lossy().ends_with(ending) {
            continue;
        }
        if std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The bytes of a file from an offset on.
type FileBytes = Box<dyn BufRead + Send>;

/// Opens a file at an offset of its decompressed bytes. Files whose names end with `.gz` are
/// compressed.
fn open_at(file: &DataFile, offset: u64) -> Result<FileBytes> {
    let buffered = |offset| file.open(offset).map(|bytes| BufReader::with_capacity(1 << 16, bytes));
    let open = || -> std::io::Result<FileBytes> {
        if file.path().extension().is_none_or(|ending| ending != "gz") {
            return Ok(Box::new(buffered(offset)?));
        }
        let mut bytes = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(buffered(0)?));
        // Compressed bytes have no index, so all before the offset are decompressed.
        std::io::copy(&mut (&mut bytes).take(offset), &mut std::io::sink())?;
        Ok(Box::new(bytes))
    };
    open().map_err(|error| file.unreadable(&error))
}

/// Reads a whole file, decompressed if its name ends with `.gz`.
fn read_all(file: &DataFile) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_at(file, 0)?.read_to_end(&mut bytes).map_err(|error| file.unreadable(&error))?;
    Ok(bytes)
}

/// A format of files that consist of records.
trait RecordFormat<T>: Send + Sync {
    /// Opens a file at an offset, at which the record of this number begins.
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<T>>>;
}

/// An open file.
trait RecordReader<T>: Send {
    /// Returns the next record. After an error behind which no record can be found there is none.
    fn next(&mut self) -> Option<Result<T>>;

    /// Returns the offset of the next record, and its number.
    fn place(&self) -> (u64, u64);

    /// Returns whether no further record can be found, because of an error.
    fn is_broken(&self) -> bool;
}

struct RecordStage<T> {
    name: &'static str,
    files: Arc<[DataFile]>,
    format: Arc<dyn RecordFormat<T>>,
}

/// Returns the records of files, one file after the other.
fn records<T: Send + 'static>(
    name: &'static str,
    files: impl IntoIterator<Item = impl Into<DataFile>>,
    format: impl RecordFormat<T> + 'static,
) -> Dataset<T> {
    let files = files.into_iter().map(Into::into).collect();
    Dataset::of(RecordStage { name, files, format: Arc::new(format) })
}

impl<T: Send + 'static> Stage<T> for RecordStage<T> {
    fn open(&self, _epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        let (file, offset, record, is_open) = (at.word(), at.word(), at.word(), at.word() != 0);
        let file = usize::try_from(file).unwrap_or(usize::MAX);
        let reader = match self.files.get(file) {
            Some(file) if is_open => Some(self.format.open(file, offset, record)?),
            _ => None,
        };
        Ok(Box::new(RecordCursor { files: self.files.clone(), format: self.format.clone(), file, reader }))
    }

    fn len(&self) -> Option<u64> {
        self.files.is_empty().then_some(0)
    }

    fn describe(&self, text: &mut String) {
        // Files may move between runs; their number and order may not change.
        *text += &format!("{} of {} files", self.name, self.files.len());
    }
}

struct RecordCursor<T> {
    files: Arc<[DataFile]>,
    format: Arc<dyn RecordFormat<T>>,
    /// The index of the file that is or will be read.
    file: usize,
    reader: Option<Box<dyn RecordReader<T>>>,
}

impl<T> Cursor<T> for RecordCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        loop {
            if let Some(reader) = &mut self.reader {
                if let Some(record) = reader.next() {
                    return Some(record);
                }
                (self.reader, self.file) = (None, self.file + 1);
            }
            match self.format.open(self.files.get(self.file)?, 0, 0) {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => {
                    self.file += 1;
                    return Some(Err(error));
                }
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        let file = self.file as u64;
        match &self.reader {
            None => words.extend([file, 0, 0, 0]),
            Some(reader) if reader.is_broken() => words.extend([file + 1, 0, 0, 0]),
            Some(reader) => {
                let (offset, record) = reader.place();
                words.extend([file, offset, record, 1]);
            }
        }
    }

    fn skipped(&self) -> u64 {
        0
    }
}
