//! GPUs, through whatever driver this machine has.
//!
//! With `ANABRANCH_GPU`, all tests of engines also place each node on one of two GPUs or on a CPU.
//! Without it, and without an adapter, the tests of this file pass without a check.

use super::support::gpus::{adapter, assert_near, numbers};
use anabranch::dsl::equality::one_nan;
use anabranch::dsl::function::Arguments;
use anabranch::dsl::ops::random::Key;
use anabranch::dsl::{Bytes, DType, Graph, HostTensor, TensorType, interp};
use anabranch::prelude::*;
use anabranch::{
    Array, CallOptions, CancelHandle, ErrorKind, GpuAdapter, Session, SimulatedDevice, Timeline, gpu_adapters,
};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};
use std::time::Duration;

type Outcome = anabranch::Result<()>;

/// Returns a session with `n` GPUs, if this machine has an adapter.
fn session(n: usize) -> anabranch::Result<Option<Session>> {
    let Some(adapter) = adapter() else { return Ok(None) };
    (0..n).fold(Session::builder(), |builder, _| builder.gpu(&adapter)).build().map(Some)
}

#[test]
fn an_adapter_is_named_with_its_driver_and_limits() {
    let Some(adapter) = adapter() else { return };
    assert!(!adapter.name().is_empty() && adapter.max_tensor_bytes() >= 128 << 20, "{adapter}");
    assert!(adapter.to_string().contains(&adapter.backend()), "{adapter}");
}

#[test]
fn kernels_views_products_and_softmax_run_there() -> Outcome {
    fn model(x: Tensor, w: Tensor) -> (Tensor, Tensor) {
        let y = (x.matmul(w) + 1.0).tanh();
        let z = y.transpose(0, 1).matmul(y.slice(1, 0, 8)).softmax(1);
        let rows = concat(&[z.flip(0), z], 1).cumsum(0);
        (y / (y * y).sum_keepdim(1).sqrt(), rows.take(rows.argmax(0), 0))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, w| on("/gpu:0", || model(x, w)))?;
    let expected = Session::new()?.function(model)?;
    let (x, w) = (Array::new([33, 17], numbers(33 * 17)), Array::new([17, 40], numbers(17 * 40)));
    let (a, b) = (f.call((&x, &w))?, expected.call((&x, &w))?);
    assert_near(&a.0, &b.0);
    assert_near(&a.1, &b.1);
    assert_only_on_a_gpu(&f.profile((&x, &w))?.1);
    Ok(())
}

/// Asserts that a call ran nothing on a CPU.
#[track_caller]
fn assert_only_on_a_gpu(timeline: &Timeline) {
    assert!(timeline.spans.iter().all(|span| span.device != "/cpu:0"), "{timeline:?}");
}

