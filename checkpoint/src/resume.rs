//! Continuing from a checkpoint.

use crate::error::{called_at, failed, listed, shown};
use crate::folder::{CheckpointData, CheckpointFolder};
use crate::manifest::Manifest;
use crate::restore::{Restore, RestoreReport, StoredType, StoredTypes, damaged_value, match_names};
use crate::run::RunParts;
use crate::safetensors::dtype_of;
use crate::storage::{FileStorage, LocalFiles, log_storage};
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{Diagnostic, Loc, Result};
use anabranch_runtime::Session;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A run that was continued from a checkpoint, or a session that has its variables.
#[derive(Clone, Debug)]
pub struct Resumed {
    step: u64,
    /// Which variables were restored, and which were not.
    pub report: RestoreReport,
    /// Notes for a person: checkpoints that were passed over because they are damaged, and
    /// log files that are not as long as they were.
    pub notes: Vec<String>,
    /// The steps of the checkpoints that were passed over.
    pub(crate) damaged: Vec<u64>,
    values: BTreeMap<String, Vec<u8>>,
    metrics: BTreeMap<String, f64>,
    /// The log files that are longer than they were, with their lengths at the checkpoint.
    longer_logs: Vec<(PathBuf, u64)>,
}

/// Which checkpoint to continue from.
#[derive(Clone, Copy)]
pub(crate) enum StepChoice {
    /// The latest that is not damaged.
    Latest,
    Step(u64),
}

/// Sets all variables and queues of the parts of a run to the values in the latest checkpoint in a
/// folder, without locking it, so that another process may save there meanwhile. Log files are left
/// as they are. Returns `None` if there is no checkpoint.
///
/// # Errors
/// Those of [`Checkpoints::resume`](crate::Checkpoints::resume).
#[track_caller]
pub fn restore_latest(
    folder: impl Into<PathBuf>,
    session: &Session,
    parts: &RunParts<'_>,
    restore: &Restore,
) -> Result<Option<Resumed>> {
    let here = Loc::caller();
    let folder = CheckpointFolder::new(Arc::new(LocalFiles), folder.into());
    resume_in(&folder, session, parts, restore, StepChoice::Latest)
        .map_err(|error| called_at(here, "restored here", error))
}

