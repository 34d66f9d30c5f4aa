//! Operations that read and write much and compute little, next to loops that only read and write.
//!
//! `cargo bench --bench memory`

use anabranch::Array;
use anabranch::nn::Init;
use anabranch_benches::memory as programs;
use divan::Bencher;
use programs::LONG;

fn main() {
    divan::main();
}

fn numbers(shape: impl Into<Vec<usize>>, seed: u64) -> Array<f32> {
    Init::new(seed).normal(shape.into(), 1.0)
}

/// Splits slices over two threads.
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

/// `e = a * b + c + d`: reads four tensors and writes one, like `tanh(a * b + c) * d - a`.
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
    let mut program = programs::tanh_chain_10_000_000().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn sum_10_000_000(bencher: Bencher<'_, '_>) {
    let mut program = programs::sum_10_000_000().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn mean_squared_error_10_000_000(bencher: Bencher<'_, '_>) {
    let mut program = programs::mean_squared_error_10_000_000().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn softmax_4096_1024(bencher: Bencher<'_, '_>) {
    let mut program = programs::softmax_4096_1024().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn softmax_gradient_4096_1024(bencher: Bencher<'_, '_>) {
    let mut program = programs::softmax_gradient_4096_1024().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn layer_norm_4096_1024(bencher: Bencher<'_, '_>) {
    let mut program = programs::layer_norm_4096_1024().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench]
fn layer_norm_gradient_4096_1024(bencher: Bencher<'_, '_>) {
    let mut program = programs::layer_norm_gradient_4096_1024().ready();
    bencher.bench_local(|| program.call());
}