/// Counters of 64 bits, schedules and branches of an update run where they can.
#[test]
fn optimizers_train_variables_there() -> Outcome {
    use anabranch::optim::{Accumulator, NAdam, Optimizer, WeightAverage, clip_global_norm, model_gradients, schedule};
    fn trained(session: &Session, device: &str) -> anabranch::Result<(Array<f32>, Array<f32>)> {
        let w = on(device, || Var::<f32>::new("w", [[0.5, -0.25], [1.0, 0.0]]));
        let (nadam, sums) = on(device, || (NAdam::new(0.1), Accumulator::new(2)));
        let average = on(device, || WeightAverage::exponential(0.5));
        let step = session.function(|x: Tensor| {
            on(device, || {
                let gradients = model_gradients((x.matmul(w.get()) - 1.0).square().mean(), &w);
                sums.add(2.0, &gradients, |gradients| {
                    clip_global_norm(gradients, 1.0);
                    let rate = schedule::cosine_restarts(nadam.steps(), nadam.rate(), 0.0, 3, 2);
                    nadam.apply(rate, gradients);
                    average.update(&w);
                });
            });
        })?;
        for i in 0..12 {
            step.call([[0.5, i as f32 * 0.25], [1.0, -0.5]])?;
        }
        let averages = session.function(|| on(device, || average.with_averages(&w, || w.get() * 1.0)))?;
        Ok((session.get(&w)?, averages.call(())?))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let (there, here) = (trained(&session, "/gpu:0")?, trained(&Session::new()?, "/cpu:0")?);
    assert_near(&there.0, &here.0);
    assert_near(&there.1, &here.1);
    Ok(())
}

#[test]
fn elements_are_read_and_written_at_indices_there() -> Outcome {
    fn model(x: Tensor, ids: Tensor<i32>, u: Tensor) -> Vec<Tensor> {
        let rows = x.take(ids, 1);
        let along = x.take_along_axis(ids.reshape([1, 5, 1]).broadcast_to([3, 5, 2]), 1);
        let start = ids.index(0, 0);
        let updated = x.update_slice_at(x.slice_at(start, 1, 2) * 2.0, start, 1);
        let added =
            x.scatter_add(ids, u, 1).scatter_add_along_axis(ids.reshape([1, 5, 1]).broadcast_to([3, 5, 2]), u, 1);
        let flat = x.reshape([24]).scatter_add(ids, u.slice(0, 0, 1).slice(2, 0, 1).reshape([5]), 0);
        let loss = (rows * rows).sum() + (along * updated.slice(1, 0, 1)).sum() + added.square().mean();
        vec![rows, along, updated, added, flat, gradients(loss, x)]
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, ids, u| on("/gpu:0", || model(x, ids, u)))?;
    let expected = Session::new()?.function(model)?;
    let (x, u) = (Array::new([3, 4, 2], numbers(24)), Array::new([3, 5, 2], numbers(30)));
    let ids = Array::new([5], vec![2, 0, 3, 2, 2]);
    for (a, b) in f.call((&x, &ids, &u))?.iter().zip(&expected.call((&x, &ids, &u))?) {
        assert_near(a, b);
    }
    assert_only_on_a_gpu(&f.profile((&x, &ids, &u))?.1);
    Ok(())
}

#[test]
fn shaders_read_tables_through_indices() -> Outcome {
    fn model(table: Tensor, ids: Tensor<i32>, others: Tensor<i32>, x: Tensor) -> (Tensor, Tensor, Tensor) {
        let rows = table.take(ids, 0) * x + x;
        let other_rows = table.take(others, 0);
        let centered = other_rows - other_rows.mean_keepdim(1);
        let columns = table.transpose(0, 1).flip(1).take(ids, 1).transpose(0, 1) * x;
        (rows, centered, columns.sum_axis(1))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let there = session.function(|table, ids, others, x| on("/gpu:0", || model(table, ids, others, x)))?;
    let here = Session::new()?.function(model)?;
    let (table, x) = (Array::new([7, 5], numbers(35)), Array::new([4, 5], numbers(20)));
    let of = |ids: [i32; 4]| Array::new([4], ids.to_vec());
    for (ids, others) in [([0, 6, 3, 3], [1, 2, 5, 0]), ([0, 7, 1, 1], [-1; 4]), ([0; 4], [0, 1, i32::MIN, 9])] {
        match (there.call((&table, of(ids), of(others), &x)), here.call((&table, of(ids), of(others), &x))) {
            (Ok(a), Ok(b)) => {
                assert_near(&a.0, &b.0);
                assert_near(&a.1, &b.1);
                assert_near(&a.2, &b.2);
            }
            (Err(a), Err(b)) => assert_eq!((a.kind, &a.message, a.loc()), (b.kind, &b.message, b.loc())),
            (a, b) => panic!("{a:?} and {b:?}"),
        }
    }
    let arguments = || (&table, of([0; 4]), of([1; 4]), &x);
    assert_only_on_a_gpu(&there.profile(arguments())?.1);
    // A shader for each result, beside the checks of indices, which have none.
    let text = there.explain(Arguments::of::<(Tensor, Tensor<i32>, Tensor<i32>, Tensor)>(arguments()).signature())?;
    assert_eq!(n_shaders(&text), 3, "{text}");
    Ok(())
}

#[test]
fn the_first_failed_check_of_a_program_is_its_error() -> Outcome {
    #[graph]
    fn model(x: Tensor<i32>, ids: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let (mut sum, mut i) = (scalar(0), scalar(0));
        while i < 3 {
            let id = ids.row(i);
            assert!(id < 100, "{id} of {ids} is too large in round {i}");
            sum += x.take(ids, 0).row(i) / x.row(i) % 7;
            i += 1;
        }
        (sum, (x.reshape([2, 2]).transpose(0, 1) / x.reshape([2, 2])).reshape([4]))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let there = session.function(|x, ids| on("/gpu:0", || model(x, ids)))?;
    let here = Session::new()?.function(model)?;
    for x in [[1, 2, 3, 4], [i32::MIN, -1, 7, -3], [7, i32::MIN, -1, 1], [1, 2, 0, 4], [1, 2, 3, 0]] {
        for ids in [[0, 1, 3], [1, 4, 0], [-1, 0, 0], [2, 200, 1], [0, 1, i32::MAX]] {
            let arguments = (Array::new([x.len()], x.to_vec()), Array::new([ids.len()], ids.to_vec()));
            match (there.call((&arguments.0, &arguments.1)), here.call((&arguments.0, &arguments.1))) {
                (Ok(a), Ok(b)) => assert_eq!(a, b, "{x:?} {ids:?}"),
                (Err(a), Err(b)) => {
                    assert_eq!((a.kind, &a.message, a.loc()), (b.kind, &b.message, b.loc()), "{x:?} {ids:?}")
                }
                (a, b) => panic!("{a:?} and {b:?} for {x:?} {ids:?}"),
            }
        }
    }
    let profiled = there.profile(([1, 2, 3, 4], [0, 1, 3]))?;
    assert_only_on_a_gpu(&profiled.1);
    Ok(())
}

#[test]
fn loops_over_scalars_are_those_of_a_cpu() -> Outcome {
    #[graph]
    fn collatz(n: Tensor<i32>) -> Tensor<i32> {
        let (mut m, mut steps) = (n, scalar(0));
        while m > 1 {
            m = if m % 2 == 0 { m / 2 } else { m * 3 + 1 };
            steps += 1;
        }
        steps
    }
    // Loops that fail, that take more iterations than one run, and that do so inside.
    #[graph]
    fn sums(n: Tensor<i32>, inner: Tensor<i32>, divisor: Tensor<i32>) -> Tensor<i32> {
        let (mut sum, mut i) = (scalar(0), scalar(0));
        while i < n {
            assert!(sum > -10, "{sum} is too small");
            let mut j = scalar(0);
            while j < inner {
                j += 1;
            }
            sum += j + 100 / (i + divisor);
            i += 1;
        }
        sum
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let cpu = Session::new()?;
    let there = session.function(|n| on("/gpu:0", || collatz(n)))?;
    let here = cpu.function(collatz)?;
    for n in [-5, 1, 2, 27, 97] {
        assert_eq!(there.call(n)?, here.call(n)?, "{n}");
    }
    assert_only_on_a_gpu(&there.profile(27)?.1);
    let there = session.function(|n, inner, divisor| on("/gpu:0", || sums(n, inner, divisor)))?;
    let here = cpu.function(sums)?;
    for arguments in [(3, 4, 1), (200_000, 1, 1), (3, 70_000, 1), (20, 1, -10), (0, 0, 0), (20, 0, -100), (9, 0, -5)] {
        match (there.call(arguments), here.call(arguments)) {
            (Ok(a), Ok(b)) => assert_eq!(a, b, "{arguments:?}"),
            (Err(a), Err(b)) => assert_eq!((a.kind, a.message), (b.kind, b.message), "{arguments:?}"),
            (a, b) => panic!("{a:?} and {b:?} for {arguments:?}"),
        }
    }
    Ok(())
}

#[test]
fn loops_that_count_have_gradients_there() -> Outcome {
    #[graph]
    fn model(x: Tensor, w: Tensor, n: Tensor<i32>) -> (Tensor, Tensor) {
        let mut y = x;
        for _ in range(0..n) {
            y = (y.matmul(w) * 0.5).tanh();
        }
        (y, gradients(y.sum(), w))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, w, n| on("/gpu:0", || model(x, w, n)))?;
    let expected = Session::new()?.function(model)?;
    let (x, w) = (Array::new([5, 7], numbers(35)), Array::new([7, 7], numbers(49)));
    for n in [0, 1, 40] {
        let (a, b) = (f.call((&x, &w, n))?, expected.call((&x, &w, n))?);
        assert_near(&a.0, &b.0);
        assert_near(&a.1, &b.1);
    }
    Ok(())
}

#[test]
fn compiled_shaders_are_kept_in_a_folder() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let folder = std::env::temp_dir().join(format!("anabranch-shaders-{}", std::process::id()));
    let adapter = adapter.with_shader_cache(&folder);
    let run = || {
        let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
        session.function(|x: Tensor| (x * 1.5).exp())?.call(0.5)
    };
    let files = || -> Vec<std::path::PathBuf> {
        let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
        entries.map(|entry| entry.expect("the folder can be read").path()).collect()
    };
    let expected = run()?;
    // Not all drivers keep shaders.
    let Some(file) = files().pop() else { return Ok(()) };
    let first = std::fs::read(&file).expect("a file");
    assert!(first.len() > 8);
    assert_eq!(run()?, expected);
    assert_eq!(files(), std::slice::from_ref(&file));
    // A damaged file is written anew.
    std::fs::write(&file, [&first[..], b"damaged"].concat()).expect("a file");
    assert_eq!(run()?, expected);
    assert!(!std::fs::read(&file).expect("a file").ends_with(b"damaged"));
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    Ok(())
}

/// A long recurrence, whose gradient needs the state after each iteration.
#[graph]
fn recurrence(h: Tensor, w: Tensor, n: Tensor<i32>) -> (Tensor, Tensor) {
    let mut h = h;
    for _ in range(0..n) {
        h = (h.matmul(w) * 0.25).tanh() + 0.125;
    }
    (h, gradients(h.sum(), w))
}

#[test]
fn saved_values_move_to_the_host_if_the_budget_needs_it() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let on_gpu = |adapter: &GpuAdapter| Session::builder().gpu(adapter).device("/gpu:0").build()?.function(recurrence);
    let (h, w) = (Array::new([64, 128], numbers(64 * 128)), Array::new([128, 128], numbers(128 * 128)));
    let expected = on_gpu(&adapter)?.call((&h, &w, 60))?;
    assert_eq!(adapter.swapped_bytes(), 0);
    // Adapters that are listed again have counters of their own.
    let limited = gpu_adapters().remove(0).with_memory_budget(adapter.peak_bytes() / 4);
    let f = on_gpu(&limited)?;
    for _ in 0..2 {
        assert_eq!(f.call((&h, &w, 60))?, expected);
    }
    assert!(limited.peak_bytes() <= adapter.peak_bytes() / 4, "{} bytes", limited.peak_bytes());
    assert!(limited.swapped_bytes() > adapter.peak_bytes() / 2, "{} bytes", limited.swapped_bytes());
    // The weights, a state and its gradient do not fit.
    let small = gpu_adapters().remove(0).with_memory_budget(100 << 10);
    let error = on_gpu(&small)?.call((&h, &w, 60)).expect_err("the budget is too small");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    Ok(())
}

/// Lists whose indices the data determines, and rows of tensors.
#[graph]
fn rows_and_lists(xs: Tensor, n: Tensor<i32>) -> (Tensor, Tensor, Tensor, Tensor) {
    let scaled = map(xs, |x: Tensor| {
        let mut y = x;
        while y.sum() < 1.0 {
            y = y * 1.5 + 0.25;
        }
        y
    });
    let mut last = xs.row(0);
    for x in scaled {
        last = (last * 0.5 + x).tanh();
    }
    // A list that grows and shrinks, and one with elements that are never written.
    let (mut grown, mut i) = (List::<f32>::new([3]), scalar(0));
    while i < n {
        grown.push(last * i.cast::<f32>());
        if i % 3 == 2 {
            last += grown.pop();
        }
        i += 1;
    }
    let mut written = List::<f32>::with_len(n + 2, [3]);
    for i in range(0..n) {
        written.write((i * 5) % n, scaled.row(i % 4) + grown.read(i % grown.len()));
    }
    let total = (written.read(n - 1) * written.read(n / 2)).sum() + grown.len().cast::<f32>();
    (gradients(total, xs), total, scaled, written.read(n + 1))
}

#[test]
fn rows_and_lists_stay_there() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let there = session.function(|xs, n| on("/gpu:0", || rows_and_lists(xs, n)))?;
    let here = Session::new()?.function(rows_and_lists)?;
    let xs = Array::new([4, 3], numbers(12));
    for n in [4, 7, 1, 12] {
        let b = here.call((&xs, n))?;
        let a = there.call((&xs, n))?;
        assert_near(&a.0, &b.0);
        assert_near(&a.1, &b.1);
        assert_near(&a.2, &b.2);
        assert_near(&a.3, &b.3);
    }
    assert_only_on_a_gpu(&there.profile((&xs, 7))?.1);
    // An element is written twice, and one is out of bounds.
    for n in [5, 10, 0] {
        let [a, b] = [there.call((&xs, n)), here.call((&xs, n))].map(|result| result.expect_err("it fails"));
        assert_eq!(a.message, b.message, "{n}");
    }
    Ok(())
}

#[test]
fn many_steps_need_no_more_memory_than_one() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    // Steps of some 20 KB.
    let adapter = adapter.with_memory_budget(64 << 10);
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let w = Var::new("w", vec![0.0f32; 1000]);
    let f = session.function(|x: Tensor| {
        w.set((w.get() + x.tanh()) * 0.5);
        (w.get() * x).sum()
    })?;
    let x = Array::new([1000], numbers(1000));
    let first = f.call(&x)?;
    for _ in 0..500 {
        f.call(&x)?;
    }
    assert!(first.item().is_finite());
    let large = session.function(|x: Tensor| x.broadcast_to([100, 1000]) + 1.0)?;
    let error = large.call(&x).expect_err("the budget is smaller");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    assert!(error.message.contains("exceeds the budget of 65536 bytes"), "{error}");
    f.call(&x).map(drop)
}

