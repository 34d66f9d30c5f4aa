//! Functions on several devices at once: values, effects, errors, ends of calls, and overlapping
//! work.

use anabranch::nn::{Init, Linear, Lstm};
use anabranch::optim::{Optimizer, Sgd, clip_global_norm, model_gradients};
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, DType, ErrorKind, SimulatedDevice, TensorType, Timeline, control};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Outcome = anabranch::Result<()>;

/// A loop whose counter is on one device and whose other loop variables are on others.
#[graph]
fn three_sums(n: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>, Tensor<i32>) {
    let (mut i, mut a, mut b) = (scalar(0), scalar(0), scalar(1));
    while i < n {
        a = on("/cpu:1", || a + i);
        b = on("/cpu:2", || b * 2 + a);
        i = on("/cpu:0", || i + 1);
    }
    (i, a, b)
}

fn plain_sums(n: i32) -> (i32, i32, i32) {
    let (mut i, mut a, mut b) = (0, 0, 1i32);
    while i < n {
        (a, b) = (a + i, b.wrapping_mul(2).wrapping_add(a + i));
        i += 1;
    }
    (i, a, b)
}

#[test]
fn a_loop_over_three_devices_has_the_values_of_plain_rust() -> Outcome {
    for parallel_iterations in [1, 2, 32] {
        let session = Session::builder().cpus(3).parallel_iterations(parallel_iterations).build()?;
        let f = session.function(three_sums)?;
        for n in [0, 1, 2, 7, 100, 33, 0] {
            let (i, a, b) = f.call(n)?;
            assert_eq!((i.item(), a.item(), b.item()), plain_sums(n), "{n} trips, {parallel_iterations} at once");
        }
        let text = f.explain(&[TensorType::new(DType::I32, [])])?;
        for part in ["part 0 on /cpu:0", "part 1 on /cpu:1", "part 2 on /cpu:2", "part 0 computes its predicate"] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }
    Ok(())
}

#[test]
fn what_is_printed_on_several_devices_is_in_order() -> Outcome {
    #[graph]
    fn talks(n: Tensor<i32>) -> Tensor<i32> {
        let (mut i, mut a) = (scalar(0), scalar(0));
        println!("begin {n}");
        while i < n {
            on("/cpu:1", || println!("a {a}"));
            if i % 2 == 0 {
                on("/cpu:0", || println!("even {i}"));
            }
            a = on("/cpu:1", || a + i);
            i += 1;
        }
        println!("end {a}");
        a
    }
    let printed = Arc::new(Mutex::new(String::new()));
    let to = printed.clone();
    let session =
        Session::builder().cpus(2).print_to(move |_, text| to.lock().expect("no panic").push_str(text)).build()?;
    let f = session.function(talks)?;
    for _ in 0..3 {
        printed.lock().expect("no panic").clear();
        f.call(4)?;
        let expected = "begin 4\na 0\neven 0\na 0\na 1\neven 2\na 3\nend 6\n";
        assert_eq!(*printed.lock().expect("no panic"), expected);
    }
    Ok(())
}

#[test]
fn an_error_names_the_line_and_the_device_and_changes_nothing() -> Outcome {
    let count = Var::<i32>::new("count", 0);
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(|n: Tensor<i32>| {
        count.set(count.get() + 1);
        checked_last(n)
    })?;
    assert_eq!(f.call(3)?, 4);
    let error = f.call(9).expect_err("the sixth iteration fails").to_string();
    assert!(error.contains("assertion failed: i is 5") && error.contains("tests/several_devices.rs"), "{error}");
    assert!(error.contains("on /cpu:1"), "{error}");
    assert_eq!(session.get(&count)?, 1);
    assert_eq!(f.call(4)?, 6);
    assert_eq!(session.get(&count)?, 2);
    Ok(())
}

#[graph]
fn checked_last(n: Tensor<i32>) -> Tensor<i32> {
    let mut last = scalar(0);
    for i in range(n) {
        on("/cpu:1", || assert!(i < 5, "i is {i}"));
        last = on("/cpu:0", || i + i);
    }
    last
}

/// A loop over two devices that never ends, and prints while it runs.
#[graph]
fn endless(x: Tensor) -> Tensor {
    let (mut i, mut x) = (scalar(0), x);
    while i >= 0 {
        if i == 7 {
            println!("running");
        }
        x = on("/cpu:1", || x * 0.5);
        i = on("/cpu:0", || (i + 1) % 1000);
    }
    x
}

#[test]
fn a_loop_over_several_devices_ends_at_its_deadline() -> Outcome {
    let session = Session::builder().cpus(2).print_to(|_, _| ()).build()?;
    let f = session.function(endless)?;
    let error = f.call_timeout(Duration::from_millis(30), 1.0).expect_err("it does not end by itself");
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("while i >= 0"), "{error}");
    Ok(())
}

#[test]
fn a_loop_over_several_devices_ends_when_an_iteration_cancels_it() -> Outcome {
    let cancel = CancelHandle::new();
    let options = CallOptions::new().cancelled_by(&cancel);
    let session = Session::builder().cpus(2).print_to(move |_, _| cancel.cancel()).build()?;
    let error = session.function(endless)?.call_with(&options, 1.0).expect_err("it does not end by itself");
    assert_eq!(error.kind, ErrorKind::Cancelled);
    Ok(())
}

#[test]
fn a_loop_that_was_short_in_earlier_calls_ends_at_its_deadline() -> Outcome {
    #[graph]
    fn counts(n: Tensor<i32>) -> Tensor<i32> {
        let end = on("/cpu:1", || n + n);
        on("/cpu:0", || {
            let mut i = scalar(0);
            while i != end {
                i = (i + 1) % 1000;
            }
            i
        })
    }
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(counts)?;
    for _ in 0..20 {
        assert_eq!(f.call(3)?, 6);
    }
    let error = f.call_timeout(Duration::from_millis(30), -1).expect_err("it does not end by itself");
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("while i != end"), "{error}");
    assert_eq!(f.call(5)?, 10);
    Ok(())
}

