//! Where checkpoints are stored: the operations that they need, and the local file system.
//!
//! Rules of writers, on which recovery depends:
//!
//! - S1. A file that a commit needs is created, written and synced before the rename that commits.
//!   The folders are synced before the rename, and again after it.
//! - S2. After a failed write or sync, the file is not used any more: the system may have dropped
//!   what it could not write, and a later sync would not say so.
//! - S3. No file is truncated or replaced in place, except log files, which are cut when a run
//!   resumes.
//!
//! Object stores have neither renames nor locks; `objects.rs` has their rules.

use crate::safetensors::PIECE;
use std::any::Any;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A file that is being written. It is durable only after [`sync`](StorageWriter::sync).
pub trait StorageWriter: Write + Send {
    /// Waits until all that was written is durable.
    ///
    /// # Errors
    /// Fails if some of it could not be written, now or earlier.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is being read from its begin.
pub struct StorageReader {
    /// The bytes.
    pub bytes: Box<dyn Read + Send>,
    /// How many there are.
    pub len: u64,
}

impl Debug for StorageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageReader").field("len", &self.len).finish_non_exhaustive()
    }
}

/// How a storage changes what others see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// A tree of folders and files with atomic renames, and with locks. A change of a folder (a
    /// file created, renamed or removed) is durable only after
    /// [`sync_dir`](FileStorage::sync_dir).
    Files,
    /// Objects, whose names have slashes. There are no folders, so `list` of one that does not
    /// exist returns nothing, and changes of folders do nothing. A file appears, whole and durable,
    /// when it is synced, and replaces one of the same name. `rename`, `cut` and `lock` are never
    /// called; `publish` is.
    Objects,
}

/// Where checkpoints are stored. Implement it for tests, or to store checkpoints elsewhere.
pub trait FileStorage: Debug + Send + Sync {
    /// Returns how changes become visible. The default is that of a file system.
    fn kind(&self) -> StorageKind {
        StorageKind::Files
    }

    /// Creates a file with these bytes, whole and durably. Of several writers at most one succeeds;
    /// for the others, and if there is a file of this name, the error is of the kind
    /// `AlreadyExists`. Called for [`StorageKind::Objects`] only.
    ///
    /// # Errors
    /// Those of the storage. The file may exist all the same.
    fn publish(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        let _ = (file, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Creates a folder, and those above it that do not exist, of which only the last may be lost
    /// without a sync. It is no error if the folder exists.
    ///
    /// # Errors
    /// Those of the storage, as with all operations.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Creates a file, which must not exist.
    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>>;

    /// Renames a file or folder within its folder. There must be no folder of the new name. A file
    /// of the new name is replaced: at each moment there is the old or the new one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until the changes of a folder are durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Waits until a file is durable that others have written.
    fn sync_file(&self, file: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns whether a name is a link, which [`remove`](FileStorage::remove) removes without what
    /// it leads to. The default is a storage without links.
    fn is_link(&self, path: &Path) -> bool {
        let _ = path;
        false
    }

    /// Returns the names in a folder, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file for reading.
    fn read(&self, file: &Path) -> io::Result<StorageReader>;

    /// Returns the length of a file.
    fn len(&self, file: &Path) -> io::Result<u64>;

    /// Cuts a file to a length that is not more than it has, durably.
    fn cut(&self, file: &Path, len: u64) -> io::Result<()>;

    /// Locks a file, which is created if there is none, until the result is dropped or the process
    /// ends. Returns `None` if another writer has locked it.
    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;
}

/// The local file system.
///
/// On Windows folders are not synced, since the system has no such operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

/// The bytes that a writer collects before it asks the system to write them: as many as a piece of
/// a tensor, which is then written without a copy.
const WRITE_BUFFER: usize = PIECE;

/// The bytes after which a file is made durable so far and leaves the page cache, on Linux. A file
/// of gigabytes would fill the cache with what nobody reads, and its pages take longer to find
/// than its bytes to write.
const SETTLED_AT_ONCE: usize = 16 << 20;

/// A file that is being written.
struct LocalFile {
    file: File,
    /// The bytes that were written since the file was last made durable.
    unsettled: usize,
}

impl LocalFile {
    /// On Linux, makes the file durable so far, and removes it from the page cache.
    #[cfg(target_os = "linux")]
    fn settle(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        // An advice: the file is right without it, and other file systems may not know it.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.unsettled += n;
        if self.unsettled >= SETTLED_AT_ONCE {
            self.unsettled = 0;
            self.settle()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl StorageWriter for BufWriter<LocalFile> {
    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.get_ref().file.sync_all()
    }
}

impl FileStorage for LocalFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir.parent().is_some() => {
                let above = folder_of(dir);
                self.create_dir(&above)?;
                self.sync_dir(&folder_of(&above))?;
                fs::create_dir(dir)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
            created => created,
        }
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).open(file)?;
        Ok(Box::new(BufWriter::with_capacity(WRITE_BUFFER, LocalFile { file, unsettled: 0 })))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // Otherwise the root user could replace a device, such as `/dev/null`, for all programs.
        if let Ok(there) = fs::symlink_metadata(to)
            && !(there.is_file() || there.is_dir() || there.is_symlink())
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device, a pipe or a socket, and no file"));
        }
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if cfg!(windows) { Ok(()) } else { File::open(or_here(dir))?.sync_all() }
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        // Windows syncs only files that are open for writing.
        OpenOptions::new().append(true).open(file)?.sync_all()
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn is_link(&self, path: &Path) -> bool {
        path.is_symlink()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(or_here(dir))?.map(|entry| entry.map(|entry| entry.file_name().into_string()));
        // Names that are not Unicode are not ours.
        names.filter_map(|name| name.map(Result::ok).transpose()).collect()
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        let bytes = File::open(file)?;
        let len = bytes.metadata()?.len();
        Ok(StorageReader { bytes: Box::new(bytes), len })
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        fs::metadata(file).map(|of| of.len())
    }

    fn cut(&self, file: &Path, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(file)?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(file)?;
        // A process that another thread is just starting has a copy of a lock that this process
        // had, until it runs its own program.
        let mut waits = 50;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Box::new(file))),
                Err(TryLockError::WouldBlock) if waits > 0 => thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            waits -= 1;
        }
    }
}

/// Returns the folder in which a file is.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    file.parent().map(or_here).unwrap_or(Path::new(".")).to_owned()
}

/// Returns the path, or that of the current folder if it is empty.
fn or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

/// Returns the storage of log files: a run appends to them, which objects do not allow.
pub(crate) fn log_storage(storage: &dyn FileStorage) -> &dyn FileStorage {
    match storage.kind() {
        StorageKind::Files => storage,
        StorageKind::Objects => &LocalFiles,
    }
}

/// Returns all bytes of a file that is not longer than `longest`.
pub(crate) fn read_all(storage: &dyn FileStorage, path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let StorageReader { bytes, len } = storage.read(path)?;
    if len > longest {
        let why = format!("it has {len} bytes, more than {longest}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut all = Vec::new();
    bytes.take(len).read_to_end(&mut all)?;
    if (all.len() as u64) < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(all)
}
