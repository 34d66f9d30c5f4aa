//! Checkpoints in an object store, where nothing can be renamed and nobody can lock.
//!
//! - O1. A checkpoint exists exactly if its manifest does. The manifest is published last, when all
//!   files that it names are there, and at most one writer can publish that of a step. So a
//!   published manifest plays the part of the rename C1 of [`folder`](crate::folder).
//! - O2. Names of files are unique for each attempt to save, so no writer changes a file that a
//!   manifest of another one names.
//! - O3. To delete a checkpoint, its manifest is removed first. Then its files are what an attempt
//!   without a manifest has left.
//! - O4. A writer that opens the folder takes it over, since the writer before it may have been
//!   killed: it writes a token of its own to the file [`LOCK`]. Before each publication, and before
//!   it removes what is no longer needed, a writer reads the token; if it is another one, the
//!   writer ends with an error. A writer that was taken over between that look and its publication
//!   may publish a checkpoint whose files the new one has swept; that is a damaged checkpoint,
//!   which readers pass over.
//! - O5. If a publication fails, the manifest may be there all the same, so the writer reads it:
//!   its own manifest is success. If it cannot be read, its files stay.

use crate::error::failed;
use crate::folder::{CheckpointFolder, LOCK, PendingSave, step_of};
use crate::manifest::{MANIFEST, Manifest};
use crate::pace::Pace;
use crate::storage::read_all;
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The claim of a writer to the checkpoints in a folder.
#[derive(Clone, Debug)]
pub(crate) struct WriterClaim {
    token: String,
}

/// The end of the names of files with tensors.
const ENDING: &str = ".safetensors";

impl WriterClaim {
    /// Takes the folder over.
    pub fn new(folder: &CheckpointFolder) -> Result<WriterClaim> {
        // The standard library seeds each of them from the random numbers of the system.
        let half = || RandomState::new().build_hasher().finish();
        let token = format!("{:016x}{:016x}", half(), half());
        let path = folder.root.join(LOCK);
        let write = || -> io::Result<()> {
            let mut file = folder.storage.create(&path)?;
            file.write_all(token.as_bytes())?;
            file.sync()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        Ok(WriterClaim { token })
    }

    /// Fails if another writer has taken the folder over.
    fn check(&self, folder: &CheckpointFolder) -> Result<()> {
        let path = folder.root.join(LOCK);
        let token = read_all(&*folder.storage, &path, 1 << 10).map_err(|error| failed("read", &path, &error))?;
        match token == self.token.as_bytes() {
            true => Ok(()),
            false => {
                let message = format!("another writer has taken over the checkpoints in {}", folder.root.display());
                let error = Diagnostic::new(message).of_kind(ErrorKind::Cancelled);
                Err(error.help("each run needs a folder of its own: end this program, or the other one"))
            }
        }
    }

    /// Writes a checkpoint. See [`CheckpointFolder::write`].
    pub fn write(&self, folder: &CheckpointFolder, save: PendingSave, pace: &Pace) -> Result<()> {
        static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
        let (step, path) = (save.step, folder.path_of(save.step));
        self.check(folder)?;
        if folder.steps()?.contains(&step) {
            self.set_aside(folder, step)?;
        }
        let addition = format!("-{}-{}", self.token, ATTEMPTS.fetch_add(1, Ordering::Relaxed));
        let written = folder.write_files(save, &path, &addition, pace).and_then(|manifest| {
            self.check(folder)?;
            Ok(manifest)
        });
        let manifest = match written {
            Ok(manifest) => manifest,
            Err(error) => {
                // The first error is the one to report. What is left is removed by the next writer.
                let _ = self.remove(folder, &path, |name| name.ends_with(&format!("{addition}{ENDING}")));
                return Err(error);
            }
        };
        let at = path.join(MANIFEST);
        let Err(error) = folder.storage.publish(&at, manifest.to_text().as_bytes()) else { return Ok(()) };
        match Manifest::read(&*folder.storage, &path, step) {
            // A metric may be NaN, which is not equal to itself.
            Ok(Ok(there)) if there.to_text() == manifest.to_text() => Ok(()),
            _ => Err(failed("write", &at, &error)),
        }
    }

    /// Renames the manifest of a step, whose checkpoint must be damaged. Its files stay, since
    /// somebody may mend it.
    fn set_aside(&self, folder: &CheckpointFolder, step: u64) -> Result<()> {
        folder.check_damaged(step)?;
        let (path, names) = (folder.path_of(step), folder.list(&folder.path_of(step))?);
        let mut candidates = (1..).map(|n| format!("damaged-{n}-{MANIFEST}"));
        let name = candidates.find(|name| !names.contains(name)).expect("some name is free");
        let (from, to) = (path.join(MANIFEST), path.join(name));
        let bytes = read_all(&*folder.storage, &from, u64::MAX).map_err(|error| failed("read", &from, &error))?;
        folder.storage.publish(&to, &bytes).map_err(|error| failed("write", &to, &error))?;
        folder.storage.remove(&from).map_err(|error| failed("remove", &from, &error))
    }

    /// Deletes the checkpoint of a step for all who look for it.
    pub fn delete(&self, folder: &CheckpointFolder, step: u64) -> Result<()> {
        self.check(folder)?;
        let path = folder.path_of(step);
        let is_set_aside = |name: &String| name != MANIFEST && name.ends_with(MANIFEST);
        // Where a damaged checkpoint was set aside, the sweep leaves all files.
        let manifest = match folder.list(&path)?.iter().any(is_set_aside) {
            true => Manifest::read(&*folder.storage, &path, step).ok().and_then(Result::ok),
            false => None,
        };
        let at = path.join(MANIFEST);
        folder.storage.remove(&at).map_err(|error| failed("remove", &at, &error))?;
        manifest.map_or(Ok(()), |manifest| self.remove(folder, &path, |name| manifest.files.contains_key(name)))
    }

    /// Removes the files of attempts and deletions that have no manifest. See
    /// [`CheckpointFolder::sweep`].
    pub fn sweep(&self, folder: &CheckpointFolder, names: &[String]) -> Result<Result<()>> {
        self.check(folder)?;
        let mut removed = Ok(());
        for step in names.iter().filter_map(|name| step_of(name)) {
            let path = folder.path_of(step);
            let there = folder.list(&path)?;
            // A damaged checkpoint that was set aside keeps its files.
            if !there.iter().any(|name| name.ends_with(MANIFEST)) {
                removed = removed.and(self.remove(folder, &path, is_ours));
            }
        }
        Ok(removed)
    }

    /// Removes the files of a step whose names are so. Goes on after an error, and returns the
    /// first.
    fn remove(&self, folder: &CheckpointFolder, path: &Path, is_removed: impl Fn(&str) -> bool) -> Result<()> {
        let names = folder.list(path)?;
        let remove = |name: &String| {
            let path = path.join(name);
            match folder.storage.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path, &error)),
                _ => Ok(()),
            }
        };
        names.iter().filter(|name| is_removed(name)).map(remove).fold(Ok(()), Result::and)
    }
}

/// Returns whether a file of this name belongs to a checkpoint.
fn is_ours(name: &str) -> bool {
    ["state-", "values-", "queues-"].iter().any(|begin| name.starts_with(begin)) && name.ends_with(ENDING)
}

impl CheckpointFolder {
    /// Returns those of the steps that have a manifest.
    pub fn published(&self, steps: Vec<u64>) -> Result<Vec<u64>> {
        let mut published = Vec::new();
        for step in steps {
            if self.list(&self.path_of(step))?.iter().any(|name| name == MANIFEST) {
                published.push(step);
            }
        }
        Ok(published)
    }
}