#[test]
fn several_steps_of_one_function_run_at_once() -> Outcome {
    let session = Session::builder().cpus(3).build()?;
    let f = session.function(three_sums)?;
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|k| {
                let f = &f;
                scope.spawn(move || {
                    for n in 0..20 {
                        let (i, a, b) = f.call(n + k)?;
                        assert_eq!((i.item(), a.item(), b.item()), plain_sums(n + k));
                    }
                    Outcome::Ok(())
                })
            })
            .collect();
        calls.into_iter().try_for_each(|call| call.join().expect("no panic"))
    })
}

/// Returns the losses of a few training steps of two layers.
fn losses(session: &Session, devices: [&str; 2]) -> anabranch::Result<Vec<f32>> {
    let init = Init::new(7);
    let first = on(devices[0], || Linear::new(&init, 3, 8));
    let second = on(devices[1], || Linear::new(&init, 8, 1));
    let model = (first, second);
    let sgd = Sgd::new(0.1);
    let step = session.function(|x: Tensor, y: Tensor| {
        let h = on(devices[0], || model.0.forward(x).tanh());
        let e = on(devices[1], || model.1.forward(h)) - y;
        let loss = (e * e).mean();
        sgd.minimize(loss, &model);
        loss
    })?;
    let x: Vec<[f32; 3]> = (0..16).map(|i| [0.3, 0.5, 0.7].map(|s| (i as f32 * s).sin())).collect();
    let y: Vec<[f32; 1]> = x.iter().map(|[a, b, c]| [a * b - c]).collect();
    (0..20).map(|_| Ok(step.call((&x, &y))?.item())).collect()
}

#[test]
fn a_model_over_two_devices_learns_as_on_one() -> Outcome {
    let one = losses(&Session::new()?, ["/cpu:0", "/cpu:0"])?;
    let two = losses(&Session::builder().cpus(2).build()?, ["/cpu:0", "/cpu:1"])?;
    assert!(one[19] < one[0] * 0.8, "{one:?}");
    for (a, b) in one.iter().zip(&two) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{one:?} is not {two:?}");
    }
    Ok(())
}

fn gpus(n: usize) -> Vec<SimulatedDevice> {
    (0..n).map(|i| SimulatedDevice::new(&format!("/gpu:{i}"))).collect()
}

fn copies<'a>(timeline: &'a Timeline, link: &'a str) -> impl Iterator<Item = &'a anabranch::Span> {
    timeline.spans.iter().filter(move |s| s.device == link)
}

#[test]
fn only_the_branch_that_is_taken_gets_its_values() -> Outcome {
    // Two experts on two devices: the large input is sent to the selected device.
    #[graph]
    fn experts(which: Tensor<i32>, x: Tensor) -> Tensor {
        if which == 0 { on("/gpu:1", || x.tanh().sum()) } else { on("/gpu:2", || x.exp().sum()) }
    }
    let session = Session::builder().simulated(gpus(3)).build()?;
    let f = session.function(|which: Tensor<i32>, x: Tensor| {
        let x = on("/gpu:0", || x * 2.0);
        experts(which, x)
    })?;
    let x = vec![0.5f32; 4096];
    let large = |timeline: &Timeline, to: &str| {
        copies(timeline, to).filter(|s| s.end - s.begin > Duration::from_micros(11)).count()
    };
    for (which, taken, other) in
        [(0, "/gpu:0 -> /gpu:1", "/gpu:0 -> /gpu:2"), (1, "/gpu:0 -> /gpu:2", "/gpu:0 -> /gpu:1")]
    {
        let (_, timeline) = f.profile((which, &x))?;
        assert_eq!((large(&timeline, taken), large(&timeline, other)), (1, 0), "{timeline}");
    }
    Ok(())
}

#[test]
fn what_a_loop_captures_is_sent_once() -> Outcome {
    #[graph]
    fn scaled(n: Tensor<i32>, x: Tensor) -> Tensor {
        let big = on("/gpu:0", || x * 3.0);
        let (mut i, mut sum) = (scalar(0), scalar(0.0));
        while i < n {
            sum = on("/gpu:1", || sum + (big * i.cast()).sum());
            i = on("/gpu:0", || i + 1);
        }
        sum
    }
    let session = Session::builder().simulated(gpus(2)).build()?;
    let f = session.function(scaled)?;
    let (sum, timeline) = f.profile((10, vec![1.0f32; 4096]))?;
    assert_eq!(sum, 45.0 * 3.0 * 4096.0);
    let large = copies(&timeline, "/gpu:0 -> /gpu:1").filter(|s| s.end - s.begin > Duration::from_micros(11));
    assert_eq!(large.count(), 1, "{timeline}");
    Ok(())
}

/// Returns the mean of a value that is multiplied by a weight `n` times, on the device of the
/// weight. Each iteration needs a number from another device.
#[graph]
fn multiplied(n: Tensor<i32>, x: Tensor, w: Tensor) -> Tensor {
    let (mut i, mut x, mut total) = (scalar(0), x, scalar(0.0));
    while i < n {
        x = on("/gpu:1", || (x * w).tanh());
        total += on("/gpu:0", || x.mean());
        i = on("/gpu:0", || i + 1);
    }
    total
}

#[test]
fn the_gradient_of_a_weight_is_added_and_clipped_where_the_weight_is() -> Outcome {
    let session = Session::builder().device("/gpu:0").simulated(gpus(2)).build()?;
    let w = on("/gpu:1", || Var::<f32>::new("w", vec![0.9; 4096]));
    let sgd = Sgd::new(0.1);
    let step = session.function(|n: Tensor<i32>, x: Tensor| {
        let loss = multiplied(n, x, w.get());
        let mut gradients = model_gradients(loss, &w);
        clip_global_norm(&mut gradients, 0.01);
        sgd.apply(1.0, &gradients);
        loss
    })?;
    // Only `x` is sent to the other device, in each iteration, and its gradient back.
    let large = |n: i32| -> anabranch::Result<[usize; 2]> {
        let (_, timeline) = step.profile((n, vec![0.5f32; 4096]))?;
        let large = |link| copies(&timeline, link).filter(|s| s.end - s.begin > Duration::from_micros(11)).count();
        Ok([large("/gpu:1 -> /gpu:0"), large("/gpu:0 -> /gpu:1")])
    };
    let (few, many) = (large(4)?, large(12)?);
    assert_eq!(many[0] - few[0], 8, "{few:?}, {many:?}");
    assert_eq!(many[1] - few[1], 8, "{few:?}, {many:?}");
    assert_eq!(few[0], 4, "the gradient does not leave its device: {few:?}");
    Ok(())
}

