//! A run: the state of the loop, and what is done between two steps.
//!
//! - **R1** A checkpoint is taken between two steps, after all that is done there. So the loop goes
//!   on from it as if it had not ended.
//! - **R2** The position in the data is that behind the batch of the last step, or the begin of the
//!   next epoch if that was the last batch. Whether it was is known before anything is done: the
//!   next batch is taken first.
//! - **R3** What decides about the loop is in [`LoopState`], which is part of checkpoints.

use crate::early_stopping::StoppingState;
use crate::log::EventFile;
use crate::metrics::{IntoMetrics, LOSS, MetricMeans, SKIPPED, StepMetrics};
use crate::progress::FitProgress;
use crate::run_folder::{OpenedFolder, RunFolder, STATE};
use crate::signals::{SignalWatch, StopSignal};
use crate::trainer::{Every, Resume, Trainer};
use anabranch_checkpoint::{Goal, Restore, Resumed, RunParts, SaveOutcome, StepRecord, called_at};
use anabranch_data::{Dataset, DatasetIter, DatasetPosition};
use anabranch_dsl::{Diagnostic, ErrorKind, Loc, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A step of a run, as its step function sees it.
#[derive(Debug)]
pub struct StepContext {
    step: u64,
    epoch: u64,
    events: Option<EventFile>,
}

impl StepContext {
    /// Returns the number of steps done before this one.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the event file of the run, for histograms, images, texts and the graph. It is `None`
    /// if the run has no folder.
    pub fn events(&mut self) -> Option<&mut EventFile> {
        self.events.as_mut()
    }
}

/// The best step of a run by its monitored metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestStep {
    /// How many steps were done.
    pub step: u64,
    /// The value of the metric.
    pub value: f64,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FitEnd {
    /// All epochs or steps are done.
    Completed,
    /// The monitored metric did not improve any more.
    EarlyStopped,
    /// A signal asked for it. An evaluation that was running is done again by the process that
    /// continues the run.
    Signal(StopSignal),
    /// The loop was left before its end, and [`TrainingRun::finish`] called.
    Left,
}

/// The outcome of a run, or of its last part.
#[derive(Clone, Debug, PartialEq)]
pub struct FitOutcome {
    /// Why it ended.
    pub end: FitEnd,
    /// How many steps are done, with those of earlier processes.
    pub step: u64,
    /// How many epochs are done.
    pub epochs: u64,
    /// The best step, if there is a monitored metric.
    pub best: Option<BestStep>,
    /// The metrics that were logged last, in this process or before.
    pub metrics: Vec<(String, f64)>,
    /// How many elements of the data were left out by [`Dataset::skip_errors`], up to the last
    /// step, in all epochs and with those of earlier processes.
    pub skipped: u64,
}

/// The outcome of work that a signal may end.
enum Stopped<T> {
    By(StopSignal),
    Not(T),
}

/// Whether a save may be left out while another one is being written, if the settings of the
/// checkpoints say so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SaveNeed {
    Required,
    Optional,
}

/// The state of a loop between two steps, apart from variables and logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoopState {
    /// How many epochs are done.
    epoch: u64,
    position: DatasetPosition,
    /// The metrics of the steps that are not logged yet.
    means: MetricMeans,
    stopping: StoppingState,
    best: Option<BestStep>,
    /// The metric that `stopping` and `best` are about.
    #[serde(default)]
    monitored: Option<(String, Goal)>,
    logged: Vec<(String, f64)>,
    /// The step whose metrics `logged` are.
    #[serde(default)]
    logged_at: Option<u64>,
    /// How many elements were left out because of errors: in epochs that are done, and up to the
    /// position.
    #[serde(default)]
    skipped: [u64; 2],
    /// The work after the last step that was not done, because a signal ended its evaluation.
    #[serde(default)]
    due: Option<DueWork>,
    /// The monitored metric of steps whose checkpoints lack it, because a signal ended the
    /// evaluation before they were saved.
    #[serde(default)]
    unrecorded: BTreeMap<u64, (String, f64)>,
}

/// The work after a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DueWork {
    /// The epoch of the step.
    epoch: u64,
    is_epoch_end: bool,
    /// Whether the step was finished before it was known that the epoch ends with it. What is due
    /// after a number of steps is done then.
    #[serde(default)]
    is_late: bool,
}

