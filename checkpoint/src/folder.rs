//! The folder of all checkpoints of a run, in which each step has a folder: `step-00001200`.
//!
//! - C1. A checkpoint is written to a folder whose name begins with [`PARTIAL`]. When all its files
//!   are durable, the manifest is written, and then the folder is renamed. So a folder with the
//!   name of a step never lacks anything.
//! - C2. To delete a checkpoint, its folder is renamed to a name that begins with [`DELETED`]. Its
//!   files are removed when that is durable.
//! - C3. Only the holder of the lock writes. It removes folders that C1 and C2 left behind, and
//!   nothing else: the folder of a step without a manifest is damaged, or somebody else's.
//!
//! In an object store other rules hold instead; see [`objects`](crate::objects).

use crate::error::{ReadError, damaged, failed, shown};
use crate::manifest::{Checksum, FileRecord, MANIFEST, Manifest, Metric, QUEUES, VariableRecord};
use crate::objects::WriterClaim;
use crate::pace::{Pace, PacedWriter};
use crate::queues::QueueRecord;
use crate::safetensors::{self, Hashing, Layout, TensorEntry, name_of, write_values};
use crate::storage::{FileStorage, StorageKind, StorageWriter, folder_of, log_storage};
use crate::strings::StoredTensor;
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{DType, Diagnostic, HostTensor, Result};
use anabranch_runtime::{QueueContent, Snapshot};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The begin of the names of folders that are being written.
const PARTIAL: &str = ".partial-";

/// The begin of the names of folders that are being deleted.
const DELETED: &str = ".deleted-";

/// The begin of the names of folders that were damaged, and whose steps were written again.
const DAMAGED: &str = "damaged-";

/// The file that the writer locks, or in which it claims an object store.
pub(crate) const LOCK: &str = ".lock";

/// The checkpoints of a run, for readers.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointFolder {
    pub storage: Arc<dyn FileStorage>,
    pub root: PathBuf,
    /// The claim of a writer in an object store.
    claim: Option<WriterClaim>,
}

/// A checkpoint that is to be written.
pub(crate) struct PendingSave {
    pub step: u64,
    /// The path and the type of each value of the snapshot.
    pub vars: Vec<(String, DType, Vec<usize>)>,
    pub snapshot: Snapshot,
    /// The name and the content of each queue.
    pub queues: Vec<(String, AnyQueue, QueueContent)>,
    pub values: BTreeMap<String, Vec<u8>>,
    pub metrics: BTreeMap<String, Metric>,
    /// The path and the length of each log file.
    pub logs: BTreeMap<String, (PathBuf, u64)>,
    /// The bytes of elements after which another file begins.
    pub shard_size: u64,
}

/// The variables and values of a checkpoint that was read.
#[derive(Default)]
pub(crate) struct CheckpointData {
    pub vars: Vec<(String, HostTensor)>,
    /// The tensors of the contents of queues.
    pub queues: BTreeMap<String, HostTensor>,
    /// The values of the program, as CBOR.
    pub values: BTreeMap<String, Vec<u8>>,
}

impl CheckpointFolder {
    /// Returns a folder for readers.
    pub fn new(storage: Arc<dyn FileStorage>, root: PathBuf) -> CheckpointFolder {
        CheckpointFolder { storage, root, claim: None }
    }

    pub fn path_of(&self, step: u64) -> PathBuf {
        self.root.join(name_of_step(step))
    }

    fn partial_of(&self, step: u64) -> PathBuf {
        self.root.join(format!("{PARTIAL}{}", name_of_step(step)))
    }

    pub(crate) fn list(&self, folder: &Path) -> Result<Vec<String>> {
        self.storage.list(folder).map_err(|error| failed("list", folder, &error))
    }

    fn sync(&self, folder: &Path) -> Result<()> {
        self.storage.sync_dir(folder).map_err(|error| failed("sync", folder, &error))
    }