#[test]
fn a_function_says_how_many_iterations_of_its_loops_overlap() -> Outcome {
    #[graph(parallel_iterations = 2)]
    fn powers(n: Tensor<i32>, x: Tensor) -> Tensor {
        let (mut i, mut y) = (scalar(0), scalar(1.0));
        while i < n {
            y = on("/cpu:1", || y * x);
            i = on("/cpu:0", || i + 1);
        }
        y
    }
    #[graph(parallel_iterations = 1 + 4, max_iterations = 100)]
    fn outer(n: Tensor<i32>, x: Tensor) -> (Tensor, Tensor) {
        let (mut i, mut y) = (scalar(0), x);
        while i < n {
            y += powers(n, x);
            i += 1;
        }
        (y, gradients(y, x))
    }
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(outer)?;
    let (y, dx) = f.call((3, 2.0))?;
    assert_eq!((y.item(), dx.item()), (2.0 + 3.0 * 8.0, 1.0 + 3.0 * 3.0 * 4.0));
    let types = [TensorType::new(DType::I32, []), TensorType::new(DType::F32, [])];
    let text = f.graph(&types)?.to_string();
    for (says, loops) in [("parallel_iterations 2 ", 2), ("parallel_iterations 5 ", 2)] {
        assert_eq!(text.matches(says).count(), loops, "the loop and that of its gradient in\n{text}");
    }
    assert_eq!(anabranch::Graph::parse(&text, "text").expect("it parses").to_string(), text);
    let none = anabranch::Graph::parse(&text.replace("parallel_iterations 2 ", "parallel_iterations 0 "), "text");
    let error = none.expect_err("no iteration may run")[0].to_string();
    assert!(error.contains("a number of iterations, at least 1"), "{error}");
    for says in ["2 iterations at once", "5 iterations at once"] {
        assert!(f.explain(&types)?.contains(says), "{}", f.explain(&types)?);
    }
    Ok(())
}

#[test]
fn a_function_whose_loops_may_not_run_is_refused() -> Outcome {
    #[graph(parallel_iterations = 0)]
    fn never(n: Tensor<i32>) -> Tensor<i32> {
        n
    }
    let error = Session::new()?.function(never)?.call(1).expect_err("there is no such number").to_string();
    assert!(
        error.contains("`never`: `parallel_iterations` is 0") && error.contains("tests/several_devices.rs"),
        "{error}"
    );
    Ok(())
}

/// A pipeline: each stage multiplies the output of the previous stage and adds it to its state.
#[graph]
fn pipeline(n: Tensor<i32>, x: Tensor, stages: usize) -> Tensor {
    let mut i = scalar(0);
    let mut states = vec![x; stages];
    while i < n {
        let mut from_before = x;
        for s in 0..stages {
            states[s] = on(format!("/gpu:{s}"), || (from_before.matmul(x) + states[s]).tanh());
            from_before = states[s];
        }
        i = on("/gpu:0", || i + 1);
    }
    states[stages - 1].sum()
}

fn pipeline_time(parallel_iterations: u32) -> anabranch::Result<(f32, Duration)> {
    // Kernels that take about 200 microseconds.
    let devices = gpus(8).into_iter().map(|gpu| gpu.flops(2.6e9).launch(Duration::from_micros(5)));
    let session = Session::builder().simulated(devices).parallel_iterations(parallel_iterations).build()?;
    let f = session.function(|n: Tensor<i32>, x: Tensor| pipeline(n, x, 8))?;
    let x: Vec<[f32; 64]> = (0..64).map(|i| std::array::from_fn(|j| ((i * 64 + j) as f32 * 0.1).sin() * 0.1)).collect();
    let (sum, timeline) = f.profile((40, &x))?;
    assert!(timeline.simulated);
    Ok((sum.item(), timeline.total))
}

#[test]
fn iterations_of_a_pipeline_overlap_in_simulated_time() -> Outcome {
    let (sum, one) = pipeline_time(1)?;
    let (same, many) = pipeline_time(32)?;
    assert_eq!(sum.to_bits(), same.to_bits());
    let ratio = one.as_secs_f64() / many.as_secs_f64();
    assert!(ratio >= 5.0, "32 iterations at once are {ratio:.1} times as fast as one ({one:?} and {many:?})");
    Ok(())
}

/// One loop over the elements of a sequence, with each layer on its own device.
#[graph]
fn layered(layers: &[Lstm], x: Tensor) -> Tensor {
    let mut states: Vec<_> = layers.iter().map(|l| l.zero_state(8)).collect();
    let mut loss = scalar(0.0);
    for step in x {
        let mut h = step;
        for l in 0..layers.len() {
            (h, states[l]) = on(format!("/gpu:{l}"), || layers[l].step(h, states[l]));
        }
        loss = on(format!("/gpu:{}", layers.len() - 1), || loss + (h * h).mean());
    }
    loss
}

