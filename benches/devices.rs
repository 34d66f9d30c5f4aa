//! Loops over several devices, like the figures of "Dynamic Control Flow in Large-Scale Machine
//! Learning" (EuroSys'18).
//!
//! `cargo bench --bench devices`. Devices are CPU devices of this process, driven by one thread,
//! except those of `pipeline` and `unrolled`, which are simulated. `pipeline` and `unrolled`
//! measure how long the caller waits; the simulated times are printed at the start.

use anabranch::prelude::*;
use anabranch::{SessionBuilder, SimulatedDevice};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use std::time::Duration;

#[path = "../examples/digits.rs"]
#[allow(dead_code, reason = "an example is a program of its own")]
mod digits;

fn main() {
    println!("simulated time of 64 iterations of a pipeline of 8 stages (Figure 12):");
    let mut first = None;
    for window in [1, 2, 4, 8, 16, 32] {
        let total = pipeline_time(window);
        let one = *first.get_or_insert(total);
        println!("  {window:2} at once: {total:>10.3?}  {:.1} times", one.as_secs_f64() / total.as_secs_f64());
    }
    let (looped, unrolled) = (pipeline_time(32), unrolled_time());
    println!("simulated time of a loop and of the same unrolled (Figure 14): {looped:.3?}, {unrolled:.3?}");
    println!("iterations per second of a trivial loop, in simulated time, without and with a barrier (Figure 11):");
    for devices in [2, 4, 8] {
        let [without, with] = [trivial, trivial_with_barrier].map(|f| simulated_rate(devices, f));
        println!("  {devices} devices: {without:>8.0} {with:>8.0}");
    }
    divan::main();
}

const TRIPS: i32 = 1_000;

/// A loop that adds a number on each device (Figure 11).
#[graph]
fn trivial(n: Tensor<i32>, devices: usize) -> Tensor<i32> {
    let mut i = scalar(0);
    let mut sums = vec![scalar(0); devices];
    while i < n {
        for d in 0..devices {
            sums[d] = on(format!("/cpu:{d}"), || sums[d] + 1);
        }
        i = on("/cpu:0", || i + 1);
    }
    sums.into_iter().reduce(|a, b| a + b).expect("there is a device")
}

fn bench_trivial(
    bencher: Bencher<'_, '_>,
    devices: usize,
    builder: SessionBuilder,
    f: fn(Tensor<i32>, usize) -> Tensor<i32>,
) {
    let session = builder.cpus(devices).build().expect("a session");
    let f = session.function(|n: Tensor<i32>| f(n, devices)).expect("a function");
    assert_eq!(f.call(TRIPS).expect("it runs"), TRIPS * devices as i32);
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench(|| f.call(black_box(TRIPS)).expect("it runs"));
}

/// Iterations of a trivial loop over devices, which run ahead of each other.
#[divan::bench(args = [1, 2, 4, 8])]
fn without_barrier(bencher: Bencher<'_, '_>, devices: usize) {
    // Even on one device the loop is lowered.
    bench_trivial(bencher, devices, Session::builder().lower_everything(devices == 1), trivial);
}

/// The trivial loop with a barrier: each device's part of the next iteration depends on all devices
/// having finished this one.
#[graph]
fn trivial_with_barrier(n: Tensor<i32>, devices: usize) -> Tensor<i32> {
    let mut i = scalar(0);
    let mut sums = vec![scalar(0); devices];
    while i < n {
        for d in 0..devices {
            sums[d] = on(format!("/cpu:{d}"), || sums[d] + 1);
        }
        // No device starts the next iteration before all have finished the previous one.
        let arrived = on("/cpu:0", || sums.iter().copied().reduce(|a, b| a.maximum(b)).expect("there is a device"));
        for d in 0..devices {
            sums[d] = on(format!("/cpu:{d}"), || sums[d].minimum(arrived));
        }
        i = on("/cpu:0", || arrived);
    }
    sums.into_iter().reduce(|a, b| a + b).expect("there is a device")
}

/// Iterations of a trivial loop with a barrier after each.
#[divan::bench(args = [2, 4, 8])]
fn with_barrier(bencher: Bencher<'_, '_>, devices: usize) {
    bench_trivial(bencher, devices, Session::builder(), trivial_with_barrier);
}

