//! Cross-entropy over classes.

use super::{
    LossReduction, check_labels, check_same_shape, computed, ignored_labels, reduction_setter, refuse, wide, without,
    zero_or_ratio,
};
use crate::{AnyValue, Float, Integer, Tensor};

/// Cross-entropy between classes and the softmax of logits, which is the negative log-likelihood of
/// labels.
///
/// With log-probabilities `l = log_softmax(logits)`, class weights `w`, smoothing `ε` and `C`
/// classes, the loss of an example with label `y` is that of PyTorch's `cross_entropy`:
///
/// ```text
/// (1 - ε) w[y] (-l[y]) + ε / C Σ_c w[c] (-l[c])
/// ```
///
/// The mean divides by the sum of `w[y]` over the examples whose label is not ignored, which is
/// their number without weights. If all examples are ignored, the mean is 0 and so are its
/// gradients (PyTorch: `NaN`).
///
/// Labels are class indices; any other label, except the ignored one, fails the step. A class whose
/// logit is `-inf` has probability 0.
///
/// ```
/// use anabranch::losses::{CrossEntropy, LossReduction};
/// use anabranch::prelude::*;
///
/// let loss = eval(|| {
///     let logits = tensor([[1.0f32, 2.0, 3.0], [0.5, -1.0, 0.0], [2.0, 2.0, 2.0]]);
///     CrossEntropy::new()
///         .class_weights(tensor([1.0f32, 2.0, 0.5]))
///         .label_smoothing(0.1)
///         .ignore_label(-100)
///         .loss(logits, tensor([2, 0, -100]))
/// })?;
/// assert!((loss.item() - 0.724_562).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    weights: Option<AnyValue>,
    smoothing: f64,
    ignored: Option<i64>,
    reduction: LossReduction,
}
reduction_setter!(CrossEntropy);

impl CrossEntropy {
    /// Creates the loss without weights, smoothing and ignored label.
    pub fn new() -> CrossEntropy {
        CrossEntropy::default()
    }

    /// Sets a weight for each class, `[classes]`. The default is 1.
    #[must_use]
    pub fn class_weights<T: Float>(self, weights: Tensor<T>) -> CrossEntropy {
        CrossEntropy { weights: Some(weights.untyped()), ..self }
    }

    /// Sets the share of the target, from 0 to 1, that is divided equally among all classes
    /// (Szegedy et al. 2016). The default is 0.
    #[must_use]
    pub fn label_smoothing(self, smoothing: f64) -> CrossEntropy {
        CrossEntropy { smoothing, ..self }
    }

    /// Sets a label whose examples have the loss 0 and are not part of the mean, whatever their
    /// logits are. It need not be a class index.
    #[must_use]
    pub fn ignore_label(self, label: i64) -> CrossEntropy {
        CrossEntropy { ignored: Some(label), ..self }
    }