fn lstm_time(parallel_iterations: u32) -> anabranch::Result<(f32, Timeline)> {
    let devices = gpus(8).into_iter().map(|gpu| gpu.flops(10e9));
    let session =
        Session::builder().simulated(devices).parallel_iterations(parallel_iterations).hoisting(false).build()?;
    let init = Init::new(3);
    let layers: Vec<Lstm> = (0..8).map(|l| on(format!("/gpu:{l}"), || Lstm::new(&init, 32, 32))).collect();
    let sgd = Sgd::new(0.1);
    let step = session.function(|x: Tensor| {
        let loss = layered(&layers, x);
        sgd.minimize(loss, &layers);
        loss
    })?;
    let x: Vec<f32> = (0..20 * 8 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    let (loss, timeline) = step.profile(anabranch::Array::new([20, 8, 32], x))?;
    Ok((loss.item(), timeline))
}

#[test]
fn the_layers_of_an_lstm_overlap_forward_and_backward() -> Outcome {
    let (loss, one) = lstm_time(1)?;
    let (same, many) = lstm_time(32)?;
    assert_eq!(loss.to_bits(), same.to_bits());
    let ratio = one.total.as_secs_f64() / many.total.as_secs_f64();
    assert!(ratio > 2.0, "{ratio:.2}");
    // Kernels of different devices overlap, in the first half of the step and in the second.
    for half in [0, 1] {
        let (from, to) = (many.total / 2 * half, many.total / 2 * (half + 1));
        let spans = many.spans.iter().filter(|s| s.begin >= from && s.end <= to).cloned().collect();
        let overlap = Timeline { spans, total: many.total / 2, simulated: true, left_out: 0 }.overlap();
        assert!(overlap * 3 > many.total / 2, "half {half}: {overlap:?} of {:?}", many.total / 2);
    }
    Ok(())
}

/// A loop on one device, and a concurrent check on another device.
#[graph]
fn loop_beside_a_check(n: Tensor<i64>, x: Tensor) -> Tensor<i64> {
    let mut i = scalar(0i64);
    on("/cpu:0", || {
        while i != n {
            i += 1;
        }
    });
    on("/cpu:1", || assert!(x.matmul(x).sum() > 0.0, "the sum is not positive"));
    i
}

#[test]
fn an_error_is_seen_beside_a_loop_that_does_not_end() -> Outcome {
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(loop_beside_a_check)?;
    let x = vec![[1.0f32; 96]; 96];
    for _ in 0..10 {
        assert_eq!(f.call((3, &x))?, 3);
    }
    // So far the loop was short. This time it counts until `i64` wraps.
    let x = vec![[0.0f32; 96]; 96];
    let error = f.call_timeout(Duration::from_secs(100), (-1, &x)).expect_err("the check fails");
    assert_eq!(error.kind, ErrorKind::AssertionFailed, "{error}");
    assert!(error.message.contains("the sum is not positive") && error.to_string().contains("on /cpu:1"), "{error}");
    Ok(())
}

#[test]
fn of_several_failures_the_first_one_of_the_program_is_reported() -> Outcome {
    #[graph]
    fn checks(x: Tensor, y: Tensor) -> Tensor {
        let mut z = on("/cpu:1", || x + 1.0);
        on("/cpu:0", || assert!(y > 0.0, "the first"));
        on("/cpu:1", || {
            if z > 0.0 {
                assert!(x > 9.0, "the second");
                z *= 2.0;
            }
        });
        z
    }
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(checks)?;
    for _ in 0..20 {
        let error = f.call((1.0, -1.0)).expect_err("both checks fail");
        assert_eq!(error.message, "assertion failed: the first");
    }
    assert_eq!(f.call((1.0, 1.0)).expect_err("one check fails").message, "assertion failed: the second");
    assert_eq!(f.call((10.0, 1.0))?, 22.0);
    Ok(())
}

#[test]
fn a_print_in_a_construct_that_has_a_result_is_no_obstacle() -> Outcome {
    #[graph]
    fn says(x: Tensor) -> Tensor {
        let y = x + 1.0;
        let mut a = y;
        if a > 0.0 {
            println!("positive");
            a *= 2.0;
        }
        let mut i = 0;
        while i < 3 {
            println!("i {i}");
            a *= 2.0;
            i += 1;
        }
        y + a
    }
    #[graph]
    fn beside(x: Tensor) -> Tensor {
        let y = on("/cpu:0", || says(x));
        y * on("/cpu:1", || x.exp())
    }
    let expected = Session::new()?.function(beside);
    assert!(expected?.call(0.5).is_err(), "one device has no second one");
    let expected = (1.5 + 24.0) * 0.5f32.exp();
    let y = Session::builder().cpus(2).build()?.function(beside)?.call(0.5)?.item();
    assert!((y - expected).abs() < 1e-4, "{y} is not {expected}");
    for n in 1..3 {
        let session = Session::builder().simulated(gpus(n)).build()?;
        assert_eq!(session.function(says)?.call(0.5)?, 1.5 + 24.0);
    }
    Ok(())
}

#[test]
fn a_panic_of_the_callers_print_ends_the_step_and_goes_on() -> Outcome {
    let session = Session::builder().cpus(2).print_to(|_, text| assert!(!text.contains("4"), "I cannot bear a 4"));
    let session = session.build()?;
    #[graph]
    fn says_at_once(x: Tensor<i32>) -> Tensor<i32> {
        let y = on("/cpu:1", || x + 1);
        println!("{y}");
        on("/cpu:0", || y * 2)
    }
    // A thread of the loop's device runs the loop.
    #[graph]
    fn says_on_a_thread(x: Tensor<i32>) -> Tensor<i32> {
        let mut i = x;
        on("/cpu:1", || {
            while i < 30 {
                i += 10;
                println!("{i}");
            }
        });
        on("/cpu:0", || x + i)
    }
    let functions: [fn(Tensor<i32>) -> Tensor<i32>; 2] = [says_at_once, says_on_a_thread];
    let functions = functions.map(|f| session.function(f).expect("a function"));
    let mut panicked = Vec::new();
    for x in [1, 3, 2, 4] {
        for (i, f) in functions.iter().enumerate() {
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f.call(x))) {
                Ok(y) => assert_eq!(y?, [2 * (x + 1), 2 * x + 30][i]),
                Err(payload) => {
                    assert_eq!(payload.downcast_ref::<&str>(), Some(&"I cannot bear a 4"));
                    panicked.push((i, x));
                }
            }
        }
    }
    assert_eq!(panicked, [(0, 3), (1, 4)]);
    Ok(())
}

/// Counts on a device thread up to a limit.
#[graph]
fn counts_to(n: Tensor<i32>) -> Tensor<i32> {
    let mut i = scalar(0);
    on("/cpu:0", || {
        while i != n {
            i = (i + 1) % 1000;
        }
    });
    on("/cpu:1", || i * 2)
}

