//! Memory of GPUs over many calls: tensors of a call are free when it has ended.
//!
//! Each case has an adapter of its own, which counts the most bytes that tensors have had at a
//! time. All calls of a case are equal. A tensor that one of them left behind would add to what
//! the next call needs, so after a few calls the count must never change. Nor do calls create
//! buffers, but for the few that are still in use when they are asked for. `ANABRANCH_SLOW=1` runs
//! 5,000 calls of each case.

use super::support::gpus::{adapter, assert_near, numbers};
use anabranch::dsl::function::Arguments;
use anabranch::nn::{Init, Lstm};
use anabranch::optim::{Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{Array, ErrorKind, GpuAdapter, SimulatedDevice, gpu_adapters};
use std::rc::Rc;
use std::time::Duration;

type Outcome = anabranch::Result<()>;

/// Runs the calls of `case` on a session with a GPU, if this machine has an adapter. The case gets
/// a session and returns a call.
fn check<C: FnMut() -> Outcome>(case: impl FnOnce(&Session) -> anabranch::Result<C>) -> Outcome {
    if adapter().is_none() {
        return Ok(());
    }
    let adapter = gpu_adapters().remove(0);
    let mut call = case(&Session::builder().gpu(&adapter).device("/gpu:0").build()?)?;
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 5_000 } else { 500 };
    for _ in 0..n / 10 {
        call()?;
    }
    let (peak, created) = (adapter.peak_bytes(), adapter.created_buffers());
    assert!(peak > 0, "no tensor is on the GPU");
    for i in 0..n {
        call()?;
        assert_eq!(adapter.peak_bytes(), peak, "after {i} more calls");
    }
    let more = adapter.created_buffers() - created;
    assert!(more < n / 5, "{n} calls create {more} buffers");
    Ok(())
}

#[test]
fn kernels_and_variables_leave_no_tensor_behind() -> Outcome {
    check(|session| {
        let w = Var::<f32>::new("w", vec![0.5f32; 256]);
        let f = session.function(move |x: Tensor| {
            let loss = (x.reshape([16, 16]).matmul(w.get().reshape([16, 16])).tanh() - 0.25).square().sum();
            w.set(w.get() - gradients(loss, w.get()) * 0.001);
            (loss, x.softmax(0))
        })?;
        let x = Array::new([256], numbers(256));
        let mut results = f.call(&x)?;
        Ok(move || {
            f.call_into(&x, &mut results)?;
            f.call(&x).map(drop)
        })
    })
}

/// The predicate depends on the data, and so does the number of values saved for the gradient.
#[graph]
fn grown(x: Tensor, limit: Tensor) -> (Tensor, Tensor) {
    let mut y = x;
    while y.sum() < limit {
        y = if y.max() > 2.0 { y * 1.125 + 0.25 } else { y * ((y * 0.125).tanh() * 0.5 + 1.0) + 0.5 };
    }
    (y, gradients(y.sum(), x))
}

#[test]
fn loops_recorded_ahead_leave_no_tensor_behind() -> Outcome {
    check(|session| {
        let f = session.function(grown)?;
        let x = Array::new([100], numbers(100));
        let text = f.explain(Arguments::of::<(Tensor, Tensor)>((&x, 500.0)).signature())?;
        assert!(text.contains("recorded ahead of their predicates"), "{text}");
        Ok(move || f.call((&x, 500.0)).map(drop))
    })
}

#[test]
fn parallel_loops_leave_no_tensor_behind() -> Outcome {
    #[graph]
    fn root(a: Tensor) -> Tensor {
        let (mut x, mut n) = (a, scalar(0));
        while (x * x - a).abs() > 1e-4 * a && n < 50 {
            x = (x + a / x) * 0.5;
            n += 1;
        }
        x
    }
    check(|session| {
        let f = session.function(|xs: Tensor| map(xs, root))?;
        let xs = Array::new([300], numbers(300).into_iter().map(|x| x + 1.0).collect::<Vec<_>>());
        let text = f.explain(Arguments::of::<(Tensor,)>(&xs).signature())?;
        assert!(text.contains("with a thread for each iteration"), "{text}");
        Ok(move || f.call(&xs).map(drop))
    })
}

