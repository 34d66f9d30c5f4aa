//! Sessions, functions and variables.

use anabranch_dsl::format::Stream;
use anabranch_dsl::prelude::*;
use anabranch_dsl::{Array, DType, ErrorKind, HostTensor, TensorType, control, staged};
use anabranch_runtime::{CallOptions, CancelHandle, Session, SimulatedDevice};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
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
    // More combinations than the cache keeps: the oldest is compiled again, the newest is not.
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
    let mut state = session.state(&module)?;
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
    // A transposed view is not in row-major order.
    let z: ArrayD<f64> = f.call((&x, y.t()))?.into();
    assert_eq!(z, (&x - &y.t()).into_dyn());
    assert_eq!(f.call((x, array![1.0, 1.0, 1.0].into_dyn()))?.to_vec(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    Ok(())
}

#[test]
fn what_a_server_holds_is_unwind_safe() {
    fn check<T: UnwindSafe + RefUnwindSafe>(_: &T) {}
    let session = Session::new().unwrap();
    let w = Var::<f32>::new("w", 1.0);
    check(&session);
    check(&w);
    check(w.any());
    check(&HostTensor::scalar(1.0f32));
    check(&Array::new([1], vec![1]));
    check(&anabranch_dsl::optim::Adam::new(0.1));
    check(&CallOptions::new());
    check(&CancelHandle::new());
    let f = session.function(move |x: Tensor| x.named("x") * w.get()).unwrap();
    check(&f);
    check(&f.prune(&[TensorType::new(DType::F32, [])], &["x"], &["x"]).unwrap());
    check(&f.call(1.0).map(|_| ()));
}

#[test]
fn a_caught_panic_leaves_a_session_as_it_was() -> Outcome {
    let gpus = || [SimulatedDevice::new("/gpu:0"), SimulatedDevice::new("/gpu:1")];
    for builder in [
        Session::builder(),
        Session::builder().threads(2),
        Session::builder().interpreted(true),
        Session::builder().cpus(2).lower_everything(true),
        Session::builder().simulated(gpus()),
    ] {
        // The printer is user code that runs inside a step.
        let session = builder
            .print_to(|_: Stream, text: &str| {
                if text.contains("13") {
                    std::panic::resume_unwind(Box::new("unlucky"));
                }
            })
            .build()?;
        let w = Var::<f32>::new("w", 1.0);
        let f = session.function(|x: Tensor| {
            w.set(w.get() + x);
            staged::print(Stream::Stdout, format_args!("{}", w.get()), "\n");
            w.get() * 2.0
        })?;
        assert_eq!(f.call(1.0)?, 4.0);
        for _ in 0..3 {
            assert!(catch_unwind(|| f.call(11.0)).is_err());
            assert_eq!(session.get(&w)?, 2.0);
        }
        assert_eq!(f.call(1.0)?, 6.0);
        // The function panics in its first trace and succeeds in the next trace.
        let first = AtomicUsize::new(0);
        let g = session.function(|x: Tensor| {
            assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "on purpose");
            x + w.get()
        })?;
        assert!(catch_unwind(|| g.call(1.0)).is_err());
        assert_eq!(g.call(1.0)?, 4.0);
    }
    Ok(())
}

#[test]
fn errors_say_of_what_kind_they_are() -> Outcome {
    let kind = |result: anabranch_dsl::Result<Array<f32>>| result.map(|_| ()).map_err(|e| e.kind);
    let gpus = || [SimulatedDevice::new("/gpu:0"), SimulatedDevice::new("/gpu:1")];
    for builder in [
        Session::builder(),
        Session::builder().interpreted(true),
        Session::builder().native_code(false).fusion(false),
        Session::builder().cpus(2).lower_everything(true),
        Session::builder().simulated(gpus()),
    ] {
        let session = builder.build()?;
        let sum = session.function(|x: Tensor, y: Tensor| x + y)?;
        assert_eq!(kind(sum.call(([1.0, 2.0], [1.0, 2.0, 3.0]))), Err(ErrorKind::Invalid), "shapes");
        assert_eq!(sum.call_host(&[HostTensor::scalar(1)]).unwrap_err().kind, ErrorKind::Invalid, "arguments");
        let positive = session.function(|x: Tensor| {
            staged::Assert::new(x.sum().greater(0.0)).check(staged::message(format_args!("{}", x.sum())));
            control::while_loop(x, |x| x.sum().less(100.0), |x| x * 2.0)
        })?;
        assert_eq!(kind(positive.call([-1.0])), Err(ErrorKind::AssertionFailed));
        assert_eq!(kind(positive.call([1.0])), Ok(()));
        let finite = session.function(|x: Tensor| 1.0 / x)?.check_finite(true);
        assert_eq!(kind(finite.call(0.0)), Err(ErrorKind::AssertionFailed), "a value that is not finite");
        let table = session.function(|x: Tensor, i: Tensor<i32>| x.take(i, 0))?;
        assert_eq!(kind(table.call(([1.0, 2.0], [0, 2]))), Err(ErrorKind::Invalid), "an index");
        let quotient = session.function(|a: Tensor<i32>, b: Tensor<i32>| (a / b).cast::<f32>())?;
        assert_eq!(kind(quotient.call((1, 0))), Err(ErrorKind::Invalid), "a division by zero");
        let huge = session.function(|x: Tensor| x.broadcast_to([1 << 20, 1 << 20]).tanh())?;
        let error = huge.call(1.0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "memory: {error}");
        let late = CallOptions::new().timeout(std::time::Duration::ZERO);
        let endless = session.function(|x: Tensor| control::while_loop(x, |x| x.greater(0.0), |x| x.cos() + 2.0))?;
        assert_eq!(kind(endless.call_with(&late, 1.0)), Err(ErrorKind::DeadlineExceeded));
        let handle = CancelHandle::new();
        handle.cancel();
        let cancelled = CallOptions::new().cancelled_by(&handle);
        assert_eq!(kind(endless.call_with(&cancelled, 1.0)), Err(ErrorKind::Cancelled));
    }
    Ok(())
}