#[test]
fn a_deadline_holds_while_another_step_has_the_threads() -> Outcome {
    /// Prints in the loop, so that the print shows that the loop has its thread.
    #[graph]
    fn counts_and_prints(n: Tensor<i32>) -> Tensor<i32> {
        let mut i = scalar(0);
        on("/cpu:0", || {
            while i != n {
                i = (i + 1) % 1000;
                if i == 7 {
                    println!("running");
                }
            }
        });
        on("/cpu:1", || i * 2)
    }
    let (prints, printed) = std::sync::mpsc::sync_channel(1);
    let session = Session::builder().cpus(2).print_to(move |_, _| {
        // The first print is enough.
        let _ = prints.try_send(());
    });
    let session = session.build()?;
    let f = session.function(counts_and_prints)?;
    assert_eq!(f.call(5)?, 10);
    let cancel = CancelHandle::new();
    let options = CallOptions::new().cancelled_by(&cancel);
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| f.call_with(&options, -1).expect_err("it does not end by itself").kind);
        printed.recv().expect("the loop prints");
        for _ in 0..3 {
            let error = f.call_timeout(Duration::from_millis(20), 5).expect_err("there is no free thread");
            assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
        }
        assert!(!endless.is_finished());
        cancel.cancel();
        assert_eq!(endless.join().expect("no panic"), ErrorKind::Cancelled);
    });
    assert_eq!(f.call(6)?, 12);
    Ok(())
}

#[test]
fn what_is_printed_may_call_a_function_on_the_same_device() -> Outcome {
    #[graph]
    fn says(n: Tensor<i32>) -> Tensor<i32> {
        let mut i = scalar(0);
        on("/cpu:0", || {
            while i < n {
                i += 1;
                println!("{i}");
            }
        });
        on("/cpu:1", || i + 1)
    }
    type Call = Box<dyn Fn(i32) -> i32 + Send + Sync>;
    let inner: Arc<Mutex<Option<Call>>> = Arc::default();
    let to = inner.clone();
    let session = Session::builder().cpus(2).print_to(move |_, text| {
        let n: i32 = text.trim().parse().expect("a number");
        let call = to.lock().expect("no panic");
        assert_eq!(call.as_ref().expect("there is one")(n), 2 * n);
    });
    let session = session.build()?;
    let f = session.function(counts_to)?;
    *inner.lock().expect("no panic") = Some(Box::new(move |n| f.call(n).expect("it ends").item()));
    assert_eq!(session.function(says)?.call(3)?, 4);
    Ok(())
}

#[test]
fn simulated_time_is_that_of_what_runs() -> Outcome {
    #[graph]
    fn powers(n: Tensor<i32>, x: Tensor) -> Tensor {
        let (mut i, mut a) = (scalar(0), x);
        while i < n {
            a = a.matmul(x).tanh();
            i += 1;
        }
        if n > 50 { a.exp().exp().exp() } else { a }
    }
    let x = [[0.1f32; 8]; 8];
    let time = |devices: usize, n: i32| -> anabranch::Result<Duration> {
        let f = Session::builder().simulated(gpus(devices)).build()?.function(powers)?;
        let (_, timeline) = f.profile((n, &x))?;
        Ok(timeline.total)
    };
    let [none, ten, hundred] = [time(1, 0)?, time(1, 10)?, time(1, 100)?];
    let per_trip = |total: Duration, trips: u32| (total - none) / trips;
    assert!(per_trip(ten, 10) > Duration::from_micros(20), "{none:?} {ten:?}");
    assert!(
        per_trip(hundred, 100) >= per_trip(ten, 10),
        "the branch takes its time, too: {none:?} {ten:?} {hundred:?}"
    );
    // Nodes without constraints are split over devices if that is faster, also in simulated time.
    let two = time(2, 10)?;
    assert!(two <= ten * 11 / 10, "{two:?} on two devices, {ten:?} on one");
    Ok(())
}

#[test]
fn the_host_reads_each_predicate_once() -> Outcome {
    #[graph]
    fn halves(x: Tensor, y: Tensor) -> (Tensor, Tensor) {
        let (mut x, mut y, mut n) = (x, y, scalar(0));
        while n < 100 {
            (x, n) = on("/gpu:0", || (x * 0.5 + 1.0, n + 1));
            y = on("/gpu:1", || y * 0.5 + 2.0);
        }
        (x, y)
    }
    let session = Session::builder().simulated(gpus(2)).build()?;
    let (results, timeline) = session.function(halves)?.profile((3.0, 4.0))?;
    let halve = |x: f32, added: f32| (0..100).fold(x, |x, _| x * 0.5 + added);
    assert_eq!((results.0.to_vec(), results.1.to_vec()), (vec![halve(3.0, 1.0)], vec![halve(4.0, 2.0)]));
    let count = |link: &str| copies(&timeline, link).count();
    // 101 predicates and two results. The other device gets its input alone.
    assert_eq!(count("/gpu:0 -> host") + count("/gpu:1 -> host"), 103, "{timeline}");
    assert_eq!(count("/gpu:0 -> /gpu:1"), 0, "{timeline}");
    Ok(())
}

#[test]
fn a_failed_check_ends_a_simulated_step_beside_a_loop_that_does_not() -> Outcome {
    let session = Session::builder().simulated((0..2).map(|i| SimulatedDevice::new(&format!("/cpu:{i}")))).build()?;
    let f = session.function(loop_beside_a_check)?;
    let error = f.call_timeout(Duration::from_secs(100), (-1, vec![[0.0f32; 96]; 96])).expect_err("the check fails");
    assert!(error.message.contains("the sum is not positive"), "{error}");
    Ok(())
}

#[test]
fn what_is_explained_is_what_runs() -> Outcome {
    #[graph]
    fn says(n: Tensor<i32>) -> Tensor<i32> {
        on("/cpu:0", || println!("{n}"));
        let mut i = scalar(0);
        while i < n {
            i = on("/cpu:1", || i + 1);
            on("/cpu:1", || println!("{i}"));
        }
        i
    }
    let session = Session::builder().cpus(2).print_to(|_, _| ()).build()?;
    let text = session.function(says)?.explain(&[TensorType::new(DType::I32, [])])?;
    let prints: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("print")).take(2).collect();
    assert!(prints.len() == 2 && prints.iter().all(|line| line.contains("/cpu:0")), "{text}");
    assert!(prints[1].ends_with("with the first print, to keep their order"), "{text}");
    let crossing = text.lines().skip_while(|line| !line.starts_with("/cpu:1 -> /cpu:0")).nth(1);
    assert!(text.contains("lt at") && crossing.is_some(), "the predicate crosses in\n{text}");
    Ok(())
}

