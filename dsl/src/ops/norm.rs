//! Normalization, made of other operations.

use super::*;
use crate::{Float, Tensor};

impl Any {
    /// See [`Tensor::layer_norm`].
    #[track_caller]
    pub fn layer_norm(self, scale: Any, bias: Any, epsilon: f64) -> Any {
        let difference = self - self.mean(-1, true);
        let deviation = (difference.square().mean(-1, true) + epsilon).rsqrt();
        difference * deviation * scale + bias
    }
}

impl<T: Float> Tensor<T> {
    /// Elements along the last axis shifted and scaled to mean 0 and variance 1, then scaled and shifted by parameters:
    /// `(x - mean) / sqrt(variance + epsilon) * scale + bias` (Ba, Kiros and Hinton 2016).
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let y = eval(|| tensor([1.0f32, 3.0]).layer_norm(tensor([2.0, 2.0]), tensor([0.5, 0.5]), 0.0))?;
    /// assert_eq!(y.as_slice(), [-1.5, 2.5]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn layer_norm(self, scale: Tensor<T>, bias: Tensor<T>, epsilon: T) -> Tensor<T>
    where
        T: Into<f64>,
    {
        Tensor::from_any(self.untyped().layer_norm(scale.untyped(), bias.untyped(), epsilon.into()))
    }
}
