//! Perplexity of sequences of tokens.

use super::{add, clear, ratio};
use crate::losses::{CrossEntropy, LossReduction, count, ignored_labels};
use crate::nn::module;
use crate::{AnyValue, DType, Float, Integer, Loc, Tensor, Var, trace};

/// Returns the sum of the negative log-likelihoods of tokens that are not ignored, and their
/// number.
#[track_caller]
fn sums<T: Float, I: Integer>(logits: Tensor<T>, tokens: Tensor<I>, ignored: Option<i64>) -> [AnyValue; 2] {
    let mut loss = CrossEntropy::new().reduction(LossReduction::None);
    let mut total = count(tokens.untyped(), DType::I64);
    if let Some(token) = ignored {
        loss = loss.ignore_label(token);
        total = ignored_labels(tokens.untyped(), token).not().cast(DType::I64).sum();
    }
    let losses = match T::DTYPE.is_half() {
        // Half precision would round the loss of each token.
        true => loss.loss(logits.cast::<f32>(), tokens).untyped(),
        false => loss.loss(logits, tokens).untyped(),
    };
    [losses.cast(DType::F64).sum(), total]
}

/// Returns the perplexity of tokens `[..]` for logits `[.., vocabulary]`: `exp` of the mean
/// negative log-likelihood of a token, or 1 without tokens.
///
/// ```
/// use anabranch::{metrics::perplexity, prelude::*};
///
/// let y = eval(|| perplexity(zeros::<f32>([2, 10]), tensor([3, 7])))?;
/// assert!((y.item() - 10.0).abs() < 1e-5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes do not match. A token that is not in the vocabulary fails the
/// step.
#[track_caller]
#[must_use]
pub fn perplexity<T: Float, I: Integer>(logits: Tensor<T>, tokens: Tensor<I>) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let [loss, total] = sums(logits, tokens, None);
        ratio(loss, total).exp()
    })
}

/// The [`perplexity`] of many batches: `exp` of the sum of all negative log-likelihoods, divided by
/// the number of all tokens.
#[derive(Debug)]
pub struct Perplexity {
    /// The sum of the negative log-likelihoods.
    pub loss: Var<f64>,
    /// The number of tokens.
    pub tokens: Var<i64>,
    ignored: Option<i64>,
}
module!(Perplexity: loss, tokens);

impl Perplexity {
    /// Creates the metric, in which all tokens count.
    #[expect(clippy::new_without_default, reason = "a new metric is a new state, as is a new layer")]
    pub fn new() -> Perplexity {
        Perplexity { loss: Var::untrained("loss", 0.0), tokens: Var::untrained("tokens", 0), ignored: None }
    }

    /// Sets a token that does not count, such as padding. It need not be in the vocabulary.
    #[must_use]
    pub fn ignore_token(self, token: i64) -> Perplexity {
        Perplexity { ignored: Some(token), ..self }
    }

    /// Adds a batch of logits `[.., vocabulary]` and tokens `[..]`.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match. A token that is not in the vocabulary fails the
    /// step.
    #[track_caller]
    pub fn update<T: Float, I: Integer>(&self, logits: Tensor<T>, tokens: Tensor<I>) {
        trace::called_at(Loc::caller(), || {
            let [loss, total] = sums(logits, tokens, self.ignored);
            add(&self.loss, loss);
            add(&self.tokens, total);
        });
    }

    /// Returns the perplexity since the last reset, or 1 without tokens.
    #[track_caller]
    #[must_use]
    pub fn result(&self) -> Tensor<f64> {
        trace::called_at(Loc::caller(), || ratio(self.loss.get().untyped(), self.tokens.get().untyped()).exp())
    }

    /// Forgets all batches.
    #[track_caller]
    pub fn reset(&self) {
        trace::called_at(Loc::caller(), || clear(&[self.loss.any(), self.tokens.any()]));
    }
}
