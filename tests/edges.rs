//! What is at the edge: tensors without elements, lists for which there is no memory, and numbers that are too large.

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

#[graph]
fn grows_for_long(y: Tensor<f64>) -> Tensor<f64> {
    let mut z = y;
    while z < 1e18 {
        z = z * z.cos() + 1.0;
    }
    z
}

/// A loop over numbers is native code, which pushes what its gradient needs. It runs in a process of its own with little memory.
#[test]
#[cfg(target_os = "linux")]
fn native_code_that_outgrows_memory_is_an_error_with_its_line() -> anabranch::Result<()> {
    const CHILD: &str = "ANABRANCH_LITTLE_MEMORY";
    if std::env::var_os(CHILD).is_none() {
        let name = "edges::native_code_that_outgrows_memory_is_an_error_with_its_line";
        let tests = std::env::current_exe().expect("this program has a path");
        let limited = std::process::Command::new("sh")
            .args(["-c", r#"ulimit -v 250000 && exec "$0" --exact "$1" --nocapture"#])
            .arg(tests)
            .arg(name)
            .env(CHILD, "1")
            .output()
            .expect("there is a shell");
        let said = String::from_utf8_lossy(&limited.stderr);
        assert!(limited.status.success() && said.contains("it went on"), "{said}");
        return Ok(());
    }
    let session = Session::new()?;
    let f = session.function(|y: Tensor<f64>| {
        let z = grows_for_long(y);
        gradients(z, y)
    })?;
    let text = f.explain(&[anabranch::TensorType::new(anabranch::DType::F64, [])])?;
    assert!(text.contains("native"), "{text}");
    let error = f.call(0.5).unwrap_err();
    assert!(error.message.contains("bytes of memory"), "{error}");
    assert!(error.to_string().contains("tests/edges.rs") && error.to_string().contains("while z < 1e18"), "{error}");
    assert_eq!(f.call(1e20)?, 1.0, "the session stays usable");
    eprintln!("it went on");
    Ok(())
}
