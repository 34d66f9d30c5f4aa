//! Files of data, wherever they are stored.

use anabranch_dsl::Diagnostic;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where files of data are stored. Implement it to read files that are not in the local file
/// system.
pub trait DataStorage: Send + Sync {
    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    /// Those of the storage.
    fn len(&self, path: &Path) -> io::Result<u64>;

    /// Opens a file at an offset. There are no bytes at an offset beyond its end.
    ///
    /// # Errors
    /// Those of the storage. A read fails with them, too.
    fn open(&self, path: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>>;

    /// Returns the name of a file in messages.
    fn name(&self, path: &Path) -> String {
        path.display().to_string()
    }
}

/// The local file system.
struct LocalStorage;

impl DataStorage for LocalStorage {
    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.len())
    }

    fn open(&self, path: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = File::open(path)?;
        // A pipe is read from its begin, and has no offsets.
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok(Box::new(file))
    }
}

/// A file of data: a path in the local file system, to which paths and strings convert, or a file
/// in another [`DataStorage`].
///
/// ```
/// use anabranch::data::{DataFile, text};
///
/// let lines = text::lines(["a.txt", "b.txt"]);
/// let same = text::lines([DataFile::from("a.txt"), DataFile::from("b.txt")]);
/// # drop((lines, same));
/// ```
#[derive(Clone)]
pub struct DataFile {
    path: PathBuf,
    storage: Arc<dyn DataStorage>,
}

impl DataFile {
    /// Returns a file in a storage, which need not exist.
    pub fn new(storage: Arc<dyn DataStorage>, path: impl Into<PathBuf>) -> DataFile {
        DataFile { path: path.into(), storage }
    }

    /// Returns the path in the storage.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        self.storage.len(&self.path)
    }

    pub(crate) fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.storage.open(&self.path, offset)
    }

    /// Returns the error that the file cannot be read.
    pub(crate) fn unreadable(&self, error: &io::Error) -> Diagnostic {
        Diagnostic::new(format!("`{self}` cannot be read: {error}"))
    }

    /// Returns an error at a place of the file.
    pub(crate) fn broken(&self, place: impl fmt::Display, what: impl fmt::Display) -> Diagnostic {
        Diagnostic::new(format!("`{self}`, {place}: {what}"))
    }
}

/// Writes the name of the file in messages.
impl fmt::Display for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.storage.name(&self.path))
    }
}

impl fmt::Debug for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataFile({self})")
    }
}

impl From<PathBuf> for DataFile {
    fn from(path: PathBuf) -> DataFile {
        DataFile::new(Arc::new(LocalStorage), path)
    }
}

impl From<String> for DataFile {
    fn from(path: String) -> DataFile {
        PathBuf::from(path).into()
    }
}

impl From<OsString> for DataFile {
    fn from(path: OsString) -> DataFile {
        PathBuf::from(path).into()
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for DataFile {
    fn from(path: &P) -> DataFile {
        path.as_ref().to_owned().into()
    }
}

impl From<&DataFile> for DataFile {
    fn from(file: &DataFile) -> DataFile {
        file.clone()
    }
}