#[test]
fn reductions_of_rows_and_what_follows_them_are_one_shader() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let norm = |x: Tensor, g: Tensor| (x.layer_norm(g, g * 0.5, 1e-5) * 2.0).tanh();
    let f = session.function(norm)?;
    let expected = Session::new()?.function(norm)?;
    for [rows, columns] in [[33, 300], [5, 7], [1, 2]] {
        let (x, g) = (Array::new([rows, columns], numbers(rows * columns)), Array::new([columns], numbers(columns)));
        assert_near(&f.call((&x, &g))?, &expected.call((&x, &g))?);
    }
    let [x, g] = [[33, 300].to_vec(), [300].to_vec()].map(|shape| TensorType::new(DType::F32, shape));
    let text = f.explain(&[x, g])?;
    assert_eq!(text.lines().filter(|line| line.ends_with("f32[33, 300]")).count(), 1, "{text}");
    Ok(())
}

/// Returns how many shaders the description of a program has.
fn n_shaders(text: &str) -> usize {
    text.lines().filter(|line| line.contains(" workgroups: %")).count()
}

#[test]
fn what_follows_a_product_is_in_its_shader() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let there = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let here = Session::new()?;
    let dense = |x: Tensor, w: Tensor, b: Tensor| (x.matmul(w) * 0.1 + b).gelu();
    let [f, expected] = [there.function(dense)?, here.function(dense)?];
    for [m, k, n] in [[33, 40, 65], [2, 300, 70], [70, 300, 3], [1, 1, 1], [5, 0, 4]] {
        let [x, w, b] = [[m, k].to_vec(), [k, n].to_vec(), [n].to_vec()]
            .map(|shape| Array::new(shape.clone(), numbers(shape.iter().product())));
        assert_near(&f.call((&x, &w, &b))?, &expected.call((&x, &w, &b))?);
        let text = f.explain(Arguments::of::<(Tensor, Tensor, Tensor)>((&x, &w, &b)).signature())?;
        assert_eq!(n_shaders(&text), 1, "{text}");
    }
    // Without fusion each operation has one of its own.
    let apart = Session::builder().gpu(&adapter).device("/gpu:0").fusion(false).build()?.function(dense)?;
    let [x, w, b] = [&[2, 3][..], &[3, 4], &[4]].map(|shape| Array::new(shape, numbers(shape.iter().product())));
    assert_near(&apart.call((&x, &w, &b))?, &expected.call((&x, &w, &b))?);
    let text = apart.explain(Arguments::of::<(Tensor, Tensor, Tensor)>((&x, &w, &b)).signature())?;
    assert!(n_shaders(&text) >= 4, "{text}");
    // A comparison has elements of another type.
    let is_large = |x: Tensor| x.matmul(x).greater(x.transpose(0, 1));
    let x = Array::new([40, 40], numbers(1600));
    assert_eq!(there.function(is_large)?.call(&x)?, here.function(is_large)?.call(&x)?);
    let layer = |x: Tensor, w: Tensor| x.conv2d(w, ConvOptions::new().padding(1).stride([2, 1]).groups(2)).relu();
    let [x, w] = [[3, 4, 9, 8], [6, 2, 3, 2]].map(|shape| Array::new(shape, numbers(shape.iter().product())));
    let f = there.function(layer)?;
    assert_near(&f.call((&x, &w))?, &here.function(layer)?.call((&x, &w))?);
    let text = f.explain(Arguments::of::<(Tensor, Tensor)>((&x, &w)).signature())?;
    assert_eq!(n_shaders(&text), 1, "{text}");
    let trained = |x: Tensor, w: Tensor| {
        let [of_x, of_w] = gradients(layer(x, w).square().sum(), [x, w]);
        (of_x * 0.5 + x, of_w * 0.5 + w)
    };
    let ((of_x, of_w), (x, w)) = (there.function(trained)?.call((&x, &w))?, here.function(trained)?.call((&x, &w))?);
    assert_near(&of_x, &x);
    assert_near(&of_w, &w);
    Ok(())
}

