//! Metrics: graph functions from predictions and targets to what a person reads.
//!
//! Each metric is a function of one batch, and most are also a struct that collects many batches.
//! Such a struct is a [`Module`](crate::Module) of untrained variables, whose methods are called in
//! graph functions: `update` adds a batch, `result` returns the value so far, `reset` starts again.
//! A session stores the state. `Session::state` and `load_state` save and load it, like a model's.
//!
//! ```
//! use anabranch::{metrics::Accuracy, prelude::*};
//!
//! let accuracy = Accuracy::new();
//! let session = Session::new()?;
//! let update = session.function(|scores: Tensor, labels: Tensor<i32>| {
//!     accuracy.update(scores, labels);
//! })?;
//! let result = session.function(|| accuracy.result())?;
//! update.call(([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]], [0, 1, 1]))?;
//! update.call(([[0.3, 0.7]], [1]))?;
//! // Three of four, and not the mean of 2/3 and 1.
//! assert_eq!(result.call(())?, 0.75);
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! | metric | of a batch | of many |
//! |---|---|---|
//! | accuracy, top-k accuracy | [`accuracy`], [`top_k_accuracy`] | [`Accuracy`] |
//! | confusion matrix | [`confusion_matrix`] | [`ConfusionMatrix`] |
//! | precision, recall, F1, IoU | [`precision`], [`recall`], [`f1`], [`mean_iou`] of the matrix | the same |
//! | area under the ROC curve | [`auc`], exact | [`BinnedAuc`] |
//! | perplexity | [`perplexity`] | [`Perplexity`] |
//! | mean | | [`RunningMean`] |
//!
//! - **Precision.** Counts are `i64`, sums are `f64`, and results are `f64`, whatever the element
//!   type of predictions and the number of batches.
//! - **Nothing to divide by.** A ratio of 0 and 0 is 0: the accuracy of no examples, the precision
//!   of a class that was never predicted, the mean of nothing. The exceptions are [`auc`], which is
//!   `NaN`, and perplexity, which is 1.
//! - **Gradients.** Counts have none. Train with [`losses`](crate::losses).

mod accuracy;
mod auc;
mod classes;
mod mean;
mod perplexity;

pub use accuracy::{Accuracy, accuracy, top_k_accuracy};
pub use auc::{BinnedAuc, auc};
pub use classes::{ClassAverage, ConfusionMatrix, confusion_matrix, f1, mean_iou, precision, recall};
pub use mean::RunningMean;
pub use perplexity::{Perplexity, perplexity};

use crate::losses::zero_or_ratio;
use crate::{AnyValue, DType, Element, Tensor, Var};

/// Returns a quotient as `f64`, or 0 if the denominator is 0.
fn ratio(numerator: AnyValue, denominator: AnyValue) -> Tensor<f64> {
    Tensor::from_any(zero_or_ratio(numerator.cast(DType::F64), denominator.cast(DType::F64)))
}

/// Adds to a variable.
fn add<T: Element>(var: &Var<T>, value: AnyValue) {
    var.set(Tensor::from_any(var.get().untyped() + value));
}

/// Assigns zeros to variables.
fn clear(vars: &[&crate::AnyVar]) {
    for var in vars {
        let zero = crate::trace::constant(crate::HostTensor::zeros(var.ty().dtype, []));
        crate::trace::assign_var(var, zero.broadcast_to(&var.ty().shape));
    }
}
