//! CSV files, by the crate `csv`.

use super::{FileBytes, RecordFormat, RecordReader, open_at, records};
use crate::{DataFile, Dataset};
use ::csv::{ByteRecord, ErrorKind, StringRecord};
use anabranch_dsl::{Diagnostic, Result};
use csv_core::ReadRecordResult;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io;
use std::marker::PhantomData;

/// Returns the rows of CSV files, each with a first line that names the columns. Files whose names
/// end with `.gz` are decompressed.
///
/// A row becomes a struct whose fields have the names of columns, by `serde`; other columns are
/// ignored. A row that does not fit is an error with its line and column. Empty lines are skipped.
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

    /// Reads files whose first line is a row. A row becomes a tuple or an array, by position. All
    /// rows must have as many fields as the first one that fits.
    #[must_use]
    pub fn without_header(self) -> CsvOptions {
        CsvOptions { has_header: false, ..self }
    }

    /// Returns the rows from an offset on, where a line begins.
    fn rows(self, bytes: FileBytes, offset: u64, line: u64) -> CsvRows {
        let mut core = csv_core::ReaderBuilder::new().delimiter(self.delimiter).build();
        // After an empty line, a byte order mark is data.
        core.read_record(b"\n", &mut [0], &mut [0]);
        core.set_line(line);
        CsvRows { bytes, core, offset, fields: vec![0; 1 << 10], ends: vec![0; 1 << 6] }
    }
}

/// The rows of a file as fields.
struct CsvRows {
    bytes: FileBytes,
    /// It counts the lines.
    core: csv_core::Reader,
    /// The offset of the next row, or of empty lines before it.
    offset: u64,
    /// Memory for the fields of a row, and their ends.
    fields: Vec<u8>,
    ends: Vec<usize>,
}

/// The reason that no further row can be found.
enum CsvFailure {
    Unreadable(io::Error),
    UnclosedQuote,
}

impl From<io::Error> for CsvFailure {
    fn from(error: io::Error) -> CsvFailure {
        CsvFailure::Unreadable(error)
    }
}

