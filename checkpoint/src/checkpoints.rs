//! The checkpoints of a run, for the one who writes them: when to save, which to keep, and what
//! becomes of errors.

use crate::background::{LockedFolder, Patience, SaveInFlight};
use crate::error::{called_at, failed};
use crate::folder::{CheckpointFolder, PendingSave};
use crate::restore::{Restore, check_paths};
use crate::resume::{Resumed, StepChoice, resume_in};
use crate::run::{RunParts, RunState, StepRecord};
use crate::storage::{FileStorage, LocalFiles, log_storage};
use anabranch_dsl::{Diagnostic, Loc, Result};
use anabranch_runtime::Session;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The choice of a save while another one is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBusy {
    /// It waits for the other one, and with it the caller.
    #[default]
    Wait,
    /// It is skipped, and [counted](SaveCounts::skipped).
    Skip,
}

/// Which values of a metric are the best ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// The smallest, as of a loss.
    Min,
    /// The largest, as of an accuracy.
    Max,
}

/// The outcome of [`Checkpoints::save`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The snapshot is taken and is being written.
    Started,
    /// Nothing, since another save was being written.
    Skipped,
}

/// How many saves there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveCounts {
    /// Saves that are known to be durable.
    pub saved: u64,
    /// Saves that were skipped because another one was being written.
    pub skipped: u64,
    /// Saves that first waited for another one.
    pub waited: u64,
    /// Saves that ended with an error.
    pub failed: u64,
}

/// Which checkpoints are kept when a new one is durable.
#[derive(Clone, Debug, Default)]
struct Retention {
    latest: Option<usize>,
    best: Vec<(usize, String, Goal)>,
}

/// The smallest share of the time for which the thread of a save may work.
const MIN_WRITE_SHARE: f64 = 1e-3;

/// The settings of [`Checkpoints`].
#[derive(Clone, Debug)]
#[must_use]
pub struct CheckpointsBuilder {
    folder: CheckpointFolder,
    retention: Retention,
    when_busy: WhenBusy,
    shard_size: u64,
    drop_timeout: Duration,
    write_share: f64,
}

/// The checkpoints of a run in a folder, of which each has a folder of its own: `step-00001200`.
///
/// A save takes a snapshot between two steps, which shares the memory of the values, and returns. A
/// thread writes it: one at a time. A checkpoint exists when all its files are durable and
/// verified by checksums in its manifest; then old ones may be deleted, and never before. After a
/// crash at any moment, and a failure of the storage, the last checkpoint that was completed is
/// found, or one that was completed after it.
///
/// An error of the thread is the error of the next [`save`](Self::save), [`wait`](Self::wait) or
/// [`resume`](Self::resume). If there is none, dropping this value prints it to standard error.
/// That an old checkpoint could not be deleted is an error only of `wait`: the new one is saved,
/// and saving goes on. A drop waits for a save that is being written, but only for some time; see
/// [`drop_timeout`](CheckpointsBuilder::drop_timeout).
///
/// One process at a time writes to a folder; others may read with
/// [`restore_latest`](crate::restore_latest). The module has [an example](crate).
pub struct Checkpoints {
    folder: Arc<LockedFolder>,
    settings: CheckpointsBuilder,
    /// The metrics of each checkpoint that is not known to be damaged.
    metrics: BTreeMap<u64, BTreeMap<String, f64>>,
    in_flight: Option<(SaveInFlight, BTreeMap<String, f64>)>,
    /// When the latest save began.
    last_begin: Option<Instant>,
    /// The error of a save that nobody has received.
    unreported: Option<Diagnostic>,
    /// Why files of old checkpoints are still there, for the next `wait`.
    not_deleted: Option<Diagnostic>,
    counts: SaveCounts,
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Checkpoints");
        fields.field("folder", &self.folder.folder.root).field("steps", &self.steps()).finish_non_exhaustive()
    }
}

impl CheckpointsBuilder {
    /// Sets where the checkpoints are stored, instead of the local file system.
    pub fn storage(mut self, storage: Arc<dyn FileStorage>) -> CheckpointsBuilder {
        self.folder.storage = storage;
        self
    }

