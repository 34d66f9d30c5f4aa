//! Safetensors files for functions that save and restore tensors themselves.

use crate::error::{damaged, failed, listed, shown};
use crate::safetensors::{self, Layout, write_values};
use crate::storage::{FileStorage, LocalFiles, StorageKind, StorageWriter, folder_of};
use crate::strings::{joined, names_of, parts};
use anabranch_dsl::{HostTensor, Result};
use anabranch_runtime::{TensorFiles, WrittenFile};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The safetensors files of a session, for [`save_tensors`](crate::save_tensors) and
/// [`restore_tensor`](crate::restore_tensor) in its functions. A tensor of strings `x` is stored as
/// `x/data` and `x/offsets`, as in a [`WeightFile`](crate::WeightFile), which opens the same files.
///
/// ```
/// use anabranch::checkpoints::{SafetensorFiles, restore_tensor, save_tensors};
/// use anabranch::prelude::*;
///
/// /// Keeps the weights of the step with the smallest loss.
/// #[graph]
/// fn keep_best(loss: Tensor, w: Var<f32>, best: Var<f32>, path: Tensor<Bytes>) {
///     if loss < best.get() {
///         best.set(loss);
///         save_tensors(path, &[("w", w.get().untyped()), ("loss", loss.untyped())]);
///     }
/// }
///
/// # let folder = std::env::temp_dir().join(format!("anabranch-best-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("best.safetensors").display().to_string();
/// let session = Session::builder().tensor_files(SafetensorFiles::new()).build()?;
/// let (w, best) = (Var::<f32>::new("w", 1.0), Var::<f32>::new("best", f32::INFINITY));
/// let step = session.function(|loss: Tensor, path: Tensor<Bytes>| {
///     w.set(w.get() + 1.0);
///     keep_best(loss, w.clone(), best.clone(), path);
/// })?;
/// for loss in [0.5, 0.25, 0.75] {
///     step.call((loss, path.as_str()))?;
/// }
/// let saved = session.function(|path: Tensor<Bytes>| restore_tensor::<f32>(path, "w", []))?;
/// assert_eq!(saved.call(path.as_str())?, 3.0);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SafetensorFiles {
    storage: Arc<dyn FileStorage>,
}

impl Default for SafetensorFiles {
    fn default() -> Self {
        SafetensorFiles::new()
    }
}

impl SafetensorFiles {
    /// Returns the files of the local file system.
    pub fn new() -> SafetensorFiles {
        SafetensorFiles { storage: Arc::new(LocalFiles) }
    }

    /// Sets where the files are stored, instead of the local file system.
    pub fn storage(self, storage: Arc<dyn FileStorage>) -> SafetensorFiles {
        SafetensorFiles { storage }
    }
}

impl TensorFiles for SafetensorFiles {
    fn write(&self, path: &Path, tensors: Vec<(&str, HostTensor)>) -> Result<Box<dyn WrittenFile>> {
        let mut stored: Vec<(String, HostTensor)> = Vec::new();
        for (name, tensor) in tensors {
            match tensor.dtype().is_plain() {
                true => stored.push((name.to_owned(), tensor)),
                false => stored.extend(names_of(name).into_iter().zip(parts(&tensor))),
            }
        }
        stored.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let Some([(name, _), _]) = stored.array_windows().find(|[(a, _), (b, _)]| a == b) {
            let why = format!("two tensors would have the name {} in the file", shown(name));
            return Err(damaged(path, why).help("strings `x` are stored as `x/data` and `x/offsets`"));
        }
        let types: Vec<_> = stored.iter().map(|(name, of)| (name.as_str(), of.dtype(), of.shape())).collect();
        let layout = Layout::new(&types, &BTreeMap::new())?;
        let partial = PartialFile::write(self.storage.clone(), path, &layout, |i| Ok(stored[i].1.clone()))?;
        let unread = if let PartialState::Unsynced(_) = partial.state { stored } else { Vec::new() };
        Ok(Box::new(SavedFile { partial, unread }))
    }

    fn read(&self, path: &Path, tensor: &str) -> Result<HostTensor> {
        read_tensor(&*self.storage, path, path, tensor)
    }
}

/// A file that was written and does not have its own name yet. Dropping it removes it.
pub(crate) struct PartialFile {
    storage: Arc<dyn FileStorage>,
    path: PathBuf,
    state: PartialState,
}

enum PartialState {
    /// It is durable under another name.
    Renamed(PathBuf),
    /// It is an object, which appears when it is synced.
    Unsynced(Box<dyn StorageWriter>),
    Published,
}

