//! A simulated disk that loses what was not synced when it crashes, and whose operations fail.
//!
//! The disk has two states: what programs see, and what is durable. A sync of a file makes its
//! bytes durable, a sync of a folder its entries. A crash keeps what is durable, and an arbitrary
//! part of the rest, as [`Crash`] says.

use crate::support::Random;
use anabranch::checkpoints::{FileStorage, StorageReader, StorageWriter};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard};

/// The unit in which disks write.
const SECTOR: usize = 512;

/// The effect of a crash on data that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All of it is kept, as after a kill of the process.
    Keep,
    /// All of it is lost.
    Drop,
    /// Changes of folders are kept. Of the bytes of files some sectors are kept; others are zeros.
    Tear,
    /// Some changes of folders are kept, also later ones without earlier ones, and no bytes.
    Reorder,
    /// Some of everything is kept.
    Mix,
}

impl Crash {
    pub const ALL: [Crash; 5] = [Crash::Keep, Crash::Drop, Crash::Tear, Crash::Reorder, Crash::Mix];
}

#[derive(Clone, Debug)]
enum Inode {
    File { now: Vec<u8>, durable: Vec<u8> },
    Dir { now: BTreeMap<String, usize>, durable: BTreeMap<String, usize>, unsynced: Vec<DirChange> },
}

/// A change of a folder.
#[derive(Clone, Debug)]
enum DirChange {
    Insert(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl DirChange {
    fn apply(&self, entries: &mut BTreeMap<String, usize>) {
        match self {
            DirChange::Insert(name, id) => drop(entries.insert(name.clone(), *id)),
            DirChange::Remove(name) => drop(entries.remove(name)),
            DirChange::Rename(from, to, id) => {
                entries.remove(from);
                entries.insert(to.clone(), *id);
            }
        }
    }
}

/// When operations fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The number of the first operation that fails, from 1.
    pub at: u64,
    /// The number of the first one after it that does not.
    pub until: u64,
    pub error: io::ErrorKind,
}

#[derive(Debug)]
struct DiskState {
    /// The first is the root.
    inodes: Vec<Inode>,
    operations: u64,
    fault: Option<Fault>,
    locks: BTreeMap<String, Arc<()>>,
}

/// A simulated disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<DiskState>>);

impl SimulatedDisk {
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::of(vec![empty_dir()])
    }

    fn of(inodes: Vec<Inode>) -> SimulatedDisk {
        let state = DiskState { inodes, operations: 0, fault: None, locks: BTreeMap::new() };
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().expect("no operation panics")
    }

    /// Returns how many operations there were.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Lets operations fail.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = Some(fault);
    }

    /// Lets all operations after this number fail, as if the process had ended.
    pub fn stop_after(&self, operations: u64) {
        let error = io::ErrorKind::ConnectionAborted;
        self.fail(Fault { at: operations + 1, until: u64::MAX, error });
    }

    /// Returns the disk after a crash.
    pub fn crash(&self, crash: Crash, random: &mut Random) -> SimulatedDisk {
        let mut inodes = self.state().inodes.clone();
        for inode in &mut inodes {
            match inode {
                Inode::File { now, durable } => {
                    let kept = match crash {
                        Crash::Keep => now.clone(),
                        Crash::Drop | Crash::Reorder => durable.clone(),
                        Crash::Tear | Crash::Mix => torn(now, durable, random),
                    };
                    (*now, *durable) = (kept.clone(), kept);
                }
                Inode::Dir { now, durable, unsynced } => {
                    let kept = |random: &mut Random| match crash {
                        Crash::Keep | Crash::Tear => true,
                        Crash::Drop => false,
                        Crash::Reorder | Crash::Mix => random.flip(),
                    };
                    unsynced.drain(..).filter(|_| kept(random)).for_each(|change| change.apply(durable));
                    *now = durable.clone();
                }
            }
        }
        SimulatedDisk::of(inodes)
    }

    /// Appends to a file that a program writes, without a sync.
    pub fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(path)?;
        if let Inode::File { now, .. } = &mut state.inodes[id] {
            now.extend(bytes);
        }
        Ok(())
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        let id = state.find(path).expect("the file exists");
        let Inode::File { now, .. } = &state.inodes[id] else { panic!("{} is a folder", path.display()) };
        now.clone()
    }
}

/// Returns a mixture of what is durable and what was written since.
fn torn(now: &[u8], durable: &[u8], random: &mut Random) -> Vec<u8> {
    if now == durable {
        return now.to_vec();
    }
    let (short, long) = (now.len().min(durable.len()), now.len().max(durable.len()));
    let len = short + random.below((long - short + 1) as u64) as usize;
    let mut kept = vec![0; len];
    for (i, sector) in kept.chunks_mut(SECTOR).enumerate() {
        let from = if random.flip() { now } else { durable };
        let from = from.get(i * SECTOR..).unwrap_or_default();
        let n = from.len().min(sector.len());
        sector[..n].copy_from_slice(&from[..n]);
    }
    kept
}

fn empty_dir() -> Inode {
    Inode::Dir { now: BTreeMap::new(), durable: BTreeMap::new(), unsynced: Vec::new() }
}