impl DueWork {
    /// Returns whether something is still to be done after a step, at the end of that many epochs
    /// if an epoch ends.
    fn includes(self, every: Every, step: u64, epochs_done: Option<u64>) -> bool {
        every.is_due(step, epochs_done) && !(self.is_late && every.is_due(step, None))
    }
}

impl LoopState {
    fn new(position: DatasetPosition) -> LoopState {
        LoopState {
            epoch: 0,
            position,
            means: MetricMeans::default(),
            stopping: StoppingState::default(),
            best: None,
            monitored: None,
            logged: Vec::new(),
            logged_at: None,
            skipped: [0; 2],
            due: None,
            unrecorded: BTreeMap::new(),
        }
    }

    /// Returns whether the values that were compared are those of another metric.
    pub fn monitors_other_than(&self, monitor: Option<&(String, Goal)>) -> bool {
        matches!((&self.monitored, monitor), (Some(old), Some(new)) if old != new)
    }

    /// Returns the state as if the monitored metric had not been compared yet.
    pub fn without_comparisons(self) -> LoopState {
        LoopState {
            stopping: StoppingState::default(),
            best: None,
            monitored: None,
            unrecorded: BTreeMap::new(),
            ..self
        }
    }
}

/// A run whose loop is that of the program: see [`Trainer::start`].
pub struct TrainingRun<'a, B> {
    trainer: Trainer<'a>,
    data: Dataset<B>,
    /// The pass over the epoch, once a batch of it was asked for.
    batches: Option<DatasetIter<B>>,
    /// The result of taking the next batch, if it was taken ahead.
    next: Option<Option<Result<B>>>,
    /// Whether the program has a batch whose step is not finished.
    has_batch: bool,
    /// Whether an element of the epoch was taken, or an error in its place.
    has_begun: bool,
    context: StepContext,
    state: LoopState,
    folder: Option<RunFolder>,
    /// The modules and the logs.
    parts: RunParts<'a>,
    resumed: Option<Resumed>,
    /// The step of the last checkpoint.
    saved: Option<u64>,
    end: Option<FitEnd>,
    /// Whether a step was not finished because of an error. Then the state may be half done.
    has_failed: bool,
    progress: FitProgress,
    signals: Option<SignalWatch>,
}

