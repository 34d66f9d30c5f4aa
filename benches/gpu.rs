//! Loops and kernels on the first GPU.
//!
//! `cargo bench -p anabranch-benches --features gpu --bench gpu`. A driver that computes on the CPU
//! shows regressions, but not how fast a GPU is.
//!
//! Other benchmarks run on a GPU, too, as in
//! `ANABRANCH_DEVICE=gpu cargo bench -p anabranch-benches --features gpu --bench training`.
//!
//! `compare/with_burn_on_gpus/` has some of these cases in burn, by the same names.

use anabranch::nn::{Init, Linear, Lstm};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::runtime::ModelledTimes;
use anabranch::{Array, GpuAdapter, Session, SimulatedDevice, gpu_adapters};
use anabranch_benches::training::mlp_step;
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use std::time::{Duration, Instant};

fn main() {
    println!("on {}", adapter());
    divan::main();
}

fn adapter() -> GpuAdapter {
    gpu_adapters().into_iter().next().expect("this machine has an adapter")
}

fn session() -> Session {
    Session::builder().gpu(&adapter()).device("/gpu:0").build().expect("a session")
}

fn ones(shape: impl Into<Vec<usize>>) -> Array<f32> {
    let shape = shape.into();
    let n = shape.iter().product();
    Array::new(shape, vec![1.0; n])
}

/// A call of a small function with an argument and a result.
#[divan::bench]
fn call(bencher: Bencher<'_, '_>) {
    let f = session().function(|x: Tensor| x * 2.0).expect("a function");
    let x = ones([1000]);
    bencher.bench_local(|| f.call(&x).expect("it runs"));
}

/// Small shaders that cannot be fused, one after the other.
#[divan::bench]
fn dispatches(bencher: Bencher<'_, '_>) {
    const N: usize = 1_000;
    let chain = |x: Tensor| (0..N).fold(x, |x, _| x.softmax(-1));
    let f = session().function(chain).expect("a function");
    let x = ones([8, 8]);
    bencher.counter(ItemsCount::new(N)).bench_local(|| f.call(&x).expect("it runs"));
}

const TRIPS: i32 = 1_000;

/// A loop that counts, with one shader for each iteration, recorded ahead of the device.
#[divan::bench]
fn loop_that_counts(bencher: Bencher<'_, '_>) {
    #[graph]
    fn count(x: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = (y * 0.5).sin();
            i += 1;
        }
        y
    }
    let f = session().function(count).expect("a function");
    let x = ones([1000]);
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench_local(|| f.call((&x, TRIPS)).expect("it runs"));
}

/// A loop whose trip count depends on data.
#[graph]
fn grow_until(x: Tensor, limit: Tensor) -> Tensor {
    let mut y = x;
    while y.sum() < limit {
        y += 1.0;
    }
    y
}

/// Runs a loop whose trip count depends on data, once for each of some trip counts.
fn of_trips(bencher: Bencher<'_, '_>, adapter: &GpuAdapter, trips: &[i32]) {
    let session = Session::builder().gpu(adapter).device("/gpu:0").build().expect("a session");
    let f = session.function(grow_until).expect("a function");
    let x = ones([1000]);
    bencher.counter(ItemsCount::new(trips.iter().sum::<i32>() as usize)).bench_local(|| {
        for n in trips {
            f.call((&x, 1000.0 * (n + 1) as f32 - 1.0)).expect("it runs");
        }
    });
}

/// A loop whose condition is read back after each iteration.
#[divan::bench]
fn loop_driven_by_the_host(bencher: Bencher<'_, '_>) {
    of_trips(bencher, &adapter().with_predicates_on_host(), &[TRIPS]);
}

/// The same loop, recorded ahead of its condition.
#[divan::bench]
fn loop_recorded_ahead(bencher: Bencher<'_, '_>) {
    of_trips(bencher, &adapter().without_workgroup_loops(), &[TRIPS]);
}

