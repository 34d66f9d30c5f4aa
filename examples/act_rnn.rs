//! Learns parity with adaptive computation time: as many thinking steps as each element of a
//! sequence needs.
//!
//! A recurrent network reads a sequence with a staged `for`. For every element it takes steps in a
//! staged `loop` until its halting probabilities, which it computes itself, add up to one (Graves
//! 2016, <https://arxiv.org/abs/1603.08983>). So the length of the inner loop is learned. The
//! gradient goes through both loops. The number of steps is part of the loss, through the remainder
//! of the probability at the last step. There are no masks: each sequence runs by itself, for its
//! own number of steps.
//!
//! The task is a small version of the paper's. An element is a vector of `SIZE` numbers, some of
//! them 1 or -1, the others 0. The label after each element is whether the number of ones so far is
//! odd.
//!
//! `cargo run --release --example act_rnn [-- --small] [--seed N]`

use anabranch::nn::{Gru, Init, Linear};
use anabranch::optim::{Adam, Optimizer, clip_global_norm, model_gradients};
use anabranch::prelude::*;

const SIZE: usize = 4;
const LENGTH: usize = 4;
const BATCH: usize = 32;
const UNITS: usize = 32;
/// The maximum number of steps for one element.
const MAX_STEPS: f32 = 8.0;
/// Stepping ends when less than this is left of the probability.
const EPSILON: f32 = 0.01;

#[derive(Module)]
struct Ponderer {
    cell: Gru,
    halt: Linear,
    odd: Linear,
}

impl Ponderer {
    fn new(seed: u64) -> Ponderer {
        let init = Init::new(seed);
        // An additional input is 1 for the first step of an element.
        let cell = Gru::new(&init, SIZE + 1, UNITS);
        // The bias makes it start with several steps; it learns which of them it needs.
        let halt = Linear { bias: Var::new("bias", [-1.0]), ..Linear::new(&init, UNITS, 1) };
        Ponderer { cell, halt, odd: Linear::new(&init, UNITS, 2) }
    }

    /// Thinks about one element `[SIZE]`. Returns the mean of the states, weighted by the halting
    /// probabilities; the number of steps; and the remaining probability at the last step.
    #[graph]
    fn ponder(&self, x: Tensor, mut state: Tensor) -> (Tensor, Tensor, Tensor) {
        let (mut mean, mut halted, mut steps) = (zeros([UNITS]), scalar(0.0), scalar(0.0));
        loop {
            let is_new = if steps == 0.0 { full([1], 1.0) } else { zeros([1]) };
            state = self.cell.step(concat(&[x, is_new], 0), state);
            let p = self.halt.forward(state).sigmoid().sum();
            steps += 1.0;
            if halted + p > 1.0 - EPSILON || steps == MAX_STEPS {
                let remainder = 1.0 - halted;
                break (mean + remainder * state, steps, remainder);
            }
            mean += p * state;
            halted += p;
        }
    }

    /// Returns, for a sequence `[LENGTH, SIZE]`, the logits `[LENGTH, 2]` after each element, and
    /// the steps and ponder cost of each.
    #[graph]
    fn read(&self, sequence: Tensor) -> (Tensor, Tensor, Tensor) {
        let mut state = zeros([UNITS]);
        let (mut logits, mut steps, mut costs) = (List::new([2]), List::new(()), List::new(()));
        for x in sequence {
            let (next, n, remainder) = self.ponder(x, state);
            state = next;
            logits.push(self.odd.forward(state));
            steps.push(n);
            costs.push(n + remainder);
        }
        (logits.stack(), steps.stack(), costs.stack())
    }
}

/// Runs one training step on sequences `[BATCH, LENGTH, SIZE]`. `price` is the weight of a thinking
/// step relative to the cross entropy.
#[graph]
fn train_step(model: &Ponderer, adam: &Adam, rate: Tensor, price: Tensor, x: Tensor, odd: Tensor<i32>) -> Tensor {
    let losses = map((x, odd), |(x, odd)| {
        let (logits, _, costs) = model.read(x);
        (logits.cross_entropy(odd) + price * costs).mean()
    });
    let mut gradients = model_gradients(losses.mean(), model);
    clip_global_norm(&mut gradients, 1.0);
    adam.apply(rate, &gradients);
    losses.mean()
}

/// A batch of sequences: elements, labels, and the count of nonzero numbers in each element.
struct Batch {
    x: Vec<f32>,
    odd: Vec<i32>,
    used: Vec<usize>,
}

