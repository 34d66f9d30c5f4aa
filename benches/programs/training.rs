//! Training steps of whole models.

use super::{BenchInput, Benchmark, labels, normal};
use anabranch::HostTensor;
use anabranch::nn::{Init, Linear, Lstm, LstmState};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;

#[path = "../../examples/digits.rs"]
#[allow(dead_code, reason = "the example's main program is not used here")]
mod digits;

/// The training step of the example `digits`: batch 48, both loops and their gradients, Adam.
pub fn digits_step() -> Benchmark {
    let (train, _) = digits::Data::load(&mut digits::Rng(3));
    let (model, adam) = (digits::DigitReader::new(1), Adam::new(0.004));
    let step = move |rate, images, labels| digits::train_step(&model, &adam, rate, images, labels);
    let (images, labels) = train.batch(&(0..digits::BATCH).collect::<Vec<_>>(), || 0);
    let value = |tensor: &HostTensor| BenchInput::Value(tensor.clone());
    Benchmark::new(
        step,
        vec![BenchInput::Value(HostTensor::scalar(0.001f32)), value(images.host()), value(labels.host())],
    )
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

/// A gate of a cell as one may write it, with matrices of its own.
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

/// Input, forget, candidate and output gate.
type Gates = (Gate, Gate, Gate, Gate);

fn gates_loss((input, forget, candidate, output): &Gates, x: Tensor) -> Tensor {
    let step = |x, (h, c): LstmState| {
        let c = forget.at(x, h).sigmoid() * c + input.at(x, h).sigmoid() * candidate.at(x, h).tanh();
        let h = output.at(x, h).sigmoid() * c.tanh();
        (h, (h, c))
    };
    lstm_loss(step, 512, x)
}

/// The computation of [`lstm_512_batch_32_steps_50`], with each gate in matrices of its own.
pub fn lstm_512_of_separate_gates_batch_32_steps_50() -> Benchmark {
    let (init, sgd) = (Init::new(1), Sgd::new(0.01));
    let cell: Gates = (Gate::new(&init), Gate::new(&init), Gate::new(&init), Gate::new(&init));
    let step = move |x| {
        let loss = gates_loss(&cell, x);
        sgd.minimize(loss, &cell);
        loss
    };
    Benchmark::new(step, vec![normal([50, 32, 512])])
}

/// An LSTM of 512 units, written as a `while` over the cell: forward, backward and SGD.
pub fn lstm_512(batch: usize, steps: usize) -> Benchmark {
    let (cell, sgd) = (Lstm::new(&Init::new(1), 512, 512), Sgd::new(0.01));
    Benchmark::new(move |x| lstm_step(&cell, &sgd, x), vec![normal([steps, batch, 512])])
}

/// See [`lstm_512`].
pub fn lstm_512_batch_32_steps_50() -> Benchmark {
    lstm_512(32, 50)
}

/// The layers of the MLP.
pub fn mlp(init: &Init) -> [Linear; 3] {
    [Linear::new(init, 784, 1024), Linear::new(init, 1024, 1024), Linear::new(init, 1024, 10)]
}

/// `[128, 784]` numbers, and a label for each row.
pub fn mlp_batch(init: &Init) -> (Array<f32>, Vec<i32>) {
    (init.normal([128, 784], 1.0), (0..128).map(|i| i % 10).collect())
}

/// A training step, which returns the loss before it.
#[graph]
pub fn mlp_step(layers: &[Linear; 3], adam: &Adam, x: Tensor, labels: Tensor<i32>) -> Tensor {
    let h = layers[0].forward(x).relu();
    let h = layers[1].forward(h).relu();
    let loss = layers[2].forward(h).cross_entropy(labels).mean();
    adam.minimize(loss, layers);
    loss
}

/// An MLP 784-1024-1024-10, batch 128, Adam.
pub fn mlp_784_1024_1024_10_batch_128() -> Benchmark {
    let (layers, adam) = (mlp(&Init::new(1)), Adam::new(0.001));
    Benchmark::new(move |x, labels| mlp_step(&layers, &adam, x, labels), vec![normal([128, 784]), labels(128)])
}
