//! Text files.

use super::{FileBytes, RecordFormat, RecordReader, open_at, records};
use crate::{DataFile, Dataset};
use anabranch_dsl::{Diagnostic, Result};

/// Returns the lines of text files in UTF-8, without their ends (`\n` or `\r\n`). Files whose names
/// end with `.gz` are decompressed.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("anabranch-lines-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("poem.txt");
/// # std::fs::write(&path, "one\ntwo\n").unwrap();
/// use anabranch::data::text;
///
/// let lines: Vec<String> = text::lines([path]).iter().collect::<anabranch::Result<_>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn lines(files: impl IntoIterator<Item = impl Into<DataFile>>) -> Dataset<String> {
    records("lines", files, LineFormat)
}

struct LineFormat;

impl RecordFormat<String> for LineFormat {
    fn open(&self, file: &DataFile, offset: u64, record: u64) -> Result<Box<dyn RecordReader<String>>> {
        Ok(Box::new(LineReader { file: file.clone(), bytes: Some(open_at(file, offset)?), offset, line: record }))
    }
}

struct LineReader {
    file: DataFile,
    /// Nothing after an error of the system.
    bytes: Option<FileBytes>,
    offset: u64,
    /// The number of lines before the next one.
    line: u64,
}

impl RecordReader<String> for LineReader {
    fn next(&mut self) -> Option<Result<String>> {
        let mut line = Vec::new();
        match self.bytes.as_mut()?.read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(n) => self.offset += n as u64,
            Err(error) => {
                self.bytes = None;
                return Some(Err(self.file.unreadable(&error)));
            }
        }
        self.line += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        }
        let not_text = |_| -> Diagnostic { self.file.broken(format_args!("line {}", self.line), "it is not UTF-8") };
        Some(String::from_utf8(line).map_err(not_text))
    }

    fn place(&self) -> (u64, u64) {
        (self.offset, self.line)
    }

    fn is_broken(&self) -> bool {
        self.bytes.is_none()
    }
}