/// The same loop in one workgroup.
#[divan::bench]
fn loop_of_a_workgroup(bencher: Bencher<'_, '_>) {
    of_trips(bencher, &adapter(), &[TRIPS]);
}

/// Calls of one trip after calls of 64, for which some recorded iterations do nothing, and calls of
/// 64.
#[divan::bench(args = [1, 64])]
fn loop_of_64_trips_and_then_of(bencher: Bencher<'_, '_>, n: i32) {
    of_trips(bencher, &adapter().without_workgroup_loops(), &[64, n]);
}

/// Prints what an iteration recorded ahead of its condition takes: one that runs, and one that the
/// loop had in the call before but has no more. Some of these are recorded and do nothing.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn live_and_dead_iterations(bencher: Bencher<'_, '_>) {
    const LONG: i32 = 64;
    let adapter = adapter().without_workgroup_loops();
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build().expect("a session");
    let f = session.function(grow_until).expect("a function");
    let x = ones([1000]);
    let call = |n: i32| {
        let begun = Instant::now();
        f.call((&x, 1000.0 * (n + 1) as f32 - 1.0)).expect("it runs");
        begun.elapsed().as_secs_f64() * 1e6
    };
    let after = |before: i32, n: i32| {
        let mut times: Vec<f64> = (0..31).map(|_| (call(before), call(n)).1).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (short, vain, long) = (after(1, 1), after(LONG, 1), after(LONG, LONG));
    let [gone, live] = [vain, long].map(|time| (time - short) / f64::from(LONG - 1));
    println!("an iteration that runs: {live:.1} us, one that the loop has no more: {gone:.1} us");
    bencher.bench_local(|| call(1));
}

/// A recurrent cell of 64 units over a sequence of 1,000 rows: one workgroup runs the loop, or its
/// shaders are recorded one by one.
#[divan::bench(args = [true, false])]
fn recurrent_cell(bencher: Bencher<'_, '_>, is_one_workgroup: bool) {
    #[graph]
    fn recur(x: Tensor, w: Tensor) -> Tensor {
        let mut h = x.row(0);
        for t in range(0..TRIPS) {
            h = (h.matmul(w) + x.row(t)).tanh();
        }
        h
    }
    let adapter = if is_one_workgroup { adapter() } else { adapter().without_workgroup_loops() };
    let session = Session::builder().gpu(&adapter).device("/gpu:0").build().expect("a session");
    let (x, w) = (Var::new("x", ones([TRIPS as usize, 64])), Var::new("w", ones([64, 64])));
    let f = session.function(move || recur(x.get(), w.get() * 0.01)).expect("a function");
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench_local(|| f.call(()).expect("it runs"));
}

/// A branch of some shaders that is not taken. With none of them, the other arm is all there is.
fn dead_branch(bencher: Bencher<'_, '_>, adapter: &GpuAdapter, n: usize) {
    #[graph]
    fn branch(x: Tensor, limit: Tensor, n: usize) -> Tensor {
        let mut y = x;
        if y.sum() < limit {
            for _ in 0..n {
                y = y.softmax(-1);
            }
            y += 1.0;
        }
        y * 0.5
    }
    let session = Session::builder().gpu(adapter).device("/gpu:0").build().expect("a session");
    let f = session.function(move |x, limit| branch(x, limit, n)).expect("a function");
    let x = ones([8, 8]);
    bencher.counter(ItemsCount::new(n)).bench_local(|| f.call((&x, 0.0)).expect("it runs"));
}

#[divan::bench(args = [0, 50])]
fn dead_branch_recorded_ahead(bencher: Bencher<'_, '_>, n: usize) {
    dead_branch(bencher, &adapter(), n);
}

#[divan::bench(args = [0, 50])]
fn dead_branch_of_the_host(bencher: Bencher<'_, '_>, n: usize) {
    dead_branch(bencher, &adapter().with_predicates_on_host(), n);
}

