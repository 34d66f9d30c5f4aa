//! Trains on handwritten digits in a loop inside of one call (EuroSys'18, section 2.2): the loop
//! takes batches from a queue, and each of its iterations is a step of its own.
//!
//! A thread prepares batches and waits while the queue is full. Another one watches the training
//! from outside. At the end the same training runs with one call for each step, and must give the
//! same weights, bit by bit.
//!
//! `cargo run --release --example in_graph_training`

use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::{Array, DType, HostQueue, Queue, TensorType, commit_each_iteration};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const BATCH: usize = 64;
const EPOCHS: usize = 10;

#[derive(Module)]
struct Network {
    hidden: Linear,
    digit: Linear,
}

impl Network {
    fn new(seed: u64) -> Network {
        let init = Init::new(seed);
        Network { hidden: Linear::new(&init, 64, 64), digit: Linear::new(&init, 64, 10) }
    }
}

/// The counters of a training that others can read while it runs.
struct Progress {
    steps: Var<i64>,
    loss: Var<f32>,
}

impl Progress {
    fn new() -> Progress {
        Progress { steps: Var::untrained("steps", 0), loss: Var::untrained("loss", 0.0) }
    }
}

/// Takes one step with a batch of images `[BATCH, 64]` and labels `[BATCH]`.
#[graph]
fn step(model: &Network, adam: &Adam, progress: &Progress, images: Tensor, labels: Tensor<i32>) {
    let logits = model.digit.forward(model.hidden.forward(images).relu());
    let loss = logits.cross_entropy(labels).mean();
    adam.minimize(loss, model);
    progress.steps.set(progress.steps.get() + 1);
    progress.loss.set(loss);
}

/// Takes steps with batches from a queue. Each of them is committed when it ends.
#[graph]
fn train(model: &Network, adam: &Adam, progress: &Progress, batches: Queue<(Tensor, Tensor<i32>)>, steps: Tensor<i64>) {
    let mut i = scalar(0i64);
    while i < steps {
        commit_each_iteration();
        let (images, labels) = batches.dequeue();
        step(model, adam, progress, images, labels);
        i += 1;
    }
}

type Batch = (Array<f32>, Array<i32>);

/// Returns the batches of an epoch, in an order of its own.
fn batches_of(epoch: usize) -> impl Iterator<Item = Batch> {
    let records: Vec<&[u8]> = include_bytes!("data/digits.bin").chunks_exact(65).collect();
    // Steps of a length that is coprime to the number of images visit each of them once.
    let (n, stride) = (records.len(), 2 * epoch + 101);
    (0..n / BATCH).map(move |b| {
        let ids = (b * BATCH..(b + 1) * BATCH).map(|i| (i * stride) % n);
        let chosen: Vec<&[u8]> = ids.map(|i| records[i]).collect();
        let pixels = chosen.iter().flat_map(|r| r[..64].iter().map(|&p| f32::from(p) / 16.0)).collect();
        let labels = chosen.iter().map(|r| i32::from(r[64])).collect();
        (Array::new([BATCH, 64], pixels), Array::new([BATCH], labels))
    })
}

fn produce(to: &HostQueue<(Tensor, Tensor<i32>)>) -> anabranch::Result<()> {
    (0..EPOCHS).flat_map(batches_of).try_for_each(|batch| to.push(batch))
}

/// Returns the bits of all weights.
fn weights(session: &Session, model: &Network) -> anabranch::Result<Vec<u32>> {
    let state = session.state(model)?;
    Ok(state.iter().flat_map(|(_, value)| value.data::<f32>().iter().map(|w| w.to_bits())).collect())
}

fn main() -> anabranch::Result<()> {
    let session = Session::from_args()?;
    let steps = (EPOCHS * batches_of(0).count()) as i64;

    // One call for all steps.
    let (model, adam, progress) = (Network::new(7), Adam::new(0.002), Progress::new());
    let types = [TensorType::new(DType::F32, [BATCH, 64]), TensorType::new(DType::I32, [BATCH])];
    let batches = Queue::<(Tensor, Tensor<i32>)>::fifo("batches", 4, &types)?;
    let train = session.function(|n: Tensor<i64>| train(&model, &adam, &progress, batches.clone(), n))?;
    train.compile(&[TensorType::new(DType::I64, [])])?;
    let (to, has_ended, begin) = (session.queue(&batches)?, AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| -> anabranch::Result<()> {
        let producer = scope.spawn(|| produce(&to));
        let watcher = scope.spawn(|| -> anabranch::Result<()> {
            let mut next = 0;
            while !has_ended.load(Ordering::Relaxed) {
                let seen = session.get(&progress.steps)?.item();
                if seen >= next {
                    println!(
                        "step {seen:3}: loss {:.4}, {} batches wait",
                        session.get(&progress.loss)?.item(),
                        to.len()
                    );
                    next = seen + steps / 5;
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        let outcome = train.call(steps);
        has_ended.store(true, Ordering::Relaxed);
        // A training that failed takes no more batches.
        to.close_and_cancel()?;
        watcher.join().expect("the watcher does not panic")?;
        outcome.and(producer.join().expect("the producer does not panic"))
    })?;
    let in_graph = begin.elapsed();

    // One call for each step.
    let (other, adam, progress) = (Network::new(7), Adam::new(0.002), Progress::new());
    let step = session.function(|x: Tensor, labels: Tensor<i32>| step(&other, &adam, &progress, x, labels))?;
    step.compile(&types)?;
    let begin = Instant::now();
    (0..EPOCHS).flat_map(batches_of).try_for_each(|batch| step.call(batch))?;
    let from_outside = begin.elapsed();

    assert_eq!(weights(&session, &model)?, weights(&session, &other)?, "both trainings give the same weights");
    println!(
        "{steps} steps: {:.1} ms in one call that takes batches from a queue, {:.1} ms in one call each; same weights",
        in_graph.as_secs_f64() * 1e3,
        from_outside.as_secs_f64() * 1e3
    );
    Ok(())
}
