//! Operations with many memory accesses and little computation, and plain loops with the same
//! accesses.
//!
//! `cargo bench --bench memory`

use anabranch::Array;
use anabranch::nn::Init;
use anabranch::prelude::*;
use anabranch_runtime::Program;
use divan::Bencher;

fn main() {
    divan::main();
}

/// The number of elements of the long vectors.
const LONG: usize = 10_000_000;

fn numbers(shape: impl Into<Vec<usize>>, seed: u64) -> Array<f32> {
    Init::new(seed).normal(shape.into(), 1.0)
}

/// Runs a function of some tensors repeatedly, with its results in reused memory.
fn run<Args, F: anabranch::dsl::function::GraphFn<Args>>(bencher: Bencher<'_, '_>, f: F, inputs: &[&Array<f32>]) {
    let inputs: Vec<_> = inputs.iter().map(|x| x.host().clone()).collect();
    let signature: Vec<_> = inputs.iter().map(|x| x.ty()).collect();
    let session = Session::new().unwrap();
    let graph = session.function(f).unwrap().graph(&signature).unwrap();
    let program = Program::new(graph).unwrap();
    let mut outputs = Vec::new();
    bencher.bench_local(|| program.run_into(&inputs, &mut Vec::new(), &mut outputs).unwrap());
}

/// Returns the halves of a range, for two threads.
fn halves(n: usize) -> [std::ops::Range<usize>; 2] {
    [0..n / 2, n / 2..n]
}

#[divan::bench]
fn plain_read_10_000_000(bencher: Bencher<'_, '_>) {
    let x = numbers([LONG], 1);
    let x = x.as_slice();
    let sum = |part: &[f32]| {
        let mut lanes = [0.0f32; 64];
        for chunk in part.as_chunks::<64>().0 {
            lanes.iter_mut().zip(chunk).for_each(|(a, x)| *a += x);
        }
        lanes.iter().sum::<f32>()
    };
    bencher.bench_local(|| {
        let [a, b] = halves(LONG);
        std::thread::scope(|s| {
            let other = s.spawn(|| sum(&x[a]));
            sum(&x[b]) + other.join().unwrap()
        })
    });
}

/// `e = a * b + c + d`: reads four tensors and writes one, as `tanh(a * b + c) * d - a` does.
#[divan::bench]
fn plain_triad_10_000_000(bencher: Bencher<'_, '_>) {
    let [a, b, c, d] = [1, 2, 3, 4].map(|seed| numbers([LONG], seed));
    let [a, b, c, d] = [a.as_slice(), b.as_slice(), c.as_slice(), d.as_slice()];
    let mut e = vec![0.0f32; LONG];
    let one = |at: std::ops::Range<usize>, e: &mut [f32]| {
        let (a, b, c, d) = (&a[at.clone()], &b[at.clone()], &c[at.clone()], &d[at]);
        for i in 0..e.len() {
            e[i] = a[i] * b[i] + c[i] + d[i];
        }
    };
    bencher.bench_local(|| {
        let [first, second] = halves(LONG);
        let (left, right) = e.split_at_mut(LONG / 2);
        std::thread::scope(|s| {
            s.spawn(|| one(first, left));
            one(second, right);
        });
    });
}

#[divan::bench]
fn tanh_chain_10_000_000(bencher: Bencher<'_, '_>) {
    let [a, b, c, d] = [1, 2, 3, 4].map(|seed| numbers([LONG], seed));
    let f = |a: Tensor, b: Tensor, c: Tensor, d: Tensor| (a * b + c).tanh() * d - a;
    run(bencher, f, &[&a, &b, &c, &d]);
}

#[divan::bench]
fn sum_10_000_000(bencher: Bencher<'_, '_>) {
    run(bencher, |x: Tensor| x.sum(), &[&numbers([LONG], 1)]);
}

#[divan::bench]
fn mean_squared_error_10_000_000(bencher: Bencher<'_, '_>) {
    let f = |x: Tensor, y: Tensor| ((x - y) * (x - y)).mean();
    run(bencher, f, &[&numbers([LONG], 1), &numbers([LONG], 2)]);
}

#[divan::bench]
fn softmax_4096_1024(bencher: Bencher<'_, '_>) {
    run(bencher, |x: Tensor| x.softmax(-1), &[&numbers([4096, 1024], 1)]);
}

#[divan::bench]
fn softmax_gradient_4096_1024(bencher: Bencher<'_, '_>) {
    let f = |x: Tensor, w: Tensor| gradients((x.softmax(-1) * w).sum(), x);
    run(bencher, f, &[&numbers([4096, 1024], 1), &numbers([4096, 1024], 2)]);
}

#[divan::bench]
fn layer_norm_4096_1024(bencher: Bencher<'_, '_>) {
    let f = |x: Tensor, scale: Tensor, bias: Tensor| x.layer_norm(scale, bias, 1e-5);
    run(bencher, f, &[&numbers([4096, 1024], 1), &numbers([1024], 2), &numbers([1024], 3)]);
}

#[divan::bench]
fn layer_norm_gradient_4096_1024(bencher: Bencher<'_, '_>) {
    let f = |x: Tensor, scale: Tensor, bias: Tensor, w: Tensor| {
        gradients((x.layer_norm(scale, bias, 1e-5) * w).sum(), (x, scale, bias))
    };
    let (x, w) = (numbers([4096, 1024], 1), numbers([4096, 1024], 4));
    run(bencher, f, &[&x, &numbers([1024], 2), &numbers([1024], 3), &w]);
}