#[test]
fn calls_that_fail_leave_no_tensor_behind() -> Outcome {
    check(|session| {
        let f = session.function(|x: Tensor, i: Tensor<i32>| (x.exp() * 2.0).take(i, 0).sum())?;
        let x = Array::new([100], numbers(100));
        Ok(move || {
            f.call((&x, [1, 100])).map(drop).expect_err("the index is out of bounds");
            f.call((&x, [1, 99])).map(drop)
        })
    })
}

#[test]
fn memory_for_uploads_is_used_again_after_many_of_another_size() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).build()?;
    // The host sends 100 numbers at once.
    let many = session.function(|x: Tensor| {
        let numbers: Vec<Tensor> = on("/cpu:0", || (0..100).map(|i| (x.row(i) * 2.0).exp()).collect());
        on("/gpu:0", || numbers.iter().fold(scalar(0.0), |sum, &number| (sum + number).sin()))
    })?;
    many.call(Array::new([100], numbers(100)))?;
    let f = session.function(|x: Tensor| on("/gpu:0", || x.exp().sum()))?;
    let x = Array::new([1000], numbers(1000));
    f.call(&x)?;
    let before = adapter.created_buffers();
    for _ in 0..100 {
        f.call(&x)?;
    }
    assert!(adapter.created_buffers() - before < 50, "{} buffers", adapter.created_buffers() - before);
    Ok(())
}

#[test]
fn an_iteration_that_pushes_much_does_not_take_the_memory_of_all() -> Outcome {
    #[graph]
    fn shrunk(w: Tensor, x: Tensor) -> Tensor {
        let mut x = x;
        while x > 1.0 {
            x *= w.sin();
        }
        x
    }
    if adapter().is_none() {
        return Ok(());
    }
    let model = |xs: Tensor, w: Tensor| gradients(map(xs, |x| shrunk(w, x)).sum(), (xs, w));
    // All but one of the numbers end soon. Memory for as many values of each would be 4 MiB.
    let n = 512;
    let xs = Array::new([n], (0..n).map(|i| if i == 7 { 1e9 } else { 1.0 + i as f32 / 1e4 }).collect::<Vec<_>>());
    let w = 0.9901f32.asin();
    let adapter = gpu_adapters().remove(0).with_memory_budget(3 << 20);
    let f = Session::builder().gpu(&adapter).device("/gpu:0").build()?.function(model)?;
    let expected = Session::new()?.function(model)?.call((&xs, w))?;
    for _ in 0..2 {
        let found = f.call((&xs, w))?;
        assert_near(&found.0, &expected.0);
        assert!((found.1.item() / expected.1.item() - 1.0).abs() < 1e-3);
    }
    Ok(())
}

/// The loss of an LSTM over the first iterations of a sequence, with batches as large as the cells
/// are small: what is saved for the gradient is much larger than the weights.
#[graph]
fn lstm_loss(cell: &Lstm, xs: Tensor, n: Tensor<i32>) -> Tensor {
    let batch = xs.dim(1);
    let mut state = (zeros([batch, 16]), zeros([batch, 16]));
    let mut total = scalar(0.0);
    for t in range(0..n) {
        let (y, next) = cell.step(xs.index(t, 0), state);
        state = next;
        total += (y * y).mean();
    }
    total
}

/// Whether a graph knows how often its loop runs.
#[derive(Clone, Copy, PartialEq)]
enum Length {
    Known,
    FromData,
}

