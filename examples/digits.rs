//! Reads handwritten digits row by row, and thinks about each row for as long as it needs.
//!
//! A recurrent network iterates over the 8 rows of an image with a staged `while`. For every row it
//! takes thinking steps until its halting probabilities add up to one: adaptive computation time
//! (Graves 2016, <https://arxiv.org/abs/1603.08983>), a second `while` whose length depends on the
//! data. Both loops are differentiated, and the thinking time is part of the loss.
//!
//! `cargo run --release --example digits [-- --small] [--seed N]`
//!
//! The data are 1,797 images of the UCI repository, embedded in the program: see
//! `examples/data/README.md`.

use anabranch::nn::{Gru, Init, Linear};
use anabranch::optim::{Adam, Optimizer, clip_global_norm, model_gradients};
use anabranch::prelude::*;
use std::io::IsTerminal;

const UNITS: usize = 96;
pub(crate) const BATCH: usize = 48;
/// The maximum number of thinking steps for one row.
const MAX_STEPS: i32 = 6;
/// The weight of a thinking step relative to the cross entropy.
const PONDER_PRICE: f32 = 0.01;

#[derive(Module)]
pub(crate) struct DigitReader {
    cell: Gru,
    halt: Linear,
    digit: Linear,
}

impl DigitReader {
    pub(crate) fn new(seed: u64) -> DigitReader {
        let init = Init::new(seed);
        DigitReader {
            // 8 pixels, and a flag for the first step of a row.
            cell: Gru::new(&init, 9, UNITS),
            halt: Linear::new(&init, UNITS, 1),
            digit: Linear::new(&init, UNITS, 10),
        }
    }

    /// Thinks about one row `[batch, 8]`. Returns the next state, the number of steps and the
    /// remainder, which makes the number of steps differentiable.
    #[graph]
    fn think(&self, row: Tensor, state: Tensor) -> (Tensor, Tensor, Tensor) {
        let batch = row.dim(0);
        let (mut s, mut mean) = (state, zeros([batch, UNITS]));
        let (mut halted, mut steps, mut remainder) = (zeros([batch, 1]), zeros([batch, 1]), zeros([batch, 1]));
        let mut is_new = full([batch, 1], 1.0);
        let mut n = scalar(0);
        while n < MAX_STEPS && (halted < 1.0).any() {
            s = self.cell.step(concat(&[row, is_new], -1), s);
            let p = self.halt.forward(s).sigmoid();
            let running = halted < 1.0;
            let mut last = running & (halted + p > 0.99);
            if n == MAX_STEPS - 1 {
                last = running;
            }
            let weight = last.select(1.0 - halted, p) * running.cast();
            remainder += last.select(1.0 - halted, 0.0);
            mean += weight * s;
            steps += running.cast();
            halted = last.select(1.0, halted + weight);
            is_new = zeros([batch, 1]);
            n += 1;
        }
        (mean, steps, remainder)
    }

    /// Returns the logits `[batch, 10]` of images `[batch, 8, 8]`, and the thinking steps and
    /// ponder cost of each image.
    #[graph]
    fn read(&self, images: Tensor) -> (Tensor, Tensor, Tensor) {
        let mut state = self.cell.zero_state(images.dim(0));
        let (mut steps, mut cost) = (zeros([images.dim(0), 1]), zeros([images.dim(0), 1]));
        let mut row = scalar(0);
        while row < 8 {
            let (next, n, remainder) = self.think(images.index(row, 1), state);
            state = next;
            steps += n;
            cost += n + remainder;
            row += 1;
        }
        (self.digit.forward(state), steps, cost)
    }
}

/// Runs one training step. Returns the loss and the accuracy.
#[graph]
pub(crate) fn train_step(
    model: &DigitReader,
    adam: &Adam,
    rate: Tensor,
    images: Tensor,
    labels: Tensor<i32>,
) -> (Tensor, Tensor) {
    let (logits, _, cost) = model.read(images);
    let loss = logits.cross_entropy(labels).mean() + PONDER_PRICE * cost.mean();
    let mut gradients = model_gradients(loss, model);
    clip_global_norm(&mut gradients, 1.0);
    adam.apply(rate, &gradients);
    let right = logits.argmax(-1).equal(labels);
    (loss, right.cast().mean())
}

/// Returns the accuracy, and the mean number of thinking steps per row.
#[graph]
pub(crate) fn evaluate(model: &DigitReader, images: Tensor, labels: Tensor<i32>) -> (Tensor, Tensor) {
    let (logits, steps, _) = model.read(images);
    (logits.argmax(-1).equal(labels).cast().mean(), steps.mean() / 8.0)
}

