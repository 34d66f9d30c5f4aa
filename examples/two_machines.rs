//! Trains the model of `char_rnn` on several machines: the embedding on one peer, the cell on
//! another.
//!
//! On one machine, with two peers as processes of their own:
//!
//! ```sh
//! cargo build --release --features peers --example two_machines
//! cargo run --release --features peers -- launch -n 2 -- target/release/examples/two_machines
//! ```
//!
//! On two machines, see "Several machines" in the README. With one peer, the embedding is on this
//! machine. Without peers, all devices are here, and the losses are bit for bit the same.

#[allow(dead_code, reason = "the other example has a main function of its own")]
#[path = "char_rnn.rs"]
mod char_rnn;

use anabranch::optim::{Adam, Optimizer};
use anabranch::{Session, SessionBuilder};
use char_rnn::{CharRnn, Sentences, train_step};

fn main() -> anabranch::Result<()> {
    let (batch, rounds) = if std::env::args().any(|a| a == "--small") { (4, 5) } else { (32, 100) };
    train(Session::builder().peers_of_environment()?, batch, rounds, |round, loss| {
        if round <= 5 || round.is_multiple_of(10) {
            println!("{round:>4} of {rounds}: loss {loss:.6}, bits {:08x}", loss.to_bits());
        }
    })
}

/// Trains a new model at the peers of a session, and tells the loss of each round.
pub(crate) fn train(
    builder: SessionBuilder,
    batch: usize,
    rounds: usize,
    mut tell: impl FnMut(usize, f32),
) -> anabranch::Result<()> {
    let text = Sentences::load();
    let (model, adam) = (CharRnn::new(text.alphabet.len() + 1), Adam::new(0.004));
    adam.prepare(&model);

    let (embed, cell) = match builder.n_peers() {
        0 => ("/peer:local/cpu:1", "/peer:local/cpu:2"),
        1 => ("/peer:local/cpu:1", "/peer:0/cpu:0"),
        _ => ("/peer:0/cpu:0", "/peer:1/cpu:0"),
    };
    let session = builder
        .cpus(3)
        .device("/peer:local/cpu:0")
        .place("model.embed.*", embed)
        .place("model.cell.*", cell)
        .place("adam.embed.*", embed)
        .place("adam.cell.*", cell)
        .build()?;
    session.name_variables("model", &model);
    session.name_variables("adam", &adam);
    println!("the embedding is on {embed}, the cell on {cell}");

    let step = session.function(|text, lengths| train_step(&model, &adam, text, lengths))?;
    for round in 0..rounds {
        tell(round + 1, step.call(text.batch(batch, round))?.item());
    }
    Ok(())
}
