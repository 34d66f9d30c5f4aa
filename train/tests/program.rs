//! A training program whose every part has state: shuffled data with random noise and threads, a
//! short last batch, dropout, gradients accumulated over four batches, Adam, a rate that falls on a
//! plateau, averages of weights, a minimization by L-BFGS with its history, a metric that goes on
//! through epochs, a shuffle queue of losses, an evaluation, and a metric that is monitored.

use anabranch::checkpoints::{Goal, WeightFile};
use anabranch::data::{Dataset, tfrecord};
use anabranch::metrics::{Accuracy, RunningMean};
use anabranch::nn::{Init, Linear};
use anabranch::optim::schedule::Plateau;
use anabranch::optim::{Accumulator, Adam, Lbfgs, LbfgsHistory, Optimizer, WeightAverage, model_gradients};
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::train::{EarlyStopping, Evaluation, Every, FitOutcome, ShowProgress, StepContext, StepMetrics, Trainer};
use anabranch::{DType, Diagnostic, Queue, Session, TensorType};
use std::fs;
use std::path::Path;

/// The number of steps: 3 epochs of 6 batches.
pub const STEPS: u64 = 18;

/// All that a step assigns.
#[derive(Module)]
pub struct TrainState {
    model: [Linear; 2],
    adam: Adam,
    sums: Accumulator,
    rate: Plateau,
    average: WeightAverage,
    /// A point in the valley of Rosenbrock's function.
    point: [Var<f64>; 2],
    history: LbfgsHistory,
    loss: RunningMean,
    /// A sum of losses from the queue.
    replayed: Var<f32>,
    /// How many steps are done: the random numbers of dropout come from it.
    done: Var<i32>,
}

impl TrainState {
    pub fn new() -> TrainState {
        let init = Init::new(5);
        let (model, adam) = ([Linear::new(&init, 4, 8), Linear::new(&init, 8, 3)], Adam::new(0.05));
        let (sums, average) = (Accumulator::new(4), WeightAverage::exponential(0.7));
        // Each second update is worse than the best one, as random batches are.
        let rate = Plateau::new(0.05).factor(0.9).patience(0);
        adam.prepare(&model);
        sums.prepare(&model);
        average.prepare(&model);
        let point = [Var::new("x", -1.2), Var::new("y", 1.0)];
        let history = LbfgsHistory::new(&lbfgs(), &point);
        let (loss, replayed, done) = (RunningMean::new(), Var::untrained("replayed", 0.0), Var::untrained("done", 0));
        TrainState { model, adam, sums, rate, average, point, history, loss, replayed, done }
    }

    /// Returns a queue of the losses of earlier steps.
    pub fn losses() -> Queue<Tensor> {
        Queue::shuffle("losses", 8, 2, 6, &[TensorType::new(DType::F32, [])]).unwrap_or_else(|e| panic!("{e}"))
    }

    fn logits(&self, x: Tensor, drop: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        self.model[1].forward(drop(self.model[0].forward(x).tanh()))
    }

    fn step(&self, x: Tensor, class: Tensor<i32>, losses: &Queue<Tensor>) -> (Tensor, Tensor<f64>) {
        let (done, examples) = (self.done.get(), x.dim(0) as f32);
        let logits = self.logits(x, |x| x.dropout(0.3, Key::new(9).fold_in(done)));
        let loss = logits.cross_entropy(class).mean();
        self.sums.add(examples, &model_gradients(loss, &self.model), |gradients| {
            self.adam.apply(self.rate.rate(), gradients);
            self.average.update(&self.model);
            self.rate.observe(loss);
        });
        lbfgs().minimize_from(&self.history, &self.point, || {
            let [x, y] = [0, 1].map(|i| self.point[i].get());
            (y - x * x).square() * 100.0 + (x - 1.0).square()
        });
        self.loss.update(loss);
        replay(loss, losses.clone(), self.replayed.clone());
        self.done.set(done + 1);
        (loss, self.loss.result())
    }
}

/// A few evaluations in each step.
fn lbfgs() -> Lbfgs {
    Lbfgs::new(3).history(4)
}

/// Adds a loss to the queue, and takes another one from it when there are some.
#[graph]
fn replay(loss: Tensor, losses: Queue<Tensor>, replayed: Var<f32>) {
    if losses.len() > 3 {
        replayed.set(replayed.get() * 0.5 + losses.dequeue());
    }
    losses.enqueue(loss);
}

type Sample = ([f32; 4], i32);