impl CsvRows {
    /// Returns the fields of the row that begins here.
    fn next(&mut self) -> Result<ByteRecord, CsvFailure> {
        let (mut n_bytes, mut n_ends) = (0, 0);
        loop {
            let input = self.bytes.fill_buf()?;
            // An end of the file ends a line.
            let is_end = input.is_empty();
            let input = if is_end { b"\n" } else { input };
            let (fields, ends) = (&mut self.fields[n_bytes..], &mut self.ends[n_ends..]);
            let (result, read, written, ended) = self.core.read_record(input, fields, ends);
            let is_carriage_return = read > 0 && input[read - 1] == b'\r';
            if !is_end {
                self.consume(read);
            }
            (n_bytes, n_ends) = (n_bytes + written, n_ends + ended);
            match result {
                ReadRecordResult::InputEmpty if is_end => return Err(CsvFailure::UnclosedQuote),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.fields.resize(self.fields.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                ReadRecordResult::Record => {
                    if is_carriage_return {
                        self.end_line()?;
                    }
                    break;
                }
                ReadRecordResult::End => panic!("no input is empty"),
            }
        }
        let mut row = ByteRecord::with_capacity(n_bytes, n_ends);
        let mut start = 0;
        for &end in &self.ends[..n_ends] {
            row.push_field(&self.fields[start..end]);
            start = end;
        }
        Ok(row)
    }

    /// Skips empty lines, and a byte order mark at the beginning. Returns the number of the line of
    /// the next row, or `None` at the end.
    fn skip_empty(&mut self) -> io::Result<Option<u64>> {
        if self.offset == 0 && self.bytes.fill_buf()?.starts_with("\u{feff}".as_bytes()) {
            self.consume("\u{feff}".len());
        }
        loop {
            let end = match self.bytes.fill_buf()?.first() {
                None => return Ok(None),
                Some(b'\n') => 0,
                Some(b'\r') => 1,
                Some(_) => return Ok(Some(self.core.line())),
            };
            self.consume(end);
            self.end_line()?;
        }
    }

    /// Counts a line, and takes a line feed that belongs to its end.
    fn end_line(&mut self) -> io::Result<()> {
        if self.bytes.fill_buf()?.first() == Some(&b'\n') {
            self.consume(1);
        }
        self.core.set_line(self.core.line() + 1);
        Ok(())
    }

    fn consume(&mut self, n: usize) {
        self.bytes.consume(n);
        self.offset += n as u64;
    }
}

struct CsvFormat<T> {
    options: CsvOptions,
    row: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> RecordFormat<T> for CsvFormat<T> {
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<T>>> {
        let rows = self.options.rows(open_at(file, 0)?, 0, 1);
        let mut reader =
            CsvReader { file: file.clone(), rows, header: None, n_fields: None, is_broken: false, row: PhantomData };
        if self.options.has_header {
            let header = reader.fields().transpose()?.map(|(_, header)| header).unwrap_or_default();
            reader.n_fields = Some(header.len());
            reader.header = Some(header);
        }
        if offset > 0 {
            // The first row that fits may have been before the offset.
            while reader.n_fields.is_none() && reader.rows.offset < offset && reader.next().is_some() {}
            reader.rows = self.options.rows(open_at(file, offset)?, offset, record + 1);
            reader.is_broken = false;
        }
        Ok(Box::new(reader))
    }
}

struct CsvReader<T> {
    file: DataFile,
    rows: CsvRows,
    header: Option<StringRecord>,
    /// The number of fields of each row, if it is known.
    n_fields: Option<usize>,
    is_broken: bool,
    row: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> RecordReader<T> for CsvReader<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.is_broken {
            return None;
        }
        let (line, fields) = match self.fields()? {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        if let Some(n) = self.n_fields.filter(|&n| n != fields.len()) {
            let what = format!("the number of fields is {}, not {n}", fields.len());
            return Some(Err(self.at(line, what)));
        }
        let row = fields.deserialize(self.header.as_ref());
        if row.is_ok() {
            self.n_fields = Some(fields.len());
        }
        Some(row.map_err(|error| self.field_error(line, &error)))
    }

    /// Returns the offset, and the number of lines before.
    fn place(&self) -> (u64, u64) {
        (self.rows.offset, self.rows.core.line() - 1)
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

impl<T> CsvReader<T> {
    /// Returns the fields of the next row, and the number of its first line.
    fn fields(&mut self) -> Option<Result<(u64, StringRecord)>> {
        let mut line = self.rows.core.line();
        let fields = self.rows.skip_empty().map_err(CsvFailure::from).and_then(|first| {
            line = first.unwrap_or(line);
            first.map(|_| self.rows.next()).transpose()
        });
        self.is_broken = fields.is_err();
        Some(match fields {
            Ok(fields) => StringRecord::from_byte_record(fields?)
                .map(|fields| (line, fields))
                .map_err(|error| self.at(line, format!("field {} is not UTF-8", error.utf8_error().field() + 1))),
            Err(CsvFailure::Unreadable(error)) => Err(self.at(line, error)),
            Err(CsvFailure::UnclosedQuote) => Err(self.at(line, "a field that begins with a quote does not end")),
        })
    }

    /// Returns an error at a line.
    fn at(&self, line: u64, what: impl fmt::Display) -> Diagnostic {
        self.file.broken(format_args!("line {line}"), what)
    }

    fn field_error(&self, line: u64, error: &::csv::Error) -> Diagnostic {
        let ErrorKind::Deserialize { err, .. } = error.kind() else {
            return self.at(line, error);
        };
        let column = err.field().map(|field| {
            let name = self.header.as_ref().and_then(|header| header.get(field as usize));
            name.map_or(format!(", column {}", field + 1), |name| format!(", column `{name}`"))
        });
        self.file.broken(format_args!("line {line}{}", column.unwrap_or_default()), err.kind())
    }
}