#[test]
fn attention_runs_there() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    fn model(x: Tensor, w: Tensor) -> (Tensor, Tensor) {
        let attend = |x: Tensor| x.scaled_dot_product_attention(x.matmul(w), x * 0.5, AttentionMask::Causal);
        let y = attend(attend(x));
        (y, gradients(y.square().sum(), w))
    }
    let f = session.function(|x, w| on("/gpu:0", || model(x, w)))?;
    let expected = Session::new()?.function(model)?;
    let (x, w) = (Array::new([2, 3, 9, 8], numbers(2 * 3 * 72)), Array::new([8, 8], numbers(64)));
    let ((y, of_w), profile) = f.profile((&x, &w))?;
    let (expected_y, expected_w) = expected.call((&x, &w))?;
    assert_near(&y, &expected_y);
    assert_near(&of_w, &expected_w);
    assert_only_on_a_gpu(&profile);
    Ok(())
}

/// Writes to all rows of a tensor but the last one.
#[graph]
fn written(x: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut y, mut i) = (x * 2.0, scalar(0));
    while i < n {
        y = y.update_slice_at(y.row(i + 1).reshape([1, 1 << 12]) * 0.5, i, 0);
        i += 1;
    }
    y
}

#[test]
fn a_tensor_that_nothing_else_uses_is_updated_in_place() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let f = session.function(written)?;
    let x = Array::new([64, 1 << 12], numbers(64 << 12));
    let expected = Session::new()?.function(written)?.call((&x, 63))?;
    assert_eq!(f.call((&x, 63))?, expected);
    // The argument and the tensor, and rows.
    let whole = (4 * 64) << 12;
    assert!(adapter.peak_bytes() < 2 * whole + whole / 2, "{} bytes", adapter.peak_bytes());
    Ok(())
}

#[test]
fn threads_compute_several_of_many_elements() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let (there, here) = (Session::builder().gpu(&adapter).device("/gpu:0").build()?, Session::new()?);
    let model = |x: Tensor, b: Tensor| ((x * 2.0 + b.reshape([1, 7])).relu(), x.transpose(0, 1) - 1.0, x.less(0.25));
    let [f, expected] = [there.function(model)?, here.function(model)?];
    for rows in [9362, 9363, 10_000] {
        let (x, b) = (Array::new([rows, 7], numbers(rows * 7)), Array::new([7], numbers(7)));
        assert_eq!(f.call((&x, &b))?, expected.call((&x, &b))?, "{rows}");
    }
    Ok(())
}