fn sample(i: i64) -> Sample {
    let x = [1, 2, 3, 5].map(|k| (i * k % 11) as f32 / 11.0);
    (x, i32::from(x[0] > x[1]) + i32::from(x[2] > 0.5))
}

/// Trains in a folder, and stores the final weights there. `before_step` may end it, and `change`
/// the settings.
pub fn train(
    folder: &Path,
    change: impl for<'a> FnOnce(Trainer<'a>) -> Trainer<'a>,
    mut before_step: impl FnMut(&mut StepContext) -> Result<(), Diagnostic>,
) -> Result<FitOutcome, Diagnostic> {
    let noisy =
        |(x, class): Sample, rng: &mut anabranch::data::ElementRng| (x.map(|x| x + 0.1 * rng.uniform() as f32), class);
    let data = Dataset::range(0..44).map(sample).shuffle(44, 3).map_random(4, noisy).batch(8).prefetch(2, 3);
    let held_out = Dataset::range(44..64).map(sample).batch(8);

    let (session, state, accuracy) = (Session::new()?, TrainState::new(), Accuracy::new());
    let losses = TrainState::losses();
    let step = session.function(|x: Tensor, class: Tensor<i32>| state.step(x, class, &losses))?;
    let update = session.function(|x: Tensor, class: Tensor<i32>| {
        let logits = state.logits(x, |x| x);
        accuracy.update(logits, class);
        logits.cross_entropy(class).mean()
    })?;
    let result = session.function(|| accuracy.result())?;
    let evaluation = Evaluation::new(&held_out, |(x, class): (Array<f32>, Array<i32>)| {
        let n = class.len() as f64;
        Ok(StepMetrics::new().with("loss", update.call((x, class))?).weight(n))
    });
    let evaluation = evaluation.state(&accuracy).result(|| Ok(StepMetrics::new().with("accuracy", result.call(())?)));

    let trainer = Trainer::new(&session)
        .module("state", &state)
        .queue("losses", &losses)
        .folder(folder)
        .settings(&("Adam", 0.02))
        .epochs(3)
        .validate(Every::Epochs(1), evaluation)
        .monitor("val/loss", Goal::Min)
        .stop_early(EarlyStopping::new().patience(10))
        .keep_best(1)
        .save_every(Every::Steps(4))
        .log_every(5)
        .progress(ShowProgress::Hidden);
    let outcome = change(trainer).fit(&data, |at, (x, class)| {
        before_step(at)?;
        let labels: Array<f32> = Array::new([class.len()], class.iter().map(|&c| c as f32).collect());
        let (step_number, events) = (at.step(), at.events());
        if let Some(events) = events.filter(|_| step_number % 7 == 0) {
            events.histogram(step_number, "classes", labels.host())?;
        }
        let (loss, mean) = step.call((x, class))?;
        Ok(StepMetrics::new().with("loss", loss).with("mean", mean).weight(labels.len() as f64))
    })?;
    WeightFile::new(folder.join("final.safetensors")).save(&session, &state)?;
    Ok(outcome)
}

/// The results of a run in a folder: the final values of all variables, and the logs without times.
#[derive(PartialEq)]
pub struct RunResults {
    weights: Vec<u8>,
    pub lines: Vec<String>,
    pub events: Vec<Vec<u8>>,
}

pub fn results(folder: &Path) -> Result<RunResults, Diagnostic> {
    let weights = fs::read(folder.join("final.safetensors")).expect("the program has ended");
    let records = tfrecord::records([folder.join("tensorboard/events.out.tfevents.anabranch")]);
    // The time is the first field: its key, and eight bytes.
    let events = records.iter().map(|record| record.map(|bytes| bytes[9..].to_vec())).collect::<Result<_, _>>()?;
    Ok(RunResults { weights, lines: log_lines(folder), events })
}

/// Returns the lines of the log of a run, without times.
pub fn log_lines(folder: &Path) -> Vec<String> {
    let lines = fs::read_to_string(folder.join("metrics.jsonl")).expect("there is a log");
    let without_time = |line: &str| {
        let (before, rest) = line.split_once(",\"time\":").expect("a line has a time");
        let (_, after) = rest.split_once(',').expect("a line has metrics");
        format!("{before},{after}")
    };
    lines.lines().map(without_time).collect()
}

/// Fails if two runs differ.
#[track_caller]
pub fn check_equal(run: &RunResults, expected: &RunResults, what: &str) {
    assert_eq!(run.lines, expected.lines, "{what}");
    assert!(run.events == expected.events, "{what}: the events differ");
    assert!(run.weights == expected.weights, "{what}: the weights differ");
}
