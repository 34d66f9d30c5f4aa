//! Losses of decisions between two classes.

use super::{LossReduction, check_same_shape, computed, reduction_setter, refuse, wide};
use crate::{AnyValue, Float, Tensor};

/// Binary cross-entropy of logits.
///
/// For a logit `x`, a target `z` from 0 to 1 and the weight `p` of the positive class:
///
/// ```text
/// (1 - z) x + (1 + (p - 1) z) log(1 + e^-x)
/// ```
///
/// This is the formula of PyTorch's `binary_cross_entropy_with_logits`, which does not overflow.
/// Logits must be finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryCrossEntropy {
    positive_weight: Option<AnyValue>,
    reduction: LossReduction,
}
reduction_setter!(BinaryCrossEntropy);

impl BinaryCrossEntropy {
    /// Creates the loss without weights.
    pub fn new() -> BinaryCrossEntropy {
        BinaryCrossEntropy::default()
    }

    /// Sets the weight of positive targets, which is broadcast to the shape of the logits: a
    /// scalar, or one weight for each class along the last axis. The default is 1.
    #[must_use]
    pub fn positive_weight<T: Float>(self, weight: Tensor<T>) -> BinaryCrossEntropy {
        BinaryCrossEntropy { positive_weight: Some(weight.untyped()), ..self }
    }

    /// Returns the loss for logits and targets of equal shapes. Without reduction, it has their
    /// shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, logits: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let (x, z) = (wide(logits.untyped()), wide(targets.untyped()));
            check_same_shape("binary_cross_entropy", ("logits", x), ("targets", z));
            let weight = self.positive_weight.map(|weight| {
                if !weight.shape().broadcasts_to(&x.shape()) {
                    let message = format!("weights of shape {} for logits of shape {}", weight.shape(), x.shape());
                    let label = format!("{} with weights {}", x.tensor_type(), weight.tensor_type());
                    refuse("binary_cross_entropy", &message, label, "pass a scalar, or one weight for each class");
                }
                weight.cast(x.dtype())
            });
            self.reduction.of(weighted(x, z, weight))
        })
    }
}

/// Returns the binary cross-entropy of elements.
fn weighted(x: AnyValue, z: AnyValue, positive_weight: Option<AnyValue>) -> AnyValue {
    let negative = (-x).softplus();
    let negative = positive_weight.map_or(negative, |p| ((p - 1.0) * z + 1.0) * negative);
    (1.0 - z) * x + negative
}

/// Returns the mean [`BinaryCrossEntropy`] of logits and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::binary_cross_entropy, prelude::*};
///
/// let loss = eval(|| binary_cross_entropy(tensor([0.0f32, 1000.0]), tensor([1.0, 1.0])))?;
/// assert!((loss.item() - 0.5 * 2.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`BinaryCrossEntropy::loss`].
#[track_caller]
#[must_use]
pub fn binary_cross_entropy<T: Float>(logits: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    BinaryCrossEntropy::new().loss(logits, targets)
}

/// Focal loss of logits (Lin et al. 2017): binary cross-entropy in which examples that are already
/// classified well weigh less.
///
/// With `q = sigmoid(x)`, the probability `m = (1 - q) z + q (1 - z)` of the wrong class and the
/// balance `α z + (1 - α) (1 - z)`, it is the balance times `m^γ` times the binary cross-entropy,
/// as in torchvision's `sigmoid_focal_loss`. The defaults are those of the paper: α = 0.25, γ = 2.
/// The mean is over all elements.
///
/// Gradients are finite for every `γ` of at least 0 and every finite logit.
#[derive(Clone, Copy, Debug)]
pub struct Focal {
    alpha: Option<f64>,
    gamma: f64,
    reduction: LossReduction,
}
reduction_setter!(Focal);

impl Default for Focal {
    fn default() -> Self {
        Focal { alpha: Some(0.25), gamma: 2.0, reduction: LossReduction::default() }
    }
}

impl Focal {
    /// Creates the loss with the constants of the paper.
    pub fn new() -> Focal {
        Focal::default()
    }