impl DiskState {
    /// Counts an operation, which may fail.
    fn begin(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.fault {
            Some(fault) if (fault.at..fault.until).contains(&self.operations) => Err(fault.error.into()),
            _ => Ok(()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut id = 0;
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            let Inode::Dir { now, .. } = &self.inodes[id] else { return Err(io::ErrorKind::NotADirectory.into()) };
            id = *now.get(name.to_str().expect("a name of a test")).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(id)
    }

    fn parent_of<'p>(&self, path: &'p Path) -> io::Result<(usize, &'p str)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn change(&mut self, dir: usize, change: DirChange) -> io::Result<()> {
        let Inode::Dir { now, unsynced, .. } = &mut self.inodes[dir] else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        change.apply(now);
        unsynced.push(change);
        Ok(())
    }

    fn insert(&mut self, path: &Path, inode: Inode) -> io::Result<usize> {
        let (dir, name) = self.parent_of(path)?;
        if self.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.inodes.push(inode);
        let id = self.inodes.len() - 1;
        self.change(dir, DirChange::Insert(name.to_owned(), id))?;
        Ok(id)
    }
}

/// A file of a simulated disk that is being written.
struct SimulatedFile {
    disk: SimulatedDisk,
    id: usize,
}

impl Write for SimulatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let begun = state.begin();
        // A write that fails may have written a part.
        let n = if begun.is_ok() { bytes.len() } else { bytes.len() / 2 };
        if let Inode::File { now, .. } = &mut state.inodes[self.id] {
            now.extend(&bytes[..n]);
        }
        begun.map(|()| n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageWriter for SimulatedFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin()?;
        if let Inode::File { now, durable } = &mut state.inodes[self.id] {
            durable.clone_from(now);
        }
        Ok(())
    }
}

impl FileStorage for SimulatedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        match state.find(dir) {
            Ok(_) => Ok(()),
            Err(_) => state.insert(dir, empty_dir()).map(drop),
        }
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        let mut state = self.state();
        state.begin()?;
        let id = state.insert(file, Inode::File { now: Vec::new(), durable: Vec::new() })?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(from)?;
        let ((dir, old), (other, new)) = (state.parent_of(from)?, state.parent_of(to)?);
        if dir != other {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        if let Ok(there) = state.find(to)
            && matches!(state.inodes[there], Inode::Dir { .. })
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.change(dir, DirChange::Rename(old.to_owned(), new.to_owned(), id))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(dir)?;
        let Inode::Dir { now, durable, unsynced } = &mut state.inodes[id] else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        durable.clone_from(now);
        unsynced.clear();
        Ok(())
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(file)?;
        if let Inode::File { now, durable } = &mut state.inodes[id] {
            durable.clone_from(now);
        }
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let (id, (dir, name)) = (state.find(file)?, state.parent_of(file)?);
        match state.inodes[id] {
            Inode::File { .. } => state.change(dir, DirChange::Remove(name.to_owned())),
            Inode::Dir { .. } => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let (id, (dir, name)) = (state.find(path)?, state.parent_of(path)?);
        match &state.inodes[id] {
            Inode::Dir { now, .. } if now.is_empty() => state.change(dir, DirChange::Remove(name.to_owned())),
            Inode::Dir { .. } => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Inode::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(dir)?;
        match &state.inodes[id] {
            Inode::Dir { now, .. } => Ok(now.keys().cloned().collect()),
            Inode::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(file)?;
        match &state.inodes[id] {
            Inode::File { now, .. } => {
                Ok(StorageReader { len: now.len() as u64, bytes: Box::new(io::Cursor::new(now.clone())) })
            }
            Inode::Dir { .. } => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        self.read(file).map(|reader| reader.len)
    }

    fn cut(&self, file: &Path, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        let id = state.find(file)?;
        if let Inode::File { now, durable } = &mut state.inodes[id] {
            now.truncate(len as usize);
            durable.clone_from(now);
        }
        Ok(())
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut state = self.state();
        state.begin()?;
        if state.find(file).is_err() {
            state.insert(file, Inode::File { now: Vec::new(), durable: Vec::new() })?;
        }
        let lock = state.locks.entry(file.display().to_string()).or_default();
        if Arc::strong_count(lock) > 1 {
            return Ok(None);
        }
        Ok(Some(Box::new(lock.clone())))
    }
}

#[test]
fn a_crash_loses_what_was_not_synced_and_nothing_else() {
    let (disk, dir) = (SimulatedDisk::new(), Path::new("d"));
    let (a, b) = (dir.join("a"), dir.join("b"));
    disk.create_dir(dir).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    let mut file = disk.create(&a).unwrap();
    file.write_all(&[1; 600]).unwrap();
    file.sync().unwrap();
    disk.sync_dir(dir).unwrap();
    file.write_all(&[2; 600]).unwrap();
    disk.rename(&a, &b).unwrap();
    let random = &mut Random::new(1);
    let kept = disk.crash(Crash::Keep, random);
    assert_eq!((kept.list(dir).unwrap(), kept.bytes(&b).len()), (vec!["b".to_owned()], 1200));
    let dropped = disk.crash(Crash::Drop, random);
    assert_eq!((dropped.list(dir).unwrap(), dropped.bytes(&a)), (vec!["a".to_owned()], vec![1; 600]));
    let mut outcomes = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let mixed = disk.crash(Crash::Mix, random);
        let name = mixed.list(dir).unwrap().remove(0);
        let bytes = mixed.bytes(&dir.join(&name));
        assert!(bytes[..600].iter().all(|&x| x == 1), "what was synced stays");
        outcomes.insert((name, bytes.len() > 1000, bytes.get(650).copied()));
    }
    assert!(outcomes.len() >= 6, "{outcomes:?}");
}
