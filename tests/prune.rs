//! Pruned functions: feeds and fetches, and which operations run for them, on one device and on
//! several.

use anabranch::dsl::passes::{self, Assignments};
use anabranch::dsl::{HostTensor, TensorType, function::trace_fn, interp};
use anabranch::optim::{Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, DType, Diagnostic, ErrorKind};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Outcome = anabranch::Result<()>;

fn floats(shape: impl Into<Vec<usize>>, data: &[f32]) -> HostTensor {
    HostTensor::new(shape.into(), data.to_vec())
}

fn number(x: f32) -> HostTensor {
    HostTensor::scalar(x)
}

fn ty(shape: impl Into<Vec<usize>>) -> TensorType {
    TensorType::new(DType::F32, shape.into())
}

/// Returns sessions on one device, on two, on two with everything lowered, and of the interpreter.
fn sessions() -> Vec<Session> {
    let builders = [
        Session::builder(),
        Session::builder().cpus(2),
        Session::builder().cpus(2).lower_everything(true),
        Session::builder().interpreted(true),
    ];
    builders.into_iter().map(|b| b.build().expect("a session")).collect()
}

/// A network of two layers with a loop between them. If there is a second device, half of it runs
/// there.
#[graph]
fn model(x: Tensor, w: Tensor) -> Tensor {
    let hidden = (x * w).tanh().named("hidden");
    let mut y = hidden;
    for i in range(scalar(3)) {
        y = y * 0.5 + i.cast::<f32>();
    }
    let y = y.named("y");
    let scaled = on("/cpu", || (y * w).exp()).named("scaled");
    scaled.sum().named("sum")
}

fn hidden(x: f32, w: f32) -> f32 {
    (x * w).tanh()
}

fn y_of_hidden(hidden: f32) -> f32 {
    (0..3).fold(hidden, |y, i| y * 0.5 + i as f32)
}

#[track_caller]
fn near(got: &HostTensor, expected: &[f32]) {
    let got = Array::<f32>::from_host(got.clone()).expect("floats").to_vec();
    assert_eq!(got.len(), expected.len(), "{got:?} is not {expected:?}");
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() <= 1e-5 * e.abs().max(1.0), "{got:?} is not {expected:?}");
    }
}

#[test]
fn what_is_fed_and_fetched_may_be_any_named_value() -> Outcome {
    let (x, w) = ([0.5, -1.0], [1.0, 2.0]);
    let signature = [ty([2]), ty([2])];
    let h: Vec<f32> = x.iter().zip(w).map(|(&x, w)| hidden(x, w)).collect();
    let y: Vec<f32> = h.iter().map(|&h| y_of_hidden(h)).collect();
    let sum: f32 = y.iter().zip(w).map(|(y, w)| (y * w).exp()).sum();
    for session in sessions() {
        let f = session.function(model)?;
        let of_params = f.prune(&signature, &["x", "w"], &["sum", "y", "hidden", "result 0", "x", "hidden"])?;
        let got = of_params.call(&[floats([2], &x), floats([2], &w)])?;
        assert_eq!(got[0], f.call_host(&[floats([2], &x), floats([2], &w)])?[0]);
        for (got, expected) in got.iter().zip([&[sum][..], &y, &h, &[sum], &x, &h]) {
            near(got, expected);
        }
        // Feeds are in the order of their names. The parameter `x` is not needed.
        let of_hidden = f.prune(&signature, &["w", "hidden"], &["sum", "y"])?;
        let fed = [0.25, 4.0];
        let y = fed.map(y_of_hidden);
        let sum: f32 = y.iter().zip(w).map(|(y, w)| (y * w).exp()).sum();
        let got = of_hidden.call(&[floats([2], &w), floats([2], &fed)])?;
        near(&got[0], &[sum]);
        near(&got[1], &y);
        // A result may be fed, and a feed may be fetched.
        let got = f.prune(&signature, &["y"], &["y"])?.call(&[floats([2], &fed)])?;
        near(&got[0], &fed);
    }
    Ok(())
}

