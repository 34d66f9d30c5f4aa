//! What is at the edge: tensors without elements.

use anabranch::prelude::*;

#[test]
fn attention_over_no_matrices_has_gradients() -> anabranch::Result<()> {
    let session = Session::new()?;
    let f = session.function(|q: Tensor, k: Tensor, v: Tensor| {
        let y = q.scaled_dot_product_attention(k, v, true);
        (y, gradients(y.sum(), (q, k, v)))
    })?;
    let none = || Array::<f32>::new([0, 3, 2], vec![]);
    let mut results = f.call((none(), none(), none()))?;
    f.call_into((none(), none(), none()), &mut results)?;
    let (dq, dk, dv) = results.1;
    assert_eq!([dq.shape(), dk.shape(), dv.shape()], [[0, 3, 2]; 3]);
    Ok(())
}
