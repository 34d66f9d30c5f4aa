//! Training steps of whole models.
//!
//! `cargo bench --bench training`

#[path = "../examples/digits.rs"]
#[allow(dead_code, reason = "the example's main program is not used here")]
mod digits;
mod support;

use anabranch::nn::{Init, Lstm, LstmState};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use divan::Bencher;
use support::{mlp, mlp_batch, mlp_step};

fn main() {
    divan::main();
}

/// The training step of the example `digits`: batch 48, both loops and their gradients, Adam.
#[divan::bench]
fn digits_step(bencher: Bencher<'_, '_>) {
    let (train, _) = digits::Data::load(&mut digits::Rng(3));
    let (model, adam) = (digits::Reader::new(1), Adam::new(0.004));
    let session = Session::new().unwrap();
    let step =
        session.function(|rate, images, labels| digits::train_step(&model, &adam, rate, images, labels)).unwrap();
    let (images, labels) = train.batch(&(0..digits::BATCH).collect::<Vec<_>>(), || 0);
    bencher.bench(|| step.call((0.001, &images, &labels)).unwrap());
}

#[graph]
fn lstm_loss(cell: impl Fn(Tensor, LstmState) -> (Tensor, LstmState), units: usize, x: Tensor) -> Tensor {
    let mut state = (zeros([x.dim(1), units]), zeros([x.dim(1), units]));
    let mut total = scalar(0.0);
    let mut t = scalar(0);
    while t < x.dim(0) as i32 {
        let (y, next) = cell(x.index(t, 0), state);
        state = next;
        total += (y * y).mean();
        t += 1;
    }
    total / x.dim(0) as f32
}

fn lstm_step(cell: &Lstm, sgd: &Sgd, x: Tensor) -> Tensor {
    let loss = lstm_loss(|x, state| cell.step(x, state), 512, x);
    sgd.minimize(loss, cell);
    loss
}

/// A gate of a cell with matrices of its own, as a user may write it.
#[derive(Module)]
struct Gate {
    weight_input: Var,
    weight_state: Var,
    bias: Var,
}

impl Gate {
    fn new(init: &Init) -> Gate {
        let weight = |name| Var::new(name, init.fan_in([512, 512], 512));
        let bias = Var::new("bias", vec![0.0; 512]);
        Gate { weight_input: weight("weight_input"), weight_state: weight("weight_state"), bias }
    }

    fn at(&self, x: Tensor, h: Tensor) -> Tensor {
        x.matmul(self.weight_input.get()) + h.matmul(self.weight_state.get()) + self.bias.get()
    }
}

/// The input, forget, candidate and output gate.
type Gates = (Gate, Gate, Gate, Gate);

fn gates_loss((input, forget, candidate, output): &Gates, x: Tensor) -> Tensor {
    let step = |x, (h, c): LstmState| {
        let c = forget.at(x, h).sigmoid() * c + input.at(x, h).sigmoid() * candidate.at(x, h).tanh();
        let h = output.at(x, h).sigmoid() * c.tanh();
        (h, (h, c))
    };
    lstm_loss(step, 512, x)
}

/// The computation of `lstm_512_batch_32_steps_50`, with each gate in matrices of its own.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_of_separate_gates_batch_32_steps_50(bencher: Bencher<'_, '_>) {
    let (init, sgd) = (Init::new(1), Sgd::new(0.01));
    let cell: Gates = (Gate::new(&init), Gate::new(&init), Gate::new(&init), Gate::new(&init));
    let session = Session::new().unwrap();
    let step = |x| {
        let loss = gates_loss(&cell, x);
        sgd.minimize(loss, &cell);
        loss
    };
    let step = session.function(step).unwrap();
    let x = init.normal([50, 32, 512], 1.0);
    bencher.bench_local(|| step.call(&x).unwrap());
}

/// An LSTM of 512 units, written as a `while` over the cell; forward, backward and SGD.
fn lstm(bencher: Bencher<'_, '_>, batch: usize, steps: usize) {
    let init = Init::new(1);
    let (cell, sgd) = (Lstm::new(&init, 512, 512), Sgd::new(0.01));
    let session = Session::new().unwrap();
    let step = session.function(|x| lstm_step(&cell, &sgd, x)).unwrap();
    let x = init.normal([steps, batch, 512], 1.0);
    bencher.bench_local(|| step.call(&x).unwrap());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_32_steps_50(bencher: Bencher<'_, '_>) {
    lstm(bencher, 32, 50);
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_32_steps_200(bencher: Bencher<'_, '_>) {
    lstm(bencher, 32, 200);
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_128_steps_50(bencher: Bencher<'_, '_>) {
    lstm(bencher, 128, 50);
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_128_steps_200(bencher: Bencher<'_, '_>) {
    lstm(bencher, 128, 200);
}

/// An MLP 784-1024-1024-10, batch 128, Adam.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn mlp_784_1024_1024_10_batch_128(bencher: Bencher<'_, '_>) {
    let init = Init::new(1);
    let layers = mlp(&init);
    let adam = Adam::new(0.001);
    let session = Session::new().unwrap();
    let step = session.function(|x, labels| mlp_step(&layers, &adam, x, labels)).unwrap();
    let (x, labels) = mlp_batch(&init);
    bencher.bench_local(|| step.call((&x, &labels)).unwrap());
}