#[test]
fn long_rows_are_reduced_by_many_workgroups() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let (there, here) = (Session::builder().gpu(&adapter).device("/gpu:0").build()?, Session::new()?);
    for shape in [[1, 1 << 18], [1 << 14, 3], [100_000, 1]] {
        let model = |x: Tensor| {
            let y = (x * 0.5 + 0.25).sin();
            (y.square().mean(), x.max_axis(0), x.greater(-0.4).any())
        };
        let (f, expected) = (there.function(model)?, here.function(model)?);
        let x = Array::new(shape, numbers(shape.iter().product()));
        let (found, expected) = (f.call(&x)?, expected.call(&x)?);
        assert_near(&found.0, &expected.0);
        assert_eq!((found.1, found.2), (expected.1, expected.2), "{shape:?}");
        // The first shader has at least eight workgroups, and the second one adds their results.
        let text = f.explain(Arguments::of::<(Tensor,)>(&x).signature())?;
        assert!(n_shaders(&text) >= 4, "{text}");
    }
    Ok(())
}

/// Writes to all rows of a tensor but the last one, if that is wanted.
#[graph]
fn written_if(x: Tensor, n: Tensor<i32>, is_wanted: Tensor<bool>) -> Tensor {
    let (mut y, mut i) = (x * 2.0, scalar(0));
    while i < n {
        if is_wanted {
            y = y.update_slice_at(y.row(i + 1).reshape([1, 1 << 12]) * 0.5, i, 0);
        }
        i += 1;
    }
    y
}

#[test]
fn a_tensor_that_nothing_else_uses_is_updated_in_place_in_a_branch() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let f = session.function(written_if)?;
    let x = Array::new([64, 1 << 12], numbers(64 << 12));
    let expected = Session::new()?.function(written_if)?.call((&x, 63, true))?;
    assert_eq!(f.call((&x, 63, true))?, expected);
    let whole = (4 * 64) << 12;
    assert!(adapter.peak_bytes() < 2 * whole + whole / 2, "{} bytes", adapter.peak_bytes());
    Ok(())
}

#[test]
fn a_loop_stays_on_a_gpu_that_cannot_hold_its_products_as_one_tensor() -> Outcome {
    #[graph]
    fn rnn(xs: Tensor, w: Tensor, u: Tensor) -> Tensor {
        let mut h = zeros([64, 1024]);
        for x in xs {
            h = (x.matmul(w) + h.matmul(u)).tanh();
        }
        h
    }
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    let n = adapter.max_tensor_bytes() as usize / (64 * 1024 * 4) + 1;
    let types = [&[n, 64, 16][..], &[16, 1024], &[1024, 1024]].map(|shape| TensorType::new(DType::F32, shape));
    let text = session.function(rnn)?.explain(&types)?;
    assert!(text.contains("it counts, so its iterations are recorded ahead"), "{text}");
    Ok(())
}

#[test]
fn a_lost_device_is_an_error_of_what_runs_there_alone() -> Outcome {
    let (Some(lost), Some(other)) = (adapter(), adapter()) else { return Ok(()) };
    let session = Session::builder().gpu(&lost).gpu(&other).build()?;
    let step = |device| move |x: Tensor| on(device, || ((x * 2.0).sum(), x.sin().matmul(x)));
    let [there, beside] = [session.function(step("/gpu:0"))?, session.function(step("/gpu:1"))?];
    let x = Array::new([8, 8], numbers(64));
    let expected = there.call(&x)?;
    lost.lose_devices();
    for _ in 0..2 {
        let error = there.call(&x).expect_err("the device is lost");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
        let text = error.to_string();
        assert!(text.contains("/gpu:0") && text.contains("gpu.rs"), "{text}");
        let here = beside.call(&x)?;
        assert_eq!(here.0, expected.0);
        assert_eq!(here.1, expected.1);
    }
    // The adapter can be opened again.
    let again = Session::builder().gpu(&lost).build()?;
    let again = again.function(step("/gpu:0"))?.call(&x)?;
    assert_eq!(again.0, expected.0);
    Ok(())
}

#[test]
fn what_a_shader_would_not_notice_fails_there() -> Outcome {
    // An assertion in a branch of a condition, and a part without elements.
    #[graph]
    fn counted(x: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut y, mut i) = (x, scalar(0));
        while {
            if n > 5 {
                assert!(i < 3, "{i} is too large");
            }
            i < n
        } {
            y = (y * 0.5).sin();
            i += 1;
        }
        y
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, n| on("/gpu:0", || counted(x, n)))?;
    let x = Array::new([4], numbers(4));
    f.call((&x, 4))?;
    assert_eq!(f.call((&x, 6)).expect_err("it asserts").message, "assertion failed: 3 is too large");
    let part = |x: Tensor, at: Tensor<i32>| x.slice_at(at, 0, 0);
    let f = session.function(move |x, at| on("/gpu:0", || part(x, at)))?;
    let expected = Session::new()?.function(part)?;
    assert_eq!(f.call((&x, 4))?.len(), 0);
    let [there, here] = [f.call((&x, 5)), expected.call((&x, 5))].map(|result| result.expect_err("it does not fit"));
    assert_eq!(there.message, here.message);
    Ok(())
}

#[test]
fn an_endless_loop_lets_other_calls_pass() -> Outcome {
    #[graph]
    fn of_scalars(x: Tensor) -> Tensor {
        let mut y = x;
        while y < 2.0 {
            y *= 0.5;
        }
        y
    }
    #[graph]
    fn of_data(x: Tensor) -> Tensor {
        let mut y = x.broadcast_to([100]);
        while y.sum() < 1000.0 {
            y *= 0.5;
        }
        y
    }
    #[graph]
    fn of_the_host(x: Tensor, go: Tensor<bool>) -> Tensor {
        let mut y = x.broadcast_to([100]);
        while go {
            y *= 0.5;
        }
        y
    }
    passes_others(of_scalars)?;
    passes_others(of_data)?;
    passes_others(|x| of_the_host(x, scalar(true)))
}

/// Asserts that other calls pass an endless one on the same device.
fn passes_others(endless: impl Fn(Tensor) -> Tensor + Sync + Send + 'static) -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let w = on("/gpu:0", || Var::new("w", 1.0f32));
    let add = session.function(|x: Tensor| {
        w.set(w.get() + x);
        w.get()
    })?;
    let f = session.function(move |x| on("/gpu:0", || endless(x)))?;
    let cancel = CancelHandle::new();
    let options = CallOptions::new().cancelled_by(&cancel);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| f.call_with(&options, 1.0));
        let others = || -> anabranch::Result<f32> {
            for _ in 0..5 {
                add.call(1.0)?;
            }
            let triple = session.function(|x: Tensor| on("/gpu:0", || x * tensor([3.0, 1.0])))?;
            assert_eq!(triple.call([2.0, 2.0])?.to_vec(), [6.0, 2.0]);
            Ok(session.get(&w)?.item())
        };
        let others = others();
        cancel.cancel();
        assert_eq!(blocked.join().expect("it does not panic").expect_err("it is cancelled").kind, ErrorKind::Cancelled);
        assert_eq!(others?, 6.0);
        Ok(())
    })
}

