//! Edge cases: tensors without elements, lists that exceed the memory, numbers that are too large,
//! and NaN.

use crate::support::{check, check_tensors, error_of, errors_of};
use anabranch::dsl::function::{CallArgs, GraphFn};
use anabranch::dsl::ops::ConvOptions;
use anabranch::dsl::{f16, iota};
use anabranch::prelude::*;
use anabranch::{DType, HostTensor, List, TensorType};

#[test]
fn attention_over_no_matrices_has_gradients() -> anabranch::Result<()> {
    let session = Session::new()?;
    let f = session.function(|q: Tensor, k: Tensor, v: Tensor| {
        let y = q.scaled_dot_product_attention(k, v, AttentionMask::Causal);
        (y, gradients(y.sum(), (q, k, v)))
    })?;
    let none = || Array::<f32>::new([0, 3, 2], vec![]);
    let mut results = f.call((none(), none(), none()))?;
    f.call_into((none(), none(), none()), &mut results)?;
    let (dq, dk, dv) = results.1;
    assert_eq!([dq.shape(), dk.shape(), dv.shape()], [[0, 3, 2]; 3]);
    Ok(())
}

#[test]
fn empty_parts_of_flipped_tensors_have_values_and_gradients() {
    let x = || Array::new([3], vec![1.0f32, 2.0, 3.0]);
    let none = || Array::<f32>::new([0], vec![]);
    check(|x: Tensor| (-x.flip(0).slice(0, 3, 3), (x.flip(0).slice(0, 3, 3) * 2.0).sum()), x(), &[0.0]);
    let gradient = |x: Tensor, y: Tensor| {
        let joined = concat(&[x, y], 0).flip(0);
        let (dx, dy) = gradients((joined * joined).sum(), (x, y));
        (dx * 2.0, dy * 2.0)
    };
    check(gradient, (x(), none()), &[4.0, 8.0, 12.0]);
    let matrix = |x: Tensor| -x.flip(0).reshape([2, 3]).slice(0, 2, 2);
    check(matrix, Array::new([6], vec![1.0f32; 6]), &[]);
}

#[test]
fn a_kernel_reads_indices_that_an_operation_without_operands_makes() {
    #[graph]
    fn one_at_a_time(n: Tensor<i32>) -> Tensor<i32> {
        let (mut squares, mut i) = (zeros([1000]), scalar(0));
        while i < n {
            squares += (iota(1000) == i).cast() * i * i;
            i += 1;
        }
        squares
    }
    let expected: Vec<f64> = (0..1000).map(|i| if i < 4 { f64::from(i * i) } else { 0.0 }).collect();
    check(one_at_a_time, 4, &expected);
}

#[test]
fn tensors_may_have_many_axes() {
    let shape: Vec<usize> = (0..40).map(|axis| if axis % 20 == 0 { 2 } else { 1 }).collect();
    let x = Array::new(shape, vec![1.0f32, 2.0, 3.0, 4.0]);
    check(|x: Tensor| (-(x * 2.0 - 1.0), (x * x).sum()), x, &[-1.0, -3.0, -5.0, -7.0, 30.0]);
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
    assert!(error.to_string().contains("edge_cases.rs"), "{error}");
    assert_eq!(f.call(0)?.item(), 0, "the session stays usable");
    Ok(())
}

#[test]
fn a_list_too_large_for_memory_is_the_same_error_on_every_engine() {
    #[graph]
    fn rows(n: Tensor<i32>) -> Tensor<i32> {
        List::<f64>::with_len(n, [1000]).len()
    }
    let error = error_of(rows, i32::MAX);
    check(rows, 3, &[3.0]);
    assert_eq!(error.message, "list_new: out of memory: 2147483647 elements need 17179869176000 bytes");
    assert!(error.to_string().contains("List::<f64>::with_len(n, [1000])"), "{error}");

    #[graph]
    fn in_a_loop(n: Tensor<i32>) -> Tensor<f64> {
        let (mut sum, mut i) = (scalar(0.0f64), scalar(0));
        while i < 3 {
            if i == 2 {
                sum += List::<f64>::with_len(n, [1 << 20]).read(0).sum();
            }
            i += 1;
        }
        sum
    }
    assert!(error_of(in_a_loop, 1 << 30).message.starts_with("list_new: out of memory: 1073741824 elements need "));

    // The element count of one of them overflows any integer type here.
    #[graph]
    fn without_bounds(n: Tensor<i32>) -> Tensor<i32> {
        List::<f32>::with_len(n, [1 << 40, 1 << 40]).len()
    }
    let error = error_of(without_bounds, 3);
    assert!(error.message.starts_with("list_new: an element has at least "), "{error}");
    assert!(error.to_string().contains("List::<f32>::with_len"), "{error}");
}

