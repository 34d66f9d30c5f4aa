//! Losses of numbers: powers of the difference between predictions and targets.

use super::{LossReduction, check_same_shape, computed, reduction_setter, refuse, wide};
use crate::{AnyValue, Float, Tensor};

/// Computes a loss of the difference between predictions and targets.
#[track_caller]
fn of_difference<T: Float>(
    name: &str,
    reduction: LossReduction,
    [predictions, targets]: [Tensor<T>; 2],
    f: impl FnOnce(AnyValue) -> AnyValue,
) -> Tensor<T> {
    computed(|| {
        let (x, y) = (wide(predictions.untyped()), wide(targets.untyped()));
        check_same_shape(name, ("predictions", x), ("targets", y));
        reduction.of(f(x - y))
    })
}

/// Computes the Huber loss of a difference, in a form that neither overflows nor branches.
fn huber_of(difference: AnyValue, delta: f64) -> AnyValue {
    let size = difference.abs();
    let limited = size.minimum(size.number(delta));
    // Half of the square below delta, and a line above. At delta, the derivative with respect to
    // `limited` is 0, so that it does not matter how `minimum` divides a gradient.
    limited * (size - limited * 0.5)
}

/// Checks the point at which a loss turns into a line.
#[track_caller]
fn check_turn(name: &str, option: &str, turn: f64, is_valid: impl Fn(f64) -> bool, help: &str) {
    if !is_valid(turn) {
        refuse(name, &format!("{option} is {turn}"), String::new(), help);
    }
}

/// Squared error, `(x - y)²`. Its mean is known as MSE.
#[derive(Clone, Copy, Debug, Default)]
pub struct SquaredError {
    reduction: LossReduction,
}

/// Absolute error, `|x - y|`. Its mean is known as MAE or L1 loss. The subgradient at the kink,
/// where `x` equals `y`, is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct AbsoluteError {
    reduction: LossReduction,
}

/// Huber loss (Huber 1964) of the difference `d = x - y`: `d² / 2` if `|d|` is at most `δ`, and
/// `δ (|d| - δ / 2)` otherwise. The default is δ = 1.
#[derive(Clone, Copy, Debug)]
pub struct Huber {
    delta: f64,
    reduction: LossReduction,
}

/// Smooth L1 loss (Girshick 2015): the [`Huber`] loss with δ = β, divided by β. The default is
/// β = 1. With β = 0, this is [`AbsoluteError`].
#[derive(Clone, Copy, Debug)]
pub struct SmoothL1 {
    beta: f64,
    reduction: LossReduction,
}

reduction_setter!(SquaredError, AbsoluteError, Huber, SmoothL1);

impl Default for Huber {
    fn default() -> Self {
        Huber { delta: 1.0, reduction: LossReduction::default() }
    }
}

impl Default for SmoothL1 {
    fn default() -> Self {
        SmoothL1 { beta: 1.0, reduction: LossReduction::default() }
    }
}

impl SquaredError {
    /// Creates the loss.
    pub fn new() -> SquaredError {
        SquaredError::default()
    }

    /// Returns the loss for predictions and targets of equal shapes. Without reduction, it has
    /// their shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        of_difference("mse", self.reduction, [predictions, targets], AnyValue::square)
    }
}

impl AbsoluteError {
    /// Creates the loss.
    pub fn new() -> AbsoluteError {
        AbsoluteError::default()
    }

    /// Returns the loss for predictions and targets of equal shapes. Without reduction, it has
    /// their shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        of_difference("mae", self.reduction, [predictions, targets], AnyValue::abs)
    }
}

impl Huber {
    /// Creates the loss with δ = 1.
    pub fn new() -> Huber {
        Huber::default()
    }

    /// Sets δ, the difference above which the loss is a line. It is positive.
    #[must_use]
    pub fn delta(self, delta: f64) -> Huber {
        Huber { delta, ..self }
    }

    /// Returns the loss for predictions and targets of equal shapes. Without reduction, it has
    /// their shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, or `delta` is not positive.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        of_difference("huber", self.reduction, [predictions, targets], |d| {
            check_turn("huber", "delta", self.delta, |delta| delta > 0.0, "delta is positive");
            huber_of(d, self.delta)
        })
    }
}

impl SmoothL1 {
    /// Creates the loss with β = 1.
    pub fn new() -> SmoothL1 {
        SmoothL1::default()
    }

    /// Sets β, the difference above which the loss is a line. It is not negative.
    #[must_use]
    pub fn beta(self, beta: f64) -> SmoothL1 {
        SmoothL1 { beta, ..self }
    }

    /// Returns the loss for predictions and targets of equal shapes. Without reduction, it has
    /// their shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, or `beta` is negative.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
        of_difference("smooth_l1", self.reduction, [predictions, targets], |d| {
            check_turn("smooth_l1", "beta", self.beta, |beta| beta >= 0.0, "beta is not negative");
            if self.beta == 0.0 { d.abs() } else { huber_of(d, self.beta) / self.beta }
        })
    }
}

/// Returns the mean [`SquaredError`] of predictions and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::mse, prelude::*};
///
/// assert_eq!(eval(|| mse(tensor([1.0f32, 2.0]), tensor([1.0, 4.0])))?, 2.0);
/// let error = eval(|| mse(tensor([1.0f32, 2.0]), tensor([[1.0], [4.0]]))).unwrap_err();
/// assert_eq!(error.message, "mse: predictions of shape [2], but targets of shape [2, 1]");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`SquaredError::loss`].
#[track_caller]
#[must_use]
pub fn mse<T: Float>(predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    SquaredError::new().loss(predictions, targets)
}

/// Returns the mean [`AbsoluteError`] of predictions and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::mae, prelude::*};
///
/// assert_eq!(eval(|| mae(tensor([1.0f32, 2.0]), tensor([1.0, 4.0])))?, 1.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`AbsoluteError::loss`].
#[track_caller]
#[must_use]
pub fn mae<T: Float>(predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    AbsoluteError::new().loss(predictions, targets)
}

/// Returns the mean [`Huber`] loss of predictions and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::huber, prelude::*};
///
/// assert_eq!(eval(|| huber(tensor([0.0f32, 0.0]), tensor([0.5, 3.0])))?, 1.3125);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`Huber::loss`].
#[track_caller]
#[must_use]
pub fn huber<T: Float>(predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    Huber::new().loss(predictions, targets)
}

/// Returns the mean [`SmoothL1`] loss of predictions and targets of equal shapes.
///
/// ```
/// use anabranch::{losses::smooth_l1, prelude::*};
///
/// assert_eq!(eval(|| smooth_l1(tensor([0.0f32, 0.0]), tensor([0.5, 3.0])))?, 1.3125);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`SmoothL1::loss`].
#[track_caller]
#[must_use]
pub fn smooth_l1<T: Float>(predictions: Tensor<T>, targets: Tensor<T>) -> Tensor<T> {
    SmoothL1::new().loss(predictions, targets)
}
