//! Loops and kernels on the first GPU.
//!
//! `cargo bench -p anabranch-benches --features gpu --bench gpu`. A driver that computes on the CPU
//! shows regressions, but not how fast a GPU is.
//!
//! Other benchmarks run on a GPU, too, as in
//! `ANABRANCH_DEVICE=gpu cargo bench -p anabranch-benches --features gpu --bench training`.

use anabranch::prelude::*;
use anabranch::{Array, GpuAdapter, Session, gpu_adapters};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

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

/// Runs a loop whose trip count depends on data, once for each of some trip counts.
fn of_trips(bencher: Bencher<'_, '_>, adapter: &GpuAdapter, trips: &[i32]) {
    #[graph]
    fn grow(x: Tensor, limit: Tensor) -> Tensor {
        let mut y = x;
        while y.sum() < limit {
            y += 1.0;
        }
        y
    }
    let session = Session::builder().gpu(adapter).device("/gpu:0").build().expect("a session");
    let f = session.function(grow).expect("a function");
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
    of_trips(bencher, &adapter(), &[TRIPS]);
}

/// Calls of one trip after calls of 64, so that 63 recorded iterations do nothing, and calls of 64.
#[divan::bench(args = [1, 64])]
fn loop_of_64_trips_and_then_of(bencher: Bencher<'_, '_>, n: i32) {
    of_trips(bencher, &adapter(), &[64, n]);
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

#[divan::bench(sample_count = 10, sample_size = 1)]
fn softmax(bencher: Bencher<'_, '_>) {
    of_elements(bencher, 2, |x| x.softmax(-1));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn layer_norm(bencher: Bencher<'_, '_>) {
    of_elements(bencher, 2, |x| x.layer_norm(x.row(0), x.row(1), 1e-5));
}