#[test]
fn a_second_call_does_none_of_it_again() -> Outcome {
    let traces = Cell::new(0);
    let session = Session::new()?;
    let f = session.function(|x: Tensor| {
        traces.set(traces.get() + 1);
        (x * 2.0).named(format!("tw{}", "ice")).exp()
    })?;
    let (number_type, row) = ([ty([])], [ty([2])]);
    let first = f.prune(&number_type, &["input 0"], &["twice"])?;
    for _ in 0..3 {
        let again = f.prune(&number_type, &["input 0"], &["twice"])?;
        assert_eq!(again.call(&[number(1.5)])?, [number(3.0)]);
        assert_eq!(format!("{again:?}"), format!("{first:?}"));
    }
    assert_eq!(traces.get(), 1);
    // Other types, feeds, fetches or assignments are another pruned function.
    f.prune(&row, &["input 0"], &["twice"])?;
    f.prune(&number_type, &["twice"], &["result 0"])?;
    f.prune(&number_type, &["input 0"], &["result 0"])?;
    f.prune_step(&number_type, &["input 0"], &["twice"])?;
    assert_eq!(traces.get(), 5);
    f.prune(&row, &["input 0"], &["twice"])?;
    f.prune_step(&number_type, &["input 0"], &["twice"])?;
    assert_eq!(traces.get(), 5);
    Ok(())
}