    /// Returns the steps that have a folder, in ascending order. Without a folder of checkpoints
    /// there are none.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = match self.storage.list(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names.map_err(|error| failed("list", &self.root, &error))?,
        };
        let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        match self.storage.kind() {
            StorageKind::Files => Ok(steps),
            StorageKind::Objects => self.published(steps),
        }
    }

    /// Returns the manifest of a step, or what is damaged of it. Fails if it has another format, or
    /// if the storage fails.
    pub fn manifest(&self, step: u64) -> Result<Result<Manifest>> {
        Manifest::read(&*self.storage, &self.path_of(step), step)
    }

    /// Creates the folder, and locks it for a writer.
    pub fn lock(&mut self) -> Result<Box<dyn Any + Send + Sync>> {
        if self.storage.kind() == StorageKind::Objects {
            self.claim = Some(WriterClaim::new(self)?);
            return Ok(Box::new(()));
        }
        self.create_root()?;
        let path = self.root.join(LOCK);
        match self.storage.lock(&path).map_err(|error| failed("lock", &path, &error))? {
            Some(lock) => Ok(lock),
            None => Err(Diagnostic::new(format!("another writer has the checkpoints in {}", self.root.display()))
                .help(
                    "each run needs a folder of its own. To only read, use `restore_latest`; in this process, drop the \
                 other `Checkpoints` first",
                )),
        }
    }

    /// Creates the folder durably, if there is none.
    fn create_root(&self) -> Result<()> {
        let is_new = match self.storage.list(&self.root) {
            // The lock is created after the sync.
            Ok(names) if names.iter().any(|name| name == LOCK) => return Ok(()),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed("list", &self.root, &error)),
        };
        self.storage.create_dir(&self.root).map_err(|error| failed("create", &self.root, &error))?;
        // The folder above a folder of somebody else need not be ours to open.
        let synced = self.sync(&folder_of(&self.root));
        if is_new && synced.is_err() {
            // The next writer creates it again, and syncs again.
            let _ = self.storage.remove_dir(&self.root);
            return synced;
        }
        Ok(())
    }

    /// Removes what interrupted saves and deletions have left. What cannot be removed stays. The
    /// inner error is the first of these.
    pub fn sweep(&self) -> Result<Result<()>> {
        let names = self.list(&self.root)?;
        match &self.claim {
            Some(claim) => claim.sweep(self, &names),
            None => Ok(self.remove_left(names.iter().filter(|name| is_left(name)))),
        }
    }

    /// Deletes the checkpoint of a step for all who look for it. [`sweep`](Self::sweep) removes its
    /// files.
    pub fn delete(&self, step: u64) -> Result<()> {
        match &self.claim {
            Some(claim) => claim.delete(self, step),
            None => self.rename_aside(step, DELETED),
        }
    }

    /// Removes folders whose names are no steps. None of them has the name of a step after a crash,
    /// either. Goes on after an error, and returns the first.
    fn remove_left<'n>(&self, names: impl Iterator<Item = &'n String>) -> Result<()> {
        let mut names = names.peekable();
        if names.peek().is_none() {
            return Ok(());
        }
        self.sync(&self.root)?;
        let removed = names.map(|name| self.remove_folder(&self.root.join(name))).fold(Ok(()), Result::and);
        removed.and(self.sync(&self.root))
    }

    /// Removes a folder of files, or the link to one, whose files are those of another run.
    fn remove_folder(&self, folder: &Path) -> Result<()> {
        if self.storage.is_link(folder) {
            return self.storage.remove(folder).map_err(|error| failed("remove", folder, &error));
        }
        for name in self.list(folder)? {
            let path = folder.join(name);
            self.storage.remove(&path).map_err(|error| failed("remove", &path, &error))?;
        }
        self.storage.remove_dir(folder).map_err(|error| failed("remove", folder, &error))
    }

    /// Renames the folder of a step to a free name with this begin.
    fn rename_aside(&self, step: u64, begin: &str) -> Result<()> {
        let (path, names) = (self.path_of(step), self.list(&self.root)?);
        let mut candidates = (1..).map(|n| format!("{begin}{}-{n}", name_of_step(step)));
        let name = candidates.find(|name| !names.contains(name)).expect("some name is free");
        self.storage.rename(&path, &self.root.join(name)).map_err(|error| failed("rename", &path, &error))
    }

    /// Reads the files of a checkpoint and compares them with the manifest. Of the variables,
    /// returns those for which `wanted` holds, or what is damaged.
    pub fn read(&self, manifest: &Manifest, wanted: impl Fn(&str) -> bool) -> Result<Result<CheckpointData>> {
        ReadError::split(self.read_files(manifest, wanted))
    }

    fn read_files(&self, manifest: &Manifest, wanted: impl Fn(&str) -> bool) -> Result<CheckpointData, ReadError> {
        let damaged = |path: &Path, why: String| ReadError::Damaged(damaged(path, why));
        let folder = self.path_of(manifest.step);
        let CheckpointData { mut vars, mut queues, mut values } = CheckpointData::default();
        let mut n_found = 0;
        for (name, record) in &manifest.files {
            let path = folder.join(name);
            let file = safetensors::open(&*self.storage, &path)?;
            if file.len != record.length {
                let why = format!("the file has {} bytes, but the manifest says {}", file.len, record.length);
                return Err(damaged(&path, why));
            }
            let is_values = manifest.values.as_ref() == Some(name);
            let is_queues = manifest.file_of_queues() == Some(name);
            let mut foreign = None;
            let (tensors, checksum) = file.read(|entry| {
                if is_values || is_queues {
                    return true;
                }
                let listed = manifest.variables.get(&entry.name);
                if listed.is_some_and(|var| var.is(entry, name)) {
                    n_found += 1;
                } else {
                    foreign.get_or_insert_with(|| entry.name.clone());
                }
                wanted(&entry.name)
            })?;
            if Checksum(checksum) != record.checksum {
                let why = format!("the checksum is {checksum:016x}, but the manifest says {:016x}", record.checksum.0);
                return Err(damaged(&path, why));
            }
            if let Some(foreign) = foreign {
                return Err(damaged(&path, format!("the tensor {} is not as the manifest says", shown(&foreign))));
            }
            if is_values {
                values.extend(
                    tensors
                        .into_iter()
                        .filter_map(|(name, value)| value.as_slice::<u8>().map(|bytes| (name, bytes.to_vec()))),
                );
            } else if is_queues {
                queues.extend(tensors);
            } else {
                vars.extend(tensors);
            }
        }
        if n_found != manifest.variables.len() {
            return Err(damaged(&folder, "the files do not have all variables of the manifest".to_owned()));
        }
        Ok(CheckpointData { vars, queues, values })
    }

    /// Writes a checkpoint. It exists, durably, when this returns. If there is an error it does
    /// not, unless the storage fails twice: then it may exist, whole. Ends with an error between
    /// two variables if the save is abandoned.
    pub fn write(&self, save: PendingSave, pace: &Pace) -> Result<()> {
        if let Some(claim) = &self.claim {
            return claim.write(self, save, pace);
        }
        let step = save.step;
        let (storage, partial, path) = (&*self.storage, self.partial_of(step), self.path_of(step));
        let name = format!("{PARTIAL}{}", name_of_step(step));
        self.remove_left(self.list(&self.root)?.iter().filter(|other| **other == name))?;
        storage.create_dir(&partial).map_err(|error| failed("create", &partial, &error))?;
        let written = self.write_files(save, &partial, "", pace).and_then(|manifest| {
            self.write_manifest(&partial, &manifest)?;
            if self.steps()?.contains(&step) {
                self.set_aside(step)?;
            }
            storage.rename(&partial, &path).map_err(|error| failed("rename", &partial, &error))
        });
        // The first error is the one to report. What is left is removed by the next writer.
        if written.is_err() {
            let _ = self.remove_folder(&partial);
            return written;
        }
        let synced = self.sync(&self.root);
        if synced.is_err() && storage.rename(&path, &partial).is_ok() {
            let _ = self.remove_left([name].iter());
        }
        synced
    }

    /// Renames the checkpoint of a step, which must be damaged. It is not deleted, since somebody
    /// may mend it.
    fn set_aside(&self, step: u64) -> Result<()> {
        self.check_damaged(step)?;
        self.rename_aside(step, DAMAGED)
    }

    /// Returns an error if the checkpoint of a step is not damaged.
    pub(crate) fn check_damaged(&self, step: u64) -> Result<()> {
        match self.manifest(step)? {
            Ok(manifest) if self.read(&manifest, |_| false)?.is_ok() => {
                Err(Diagnostic::new(format!("{} already exists", self.path_of(step).display())))
            }
            _ => Ok(()),
        }
    }

    /// Writes all files of a checkpoint but the manifest, which it returns. Their names have this
    /// addition.
    pub(crate) fn write_files(
        &self,
        save: PendingSave,
        folder: &Path,
        addition: &str,
        pace: &Pace,
    ) -> Result<Manifest> {
        let PendingSave { step, vars, mut snapshot, queues, values, metrics, logs, shard_size } = save;
        let mut manifest = Manifest { metrics, ..Manifest::new(step) };
        let tensors = StoredTensor::all(vars, &mut snapshot)?;
        let shards = shards(&tensors, shard_size);
        for (number, shard) in (1..).zip(&shards) {
            let name = match shards.len() {
                1 => format!("state{addition}.safetensors"),
                n => format!("state-{number:05}-of-{n:05}{addition}.safetensors"),
            };
            let types: Vec<(&str, DType, &[usize])> = shard.iter().map(|&i| tensors[i].ty()).collect();
            let record = self.write_file(&folder.join(&name), &types, pace, |i| {
                if pace.is_abandoned() {
                    return Err(Diagnostic::new(format!("the save of step {step} was abandoned")));
                }
                tensors[shard[i]].take(&mut snapshot)
            })?;
            for (path, dtype, shape) in types {
                let record =
                    VariableRecord { dtype: name_of(dtype).to_owned(), shape: shape.to_vec(), file: name.clone() };
                manifest.variables.insert(path.to_owned(), record);
            }
            manifest.files.insert(name, record);
        }
        let mut of_queues = Vec::new();
        for (name, queue, content) in queues {
            let (record, tensors) = QueueRecord::of(&name, &queue, &content)?;
            of_queues.extend(tensors);
            manifest.queues.insert(name, record);
        }
        if !manifest.queues.is_empty() {
            let name = format!("{QUEUES}{addition}.safetensors");
            manifest.files.insert(name.clone(), self.write_tensors(&folder.join(&name), of_queues, pace)?);
        }
        if !values.is_empty() {
            let values = values.into_iter().map(|(name, bytes)| (name, HostTensor::new([bytes.len()], bytes)));
            let name = format!("values{addition}.safetensors");
            manifest.files.insert(name.clone(), self.write_tensors(&folder.join(&name), values.collect(), pace)?);
            manifest.values = Some(name);
        }
        let log_storage = log_storage(&*self.storage);
        for (name, (path, len)) in logs {
            let synced = log_storage.sync_file(&path).and_then(|()| log_storage.sync_dir(&folder_of(&path)));
            synced.map_err(|error| failed("sync", &path, &error))?;
            manifest.logs.insert(name, len);
        }
        Ok(manifest)
    }

    /// Writes the manifest, durably, and makes the folder durable.
    fn write_manifest(&self, folder: &Path, manifest: &Manifest) -> Result<()> {
        let path = folder.join(MANIFEST);
        let write = || -> io::Result<()> {
            let mut file = self.storage.create(&path)?;
            file.write_all(manifest.to_text().as_bytes())?;
            file.sync()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        self.sync(folder)
    }

    /// Writes a file of tensors durably.
    fn write_tensors(&self, path: &Path, tensors: Vec<(String, HostTensor)>, pace: &Pace) -> Result<FileRecord> {
        let types: Vec<_> = tensors.iter().map(|(name, of)| (name.as_str(), of.dtype(), of.shape())).collect();
        self.write_file(path, &types, pace, |i| Ok(tensors[i].1.clone()))
    }

    /// Writes a file of tensors durably. `value` returns each of them, in any order.
    fn write_file(
        &self,
        path: &Path,
        tensors: &[(&str, DType, &[usize])],
        pace: &Pace,
        mut value: impl FnMut(usize) -> Result<HostTensor>,
    ) -> Result<FileRecord> {
        let layout = Layout::new(tensors, &BTreeMap::new())?;
        let write_error = |error| failed("write", path, &error);
        let file: Box<dyn StorageWriter> = self.storage.create(path).map_err(write_error)?;
        let mut file = Hashing::new(file);
        file.write_all(&layout.header).map_err(write_error)?;
        let mut paced = PacedWriter { inner: &mut file, pace };
        for &i in &layout.order {
            write_values(&mut paced, &value(i)?).map_err(write_error)?;
        }
        file.inner.sync().map_err(write_error)?;
        let length = layout.header.len() as u64 + layout.data_len;
        Ok(FileRecord { length, checksum: Checksum(file.checksum()) })
    }
}