#[test]
fn a_state_that_does_not_fit_names_the_paths() -> Outcome {
    use anabranch_dsl::nn::{Init, Linear};
    let (session, init) = (Session::new()?, Init::new(0));
    let model = [Linear::new(&init, 2, 3), Linear::new(&init, 3, 1)];
    let saved = session.state(&model)?;
    let message = |values: &[(String, HostTensor)]| session.load_state(&model, values).unwrap_err();
    assert_eq!(message(&saved[1..]).message, "there is no value for the variable `0.weight`");
    assert_eq!(message(&saved[2..]).message, "there is no value for the variables `0.weight` and `0.bias`");
    let error = message(&[]);
    assert_eq!(error.message, "there is no value for the variables `0.weight`, `0.bias`, `1.weight` and `1.bias`");
    let renamed = |i: usize, path: &str| {
        let mut values = saved.clone();
        values[i].0 = path.to_owned();
        values
    };
    let error = message(&renamed(0, "head.weight"));
    assert_eq!(error.message, "there is no value for the variable `0.weight`");
    assert_eq!(error.labels[0].1, "the module has no variable `head.weight`");
    assert!(error.help.as_ref().is_some_and(|help| help.contains("`prepare(&model)`")), "{error}");
    assert_eq!(message(&renamed(0, "0.bias")).message, "there are two values for the variable `0.bias`");
    let mut values = saved.clone();
    values[2].1 = HostTensor::scalar(1.0f32);
    assert_eq!(message(&values).message, "the variable `1.weight` is f32[3, 1], but the value is f32[]");
    assert_eq!(session.state(&model)?, saved);
    Ok(())
}

/// Optimizer state that is saved before a layer is inserted can be loaded for the rest of the
/// model.
#[test]
fn a_layer_that_is_inserted_shifts_no_state_of_the_optimizer() -> Outcome {
    use anabranch_dsl::optim::{Adam, Optimizer};
    let weight = |name: &str, x: f32| (name.to_owned(), Var::<f32>::new("w", x));
    struct Net(Vec<(String, Var<f32>)>);
    impl anabranch_dsl::Module for Net {
        fn visit(&self, path: &mut anabranch_dsl::var::VarPath, visit: &mut dyn FnMut(&str, &anabranch_dsl::AnyVar)) {
            self.0.iter().for_each(|(name, var)| path.with(name, |p| visit(p.as_str(), var.any())));
        }
    }
    let session = Session::new()?;
    let (net, adam) = (Net(vec![weight("first", 1.0), weight("last", 2.0)]), Adam::new(0.1));
    let train = session.function(|| {
        let loss = net.0.iter().map(|(_, w)| w.get() * w.get()).reduce(|a, b| a + b).unwrap();
        adam.minimize(loss, &net);
    })?;
    train.call(())?;
    let saved = session.state(&adam)?;
    let larger = Net(vec![weight("first", 1.0), weight("inserted", 5.0), weight("last", 2.0)]);
    let other = Adam::new(0.1);
    other.prepare(&larger);
    let paths = |values: &[(String, HostTensor)]| values.iter().map(|(p, _)| p.clone()).collect::<Vec<_>>();
    let mut values = session.state(&other)?;
    assert_eq!(paths(&saved), ["steps", "first.adam_m", "first.adam_v", "last.adam_m", "last.adam_v"]);
    for (path, value) in &mut values {
        if let Some((_, old)) = saved.iter().find(|(p, _)| p == path) {
            *value = old.clone();
        }
    }
    session.load_state(&other, &values)?;
    let value = |path: &str, all: &[(String, HostTensor)]| all.iter().find(|(p, _)| p == path).unwrap().1.clone();
    for path in ["first.adam_m", "last.adam_m", "last.adam_v", "steps"] {
        assert_eq!(value(path, &session.state(&other)?), value(path, &saved), "{path}");
    }
    assert_ne!(value("first.adam_m", &saved), value("last.adam_m", &saved));
    Ok(())
}
