//! A simulated disk whose operations call a function first, which may wait, fail or do more.

use crate::simulator::SimulatedDisk;
use anabranch::checkpoints::{FileStorage, StorageReader, StorageWriter};
use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A function that is called with the name of an operation and its first path.
type Hook = dyn Fn(&str, &Path) -> io::Result<()> + Send + Sync;

/// A simulated disk with a hook.
#[derive(Clone)]
pub struct HookedDisk {
    pub disk: SimulatedDisk,
    hook: Arc<Mutex<Arc<Hook>>>,
}

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedDisk").finish_non_exhaustive()
    }
}

impl HookedDisk {
    pub fn new() -> HookedDisk {
        HookedDisk { disk: SimulatedDisk::new(), hook: Arc::new(Mutex::new(Arc::new(|_, _| Ok(())))) }
    }

    /// Calls another function from now on.
    pub fn hook(&self, hook: impl Fn(&str, &Path) -> io::Result<()> + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Arc::new(hook);
    }

    /// Lets the operations of a name fail on paths that end in a text.
    pub fn refuse(&self, refused: &'static str, end: &'static str, error: io::ErrorKind) {
        self.hook(move |operation, path| {
            let is_refused = operation == refused && path.to_str().is_some_and(|path| path.ends_with(end));
            if is_refused { Err(error.into()) } else { Ok(()) }
        });
    }

    /// Lets all operations succeed from now on.
    pub fn repair(&self) {
        self.hook(|_, _| Ok(()));
    }

    fn begin(&self, operation: &str, path: &Path) -> io::Result<()> {
        let hook = self.hook.lock().unwrap().clone();
        hook(operation, path)
    }
}

impl FileStorage for HookedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.begin("create_dir", dir).and_then(|()| self.disk.create_dir(dir))
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        self.begin("create", file).and_then(|()| self.disk.create(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin("rename", from).and_then(|()| self.disk.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.begin("sync_dir", dir).and_then(|()| self.disk.sync_dir(dir))
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        self.begin("sync_file", file).and_then(|()| self.disk.sync_file(file))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.begin("remove", file).and_then(|()| self.disk.remove(file))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.begin("remove_dir", dir).and_then(|()| self.disk.remove_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.begin("list", dir).and_then(|()| self.disk.list(dir))
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        self.begin("read", file).and_then(|()| self.disk.read(file))
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        self.begin("len", file).and_then(|()| self.disk.len(file))
    }

    fn cut(&self, file: &Path, len: u64) -> io::Result<()> {
        self.begin("cut", file).and_then(|()| self.disk.cut(file, len))
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.begin("lock", file).and_then(|()| self.disk.lock(file))
    }
}
