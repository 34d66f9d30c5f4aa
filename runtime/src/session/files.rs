//! Files of tensors, as the steps of a session write and read them.
//!
//! A step writes a file when it saves, under another name, and publishes it when all else of the
//! step is committed. A step that fails discards what it has written. It reads what it has written
//! itself before anything is published.

use anabranch_dsl::files::{StepFiles, is_restored, no_files};
use anabranch_dsl::ir::{FileOp, Op};
use anabranch_dsl::{Bytes, Diagnostic, Graph, HostTensor, Loc, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the functions of a session save and restore tensors: the format of files, and the storage.
pub trait TensorFiles: Send + Sync {
    /// Writes tensors, by name, to a new file that will replace the one at a path. It is durable,
    /// and not visible at the path before it is [published](WrittenFile::publish).
    ///
    /// # Errors
    /// Fails if the file cannot be written. Nothing of it is left then.
    fn write(&self, path: &Path, tensors: Vec<(&str, HostTensor)>) -> Result<Box<dyn WrittenFile>>;

    /// Reads a tensor of the file at a path.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is damaged, or if it has no tensor of this name.
    fn read(&self, path: &Path, tensor: &str) -> Result<HostTensor>;
}

/// A file that was written and is not visible yet. Dropping it removes it.
pub trait WrittenFile: Send {
    /// Reads a tensor of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if it has no tensor of this name.
    fn read(&self, tensor: &str) -> Result<HostTensor>;

    /// Gives the file its own name, durably, in place of an older one.
    ///
    /// # Errors
    /// Fails if the storage does. There is the older file or the new one then.
    fn publish(self: Box<Self>) -> Result<()>;
}

/// The files that a running step has written. Dropping it discards those that are not published.
pub(crate) struct RunningFiles(Arc<WrittenFiles>);

/// A file with its path and the place where it was saved.
type FileOfStep = (PathBuf, Loc, Box<dyn WrittenFile>);

struct WrittenFiles {
    files: Arc<dyn TensorFiles>,
    /// In the order of the saves.
    written: Mutex<Vec<FileOfStep>>,
}

impl RunningFiles {
    pub(crate) fn begin(files: Arc<dyn TensorFiles>) -> RunningFiles {
        RunningFiles(Arc::new(WrittenFiles { files, written: Mutex::default() }))
    }

    /// Returns the files for the engine.
    pub(crate) fn files(&self) -> Arc<dyn StepFiles> {
        self.0.clone()
    }

    /// Publishes all files. Goes on after an error, and returns the first.
    pub(crate) fn publish(&self) -> Result<()> {
        let written = std::mem::take(&mut *self.0.written());
        let publish = |(path, loc, file): FileOfStep| {
            file.publish().map_err(|error| {
                let label = "saved here: the call has succeeded but for this file, and variables have changed";
                at(error, "save", &path, loc, label)
            })
        };
        written.into_iter().map(publish).fold(Ok(()), Result::and)
    }
}

impl Drop for RunningFiles {
    fn drop(&mut self) {
        self.0.written().clear();
    }
}

impl WrittenFiles {
    fn written(&self) -> MutexGuard<'_, Vec<FileOfStep>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, path: PathBuf, names: &[String], tensors: Vec<HostTensor>, loc: Loc) -> Result<()> {
        let tensors = names.iter().map(String::as_str).zip(tensors).collect();
        let file = self.files.write(&path, tensors).map_err(|error| at(error, "save", &path, loc, "saved here"))?;
        let mut written = self.written();
        written.retain(|(other, ..)| *other != path);
        written.push((path, loc, file));
        Ok(())
    }

    fn restore(&self, path: &Path, name: &str) -> Result<HostTensor> {
        match self.written().iter().find(|(other, ..)| other == path) {
            Some((.., own)) => own.read(name),
            None => self.files.read(path, name),
        }
    }
}

impl StepFiles for WrittenFiles {
    fn run(&self, op: &FileOp, operands: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>> {
        let mut operands = operands.into_iter();
        let path = operands.next().expect("a file has a path");
        let path: &Bytes = &path.data::<Bytes>()[0];
        let path = PathBuf::from(str::from_utf8(path).map_err(|_| {
            Diagnostic::new(format!("{}: the path {path:?} is not UTF-8", op.name())).at(loc, "used here")
        })?);
        match op {
            FileOp::Save(names) => self.save(path, names, operands.collect(), loc).map(|()| Vec::new()),
            FileOp::Restore { name, ty } => {
                let wrong = |error| at(error, "restore", &path, loc, "restored here");
                let tensor = self.restore(&path, name).map_err(wrong)?;
                if !is_restored(ty, &tensor) {
                    let message = format!("{}: the tensor `{name}` is {}, not {ty}", path.display(), tensor.ty());
                    return Err(wrong(Diagnostic::new(message).help("restore it by its type in the file")));
                }
                Ok(vec![tensor])
            }
        }
    }
}

/// Returns the error of an operation on a file, at its place.
fn at(mut error: Diagnostic, op: &str, path: &Path, loc: Loc, label: &str) -> Diagnostic {
    let place = path.display().to_string();
    error.message = match error.message.contains(&place) {
        true => format!("{op}: {}", error.message),
        false => format!("{op}: {place}: {}", error.message),
    };
    error.labels.insert(0, (loc, label.to_owned()));
    error
}

/// Returns whether a graph uses files.
///
/// # Errors
/// Fails if it does and the session has none.
pub(crate) fn uses_files(graph: &Graph, files: Option<&Arc<dyn TensorFiles>>) -> Result<bool> {
    let mut first = None;
    graph.visit_nodes(graph.root(), &mut |node| {
        if let Op::File(op) = &graph.node(node).op {
            first.get_or_insert_with(|| (op.clone(), graph.node(node).loc));
        }
    });
    match first {
        Some((op, loc)) if files.is_none() => Err(no_files(&op, loc)),
        first => Ok(first.is_some()),
    }
}

impl fmt::Debug for dyn TensorFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorFiles")
    }
}