#[test]
fn a_list_whose_stack_is_too_large_is_an_error_of_every_engine() {
    #[graph]
    fn gathers(indices: Tensor<i32>) -> Tensor<u8> {
        List::<u8>::with_len(1, [1 << 22]).gather(indices)
    }
    let indices = || Array::new([1 << 20], vec![0i32; 1 << 20]);
    all_need_memory(gathers, indices());
    all_need_memory(|i: Tensor<i32>| gathers(i.with_dynamic(0)), indices());
}

/// Checks that every engine reports the lack of memory.
#[track_caller]
fn all_need_memory<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) {
    for (engine, error) in errors_of(f, args) {
        let says = |part: &str| error.message.contains(part);
        // A peer has a budget for the steps of a session.
        let is_of_budget = says("bytes more cannot be used");
        assert!(is_of_budget || says("out of memory") || says("more than any memory can hold"), "{engine}: {error}");
    }
}

#[test]
fn results_too_large_for_memory_are_errors_of_every_engine() {
    const HUGE: usize = 1 << 38;
    all_need_memory(|| iota::<f32>(HUGE), ());
    all_need_memory(|x: Tensor| x.broadcast_to([HUGE]), 1.0);
    all_need_memory(|x: Tensor| x.broadcast_to([HUGE]).with_dynamic(0), 1.0);
    all_need_memory(|x: Tensor<f16>| x.broadcast_to([HUGE]).exp(), f16::from_f32(1.0));
    all_need_memory(|| full([HUGE], 1.5f64), ());
    let one = || Array::<f32>::new([1, 1, 1, 1], vec![1.0]);
    let padded = ConvOptions::<2>::default().padding(1 << 20);
    all_need_memory(move |x: Tensor, w: Tensor| x.conv2d(w, padded), (one(), one()));
    all_need_memory(|x: Tensor| x.matmul(x.transpose(0, 1)), vec![[1.0f32]; 1 << 22]);
}

#[test]
#[should_panic(expected = "f32[1099511627776, 1099511627776] needs")]
fn zeros_of_more_elements_than_can_be_counted_are_refused() {
    let _ = HostTensor::zeros(DType::F32, [1 << 40, 1 << 40]);
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

/// A pass writes the product as `-x`, which flips the sign of a NaN. No engine defines that sign.
#[test]
fn products_with_minus_one_are_equal_for_nans_of_both_signs() -> anabranch::Result<()> {
    let f = |x: Tensor| x * -1.0;
    let graph = Session::new()?.function(f)?.graph(&[TensorType::new(DType::F32, [4])])?;
    assert!(graph.to_string().contains("neg"), "no pass writes a negation: {graph}");
    let nan = f32::NAN;
    check_tensors(f, [nan, -nan, 0.0, 2.0], &[HostTensor::new([4], vec![nan, nan, -0.0, -2.0])]);
    Ok(())
}

#[graph]
fn grows_for_long(y: Tensor<f64>) -> Tensor<f64> {
    let mut z = y;
    while z < 1e18 {
        z = z * z.cos() + 1.0;
    }
    z
}

/// A loop over scalars is native code, which pushes the values for its gradient. The test runs in a
/// separate process with little memory.
#[test]
#[cfg(target_os = "linux")]
fn native_code_that_outgrows_memory_is_an_error_with_its_line() -> anabranch::Result<()> {
    const CHILD: &str = "ANABRANCH_LITTLE_MEMORY";
    if std::env::var_os(CHILD).is_none() {
        let name = "edge_cases::native_code_that_outgrows_memory_is_an_error_with_its_line";
        let tests = std::env::current_exe().expect("this program has a path");
        let limited = std::process::Command::new("sh")
            .args(["-c", r#"ulimit -v 400000 && exec "$0" --exact "$1" --nocapture"#])
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
    let text = f.explain(&[TensorType::new(DType::F64, [])])?;
    assert!(text.contains("natively"), "{text}");
    let error = f.call(0.5).unwrap_err();
    assert!(error.message.contains("out of memory"), "{error}");
    assert!(
        error.to_string().contains("tests/edge_cases.rs") && error.to_string().contains("while z < 1e18"),
        "{error}"
    );
    assert_eq!(f.call(1e20)?, 1.0, "the session stays usable");
    eprintln!("it went on");
    Ok(())
}
