//! Tracing and compiling: the time must grow linearly with the graph.
//!
//! `cargo bench --bench compile`

use anabranch::nn::{Init, Lstm};
use anabranch::optim::{Optimizer, Sgd};
use anabranch::prelude::*;
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// Returns a chain of `nodes` operations on a small vector. Two kinds alternate, so that nothing
/// folds or merges.
fn chain(x: Tensor, nodes: usize) -> Tensor {
    (0..nodes).fold(x, |y, i| if i % 2 == 0 { y * x } else { y + x })
}

#[divan::bench(args = [10, 1_000, 100_000])]
fn trace_and_compile(bencher: Bencher<'_, '_>, nodes: usize) {
    let session = Session::new().unwrap();
    let input = [anabranch::TensorType::new(anabranch::DType::F32, [8])];
    bencher.counter(ItemsCount::new(nodes)).bench(|| {
        let f = session.function(|x: Tensor| chain(x, nodes)).unwrap();
        f.compile(&input).unwrap();
    });
}

#[divan::bench(args = [10, 1_000, 100_000])]
fn trace_differentiate_and_compile(bencher: Bencher<'_, '_>, nodes: usize) {
    let session = Session::new().unwrap();
    let input = [anabranch::TensorType::new(anabranch::DType::F32, [8])];
    bencher.counter(ItemsCount::new(nodes)).bench(|| {
        let f = session.function(|x: Tensor| gradients(chain(x, nodes / 3).sum(), x)).unwrap();
        f.compile(&input).unwrap();
    });
}

#[graph]
fn lstm_step(cell: &Lstm, sgd: &Sgd, x: Tensor) -> Tensor {
    let mut state = cell.zero_state(x.dim(1));
    let mut total = scalar(0.0);
    let mut t = scalar(0);
    while t < x.dim(0) as i32 {
        let (y, next) = cell.step(x.index(t, 0), state);
        state = next;
        total += (y * y).mean();
        t += 1;
    }
    let loss = total / x.dim(0) as f32;
    sgd.minimize(loss, cell);
    loss
}

/// The training step of an LSTM: tracing, the gradient of its loop, passes, plan and native code.
#[divan::bench]
fn lstm_training_step(bencher: Bencher<'_, '_>) {
    let (cell, sgd) = (Lstm::new(&Init::new(1), 512, 512), Sgd::new(0.01));
    let session = Session::new().unwrap();
    let input = [anabranch::TensorType::new(anabranch::DType::F32, [50, 32, 512])];
    bencher.bench_local(|| {
        let step = session.function(|x| lstm_step(&cell, &sgd, x)).unwrap();
        step.compile(&input).unwrap();
    });
}