    /// Sets another folder, in the same storage.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> CheckpointsBuilder {
        self.folder = CheckpointFolder::new(self.folder.storage, folder.into());
        self
    }

    /// Keeps the `n` latest checkpoints, at least one, and those that are kept for other reasons.
    /// Others are deleted when a new one is durable. By default all are kept.
    pub fn keep_latest(mut self, n: usize) -> CheckpointsBuilder {
        self.retention.latest = Some(n.max(1));
        self
    }

    /// Keeps the `n` checkpoints with the best values of a metric, and the latest one. A checkpoint
    /// without the metric, or whose value is not a number, is not among the best; of equal values
    /// the later one is better.
    pub fn keep_best(mut self, n: usize, metric: impl Into<String>, goal: Goal) -> CheckpointsBuilder {
        self.retention.latest.get_or_insert(1);
        self.retention.best.push((n, metric.into(), goal));
        self
    }

    /// Sets what a save does while another one is being written.
    pub fn when_busy(self, when_busy: WhenBusy) -> CheckpointsBuilder {
        CheckpointsBuilder { when_busy, ..self }
    }

    /// Sets after how many bytes of elements another file begins. A larger variable has a file of
    /// its own. The default is 4 GiB.
    pub fn shard_size(self, bytes: u64) -> CheckpointsBuilder {
        CheckpointsBuilder { shard_size: bytes, ..self }
    }

    /// Sets how long a drop of [`Checkpoints`] waits for a save that is being written, before it
    /// abandons the save. The default is one minute.
    pub fn drop_timeout(self, timeout: Duration) -> CheckpointsBuilder {
        CheckpointsBuilder { drop_timeout: timeout, ..self }
    }

    /// Sets for which share of the time the thread that writes a save works, from 0.001 to 1,
    /// while nobody waits for it; the rest it leaves to the steps. The default is 0.03: what would
    /// take one second takes 33, and costs the steps of those 33 seconds 3 % of one core.
    /// It rests for at most half of the time that was between the last two saves, so that saves
    /// which come regularly do not wait for each other. Another save, [`wait`](Checkpoints::wait)
    /// and a drop end its rests.
    pub fn write_share(self, share: f64) -> CheckpointsBuilder {
        CheckpointsBuilder { write_share: share, ..self }
    }

    /// Creates the folder if there is none, locks it, and removes what an interrupted save or
    /// deletion has left there. What cannot be removed stays, and is an error of the next
    /// [`wait`](Checkpoints::wait).
    ///
    /// # Errors
    /// Fails if another writer has locked the folder, in this process or another one, if there is a
    /// checkpoint in the format of another version of this library, if the storage fails, or if the
    /// [`write_share`](Self::write_share) is no share.
    #[track_caller]
    pub fn open(self) -> Result<Checkpoints> {
        let here = Loc::caller();
        self.opened().map_err(|error| called_at(here, "opened here", error))
    }

    /// Sets all variables of the parts of a run to the values in the latest checkpoint, like
    /// [`restore_latest`](crate::restore_latest), in the storage of these settings.
    ///
    /// # Errors
    /// Those of [`Checkpoints::resume`].
    #[track_caller]
    pub fn restore_latest(
        &self,
        session: &Session,
        parts: &RunParts<'_>,
        restore: &Restore,
    ) -> Result<Option<Resumed>> {
        let here = Loc::caller();
        resume_in(&self.folder, session, parts, restore, StepChoice::Latest)
            .map_err(|error| called_at(here, "restored here", error))
    }

    fn opened(self) -> Result<Checkpoints> {
        if !(MIN_WRITE_SHARE..=1.0).contains(&self.write_share) {
            let message = format!("the thread that writes cannot work for a share of {} of the time", self.write_share);
            return Err(Diagnostic::new(message).help("`write_share` is from 0.001 to 1"));
        }
        let folder = Arc::new(LockedFolder::new(self.folder.clone())?);
        let not_deleted = folder.folder.sweep()?.err();
        let not_deleted =
            not_deleted.map(|error| error.at(Loc::UNKNOWN, "what an interrupted save or deletion has left stays"));
        let mut metrics = BTreeMap::new();
        for step in folder.folder.steps()? {
            // A damaged one is left for its owner to look at, and reported by `resume`.
            if let Ok(manifest) = folder.folder.manifest(step)? {
                metrics.insert(step, manifest.metrics.into_iter().map(|(name, x)| (name, x.0)).collect());
            }
        }
        let (in_flight, last_begin, unreported, counts) = (None, None, None, SaveCounts::default());
        Ok(Checkpoints { folder, settings: self, metrics, in_flight, last_begin, unreported, not_deleted, counts })
    }
}

