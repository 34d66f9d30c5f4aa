//! Normalization and dropout, composed of other operations.

use super::*;
use crate::{DType, Float, Tensor};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::layer_norm`].
    #[track_caller]
    pub fn layer_norm(self, scale: AnyValue<C>, bias: AnyValue<C>, epsilon: f64) -> AnyValue<C> {
        if self.dtype().is_half() {
            let [x, scale, bias] = [self, scale, bias].map(|x| x.cast(DType::F32));
            return x.layer_norm(scale, bias, epsilon).cast(self.dtype());
        }
        let difference = self - self.mean_keepdim(-1);
        let deviation = (difference.square().mean_keepdim(-1) + epsilon).rsqrt();
        difference * deviation * scale + bias
    }

    /// See [`Tensor::rms_norm`].
    #[track_caller]
    pub fn rms_norm(self, scale: AnyValue<C>, epsilon: f64) -> AnyValue<C> {
        if self.dtype().is_half() {
            let [x, scale] = [self, scale].map(|x| x.cast(DType::F32));
            return x.rms_norm(scale, epsilon).cast(self.dtype());
        }
        self * (self.square().mean_keepdim(-1) + epsilon).rsqrt() * scale
    }
}

impl AnyValue {
    /// See [`Tensor::dropout`].
    #[track_caller]
    pub fn dropout(self, rate: f64, key: random::Key) -> AnyValue {
        if !(0.0..1.0).contains(&rate) {
            let error = OpError::new(format!("the rate {rate} must be at least 0 and less than 1"));
            let help = "the rate is the share of elements that become 0, such as 0.1";
            refuse::<InTrace>("dropout", error.label(self.tensor_type().to_string()).help(help));
        }
        if rate == 0.0 {
            return self;
        }
        let kept =
            key.uniform::<f32>(self.shape()).untyped().ge(self.context().constant(HostTensor::scalar(rate as f32)));
        // The factor is not rounded to 16 bits, which would change the mean.
        let scaled = self.cast(evaluate::widened(self.dtype())) * (1.0 / (1.0 - rate));
        kept.select(scaled.cast(self.dtype()), self.number(0.0))
    }
}

impl<T: Float> Tensor<T> {
    /// Normalizes along the last axis: `(x - mean) / sqrt(variance + epsilon) * scale + bias` (Ba,
    /// Kiros and Hinton 2016).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y =
    ///     eval(|| tensor([1.0f32, 3.0]).layer_norm(tensor([2.0, 2.0]), tensor([0.5, 0.5]), 0.0))?;
    /// assert_eq!(y.as_slice(), [-1.5, 2.5]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn layer_norm(self, scale: Tensor<T>, bias: Tensor<T>, epsilon: T) -> Tensor<T>
    where
        T: Into<f64>,
    {
        Tensor::from_any(self.untyped().layer_norm(scale.untyped(), bias.untyped(), epsilon.into()))
    }

    /// Divides by the root mean square along the last axis:
    /// `x / sqrt(mean(x * x) + epsilon) * scale` (Zhang and Sennrich 2019).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([1.0f32, 7.0]).rms_norm(tensor([1.0, 2.0]), 0.0))?;
    /// assert_eq!(y.as_slice(), [0.2, 2.8]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn rms_norm(self, scale: Tensor<T>, epsilon: T) -> Tensor<T>
    where
        T: Into<f64>,
    {
        Tensor::from_any(self.untyped().rms_norm(scale.untyped(), epsilon.into()))
    }

    /// Sets each element to zero with probability `rate` and divides the others by `1 - rate`,
    /// which preserves the mean (Srivastava et al. 2014).
    ///
    /// The same key drops the same elements.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// let y = eval(|| full([1000], 1.0f32).dropout(0.25, Key::new(1)))?;
    /// assert!(y.as_slice().iter().all(|&y| y == 0.0 || y == 1.0 / 0.75));
    /// assert!((200..300).contains(&y.as_slice().iter().filter(|&&y| y == 0.0).count()));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn dropout(self, rate: f64, key: random::Key) -> Tensor<T> {
        Tensor::from_any(self.untyped().dropout(rate, key))
    }
}