impl PartialFile {
    /// Writes a file with this layout. `value` returns each of its tensors, in any order.
    pub fn write(
        storage: Arc<dyn FileStorage>,
        path: &Path,
        layout: &Layout,
        mut value: impl FnMut(usize) -> Result<HostTensor>,
    ) -> Result<PartialFile> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if is_folder || path.file_name().is_none() {
            return Err(damaged(path, "the path does not name a file"));
        }
        let write_error = |error| failed("write", path, &error);
        let mut file = PartialFile { storage, path: path.to_owned(), state: PartialState::Published };
        let mut to = match file.storage.kind() {
            StorageKind::Files => loop {
                let number = FILES.fetch_add(1, Ordering::Relaxed);
                // The name of the file may have as many bytes as a name can have.
                let partial = path.with_file_name(format!(".anabranch-{}-{number}.partial", std::process::id()));
                match file.storage.create(&partial) {
                    // It belongs to another process, which may have been killed.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    created => {
                        // From here on a drop removes it.
                        file.state = PartialState::Renamed(partial);
                        break created;
                    }
                }
            },
            StorageKind::Objects => file.storage.create(path),
        }
        .map_err(write_error)?;
        to.write_all(&layout.header).map_err(write_error)?;
        for &i in &layout.order {
            write_values(&mut to, &value(i)?).map_err(write_error)?;
        }
        match file.storage.kind() {
            StorageKind::Files => to.sync().map_err(write_error)?,
            StorageKind::Objects => file.state = PartialState::Unsynced(to),
        }
        Ok(file)
    }

    /// Gives it its own name, durably.
    pub fn publish(mut self) -> Result<()> {
        let write_error = |error| failed("write", &self.path, &error);
        match &mut self.state {
            PartialState::Renamed(partial) => self.storage.rename(partial, &self.path).map_err(write_error)?,
            PartialState::Unsynced(writer) => writer.sync().map_err(write_error)?,
            PartialState::Published => {}
        }
        self.state = PartialState::Published;
        let folder = folder_of(&self.path);
        self.storage.sync_dir(&folder).map_err(|error| failed("sync", &folder, &error))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let PartialState::Renamed(partial) = &self.state {
            // It may not be there: an error says why.
            let _ = self.storage.remove(partial);
        }
    }
}

/// A file that a step has saved.
struct SavedFile {
    partial: PartialFile,
    /// The tensors of an object, which cannot be read before it appears.
    unread: Vec<(String, HostTensor)>,
}

impl WrittenFile for SavedFile {
    fn read(&self, tensor: &str) -> Result<HostTensor> {
        let PartialFile { storage, path, state } = &self.partial;
        match state {
            PartialState::Renamed(partial) => read_tensor(&**storage, partial, path, tensor),
            _ => found_in(path, self.unread.iter().map(|(name, _)| name.as_str()), tensor, |wanted| {
                Ok(self.unread.iter().filter(|(name, _)| wanted(name)).cloned().collect())
            }),
        }
    }

    fn publish(self: Box<Self>) -> Result<()> {
        self.partial.publish()
    }
}

/// Reads a tensor of a file. `path` is its name for errors.
fn read_tensor(storage: &dyn FileStorage, file: &Path, path: &Path, name: &str) -> Result<HostTensor> {
    let opened = safetensors::open(storage, file)?;
    let entries = opened.header.tensors.clone();
    if let Some(foreign) = entries.iter().find(|entry| entry.name == name && entry.dtype.is_none()) {
        return Err(damaged(path, format!("the tensor {} is {}", shown(name), foreign.type_text())));
    }
    let names = entries.iter().map(|entry| entry.name.as_str());
    found_in(path, names, name, |wanted| Ok(opened.read(|entry| wanted(&entry.name))?.0))
}

/// Finds a tensor, or the two that stand for strings, among those with these names. `read` returns
/// the stored tensors that are wanted.
fn found_in<'n>(
    path: &Path,
    names: impl Iterator<Item = &'n str>,
    name: &str,
    read: impl FnOnce(&dyn Fn(&str) -> bool) -> Result<Vec<(String, HostTensor)>>,
) -> Result<HostTensor> {
    let names: Vec<&str> = names.collect();
    if names.contains(&name) {
        return Ok(read(&|other| other == name)?.pop().expect("it was found by its name").1);
    }
    let [data, offsets] = names_of(name);
    if !(names.contains(&data.as_str()) && names.contains(&offsets.as_str())) {
        let error = damaged(path, format!("there is no tensor {}", shown(name)));
        return Err(error.help(format!("there are {}", listed(names))));
    }
    let tensors: HashMap<String, HostTensor> = read(&|other| other == data || other == offsets)?.into_iter().collect();
    let is_wrong = |why: String| damaged(path, format!("the strings {} are damaged: {why}", shown(name)));
    joined(&tensors[&data], &tensors[&offsets]).map_err(is_wrong)
}
