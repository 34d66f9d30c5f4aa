//! The trainer: the settings of a run.

use crate::early_stopping::EarlyStopping;
use crate::evaluation::Evaluation;
use crate::metrics::IntoMetrics;
use crate::progress::ShowProgress;
use crate::run::{FitOutcome, StepContext, TrainingRun};
use anabranch_checkpoint::{CheckpointsBuilder, Goal, RunParts, StepRecord};
use anabranch_data::Dataset;
use anabranch_dsl::queue::{Queue, QueueElement};
use anabranch_dsl::{Module, Result};
use anabranch_runtime::Session;
use serde::Serialize;
use std::path::PathBuf;

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After each `n` steps; with 0, never.
    Steps(u64),
    /// At the end of each `n` epochs; with 0, never.
    Epochs(u64),
}

impl Every {
    /// Returns whether it is done after a number of steps, at the end of that many epochs if an
    /// epoch ends.
    pub(crate) fn is_due(self, steps: u64, epochs: Option<u64>) -> bool {
        let is_multiple = |x: u64, n: u64| n > 0 && x.is_multiple_of(n);
        match self {
            Every::Steps(n) => is_multiple(steps, n),
            Every::Epochs(n) => epochs.is_some_and(|epochs| is_multiple(epochs, n)),
        }
    }
}

/// What a run does with an earlier run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Continues the run in its folder from the latest checkpoint, or begins one if the folder has
    /// none.
    #[default]
    Auto,
    /// Begins a new run. It is an error if the folder has one.
    Never,
    /// Begins with the latest checkpoint of the run in another folder, which stays as it is. If
    /// the own folder has a run already, continues that one, so that the same program can be
    /// started again.
    From(PathBuf),
}

/// The settings of a training run, and the loop around its steps.
///
/// A step is a function of a batch. It computes, assigns variables, and returns metrics: compiled
/// functions of sessions are called in it. The trainer takes batches from a dataset, counts steps
/// and epochs, and does what is set here between two steps. [`fit`](Trainer::fit) is a loop of five
/// lines over [`start`](Trainer::start), which programs with another loop use directly.
///
/// With a [folder](Trainer::folder), a run is killed and started again as often as it must: it
/// continues from its latest checkpoint, and its variables and logs are those of a run that was not
/// killed, bit by bit, but for times.
///
/// ```
/// use anabranch::data::Dataset;
/// use anabranch::nn::{Init, Linear};
/// use anabranch::optim::{Adam, Optimizer};
/// use anabranch::prelude::*;
/// use anabranch::train::Trainer;
///
/// # let folder = std::env::temp_dir().join(format!("anabranch-trainer-{}", std::process::id()));
/// let data = Dataset::range(0..100).map(|i| ([i as f32 / 100.0], [i as f32 / 50.0]));
/// let data = data.shuffle(100, 7).batch(10);
/// let (session, init) = (Session::new()?, Init::new(0));
/// let (model, adam) = (Linear::new(&init, 1, 1), Adam::new(0.1));
/// adam.prepare(&model);
/// let step = session.function(|x: Tensor, y: Tensor| {
///     let loss = (model.forward(x) - y).square().mean();
///     adam.minimize(loss, &model);
///     loss
/// })?;
/// let outcome = Trainer::new(&session)
///     .module("model", &model)
///     .module("adam", &adam)
///     .folder(&folder)
///     .epochs(20)
///     .fit(&data, |_, batch| step.call(batch))?;
/// assert_eq!(outcome.step, 200);
/// assert!(outcome.metrics[0].1 < 1e-3);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[must_use]
pub struct Trainer<'a> {
    pub(crate) session: &'a Session,
    pub(crate) parts: RunParts<'a>,
    pub(crate) folder: Option<PathBuf>,
    /// The settings of the program as JSON, or why they cannot be stored.
    pub(crate) settings: Option<Result<serde_json::Value, String>>,
    pub(crate) resume: Resume,
    pub(crate) epochs: Option<u64>,
    pub(crate) steps: Option<u64>,
    pub(crate) evaluation: Option<(Evaluation<'a>, Every)>,
    pub(crate) monitor: Option<(String, Goal)>,
    pub(crate) early_stopping: Option<EarlyStopping>,
    pub(crate) keep_latest: usize,
    pub(crate) keep_best: usize,
    pub(crate) restore_best: bool,
    pub(crate) save_every: Every,
    pub(crate) log_every: u64,
    pub(crate) configure: Option<Box<dyn FnOnce(CheckpointsBuilder) -> CheckpointsBuilder + 'a>>,
    pub(crate) values: Option<Box<dyn Fn(StepRecord) -> StepRecord + 'a>>,
    pub(crate) progress: ShowProgress,
    pub(crate) stops_on_signals: bool,
    pub(crate) allows_non_finite: bool,
}

