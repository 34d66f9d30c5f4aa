//! A character model: learns to continue a text, one sentence at a time, then writes some.
//!
//! Sentences have different lengths; the staged `while` runs as long as the longest one of a batch. The last loop samples: each
//! character is drawn from the model's prediction and fed back, until the sentence ends.
//!
//! `cargo run --release --example char_rnn [-- --small] [--seed N]`
//!
//! The text are the founding charters of the United States, in the public domain: see `examples/data/README.md`.

use anabranch::nn::{Embedding, Init, Linear, Lstm};
use anabranch::optim::{Adam, Optimizer, clip_global_norm, model_gradients};
use anabranch::prelude::*;
use anabranch::random::Key;

const UNITS: usize = 96;
const LONGEST: usize = 120;
/// Code of "before the first" and "after the last" character; the others count from 1.
const END: i32 = 0;

#[derive(Module)]
struct CharRnn {
    embed: Embedding,
    cell: Lstm,
    out: Linear,
}

/// Mean loss per character of sentences `[batch, longest]`, of which `lengths` characters count.
#[graph]
fn loss(model: &CharRnn, text: Tensor<i32>, lengths: Tensor<i32>) -> Tensor {
    let mut state = model.cell.zero_state(text.dim(0));
    let mut total = scalar(0.0);
    let mut t = scalar(0);
    while t < lengths.max() - 1 {
        let (y, next) = model.cell.step(model.embed.at(text.index(t, 1)), state);
        state = next;
        let alive = (t + 1).less(lengths);
        let losses = model.out.apply(y).cross_entropy(text.index(t + 1, 1));
        total += alive.select(losses, 0.0).sum();
        t += 1;
    }
    total / (lengths - 1).sum().cast()
}

#[graph]
fn train_step(model: &CharRnn, adam: &Adam, text: Tensor<i32>, lengths: Tensor<i32>) -> Tensor {
    let loss = loss(model, text, lengths);
    let mut gradients = model_gradients(loss, model);
    clip_global_norm(&mut gradients, 1.0);
    adam.apply(0.004, &gradients);
    loss
}

/// Codes of a sentence drawn from the model, `[LONGEST]`, and how many there are.
#[graph]
fn sample(model: &CharRnn, seed: Tensor<i32>, temperature: Tensor) -> (Tensor<i32>, Tensor<i32>) {
    let key = Key::new(7).fold_in(seed);
    let mut state = model.cell.zero_state(1);
    let mut text = zeros::<i32>([LONGEST]);
    let (mut code, mut t) = (full([1], END), scalar(0));
    while t < LONGEST as i32 && (t == 0 || (code != END).all()) {
        let (y, next) = model.cell.step(model.embed.at(code), state);
        state = next;
        let uniform = key
            .fold_in(t)
            .uniform::<f32>([1, model.out.bias.get().dim(0)]);
        let gumbel = -(-(uniform + 1e-7).log()).log();
        code = (model.out.apply(y) / temperature + gumbel).argmax(-1);
        text += (iota(LONGEST) == t).cast() * code;
        t += 1;
    }
    (text, t)
}

fn main() -> anabranch::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let small = args.iter().any(|a| a == "--small");
    let seed = args
        .iter()
        .position(|a| a == "--seed")
        .and_then(|i| args.get(i + 1)?.parse().ok())
        .unwrap_or(1);
    let (batch, rounds) = if small { (8, 20) } else { (32, 600) };

    // Sentences, without their line breaks; the code of a character is its place in the alphabet.
    let text = include_str!("data/charters.txt")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let sentences: Vec<&str> = text
        .split_inclusive(['.', ';'])
        .map(str::trim)
        .filter(|s| s.len() > 20)
        .collect();
    let mut alphabet: Vec<char> = text.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    let code = |c: char| alphabet.binary_search(&c).map_or(END, |i| i as i32 + 1);

    let (entries, init) = (alphabet.len() + 1, Init::new(seed));
    let model = CharRnn {
        embed: Embedding::new(&init, entries, 32),
        cell: Lstm::new(&init, 32, UNITS),
        out: Linear::new(&init, UNITS, entries),
    };
    let adam = Adam::new(0.004);
    let session = Session::new()?;
    let step = session.function(|text, lengths| train_step(&model, &adam, text, lengths))?;
    for round in 0..rounds {
        let (mut codes, mut lengths) = (Vec::new(), Vec::new());
        for i in 0..batch {
            let sentence = sentences[(round * batch + i) % sentences.len()];
            let mut row: Vec<i32> = std::iter::once(END)
                .chain(sentence.chars().map(code))
                .take(LONGEST - 1)
                .collect();
            row.push(END);
            lengths.push(row.len() as i32);
            row.resize(LONGEST, END);
            codes.extend(row);
        }
        let loss = step.call((Array::new([batch, LONGEST], codes), lengths))?;
        if (round + 1) % (rounds / 10) == 0 {
            println!(
                "{:>4} of {rounds}: loss {:.3} per character",
                round + 1,
                loss.item()
            );
        }
    }
    let sample = session.function(|seed, temperature| sample(&model, seed, temperature))?;
    for i in 0..3 {
        let (codes, length) = sample.call((i, 0.6))?;
        let drawn = &codes.as_slice()[..length.item() as usize];
        println!(
            "> {}",
            drawn
                .iter()
                .filter(|&&c| c != END)
                .map(|&c| alphabet[c as usize - 1])
                .collect::<String>()
        );
    }
    Ok(())
}