/// Trains an LSTM with sequences of some iterations on the first device of an adapter, for two
/// steps. Returns the losses, and the weights after them.
fn train_lstm(adapter: &GpuAdapter, n: usize, length: Length) -> anabranch::Result<(Vec<f32>, Vec<Array<f32>>)> {
    let session = Session::builder().gpu(adapter).device("/gpu:0").build()?;
    let (cell, sgd) = (Rc::new(Lstm::new(&Init::new(1), 4, 16)), Sgd::new(0.5).momentum(0.9));
    let trained = cell.clone();
    let step = session.function(move |xs: Tensor, given: Tensor<i32>| {
        let n = if length == Length::Known { scalar(n as i32) } else { given };
        let loss = lstm_loss(&trained, xs, n);
        sgd.minimize(loss, &*trained);
        loss
    })?;
    let xs = Array::new([n, 256, 4], numbers(n * 256 * 4));
    let mut losses = Vec::new();
    for _ in 0..2 {
        losses.push(step.call((&xs, n as i32))?.item());
    }
    let weights = [&cell.weight_input, &cell.weight_state, &cell.bias].map(|var| session.get(var));
    Ok((losses, weights.into_iter().collect::<anabranch::Result<_>>()?))
}

/// Returns an adapter of its own, with counters of its own, if this machine has one.
fn own_adapter() -> Option<GpuAdapter> {
    adapter().map(|_| gpu_adapters().remove(0))
}

#[test]
fn a_long_lstm_trains_alike_in_a_quarter_of_its_memory() -> Outcome {
    const N: usize = 200;
    let (Some(unlimited), Some(limited), Some(without)) = (own_adapter(), own_adapter(), own_adapter()) else {
        return Ok(());
    };
    let expected = train_lstm(&unlimited, N, Length::FromData)?;
    assert_eq!(unlimited.swapped_bytes(), 0);
    let budget = unlimited.peak_bytes() / 4;
    let limited = limited.with_memory_budget(budget);
    // A device of which copies and shaders take about the same time.
    let device = SimulatedDevice::new("/gpu:0").bandwidth(200e9).launch(Duration::from_micros(3));
    let mut trained = None;
    let times = limited.modelled(&device, || trained = Some(train_lstm(&limited, N, Length::FromData)));
    assert_eq!(trained.expect("it was trained")?, expected);
    let [peak, moved, ahead] = [limited.peak_bytes(), limited.swapped_bytes(), limited.ahead_bytes()];
    assert!(peak <= budget, "{peak} bytes of {budget}");
    assert!(moved > budget, "{moved} bytes of {budget}");
    assert!(ahead > moved / 2, "{ahead} bytes of {moved} came back before they were used");
    // With queues of their own, most copies are made while shaders run.
    let [computing, to_host, to_device] = times.busy;
    assert!(times.in_one_queue >= computing + to_host + to_device);
    let copying = times.in_three_queues - computing;
    assert!(copying < (to_host + to_device) / 2, "{copying:?} longer than {computing:?}: {to_host:?}, {to_device:?}");
    // Without swapping, there is not enough memory.
    let without = without.with_memory_budget(budget).without_swapping();
    let error = train_lstm(&without, N, Length::FromData).expect_err("the budget is too small");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    assert!(error.message.contains("exceeds the budget"), "{error}");
    Ok(())
}

#[test]
fn hoisted_matmuls_leave_room_in_a_budget() -> Outcome {
    let (Some(unlimited), Some(limited)) = (own_adapter(), own_adapter()) else { return Ok(()) };
    let (losses, weights) = train_lstm(&unlimited, 60, Length::Known)?;
    let limited = limited.with_memory_budget(unlimited.peak_bytes() / 4);
    let trained = train_lstm(&limited, 60, Length::Known)?;
    assert!(limited.swapped_bytes() > 0);
    // The sums are rounded in another order.
    assert_near(&Array::new([2], trained.0), &Array::new([2], losses));
    trained.1.iter().zip(&weights).for_each(|(a, b)| assert_near(a, b));
    Ok(())
}
