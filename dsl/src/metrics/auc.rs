//! The area under the ROC curve.

use super::clear;
use crate::losses::check_same_shape;
use crate::nn::module;
use crate::{Array, Float, Loc, Numeric, Tensor, Var, fold_left, scalar, trace};

/// Returns the area under the ROC curve: the probability that a positive example has a higher score
/// than a negative one, counting equal scores as half. Scores and labels have equal shapes.
///
/// The area is exact, and depends on the order of the scores alone: those of logits and of their
/// probabilities are equal, unless rounding makes probabilities equal. Without positive or negative
/// examples it is `NaN`. Scores must not be `NaN`.
///
/// All pairs are compared: the time is quadratic in the number of examples, the memory is linear.
///
/// ```
/// use anabranch::{metrics::auc, prelude::*};
///
/// let area =
///     eval(|| auc(tensor([0.1f32, 0.4, 0.35, 0.8]), tensor([false, false, true, true])))?;
/// assert_eq!(area, 0.75);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes differ.
#[track_caller]
#[must_use]
pub fn auc<T: Numeric>(scores: Tensor<T>, labels: Tensor<bool>) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        check_same_shape("auc", ("scores", scores.untyped()), ("labels", labels.untyped()));
        let (scores, labels) = (scores.flatten(), labels.flatten());
        // Each pair counts 2, or 1 if the scores are equal.
        let twice = fold_left(scalar(0i64), (scores, labels), |sum, (score, is_positive)| {
            let lower = scores.less(score).cast::<i64>() + scores.less_equal(score).cast::<i64>();
            let pairs = (!labels & is_positive).select(lower, 0).sum();
            sum + pairs
        });
        let positive = labels.cast::<i64>().sum();
        area(twice, positive, (!labels).cast::<i64>().sum())
    })
}

/// Returns the area for twice the number of pairs in order, and the numbers of examples.
fn area(twice: Tensor<i64>, positive: Tensor<i64>, negative: Tensor<i64>) -> Tensor<f64> {
    twice.cast::<f64>() / (2.0 * (positive.cast::<f64>() * negative.cast::<f64>()))
}

/// The area under the ROC curve of many batches, from histograms of the scores.
///
/// Scores are probabilities, and are counted in bins of equal width. Two scores in one bin count as
/// equal, so the area is exact only if no bin has both positive and negative examples; the error is
/// at most half of the share of pairs that share a bin. Scores that are close together need
/// [`auc`].
#[derive(Debug)]
pub struct BinnedAuc {
    /// The number of positive examples in each bin.
    pub positive: Var<i64>,
    /// The number of negative examples in each bin.
    pub negative: Var<i64>,
    bins: usize,
}
module!(BinnedAuc: positive, negative);

impl BinnedAuc {
    /// Creates the metric with a number of bins, at least 1. Keras has 200 thresholds.
    ///
    /// # Panics
    /// Panics if there are no bins.
    #[track_caller]
    pub fn new(bins: usize) -> BinnedAuc {
        assert!(bins > 0, "an area under a curve needs at least one bin");
        let zeros = || Array::new([bins], vec![0i64; bins]);
        BinnedAuc { positive: Var::untrained("positive", zeros()), negative: Var::untrained("negative", zeros()), bins }
    }

    /// Adds a batch of probabilities and labels of equal shapes.
    ///
    /// # Errors
    /// Aborts the trace if the shapes differ. A score that is not within 0 and 1 fails the step:
    /// the scores are logits.
    #[track_caller]
    pub fn update<T: Float>(&self, probabilities: Tensor<T>, labels: Tensor<bool>) {
        trace::called_at(Loc::caller(), || {
            check_same_shape("BinnedAuc", ("probabilities", probabilities.untyped()), ("labels", labels.untyped()));
            let (p, labels) = (probabilities.cast::<f64>().flatten(), labels.flatten());
            let message = "BinnedAuc: a score is not within 0 and 1; apply `sigmoid()` to logits, or use `auc`";
            trace::assert((p.greater_equal(0.0) & p.less_equal(1.0)).untyped(), message.to_owned());
            let last = self.bins as i64 - 1;
            let bin = (p * self.bins as f64).cast::<i64>().minimum(last);
            for (var, counted) in [(&self.positive, labels), (&self.negative, !labels)] {
                var.set(var.get().scatter_add(bin, counted.cast(), 0));
            }
        });
    }

    /// Returns the area since the last reset, or `NaN` without positive or negative examples.
    #[track_caller]
    #[must_use]
    pub fn result(&self) -> Tensor<f64> {
        trace::called_at(Loc::caller(), || {
            let (positive, negative) = (self.positive.get(), self.negative.get());
            let up_to = negative.cumsum(0);
            area((positive * (2 * up_to - negative)).sum(), positive.sum(), negative.sum())
        })
    }

    /// Forgets all batches.
    #[track_caller]
    pub fn reset(&self) {
        trace::called_at(Loc::caller(), || clear(&[self.positive.any(), self.negative.any()]));
    }
}