/// A loop over scalars whose condition depends on data, in one shader.
#[divan::bench]
fn loop_over_scalars(bencher: Bencher<'_, '_>) {
    #[graph]
    fn grow(x: Tensor, limit: Tensor) -> Tensor {
        let mut y = x;
        while y < limit {
            y += 1.0;
        }
        y
    }
    let f = session().function(grow).expect("a function");
    bencher
        .counter(ItemsCount::new(TRIPS as usize))
        .bench_local(|| f.call((1.0, (TRIPS + 1) as f32)).expect("it runs"));
}

/// A product of square matrices, counted by its multiplications and additions.
fn product(bencher: Bencher<'_, '_>, n: usize) {
    // A driver that computes on the CPU takes seconds for the larger ones.
    if n > 1024 && adapter().is_software() {
        return;
    }
    let session = session();
    let a = Var::new("a", ones([n, n]));
    let f = session.function(|| a.get().matmul(a.get()).slice(0, 0, 1)).expect("a function");
    f.call(()).expect("it runs");
    bencher.counter(ItemsCount::new(2 * n * n * n)).bench_local(|| f.call(()).expect("it runs"));
}

macro_rules! products {
    ($($name:ident: $n:expr;)*) => {$(
        #[divan::bench(sample_count = 5, sample_size = 1)]
        fn $name(bencher: Bencher<'_, '_>) {
            product(bencher, $n);
        }
    )*};
}

// With the names of these cases in `compare/run.py`.
products! {
    product_256x256x256: 256;
    product_512x512x512: 512;
    product_1024x1024x1024: 1024;
    product_2048x2048x2048: 2048;
    product_4096x4096x4096: 4096;
}

