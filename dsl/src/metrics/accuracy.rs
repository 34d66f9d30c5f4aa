//! The share of examples whose label has the highest score, or one of the highest.

use super::{add, clear, ratio};
use crate::losses::{check_labels, count, ignored_labels, refuse, without};
use crate::nn::module;
use crate::{AnyValue, DType, Dim, Integer, Loc, Numeric, Tensor, Var, iota, trace};

/// Returns the number of examples whose label is among the `k` highest scores, and the number of
/// examples, both without those whose label is ignored.
#[track_caller]
fn counts(name: &str, scores: AnyValue, labels: AnyValue, k: usize, ignored: Option<i64>) -> [AnyValue; 2] {
    let classes = check_labels(name, scores, labels);
    if k == 0 || classes == Dim::Known(0) {
        let message = format!("the {k} highest of {classes} scores");
        refuse(name, &message, scores.tensor_type().to_string(), "k and the number of classes are at least 1");
    }
    let mask = ignored.map(|label| ignored_labels(labels, label));
    let labels = mask.map_or(labels, |mask| without(mask, labels)).cast(DType::I64).unsqueeze(-1);
    // This fails for a label that is no class.
    let of_label = scores.take_along_axis(labels, -1);
    // Of equal scores the one of the first class is the higher, as for `argmax`.
    let index = iota::<i64>(scores.dim(-1)).untyped();
    let is_higher = scores.gt(of_label).or(scores.eq(of_label).and(index.lt(labels)));
    let n_higher = is_higher.cast(DType::I64).sum_axis(-1);
    // Comparisons with NaN are false, which must not make it the highest score.
    let is_number = of_label.eq(of_label).squeeze(-1);
    let correct = n_higher.lt(n_higher.number(k as f64)).and(is_number);
    match mask {
        None => [correct.cast(DType::I64).sum(), count(n_higher, DType::I64)],
        Some(mask) => [correct.and(mask.not()), mask.not()].map(|x| x.cast(DType::I64).sum()),
    }
}

/// Returns the share of examples whose label has the highest score, for scores `[.., classes]` such
/// as logits, and labels `[..]`. Of equal scores, the one of the first class is the higher.
///
/// An example whose label has the score `NaN` is wrong.
///
/// ```
/// use anabranch::{metrics::accuracy, prelude::*};
///
/// let scores = || tensor([[0.9f32, 0.1], [0.4, 0.6]]);
/// assert_eq!(eval(|| accuracy(scores(), tensor([0, 0])))?, 0.5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes do not match. A label that is no class fails the step.
#[track_caller]
#[must_use]
pub fn accuracy<T: Numeric, I: Integer>(scores: Tensor<T>, labels: Tensor<I>) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let [correct, total] = counts("accuracy", scores.untyped(), labels.untyped(), 1, None);
        ratio(correct, total)
    })
}

/// Returns the share of examples whose label has one of the `k` highest scores, for scores `[..,
/// classes]` such as logits, and labels `[..]`. Of equal scores, the one of the first class is the
/// higher.
///
/// ```
/// use anabranch::{metrics::top_k_accuracy, prelude::*};
///
/// let scores = || tensor([[0.5f32, 0.3, 0.2], [0.1, 0.1, 0.8]]);
/// assert_eq!(eval(|| top_k_accuracy(scores(), tensor([1, 1]), 2))?, 0.5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes do not match or `k` is 0. A label that is no class fails the
/// step.
#[track_caller]
#[must_use]
pub fn top_k_accuracy<T: Numeric, I: Integer>(scores: Tensor<T>, labels: Tensor<I>, k: usize) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let [correct, total] = counts("top_k_accuracy", scores.untyped(), labels.untyped(), k, None);
        ratio(correct, total)
    })
}

/// [`accuracy`] or [`top_k_accuracy`] of many batches.
#[derive(Debug)]
pub struct Accuracy {
    /// The number of examples classified correctly.
    pub correct: Var<i64>,
    /// The number of examples.
    pub total: Var<i64>,
    k: usize,
    ignored: Option<i64>,
}
module!(Accuracy: correct, total);

impl Accuracy {
    /// Creates the metric of the highest score.
    #[expect(clippy::new_without_default, reason = "a new metric is a new state, as is a new layer")]
    pub fn new() -> Accuracy {
        Accuracy::top(1)
    }

    /// Creates the metric of the `k` highest scores.
    pub fn top(k: usize) -> Accuracy {
        Accuracy { correct: Var::untrained("correct", 0), total: Var::untrained("total", 0), k, ignored: None }
    }

    /// Sets a label whose examples do not count. It need not be a class index.
    #[must_use]
    pub fn ignore_label(self, label: i64) -> Accuracy {
        Accuracy { ignored: Some(label), ..self }
    }

    /// Adds a batch of scores `[.., classes]` and labels `[..]`.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match or `k` is 0. A label that is no class fails the
    /// step.
    #[track_caller]
    pub fn update<T: Numeric, I: Integer>(&self, scores: Tensor<T>, labels: Tensor<I>) {
        trace::called_at(Loc::caller(), || {
            let [correct, total] = counts("Accuracy", scores.untyped(), labels.untyped(), self.k, self.ignored);
            add(&self.correct, correct);
            add(&self.total, total);
        });
    }

    /// Returns the accuracy since the last reset, or 0 without examples.
    #[track_caller]
    #[must_use]
    pub fn result(&self) -> Tensor<f64> {
        trace::called_at(Loc::caller(), || ratio(self.correct.get().untyped(), self.total.get().untyped()))
    }

    /// Forgets all batches.
    #[track_caller]
    pub fn reset(&self) {
        trace::called_at(Loc::caller(), || clear(&[self.correct.any(), self.total.any()]));
    }
}
