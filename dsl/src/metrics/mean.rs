//! Means of numbers.

use super::{add, clear, ratio};
use crate::losses::{check_same_shape, count};
use crate::nn::module;
use crate::{DType, Loc, Numeric, Tensor, Var, trace};

/// The mean of all numbers of many batches, optionally weighted.
///
/// The mean of the losses of batches is wrong if the last batch is smaller. Weight each by its
/// number of examples, or pass the losses of the examples.
///
/// ```
/// use anabranch::{metrics::RunningMean, prelude::*};
///
/// let mean = RunningMean::new();
/// let session = Session::new()?;
/// let update = session.function(|losses: Tensor| {
///     mean.update(losses);
///     mean.result()
/// })?;
/// update.call([1.0, 2.0, 3.0])?;
/// assert_eq!(update.call([6.0])?, 3.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct RunningMean {
    /// The weighted sum of the numbers.
    pub weighted_sum: Var<f64>,
    /// The sum of the weights.
    pub weight: Var<f64>,
}
module!(RunningMean: weighted_sum, weight);

impl RunningMean {
    /// Creates the mean of nothing, which is 0.
    #[expect(clippy::new_without_default, reason = "a new metric is a new state, as is a new layer")]
    pub fn new() -> RunningMean {
        RunningMean { weighted_sum: Var::untrained("weighted_sum", 0.0), weight: Var::untrained("weight", 0.0) }
    }

    /// Adds numbers, each with the weight 1.
    #[track_caller]
    pub fn update<T: Numeric>(&self, values: Tensor<T>) {
        trace::called_at(Loc::caller(), || {
            let values = values.untyped();
            add(&self.weighted_sum, values.cast(DType::F64).sum());
            add(&self.weight, count(values, DType::F64));
        });
    }

    /// Adds numbers with weights, of equal shapes. A number of weight 0 does not count, even if it
    /// is not finite.
    ///
    /// ```
    /// use anabranch::{metrics::RunningMean, prelude::*};
    ///
    /// let mean = RunningMean::new();
    /// let session = Session::new()?;
    /// let update = session.function(|values: Tensor, weights: Tensor| {
    ///     mean.update_weighted(values, weights);
    ///     mean.result()
    /// })?;
    /// assert_eq!(update.call(([1.0, 4.0, f32::NAN], [2.0, 1.0, 0.0]))?, 2.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if the shapes differ.
    #[track_caller]
    pub fn update_weighted<T: Numeric, W: Numeric>(&self, values: Tensor<T>, weights: Tensor<W>) {
        trace::called_at(Loc::caller(), || {
            let (values, weights) = (values.untyped(), weights.untyped());
            check_same_shape("RunningMean", ("values", values), ("weights", weights));
            let [values, weights] = [values, weights].map(|x| x.cast(DType::F64));
            let weighted = crate::losses::without(weights.eq(weights.number(0.0)), values * weights);
            add(&self.weighted_sum, weighted.sum());
            add(&self.weight, weights.sum());
        });
    }

    /// Returns the mean since the last reset, or 0 if the weights add up to 0.
    #[track_caller]
    #[must_use]
    pub fn result(&self) -> Tensor<f64> {
        trace::called_at(Loc::caller(), || ratio(self.weighted_sum.get().untyped(), self.weight.get().untyped()))
    }

    /// Forgets all numbers.
    #[track_caller]
    pub fn reset(&self) {
        trace::called_at(Loc::caller(), || clear(&[self.weighted_sum.any(), self.weight.any()]));
    }
}