impl VariableRecord {
    /// Returns whether a tensor of a file is this variable.
    fn is(&self, entry: &TensorEntry, file: &str) -> bool {
        self.file == file && self.dtype == entry.file_type && self.shape == entry.shape
    }
}

fn name_of_step(step: u64) -> String {
    format!("step-{step:08}")
}

/// Returns the step whose folder has this name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name_of_step(step) == name).then_some(step)
}

/// Returns whether a folder of this name is being written or deleted.
fn is_left(name: &str) -> bool {
    let deleted = || name.strip_prefix(DELETED)?.rsplit_once('-').filter(|(_, n)| n.parse::<u64>().is_ok());
    let step = name.strip_prefix(PARTIAL).or_else(|| deleted().map(|(step, _)| step));
    step.is_some_and(|step| step_of(step).is_some())
}

/// Returns the numbers of the tensors in each file, in order.
fn shards(tensors: &[StoredTensor], shard_size: u64) -> Vec<Vec<usize>> {
    let mut shards: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for (i, StoredTensor { dtype, shape, .. }) in tensors.iter().enumerate() {
        let of_var = (shape.iter().product::<usize>() * dtype.size()) as u64;
        if shards.is_empty() || bytes + of_var > shard_size && bytes > 0 {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += of_var;
        shards.last_mut().expect("there is a file").push(i);
    }
    shards
}
