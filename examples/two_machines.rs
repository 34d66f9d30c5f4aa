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
use anabranch::prelude::*;
use char_rnn::{CharRnn, Sentences, train_step};

fn main() -> anabranch::Result<()> {
    let (batch, rounds) = if std::env::args().any(|a| a == "--small") { (4, 5) } else { (32, 100) };
    let text = Sentences::load();
    let (model, adam) = (CharRnn::new(text.alphabet.len() + 1), Adam::new(0.004));
    adam.prepare(&model);

    let builder = Session::builder().cpus(3).peers_of_environment()?;
    let (embed, cell) = match builder.n_peers() {
        0 => ("/peer:local/cpu:1", "/peer:local/cpu:2"),
        1 => ("/peer:local/cpu:1", "/peer:0/cpu:0"),
        _ => ("/peer:0/cpu:0", "/peer:1/cpu:0"),
    };
    let session = builder
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
        let loss = step.call(text.batch(batch, round))?.item();
        if round < 5 || (round + 1) % 10 == 0 {
            println!("{:>4} of {rounds}: loss {loss:.6}, bits {:08x}", round + 1, loss.to_bits());
        }
    }
    Ok(())
}
