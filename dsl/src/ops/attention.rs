//! Attention, made of other operations.

use super::*;
use crate::{Float, Tensor};

impl Any {
    /// See [`Tensor::scaled_dot_product_attention`].
    #[track_caller]
    pub fn scaled_dot_product_attention(self, keys: Any, values: Any, causal: bool) -> Any {
        let op = "scaled_dot_product_attention";
        let (q, k) = (self.tensor_type(), keys.tensor_type());
        let label = format!("{q} with keys {k}");
        if q.rank() < 2 || k.rank() < 2 || values.tensor_type().rank() < 2 {
            let error = OpError::new("queries, keys and values are matrices, or batches of them");
            refuse(op, error.label(format!("{label} and values {}", values.tensor_type())));
        }
        let size = self.dim(-1);
        let scores = self.matmul(keys.transpose(-2, -1)) / (size as f64).sqrt();
        let scores = match causal {
            false => scores,
            true => {
                let (n, m) = (self.dim(-2), keys.dim(-2));
                if n != m {
                    let error = OpError::new(format!("{n} queries for {m} keys"));
                    refuse(op, error.label(label).help("the causal mask needs as many of both"));
                }
                let row = Tensor::<i32>::iota([n, n], 0).untyped();
                let column = Tensor::<i32>::iota([n, n], 1).untyped();
                column.gt(row).select(scores.number(f64::NEG_INFINITY), scores)
            }
        };
        scores.softmax(-1).matmul(values)
    }
}

impl<T: Float> Tensor<T> {
    /// For each query of this tensor `[.., n, size]` the mean of the values `[.., m, width]`, weighted by the softmax of
    /// `query · key / sqrt(size)` over the keys `[.., m, size]`: `[.., n, width]` (Vaswani et al. 2017). Leading axes are
    /// broadcast.
    ///
    /// If it is `causal`, query `i` sees the keys `0..=i` only, and there are as many keys as queries.
    ///
    /// ```
    /// # use anabranch_dsl::prelude::*;
    /// let (queries, values) = (|| zeros::<f32>([2, 4]), || tensor([[1.0f32], [3.0]]));
    /// let y = |causal: bool| eval(move || queries().scaled_dot_product_attention(queries(), values(), causal));
    /// assert_eq!(y(false)?.as_slice(), [2.0, 2.0]);
    /// assert_eq!(y(true)?.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn scaled_dot_product_attention(self, keys: Tensor<T>, values: Tensor<T>, causal: bool) -> Tensor<T> {
        Tensor::from_any(self.untyped().scaled_dot_product_attention(keys.untyped(), values.untyped(), causal))
    }
}
