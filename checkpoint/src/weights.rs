//! The variables of a module in one safetensors file.

use crate::error::{called_at, damaged, failed, listed, shown};
use crate::restore::{Restore, RestoreReport, StoredType, StoredTypes, check_paths, match_names};
use crate::run::RunState;
use crate::safetensors::{self, LONGEST_HEADER, Layout, TensorEntry};
use crate::storage::{FileStorage, LocalFiles, read_all};
use crate::strings::StoredTensor;
use crate::tensor_files::PartialFile;
use anabranch_dsl::{Array, Element, Loc, Module, Result};
use anabranch_runtime::Session;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The values of a module's variables in a safetensors file, by their paths.
///
/// Files of Python's `safetensors` can be loaded, and Python loads ours. All bits are kept, also
/// those of NaNs. The same values always make the same bytes. The format has no strings: a variable
/// of strings `x` is stored as `x/data`, the bytes of all of them, and `x/offsets`, the offset
/// behind each. A path that ends in `.index.json`
/// names the index of a model in several files, as Hugging Face stores them: it can be loaded.
///
/// ```
/// use anabranch::checkpoints::WeightFile;
/// use anabranch::nn::{Init, Linear};
/// use anabranch::prelude::*;
///
/// # let path = std::env::temp_dir().join(format!("anabranch-{}.safetensors", std::process::id()));
/// let (session, init) = (Session::new()?, Init::new(0));
/// let model = [Linear::new(&init, 2, 3), Linear::new(&init, 3, 1)];
/// WeightFile::new(&path).save(&session, &model)?;
///
/// let copy = [Linear::new(&init, 2, 3), Linear::new(&init, 3, 1)];
/// let report = WeightFile::new(&path).load(&session, &copy)?;
/// assert_eq!(report.restored.len(), 4);
/// assert_eq!(session.state(&copy)?, session.state(&model)?);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct WeightFile {
    path: PathBuf,
    storage: Arc<dyn FileStorage>,
    metadata: BTreeMap<String, String>,
    restore: Restore,
}

