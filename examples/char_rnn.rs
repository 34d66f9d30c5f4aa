//! A character model that learns to continue a text, sentence by sentence, and then writes some.
//!
//! The staged `while` of the loss runs as long as the longest sentence of a batch. A second one
//! samples: it feeds each character back until the sentence ends.
//!
//! `cargo run --release --example char_rnn [-- --small]`
//!
//! The text consists of the founding charters of the United States, which are in the public domain:
//! see `examples/data/README.md`.

use anabranch::nn::{Embedding, Init, Linear, Lstm};
use anabranch::optim::{Adam, Optimizer, clip_global_norm, model_gradients};
use anabranch::{prelude::*, random::Key};

pub(crate) const LONGEST: usize = 120;
/// The code of the positions before the first and after the last character. The other codes start
/// at 1.
const END: i32 = 0;

#[derive(Module)]
pub(crate) struct CharRnn {
    pub(crate) embed: Embedding,
    pub(crate) cell: Lstm,
    pub(crate) out: Linear,
}

impl CharRnn {
    fn new(entries: usize) -> CharRnn {
        let init = Init::new(1);
        let (embed, cell) = (Embedding::new(&init, entries, 32), Lstm::new(&init, 32, 96));
        CharRnn { embed, cell, out: Linear::new(&init, 96, entries) }
    }
}

/// Sentences of a text without their line breaks. The code of a character is its position in the
/// alphabet.
pub(crate) struct Sentences {
    sentences: Vec<String>,
    pub(crate) alphabet: Vec<char>,
}

impl Sentences {
    pub(crate) fn load() -> Sentences {
        let text = include_str!("data/charters.txt").split_whitespace().collect::<Vec<_>>().join(" ");
        let sentences = text.split_inclusive(['.', ';']).map(str::trim).filter(|s| s.len() > 20);
        let alphabet = text.chars().collect::<std::collections::BTreeSet<_>>();
        Sentences { sentences: sentences.map(str::to_owned).collect(), alphabet: alphabet.into_iter().collect() }
    }

    /// Returns the codes `[batch, LONGEST]` and the lengths of the sentences of a round.
    pub(crate) fn batch(&self, batch: usize, round: usize) -> (Array<i32>, Vec<i32>) {
        let code = |c: char| self.alphabet.binary_search(&c).map_or(END, |i| i as i32 + 1);
        let (mut codes, mut lengths) = (Vec::new(), Vec::new());
        for i in 0..batch {
            let sentence = self.sentences[(round * batch + i) % self.sentences.len()].chars().map(code);
            let start = codes.len();
            codes.extend([END].into_iter().chain(sentence).take(LONGEST - 1).chain([END]));
            lengths.push((codes.len() - start) as i32);
            codes.resize(start + LONGEST, END);
        }
        (Array::new([batch, LONGEST], codes), lengths)
    }
}

/// Returns the mean loss per character of sentences `[batch, LONGEST]` with the given lengths.
#[graph]
fn loss(model: &CharRnn, text: Tensor<i32>, lengths: Tensor<i32>) -> Tensor {
    let mut state = model.cell.zero_state(text.dim(0));
    let (mut total, mut t) = (scalar(0.0), scalar(0));
    while t < lengths.max() - 1 {
        let (y, next) = model.cell.step(model.embed.forward(text.index(t, 1)), state);
        state = next;
        let losses = model.out.forward(y).cross_entropy(text.index(t + 1, 1));
        total += (t + 1 < lengths).select(losses, 0.0).sum();
        t += 1;
    }
    total / (lengths - 1).sum().cast()
}

#[graph]
fn train_step(model: &CharRnn, adam: &Adam, text: Tensor<i32>, lengths: Tensor<i32>) -> Tensor {
    let loss = loss(model, text, lengths);
    learn(model, adam, loss);
    loss
}

/// Updates the model by the gradients of a loss.
#[graph]
pub(crate) fn learn(model: &CharRnn, adam: &Adam, loss: Tensor) {
    let mut gradients = model_gradients(loss, model);
    clip_global_norm(&mut gradients, 1.0);
    adam.apply(adam.rate(), &gradients);
}

/// Returns the codes of a sentence sampled from the model, `[LONGEST]`, with zeros after its end.
#[graph]
fn sample(model: &CharRnn, seed: Tensor<i32>, temperature: Tensor) -> Tensor<i32> {
    let (key, mut state) = (Key::new(7).fold_in(seed), model.cell.zero_state(1));
    let (mut text, mut code, mut t) = (zeros([LONGEST]), full([1], END), scalar(0));
    while t < LONGEST as i32 && (t == 0 || (code != END).all()) {
        let (y, next) = model.cell.step(model.embed.forward(code), state);
        state = next;
        code = key.fold_in(t).categorical(model.out.forward(y) / temperature, -1);
        text += (iota(LONGEST) == t).cast() * code;
        t += 1;
    }
    text
}

fn main() -> anabranch::Result<()> {
    let (batch, rounds) = if std::env::args().any(|a| a == "--small") { (8, 20) } else { (32, 600) };
    let text = Sentences::load();
    let (model, adam) = (CharRnn::new(text.alphabet.len() + 1), Adam::new(0.004));
    let session = Session::from_args()?;
    let step = session.function(|text, lengths| train_step(&model, &adam, text, lengths))?;
    for round in 0..rounds {
        let loss = step.call(text.batch(batch, round))?;
        if (round + 1) % (rounds / 10) == 0 {
            println!("{:>4} of {rounds}: loss {:.3} per character", round + 1, loss.item());
        }
    }
    let sample = session.function(|seed, temperature| sample(&model, seed, temperature))?;
    for i in 0..3 {
        let codes = sample.call((i, 0.6))?.to_vec();
        println!(
            "> {}",
            codes.iter().filter(|&&c| c != END).map(|&c| text.alphabet[c as usize - 1]).collect::<String>()
        );
    }
    Ok(())
}