#[test]
fn what_comes_from_the_host_and_goes_there_takes_the_link() -> Outcome {
    let session = Session::builder().simulated(gpus(2)).build()?;
    let w = on("/gpu:0", || Var::new("w", vec![1.0f32; 4096]));
    #[graph]
    fn branches(w: &Var, x: Tensor) -> Tensor {
        let y = on("/gpu:0", || x * w.get());
        w.set(y);
        let y = on("/gpu:1", || y.exp());
        let total = on("/gpu:1", || y.sum());
        if total > 0.0 { on("/gpu:0", || y * 2.0) } else { on("/gpu:1", || y * 3.0) }
    }
    let f = session.function(|x: Tensor| branches(&w, x))?;
    let (_, timeline) = f.profile(vec![0.5f32; 4096])?;
    let count = |link: &str| copies(&timeline, link).count();
    // The input; the predicate, which the host reads once for both devices; the result. The
    // variable stays where it is.
    assert_eq!(count("host -> /gpu:0"), 1, "{timeline}");
    assert_eq!(count("/gpu:0 -> host") + count("/gpu:1 -> host"), 2, "{timeline}");
    Ok(())
}

#[test]
fn a_device_that_is_not_there_is_an_error_at_the_users_line() -> Outcome {
    for session in [Session::new()?, Session::builder().cpus(2).build()?] {
        let f = session.function(|x: Tensor| on("/gpu:0", || x * 2.0))?;
        let error = f.call(1.0).expect_err("there is no GPU").to_string();
        assert!(error.contains("/gpu:0") && error.contains("tests/several_devices.rs"), "{error}");
    }
    Ok(())
}

#[test]
fn sessions_that_make_no_sense_are_refused() {
    let refused = |builder: anabranch::SessionBuilder| builder.build().expect_err("it makes no sense").message;
    assert_eq!(refused(Session::builder().cpus(0)), "a session needs at least one CPU device");
    assert!(refused(Session::builder().cpus(usize::MAX)).contains("at most 1024 CPU devices"));
    assert_eq!(refused(Session::builder().parallel_iterations(0)), "`parallel_iterations` is 0");
    assert!(refused(Session::builder().cpus(2).simulated(gpus(1))).contains("their clocks differ"));
    assert!(refused(Session::builder().cpus(2).place("w", "/cpu:7")).contains("matches no device"));
    assert!(refused(Session::builder().cpus(2).place("layer{i}", "/gpu:{i}")).contains("matches no device"));
    assert!(Session::builder().cpus(2).place("layer{i}", "/cpu:{i}").build().is_ok());
    assert!(refused(Session::builder().simulated([SimulatedDevice::new("gpu")])).contains("does not start with `/`"));
    assert!(
        refused(Session::builder().simulated(vec![SimulatedDevice::new("/gpu:0"); 2]))
            .contains("two simulated devices")
    );
    assert!(
        refused(Session::builder().simulated([SimulatedDevice::new("/gpu:0").flops(0.0)]))
            .contains("not a positive rate")
    );
}

#[test]
fn devices_may_be_simulated_as_slow_as_one_likes() -> Outcome {
    let gpu = |i: usize| SimulatedDevice::new(&format!("/gpu:{i}"));
    let slow: [fn(SimulatedDevice) -> SimulatedDevice; 5] = [
        |gpu| gpu.launch(Duration::from_secs(1 << 25)),
        |gpu| gpu.launch(Duration::MAX),
        |gpu| gpu.flops(1e-300),
        |gpu| gpu.bandwidth(f64::MIN_POSITIVE),
        |gpu| gpu.link(1e-300, Duration::MAX),
    ];
    for slow in slow {
        let session = Session::builder().simulated([slow(gpu(0)), slow(gpu(1))]).build()?;
        let f = session.function(|x: Tensor| {
            let y = on("/gpu:1", || x.matmul(x));
            on("/gpu:0", || y.sum())
        })?;
        let (sum, timeline) = f.profile([[1.0f32, 2.0], [3.0, 4.0]])?;
        assert_eq!(sum, 54.0);
        let last = timeline.spans.iter().map(|s| s.end).max();
        assert_eq!(last, Some(timeline.total), "{timeline}");
        assert!(timeline.total > Duration::from_secs(1 << 25), "{timeline}");
    }
    Ok(())
}

#[test]
fn a_call_that_waits_for_threads_of_devices_says_where_it_was_stopped() -> Outcome {
    #[graph]
    fn twice(n: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let (mut i, mut j) = (scalar(0), scalar(0));
        on("/cpu:0", || {
            while i != n {
                i = (i + 1) % 1000;
            }
        });
        on("/cpu:1", || {
            while j != n {
                j = (j + 1) % 1000;
            }
        });
        (i, j)
    }
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(twice)?;
    let error = f.call_timeout(Duration::from_millis(100), -1).expect_err("it does not end by itself");
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("while i != n") || error.to_string().contains("while j != n"), "{error}");
    assert_eq!(f.call(5)?.0, 5);
    Ok(())
}

#[test]
fn what_is_all_on_one_of_several_devices_says_where() -> Outcome {
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(|n: Tensor<i32>| on("/cpu:1", || checked(n)))?;
    let error = f.call(7).expect_err("it is too large").to_string();
    assert!(error.contains("assertion failed: n is 7") && error.contains("note: on /cpu:1"), "{error}");
    let text = f.explain(&[TensorType::new(DType::I32, [])])?;
    assert!(text.contains("placement of `") && text.contains("plan of `"), "{text}");
    let alone = Session::new()?.function(checked)?;
    let error = alone.call(7).expect_err("it is too large").to_string();
    assert!(!error.contains("/cpu"), "{error}");
    Ok(())
}

#[graph]
fn checked(n: Tensor<i32>) -> Tensor<i32> {
    assert!(n < 3, "n is {n}");
    n + 1
}