impl Batch {
    fn draw(rng: &mut Rng) -> Batch {
        let mut batch = Batch { x: vec![], odd: vec![], used: vec![] };
        for _ in 0..BATCH {
            let mut odd = 0;
            for _ in 0..LENGTH {
                let used = 1 + rng.below(SIZE);
                let x: Vec<f32> =
                    (0..SIZE).map(|i| if i >= used { 0.0 } else { 2.0 * rng.below(2) as f32 - 1.0 }).collect();
                odd ^= x.iter().filter(|&&x| x == 1.0).count() as i32 % 2;
                batch.x.extend(x);
                batch.odd.push(odd);
                batch.used.push(used);
            }
        }
        batch
    }

    fn x(&self) -> Array<f32> {
        Array::new([BATCH, LENGTH, SIZE], self.x.clone())
    }
}

/// A small random number generator (xorshift64*, Vigna 2016).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// Statistics of held-out sequences by the count of nonzero numbers in an element, from 1 on: the
/// number of elements, right answers, steps.
type Counts = [(f32, f32, f32); SIZE];

/// Trains a network with this price of a thinking step. Returns its last loss and its statistics on
/// held-out sequences.
fn train(price: f32, rounds: usize, seed: u64) -> anabranch::Result<(f32, Counts)> {
    let (model, adam) = (Ponderer::new(seed), Adam::new(0.01));
    let session = Session::from_args()?;
    let step = session.function(|rate, price, x, odd| train_step(&model, &adam, rate, price, x, odd))?;
    let answer = session.function(|x: Tensor| {
        map(x, |x| {
            let (logits, steps, _) = model.read(x);
            (logits.argmax(-1), steps)
        })
    })?;
    let mut rng = Rng(2 * seed + 1);
    let mut last = 0.0;
    for round in 0..rounds {
        // The rate falls to 0, so that the last loss depends little on chance.
        let rate = adam.rate() * (1.0 - round as f32 / rounds as f32);
        let batch = Batch::draw(&mut rng);
        let odd = Array::new([BATCH, LENGTH], batch.odd.clone());
        last = step.call((rate, price, batch.x(), odd))?.item();
    }
    let mut counts = [(0.0, 0.0, 0.0); SIZE];
    for _ in 0..20 {
        let batch = Batch::draw(&mut rng);
        let (odd, steps) = answer.call(batch.x())?;
        for (i, used) in batch.used.iter().enumerate() {
            let (n, right, sum) = &mut counts[used - 1];
            *n += 1.0;
            *right += f32::from(odd.as_slice()[i] == batch.odd[i]);
            *sum += steps.as_slice()[i];
        }
    }
    Ok((last, counts))
}

fn main() -> anabranch::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let seed = args.iter().position(|a| a == "--seed").and_then(|i| args.get(i + 1)?.parse().ok()).unwrap_or(1);
    let rounds = if args.iter().any(|a| a == "--small") { 1200 } else { 3000 };

    println!("thinking steps for elements with 1 to {SIZE} numbers, after {rounds} rounds");
    let columns: Vec<String> = (1..=SIZE).map(|used| format!("{used:>5}")).collect();
    println!("{:>9} {:>8} {:>10} {} {:>6} {:>8}", "price", "loss", "accuracy", columns.join(" "), "mean", "seconds");
    let mut means = Vec::new();
    for price in [0.001, 0.02] {
        let started = std::time::Instant::now();
        let (loss, counts) = train(price, rounds, seed)?;
        let (n, right, steps) = counts.iter().fold((0.0, 0.0, 0.0), |sum, c| (sum.0 + c.0, sum.1 + c.1, sum.2 + c.2));
        let columns: Vec<String> = counts.iter().map(|(n, _, steps)| format!("{:>5.2}", steps / n)).collect();
        let (accuracy, mean) = (right / n, steps / n);
        println!(
            "{price:>9} {loss:>8.4} {:>8.1} % {} {mean:>6.2} {:>8.1}",
            100.0 * accuracy,
            columns.join(" "),
            started.elapsed().as_secs_f32()
        );
        assert!(
            accuracy > 0.9,
            "the network has not learned parity: the accuracy is {accuracy}, a guess is right in one half"
        );
        means.push(mean);
    }
    assert!(means[0] > means[1] + 0.2, "the price does not shorten the thinking: {means:?}");
    Ok(())
}
