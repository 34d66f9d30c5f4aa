//! Learning rates that change with the step, as functions of its number.
//!
//! | function | rate |
//! |---|---|
//! | [`linear`], [`polynomial`], [`cosine`] | from one value to another in a number of steps, and then the latter |
//! | [`piecewise`], [`staircase`] | constant between jumps |
//! | [`exponential`] | multiplied by the same factor in each step |
//! | [`cosine_restarts`], [`one_cycle`] | several phases |
//! | [`Plateau`] | reduced when a metric no longer improves; the only one with a state |
//!
//! Each rate is a closed form of the step, so a schedule has no state and no accumulated rounding,
//! and a resumed run continues it. The step is an `i64` from 0, and one
//! below counts as 0. It comes from the optimizer, such
//! as [`Adam::steps`](super::Adam::steps), or is any tensor, such as a variable of your own. A
//! number is a constant rate. Rates combine like other tensors: a product for a warm-up, `select`
//! for a sequence.
//!
//! ```
//! use anabranch::optim::{Adam, Lion, Optimizer, schedule};
//! use anabranch::prelude::*;
//!
//! let (w, adam) = (Var::<f32>::new("w", 1.0), Adam::new(0.1));
//! let session = Session::new()?;
//! let step = session.function(|| {
//!     let t = adam.steps();
//!     let rate = schedule::linear(t, 0.0, 1.0, 10) * schedule::cosine(t, adam.rate(), 0.0, 100);
//!     adam.minimize_at(rate, w.get().square(), &w);
//!     rate
//! })?;
//! assert_eq!(step.call(())?, 0.0);
//! for _ in 1..100 {
//!     assert!(step.call(())?.item() > 0.0);
//! }
//! assert_eq!(step.call(())?, 0.0);
//!
//! // An optimizer that does not count, and a sequence: constant, then falling from step 50 on.
//! let (lion, count) = (Lion::new(0.01), Var::<i64>::untrained("count", 0));
//! let step = session.function(|| {
//!     let t = count.get();
//!     count.set(t + 1);
//!     let falling = schedule::exponential(t - 50, lion.rate(), 0.9, 1);
//!     let rate = t.less(50).select(lion.rate(), falling);
//!     lion.minimize_at(rate, w.get().square(), &w);
//!     rate
//! })?;
//! assert_eq!(step.call(())?, 0.01);
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```

use super::unconstrained;
use crate::control::while_loop;
use crate::nn::module;
use crate::trace::{called_at, fail};
use crate::{Diagnostic, Loc, Operand, Tensor, Var, scalar};
use std::f64::consts::FRAC_PI_2;

/// Returns a rate that goes from `from` to `to` in a straight line, and stays there after `steps`
/// steps. PyTorch's `LinearLR` with `from` as its start factor and `to` as its end factor.
///
/// # Errors
/// Aborts the trace if `steps` is less than 1.
#[track_caller]
pub fn linear(step: impl Operand<i64>, from: f32, to: f32, steps: i64) -> Tensor {
    let step = step.into_tensor();
    called_at(at_least("steps", steps, 1), || between(from, to, remaining(step, steps)))
}

/// Returns a rate that goes from `from` to `to` by a power of the remaining steps, and stays there:
/// `to + (from - to) * (1 - step / steps)^power`. Keras's `PolynomialDecay`; with a `to` of 0,
/// PyTorch's `PolynomialLR`.
///
/// # Errors
/// Aborts the trace if `steps` is less than 1.
#[track_caller]
pub fn polynomial(step: impl Operand<i64>, from: f32, to: f32, steps: i64, power: f32) -> Tensor {
    let step = step.into_tensor();
    called_at(at_least("steps", steps, 1), || between(from, to, remaining(step, steps).pow(power)))
}

/// Returns a rate that goes from `from` to `to` along half a period of the cosine (Loshchilov and
/// Hutter 2017), and stays there: `to + (from - to) * (1 + cos(pi * step / steps)) / 2`. PyTorch's
/// `CosineAnnealingLR`, whose rate rises again after `steps` steps.
///
/// # Errors
/// Aborts the trace if `steps` is less than 1.
#[track_caller]
pub fn cosine(step: impl Operand<i64>, from: f32, to: f32, steps: i64) -> Tensor {
    let step = step.into_tensor();
    called_at(at_least("steps", steps, 1), || between(from, to, half_cosine(remaining(step, steps))))
}

/// Returns a rate that goes from `from` to `to` like [`cosine`], again and again. The first time
/// takes `first` steps, and each further time `factor` times as many. PyTorch's
/// `CosineAnnealingWarmRestarts`.
///
/// # Errors
/// Aborts the trace if `first` or `factor` is less than 1.
#[track_caller]
pub fn cosine_restarts(step: impl Operand<i64>, from: f32, to: f32, first: i64, factor: i64) -> Tensor {
    let step = step.into_tensor();
    at_least("first", first, 1);
    called_at(at_least("factor", factor, 1), || {
        let remaining = unconstrained(|| {
            let step = step.maximum(0);
            let (since, length) = if factor == 1 {
                (step % first, scalar(first))
            } else {
                // The last period has no end.
                let longer = |length: Tensor<i64>| length.less(i64::MAX / factor).select(length * factor, i64::MAX);
                let next = |(since, length): (Tensor<i64>, Tensor<i64>)| (since - length, longer(length));
                while_loop((step, scalar(first)), |(since, length)| since.greater_equal(length), next)
            };
            (length - since).cast::<f32>() / length.cast::<f32>()
        });
        between(from, to, half_cosine(remaining))
    })
}

/// Returns a rate that is constant between boundaries: `values[i]` before step `boundaries[i]`, and
/// the last value from the last boundary on. PyTorch's `MultiStepLR` with values in place of
/// factors. In Keras's `PiecewiseConstantDecay`, a boundary is the last step of the old value.
///
/// # Errors
/// Aborts the trace unless there is one value more than boundaries, which must increase.
#[track_caller]
pub fn piecewise(step: impl Operand<i64>, boundaries: &[i64], values: &[f32]) -> Tensor {
    let (step, loc) = (step.into_tensor(), Loc::caller());
    if values.len() != boundaries.len() + 1 || !boundaries.is_sorted_by(|a, b| a < b) {
        let (n, m) = (values.len(), boundaries.len());
        let error = Diagnostic::new(format!("a piecewise rate has {n} values and {m} boundaries"));
        let error = error.at(loc, format!("the boundaries are {boundaries:?}"));
        fail(error.help("give increasing boundaries, and one value more than boundaries"));
    }
    called_at(loc, || {
        let pieces = boundaries.iter().zip(&values[1..]);
        pieces.fold(scalar(values[0]), |rate, (&boundary, &value)| {
            unconstrained(|| step.less(boundary)).select(rate, value)
        })
    })
}

/// Returns a rate that is multiplied by `factor` every `steps` steps:
/// `from * factor^floor(step / steps)`. PyTorch's `StepLR`.
///
/// # Errors
/// Aborts the trace if `steps` is less than 1 or `factor` not positive.
#[track_caller]
pub fn staircase(step: impl Operand<i64>, from: f32, factor: f64, steps: i64) -> Tensor {
    let step = step.into_tensor();
    at_least("steps", steps, 1);
    called_at(positive(factor), || power(factor, unconstrained(|| (step.maximum(0) / steps).cast::<f32>())) * from)
}

/// Returns a rate that is multiplied by `factor` in `steps` steps, a little in each:
/// `from * factor^(step / steps)`. Keras's `ExponentialDecay`; with 1 for `steps`, PyTorch's
/// `ExponentialLR`.
///
/// # Errors
/// Aborts the trace if `steps` is less than 1 or `factor` not positive.
#[track_caller]
pub fn exponential(step: impl Operand<i64>, from: f32, factor: f64, steps: i64) -> Tensor {
    let step = step.into_tensor();
    at_least("steps", steps, 1);
    called_at(positive(factor), || power(factor, unconstrained(|| step.maximum(0).cast::<f32>() / steps as f32)) * from)
}

/// Returns a rate that rises from `max / 25` to `max` in 30 % of `steps` steps, and falls to
/// `max / 250000` in the others, both along a cosine (Smith and Topin 2018). PyTorch's `OneCycleLR`
/// with its constants; [`one_cycle_momentum`] has the momentum, which PyTorch changes, too, unless
/// `cycle_momentum` is false. After the last step the rate stays.
///
/// # Errors
/// Aborts the trace if `steps` is less than 4.
#[track_caller]
pub fn one_cycle(step: impl Operand<i64>, max: f32, steps: i64) -> Tensor {
    let step = step.into_tensor();
    called_at(at_least("steps", steps, 4), || cycle(step, [max / 25.0, max, max / 25.0 / 1e4], steps))
}

/// Returns a momentum that falls from `max` to `base` while the rate of [`one_cycle`] rises, and
/// rises to `max` again while that falls. PyTorch's `OneCycleLR` has 0.85 as `base_momentum` and
/// 0.95 as `max_momentum`. After the last step the momentum stays.
///
/// [`Sgd::momentum_at`](super::Sgd::momentum_at) takes it as the momentum,
/// [`Adam::momentum_at`](super::Adam::momentum_at) as the decay rate of the first moment.
///
/// ```
/// use anabranch::optim::{Adam, Optimizer, schedule};
/// use anabranch::prelude::*;
///
/// let (w, adam) = (Var::<f32>::new("w", 1.0), Adam::new(0.1));
/// let session = Session::new()?;
/// let step = session.function(|| {
///     let t = adam.steps();
///     let momentum = schedule::one_cycle_momentum(t, 0.85, 0.95, 100);
///     let rate = schedule::one_cycle(t, adam.rate(), 100);
///     adam.momentum_at(momentum).minimize_at(rate, w.get().square(), &w);
///     momentum
/// })?;
/// assert_eq!(step.call(())?, 0.95);
/// let momenta = (1..100).map(|_| Ok(step.call(())?.item()));
/// let momenta = momenta.collect::<anabranch::Result<Vec<f32>>>()?;
/// assert!(momenta[28] < 0.8501 && momenta[98] == 0.95);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if `steps` is less than 4.
#[track_caller]
pub fn one_cycle_momentum(step: impl Operand<i64>, base: f32, max: f32, steps: i64) -> Tensor {
    let step = step.into_tensor();
    called_at(at_least("steps", steps, 4), || cycle(step, [max, base, max], steps))
}

