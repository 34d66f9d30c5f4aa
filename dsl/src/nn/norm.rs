//! Normalization.

use super::module;
use crate::{Array, Tensor, Var};

/// Layer normalization over the last axis (Ba, Kiros and Hinton 2016).
#[derive(Debug)]
pub struct LayerNorm {
    /// `[size]`, initially 1.
    pub scale: Var,
    /// `[size]`, initially 0.
    pub bias: Var,
    /// Added to the variance.
    pub epsilon: f32,
}
module!(LayerNorm: scale, bias);

impl LayerNorm {
    /// A normalization of vectors of `size` elements.
    pub fn new(size: usize) -> LayerNorm {
        let constant = |x: f32| Array::new([size], vec![x; size]);
        LayerNorm { scale: Var::new("scale", constant(1.0)), bias: Var::new("bias", constant(0.0)), epsilon: 1e-5 }
    }

    /// `[.., size]` to the same shape.
    #[track_caller]
    pub fn apply(&self, x: Tensor) -> Tensor {
        x.layer_norm(self.scale.get(), self.bias.get(), self.epsilon)
    }
}