/// Sets the variables and queues of a session to those of a checkpoint.
pub(crate) fn resume_in(
    folder: &CheckpointFolder,
    session: &Session,
    parts: &RunParts<'_>,
    restore: &Restore,
    choice: StepChoice,
) -> Result<Option<Resumed>> {
    let state = parts.state();
    let mut steps = folder.steps()?;
    let mut passed_over: Vec<(u64, Diagnostic)> = Vec::new();
    loop {
        let is_left = |&step: &u64| choice.allows(step) && passed_over.iter().all(|(of, _)| *of != step);
        let Some(step) = steps.iter().copied().rfind(is_left) else {
            return if passed_over.is_empty() { Ok(None) } else { Err(none_usable(folder, passed_over)) };
        };
        let manifest = folder.manifest(step)?;
        let error = match manifest {
            Ok(manifest) => {
                let source = format!("the checkpoint {}", folder.path_of(step).display());
                let matched = match_names(&source, &state, &manifest.types(), restore)?;
                match folder.read(&manifest, |name| matched.wants(name))? {
                    Ok(CheckpointData { vars, queues, values }) => {
                        let content = |(name, queue): &(String, AnyQueue)| {
                            let content = manifest.queues[name].content(name, queue, &queues);
                            let content = content.map_err(|why| damaged_value("content of the queue", name, &why))?;
                            Ok((queue.clone(), content))
                        };
                        let contents = matched.queues.iter().map(content).collect::<Result<_>>()?;
                        let report = matched.assign(session, vars, contents)?;
                        return Ok(Some(Resumed::new(manifest, values, report, passed_over, parts, folder)?));
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        // A writer may have deleted it since, and saved others.
        steps = folder.steps()?;
        if steps.contains(&step) {
            passed_over.push((step, error));
        }
    }
}

/// Returns the error that all checkpoints are damaged.
fn none_usable(folder: &CheckpointFolder, passed_over: Vec<(u64, Diagnostic)>) -> Diagnostic {
    let message = format!("no checkpoint in {} can be used", folder.root.display());
    let error =
        passed_over.into_iter().fold(Diagnostic::new(message), |error, (_, why)| error.at(Loc::UNKNOWN, why.message));
    error.help("the files are damaged: restore them from a copy, or begin the run in another folder")
}

impl StepChoice {
    fn allows(self, step: u64) -> bool {
        match self {
            StepChoice::Latest => true,
            StepChoice::Step(only) => only == step,
        }
    }
}

impl Manifest {
    /// Returns the types of the variables and of the queues.
    fn types(&self) -> StoredTypes {
        let types = self.variables.iter().map(|(path, var)| {
            let dtype = dtype_of(&var.dtype);
            let name = dtype.map_or(var.dtype.as_str(), |dtype| dtype.name());
            (path.clone(), StoredType { dtype, shape: var.shape.clone(), text: format!("{name}{:?}", var.shape) })
        });
        let queues = self.queues.iter().map(|(name, record)| (name.clone(), record.ty.clone())).collect();
        StoredTypes { vars: types.collect(), queues }
    }
}

impl Resumed {
    fn new(
        manifest: Manifest,
        values: BTreeMap<String, Vec<u8>>,
        report: RestoreReport,
        passed_over: Vec<(u64, Diagnostic)>,
        parts: &RunParts<'_>,
        folder: &CheckpointFolder,
    ) -> Result<Resumed> {
        let passed = |(step, error): &(u64, Diagnostic)| format!("step {step} is passed over: {}", error.message);
        let mut notes: Vec<String> = passed_over.iter().map(passed).collect();
        let mut longer_logs = Vec::new();
        for (name, path) in &parts.logs {
            let shown = path.display();
            let Some(&saved) = manifest.logs.get(name) else {
                notes.push(format!("the checkpoint has no length of the log file {shown}, which stays as it is"));
                continue;
            };
            match log_storage(&*folder.storage).len(path) {
                Ok(len) if len < saved => {
                    notes.push(format!("the log file {shown} has {len} bytes, but had {saved} at the checkpoint"));
                }
                Ok(len) if len > saved => longer_logs.push((path.clone(), saved)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if saved > 0 {
                        notes.push(format!("the log file {shown} is missing"));
                    }
                }
                Err(error) => return Err(failed("read the length of", path, &error)),
            }
        }
        let other: Vec<&str> =
            manifest.logs.keys().filter(|name| !parts.logs.contains_key(*name)).map(String::as_str).collect();
        if !other.is_empty() {
            notes.push(format!(
                "the checkpoint has lengths of other log files, which stay as they are: {}",
                listed(other)
            ));
        }
        Ok(Resumed {
            step: manifest.step,
            report,
            notes,
            damaged: passed_over.into_iter().map(|(step, _)| step).collect(),
            values,
            metrics: manifest.metrics.into_iter().map(|(name, x)| (name, x.0)).collect(),
            longer_logs,
        })
    }

    /// Cuts the log files to their lengths at the checkpoint.
    pub(crate) fn cut_logs(&self, storage: &dyn FileStorage) -> Result<()> {
        let cut = |(path, len): &(PathBuf, u64)| storage.cut(path, *len).map_err(|error| failed("cut", path, &error));
        self.longer_logs.iter().try_for_each(cut)
    }

    /// Returns the step of the checkpoint: how many steps are done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns a value of the program, by the name under which it was saved.
    ///
    /// # Errors
    /// Fails if there is no value of this name, or if it is not of this type.
    #[track_caller]
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let here = Loc::caller();
        let Some(bytes) = self.values.get(name) else {
            let message = format!("the checkpoint of step {} has no value {}", self.step, shown(name));
            let there = listed(self.values.keys().map(String::as_str));
            let help = if there.is_empty() { "it has no values".to_owned() } else { format!("it has {there}") };
            return Err(Diagnostic::new(message).at(here, "asked for here").help(help));
        };
        ciborium::from_reader(&bytes[..]).map_err(|error| {
            let message = format!("the value {} of step {} is of another type: {error}", shown(name), self.step);
            Diagnostic::new(message).at(here, "asked for here")
        })
    }

    /// Returns whether there is a value of the program of this name.
    pub fn has_value(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns a metric of the checkpoint.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }
}

/// Writes the step and the notes, one in each line.
impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resumed at step {}: {}", self.step, self.report)?;
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}