pub(crate) struct Data {
    images: Vec<f32>,
    labels: Vec<i32>,
}

impl Data {
    /// Loads the embedded images in random order. A fifth of them is held out.
    pub(crate) fn load(rng: &mut Rng) -> (Data, Data) {
        let records: Vec<&[u8]> = include_bytes!("data/digits.bin").chunks_exact(65).collect();
        let mut order: Vec<usize> = (0..records.len()).collect();
        rng.shuffle(&mut order);
        let select = |ids: &[usize]| Data {
            images: ids.iter().flat_map(|&i| records[i][..64].iter().map(|&p| f32::from(p) / 16.0)).collect(),
            labels: ids.iter().map(|&i| i32::from(records[i][64])).collect(),
        };
        let (test, train) = order.split_at(records.len() / 5);
        (select(train), select(test))
    }

    /// Returns images `[n, 8, 8]`, each shifted sideways by a number of pixels, and their labels.
    pub(crate) fn batch(&self, ids: &[usize], mut shift: impl FnMut() -> isize) -> (Array<f32>, Array<i32>) {
        let mut images = vec![0.0; ids.len() * 64];
        for (to, &i) in images.chunks_exact_mut(64).zip(ids) {
            let dx = shift();
            for (k, &pixel) in self.images[i * 64..(i + 1) * 64].iter().enumerate() {
                if let column @ 0..8 = (k % 8) as isize + dx {
                    to[k / 8 * 8 + column as usize] = pixel;
                }
            }
        }
        let labels = ids.iter().map(|&i| self.labels[i]).collect();
        (Array::new([ids.len(), 8, 8], images), Array::new([ids.len()], labels))
    }

    pub(crate) fn all(&self) -> (Array<f32>, Array<i32>) {
        self.batch(&(0..self.labels.len()).collect::<Vec<_>>(), || 0)
    }
}

/// A small random number generator for the order of the data (xorshift64*, Vigna 2016).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

fn main() -> anabranch::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let small = args.iter().any(|a| a == "--small");
    let seed = args.iter().position(|a| a == "--seed").and_then(|i| args.get(i + 1)?.parse().ok()).unwrap_or(1);
    let epochs = if small { 2 } else { 40 };

    let mut rng = Rng(seed * 2 + 1);
    let (train, test) = Data::load(&mut rng);
    let (model, adam) = (DigitReader::new(seed), Adam::new(0.004));
    let session = Session::from_args()?;
    let step = session.function(|rate, images, labels| train_step(&model, &adam, rate, images, labels))?;
    let check = session.function(|images, labels| evaluate(&model, images, labels))?;

    let started = std::time::Instant::now();
    let mut order: Vec<usize> = (0..train.labels.len()).collect();
    let per_epoch = order.len() / BATCH;
    let terminal = std::io::stderr().is_terminal();
    let (test_images, test_labels) = test.all();
    for epoch in 0..epochs {
        rng.shuffle(&mut order);
        let (mut loss, mut accuracy) = (0.0, 0.0);
        for (i, ids) in order.chunks_exact(BATCH).enumerate() {
            let progress = (epoch * per_epoch + i) as f32 / (epochs * per_epoch) as f32;
            let rate = 0.004 * 0.5 * (1.0 + (std::f32::consts::PI * progress).cos());
            let (images, labels) = train.batch(ids, || rng.below(3) as isize - 1);
            let (l, a) = step.call((rate, images, labels))?;
            (loss, accuracy) = (loss + l.item() / per_epoch as f32, accuracy + a.item() / per_epoch as f32);
            if terminal {
                eprint!("\repoch {:>2}: {:>3} % ", epoch + 1, 100 * (i + 1) / per_epoch);
            }
        }
        let (held_out, steps) = check.call((&test_images, &test_labels))?;
        let (held_out, steps) = (held_out.item(), steps.item());
        if terminal {
            eprint!("\r");
        }
        println!(
            "epoch {:>2}: loss {loss:.4}, accuracy {accuracy:.4}, held out {held_out:.4}, {steps:.2} thinking steps a row",
            epoch + 1
        );
    }
    let (accuracy, steps) = check.call((&test_images, &test_labels))?;
    println!(
        "held-out accuracy {:.2} % on {} images, {:.2} thinking steps a row, {:.1} s",
        accuracy.item() * 100.0,
        test.labels.len(),
        steps.item(),
        started.elapsed().as_secs_f32()
    );
    Ok(())
}
