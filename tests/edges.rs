//! What is at the edge: tensors without elements, lists for which there is no memory, and numbers that are too large.

use anabranch::dsl::ops::ConvOptions;
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

#[graph]
fn list_of(n: Tensor<i32>) -> Tensor<i32> {
    let list = List::<f32>::with_len(n, [1 << 24]);
    list.len()
}

#[test]
fn a_list_that_outgrows_memory_is_an_error_with_its_bytes() -> anabranch::Result<()> {
    let session = Session::new()?;
    let f = session.function(list_of)?;
    let error = f.call(1 << 30).unwrap_err();
    // Elements of 64 MiB.
    assert!(error.message.contains("1073741824 elements need 72057594037927936 bytes"), "{error}");
    assert!(error.to_string().contains("edges.rs"), "{error}");
    assert_eq!(f.call(0)?.item(), 0, "the session stays usable");
    Ok(())
}

#[test]
fn windows_of_absurd_numbers_are_errors() {
    const HUGE: usize = usize::MAX / 2;
    let options: [ConvOptions<2>; 3] = [
        ConvOptions::default().padding(HUGE),
        ConvOptions::default().dilation(HUGE),
        ConvOptions::default().stride(HUGE).padding(HUGE),
    ];
    for options in options {
        let x = || (zeros::<f32>([1, 1, 4, 4]), zeros::<f32>([1, 1, 3, 3]));
        let forward = eval(|| x().0.conv2d(x().1, options)).map(|y| y.shape().to_vec());
        assert!(forward.is_err(), "{forward:?}");
        let back = eval(|| x().0.conv_transpose2d(x().1, options)).map(|y| y.shape().to_vec());
        assert!(back.is_err(), "{back:?}");
    }
}