/// Returns a number that goes from the first to the second in 30 % of `steps` steps, and to the
/// third in the others, both along a cosine.
fn cycle(step: Tensor<i64>, [start, middle, end]: [f32; 3], steps: i64) -> Tensor {
    let (peak, last) = (0.3 * steps as f64 - 1.0, steps as f64 - 1.0);
    let (t, remaining) = unconstrained(|| {
        let t = step.maximum(0).minimum(steps - 1);
        (t.cast::<f32>(), (scalar(steps - 1) - t).cast::<f32>())
    });
    let first = between(start, middle, half_cosine((scalar(peak as f32) - t) / peak as f32));
    let second = between(middle, end, half_cosine(remaining / (last - peak) as f32));
    t.less_equal(peak as f32).select(first, second)
}

/// Checks an argument. Returns the location of the caller.
#[track_caller]
fn at_least(name: &str, n: i64, least: i64) -> Loc {
    let loc = Loc::caller();
    if n < least {
        let error = Diagnostic::new(format!("the argument `{name}` of a schedule is {n}"));
        fail(error.at(loc, "this schedule").help(format!("use at least {least}")));
    }
    loc
}

/// Checks a factor. Returns the location of the caller.
#[track_caller]
fn positive(factor: f64) -> Loc {
    let loc = Loc::caller();
    if factor.is_nan() || factor <= 0.0 {
        let error = Diagnostic::new(format!("the factor of a schedule is {factor}")).at(loc, "this schedule");
        fail(error.help("use a positive number"));
    }
    loc
}