#[test]
fn products_of_few_rows_or_columns_run_there() -> Outcome {
    fn model(x: Tensor, w: Tensor) -> (Tensor, Tensor, Tensor) {
        let y = x.matmul(w);
        (y, w.transpose(0, 1).matmul(x.transpose(0, 1)), w.slice(1, 1, 2).transpose(0, 1).matmul(w))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, w| on("/gpu:0", || model(x, w)))?;
    let (x, w) = (Array::new([70, 300], numbers(70 * 300)), Array::new([300, 3], numbers(300 * 3)));
    let (a, b) = (f.call((&x, &w))?, Session::new()?.function(model)?.call((&x, &w))?);
    assert_near(&a.0, &b.0);
    assert_near(&a.1, &b.1);
    assert_near(&a.2, &b.2);
    Ok(())
}

#[test]
fn a_model_is_trained_there_and_its_variables_stay_there() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let cpu = Session::new()?;
    let train = |session: &Session, device: &'static str| -> anabranch::Result<(Vec<f32>, f32)> {
        let w = on(device, || Var::new("w", Array::new([4, 3], numbers(12))));
        let step = session.function(|x: Tensor, y: Tensor| {
            on(device, || {
                let error = x.matmul(w.get()).tanh() - y;
                let loss = (error * error).mean();
                let dw = gradients(loss, w.get());
                w.set(w.get() - dw * 0.1);
                loss
            })
        })?;
        let (x, y) = (Array::new([8, 4], numbers(32)), Array::new([8, 3], numbers(24)));
        let losses = (0..20).map(|_| step.call((&x, &y)).map(|loss| loss.item()));
        let losses = losses.collect::<anabranch::Result<Vec<f32>>>()?;
        assert!(losses[19] < losses[0], "{losses:?}");
        Ok((losses, session.get(&w)?.iter().sum()))
    };
    let (there, here) = (train(&session, "/gpu:0")?, train(&cpu, "/cpu:0")?);
    assert!(there.0.iter().zip(&here.0).all(|(a, b)| (a - b).abs() < 1e-5), "{there:?} and {here:?}");
    assert!((there.1 - here.1).abs() < 1e-4, "{there:?} and {here:?}");
    Ok(())
}

#[test]
fn a_loop_and_its_gradient_run_there_until_the_data_or_the_deadline_ends_it() -> Outcome {
    #[graph]
    fn root(x: Tensor, limit: Tensor) -> (Tensor, Tensor) {
        on("/gpu:0", || {
            let (mut y, mut i) = (x, scalar(0.0f32));
            while i < limit {
                y = (y + x / y) * 0.5;
                i += 1.0;
            }
            (y, gradients(y, x))
        })
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(root)?;
    let (y, dx) = f.call((2.0, 20.0))?;
    assert!((y.item() - 2f32.sqrt()).abs() < 1e-6 && (dx.item() - 0.5 / 2f32.sqrt()).abs() < 1e-6, "{y} {dx}");
    let error = f.call_timeout(Duration::from_millis(50), (2.0, f32::INFINITY)).expect_err("it does not end");
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert_eq!(f.call((2.0, 20.0))?.0.item(), y.item());
    Ok(())
}

#[test]
fn two_devices_of_one_adapter_work_on_one_graph() -> Outcome {
    let Some(session) = session(2)? else { return Ok(()) };
    let f = session.function(|x: Tensor| {
        let y = on("/gpu:0", || x.exp());
        let z = on("/gpu:1", || (y * 2.0).sum());
        on("/cpu:0", || z + 1.0)
    })?;
    assert_eq!(f.call([0.0; 6])?, 13.0);
    assert_eq!(session.devices().len(), 3);
    Ok(())
}

/// A step with work for a GPU alone returns its other inputs, of any type, without the GPU.
#[test]
fn inputs_are_returned_beside_work_of_a_gpu() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|name: Tensor<Bytes>, x: Tensor| (name, on("/gpu:0", || x.exp()), x))?;
    let (name, y, x) = f.call((["a"], [0.0, 0.0]))?;
    assert_eq!(name.to_vec(), ["a"].map(Bytes::from));
    assert_eq!((y.to_vec(), x.to_vec()), (vec![1.0, 1.0], vec![0.0, 0.0]));
    Ok(())
}

#[test]
fn a_failed_check_leaves_variables_of_a_gpu_as_they_were() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let w = on("/gpu:0", || Var::new("w", 1.0f32));
    #[graph]
    fn add(w: &Var, x: Tensor) -> Tensor {
        let y = on("/gpu:0", || w.get() + x);
        assert!(y < 10.0, "{y} is too large");
        w.set(y);
        y
    }
    let f = session.function(|x| add(&w, x))?;
    assert_eq!(f.call(2.0)?, 3.0);
    let error = f.call(20.0).expect_err("the check fails");
    assert_eq!((error.kind, &*error.message), (ErrorKind::AssertionFailed, "assertion failed: 23 is too large"));
    assert_eq!(session.get(&w)?, 3.0);
    Ok(())
}

#[test]
fn values_of_types_without_shaders_pass_through() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let w = on("/gpu:0", || Var::new("w", vec![0.5f64, 0.25]));
    let b = on("/gpu:0", || Var::new("b", vec![true, false, true]));
    let f = session.function(|x: Tensor<f64>| {
        w.set(w.get() + x);
        (w.get(), b.get(), on("/gpu:0", || tensor([1u8, 2, 3])))
    })?;
    let (w, b, bytes) = f.call(1.0)?;
    assert_eq!((w.to_vec(), b.to_vec(), bytes.to_vec()), (vec![1.5, 1.25], vec![true, false, true], vec![1, 2, 3]));
    assert_eq!(w.host().dtype(), DType::F64);
    Ok(())
}