impl std::fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer").field("parts", &self.parts).field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl<'a> Trainer<'a> {
    /// Returns a trainer for variables of a session: one epoch, without a folder.
    pub fn new(session: &'a Session) -> Trainer<'a> {
        Trainer {
            session,
            parts: RunParts::new(),
            folder: None,
            settings: None,
            resume: Resume::Auto,
            epochs: None,
            steps: None,
            evaluation: None,
            monitor: None,
            early_stopping: None,
            keep_latest: 2,
            keep_best: 0,
            restore_best: false,
            save_every: Every::Epochs(1),
            log_every: 50,
            configure: None,
            values: None,
            progress: ShowProgress::Auto,
            stops_on_signals: false,
            allows_non_finite: false,
        }
    }

    /// Adds the variables of a module to the state of the run: models, optimizers, metrics, and
    /// whatever else steps assign. An optimizer has variables for a model only after
    /// `prepare(&model)`.
    pub fn module(mut self, name: impl Into<String>, module: &'a impl Module) -> Trainer<'a> {
        self.parts = self.parts.module(name, module);
        self
    }

    /// Adds the content of a queue to the state of the run:
    /// [`RunParts::queue`](anabranch_checkpoint::RunParts::queue).
    pub fn queue<T: QueueElement>(mut self, name: impl Into<String>, queue: &Queue<T>) -> Trainer<'a> {
        self.parts = self.parts.queue(name, queue);
        self
    }

    /// Sets the folder of the run. It has
    ///
    /// - `checkpoints/`, for [`Checkpoints`](anabranch_checkpoint::Checkpoints);
    /// - `metrics.jsonl`: [`JsonLines`](crate::JsonLines);
    /// - `tensorboard/`, with an [`EventFile`](crate::EventFile);
    /// - `settings.json`, if there are [settings](Trainer::settings).
    ///
    /// Only one process at a time can have a run in a folder.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Trainer<'a> {
        self.folder = Some(folder.into());
        self
    }

    /// Stores what makes this run another than others, such as the learning rate, in the folder. A
    /// run with other settings does not continue it: that is an error that names the differences.
    pub fn settings(mut self, settings: &impl Serialize) -> Trainer<'a> {
        self.settings = Some(serde_json::to_value(settings).map_err(|error| error.to_string()));
        self
    }

    /// Sets what is done with an earlier run, [`Resume::Auto`] by default.
    pub fn resume(mut self, resume: Resume) -> Trainer<'a> {
        self.resume = resume;
        self
    }

    /// Sets after how many epochs the run ends. The default is 1, or no end if there are
    /// [steps](Trainer::steps).
    pub fn epochs(mut self, epochs: u64) -> Trainer<'a> {
        self.epochs = Some(epochs);
        self
    }

    /// Sets after how many steps the run ends, if it does not end before.
    pub fn steps(mut self, steps: u64) -> Trainer<'a> {
        self.steps = Some(steps);
        self
    }

    /// Evaluates during the run. Names of the metrics begin with `val/` in logs.
    pub fn validate(mut self, every: Every, evaluation: Evaluation<'a>) -> Trainer<'a> {
        self.evaluation = Some((evaluation, every));
        self
    }

    /// Sets the metric that tells which step is best, such as `val/loss`. It is compared after each
    /// evaluation, or at the end of each epoch if there is none.
    pub fn monitor(mut self, metric: impl Into<String>, goal: Goal) -> Trainer<'a> {
        self.monitor = Some((metric.into(), goal));
        self
    }

    /// Ends the run when the [monitored](Trainer::monitor) metric does not improve any more.
    pub fn stop_early(mut self, stopping: EarlyStopping) -> Trainer<'a> {
        self.early_stopping = Some(stopping);
        self
    }

    /// Sets how often a checkpoint is written, at the end of each epoch by default. One is always
    /// written at the begin and at the end of a run, and with [`keep_best`](Trainer::keep_best)
    /// whenever the monitored metric is compared.
    pub fn save_every(mut self, every: Every) -> Trainer<'a> {
        self.save_every = every;
        self
    }

    /// Sets how many of the latest checkpoints are kept, 2 by default and at least 1.
    pub fn keep_latest(mut self, n: usize) -> Trainer<'a> {
        self.keep_latest = n;
        self
    }

    /// Keeps the `n` checkpoints with the best values of the [monitored](Trainer::monitor) metric,
    /// too.
    pub fn keep_best(mut self, n: usize) -> Trainer<'a> {
        self.keep_best = n;
        self
    }

    /// Sets the variables, but no queues, to those of the best step when the run ends. Keeps the
    /// best checkpoint.
    pub fn restore_best(mut self) -> Trainer<'a> {
        self.restore_best = true;
        self
    }

    /// Changes other settings of the checkpoints. A storage must also find the logs, which are
    /// local files.
    pub fn checkpoints(mut self, configure: impl FnOnce(CheckpointsBuilder) -> CheckpointsBuilder + 'a) -> Trainer<'a> {
        self.configure = Some(Box::new(configure));
        self
    }

    /// Adds values of the program to each checkpoint. After a resumption they are those of
    /// [`TrainingRun::resumed`]. The trainer has a value called `trainer`, so another one is an
    /// error.
    pub fn values(mut self, add: impl Fn(StepRecord) -> StepRecord + 'a) -> Trainer<'a> {
        self.values = Some(Box::new(add));
        self
    }

    /// Sets after how many steps the means of their metrics are logged, 50 by default. They are
    /// also logged at the end of each epoch and of the run, and with each evaluation.
    pub fn log_every(mut self, steps: u64) -> Trainer<'a> {
        self.log_every = steps;
        self
    }

    /// Sets how progress is shown.
    pub fn progress(mut self, show: ShowProgress) -> Trainer<'a> {
        self.progress = show;
        self
    }

    /// Ends the run on Ctrl-C and SIGTERM: the step is finished, a checkpoint is saved, and
    /// [`FitEnd::Signal`](crate::FitEnd::Signal) says so. A second signal exits at once. Without
    /// this call no handler is installed.
    ///
    /// A dataset that waits for its next element is not interrupted: the run ends when it has one.
    /// An evaluation ends between two batches. The run that continues from the checkpoint begins
    /// with this evaluation, so its logs are those of a run that was not ended. Loops with calls
    /// that take long, such as epochs in a graph, use a [`SignalWatch`](crate::SignalWatch).
    pub fn stop_on_signals(mut self) -> Trainer<'a> {
        self.stops_on_signals = true;
        self
    }

    /// Goes on when the metric `loss` of a step is not finite. By default that is an error which
    /// names the step, and nothing is saved after it.
    pub fn allow_non_finite(mut self) -> Trainer<'a> {
        self.allows_non_finite = true;
        self
    }

    /// Trains: calls a step function with batches until the run ends. The first argument of the
    /// function has the number of the step and the log.
    ///
    /// # Errors
    /// Fails with the first error of the dataset, of the step function or of the evaluation, if the
    /// loss is not finite, if files cannot be written, and for the reasons of
    /// [`start`](Trainer::start). The run can be resumed from its latest checkpoint.
    #[track_caller]
    pub fn fit<B: Send + 'static, R: IntoMetrics>(
        self,
        data: &Dataset<B>,
        mut step: impl FnMut(&mut StepContext, B) -> Result<R>,
    ) -> Result<FitOutcome> {
        let mut run = self.start(data)?;
        while let Some(batch) = run.next_batch()? {
            let metrics = step(run.context(), batch)?;
            run.finish_step(metrics)?;
        }
        run.finish()
    }

    /// Begins or continues the run, for a loop of your own.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    /// use anabranch::prelude::*;
    /// use anabranch::train::Trainer;
    ///
    /// let (session, sum) = (Session::new()?, Var::untrained("sum", 0.0_f32));
    /// let step = session.function(|x: Tensor| sum.set(sum.get() + x.sum()))?;
    /// let data = Dataset::range(0..10).map(|i| i as f32).batch(2);
    ///
    /// let mut run = Trainer::new(&session).module("sum", &sum).epochs(3).start(&data)?;
    /// while let Some(batch) = run.next_batch()? {
    ///     step.call(batch)?;
    ///     run.finish_step(())?;
    /// }
    /// assert_eq!(run.finish()?.step, 15);
    /// assert_eq!(session.get(&sum)?, 135.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the folder belongs to another run: if another process has it, if its settings,
    /// variables or dataset are others, or if there are logs without a checkpoint. Fails if the
    /// monitored metric is needed and not set.
    #[track_caller]
    pub fn start<B: Send + 'static>(self, data: &Dataset<B>) -> Result<TrainingRun<'a, B>> {
        TrainingRun::start(self, data)
    }
}