#[test]
fn what_is_not_needed_does_not_run() -> Outcome {
    #[graph]
    fn f(x: Tensor, n: Tensor<i32>) -> (Tensor, Tensor) {
        let cheap = (x + 1.0).named("cheap");
        let mut y = x;
        while y >= -1.0 {
            // The loop never ends, and an effect keeps it in the whole function.
            print!("");
            y *= 0.5;
        }
        assert!(n < 3, "n is {n}");
        (cheap, y * n.cast::<f32>())
    }
    for session in sessions() {
        let f = session.function(f)?;
        let signature = [ty([]), TensorType::new(DType::I32, [])];
        let cheap = f.prune(&signature, &["x"], &["cheap"])?;
        assert_eq!(cheap.call_timeout(Duration::from_secs(600), &[number(1.0)])?, [number(2.0)]);
        let nodes = cheap.graph().region(cheap.graph().root()).nodes.len();
        assert!(nodes <= 3, "{}", cheap.graph());
        assert!(cheap.explain()?.lines().count() < f.explain(&signature)?.lines().count());
        // The whole function does not end.
        let whole = f.prune(&signature, &["x", "n"], &["result 1"])?;
        let error = whole.call_timeout(Duration::from_millis(20), &[number(1.0), HostTensor::scalar(1)]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
        let cancel = CancelHandle::new();
        cancel.cancel();
        let options = CallOptions::new().cancelled_by(&cancel);
        let error = whole.call_with(&options, &[number(1.0), HostTensor::scalar(1)]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
        assert_eq!(cheap.call(&[number(2.0)])?, [number(3.0)]);
    }
    Ok(())
}

#[test]
fn the_loss_of_a_training_step_does_not_train() -> Outcome {
    for session in sessions() {
        let w = Var::<f32>::new("w", [1.0f32, -2.0]);
        let count = Var::<i32>::new("count", 0);
        let sgd = Sgd::new(0.1);
        let train = |x: Tensor, t: Tensor| {
            let y = (x.named("x") * w.get()).sum().named("y");
            let loss = (y - t.named("t")).square().named("loss");
            sgd.minimize(loss, &w);
            count.set(count.get() + 1);
            let after = (count.get() * 10).named("after");
            (loss, after)
        };
        let f = session.function(train)?;
        let signature = [ty([2]), ty([])];
        let loss = f.prune(&signature, &["x", "t"], &["loss"])?;
        for _ in 0..2 {
            assert_eq!(loss.call(&[floats([2], &[1.0, 1.0]), number(1.0)])?, [number(4.0)]);
        }
        assert!(loss.graph().vars.iter().all(|v| v.name != "count"), "{}", loss.graph());
        // A read after an assignment returns the assigned value; the variable is unchanged.
        let after = f.prune(&signature, &[], &["after"])?;
        for _ in 0..2 {
            assert_eq!(after.call(&[])?, [HostTensor::scalar(10)]);
        }
        assert_eq!((session.get(&w)?.to_vec(), session.get(&count)?.item()), (vec![1.0, -2.0], 0));
        // Steps with assignments behave like the function: if the prediction is fed, the gradient
        // is that for the fed value.
        let step = f.prune_step(&signature, &["x", "t", "y"], &["loss"])?;
        assert_eq!(step.call(&[floats([2], &[1.0, 2.0]), number(1.0), number(3.0)])?, [number(4.0)]);
        near(&HostTensor::new([2], session.get(&w)?.to_vec()), &[1.0 - 0.1 * 4.0, -2.0 - 0.1 * 8.0]);
        assert_eq!(session.get(&count)?, 1);
    }
    Ok(())
}

#[test]
fn feeding_a_value_of_the_forward_pass_feeds_its_uses_in_the_gradient() -> Outcome {
    for session in sessions() {
        let f = session.function(|x: Tensor, w: Tensor| {
            let h = (x.named("x") * w.named("w")).exp().named("h");
            let loss = (h * h * w).named("loss");
            gradients(loss, w).named("dw")
        })?;
        let signature = [ty([]), ty([])];
        let (x, w) = (0.5f32, 2.0f32);
        // d/dw of h(w)² w is h² + 2 h w dh/dw, and dh/dw is x h.
        let dw = |h: f32| h * h + 2.0 * h * w * x * h;
        let whole = f.prune(&signature, &["x", "w"], &["dw", "h"])?;
        let got = whole.call(&[number(x), number(w)])?;
        near(&got[0], &[dw((x * w).exp())]);
        let fed = f.prune(&signature, &["x", "w", "h"], &["dw"])?;
        near(&fed.call(&[number(x), number(w), number(3.0)])?[0], &[dw(3.0)]);
    }
    Ok(())
}

#[test]
fn prints_and_assertions_stay_with_what_they_look_at() -> Outcome {
    #[graph]
    fn f(x: Tensor, z: Tensor) -> (Tensor, Tensor) {
        println!("x is {x}");
        println!("no value");
        assert!(x > 0.0, "x is not positive: {x}");
        let root = x.sqrt().named("root");
        let other = (z * root).named("other");
        // Computed only for two assertions.
        let small = other * other < 100.0;
        assert!(small, "other is {other}");
        assert!(small, "other is still {other}");
        assert!(z < 5.0, "z is {z}");
        let mut sum = scalar(0.0);
        let (mut steps, mut even) = (scalar(0), scalar(0.0));
        while sum < other {
            sum += 1.0;
            steps += 1;
            even = 2.0 - even;
            assert!(steps < 4, "{steps} steps");
            println!("step {steps}");
        }
        let sum = sum.named("sum");
        println!("even {even}");
        (sum, even.named("even"))
    }
    for interpreted in [false, true] {
        let printed = Arc::new(Mutex::new(String::new()));
        let to = printed.clone();
        let print = move |_, text: &str| to.lock().expect("no panic").push_str(text);
        let session = Session::builder().interpreted(interpreted).print_to(print).build()?;
        let f = session.function(f)?;
        let signature = [ty([]), ty([])];
        let taken = || std::mem::take(&mut *printed.lock().expect("no panic"));
        let message = |result: anabranch::Result<Vec<HostTensor>>| result.expect_err("an assertion fails").to_string();

        // `z` need not be fed for an assertion that reads it.
        let root = f.prune(&signature, &["x"], &["root"])?;
        assert_eq!(root.call(&[number(4.0)])?, [number(2.0)]);
        assert_eq!(taken(), "x is 4\n");
        let error = message(root.call(&[number(-4.0)]));
        assert!(error.contains("x is not positive: -4") && error.contains("tests/prune.rs"), "{error}");
        taken();

        // Assertions on feeds are checked; those on values that are not computed are removed.
        let other = f.prune(&signature, &["z", "root"], &["other"])?;
        assert_eq!(other.call(&[number(2.0), number(-3.0)])?, [number(-6.0)]);
        assert!(message(other.call(&[number(2.0), number(6.0)])).contains("other is 12"));
        assert!(message(other.call(&[number(6.0), number(1.0)])).contains("z is 6"));
        assert_eq!(taken(), "");

        // A loop that is kept has its effects: the assertion ends the loop.
        let sum = f.prune(&signature, &["other"], &["sum"])?;
        assert_eq!(sum.call(&[number(1.5)])?, [number(2.0)]);
        assert_eq!(taken(), "step 1\nstep 2\n");
        assert!(message(sum.call(&[number(9.0)])).contains("4 steps"));
        taken();
        let both = f.prune(&signature, &["other"], &["even", "sum"])?;
        assert_eq!(both.call(&[number(0.5)])?, [number(2.0), number(1.0)]);
        assert_eq!(taken(), "step 1\neven 2\n");
    }
    Ok(())
}

#[test]
fn wrong_names_are_errors_that_say_what_there_is() -> Outcome {
    #[graph]
    fn f(x: Tensor, y: Tensor) -> Tensor {
        let mut z = (x + y).named("total");
        while z < 10.0 {
            z = (z * 2.0).named("inner");
        }
        if z > 12.0 {
            z = (z - 1.0).named("less");
        }
        let twice = z.exp().named("double") + z.sin().named("double");
        let kept = checkpoint(|| z.tanh().named("within"));
        (twice + kept).named("end")
    }
    let session = Session::new()?;
    let f = session.function(f)?;
    let signature = [ty([]), ty([])];
    let error = |feeds: &[&str], fetches: &[&str]| -> Diagnostic {
        f.prune(&signature, feeds, fetches).expect_err("the names are wrong")
    };
    let line = |name: &str| {
        let lines = include_str!("prune.rs").lines();
        let found: Vec<u32> =
            (1..).zip(lines).filter(|(_, l)| l.contains(&format!(".named(\"{name}\")"))).map(|(i, _)| i).collect();
        found[0]
    };

    let e = error(&["x", "y"], &["totl"]);
    assert_eq!(e.message, "`f` has no value named `totl`");
    assert!(e.help.as_deref().unwrap_or_default().starts_with("available: `total`, "), "{e}");
    let e = error(&["x", "y"], &["result 1"]);
    assert!(e.help.as_deref().unwrap_or_default().starts_with("available: `result 0`, "), "{e}");

    for (name, of) in [("inner", "a loop"), ("less", "a branch"), ("within", "a call")] {
        for e in [error(&["x", "y"], &[name]), error(&[name], &["end"])] {
            assert!(e.message.starts_with(&format!("`{name}` is inside {of}")), "{e}");
            assert_eq!(e.loc().map(|loc| loc.line), Some(line(name)), "{e}");
        }
    }
    let e = error(&["x", "y"], &["double"]);
    assert_eq!(e.message, "`double` is ambiguous: it names 2 values of `f`");
    assert_eq!(e.labels.iter().map(|(loc, _)| loc.line).collect::<Vec<_>>(), [line("double"); 2], "{e}");

    assert_eq!(error(&["x", "x", "y"], &["end"]).message, "`f`: `x` is fed twice");
    let e = error(&["x", "input 0", "y"], &["end"]);
    assert_eq!(e.message, "`f`: `x` and `input 0` are the same value, which is fed twice");
    let e = error(&["x"], &["end"]);
    assert_eq!(e.message, "`f`: a fetch depends on the parameter `y`, which is not fed");
    assert_eq!(e.loc().map(|loc| loc.line), Some(line("total")), "{e}");
    assert_eq!(error(&["x"], &[]).message, "`f`: nothing is fetched");
    let e = error(&["total", "end"], &["end"]);
    assert_eq!(e.message, "`f`: no fetch depends on the feed `total`");
    assert_eq!(e.loc().map(|loc| loc.line), Some(line("total")), "{e}");

    // A parameter may be fed without being needed.
    let end = f.prune(&signature, &["total", "x"], &["end"])?;
    let e = end.call(&[number(1.0)]).expect_err("one is missing");
    assert_eq!(e.message, "wrong number of feeds for `f`: expected 2, got 1");
    let e = end.call(&[floats([1], &[1.0]), number(1.0)]).expect_err("the shape is wrong");
    assert_eq!(e.message, "`f`: the feed `total` is f32[], but got f32[1]");
    let e = end.call(&[number(1.0), HostTensor::scalar(1)]).expect_err("the element type is wrong");
    assert_eq!(e.message, "`f`: the feed `x` is f32[], but got i32[]");
    let e = f.prune(&signature[..1], &["x"], &["end"]).expect_err("a type is missing");
    assert!(e.message.contains("takes at least 2 tensors, but got 1: argument #2 is missing"), "{e}");
    Ok(())
}

#[test]
fn a_list_is_not_fetched_and_parameters_of_one_name_are_told_apart_by_position() -> Outcome {
    #[graph]
    fn plus_one(x: Tensor) -> Tensor {
        x + 1.0
    }
    let session = Session::new()?;
    let f = session.function(|a: Tensor, b: Tensor| {
        let list = List::unstack(a).named("rows");
        plus_one(a) * plus_one(b) + list.stack()
    })?;
    let signature = [ty([2]), ty([2])];
    let error = f.prune(&signature, &["input 0", "input 1"], &["rows"]).expect_err("a list");
    assert_eq!(error.message, "`rows` is a list, but only tensors can be fed and fetched");
    let error = f.prune(&signature, &["x"], &["result 0"]).expect_err("two parameters").to_string();
    assert!(error.contains("names 2 values") && error.contains("is the parameter `input 1`"), "{error}");
    let both = f.prune(&signature, &["input 1", "input 0"], &["result 0"])?;
    let got = both.call(&[floats([2], &[1.0, 2.0]), floats([2], &[3.0, 4.0])])?;
    near(&got[0], &[4.0 * 2.0 + 3.0, 5.0 * 3.0 + 4.0]);
    Ok(())
}

/// The extents of feeds depend on data in the function: a call determines them.
#[test]
fn what_has_unknown_extents_may_be_fed_with_any() -> Outcome {
    for session in sessions() {
        let f = session.function(|x: Tensor| x.with_dynamic(0).named("x").exp().named("y").sum())?;
        let sum = f.prune(&[ty([2])], &["y"], &["result 0"])?;
        assert_eq!(sum.feed_types()[0].to_string(), "f32[?]");
        for _ in 0..2 {
            assert_eq!(sum.call(&[floats([2], &[1.0, 2.0])])?, [number(3.0)]);
            assert_eq!(sum.call(&[floats([3], &[1.0, 2.0, 4.0])])?, [number(7.0)]);
        }
        let error = sum.call(&[floats([1, 1], &[1.0])]).expect_err("the rank is wrong").message;
        assert!(error.ends_with("the feed `y` is f32[?], but got f32[1, 1]"), "{error}");
        let error = sum.explain().expect_err("the extents are not known").message;
        assert!(
            error.ends_with("the pruned function depends on extents that only a call determines: `y` is f32[?]"),
            "{error}"
        );
    }
    Ok(())
}

/// Fetches and feeds every tensor of the root of a graph. The rest of the graph computes the same
/// as before.
#[test]
fn every_value_of_a_program_can_be_fetched_and_fed() -> Outcome {
    #[graph]
    fn program(x: Tensor, n: Tensor<i32>) -> (Tensor, Tensor<i32>) {
        let mut total = x * 0.5;
        let mut i = n;
        while i > 0 {
            if i % 2 == 0 {
                total = total.sin() + x;
            } else {
                total *= x.cos();
            }
            i -= 1;
        }
        let slope = gradients((total * total).sum(), x);
        (slope + total, i + n)
    }
    let inputs = [floats([2], &[0.3, -0.7]), HostTensor::scalar(5)];
    let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
    let (traced, _) = trace_fn("program", &program, &types)?;
    let g = &traced.graph;
    let run = |graph: &anabranch::Graph, inputs: &[HostTensor]| {
        interp::run(graph, inputs, &mut vec![], interp::InterpOptions::default())
    };
    let whole = run(g, &inputs)?;
    let results = g.region(g.root()).nodes.iter().flat_map(|&n| &g.node(n).results).copied();
    let values: Vec<_> = results.filter(|&v| g.ty(v).as_tensor().is_some()).collect();
    assert!(values.len() > 10, "{g}");
    for &v in &values {
        let fetched = passes::prune(g, g.inputs(), &[v], Assignments::Drop)?.graph;
        let value = run(&fetched, &inputs)?;
        let feeds = [g.inputs(), &[v]].concat();
        let rest = passes::prune(g, &feeds, g.outputs(), Assignments::Drop)?.graph;
        assert_eq!(run(&rest, &[&inputs[..], &value].concat())?, whole, "{v} of\n{g}");
        let program = anabranch_runtime::Program::new(rest.clone())?;
        for (got, expected) in program.run(&[&inputs[..], &value].concat(), &mut vec![])?.iter().zip(&whole) {
            assert_eq!(got.ty(), expected.ty());
        }
    }
    Ok(())
}
