//! The affine map.

use super::{Init, module};
use crate::{Float, Tensor, Var};

/// `x · weight + bias`, for `x` of shape `[.., inputs]`.
#[derive(Debug)]
pub struct Linear {
    /// `[inputs, outputs]`
    pub weight: Var,
    /// `[outputs]`
    pub bias: Var,
}
module!(Linear: weight, bias);

impl Linear {
    /// A layer with weights and bias uniform within `1 / sqrt(inputs)`.
    pub fn new(init: &Init, inputs: usize, outputs: usize) -> Linear {
        Linear {
            weight: Var::new("weight", init.fan_in([inputs, outputs], inputs)),
            bias: Var::new("bias", init.fan_in([outputs], inputs)),
        }
    }

    /// `[.., inputs]` to `[.., outputs]`.
    #[track_caller]
    pub fn apply<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x.matmul(self.weight.get().cast()) + self.bias.get().cast()
    }
}