#[test]
fn tensors_without_elements_and_sums_of_nothing() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x: Tensor| on("/gpu:0", || (x * 2.0, x.sum(), x.reshape([3, 0]).sum_axis(1))))?;
    let (doubled, sum, sums) = f.call(Array::<f32>::new([0], vec![]))?;
    assert_eq!((doubled.len(), sum.item(), sums.to_vec()), (0, 0.0, vec![0.0; 3]));
    Ok(())
}

#[test]
fn convolutions_over_three_axes_with_groups_have_gradients_there() -> Outcome {
    fn model(x: Tensor, w: Tensor) -> (Tensor, Tensor, Tensor) {
        let options = ConvOptions::new().stride([1, 2, 1]).padding([1, 0, 2]).dilation([1, 1, 2]).groups(2);
        let y = x.conv3d(w, options).tanh();
        let (dx, dw) = gradients((y * y).sum(), (x, w));
        (y, dx, dw)
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x, w| on("/gpu:0", || model(x, w)))?;
    let expected = Session::new()?.function(model)?;
    let x = Array::new([2, 4, 3, 5, 6], numbers(2 * 4 * 3 * 5 * 6));
    let w = Array::new([6, 2, 2, 3, 2], numbers(6 * 2 * 2 * 3 * 2));
    let (a, b) = (f.call((&x, &w))?, expected.call((&x, &w))?);
    assert_near(&a.0, &b.0);
    assert_near(&a.1, &b.1);
    assert_near(&a.2, &b.2);
    assert_only_on_a_gpu(&f.profile((&x, &w))?.1);
    Ok(())
}

/// Compares poolings of a tensor with those on the CPU, and the operations of their gradients.
fn check_pooling<const D: usize>(session: &Session, x: Array<f32>, options: PoolOptions<D>) -> Outcome {
    let model = move |x: Tensor| {
        let (largest, mean) = (x.max_pool(options), x.avg_pool(options));
        let weights = (mean * 3.0).sin();
        let (dx, d_mean) = (gradients((largest * weights).sum(), x), gradients((mean * mean).sum(), x));
        let picked = gradients((dx * x.cos()).sum(), weights);
        (largest, mean, dx, d_mean, picked)
    };
    let f = session.function(move |x| on("/gpu:0", || model(x)))?;
    let (a, b) = (f.call(&x)?, Session::new()?.function(model)?.call(&x)?);
    assert_eq!(one_nan(a.0.host()), one_nan(b.0.host()), "{options:?}");
    for (a, b) in [(&a.1, &b.1), (&a.2, &b.2), (&a.3, &b.3), (&a.4, &b.4)] {
        assert_near(a, b);
    }
    let (_, timeline) = f.profile(&x)?;
    assert!(timeline.spans.iter().all(|span| span.device != "/cpu:0"), "{timeline:?}");
    Ok(())
}

#[test]
fn poolings_and_their_gradients_run_there() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let image = Array::new([2, 3, 7, 6], numbers(2 * 3 * 7 * 6));
    check_pooling(&session, image.clone(), PoolOptions::new(2))?;
    check_pooling(&session, image.clone(), PoolOptions::new([3, 2]).stride([2, 1]).padding([1, 0]))?;
    check_pooling(&session, image.clone(), PoolOptions::new(3).stride(1).same().count_padding(false))?;
    // Elements in no window, and padding on one side.
    check_pooling(&session, image.clone(), PoolOptions::new([2, 1]).stride([3, 4]).padding_sides([(0, 1), (0, 0)]))?;
    check_pooling(&session, image, PoolOptions::new([4]).stride([3]).padding([2]))?;
    let volume = Array::new([2, 4, 5, 6], numbers(2 * 4 * 5 * 6));
    check_pooling(&session, volume, PoolOptions::new([2, 3, 2]).stride([1, 2, 3]).padding([0, 1, 1]))?;
    // Equal maxima, zeros of both signs, and infinities.
    let ties = [0.0, -0.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 2.0, 2.0, f32::INFINITY];
    let f = session.function(|x: Tensor| {
        on("/gpu:0", || {
            let y = x.max_pool(PoolOptions::new([3]));
            (y, gradients(y.sum(), x))
        })
    })?;
    let (y, dx) = f.call(ties)?;
    let bits: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
    assert_eq!(bits, [0.0, f32::NEG_INFINITY, f32::INFINITY].map(f32::to_bits));
    assert_eq!(dx.to_vec(), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    // The first NaN is the maximum.
    let (y, dx) = f.call([1.0, f32::NAN, f32::NAN, f32::NAN, f32::INFINITY, 3.0])?;
    assert!(y.iter().all(|y| y.is_nan()), "{y}");
    assert_eq!(dx.to_vec(), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    // Without images nothing is computed.
    let f = session.function(|x: Tensor| on("/gpu:0", || x.avg_pool(PoolOptions::new(2)).exp()))?;
    assert_eq!(f.call(Array::<f32>::new([0, 3, 4, 4], vec![]))?.shape(), [0, 3, 2, 2]);
    Ok(())
}

#[test]
fn derived_keys_are_those_of_the_cpu() -> Outcome {
    fn model(key: Tensor<u32>, i: Tensor<i32>, n: Tensor<u32>) -> (Tensor<u32>, Tensor<u32>, Tensor) {
        let key = Key::from_tensor(key);
        let (a, b) = (key.fold_in(i), key.fold_in(n));
        (a.into_tensor(), b.into_tensor(), a.fold_in(n).uniform([5]))
    }
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|key, i, n| on("/gpu:0", || model(key, i, n)))?;
    let expected = Session::new()?.function(model)?;
    for (i, n) in [(0, 1), (-1, u32::MAX), (i32::MIN, 1 << 31), (i32::MAX, 0)] {
        assert_eq!(f.call(([7u32, 1 << 31], i, n))?, expected.call(([7u32, 1 << 31], i, n))?, "{i} and {n}");
    }
    let (_, timeline) = f.profile(([7u32, 9], 1, 2u32))?;
    assert!(timeline.spans.iter().all(|span| span.device != "/cpu:0"), "{timeline:?}");
    Ok(())
}