/// Runs a function of variables with some shapes, of which the caller gets one element.
fn of_variables(bencher: Bencher<'_, '_>, shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Tensor + 'static) {
    let session = session();
    let variables: Vec<Var> = shapes.iter().map(|shape| Var::new("x", ones(shape.to_vec()))).collect();
    let element = move || {
        let values: Vec<Tensor> = variables.iter().map(Var::get).collect();
        let y = f(&values);
        y.flatten().slice(0, 0, 1)
    };
    let f = session.function(element).expect("a function");
    f.call(()).expect("it runs");
    bencher.bench_local(|| f.call(()).expect("it runs"));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn dense_layer(bencher: Bencher<'_, '_>) {
    of_variables(bencher, &[&[512, 256], &[256, 256], &[256]], |v| (v[0].matmul(v[1]) + v[2]).gelu());
}

/// A convolution of images, and of images with few channels.
const IMAGES: [[&[usize]; 2]; 2] = [[&[16, 32, 28, 28], &[64, 32, 3, 3]], [&[64, 1, 28, 28], &[6, 1, 5, 5]]];

#[divan::bench(args = [0, 1], sample_count = 10, sample_size = 1)]
fn convolution(bencher: Bencher<'_, '_>, i: usize) {
    of_variables(bencher, &IMAGES[i], |v| v[0].conv2d(v[1], ConvOptions::new()).relu());
}

#[divan::bench(args = [0, 1], sample_count = 10, sample_size = 1)]
fn convolution_gradients(bencher: Bencher<'_, '_>, i: usize) {
    of_variables(bencher, &IMAGES[i], |v| {
        let [x, w] = gradients(v[0].conv2d(v[1], ConvOptions::new()).square().sum(), [v[0], v[1]]);
        x.flatten().slice(0, 0, 1) + w.flatten().slice(0, 0, 1)
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn depthwise_convolution(bencher: Bencher<'_, '_>) {
    let options = || ConvOptions::new().groups(64);
    of_variables(bencher, &[&[16, 64, 28, 28], &[64, 1, 3, 3]], move |v| v[0].conv2d(v[1], options()));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn attention(bencher: Bencher<'_, '_>) {
    of_variables(bencher, &[&[4, 8, 128, 64][..]; 3], |v| {
        v[0].scaled_dot_product_attention(v[1], v[2], AttentionMask::Causal)
    });
}

/// Runs Newton's method for each of some numbers, in one shader with a thread for each of them.
#[divan::bench(args = [1_000, 100_000])]
fn map_over_a_loop(bencher: Bencher<'_, '_>, n: usize) {
    #[graph]
    fn root(a: Tensor) -> Tensor {
        let (mut x, mut change) = (a, a);
        while change > 1e-4 * x {
            let next = 0.5 * (x + a / x);
            change = (next - x).abs();
            x = next;
        }
        x
    }
    let f = session().function(|xs: Tensor| map(xs, root)).expect("a function");
    let xs = Array::new([n], (0..n).map(|i| (i % 1000) as f32 * 0.1 + 0.1).collect::<Vec<_>>());
    bencher.counter(ItemsCount::new(n)).bench_local(|| f.call(&xs).expect("it runs"));
}

/// Runs a function of four million elements, counted by the bytes that it must read and write.
fn of_elements(bencher: Bencher<'_, '_>, n_tensors: usize, f: impl Fn(Tensor) -> Tensor + 'static) {
    let session = session();
    let x = Var::new("x", ones([2048, 2048]));
    let f = session.function(move || x.set(f(x.get()))).expect("a function");
    f.call(()).expect("it runs");
    bencher.counter(BytesCount::new(n_tensors * 4 * 2048 * 2048)).bench_local(|| f.call(()).expect("it runs"));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn elementwise(bencher: Bencher<'_, '_>) {
    of_elements(bencher, 2, |x| x * 0.5 + 0.5);
}

/// Multiplications and additions of elements, 30 of each, counted as operations: about the peak of
/// the device for `f32`.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn multiplications_and_additions(bencher: Bencher<'_, '_>) {
    let session = session();
    let x = Var::new("x", ones([2048, 2048]));
    let (a, b) = (Var::new("a", ones([1])), Var::new("b", ones([1])));
    let chain = move || {
        let (a, b) = (a.get() * 0.5, b.get() * 0.5);
        x.set((0..30).fold(x.get(), |x, _| x * a + b));
    };
    let f = session.function(chain).expect("a function");
    f.call(()).expect("it runs");
    bencher.counter(ItemsCount::new(2usize * 30 * 2048 * 2048)).bench_local(|| f.call(()).expect("it runs"));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn softmax(bencher: Bencher<'_, '_>) {
    of_elements(bencher, 2, |x| x.softmax(-1));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn layer_norm(bencher: Bencher<'_, '_>) {
    of_elements(bencher, 2, |x| x.layer_norm(x.row(0), x.row(1), 1e-5));
}

/// Computes with 8,192 rows of a table of 100,000, read through the indices or, if `in_memory`,
/// first copied. The copies get another shape, for which they must be in memory.
fn of_rows(bencher: Bencher<'_, '_>, in_memory: bool, f: impl Fn(Tensor, Tensor) -> Tensor + 'static) {
    const N: usize = 8_192;
    const WIDTH: usize = 256;
    let table = on("/gpu:0", || Var::<f32>::new("table", ones([100_000, WIDTH])));
    let weights = on("/gpu:0", || Var::<f32>::new("weights", ones([N, 1])));
    let model = move |ids: Tensor<i32>| {
        let rows = table.get().take(ids, 0);
        let rows = if in_memory { rows.reshape([N / 64, 64, WIDTH]) } else { rows };
        let weights = if in_memory { weights.get().reshape([N / 64, 64, 1]) } else { weights.get() };
        f(rows, weights)
    };
    let f = session().function(model).expect("a function");
    let ids: Vec<i32> = (0..N).map(|i| (i * 7919 % 100_000) as i32).collect();
    let ids = Array::new([N], ids);
    let bytes = BytesCount::new(size_of::<f32>() * N * WIDTH);
    bencher.counter(bytes).bench_local(|| f.call(&ids).expect("it runs"));
}

#[divan::bench(args = [false, true], sample_count = 50, sample_size = 1)]
fn weighted_sum_of_rows(bencher: Bencher<'_, '_>, in_memory: bool) {
    of_rows(bencher, in_memory, |rows, weights| (rows * weights).sum());
}

#[divan::bench(args = [false, true], sample_count = 50, sample_size = 1)]
fn activation_of_rows(bencher: Bencher<'_, '_>, in_memory: bool) {
    of_rows(bencher, in_memory, |rows, weights| (rows * weights).relu().slice(0, 0, 2));
}

#[divan::bench(args = [false, true], sample_count = 50, sample_size = 1)]
fn layer_norm_of_rows(bencher: Bencher<'_, '_>, in_memory: bool) {
    of_rows(bencher, in_memory, |rows, weights| {
        let centered = rows - rows.mean_keepdim(-1);
        let variance = (centered * centered).mean_keepdim(-1);
        (centered * (variance + 1e-5).rsqrt() * weights).slice(0, 0, 2)
    });
}

/// A device as in the paper on control flow in TensorFlow (EuroSys'18), a K40 with its peak rates,
/// of which the copies between host and device have queues of their own.
fn modelled_device() -> SimulatedDevice {
    SimulatedDevice::new("/gpu:0")
        .flops(4.3e12)
        .bandwidth(288e9)
        .launch(Duration::from_micros(5))
        .link(10e9, Duration::from_micros(10))
}

/// An LSTM over the first iterations of a sequence.
#[graph]
fn lstm_loss(cell: &Lstm, units: usize, xs: Tensor, n: Tensor<i32>) -> Tensor {
    let mut state = (zeros([xs.dim(1), units]), zeros([xs.dim(1), units]));
    let mut total = scalar(0.0);
    for t in range(0..n) {
        let (y, next) = cell.step(xs.index(t, 0), state);
        state = next;
        total += (y * y).mean();
    }
    total
}

/// A training step of an MLP 784-256-256-10 by Adam, with a batch of 128 on the device.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn training_of_an_mlp(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let layers = [[784, 256], [256, 256], [256, 10]].map(|[m, n]| Linear::new(&init, m, n));
    let x = Var::untrained("x", init.normal([128, 784], 1.0));
    let labels = Var::untrained("labels", (0..128).map(|i| i % 10).collect::<Vec<i32>>());
    let adam = Adam::new(0.001);
    trained(bencher, move || mlp_step(&layers, &adam, x.get(), labels.get()));
}

/// A training step of an LSTM of 64 units by SGD, with a batch of 64 sequences of 20 on the device.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn training_of_an_lstm(bencher: Bencher<'_, '_>) {
    const N: i32 = 20;
    let init = Init::new(1);
    let (cell, sgd) = (Lstm::new(&init, 64, 64), Sgd::new(0.01));
    let xs = Var::untrained("xs", init.normal([N as usize, 64, 64], 1.0));
    trained(bencher, move || {
        let loss = lstm_loss(&cell, 64, xs.get(), scalar(N)) / N as f32;
        sgd.minimize(loss, &cell);
        loss
    });
}

/// Times a training step, which returns the loss before it.
fn trained(bencher: Bencher<'_, '_>, step: impl Fn() -> Tensor + 'static) {
    let step = session().function(step).expect("a function");
    step.call(()).expect("it runs");
    bencher.bench_local(|| step.call(()).expect("it runs"));
}

/// Trains an LSTM with batches of 64 sequences of `n` iterations. Prints the memory that it needs,
/// and the time that its commands take on a modelled device. If there is no memory for it, prints
/// the error.
fn train_lstm(adapter: &GpuAdapter, units: usize, n: usize) -> Option<(impl Fn(), ModelledTimes)> {
    let session = Session::builder().gpu(adapter).device("/gpu:0").build().expect("a session");
    let (cell, sgd) = (Lstm::new(&Init::new(1), units, units), Sgd::new(0.01));
    let step = session.function(move |xs: Tensor, n: Tensor<i32>| {
        let loss = lstm_loss(&cell, units, xs, n);
        sgd.minimize(loss, &cell);
        loss
    });
    let (step, xs) = (step.expect("a function"), ones([n, 64, units]));
    let mut result = None;
    let times = adapter.modelled(&modelled_device(), || result = Some(step.call((&xs, n as i32))));
    if let Some(Err(error)) = result {
        println!("{n} iterations: {}", error.message);
        return None;
    }
    let [peak, moved, ahead] =
        [adapter.peak_bytes(), adapter.swapped_bytes(), adapter.ahead_bytes()].map(|bytes| bytes >> 10);
    let [one, three] = [times.in_one_queue, times.in_three_queues].map(|time| time.as_secs_f64() * 1e6 / n as f64);
    println!(
        "{n} iterations: at most {peak} KiB of tensors, {moved} KiB moved to the host, {ahead} KiB back ahead of \
         use; modelled {one:.1} µs an iteration in one queue, {three:.1} in three"
    );
    let step = move || drop(step.call((&xs, n as i32)).expect("it runs"));
    Some((step, times))
}

/// Times the training of LSTMs of 64 units.
fn trained_lstm(bencher: Bencher<'_, '_>, adapter: &GpuAdapter, n: usize) {
    if let Some((step, _)) = train_lstm(adapter, 64, n) {
        bencher.counter(ItemsCount::new(n)).bench_local(step);
    }
}

/// The memory of a device for these LSTMs, which is enough for about 100 iterations.
const SWAP_BUDGET: u64 = 20 << 20;

/// The lengths of their sequences.
const LENGTHS: [usize; 5] = [50, 100, 200, 400, 800];

#[divan::bench(args = LENGTHS, sample_count = 3, sample_size = 1)]
fn swap_without_a_budget(bencher: Bencher<'_, '_>, n: usize) {
    trained_lstm(bencher, &adapter(), n);
}

#[divan::bench(args = LENGTHS, sample_count = 3, sample_size = 1)]
fn swap_disabled(bencher: Bencher<'_, '_>, n: usize) {
    trained_lstm(bencher, &adapter().with_memory_budget(SWAP_BUDGET).without_swapping(), n);
}

#[divan::bench(args = LENGTHS, sample_count = 3, sample_size = 1)]
fn swap_enabled(bencher: Bencher<'_, '_>, n: usize) {
    trained_lstm(bencher, &adapter().with_memory_budget(SWAP_BUDGET), n);
}

/// Draws the queues of a modelled device in the middle of the forward loop, and in the middle of
/// the backward loop, of an LSTM of 256 units that has half of the memory that it needs.
/// Nothing is timed.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn swap_on_a_modelled_device(bencher: Bencher<'_, '_>) {
    const N: usize = 60;
    let unlimited = adapter();
    let Some((_, without)) = train_lstm(&unlimited, 256, N) else { return };
    let Some((_, times)) = train_lstm(&adapter().with_memory_budget(unlimited.peak_bytes() / 2), 256, N) else {
        return;
    };
    println!("modelled, without a limit: {:?}; {:?} of computation", without.in_three_queues, without.busy[0]);
    println!(
        "modelled, half of the memory: {:?} in one queue, {:?} in three; {:?} of computation, {:?} of copies to \
         the host, {:?} of copies to the device",
        times.in_one_queue, times.in_three_queues, times.busy[0], times.busy[1], times.busy[2]
    );
    for middle in [0.25, 0.75].map(|part| times.in_three_queues.mul_f64(part)) {
        let first = middle.saturating_sub(Duration::from_millis(1));
        println!("modelled, from {first:?} on, 2 ms:\n{}", times.draw([first, first + Duration::from_millis(2)], 80));
    }
    bencher.bench_local(|| ());
}