/// Returns the power of a factor. Its logarithm is that of the `f64`: a factor near 1 rounded to
/// `f32` would be wrong after many steps.
fn power(factor: f64, exponent: Tensor) -> Tensor {
    (exponent * factor.ln() as f32).exp()
}

/// Returns the share of `steps` that remains: 1 up to step 0, and 0 from step `steps` on. The
/// difference is one of integers, so the share is exact to rounding even near the end.
fn remaining(step: Tensor<i64>, steps: i64) -> Tensor {
    unconstrained(|| (scalar(steps) - step.maximum(0).minimum(steps)).cast::<f32>() / steps as f32)
}

/// Returns `(1 - cos(pi * x)) / 2`, which is also accurate near 0.
fn half_cosine(x: Tensor) -> Tensor {
    (x * FRAC_PI_2 as f32).sin().square()
}

/// Returns `from` if `share` is 1 and `to` if it is 0, both exactly.
fn between(from: f32, to: f32, share: Tensor) -> Tensor {
    share * from + (1.0 - share) * to
}

/// A rate that is reduced when a metric no longer improves, in the form of PyTorch's
/// `ReduceLROnPlateau`, with its constants.
///
/// The metric counts as better if it is less than `(1 - 1e-4)` times the best one. After more than
/// 10 observations in a row that are not better, the rate is multiplied by 0.1. NaN is not better.
/// PyTorch's `eps` is left out: each reduction counts, also one by less than 1e-8.
///
/// The state is a module of four variables.
///
/// ```
/// use anabranch::optim::{Optimizer, Sgd, schedule::Plateau};
/// use anabranch::prelude::*;
///
/// let (w, sgd) = (Var::<f32>::new("w", 1.0), Sgd::new(0.1));
/// let plateau = Plateau::new(0.1).patience(1);
/// let session = Session::new()?;
/// let step = session.function(|| sgd.minimize_at(plateau.rate(), w.get().square(), &w))?;
/// let observe = session.function(|loss: Tensor| plateau.observe(loss))?;
/// step.call(())?;
/// for loss in [2.0, 1.0, 1.0, 1.0] {
///     observe.call(loss)?;
/// }
/// let rate = session.function(|| plateau.rate())?;
/// assert!((rate.call(())?.item() - 0.01).abs() < 1e-8);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct Plateau {
    factor: f32,
    patience: i64,
    threshold: f32,
    cooldown: i64,
    min_rate: f32,
    maximize: bool,
    rate: Var<f32>,
    /// The best metric so far. Of metrics to be maximized, it is the negated one.
    best: Var<f32>,
    /// The number of observations since the best one.
    bad: Var<i64>,
    /// The number of observations that do not count yet after a reduction.
    waiting: Var<i64>,
}