impl Checkpoints {
    /// Returns the default settings for the checkpoints in a folder.
    #[expect(clippy::new_ret_no_self, reason = "the settings come first, and `open` returns the checkpoints")]
    pub fn new(folder: impl Into<PathBuf>) -> CheckpointsBuilder {
        let folder = CheckpointFolder::new(Arc::new(LocalFiles), folder.into());
        let (retention, when_busy) = (Retention::default(), WhenBusy::default());
        let (shard_size, drop_timeout, write_share) = (4 << 30, Duration::from_secs(60), 0.03);
        CheckpointsBuilder { folder, retention, when_busy, shard_size, drop_timeout, write_share }
    }

    /// Returns the steps of the checkpoints that are known to be durable, in ascending order.
    pub fn steps(&self) -> Vec<u64> {
        self.metrics.keys().copied().collect()
    }

    /// Returns how many saves there were.
    pub fn counts(&self) -> SaveCounts {
        self.counts
    }

    /// Returns whether a save is being written.
    pub fn is_saving(&mut self) -> bool {
        self.collect(Patience::None);
        self.in_flight.is_some()
    }

    /// Saves the parts of a run after a step: takes a snapshot of all variables and queues at one
    /// moment, and starts to write it.
    ///
    /// Variables that sessions share at a peer are not of one moment: they are read one by one and
    /// copied to the host before this returns, so steps of other sessions may come between.
    ///
    /// # Errors
    /// Fails with the error of the save before it, if that has failed since; nothing is saved then.
    /// Fails if the step is not after that of all other checkpoints, if two variables have the same
    /// path or two queues the same name, if a value could not be encoded, if a log file is not
    /// there, or if a variable or the length of a log file cannot be read.
    #[track_caller]
    pub fn save(&mut self, session: &Session, parts: &RunParts<'_>, record: StepRecord) -> Result<SaveOutcome> {
        let here = Loc::caller();
        self.start(session, parts, record).map_err(|error| called_at(here, "saved here", error))
    }