#[test]
fn an_explanation_shows_all_that_crosses() -> Outcome {
    #[graph]
    fn f(x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = on("/cpu:1", || x.exp());
        let mut i = scalar(0);
        while i < n {
            y = on("/cpu:0", || y * 0.5);
            i = on("/cpu:0", || i + 1);
        }
        let p = on("/cpu:0", || y.sum() > 3.0);
        if p { on("/cpu:1", || y.sin()) } else { on("/cpu:0", || y.cos()) }
    }
    let session = Session::builder().cpus(2).build()?;
    let types = [TensorType::new(DType::F32, [1000]), TensorType::new(DType::I32, [])];
    let text = session.function(f)?.explain(&types)?;
    let table = text.split("part 0").next().unwrap_or_default();
    let (there, back) = table.split_once("/cpu:1 -> /cpu:0:").unwrap_or_else(|| panic!("nothing goes back: {text}"));
    assert!(back.contains("exp") && back.contains("4 kB"), "the initial value of the loop: {text}");
    let crossing = there.split_once("/cpu:0 -> /cpu:1:").map_or("", |(_, crossing)| crossing);
    // The result of the loop, the predicate, and the yield of the branch on the other device.
    assert!(["mul", "gt", "cos"].iter().all(|op| crossing.contains(op)), "{text}");
    Ok(())
}

#[test]
fn lists_that_a_loop_carries_stay_on_their_device() -> Outcome {
    #[graph]
    fn swapped(n: Tensor<i32>, x: Tensor) -> Tensor {
        let (mut a, mut b) = on("/gpu:1", || {
            let (mut a, mut b) = (List::new([1000]), List::new([1000]));
            a.push(x);
            b.push(x * 2.0);
            (a, b)
        });
        let mut i = scalar(0);
        while i < n {
            (a, b) = (b, a);
            i = on("/gpu:0", || i + 1);
        }
        on("/gpu:1", || a.read(0).sum() + b.read(0).sum() * 3.0)
    }
    let session = Session::builder().simulated(gpus(2)).build()?;
    let (sum, timeline) = session.function(swapped)?.profile((3, vec![1.0f32; 1000]))?;
    assert_eq!(sum, 2000.0 + 3000.0);
    let between = timeline
        .spans
        .iter()
        .filter(|s| s.device.contains("/gpu:1 -> /gpu:0") || s.device.contains("/gpu:0 -> /gpu:1"));
    let moved: Vec<&str> = between.map(|s| s.name.as_str()).filter(|name| name.contains("list")).collect();
    assert!(moved.is_empty(), "{timeline}");
    Ok(())
}

#[test]
fn a_loop_variable_that_grows_is_compiled_for_each_of_its_shapes_once() -> Outcome {
    #[graph]
    fn grown(x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < n {
            y = on("/cpu:1", || concat(&[y, x], 0)).with_dynamic(0);
            i = on("/cpu:0", || i + 1);
        }
        y
    }
    let session = Session::builder().cpus(2).build()?;
    let f = session.function(grown)?;
    for _ in 0..2 {
        assert_eq!(f.call(([1.0, 2.0], 40))?.shape(), [82]);
    }
    Ok(())
}

#[test]
fn a_variable_may_become_a_constant() -> Outcome {
    let (count, sum) = (Var::<f32>::new("count", 5.0).on("/cpu:1"), Var::<f32>::new("sum", 1.0).on("/cpu:0"));
    let reset = |x: Tensor| {
        count.set(scalar(0.0));
        sum.set(sum.get() + x);
        sum.get()
    };
    let session = Session::builder().cpus(2).build()?;
    assert_eq!(session.function(reset)?.call(2.0)?, 3.0);
    assert_eq!((session.get(&count)?.item(), session.get(&sum)?.item()), (0.0, 3.0));
    Ok(())
}

#[test]
fn a_variable_stays_on_the_device_of_its_first_function() -> Outcome {
    for (first, second) in [("/gpu:0", "/gpu:1"), ("/gpu:1", "/gpu:0")] {
        let session = Session::builder().simulated(gpus(2)).build()?;
        let w = Var::<f32>::new("w", [1.0, 2.0]);
        let train = session.function(|by: Tensor| on(first, || w.set(w.get() + by)))?;
        let scaled = session.function(|x: Tensor| on(second, || w.get() * x))?;
        train.call(1.0)?;
        let text = scaled.explain(&[TensorType::new(DType::F32, [])])?;
        let line = text.lines().find(|line| line.contains("@w ")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(first) && line.contains("its home since an earlier function"), "{text}");
        assert!(text.contains(&format!("{first} -> {second}")), "{text}");
        assert_eq!(scaled.call(2.0)?.to_vec(), [4.0, 6.0]);
        session.set(&w, [5.0, 6.0])?;
        train.call(1.0)?;
        assert_eq!((scaled.call(1.0)?.to_vec(), session.get(&w)?.to_vec()), (vec![6.0, 7.0], vec![6.0, 7.0]));
        // The interpreter reads and assigns the variable at its home.
        let double = session.function(|| w.set(w.get() * 2.0))?.interpreted(true);
        double.call(())?;
        assert_eq!(scaled.call(1.0)?.to_vec(), [12.0, 14.0]);
    }
    Ok(())
}

#[test]
fn a_rule_that_comes_after_the_first_function_cannot_move_a_variable() -> Outcome {
    let session = Session::builder().cpus(2).place("late.*", "/cpu:1").build()?;
    let model = (Var::<f32>::new("w", 1.0), Var::<f32>::new("v", 1.0));
    session.function(|| on("/cpu:0", || model.0.get() * 2.0))?.call(())?;
    session.name_variables("late", &model);
    let error = session.function(|| model.0.get() + model.1.get())?.call(()).unwrap_err();
    assert!(error.message.contains("no device matches /cpu:0 and /cpu:1"), "{error}");
    assert!(error.to_string().contains("`w`, which an earlier function placed"), "{error}");
    Ok(())
}

/// Returns the losses and the final weights of a training whose model and optimizer are on some
/// devices.
fn trained_on(session: &Session, [first, second]: [&str; 2]) -> anabranch::Result<(Vec<f32>, Vec<f32>)> {
    let init = Init::new(5);
    let (a, b, sgd) = (Linear::new(&init, 3, 4), Linear::new(&init, 4, 1), Sgd::new(0.1).momentum(0.5));
    let step = session.function(|x: Tensor, n: Tensor<i32>| {
        let start = (on(first, || a.forward(x)), scalar(0));
        let (h, _) = control::while_loop(start, |(_, i)| i.less(n), |(h, i)| (on(second, || h.tanh()), i + 1));
        let loss = on(second, || b.forward(h)).square().mean();
        sgd.minimize(loss, &(&a, &b));
        loss
    })?;
    let x = [[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]];
    let losses = (0..4).map(|i| Ok(step.call((x, i % 3))?.item())).collect::<anabranch::Result<_>>()?;
    Ok((losses, session.get(&a.weight)?.to_vec()))
}

