//! The training of the example `two_machines`, with and without peers.

#[allow(dead_code, reason = "the example has a main function of its own")]
#[path = "../examples/two_machines.rs"]
mod two_machines;

use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
use anabranch::{Diagnostic, Session};

/// Returns the bits of the losses of some rounds of training with a number of peers.
fn losses(n_peers: usize) -> Result<Vec<u32>, Diagnostic> {
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
    two_machines::train(builder, 2, 3, |_, loss| losses.push(loss.to_bits()))?;
    Ok(losses)
}

#[test]
fn training_at_peers_has_the_losses_of_training_without_them_bit_for_bit() -> Result<(), Diagnostic> {
    let here = losses(0)?;
    assert!(here.len() == 3 && here.iter().all(|&bits| f32::from_bits(bits).is_finite()), "{here:?}");
    assert!(here[1..].iter().all(|loss| *loss != here[0]), "nothing is learned");
    assert_eq!(losses(1)?, here, "the embedding is here, the cell at a peer");
    assert_eq!(losses(2)?, here, "the embedding is at one peer, the cell at another");
    Ok(())
}