    fn start(&mut self, session: &Session, parts: &RunParts<'_>, record: StepRecord) -> Result<SaveOutcome> {
        self.collect(Patience::None);
        if let Some((in_flight, _)) = &self.in_flight {
            // Saves come faster than they are written.
            in_flight.hurry();
            match self.settings.when_busy {
                WhenBusy::Skip => {
                    self.counts.skipped += 1;
                    return Ok(SaveOutcome::Skipped);
                }
                WhenBusy::Wait => {
                    self.counts.waited += 1;
                    self.collect(Patience::Endless);
                }
            }
        }
        self.report()?;
        let step = record.step;
        if let Some((&last, _)) = self.metrics.last_key_value()
            && step <= last
        {
            let message = format!("step {step} cannot be saved, since there is a checkpoint of step {last}");
            return Err(Diagnostic::new(message).help(
                "the latest checkpoint is that of the highest step. A run that goes back to an earlier one first \
                 discards those after it, with `discard_after`",
            ));
        }
        let values = record.values()?;
        let state = parts.state();
        check_paths(&state)?;
        let RunState { vars, queues } = state;
        let log_storage = log_storage(&*self.settings.folder.storage);
        let mut logs = BTreeMap::new();
        for (name, path) in &parts.logs {
            let len = log_storage.len(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Diagnostic::new(format!("the log file {} is not there", path.display()))
                    .help("create it before the first save. It is looked for in the storage of the checkpoints"),
                _ => failed("read the length of", path, &error),
            })?;
            logs.insert(name.clone(), (path.clone(), len));
        }
        let of_queues = queues.iter().map(|(_, queue)| queue);
        let mut snapshot = session.snapshot_with_queues(vars.iter().map(|(_, var)| var), of_queues)?;
        let contents = snapshot.take_queues();
        let queues = queues.into_iter().zip(contents).map(|((name, queue), content)| (name, queue, content)).collect();
        let vars = vars.into_iter().map(|(path, var)| (path, var.ty().dtype, var.init().shape().to_vec())).collect();
        let metrics: BTreeMap<String, f64> = record.metrics.iter().map(|(name, x)| (name.clone(), x.0)).collect();
        let shard_size = self.settings.shard_size;
        let save = PendingSave { step, vars, snapshot, queues, values, metrics: record.metrics, logs, shard_size };
        let mut after = self.metrics.clone();
        after.insert(step, metrics.clone());
        let retention = self.settings.retention.clone();
        // The next save, if it comes after the same time, need not wait for this one.
        let allowed = self.last_begin.map_or(Duration::MAX, |last| last.elapsed() / 2);
        self.last_begin = Some(Instant::now());
        let pace = (self.settings.write_share, allowed);
        let in_flight = SaveInFlight::start(self.folder.clone(), save, pace, move || retention.to_delete(&after))?;
        self.in_flight = Some((in_flight, metrics));
        Ok(SaveOutcome::Started)
    }

    /// Waits until the save that is being written is durable, if there is one.
    ///
    /// # Errors
    /// Fails with the error of that save, or of an earlier one that nobody has received. Then fails
    /// once if the latest save is durable but old checkpoints could not be deleted after it; a
    /// later save or the next writer tries again.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        let here = Loc::caller();
        self.collect(Patience::Endless);
        let reported = self.report().and_then(|()| self.not_deleted.take().map_or(Ok(()), Err));
        reported.map_err(|error| called_at(here, "waited for here", error))
    }

    /// Notes the outcome of the save in flight, if it has ended or ends in time.
    fn collect(&mut self, patience: Patience) {
        let Some((in_flight, metrics)) = self.in_flight.take() else { return };
        let step = in_flight.step;
        match in_flight.outcome(patience) {
            Err(in_flight) => self.in_flight = Some((in_flight, metrics)),
            Ok(Ok(finished)) => {
                self.counts.saved += 1;
                self.metrics.insert(step, metrics);
                finished.deleted.iter().for_each(|step| drop(self.metrics.remove(step)));
                self.not_deleted = finished.not_deleted.map(|error| {
                    error.at(Loc::UNKNOWN, format!("step {step} is saved, but an old checkpoint could not be deleted"))
                });
            }
            Ok(Err(error)) => {
                self.counts.failed += 1;
                // It may be there, whole, if its folder could not be renamed back.
                if self.folder.folder.steps().is_ok_and(|steps| steps.contains(&step))
                    && self.folder.folder.manifest(step).is_ok_and(|manifest| manifest.is_ok())
                {
                    self.metrics.insert(step, metrics);
                }
                self.unreported = Some(error.at(Loc::UNKNOWN, format!("step {step} is not saved")));
            }
        }
    }

    /// Returns the error of a save that nobody has received.
    fn report(&mut self) -> Result<()> {
        self.unreported.take().map_or(Ok(()), Err)
    }

    /// Sets a metric of a checkpoint that was saved before the metric was known, for
    /// [`keep_best`](CheckpointsBuilder::keep_best). The manifest stays as it is, so each process
    /// has to set it again. Returns whether there is a checkpoint of this step, or one being saved.
    #[doc(hidden)]
    pub fn set_metric(&mut self, step: u64, name: &str, value: f64) -> bool {
        self.collect(Patience::None);
        let in_flight = self.in_flight.as_mut().filter(|(save, _)| save.step == step).map(|(_, metrics)| metrics);
        let metrics = self.metrics.get_mut(&step).or(in_flight);
        metrics.map(|metrics| metrics.insert(name.to_owned(), value)).is_some()
    }

    /// Continues from the latest checkpoint: sets all variables and queues of the parts, at once,
    /// and cuts their log files. Returns `None`, and changes nothing, if there is no checkpoint.
    ///
    /// The latest checkpoint is that of the highest step whose files and manifest have the right
    /// checksums. [`Resumed::notes`] names those that were passed over, and other things that a
    /// person should know. An optimizer has variables for a model only after `prepare(&model)`.
    ///
    /// # Errors
    /// Fails if there are checkpoints but all are damaged, and if the variables or queues of the
    /// parts are not those of the checkpoint; one error lists all of them. Fails if a running call
    /// has elements of one of the queues, or room in it. Fails if the storage does: nothing is
    /// known of a checkpoint that cannot be read now, so no earlier one is taken for it.
    #[track_caller]
    pub fn resume(&mut self, session: &Session, parts: &RunParts<'_>) -> Result<Option<Resumed>> {
        self.resume_with(session, parts, &Restore::strict())
    }

    /// Continues like [`resume`](Self::resume), with a say about variables and queues that are not
    /// those of the checkpoint.
    ///
    /// # Errors
    /// Those of [`resume`](Self::resume).
    #[track_caller]
    pub fn resume_with(
        &mut self,
        session: &Session,
        parts: &RunParts<'_>,
        restore: &Restore,
    ) -> Result<Option<Resumed>> {
        let here = Loc::caller();
        self.continue_at(session, parts, restore, StepChoice::Latest)
            .map_err(|error| called_at(here, "resumed here", error))
    }

    /// Continues from the checkpoint of a step. To save again, discard those
    /// [after it](Self::discard_after).
    ///
    /// # Errors
    /// Those of [`resume`](Self::resume), and if there is no such checkpoint or it is damaged.
    #[track_caller]
    pub fn resume_step(
        &mut self,
        session: &Session,
        parts: &RunParts<'_>,
        step: u64,
        restore: &Restore,
    ) -> Result<Resumed> {
        let here = Loc::caller();
        let resumed = self.continue_at(session, parts, restore, StepChoice::Step(step));
        let resumed = resumed.map_err(|error| called_at(here, "resumed here", error))?;
        resumed.ok_or_else(|| {
            let message = format!("{} has no checkpoint of step {step}", self.folder.folder.root.display());
            Diagnostic::new(message).at(here, "resumed here").help(format!("there are those of {:?}", self.steps()))
        })
    }

    fn continue_at(
        &mut self,
        session: &Session,
        parts: &RunParts<'_>,
        restore: &Restore,
        choice: StepChoice,
    ) -> Result<Option<Resumed>> {
        self.collect(Patience::Endless);
        self.report()?;
        let resumed = resume_in(&self.folder.folder, session, parts, restore, choice)?;
        if let Some(resumed) = &resumed {
            resumed.damaged.iter().for_each(|step| drop(self.metrics.remove(step)));
            resumed.cut_logs(log_storage(&*self.settings.folder.storage))?;
        }
        Ok(resumed)
    }

    /// Deletes the checkpoints of all steps after one, so that a run can go back to it. Folders
    /// whose manifest is missing or damaged stay.
    ///
    /// # Errors
    /// Fails if the storage does.
    #[track_caller]
    pub fn discard_after(&mut self, step: u64) -> Result<()> {
        let here = Loc::caller();
        self.collect(Patience::Endless);
        self.report().map_err(|error| called_at(here, "discarded here", error))?;
        let folder = &self.folder.folder;
        let mut delete = || -> Result<()> {
            for later in folder.steps()?.into_iter().rev().take_while(|&later| later > step) {
                if folder.manifest(later)?.is_ok() {
                    folder.delete(later)?;
                }
                self.metrics.remove(&later);
            }
            folder.sweep()?
        };
        delete().map_err(|error| called_at(here, "discarded here", error))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.collect(Patience::For(self.settings.drop_timeout));
        let folder = self.folder.folder.root.display();
        if let Some((in_flight, _)) = &self.in_flight {
            in_flight.abandon();
            let (step, waited) = (in_flight.step, self.settings.drop_timeout);
            eprintln!("the save of step {step} in {folder} is abandoned: it was not written within {waited:?}");
        }
        for error in self.unreported.iter().chain(&self.not_deleted) {
            eprintln!("checkpoints in {folder}: {error}");
        }
    }
}

impl Retention {
    /// Returns the checkpoints that are not kept, the oldest first.
    fn to_delete(&self, all: &BTreeMap<u64, BTreeMap<String, f64>>) -> Vec<u64> {
        let Some(latest) = self.latest else { return Vec::new() };
        let mut kept: BTreeSet<u64> = all.keys().rev().take(latest).copied().collect();
        for (n, metric, goal) in &self.best {
            let with_metric = all.iter().filter_map(|(step, of)| Some((*of.get(metric)?, *step)));
            let mut values: Vec<(f64, u64)> = with_metric.filter(|(x, _)| !x.is_nan()).collect();
            values.sort_by(|(x, step), (y, other)| {
                let order = x.total_cmp(y);
                let better = if *goal == Goal::Min { order } else { order.reverse() };
                better.then(other.cmp(step))
            });
            kept.extend(values.iter().take(*n).map(|(_, step)| step));
        }
        all.keys().filter(|step| !kept.contains(step)).copied().collect()
    }
}