module!(Plateau: rate, best, bad, waiting);

impl Plateau {
    /// Creates a schedule that starts with `rate`.
    pub fn new(rate: f32) -> Plateau {
        Plateau {
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            min_rate: 0.0,
            maximize: false,
            rate: Var::untrained("plateau.rate", rate),
            best: Var::untrained("plateau.best", f32::INFINITY),
            bad: Var::untrained("plateau.bad", 0),
            waiting: Var::untrained("plateau.waiting", 0),
        }
    }

    /// Sets the factor by which the rate is multiplied.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line unless `factor` is from 0 to
    /// below 1.
    #[must_use]
    #[track_caller]
    pub fn factor(mut self, factor: f32) -> Plateau {
        if !(0.0..1.0).contains(&factor) {
            let error = Diagnostic::new(format!("the factor of a plateau is {factor}")).at(Loc::caller(), "set here");
            fail(error.help("use a number from 0 to below 1"));
        }
        self.factor = factor;
        self
    }

    /// Sets the number of observations without improvement that are accepted.
    #[must_use]
    pub fn patience(mut self, observations: usize) -> Plateau {
        self.patience = observations as i64;
        self
    }

    /// Sets the relative improvement that counts.
    #[must_use]
    pub fn threshold(mut self, threshold: f32) -> Plateau {
        self.threshold = threshold;
        self
    }

    /// Sets the number of observations after a reduction that do not count as bad.
    #[must_use]
    pub fn cooldown(mut self, observations: usize) -> Plateau {
        self.cooldown = observations as i64;
        self
    }

    /// Sets the smallest rate to which the rate is reduced. A rate below stays as it is.
    #[must_use]
    pub fn min_rate(mut self, rate: f32) -> Plateau {
        self.min_rate = rate;
        self
    }

    /// Takes larger metrics as better: those above `(1 + threshold)` times the best one.
    #[must_use]
    pub fn maximize(mut self) -> Plateau {
        self.maximize = true;
        self
    }

    /// Returns the current rate.
    #[track_caller]
    pub fn rate(&self) -> Tensor {
        self.rate.get()
    }

    /// Takes a new value of the metric into account, for example the loss of an epoch.
    #[track_caller]
    pub fn observe(&self, metric: impl Operand<f32>) {
        called_at(Loc::caller(), || {
            let metric = metric.into_tensor();
            let (metric, threshold) =
                if self.maximize { (-metric, 1.0 + self.threshold) } else { (metric, 1.0 - self.threshold) };
            unconstrained(|| {
                let (best, waiting) = (self.best.get(), self.waiting.get());
                let is_better = metric.less(best * threshold);
                let is_waiting = waiting.greater(0);
                let bad = (is_better | is_waiting).select(0, self.bad.get() + 1);
                let is_plateau = bad.greater(self.patience);
                self.best.set(is_better.select(metric, best));
                self.bad.set(is_plateau.select(0, bad));
                self.waiting.set(is_plateau.select(self.cooldown, is_waiting.select(waiting - 1, 0)));
                let rate = self.rate.get();
                self.rate.set(is_plateau.select((rate * self.factor).maximum(self.min_rate).minimum(rate), rate));
            });
        });
    }
}
