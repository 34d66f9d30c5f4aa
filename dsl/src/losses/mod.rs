//! Losses: graph functions from predictions and targets to what training minimizes.
//!
//! Each loss is a struct of options with a method `loss`, and has a function for the default
//! options:
//!
//! ```
//! use anabranch::losses::{CrossEntropy, cross_entropy};
//! use anabranch::prelude::*;
//!
//! let logits = || tensor([[2.0, 0.0], [0.0, 1.0]]);
//! let plain = eval(|| cross_entropy(logits(), tensor([0, 1])))?;
//! let smoothed =
//!     eval(|| CrossEntropy::new().label_smoothing(0.1).loss(logits(), tensor([0, 1])))?;
//! assert!(plain.item() < smoothed.item());
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! | predictions | loss |
//! |---|---|
//! | logits of classes | [`CrossEntropy`] |
//! | logits of yes or no | [`BinaryCrossEntropy`], [`Focal`] |
//! | scores of two classes, ±1 | [`Hinge`] |
//! | numbers | [`SquaredError`], [`AbsoluteError`], [`Huber`], [`SmoothL1`] |
//! | log-probabilities | [`KlDivergence`] |
//! | embeddings | [`CosineEmbedding`], [`TripletMargin`] |
//! | logits of classes over time, for labels without positions | [`Ctc`] |
//!
//! - **Shapes.** Predictions and targets have equal shapes, and are not broadcast: the mean over an
//!   accidental `[n, n]` would be a wrong result without an error. This is checked as far as shapes
//!   are known during tracing. Classes, distributions and embeddings are along the last axis, and
//!   all other axes are examples.
//! - **Precision.** 16-bit floats are converted to `f32` at once, everything is computed and summed
//!   in `f32`, and the result is rounded. `f32` and `f64` are computed and summed in their own
//!   type.
//! - **Reduction.** See [`LossReduction`]. The default is the mean.
//! - **Logits.** No loss takes probabilities where it could take logits, because the logarithm of a
//!   rounded probability loses precision. To pass log-probabilities to a loss of logits, pass them
//!   as they are: their log-softmax is the identity.
//! - **Gradients** are those of the formulas. Each loss with a kink states its subgradient there.

mod arguments;
mod binary;
mod classification;
mod ctc;
mod divergence;
mod regression;
mod similarity;

pub(crate) use arguments::{
    check_labels, check_same_shape, count, ignored_labels, mean, refuse, without, zero_or_ratio,
};
pub use binary::{BinaryCrossEntropy, Focal, Hinge, binary_cross_entropy, focal, hinge};
pub use classification::{CrossEntropy, cross_entropy};
pub use ctc::{Ctc, ctc};
pub use divergence::{KlDivergence, kl_divergence};
pub use regression::{AbsoluteError, Huber, SmoothL1, SquaredError, huber, mae, mse, smooth_l1};
pub use similarity::{CosineEmbedding, TripletMargin, cosine_embedding, cosine_similarity, triplet_margin};

use crate::{AnyValue, DType, Float, Loc, Tensor, trace};

/// The result of a loss: one number, or one for each example or element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossReduction {
    /// The mean, which is 0 if there is nothing to take it of. A loss that weights its examples
    /// documents the denominator.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// No reduction: the loss of each example or element.
    None,
}

impl LossReduction {
    /// Reduces losses whose mean is over all of them.
    fn of(self, losses: AnyValue) -> AnyValue {
        match self {
            LossReduction::Mean => mean(losses),
            LossReduction::Sum => losses.sum(),
            LossReduction::None => losses,
        }
    }
}

/// Returns the operand in the type in which losses are computed: `f32` for 16-bit floats.
fn wide(x: AnyValue) -> AnyValue {
    if x.dtype().is_half() { x.cast(DType::F32) } else { x }
}

/// Runs `f` as one operation at the caller's line, and returns its result as a `T`.
#[track_caller]
fn computed<T: Float>(f: impl FnOnce() -> AnyValue) -> Tensor<T> {
    trace::called_at(Loc::caller(), || Tensor::from_any(f().cast(T::DTYPE)))
}

/// Adds the setter that all losses have.
macro_rules! reduction_setter {
    ($($loss:ident),*) => {$(
        impl $loss {
            /// Sets the reduction. The default is the mean.
            #[must_use]
            pub fn reduction(mut self, reduction: $crate::losses::LossReduction) -> $loss {
                self.reduction = reduction;
                self
            }
        }
    )*};
}
use reduction_setter;