/// Returns the iterations per second of a loop on simulated devices: a kernel takes 5 microseconds,
/// a transfer 10.
fn simulated_rate(devices: usize, f: fn(Tensor<i32>, usize) -> Tensor<i32>) -> f64 {
    let gpus = (0..devices).map(|i| SimulatedDevice::new(&format!("/cpu:{i}")));
    let session = Session::builder().simulated(gpus).build().expect("a session");
    let f = session.function(move |n: Tensor<i32>| f(n, devices)).expect("a function");
    let (_, timeline) = f.profile(TRIPS).expect("it runs");
    f64::from(TRIPS) / timeline.total.as_secs_f64()
}

fn gpus() -> impl Iterator<Item = SimulatedDevice> {
    // Matmuls of 64 x 64 take about 200 microseconds.
    (0..8).map(|i| SimulatedDevice::new(&format!("/gpu:{i}")).flops(2.6e9))
}

#[graph]
fn pipeline(n: Tensor<i32>, x: Tensor) -> Tensor {
    let mut i = scalar(0);
    let mut states = [x; 8];
    while i < n {
        let mut from_before = x;
        for s in 0..8 {
            states[s] = on(format!("/gpu:{s}"), || (from_before.matmul(x) + states[s]).tanh());
            from_before = states[s];
        }
        i = on("/gpu:0", || i + 1);
    }
    states[7].sum()
}

#[graph]
fn unrolled(x: Tensor) -> Tensor {
    let mut states = [x; 8];
    for _ in 0..64 {
        let mut from_before = x;
        for s in 0..8 {
            states[s] = on(format!("/gpu:{s}"), || (from_before.matmul(x) + states[s]).tanh());
            from_before = states[s];
        }
    }
    states[7].sum()
}

fn matrix() -> Vec<[f32; 64]> {
    (0..64).map(|i| std::array::from_fn(|j| ((i * 64 + j) as f32 * 0.1).sin() * 0.1)).collect()
}

fn pipeline_time(window: u32) -> Duration {
    let session = Session::builder().simulated(gpus()).parallel_iterations(window).build().expect("a session");
    let f = session.function(pipeline).expect("a function");
    f.profile((64, matrix())).expect("it runs").1.total
}

fn unrolled_time() -> Duration {
    let session = Session::builder().simulated(gpus()).build().expect("a session");
    let f = session.function(unrolled).expect("a function");
    f.profile(matrix()).expect("it runs").1.total
}

/// The evaluation of the example `digits`: the only function of the examples that placement could
/// split over two devices.
#[divan::bench(args = [1, 2])]
fn digits_evaluation(bencher: Bencher<'_, '_>, devices: usize) {
    let (_, test) = digits::Data::load(&mut digits::Rng(3));
    let (images, labels) = test.all();
    let model = digits::DigitReader::new(1);
    let session = Session::builder().cpus(devices).build().expect("a session");
    let f = session.function(|images, labels| digits::evaluate(&model, images, labels)).expect("a function");
    bencher.bench(|| f.call((&images, &labels)).expect("it runs"));
}

/// The cost of the executor itself: a chain of operations, each of them a node (`BM_executor`).
#[divan::bench]
fn executor_chain(bencher: Bencher<'_, '_>) {
    let session = Session::builder().lower_everything(true).build().expect("a session");
    let f = session.function(|x: Tensor| (0..1000).fold(x, |x, _| x.tanh())).expect("a function");
    bencher.counter(ItemsCount::new(1000usize)).bench(|| f.call(black_box(0.5)).expect("it runs"));
}

/// A lowered loop on one device (`BM_LoweredWhileLoop`).
#[divan::bench]
fn lowered_while(bencher: Bencher<'_, '_>) {
    let session = Session::builder().lower_everything(true).build().expect("a session");
    let f = session.function(|n: Tensor<i32>| trivial(n, 1)).expect("a function");
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench(|| f.call(black_box(TRIPS)).expect("it runs"));
}

/// The trivial loop as a region of a plan (`BM_FunctionalWhileLoop`).
#[divan::bench]
fn whole_while(bencher: Bencher<'_, '_>) {
    let session = Session::new().expect("a session");
    let f = session.function(|n: Tensor<i32>| trivial(n, 1)).expect("a function");
    bencher.counter(ItemsCount::new(TRIPS as usize)).bench(|| f.call(black_box(TRIPS)).expect("it runs"));
}
