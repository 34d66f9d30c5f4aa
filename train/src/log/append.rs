//! Files to which a run appends, and which are cut when it resumes.

use anabranch_checkpoint::failed;
use anabranch_dsl::Result;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that only grows, by whole entries.
#[derive(Debug)]
pub(crate) struct AppendFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl AppendFile {
    /// Opens a file at its end. Creates it, and the folders above it, if they do not exist.
    ///
    /// `whole` returns the length of the whole entries of a file with a length. A last entry that
    /// is not whole, as a crash of the machine can leave it, is cut off: what follows it could not
    /// be read.
    pub fn open(path: &Path, whole: impl FnOnce(&mut File, u64) -> io::Result<u64>) -> Result<AppendFile> {
        let open = || {
            if let Some(folder) = path.parent() {
                create_dir_all(folder)?;
            }
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            let all = file.metadata()?.len();
            let len = whole(&mut file, all)?;
            if len < all {
                set_len(path, len)?;
            }
            Ok(AppendFile { path: path.to_owned(), file, len })
        };
        open().map_err(|error| failed("open", path, &error))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Writes an entry, which is in the file when this returns. If it cannot be written whole, none
    /// of it stays.
    pub fn append(&mut self, entry: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(entry) {
            // If this fails as well, the next resumption cuts the file.
            let _ = set_len(&self.path, self.len);
            return Err(failed("write", &self.path, &error));
        }
        self.len += entry.len() as u64;
        Ok(())
    }

    /// Cuts the file to a length that it had before.
    pub fn cut(&mut self, len: u64) -> Result<()> {
        let cut = set_len(&self.path, len.min(self.len)).and_then(|file| file.sync_all());
        cut.map_err(|error| failed("cut", &self.path, &error))?;
        self.len = len.min(self.len);
        Ok(())
    }
}

/// Cuts a file to a length. Returns it, open for writing: a file that is open to append cannot be
/// cut on Windows.
fn set_len(path: &Path, len: u64) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(len)?;
    Ok(file)
}