/// Runs a graph on a GPU, or with each node on a random one of two GPUs and a CPU. Compares the
/// results with those of the interpreter.
fn check_graph(text: &str, inputs: &[HostTensor], devices: u32) -> anabranch::Result<Vec<HostTensor>> {
    let graph = Graph::parse(text, "gpu.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let expected = interp::run(&graph, inputs, &mut vec![], interp::InterpOptions::default());
    for seed in 0..5 {
        let how = RandomPlacement { devices, gpus: devices.min(2), seed, ..RandomPlacement::default() };
        let results = RandomlyPlacedProgram::new(graph.clone(), how).and_then(|p| p.run(inputs, &mut []));
        let message = |r: &anabranch::Result<Vec<HostTensor>>| r.clone().map_err(|e| e.message.clone());
        assert_eq!(message(&results), message(&expected), "{how:?}\n{text}");
    }
    expected
}

#[test]
fn stacks_of_zeros_and_sums_of_stacks_are_those_of_the_interpreter() {
    if adapter().is_none() {
        return;
    }
    let inputs = [HostTensor::new([2], vec![1.0f32, 2.0]), HostTensor::new([2], vec![10.0f32, 3.0])];
    let stacks = "
        %zeros = stack_zeros : stack<f32[2]>
        %short = push %zeros, %x
        %empty = stack_new : stack<f32[2]>
        %one = push %empty, %x
        %two = push %one, %y
        %long = push %two, %y
        %like = stack_zeros_like %long";
    let operations = [
        "stack_add %short, %long",
        "stack_add %long, %short",
        "stack_add %long, %long",
        "stack_add %long, %like",
        "stack_add %zeros, %long",
        "push %short, %y",
        "stack_zeros_like %short",
        "stack_add %short, %zeros",
        // These have too few elements.
        "stack_add %one, %long",
        "stack_add %one, %short",
    ];
    let run = |operation: &str, devices: u32| {
        let text = format!(
            "graph @f(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2], f32[2]) {{
                {stacks}
                %s0 = {operation}
                %s1, %a = pop %s0
                %s2, %b = pop %s1
                %s3, %c = pop %s2
                return %a, %b, %c
            }}"
        );
        check_graph(&text, &inputs, devices)
    };
    for devices in [1, 3] {
        let errors = operations.map(|operation| run(operation, devices).err().map(|e| e.message));
        assert!(errors[..8].iter().all(Option::is_none), "{errors:?}");
        assert_eq!(errors[8].as_deref(), Some("stacks of 1 and 3 elements cannot be added"));
        assert_eq!(errors[9].as_deref(), Some("pop from an empty stack"));
    }
}

#[test]
fn calls_with_a_custom_gradient_run_there_if_all_of_them_can() {
    if adapter().is_none() {
        return;
    }
    let inputs = [HostTensor::new([2], vec![7.5f32, -2.0]), HostTensor::new([2], vec![2.0f32, 3.0])];
    // There is no shader for f64.
    for (dtype, all_devices) in [("f32", &[1, 3][..]), ("f64", &[3])] {
        let text = format!(
            "graph @f(%x: f32[2], %y: f32[2]) -> f32[2] {{
                %0 = add %x, %y
                %z = custom_gradient (%x = %0 | %y = %y) : f32[2] forward {{
                    %1 = mul %x, %y
                    %2 = cast %1 {{dtype={dtype}}}
                    %3 = neg %2
                    %4 = cast %3 {{dtype=f32}}
                    yield %4
                }} gradient (%z: f32[2], %dz: f32[2]) {{
                    %5 = mul %dz, %z
                    yield %5
                }}
                %6 = mul %z, %x
                return %6
            }}"
        );
        for &devices in all_devices {
            check_graph(&text, &inputs, devices).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn the_check_of_finite_values_names_the_operation() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).check_finite(true).build()?;
    let f = session.function(|x: Tensor| on("/gpu:0", || concat(&[(x * 2.0).log() + 1.0, x], 0)))?;
    assert_eq!(f.call([0.5, 0.5])?.to_vec(), [1.0, 1.0, 0.5, 0.5]);
    let error = f.call([0.5, 0.0]).expect_err("the logarithm of zero is infinite");
    assert!(error.kind == ErrorKind::AssertionFailed && error.message.starts_with("log: "), "{error}");
    Ok(())
}

#[test]
fn what_has_no_shader_runs_on_a_cpu() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    // A branch whose results have unknown shapes.
    let f = session.function(|x: Tensor, y: Tensor| {
        on("/gpu:0", || {
            let (a, b) = (x.with_dynamic(0), y.with_dynamic(0));
            cond(x.sum().greater(0.0), || a, || b)
        })
    })?;
    assert_eq!(f.call(([1.0, 2.0], [3.0, 4.0]))?.to_vec(), [1.0, 2.0]);
    assert_eq!(f.call(([-1.0, -2.0], [3.0, 4.0]))?.to_vec(), [3.0, 4.0]);
    // A remainder, which shaders compute inexactly.
    let f = session.function(|x: Tensor| on("/gpu:0", || x % 3.0))?;
    assert_eq!(f.call(5e7)?, 2.0);
    // Loops that a driver may end too early.
    let f = session.function(|x: Tensor, k: Tensor| {
        on("/gpu:0", || {
            let y = x.scaled_dot_product_attention(k, k, AttentionMask::None);
            gradients(y.sum(), k)
        })
    })?;
    let k = Array::new([2, 1], vec![0.5, 0.5]);
    // Each query gives both values a half.
    assert_eq!(f.call((Array::new([70_000, 1], vec![0.0; 70_000]), &k))?.to_vec(), [35_000.0; 2]);
    let f = session.function(|x: Tensor| on("/gpu:0", || x.matmul(x.transpose(0, 1))))?;
    assert_eq!(f.call(Array::new([1, 70_000], vec![0.5; 70_000]))?.item(), 17_500.0);
    Ok(())
}

#[test]
fn more_products_than_an_axis_has_workgroups_run_there() -> Outcome {
    let Some(session) = session(1)? else { return Ok(()) };
    let f = session.function(|x: Tensor| on("/gpu:0", || x.matmul(x).sum()))?;
    let (sum, profile) = f.profile(Array::new([70_000, 2, 2], vec![0.5; 280_000]))?;
    assert_eq!(sum, 140_000.0);
    assert_only_on_a_gpu(&profile);
    Ok(())
}

#[test]
fn gpus_and_simulated_devices_are_refused() {
    let Some(adapter) = adapter() else { return };
    let builder = Session::builder().simulated([SimulatedDevice::new("/gpu:0")]).gpu(&adapter);
    let error = builder.build().expect_err("their clocks differ");
    assert!(error.message.contains("both GPUs and simulated devices"), "{error}");
}
