//! Kullback-Leibler divergence.

use super::{LossReduction, check_same_shape, computed, reduction_setter, refuse, wide, without};
use crate::{Float, Tensor};

/// Kullback-Leibler divergence of distributions `q`, given as log-probabilities, from targets `p`:
/// `Σ p (log p - log q)` along the last axis.
///
/// The mean is over distributions, and not over their elements. With two axes, PyTorch calls that
/// `batchmean`, which divides by the length of the first axis alone.
///
/// A target of probability 0 contributes 0, also where `log q` is `-inf`. There, the gradients with
/// respect to both are 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct KlDivergence {
    log_targets: bool,
    reduction: LossReduction,
}
reduction_setter!(KlDivergence);

impl KlDivergence {
    /// Creates the loss for targets that are probabilities.
    pub fn new() -> KlDivergence {
        KlDivergence::default()
    }

    /// Takes targets as log-probabilities.
    #[must_use]
    pub fn log_targets(self) -> KlDivergence {
        KlDivergence { log_targets: true, ..self }
    }

    /// Returns the loss for log-probabilities and targets, both `[.., n]`. Without reduction, it
    /// has the shape `[..]`.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, or there is no axis.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, log_q: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let (log_q, p) = (wide(log_q.untyped()), wide(targets.untyped()));
            check_same_shape("kl_divergence", ("log-probabilities", log_q), ("targets", p));
            if log_q.rank() == 0 {
                let label = log_q.tensor_type().to_string();
                refuse("kl_divergence", "a scalar is no distribution", label, "pass distributions [.., n]");
            }
            // Where the target is 0, nothing may be computed that is infinite: its gradient, even
            // with a cotangent of 0, would be NaN.
            let terms = match self.log_targets {
                true => {
                    let impossible = p.eq(p.number(f64::NEG_INFINITY));
                    p.exp() * (without(impossible, p) - without(impossible, log_q))
                }
                false => {
                    let impossible = p.eq(p.number(0.0));
                    let log_p = impossible.select(p.number(1.0), p).log();
                    p * (log_p - without(impossible, log_q))
                }
            };
            self.reduction.of(terms.sum_axis(-1))
        })
    }
}

/// Returns the mean [`KlDivergence`] of log-probabilities from target probabilities, both
/// `[.., n]`.
///
/// ```
/// use anabranch::{losses::kl_divergence, prelude::*};
///
/// let log_q = || tensor([[0.0f32, 0.0]]).log_softmax(-1);
/// let loss = eval(|| kl_divergence(log_q(), tensor([[1.0, 0.0]])))?;
/// assert!((loss.item() - 2.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`KlDivergence::loss`].
#[track_caller]
#[must_use]
pub fn kl_divergence<T: Float>(log_q: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    KlDivergence::new().loss(log_q, targets)
}
