//! Sessions, functions and variables.

use anabranch_dsl::prelude::*;
use anabranch_dsl::{DType, HostTensor, TensorType};
use anabranch_runtime::Session;
use std::sync::atomic::{AtomicUsize, Ordering};

type Outcome = anabranch_dsl::Result<()>;

#[test]
fn a_call_gives_typed_arrays() -> Outcome {
    let session = Session::new()?;
    let f = session.function(|x: Tensor| x * 2.0)?;
    assert_eq!(f.call(3.0)?, 6.0);
    assert_eq!(f.call([1.0, 2.0])?.as_slice(), [2.0, 4.0]);
    let f = session.function(|x: Tensor<i32>, (y, z): (Tensor<i32>, Tensor)| ((x + y, z), [x, y]))?;
    let ((sum, z), [x, y]) = f.call((1, ([2, 3], 0.5)))?;
    assert_eq!((sum.to_vec(), z.item(), x.item(), y.to_vec()), (vec![3, 4], 0.5, 1, vec![2, 3]));
    session.function(|| ())?.call(())
}

#[test]
fn a_function_is_traced_once_for_each_combination_of_types() -> Outcome {
    let session = Session::new()?;
    let traces = AtomicUsize::new(0);
    let f = session.function(|x: Tensor| {
        traces.fetch_add(1, Ordering::Relaxed);
        x + 1.0
    })?;
    for _ in 0..3 {
        f.call(1.0)?;
        f.call([1.0, 2.0])?;
    }
    f.compile(&[TensorType::new(DType::F32, [2])])?;
    assert_eq!(traces.load(Ordering::Relaxed), 2);
    // More combinations than are kept: the oldest is compiled again, the newest is not.
    for n in 3..80 {
        f.call(vec![0.0; n])?;
    }
    assert_eq!(traces.load(Ordering::Relaxed), 79);
    f.call(vec![0.0; 79])?;
    assert_eq!(traces.load(Ordering::Relaxed), 79);
    f.call(1.0)?;
    assert_eq!(traces.load(Ordering::Relaxed), 80);
    Ok(())
}

#[test]
fn variables_keep_their_values_in_their_session() -> Outcome {
    let (session, other) = (Session::new()?, Session::new()?);
    let w = Var::<f32>::new("w", [1.0, 2.0]);
    let step = session.function(|x| {
        w.set(w.get() + x);
        w.get().sum()
    })?;
    assert_eq!(step.call(1.0)?, 5.0);
    assert_eq!(step.call([1.0, -1.0])?, 5.0);
    assert_eq!(session.get(&w)?.to_vec(), [3.0, 2.0]);
    assert_eq!(other.get(&w)?.to_vec(), [1.0, 2.0]);
    other.set(&w, [7.0, 8.0])?;
    assert_eq!(session.get(&w)?.to_vec(), [3.0, 2.0]);
    assert!(other.set(&w, [1.0]).unwrap_err().message.contains("f32[1]"));
    Ok(())
}

#[test]
fn variables_may_exchange_their_values() -> Outcome {
    let session = Session::new()?;
    let (a, b) = (Var::<f32>::new("a", [1.0, 2.0]), Var::<f32>::new("b", [3.0, 4.0]));
    let swap = session.function(|| {
        let (x, y) = (a.get(), b.get());
        a.set(y);
        b.set(x);
    })?;
    swap.call(())?;
    assert_eq!((session.get(&a)?.to_vec(), session.get(&b)?.to_vec()), (vec![3.0, 4.0], vec![1.0, 2.0]));
    Ok(())
}

#[test]
fn the_state_of_a_module_is_saved_and_loaded_as_a_whole() -> Outcome {
    let session = Session::new()?;
    let module = vec![Var::<f32>::new("a", 1.0), Var::<f32>::new("b", 2.0)];
    let mut state = session.state(&module);
    assert_eq!(state[1], ("1".to_owned(), HostTensor::scalar(2.0f32)));
    state[0].1 = HostTensor::scalar(5.0f32);
    session.load_state(&module, &state)?;
    assert_eq!(session.get(&module[0])?, 5.0);
    state[0].1 = HostTensor::scalar(6.0f32);
    state[1].1 = HostTensor::scalar(1i32);
    assert!(session.load_state(&module, &state).is_err());
    assert!(session.load_state(&module, &state[..1]).unwrap_err().message.contains("`1`"));
    assert_eq!(session.get(&module[0])?, 5.0, "a failing load changes nothing");
    Ok(())
}

#[test]
fn a_call_with_wrong_types_names_what_is_expected_and_given() -> Outcome {
    let session = Session::new()?;
    let f = session.function(|x: Tensor, n: Tensor<i32>| (x, n))?;
    let error = f.call_host(&[HostTensor::scalar(1.0f32), HostTensor::scalar(1.0f32)]).unwrap_err().to_string();
    assert!(error.contains("input 1") && error.contains("i32") && error.contains("f32[]"), "{error}");
    assert!(error.contains("while tracing") && error.contains("(f32[], f32[])"), "{error}");
    assert!(f.call_host(&[HostTensor::scalar(1.0f32)]).is_err());
    Ok(())
}

#[test]
fn the_check_for_finite_values_names_the_line() -> Outcome {
    let session = Session::new()?;
    let line = line!() + 1;
    let logarithm = |x: Tensor| (x * 1.0).log() + 1.0;
    let f = session.function(logarithm)?.check_finite(true);
    for x in [vec![1.0], vec![1.0, -1.0]] {
        let bad = x.len() == 2;
        match f.call(x) {
            Ok(y) => assert!(!bad, "{y}"),
            Err(e) => {
                assert!(bad, "{e}");
                assert!(e.message.starts_with("log:"), "{e}");
                assert_eq!(e.loc().map(|l| l.line), Some(line));
            }
        }
    }
    let error = f.call(-1.0).unwrap_err();
    assert_eq!(error, f.interpreted(true).call(-1.0).unwrap_err());
    Ok(())
}

#[test]
fn a_function_called_while_tracing_is_an_error() -> Outcome {
    let session = Session::new()?;
    let inner = session.function(|x: Tensor| x)?;
    let outer = session.function(|x: Tensor| {
        let error = inner.call(1.0).unwrap_err();
        assert!(error.message.contains("while a function is being traced"), "{error}");
        x
    })?;
    outer.call(1.0).map(|_| ())
}

#[test]
fn a_panic_while_tracing_leaves_the_function_usable() -> Outcome {
    let session = Session::new()?;
    let first = AtomicUsize::new(0);
    let f = session.function(|x: Tensor| {
        assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "the first trace panics");
        x
    })?;
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f.call(1.0))).is_err());
    assert_eq!(f.call(1.0)?, 1.0);
    Ok(())
}

#[test]
fn arrays_of_ndarray_go_in_and_come_out() -> Outcome {
    use ndarray::{ArrayD, array};
    let session = Session::new()?;
    let f = session.function(|x: Tensor<f64>, y: Tensor<f64>| x - y)?;
    let (x, y) = (array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    // A transposed view does not lie in row-major order.
    let z: ArrayD<f64> = f.call((&x, y.t()))?.into();
    assert_eq!(z, (&x - &y.t()).into_dyn());
    assert_eq!(f.call((x, array![1.0, 1.0, 1.0].into_dyn()))?.to_vec(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    Ok(())
}
