//! Multi-head attention.

use super::{Init, Linear, module};
use crate::ops::AttentionMask;
use crate::{Float, Loc, Tensor, trace};

/// Multi-head attention (Vaswani et al. 2017).
///
/// Queries, keys and values are linear maps of the input vectors, split into heads. Each head
/// computes attention on its own. The concatenated results pass through another linear map.
#[derive(Debug)]
pub struct MultiHeadAttention {
    /// The map to queries, `[size, size]`.
    pub query: Linear,
    /// The map to keys, `[size, size]`.
    pub key: Linear,
    /// The map to values, `[size, size]`.
    pub value: Linear,
    /// The map of the concatenated heads, `[size, size]`.
    pub output: Linear,
    heads: usize,
}
module!(MultiHeadAttention: query, key, value, output);

impl MultiHeadAttention {
    /// Creates attention over vectors of `size` elements with `heads` heads.
    ///
    /// # Panics
    /// Panics if `heads` does not divide `size`.
    pub fn new(init: &Init, size: usize, heads: usize) -> MultiHeadAttention {
        assert!(
            heads > 0 && size.is_multiple_of(heads),
            "vectors of {size} elements cannot be divided into {heads} heads"
        );
        let [query, key, value, output] = std::array::from_fn(|_| Linear::new(init, size, size));
        MultiHeadAttention { query, key, value, output, heads }
    }

    /// Applies self-attention to a sequence `[batch, length, size]`.
    ///
    /// With [`AttentionMask::Causal`] no position sees a later position.
    ///
    /// ```
    /// # use anabranch::{nn::{Init, MultiHeadAttention}, prelude::*};
    /// let attention = MultiHeadAttention::new(&Init::new(1), 8, 2);
    /// let y = eval(|| attention.forward(full([3, 5, 8], 0.5), AttentionMask::None))?;
    /// assert_eq!(y.shape(), [3, 5, 8]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>, mask: AttentionMask) -> Tensor<T> {
        trace::called_at(Loc::caller(), || self.attend(x, x, mask))
    }

    /// Applies attention of a sequence `[batch, n, size]` to another sequence, `[batch, m, size]`.
    ///
    /// Returns `[batch, n, size]`.
    #[track_caller]
    pub fn forward_with<T: Float>(&self, x: Tensor<T>, memory: Tensor<T>) -> Tensor<T> {
        trace::called_at(Loc::caller(), || self.attend(x, memory, AttentionMask::None))
    }

    fn attend<T: Float>(&self, x: Tensor<T>, memory: Tensor<T>, mask: AttentionMask) -> Tensor<T> {
        let shape = |x: Tensor<T>| [x.dim(0), x.dim(1), x.dim(2)];
        let [batch, length, size] = shape(x);
        // `[batch, heads, length, size / heads]`
        let parts = |x: Tensor<T>| {
            let [batch, length, size] = shape(x);
            x.reshape([batch, length, self.heads, size / self.heads]).transpose(1, 2)
        };
        let (q, k, v) = (self.query.forward(x), self.key.forward(memory), self.value.forward(memory));
        let y = parts(q).scaled_dot_product_attention(parts(k), parts(v), mask);
        self.output.forward(y.transpose(1, 2).reshape([batch, length, size]))
    }
}
