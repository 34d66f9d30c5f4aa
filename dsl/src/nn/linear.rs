//! The linear layer.

use super::{Init, module};
use crate::{Float, Tensor, Var};

/// The affine map `x · weight + bias`, for `x` of shape `[.., inputs]`.
#[derive(Debug)]
pub struct Linear {
    /// The weight matrix, `[inputs, outputs]`.
    pub weight: Var,
    /// The bias, `[outputs]`.
    pub bias: Var,
}
module!(Linear: weight, bias);

impl Linear {
    /// Creates a layer with weights and bias uniform within `1 / sqrt(inputs)`.
    pub fn new(init: &Init, inputs: usize, outputs: usize) -> Linear {
        Linear {
            weight: Var::new("weight", init.fan_in([inputs, outputs], inputs)),
            bias: Var::new("bias", init.fan_in([outputs], inputs)),
        }
    }

    /// Applies the layer: `[.., inputs]` to `[.., outputs]`.
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x.matmul(self.weight.get().cast()) + self.bias.get().cast()
    }
}