    /// Returns the loss for logits `[.., classes]` and labels `[..]`. Without reduction, it has the
    /// shape of the labels.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match or the smoothing is not within 0 and 1. A label
    /// that is not a class index fails the step.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float, I: Integer>(self, logits: Tensor<T>, labels: Tensor<I>) -> Tensor<T> {
        computed(|| {
            let (logits, labels) = (wide(logits.untyped()), labels.untyped());
            check_labels("cross_entropy", logits, labels);
            let weights = self.checked_weights(logits);
            let ignored = self.ignored.map(|label| ignored_labels(labels, label));
            let (logits, labels) = match ignored {
                Some(ignored) => (without(ignored.unsqueeze(-1), logits), without(ignored, labels)),
                None => (logits, labels),
            };
            let log_p = logits.log_softmax(-1);
            let log_p_of_labels = log_p.take_along_axis(labels.unsqueeze(-1), -1).squeeze(-1);
            let mut weight = weights.map(|weights| weights.take(labels, 0));
            let mut losses = weight.map_or(log_p_of_labels, |w| no_infinity_of_zero(w, log_p_of_labels)).neg();
            if self.smoothing != 0.0 {
                let of_all = weights.map_or(log_p, |weights| no_infinity_of_zero(weights, log_p)).mean_axis(-1);
                losses = losses * (1.0 - self.smoothing) - of_all * self.smoothing;
            }
            if let Some(ignored) = ignored {
                losses = without(ignored, losses);
                weight = Some(ignored.select(losses.number(0.0), weight.unwrap_or(losses.number(1.0))));
            }
            match (self.reduction, weight) {
                (LossReduction::Mean, Some(weight)) => zero_or_ratio(losses.sum(), weight.sum()),
                (reduction, _) => reduction.of(losses),
            }
        })
    }

    /// Returns the loss for logits and probabilities of the classes, both `[.., classes]`:
    /// `-Σ_c w[c] p[c] l[c]`, with the smoothed probabilities `(1 - ε) p + ε / C`. Without
    /// reduction, it has the shape `[..]`.
    ///
    /// The mean divides by the number of examples, with weights as well, as in PyTorch. A class of
    /// probability 0 whose logit is `-inf` contributes nothing.
    ///
    /// ```
    /// use anabranch::{losses::CrossEntropy, prelude::*};
    ///
    /// let loss = eval(|| {
    ///     CrossEntropy::new().soft_loss(tensor([[0.0f32, 0.0]]), tensor([[0.25, 0.75]]))
    /// })?;
    /// assert!((loss.item() - 2.0f32.ln()).abs() < 1e-6);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, the smoothing is not within 0 and 1, or there
    /// is an ignored label.
    #[track_caller]
    #[must_use]
    pub fn soft_loss<T: Float>(self, logits: Tensor<T>, probabilities: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let (logits, p) = (wide(logits.untyped()), wide(probabilities.untyped()));
            check_same_shape("cross_entropy", ("logits", logits), ("probabilities", p));
            if let Some(label) = self.ignored {
                let message = format!("the label {label} cannot be ignored, since targets are probabilities");
                let help = "reduce with `LossReduction::None` and mask the losses";
                refuse("cross_entropy", &message, p.tensor_type().to_string(), help);
            }
            let weights = self.checked_weights(logits);
            let p = match self.smoothing {
                0.0 => p,
                share => p * (1.0 - share) + share / logits.dim(-1) as f64,
            };
            let p = weights.map_or(p, |weights| weights * p);
            self.reduction.of(-no_infinity_of_zero(p, logits.log_softmax(-1)).sum_axis(-1))
        })
    }

    /// Checks the options. Returns the weights in the type of the logits.
    #[track_caller]
    fn checked_weights(&self, logits: AnyValue) -> Option<AnyValue> {
        let ty = logits.tensor_type();
        if !(0.0..=1.0).contains(&self.smoothing) {
            let message = format!("the label smoothing is {}", self.smoothing);
            refuse("cross_entropy", &message, ty.to_string(), "the share of the uniform target is from 0 to 1");
        }
        let Some(classes) = ty.shape.dims().last() else {
            refuse("cross_entropy", "the logits have no axis of classes", ty.to_string(), "pass logits [.., classes]");
        };
        self.weights.map(|weights| {
            let of_classes = crate::Shape::from([classes.clone()]);
            if !weights.shape().compatible(&of_classes) {
                let message = format!("class weights of shape {}, but logits of {classes} classes", weights.shape());
                let label = format!("{ty} with weights {}", weights.tensor_type());
                refuse("cross_entropy", &message, label, "pass one weight for each class, [classes]");
            }
            weights.cast(ty.dtype)
        })
    }
}

/// Returns `factor * log_p`, and 0 where a factor of 0 meets `-inf`.
fn no_infinity_of_zero(factor: AnyValue, log_p: AnyValue) -> AnyValue {
    let impossible = factor.eq(factor.number(0.0)).and(log_p.eq(log_p.number(f64::NEG_INFINITY)));
    factor * without(impossible, log_p)
}

/// Returns the mean [`CrossEntropy`] of logits `[.., classes]` and labels `[..]`.
///
/// `logits.cross_entropy(labels)` returns the losses of the examples.
///
/// ```
/// use anabranch::{losses::cross_entropy, prelude::*};
///
/// let loss = eval(|| cross_entropy(tensor([[0.0f32, 0.0], [1000.0, 0.0]]), tensor([1, 0])))?;
/// assert!((loss.item() - 0.5 * 2.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`CrossEntropy::loss`].
#[track_caller]
#[must_use]
pub fn cross_entropy<T: Float, I: Integer>(logits: Tensor<T>, labels: Tensor<I>) -> Tensor<T> {
    CrossEntropy::new().loss(logits, labels)
}
