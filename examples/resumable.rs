//! Trains on handwritten digits, is stopped in the middle of an epoch, and continues as if nothing
//! had happened.
//!
//! The images go through an input pipeline that shuffles them and shifts each at random. Every 25
//! steps a checkpoint is written beside the training: weights, optimizer, running mean of the loss,
//! and the position in the pipeline. The program trains twice, once without a break and once in two
//! parts with a new session in between, and compares the weights bit by bit.
//!
//! `cargo run --release --example resumable --features checkpoints,data`
//!
//! The data are 1,797 images of the UCI repository, embedded in the program: see
//! `examples/data/README.md`.

use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
use anabranch::data::{Dataset, DatasetPosition, ElementRng};
use anabranch::losses::CrossEntropy;
use anabranch::metrics::{Accuracy, RunningMean};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer, schedule};
use anabranch::prelude::*;
use std::path::Path;

const EPOCHS: u64 = 12;
const BATCH: usize = 32;
/// A fifth of the images, held out.
const N_TEST: u64 = 360;

type Sample = (Array<f32>, i32);

/// A perceptron with one hidden layer.
#[derive(Module)]
struct Classifier {
    hidden: Linear,
    class: Linear,
}

impl Classifier {
    fn new() -> Classifier {
        let init = Init::new(1);
        Classifier { hidden: Linear::new(&init, 64, 128), class: Linear::new(&init, 128, 10) }
    }

    /// Returns the logits `[batch, 10]` of images `[batch, 64]`.
    #[graph]
    fn forward(&self, images: Tensor) -> Tensor {
        self.class.forward(self.hidden.forward(images).relu())
    }
}

/// All that a run changes.
#[derive(Module)]
struct Training {
    model: Classifier,
    adam: Adam,
    loss: RunningMean,
}

impl Training {
    /// Runs one step, at a rate that falls along a cosine.
    #[graph]
    fn step(&self, step: Tensor<i64>, n_steps: i64, images: Tensor, labels: Tensor<i32>) {
        let logits = self.model.forward(images);
        let loss = CrossEntropy::new().label_smoothing(0.05).loss(logits, labels);
        self.loss.update(loss);
        self.adam.minimize_at(schedule::cosine(step, 3e-3, 1e-5, n_steps), loss, &self.model);
    }
}

/// Returns the images with their classes.
fn digits() -> Dataset<Sample> {
    let records: Vec<&[u8]> = include_bytes!("data/digits.bin").chunks_exact(65).collect();
    let samples = records.iter().map(|record| {
        let pixels = record[..64].iter().map(|&pixel| f32::from(pixel) / 16.0).collect();
        (Array::new([64], pixels), i32::from(record[64]))
    });
    Dataset::new(samples.collect::<Vec<_>>())
}

/// Shifts an image sideways by at most one pixel.
fn shifted((image, class): Sample, rng: &mut ElementRng) -> Sample {
    let shift = rng.below(3);
    let pixel = |i: usize| match (i % 8 + shift).checked_sub(1) {
        Some(column @ 0..8) => image[[i / 8 * 8 + column]],
        _ => 0.0,
    };
    (Array::new([64], (0..64).map(pixel).collect()), class)
}

/// Trains up to a step, from the last checkpoint of the folder if there is one. Returns the
/// weights and the held-out accuracy.
fn train(folder: &Path, last_step: u64) -> anabranch::Result<(Vec<Vec<f32>>, f64)> {
    // The cache keeps the order of the first epoch, so the same images are held out in all.
    let all = digits().shuffle(BATCH, 5).cache();
    let samples = all.skip(N_TEST).shuffle(BATCH, 6).map_random(7, shifted).batch(BATCH).prefetch(1, 4);
    let n_batches = samples.len().expect("the images are counted");
    let n_steps = i64::try_from(EPOCHS * n_batches).expect("few steps");

    let training = Training { model: Classifier::new(), adam: Adam::new(3e-3), loss: RunningMean::new() };
    training.adam.prepare(&training.model);
    let parts = RunParts::new().module("training", &training);
    let session = Session::from_args()?;
    let step_fn = session.function(|step: Tensor<i64>, images: Tensor, labels: Tensor<i32>| {
        training.step(step, n_steps, images, labels)
    })?;

    let mut checkpoints = Checkpoints::new(folder).keep_latest(2).open()?;
    let (mut step, mut batches) = (0, samples.epoch(0));
    if let Some(resumed) = checkpoints.resume(&session, &parts)? {
        step = resumed.step();
        batches = samples.resume(&resumed.value::<DatasetPosition>("position")?)?;
        println!("continued at step {step}, in epoch {}", batches.position().epoch());
    }
    while step < last_step.min(EPOCHS * n_batches) {
        let Some(batch) = batches.next() else {
            batches = samples.epoch(batches.position().epoch() + 1);
            continue;
        };
        let (images, labels) = batch?;
        step_fn.call((i64::try_from(step).expect("few steps"), images, labels))?;
        step += 1;
        if step % 25 == 0 {
            checkpoints.save(&session, &parts, StepRecord::new(step).value("position", &batches.position()))?;
        }
    }
    checkpoints.wait()?;

    let accuracy = Accuracy::new();
    let evaluate = session.function(|images: Tensor, labels: Tensor<i32>| {
        accuracy.update(training.model.forward(images), labels);
    })?;
    for batch in all.take(N_TEST).batch(BATCH).iter() {
        let (images, labels) = batch?;
        evaluate.call((images, labels))?;
    }
    let accuracy = session.function(|| accuracy.result())?.call(())?.item();
    let weights = session.state(&training.model)?;
    Ok((weights.iter().map(|(_, tensor)| tensor.data().to_vec()).collect(), accuracy))
}

fn main() -> anabranch::Result<()> {
    let folder = std::env::temp_dir().join(format!("anabranch-resumable-{}", std::process::id()));
    let (whole, accuracy) = train(&folder.join("whole"), u64::MAX)?;
    println!("held-out accuracy {:.1} %", 100.0 * accuracy);

    // The run in two parts loses the steps since its last checkpoint, and computes them again.
    train(&folder.join("parts"), 260)?;
    let (parts, _) = train(&folder.join("parts"), u64::MAX)?;
    let bits = |weights: &[Vec<f32>]| weights.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(&whole) == bits(&parts), "the weights differ");
    println!("the weights of both runs are equal, bit by bit");
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}