    /// Sets the weight of positive targets, from 0 to 1; that of negative targets is `1 - alpha`.
    /// `None` gives both the weight 1.
    #[must_use]
    pub fn alpha(self, alpha: impl Into<Option<f64>>) -> Focal {
        Focal { alpha: alpha.into(), ..self }
    }

    /// Sets the exponent of the probability of the wrong class, at least 0. With 0, this is binary
    /// cross-entropy.
    #[must_use]
    pub fn gamma(self, gamma: f64) -> Focal {
        Focal { gamma, ..self }
    }

    /// Returns the loss for logits and targets of equal shapes. Targets are 0 or 1. Without
    /// reduction, it has their shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, or an option is out of its range.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, logits: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let (x, z) = (wide(logits.untyped()), wide(targets.untyped()));
            check_same_shape("focal", ("logits", x), ("targets", z));
            if self.alpha.is_some_and(|alpha| !(0.0..=1.0).contains(&alpha)) || self.gamma.is_nan() || self.gamma < 0.0
            {
                let message = format!("alpha is {:?} and gamma is {}", self.alpha, self.gamma);
                refuse("focal", &message, x.tensor_type().to_string(), "alpha is from 0 to 1, gamma at least 0");
            }
            let mut losses = weighted(x, z, None);
            if self.gamma != 0.0 {
                let wrong = (-x).sigmoid() * z + x.sigmoid() * (1.0 - z);
                // The slope of a power below 1 is infinite at 0, where the probability underflows.
                let smallest =
                    if x.dtype() == crate::DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
                let wrong = wrong.maximum(wrong.number(smallest));
                losses = losses * wrong.pow(wrong.number(self.gamma));
            }
            if let Some(alpha) = self.alpha {
                losses = losses * (z * (2.0 * alpha - 1.0) + (1.0 - alpha));
            }
            self.reduction.of(losses)
        })
    }
}

/// Returns the mean [`Focal`] loss of logits and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::focal, prelude::*};
///
/// let loss = eval(|| focal(tensor([0.0f32]), tensor([1.0])))?;
/// assert!((loss.item() - 0.25 * 0.25 * 2.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`Focal::loss`].
#[track_caller]
#[must_use]
pub fn focal<T: Float>(logits: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    Focal::new().loss(logits, targets)
}

/// Hinge loss of scores `x` with targets `y` of -1 and 1: `max(0, margin - x y)`, as Keras's
/// `Hinge` with its margin of 1. Unlike there, targets of 0 and 1 are not converted to -1 and 1.
///
/// The subgradient at the kink, where `x y` equals the margin, is 0.
#[derive(Clone, Copy, Debug)]
pub struct Hinge {
    margin: f64,
    squared: bool,
    reduction: LossReduction,
}
reduction_setter!(Hinge);

impl Default for Hinge {
    fn default() -> Self {
        Hinge { margin: 1.0, squared: false, reduction: LossReduction::default() }
    }
}

impl Hinge {
    /// Creates the loss with the margin 1.
    pub fn new() -> Hinge {
        Hinge::default()
    }

    /// Sets the margin.
    #[must_use]
    pub fn margin(self, margin: f64) -> Hinge {
        Hinge { margin, ..self }
    }

    /// Squares the loss of each element, which has no kink.
    #[must_use]
    pub fn squared(self) -> Hinge {
        Hinge { squared: true, ..self }
    }

    /// Returns the loss for scores and targets of equal shapes. Without reduction, it has their
    /// shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, scores: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let (x, y) = (wide(scores.untyped()), wide(targets.untyped()));
            check_same_shape("hinge", ("scores", x), ("targets", y));
            let losses = (self.margin - x * y).relu();
            self.reduction.of(if self.squared { losses.square() } else { losses })
        })
    }
}

/// Returns the mean [`Hinge`] loss of scores and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::hinge, prelude::*};
///
/// assert_eq!(eval(|| hinge(tensor([3.0f32, 0.5]), tensor([1.0, -1.0])))?, 0.75);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`Hinge::loss`].
#[track_caller]
#[must_use]
pub fn hinge<T: Float>(scores: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    Hinge::new().loss(scores, targets)
}