#[test]
fn variables_live_in_memory_that_the_host_cannot_see() -> Outcome {
    let (losses, weights) = trained_on(&Session::builder().interpreted(true).build()?, ["/cpu:0"; 2])?;
    for on in [["/gpu:0", "/gpu:0"], ["/gpu:0", "/gpu:1"], ["/gpu:1", "/cpu:0"], ["/cpu:0", "/gpu:0"]] {
        let session = Session::builder().opaque_devices(2).build()?;
        let (got, got_weights) = trained_on(&session, on)?;
        let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(near(&got, &losses) && near(&got_weights, &weights), "{on:?}: {got:?}, {losses:?}");
    }
    Ok(())
}

#[test]
fn a_step_that_fails_leaves_variables_of_opaque_devices_as_they_were() -> Outcome {
    let session = Session::builder().opaque_devices(1).build()?;
    let w = Var::<f32>::new("w", [1.0, 2.0]);
    let step = session.function(|x: Tensor| {
        on("/gpu:0", || w.set(w.get() * x));
        on("/gpu:0", || anabranch::dsl::staged::Assert::new(x.greater(0.0)))
            .check(anabranch::dsl::staged::message(format_args!("{x}")));
        w.get()
    })?;
    assert_eq!(step.call(2.0)?.to_vec(), [2.0, 4.0]);
    let held = session.get(&w)?;
    assert_eq!(step.call(-1.0).unwrap_err().kind, ErrorKind::AssertionFailed);
    assert_eq!(session.get(&w)?, held);
    session.set(&w, [5.0, 6.0])?;
    assert_eq!(step.call(1.0)?.to_vec(), [5.0, 6.0]);
    Ok(())
}

#[test]
fn unsupported_operations_go_to_a_cpu() -> Outcome {
    let printed = Arc::new(Mutex::new(String::new()));
    let to = printed.clone();
    let builder = Session::builder().opaque_devices(1);
    let session = builder.print_to(move |_, text| to.lock().unwrap().push_str(text)).build()?;
    #[graph]
    fn mixed(x: Tensor) -> Tensor {
        on("/gpu:0", || {
            let y = x + 1.0;
            println!("{y}");
            (y.cast::<f64>() * 0.5).cast::<f32>() + y
        })
    }
    let f = session.function(mixed)?;
    assert_eq!(f.call(3.0)?, 6.0);
    assert_eq!(*printed.lock().unwrap(), "4\n");
    let text = f.explain(&[TensorType::new(DType::F32, [])])?;
    let row = |op: &str| text.lines().find(|line| line.contains(op)).unwrap_or_else(|| panic!("{text}")).to_owned();
    assert!(row(" print ").contains("/cpu:0") && row(" print ").contains("/gpu:0 cannot print"), "{text}");
    assert!(row(" mul ").contains("/cpu:0") && row(" mul ").contains("/gpu:0 has no f64"), "{text}");
    assert!(row("add at").contains("/gpu:0"), "{text}");
    // A function without constraints may run there, too.
    let sum = session.function(|x: Tensor<f64>| (x * 2.0).sum())?;
    assert_eq!(sum.call([1.0, 2.0])?, 6.0);
    Ok(())
}

#[test]
fn a_function_on_one_device_runs_on_that_device() -> Outcome {
    let session = Session::builder().opaque_devices(2).build()?;
    let w = Var::<f32>::new("w", 1.0).on("/gpu:1");
    let f = session.function(|x: Tensor| on("/gpu:1", || w.set(w.get() + x)))?;
    let ((), timeline) = f.profile(2.0)?;
    assert!(timeline.spans.iter().any(|span| span.device == "/gpu:1"), "{timeline}");
    assert!(timeline.spans.iter().all(|span| ["/gpu:1", "host -> /gpu:1"].contains(&&*span.device)), "{timeline}");
    assert_eq!(session.get(&w)?, 3.0);
    Ok(())
}

#[test]
fn a_variable_stays_at_home_where_operations_of_its_functions_do_not_run() -> Outcome {
    let session = Session::builder().opaque_devices(1).build()?;
    let flag = Var::<bool>::new("flag", true).on("/gpu:0");
    session.function(|| flag.set(!flag.get()))?.call(())?;
    // The device has no `f64`. The branch decides by the variable, so both are in one group.
    let f = session.function(|x: Tensor<f64>| cond(flag.get(), || x * 2.0, || x + 1.0))?;
    assert_eq!(f.call(3.0)?, 4.0);
    let w = Var::<f64>::new("w", 1.0).on("/gpu:0");
    assert_eq!(session.function(|| w.get())?.call(())?, 1.0);
    assert_eq!(session.function(|| w.get() * 2.0)?.call(())?, 2.0);
    Ok(())
}

#[test]
fn functions_compiled_at_once_agree_on_the_home_of_a_variable() -> Outcome {
    let types = [TensorType::new(DType::F32, [])];
    for _ in 0..8 {
        let session = Session::builder().simulated(gpus(2)).build()?;
        let w = Var::<f32>::new("w", 3.0);
        let start = std::sync::Barrier::new(2);
        let texts = std::thread::scope(|scope| {
            let threads = ["/gpu:0", "/gpu:1"].map(|device| {
                let (session, w, start, types) = (&session, &w, &start, &types);
                scope.spawn(move || -> anabranch::Result<String> {
                    let f = session.function(|x: Tensor| on(device, || w.get() * x))?;
                    start.wait();
                    assert_eq!(f.call(2.0)?, 6.0);
                    f.explain(types)
                })
            });
            threads.map(|thread| thread.join().expect("a call does not panic"))
        });
        let [first, second] = texts;
        let home = |text: &str| text.lines().find(|line| line.contains("@w ")).map(|line| line.contains("/gpu:0"));
        assert_eq!(home(&first?), home(&second?));
    }
    Ok(())
}
