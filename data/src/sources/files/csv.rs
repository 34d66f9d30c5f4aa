//! CSV files, by the crate `csv`.

use super::{FileBytes, RecordFormat, RecordReader, open_at, records};
use crate::{DataFile, Dataset};
use ::csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};
use anabranch_dsl::{Diagnostic, Result};
use serde::de::DeserializeOwned;
use std::io::{BufRead, Read};
use std::marker::PhantomData;

/// Returns the rows of CSV files, each with a first line that names the columns. Files whose names
/// end with `.gz` are decompressed.
///
/// A row becomes a struct whose fields have the names of columns, by `serde`; other columns are
/// ignored. A row that does not fit is an error with its line and column.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("anabranch-csv-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("iris.csv");
/// # std::fs::write(&path, "length,width,kind\n5.1,3.5,setosa\n7.0,3.2,versicolor\n").unwrap();
/// use anabranch::data::csv;
///
/// #[derive(serde::Deserialize)]
/// struct Flower {
///     length: f32,
///     kind: String,
/// }
///
/// let flowers = csv::rows([path]).map(|f: Flower| (f.length, f.kind)).batch(2);
/// let (lengths, kinds) = flowers.iter().next().unwrap()?;
/// assert_eq!(lengths.to_vec(), [5.1, 7.0]);
/// assert_eq!(kinds, ["setosa", "versicolor"]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn rows<T: DeserializeOwned + Send + 'static>(files: impl IntoIterator<Item = impl Into<DataFile>>) -> Dataset<T> {
    rows_with(files, CsvOptions::default())
}

/// Returns the rows of files like [`rows`], in another form of CSV.
pub fn rows_with<T: DeserializeOwned + Send + 'static>(
    files: impl IntoIterator<Item = impl Into<DataFile>>,
    options: CsvOptions,
) -> Dataset<T> {
    records("rows", files, CsvFormat { options, row: PhantomData })
}

/// Forms of CSV.
#[derive(Clone, Copy, Debug)]
pub struct CsvOptions {
    delimiter: u8,
    has_header: bool,
}

impl Default for CsvOptions {
    /// Fields between commas, and a header.
    fn default() -> CsvOptions {
        CsvOptions { delimiter: b',', has_header: true }
    }
}

impl CsvOptions {
    /// Sets the byte between fields, such as a tabulator.
    #[must_use]
    pub fn delimiter(self, delimiter: u8) -> CsvOptions {
        CsvOptions { delimiter, ..self }
    }

    /// Reads files whose first line is a row. A row becomes a tuple or an array, by position.
    #[must_use]
    pub fn without_header(self) -> CsvOptions {
        CsvOptions { has_header: false, ..self }
    }

    fn reader(self, bytes: FileBytes) -> Reader<FileBytes> {
        ReaderBuilder::new().delimiter(self.delimiter).has_headers(false).flexible(true).from_reader(bytes)
    }
}

/// The bytes of a first line that are read to find its end.
const MAX_FIRST_LINE: u64 = 1 << 20;

struct CsvFormat<T> {
    options: CsvOptions,
    row: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> RecordFormat<T> for CsvFormat<T> {
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<T>>> {
        let mut line = Vec::new();
        let read = open_at(file, 0)?.take(MAX_FIRST_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| file.unreadable(&error))?;
        let is_crlf = line.ends_with(b"\r\n");
        let mut reader = self.options.reader(open_at(file, 0)?);
        let mut first = StringRecord::new();
        reader.read_record(&mut first).map_err(|error| row_error(file, 1, &error))?;
        let (mut start, mut line_start) = (0, 0);
        if offset > 0 || !self.options.has_header {
            (start, line_start) = (offset, record);
            reader = self.options.reader(open_at(file, offset)?);
        }
        let n_fields = first.len();
        let header = self.options.has_header.then_some(first);
        let file = file.clone();
        Ok(Box::new(CsvReader {
            file,
            reader,
            header,
            n_fields,
            start,
            line_start,
            is_crlf,
            is_broken: false,
            row: PhantomData,
        }))
    }
}

struct CsvReader<T> {
    file: DataFile,
    reader: Reader<FileBytes>,
    header: Option<StringRecord>,
    /// The number of fields of the first line, and of each row.
    n_fields: usize,
    /// Where `reader` starts: the offset in the file, and the number of lines before.
    start: u64,
    line_start: u64,
    /// Whether lines end with `\r\n`: a row is read up to the `\r`.
    is_crlf: bool,
    is_broken: bool,
    row: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> RecordReader<T> for CsvReader<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.is_broken {
            return None;
        }
        let (offset, lines) = self.place();
        let mut record = StringRecord::new();
        match self.reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                // A row that is not UTF-8 has an end.
                self.is_broken = matches!(error.kind(), ErrorKind::Io(_));
                return Some(Err(row_error(&self.file, lines + 1, &error)));
            }
        }
        // The end of the line before belongs to it.
        let is_behind_row = self.is_crlf && offset > 0;
        let line = lines + 1 + u64::from(is_behind_row);
        if record.len() != self.n_fields {
            let what = format!("the row has {} fields, not {}", record.len(), self.n_fields);
            return Some(Err(self.file.broken(format_args!("line {line}"), what)));
        }
        let row = record.deserialize(self.header.as_ref());
        Some(row.map_err(|error| self.field_error(line, &error)))
    }

    /// Returns the offset, and the number of lines before.
    fn place(&self) -> (u64, u64) {
        let position = self.reader.position();
        (self.start + position.byte(), self.line_start + position.line() - 1)
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

impl<T> CsvReader<T> {
    fn field_error(&self, line: u64, error: &::csv::Error) -> Diagnostic {
        let ErrorKind::Deserialize { err, .. } = error.kind() else {
            return row_error(&self.file, line, error);
        };
        let column = err.field().map(|field| {
            let name = self.header.as_ref().and_then(|header| header.get(field as usize));
            name.map_or(format!(", column {}", field + 1), |name| format!(", column `{name}`"))
        });
        self.file.broken(format_args!("line {line}{}", column.unwrap_or_default()), err.kind())
    }
}

fn row_error(file: &DataFile, line: u64, error: &::csv::Error) -> Diagnostic {
    let what = match error.kind() {
        ErrorKind::Utf8 { err, .. } => format!("field {} is not UTF-8", err.field() + 1),
        _ => error.to_string(),
    };
    file.broken(format_args!("line {line}"), what)
}