impl WeightFile {
    /// Returns the file at a path, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> WeightFile {
        let (storage, metadata) = (Arc::new(LocalFiles), BTreeMap::new());
        WeightFile { path: path.into(), storage, metadata, restore: Restore::strict() }
    }

    /// Sets where the file is stored, instead of the local file system.
    pub fn storage(self, storage: Arc<dyn FileStorage>) -> WeightFile {
        WeightFile { storage, ..self }
    }

    /// Adds a text to the metadata that [`save`](Self::save) writes. Some readers want `format`.
    pub fn metadata(mut self, key: impl Into<String>, text: impl Into<String>) -> WeightFile {
        self.metadata.insert(key.into(), text.into());
        self
    }

    /// Sets what [`load`](Self::load) does if the variables of the module are not those of the
    /// file.
    pub fn restore(self, restore: Restore) -> WeightFile {
        WeightFile { restore, ..self }
    }

    /// Writes the values of all variables of a module, as they are between two steps. A variable
    /// that appears several times in the module is written once, under its first path.
    ///
    /// An existing file is replaced at once and only after all is written, so there is always the
    /// old file or the whole new one, also after a crash. A symbolic link is replaced by the file.
    /// A process that is killed may leave a file whose name begins with `.anabranch-` and ends in
    /// `.partial`.
    ///
    /// # Errors
    /// Fails if the file cannot be written, if the path is that of a device, a pipe or a socket, if
    /// two variables have the same path, or if a value
    /// cannot be read from its device.
    #[track_caller]
    pub fn save(&self, session: &Session, module: &(impl Module + ?Sized)) -> Result<()> {
        let here = Loc::caller();
        self.write(session, module).map_err(|error| called_at(here, "saved here", error))
    }

    fn write(&self, session: &Session, module: &(impl Module + ?Sized)) -> Result<()> {
        let vars = module.vars();
        let state = RunState { vars, queues: Vec::new() };
        check_paths(&state)?;
        let vars = state.vars;
        let mut snapshot = session.snapshot(vars.iter().map(|(_, var)| var))?;
        let types = vars.iter().map(|(path, var)| (path.clone(), var.ty().dtype, var.init().shape().to_vec()));
        let tensors = StoredTensor::all(types, &mut snapshot)?;
        let layout = Layout::new(&tensors.iter().map(StoredTensor::ty).collect::<Vec<_>>(), &self.metadata)?;
        let value = |i: usize| tensors[i].take(&mut snapshot);
        PartialFile::write(self.storage.clone(), &self.path, &layout, value)?.publish()
    }

    /// Sets the variables of a module to the values of the file, all at once. If there is an error,
    /// nothing changes.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is damaged, and if the variables of the module are not
    /// those of the file, unless [`restore`](Self::restore) allows it. One error lists all of them.
    #[track_caller]
    pub fn load(&self, session: &Session, module: &(impl Module + ?Sized)) -> Result<RestoreReport> {
        let here = Loc::caller();
        self.read(session, module).map_err(|error| called_at(here, "loaded here", error))
    }

    fn read(&self, session: &Session, module: &(impl Module + ?Sized)) -> Result<RestoreReport> {
        let files = self.files()?;
        let mut stored = StoredTypes::default();
        for entry in files.iter().flat_map(|file| &file.header.tensors) {
            stored.vars.insert(entry.name.clone(), StoredType::of(entry));
        }
        let state = RunState { vars: module.vars(), queues: Vec::new() };
        let matched = match_names(&self.path.display().to_string(), &state, &stored, &self.restore)?;
        let mut values = Vec::new();
        for file in files {
            values.extend(file.read(|entry| matched.wants(&entry.name))?.0);
        }
        matched.assign(session, values, Vec::new())
    }

    /// Reads one tensor, without a module: data in a file of safetensors, for example.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is damaged, if it has no tensor of this name, or if its
    /// elements are of another type.
    ///
    /// ```
    /// use anabranch::checkpoints::WeightFile;
    /// use anabranch::prelude::*;
    ///
    /// # let path = format!("anabranch-tensor-{}.safetensors", std::process::id());
    /// # let path = std::env::temp_dir().join(path);
    /// let (session, vars) = (Session::new()?, [Var::<f32>::new("x", [1.0, 2.0])]);
    /// WeightFile::new(&path).save(&session, &vars)?;
    /// assert_eq!(WeightFile::new(&path).tensor::<f32>("0")?.to_vec(), [1.0, 2.0]);
    /// # std::fs::remove_file(path).unwrap();
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn tensor<T: Element>(&self, name: &str) -> Result<Array<T>> {
        let here = Loc::caller();
        self.read_tensor(name).map_err(|error| called_at(here, "read here", error))
    }

    fn read_tensor<T: Element>(&self, name: &str) -> Result<Array<T>> {
        let files = self.files()?;
        let names = || files.iter().flat_map(|file| &file.header.tensors).map(|entry| entry.name.as_str());
        if !names().any(|own| own == name) {
            let error = damaged(&self.path, format!("there is no tensor {}", shown(name)));
            return Err(error.help(format!("there are {}", listed(names()))));
        }
        for file in files {
            if let Some((_, tensor)) = file.read(|entry| entry.name == name)?.0.pop() {
                let ty = tensor.ty();
                let wrong = || damaged(&self.path, format!("the tensor {} is {ty}, not {}", shown(name), T::DTYPE));
                return Array::from_host(tensor).ok_or_else(wrong);
            }
        }
        unreachable!("a header names the tensor")
    }

    /// Opens the file, or those that an index names.
    fn files(&self) -> Result<Vec<safetensors::OpenedFile>> {
        let is_index = self.path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".index.json"));
        if !is_index {
            return Ok(vec![safetensors::open(&*self.storage, &self.path)?]);
        }
        let text = read_all(&*self.storage, &self.path, LONGEST_HEADER);
        let text = text.map_err(|error| failed("read", &self.path, &error))?;
        let index: ShardIndex = serde_json::from_slice(&text)
            .map_err(|error| damaged(&self.path, format!("the index is invalid: {error}")))?;
        let mut by_file: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        index.weight_map.iter().for_each(|(name, file)| {
            by_file.entry(file).or_default().insert(name);
        });
        by_file.into_iter().map(|(file, names)| self.shard(file, &names)).collect()
    }

    /// Opens a file that an index names, which must have exactly these tensors.
    fn shard(&self, file: &str, names: &BTreeSet<&str>) -> Result<safetensors::OpenedFile> {
        if Path::new(file).file_name() != Some(file.as_ref()) {
            let why = format!("the index names {}, which is not a file in its folder", shown(file));
            return Err(damaged(&self.path, why));
        }
        let path = self.path.with_file_name(file);
        let opened = safetensors::open(&*self.storage, &path)?;
        let there: BTreeSet<&str> = opened.header.tensors.iter().map(|entry| entry.name.as_str()).collect();
        if let Some(name) = names.difference(&there).next() {
            return Err(damaged(&path, format!("the tensor {} is missing, which the index lists", shown(name))));
        }
        if let Some(name) = there.difference(names).next() {
            return Err(damaged(&path, format!("the index does not list the tensor {}", shown(name))));
        }
        Ok(opened)
    }
}

/// The index of a model in several files.
#[derive(Deserialize)]
struct ShardIndex {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

impl StoredType {
    /// Returns the type of a tensor in a file.
    pub(crate) fn of(entry: &TensorEntry) -> StoredType {
        StoredType { dtype: entry.dtype, shape: entry.shape.clone(), text: entry.type_text() }
    }
}
