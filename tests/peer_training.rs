//! The training of the example `two_machines`, with and without peers.

#[allow(dead_code, reason = "the example has a main function of its own")]
#[path = "../examples/two_machines.rs"]
mod two_machines;

use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
use anabranch::{Diagnostic, Session};

/// Returns the bits of the losses of some rounds of training with a number of peers, and what runs
/// where.
fn train(n_peers: usize) -> Result<(Vec<u32>, String), Diagnostic> {
    let key = NodeKey::generate()?;
    let serve = |_| {
        let listen = "127.0.0.1:0".parse().expect("this is an address");
        let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback);
        Peer::serve(options.allow(key.id()))
    };
    let peers = (0..n_peers).map(serve).collect::<Result<Vec<Peer>, Diagnostic>>()?;
    let builder = Session::builder().node_key(key).network(Profile::Loopback);
    let builder = peers.iter().fold(builder, |builder, peer| builder.peer(peer.address()));
    let mut losses = Vec::new();
    let plan = two_machines::train(builder, 2, 3, |_, loss| losses.push(loss.to_bits()))?;
    Ok((losses, plan))
}

/// Returns the kernels of a device in a plan, and the values that it sends to others.
fn part<'a>(plan: &'a str, device: &str) -> (Vec<&'a str>, Vec<&'a str>) {
    let header = |line: &&str| line.starts_with("part ") && line.contains(&format!(" on {device}:"));
    let mut lines = plan.lines().skip_while(|line| !header(line)).skip(1);
    let lines: Vec<&str> = lines.by_ref().take_while(|line| line.starts_with(' ')).map(str::trim).collect();
    let of = |what: &str| lines.iter().copied().filter(|line| line.starts_with(what)).collect();
    (of("compute "), of("send "))
}

#[test]
fn training_at_peers_has_the_losses_of_training_without_them_bit_for_bit() -> Result<(), Diagnostic> {
    let (here, _) = train(0)?;
    assert!(here.len() == 3 && here.iter().all(|&bits| f32::from_bits(bits).is_finite()), "{here:?}");
    assert!(here[1..].iter().all(|loss| *loss != here[0]), "nothing is learned");
    assert_eq!(train(1)?.0, here, "the embedding is here, the cell at a peer");
    let (losses, plan) = train(2)?;
    assert_eq!(losses, here, "the embedding is at one peer, the cell at another");

    // The peers compute what the example says, forward and backward, and send it to each other.
    let has = |kernels: &[&str], op: &str| kernels.iter().any(|kernel| kernel.split(' ').any(|word| word == op));
    let (embedding, to_cell) = part(&plan, "/peer:0/cpu:0");
    assert!(has(&embedding, "take") && has(&embedding, "scatter_add"), "{plan}");
    let (cell, to_embedding) = part(&plan, "/peer:1/cpu:0");
    assert!(has(&cell, "matmul") && has(&cell, "tanh") && has(&cell, "sqrt"), "{plan}");
    let rows = |sent: &[&str], to: &str| sent.iter().any(|line| line.contains("f32[2, 32]") && line.ends_with(to));
    assert!(rows(&to_cell, "to part 2") && rows(&to_embedding, "to part 1"), "{plan}");
    // No weight of the cell, and no gradient of one, leaves its device.
    assert!(!to_embedding.iter().any(|line| line.contains("384")), "{plan}");
    Ok(())
}