impl<B> std::fmt::Debug for TrainingRun<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainingRun")
            .field("step", &self.context.step)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<'a, B: Send + 'static> TrainingRun<'a, B> {
    #[track_caller]
    pub(crate) fn start(trainer: Trainer<'a>, data: &Dataset<B>) -> Result<TrainingRun<'a, B>> {
        let here = Loc::caller();
        TrainingRun::opened(trainer, data).map_err(|error| called_at(here, "started here", error))
    }

    #[track_caller]
    fn opened(mut trainer: Trainer<'a>, data: &Dataset<B>) -> Result<TrainingRun<'a, B>> {
        if trainer.epochs.is_none() && trainer.steps.is_none() {
            trainer.epochs = Some(1);
        }
        if trainer.restore_best {
            trainer.keep_best = trainer.keep_best.max(1);
        }
        trainer.check()?;
        let signals = if trainer.stops_on_signals { Some(SignalWatch::start()?) } else { None };
        let opened = match trainer.folder.take() {
            None => OpenedFolder::none(trainer.parts.clone()),
            Some(path) => OpenedFolder::open(&mut trainer, &path)?,
        };
        let OpenedFolder { folder, events, parts, resumed, is_new } = opened;
        let (resumed, state) = resumed.unzip();
        let step = resumed.as_ref().map_or(0, Resumed::step);
        let (batches, state) = match state {
            // A run that is over takes nothing from the dataset.
            Some(state) if trainer.is_over(step, state.epoch) => (None, state),
            Some(state) => (Some(data.resume(&state.position)?), state),
            None => (None, LoopState::new(data.start(0))),
        };
        let monitored = trainer.monitor.clone().or(state.monitored);
        let state = LoopState { monitored, ..state };
        let of_epochs = trainer.epochs.and_then(|epochs| Some(epochs.saturating_mul(data.len()?)));
        let n_steps = of_epochs.into_iter().chain(trainer.steps).min();
        let progress = FitProgress::new(trainer.progress, step, n_steps);
        for note in resumed.iter().flat_map(|resumed| &resumed.notes) {
            progress.note(note);
        }
        let mut run = TrainingRun {
            data: data.clone(),
            batches,
            next: None,
            has_batch: false,
            has_begun: !state.position.is_start(),
            context: StepContext { step, epoch: state.epoch, events },
            end: None,
            has_failed: false,
            saved: (!is_new).then_some(step),
            state,
            folder,
            parts,
            resumed,
            progress,
            signals,
            trainer,
        };
        if is_new {
            // Before any log, so that the logs are part of a checkpoint from their begin.
            run.save(&[], SaveNeed::Required)?;
            if let Some(folder) = &mut run.folder {
                folder.checkpoints.wait()?;
            }
        }
        run.end = run.end_by_count();
        if let Some(due) = run.state.due.take() {
            run.finish_due(due)?;
        }
        run.set_unrecorded();
        Ok(run)
    }

    /// Returns the step that is next, with the log.
    pub fn context(&mut self) -> &mut StepContext {
        &mut self.context
    }

    /// Returns the checkpoint that the run continues from, with the [values](Trainer::values) of
    /// the program.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// Returns the batch of the next step, or `None` if the run has ended, also by an error of
    /// [`finish_step`](TrainingRun::finish_step).
    ///
    /// # Errors
    /// Fails if the batch cannot be made. The next call returns the batch behind it.
    #[track_caller]
    pub fn next_batch(&mut self) -> Result<Option<B>> {
        let here = Loc::caller();
        if self.end.is_some() || self.has_failed {
            return Ok(None);
        }
        loop {
            let batches = self.batches.get_or_insert_with(|| self.data.epoch(self.state.epoch));
            match self.next.take().unwrap_or_else(|| batches.next()) {
                Some(batch) => {
                    (self.has_batch, self.has_begun) = (batch.is_ok(), true);
                    return batch.map(Some).map_err(|error| called_at(here, "asked for here", error));
                }
                // The last step did not look for the end, or errors were behind it.
                None if self.has_begun => {
                    let epoch = self.state.epoch;
                    self.end_epoch();
                    self.end = self.end_by_count();
                    self.finish_due(DueWork { epoch, is_epoch_end: true, is_late: true }).map_err(|error| {
                        self.has_failed = true;
                        called_at(here, "the epoch ends here", error)
                    })?;
                    if self.end.is_some() {
                        return Ok(None);
                    }
                }
                None => {
                    let message = format!("the dataset has no elements in epoch {}", self.state.epoch);
                    return Err(Diagnostic::new(message).at(here, "asked for here"));
                }
            }
        }
    }

    /// Goes on to the next epoch. It is not opened yet: a run that ends takes nothing from it.
    fn end_epoch(&mut self) {
        let skipped = self.batches.take().map_or(0, |batches| batches.skipped());
        // With those behind the last element.
        self.state.skipped = [self.state.skipped[0] + skipped; 2];
        self.state.epoch += 1;
        self.context.epoch = self.state.epoch;
        self.state.position = self.data.start(self.state.epoch);
        (self.next, self.has_begun) = (None, false);
    }

    /// Notes that the step of the last batch is done, with its metrics. Then does what is due:
    /// logs, evaluates, compares the monitored metric, saves a checkpoint, ends the run. The next
    /// batch is taken before, to know whether the epoch ends, unless the run ends.
    ///
    /// # Errors
    /// Fails if there is no batch since the last step, if the metric `loss` is not finite, if the
    /// evaluation fails, or if a file cannot be written. A checkpoint is written beside the next
    /// steps: its error is that of a later call. The run is over then, and nothing is saved any
    /// more.
    #[track_caller]
    pub fn finish_step(&mut self, metrics: impl IntoMetrics) -> Result<()> {
        let here = Loc::caller();
        self.finish_one(metrics).map_err(|error| {
            self.has_failed = true;
            called_at(here, "the step ends here", error)
        })
    }

    #[track_caller]
    fn finish_one(&mut self, metrics: impl IntoMetrics) -> Result<()> {
        let metrics = metrics.into_metrics()?;
        if !std::mem::take(&mut self.has_batch) {
            let error = Diagnostic::new("a step ends without a batch: `finish_step` was called twice, or too early");
            return Err(error.help("call it once for each batch of `next_batch`"));
        }
        let epoch = self.state.epoch;
        self.context.step += 1;
        let step = self.context.step;
        let loss = metrics.get(LOSS);
        let is_checked = !self.trainer.allows_non_finite && metrics.counts();
        if let Some(loss) = loss.filter(|loss| is_checked && !loss.is_finite()) {
            return Err(not_finite(step, loss, self.saved));
        }
        self.state.means.add(&metrics);
        let batches = self.batches.as_ref().expect("the batch is of this pass");
        self.state.position = batches.position();
        self.state.skipped[1] = self.state.skipped[0] + batches.skipped();
        // A run that ends takes nothing from a source that is not read again, such as a queue.
        let ends = self.trainer.steps.is_some_and(|steps| step >= steps) && self.data.len().is_none();
        if !ends && self.signal().is_none() {
            self.next = self.batches.as_mut().map(Iterator::next);
        }
        let is_epoch_end = matches!(self.next, Some(None));
        if is_epoch_end {
            self.end_epoch();
        }
        self.end = self.end_by_count();
        let (n_epochs, skipped) = (self.trainer.epochs, self.state.skipped[1]);
        self.progress.update(step, || {
            let of = n_epochs.map_or(String::new(), |n| format!("/{n}"));
            let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
            let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
            format!("epoch {}{of}{loss}{skipped}", epoch + 1)
        });
        self.finish_due(DueWork { epoch, is_epoch_end, is_late: false })
    }

    /// Does what is due after a step. If a signal ends the evaluation, all of it stays due.
    #[track_caller]
    fn finish_due(&mut self, due: DueWork) -> Result<()> {
        let (DueWork { epoch, is_epoch_end, .. }, step) = (due, self.context.step);
        let epochs_done = is_epoch_end.then_some(self.state.epoch);
        let validates =
            self.trainer.evaluation.as_ref().is_some_and(|(_, every)| due.includes(*every, step, epochs_done));
        let is_logged = due.includes(Every::Steps(self.trainer.log_every), step, None);
        if is_logged || is_epoch_end || validates || self.end.is_some() {
            let found = match validates {
                true => Some(self.evaluate()?),
                false => None,
            };
            if let Some(Stopped::By(signal)) = found {
                (self.state.due, self.end) = (Some(due), Some(FitEnd::Signal(signal)));
                return self.save(&[], SaveNeed::Required);
            }
            let mut values = self.state.means.take();
            if let Some(Stopped::Not(found)) = found {
                values.extend(found.iter().map(|(name, value)| (format!("val/{name}"), value)));
            }
            self.log_new(epoch, values)?;
        }
        let compares = validates || self.trainer.evaluation.is_none() && is_epoch_end;
        let monitored = if compares { self.compare()? } else { None };
        if let Some(monitored) = monitored.clone().filter(|_| self.saved == Some(step)) {
            self.state.unrecorded.insert(step, monitored);
            self.set_unrecorded();
        }
        if self.end.is_none() {
            self.end = self.end_by_state();
        }
        let is_due = due.includes(self.trainer.save_every, step, epochs_done);
        if self.end.is_some() || monitored.is_some() && self.trainer.keep_best > 0 {
            self.save(monitored.as_slice(), SaveNeed::Required)?;
        } else if is_due {
            self.save(monitored.as_slice(), SaveNeed::Optional)?;
        }
        Ok(())
    }

    /// Runs the evaluation, unless a signal comes.
    fn evaluate(&mut self) -> Result<Stopped<StepMetrics>> {
        let (evaluation, _) = self.trainer.evaluation.as_mut().expect("there is one that is due");
        let caught = || self.signals.as_ref().and_then(SignalWatch::caught);
        match (evaluation.run_until(self.trainer.session, || caught().is_some()), caught()) {
            (Ok(None), Some(signal)) => Ok(Stopped::By(signal)),
            // A call that the signal has cancelled.
            (Err(error), Some(signal)) if error.kind == ErrorKind::Cancelled => Ok(Stopped::By(signal)),
            (found, _) => Ok(Stopped::Not(found?.expect("only a signal ends it"))),
        }
    }

    /// Sets the metrics of checkpoints that lack them, so that the best ones are kept. Forgets the
    /// metrics of checkpoints that are no longer there.
    fn set_unrecorded(&mut self) {
        let Some(folder) = &mut self.folder else { return };
        let checkpoints = &mut folder.checkpoints;
        self.state.unrecorded.retain(|&step, (name, value)| checkpoints.set_metric(step, name, *value));
    }

    /// Writes metrics to the logs, and keeps them with those that were logged after this step.
    #[track_caller]
    fn log_new(&mut self, epoch: u64, values: Vec<(String, f64)>) -> Result<()> {
        let step = Some(self.context.step);
        let has_log = self.state.logged_at == step;
        if let Some(twice) = (1..values.len()).find(|&i| values[..i].iter().any(|(name, _)| *name == values[i].0)) {
            let message = format!("the steps and the evaluation both have a metric `{}`", values[twice].0);
            return Err(Diagnostic::new(message).help("names of the evaluation begin with `val/`"));
        }
        if !(has_log && values.is_empty()) {
            self.log(epoch, &values)?;
        }
        if !has_log {
            self.state.logged.clear();
        }
        self.state.logged.retain(|(old, _)| values.iter().all(|(name, _)| name != old));
        self.state.logged.extend(values);
        self.state.logged_at = step;
        Ok(())
    }

    /// Writes metrics to the logs, and the number of elements that were left out if there are some.
    #[track_caller]
    fn log(&mut self, epoch: u64, values: &[(String, f64)]) -> Result<()> {
        let step = self.context.step;
        let skipped = (SKIPPED.to_owned(), self.state.skipped[1] as f64);
        let is_logged = skipped.1 > 0.0 && values.iter().all(|(name, _)| *name != skipped.0);
        let values = &[values, if is_logged { std::slice::from_ref(&skipped) } else { &[] }].concat();
        if let Some(folder) = self.folder.as_mut().filter(|_| !values.is_empty()) {
            folder.json.write(step, epoch, values.iter().map(|(name, value)| (name.as_str(), *value)))?;
        }
        let Some(events) = &mut self.context.events else { return Ok(()) };
        for (name, value) in values {
            events.scalar(step, name, *value)?;
        }
        Ok(())
    }

    /// Compares the monitored metric, which was just logged, with the best value. Returns it.
    fn compare(&mut self) -> Result<Option<(String, f64)>> {
        let Some((metric, goal)) = &self.trainer.monitor else { return Ok(None) };
        let Some((_, value)) = self.state.logged.iter().find(|(name, _)| name == metric) else {
            let names: Vec<_> = self.state.logged.iter().map(|(name, _)| format!("`{name}`")).collect();
            let message = format!("step {} has no metric `{metric}`, which is monitored", self.context.step);
            return Err(Diagnostic::new(message).help(format!("there are {}", names.join(", "))));
        };
        let (step, value) = (self.context.step, *value);
        // Of equal values the later one is better, as it is for checkpoints.
        let is_best = self.state.best.is_none_or(|best| match goal {
            Goal::Min => value <= best.value,
            Goal::Max => value >= best.value,
        });
        if is_best && !value.is_nan() {
            self.state.best = Some(BestStep { step, value });
        }
        if let Some(stopping) = &self.trainer.early_stopping {
            stopping.count(*goal, value, &mut self.state.stopping);
        }
        Ok(Some((metric.clone(), value)))
    }

    /// Returns whether the run ends because all is done.
    fn end_by_count(&self) -> Option<FitEnd> {
        if self.trainer.is_over(self.context.step, self.state.epoch) {
            Some(FitEnd::Completed)
        } else {
            self.end_by_patience()
        }
    }

    fn end_by_patience(&self) -> Option<FitEnd> {
        let stopping = self.trainer.early_stopping.as_ref()?;
        stopping.is_over(&self.state.stopping).then_some(FitEnd::EarlyStopped)
    }

    /// Returns whether the run ends because of the metric, or because of a signal.
    fn end_by_state(&self) -> Option<FitEnd> {
        self.end_by_patience().or_else(|| self.signal().map(FitEnd::Signal))
    }

    /// Returns the signal that ends the run.
    fn signal(&self) -> Option<StopSignal> {
        self.signals.as_ref().and_then(SignalWatch::caught)
    }

    /// Saves a checkpoint, unless there is one of this step.
    #[track_caller]
    fn save(&mut self, metrics: &[(String, f64)], need: SaveNeed) -> Result<()> {
        let step = self.context.step;
        let Some(folder) = self.folder.as_mut().filter(|_| self.saved.is_none_or(|saved| saved < step)) else {
            return Ok(());
        };
        let mut record = metrics.iter().fold(StepRecord::new(step), |record, (name, x)| record.metric(name, *x));
        if let Some(add) = &self.trainer.values {
            record = add(record);
            if record.value_names().any(|name| name == STATE) {
                let error =
                    Diagnostic::new(format!("a value of the program is called `{STATE}`, as the trainer's own"));
                return Err(error.help("give it another name in `Trainer::values`"));
            }
        }
        let record = record.value(STATE, &self.state);
        let (session, checkpoints) = (self.trainer.session, &mut folder.checkpoints);
        let mut outcome = checkpoints.save(session, &self.parts, record.clone())?;
        if outcome == SaveOutcome::Skipped && need == SaveNeed::Required {
            checkpoints.wait()?;
            outcome = checkpoints.save(session, &self.parts, record)?;
        }
        if outcome == SaveOutcome::Started {
            self.saved = Some(step);
        }
        Ok(())
    }

    /// Ends: saves a checkpoint of the last step if there is none, waits until it is durable, and
    /// restores the best step if that was asked for. A loop may be left before its end.
    ///
    /// # Errors
    /// Fails if a checkpoint could not be written, or the best one not be read.
    #[track_caller]
    pub fn finish(mut self) -> Result<FitOutcome> {
        let here = Loc::caller();
        self.finish_all().map_err(|error| called_at(here, "finished here", error))
    }

    #[track_caller]
    fn finish_all(&mut self) -> Result<FitOutcome> {
        if !self.has_failed {
            self.save(&[], SaveNeed::Required)?;
        }
        if let Some(folder) = &mut self.folder {
            folder.checkpoints.wait()?;
            if let Some(best) = self.state.best.filter(|_| self.trainer.restore_best) {
                // Without logs, which must not be cut.
                let (session, parts) = (self.trainer.session, &self.trainer.parts);
                folder.checkpoints.resume_step(session, parts, best.step, &Restore::strict().keep_queues())?;
            }
        }
        self.progress.finish();
        Ok(FitOutcome {
            end: self.end.unwrap_or(FitEnd::Left),
            step: self.context.step,
            epochs: self.state.epoch,
            best: self.state.best,
            metrics: self.state.logged.clone(),
            skipped: self.state.skipped[1],
        })
    }
}

impl Trainer<'_> {
    /// Returns whether all steps or all epochs are done.
    fn is_over(&self, step: u64, epoch: u64) -> bool {
        self.steps.is_some_and(|steps| step >= steps) || self.epochs.is_some_and(|epochs| epoch >= epochs)
    }

    /// Fails if one setting needs another one that is not there.
    fn check(&self) -> Result<()> {
        let needs_monitor = [
            ("stop_early", self.early_stopping.is_some()),
            ("restore_best", self.restore_best),
            ("keep_best", self.keep_best > 0),
        ];
        let needs_folder = [
            ("restore_best", self.restore_best),
            ("keep_best", self.keep_best > 0),
            ("resume", self.resume != Resume::Auto),
        ];
        let lacking = |needs: &[(&'static str, bool)]| needs.iter().find(|(_, is_set)| *is_set).map(|(what, _)| *what);
        let error = |what: &str, other: &str| Err(Diagnostic::new(format!("`{what}` needs `{other}`")));
        match (lacking(&needs_monitor), lacking(&needs_folder)) {
            (Some(what), _) if self.monitor.is_none() => error(what, "monitor"),
            (_, Some(what)) if self.folder.is_none() => error(what, "folder"),
            _ => Ok(()),
        }
    }
}

/// Returns the error that a loss is not finite.
fn not_finite(step: u64, loss: f64, saved: Option<u64>) -> Diagnostic {
    let last = saved.map_or(String::new(), |saved| format!(" The last checkpoint is that of step {saved}."));
    Diagnostic::new(format!("the loss of step {step} is {loss}")).of_kind(ErrorKind::AssertionFailed).help(format!(
        "`Session::builder().check_finite(true)` finds the operation, and ends a step before it assigns anything. \
         Clip gradients or lower the rate.{last}"
    ))
}
