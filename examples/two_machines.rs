//! Trains the model of `char_rnn` on several machines: the embedding on one peer, the cell on
//! another.
//!
//! "Several machines" in the README has the commands. With one peer, the embedding is on this
//! machine. Without peers, all devices are here, and the losses are bit for bit the same. With
//! `--explain`, prints at the end what runs where.

#[allow(dead_code, reason = "the other example has a main function of its own")]
#[path = "char_rnn.rs"]
mod char_rnn;

use anabranch::nn::{Embedding, Init, Linear, Lstm};
use anabranch::optim::{Adam, Optimizer};
use anabranch::{DType, Session, SessionBuilder, TensorType, on, prelude::*};
use char_rnn::{CharRnn, LONGEST, Sentences, learn};

/// The devices of the parts of the model. The output layer, the loss and all that is on no other
/// device is on the first of this process.
#[derive(Clone, Copy)]
struct Places {
    embed: &'static str,
    cell: &'static str,
}

impl Places {
    /// Returns the places for a number of peers.
    fn new(n_peers: usize) -> Places {
        match n_peers {
            0 => Places { embed: "/peer:local/cpu:1", cell: "/peer:local/cpu:2" },
            1 => Places { embed: "/peer:local/cpu:1", cell: "/peer:0/cpu:0" },
            _ => Places { embed: "/peer:0/cpu:0", cell: "/peer:1/cpu:0" },
        }
    }

    /// Creates the model. Gradients are computed and variables updated where the variables are.
    fn model(self, entries: usize) -> CharRnn {
        let init = Init::new(1);
        let embed = on(self.embed, || Embedding::new(&init, entries, 32));
        let cell = on(self.cell, || Lstm::new(&init, 32, 96));
        CharRnn { embed, cell, out: Linear::new(&init, 96, entries) }
    }
}

/// Returns the mean loss per character of sentences `[batch, LONGEST]` with the given lengths. An
/// iteration is on three devices, and none of them waits for the others before it begins the next.
#[graph]
fn loss(model: &CharRnn, places: Places, text: Tensor<i32>, lengths: Tensor<i32>) -> Tensor {
    let mut state = on(places.cell, || model.cell.zero_state(text.dim(0)));
    let (mut total, mut t) = (scalar(0.0), scalar(0));
    while t < lengths.max() - 1 {
        let x = on(places.embed, || model.embed.forward(text.index(t, 1)));
        let (y, next) = on(places.cell, || model.cell.step(x, state));
        state = next;
        let losses = model.out.forward(y).cross_entropy(text.index(t + 1, 1));
        total += (t + 1 < lengths).select(losses, 0.0).sum();
        t += 1;
    }
    total / (lengths - 1).sum().cast()
}

fn main() -> anabranch::Result<()> {
    let has = |option: &str| std::env::args().any(|argument| argument == option);
    let (batch, rounds) = if has("--small") { (4, 5) } else { (32, 100) };
    let plan = train(Session::builder().peers_of_environment()?, batch, rounds, |round, loss| {
        if round <= 5 || round.is_multiple_of(10) {
            println!("{round:>4} of {rounds}: loss {loss:.6}, bits {:08x}", loss.to_bits());
        }
    })?;
    if has("--explain") {
        println!("{plan}");
    }
    Ok(())
}

/// Trains a new model at the peers of a session, and tells the loss of each round. Returns what
/// runs where, as text.
pub(crate) fn train(
    builder: SessionBuilder,
    batch: usize,
    rounds: usize,
    mut tell: impl FnMut(usize, f32),
) -> anabranch::Result<String> {
    let places = Places::new(builder.n_peers());
    println!("the embedding is on {}, the cell on {}", places.embed, places.cell);
    let session = builder.cpus(3).device("/peer:local/cpu:0").build()?;
    let text = Sentences::load();
    let (model, adam) = (places.model(text.alphabet.len() + 1), Adam::new(0.004));
    adam.prepare(&model);

    let step = session.function(|text, lengths| {
        let loss = loss(&model, places, text, lengths);
        learn(&model, &adam, loss);
        loss
    })?;
    for round in 0..rounds {
        tell(round + 1, step.call(text.batch(batch, round))?.item());
    }
    step.explain(&[TensorType::new(DType::I32, [batch, LONGEST]), TensorType::new(DType::I32, [batch])])
}
