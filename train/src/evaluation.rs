//! Evaluation: metrics of a whole dataset.

use crate::metrics::{IntoMetrics, MetricMeans, SKIPPED, StepMetrics};
use anabranch_data::Dataset;
use anabranch_dsl::{Module, Result};
use anabranch_runtime::Session;

/// A pass over a dataset that computes metrics, with what must be reset before it.
///
/// The metrics are the means of those of the batches, by their weights: for a mean over examples,
/// give the number of examples as the [weight](StepMetrics::weight). Metrics that are no means,
/// such as F1, have their state in variables: see [`anabranch::metrics`](anabranch_dsl::metrics).
/// They are reset by [`state`](Evaluation::state), updated by the function of the batches, and read
/// by [`result`](Evaluation::result).
///
/// Each pass has the elements of epoch 0, so that its results can be compared.
///
/// ```
/// use anabranch::data::Dataset;
/// use anabranch::metrics::Accuracy;
/// use anabranch::prelude::*;
/// use anabranch::train::{Evaluation, StepMetrics};
///
/// let data = Dataset::new(vec![([0.9_f32, 0.1], 0), ([0.4, 0.6], 1), ([0.8, 0.2], 1)]).batch(2);
/// let (session, accuracy) = (Session::new()?, Accuracy::new());
/// let update = session.function(|scores: Tensor, labels: Tensor<i32>| {
///     accuracy.update(scores, labels);
/// })?;
/// let result = session.function(|| accuracy.result())?;
/// let mut evaluation = Evaluation::new(&data, |batch| update.call(batch))
///     .state(&accuracy)
///     .result(|| Ok(StepMetrics::new().with("accuracy", result.call(())?)));
/// for _ in 0..2 {
///     assert_eq!(evaluation.run(&session)?.get("accuracy"), Some(2.0 / 3.0));
/// }
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[must_use]
pub struct Evaluation<'a> {
    resets: Vec<Reset<'a>>,
    pass: Box<EvaluationPass<'a>>,
    results: Vec<Box<dyn FnMut() -> Result<StepMetrics> + 'a>>,
}

/// A pass over the batches, which asks before each batch whether to stop. Returns the means and the
/// number of elements that were left out, or nothing if it was stopped.
type EvaluationPass<'a> = dyn FnMut(&dyn Fn() -> bool) -> Result<Option<(MetricMeans, u64)>> + 'a;

/// Sets variables of a session to their initial values.
type Reset<'a> = Box<dyn Fn(&Session) -> Result<()> + 'a>;

impl std::fmt::Debug for Evaluation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluation").finish_non_exhaustive()
    }
}

impl<'a> Evaluation<'a> {
    /// Returns the evaluation of a dataset by a function of its elements, which are batches.
    pub fn new<B: Send + 'static, R: IntoMetrics>(
        data: &Dataset<B>,
        mut step: impl FnMut(B) -> Result<R> + 'a,
    ) -> Evaluation<'a> {
        let data = data.clone();
        let pass = move |stops: &dyn Fn() -> bool| {
            let (mut means, mut batches) = (MetricMeans::default(), data.epoch(0));
            while !stops() {
                match batches.next() {
                    Some(batch) => means.add(&step(batch?)?.into_metrics()?),
                    None => return Ok(Some((means, batches.skipped()))),
                }
            }
            Ok(None)
        };
        Evaluation { resets: Vec::new(), pass: Box::new(pass), results: Vec::new() }
    }

    /// Sets the variables of a module to their initial values before each pass.
    pub fn state(mut self, module: &'a impl Module) -> Evaluation<'a> {
        self.resets.push(Box::new(move |session| {
            let initial = module.vars().into_iter().map(|(path, var)| (path, var.init().clone()));
            session.load_state(module, &initial.collect::<Vec<_>>())
        }));
        self
    }

    /// Adds metrics that are read after the pass.
    pub fn result<R: IntoMetrics>(mut self, mut read: impl FnMut() -> Result<R> + 'a) -> Evaluation<'a> {
        self.results.push(Box::new(move || read()?.into_metrics()));
        self
    }

    /// Runs one pass, and returns the metrics. `session` is that of the variables of
    /// [`state`](Evaluation::state). If elements were left out by [`Dataset::skip_errors`], their
    /// number is the metric `skipped`.
    ///
    /// # Errors
    /// Fails with the first error of the dataset or of the functions.
    pub fn run(&mut self, session: &Session) -> Result<StepMetrics> {
        Ok(self.run_until(session, || false)?.expect("nothing stops it"))
    }

    /// Runs one pass like [`run`](Evaluation::run), and asks before each batch whether to stop, for
    /// example because of a [signal](crate::SignalWatch). Returns `None` then: the means of a part
    /// of the dataset say little. The next pass begins anew.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    /// use anabranch::prelude::*;
    /// use anabranch::train::{Evaluation, SignalWatch};
    ///
    /// let data = Dataset::range(0..4).map(|i| i as f32);
    /// let session = Session::new()?;
    /// let mut evaluation = Evaluation::new(&data, |x| Ok(x));
    /// let signals = SignalWatch::start()?;
    /// match evaluation.run_until(&session, || signals.caught().is_some())? {
    ///     Some(metrics) => assert_eq!(metrics.get("loss"), Some(1.5)),
    ///     None => println!("stopped by {:?}", signals.caught()),
    /// }
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Fails with the first error of the dataset or of the functions.
    pub fn run_until(&mut self, session: &Session, stops: impl Fn() -> bool) -> Result<Option<StepMetrics>> {
        self.resets.iter().try_for_each(|reset| reset(session))?;
        let Some((mut means, skipped)) = (self.pass)(&stops)? else { return Ok(None) };
        let mut metrics = means.take().into_iter().fold(StepMetrics::new(), |all, (name, x)| all.with(name, x));
        for read in &mut self.results {
            metrics = read()?.iter().fold(metrics, |all, (name, x)| all.with(name, x));
        }
        if skipped > 0 && metrics.get(SKIPPED).is_none() {
            metrics = metrics.with(SKIPPED, skipped);
        }
        Ok(Some(metrics))
    }
}
