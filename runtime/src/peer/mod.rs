//! Sessions over several processes.
//!
//! A process that serves its devices is a [`Peer`]. A session that names peers can place nodes and
//! variables on their devices, `/peer:0/cpu:0` and so on. The process of the session is the
//! *caller* of its functions. Each process runs its own subgraphs, and peers send values to each
//! other directly.
//!
//! ```text
//! session: cluster, remote_step ── proto::Caller ┐            ┌ proto::Host ── server, participant
//! (user threads)                                 ├ node ─ net ┤              (worker threads)
//! ```
//!
//! | path | contents | knows |
//! |---|---|---|
//! | `proto/` | frames, state machines of peers and sessions | time as a number |
//! | `net/` | links between nodes: keys, TLS, QUIC | bytes |
//! | `node.rs`, `rate_meter.rs` | what connects links and state machines | no graph |
//! | `program.rs` | a placed graph as bytes, and its cut | no socket |
//! | `server.rs`, `participant.rs`, `workers.rs` | the work of a peer | frames |
//! | `fuzz.rs` | the decoders, fed with bytes from anywhere | all decoders |
//! | `cluster.rs`, `remote_step.rs`, `remote_device.rs` | peers, their values and steps | frames |
//! | `shared.rs` | variables that several sessions share | frames |
//!
//! Invariants:
//!
//! - P1. **Values never change.** A value of a variable at a peer has a number that the caller
//!   chose. A step reads values by number and stores what it assigns under new numbers. The caller
//!   commits by holding the new numbers in place of the old ones, after all participants have
//!   ended. So a step is never half committed, and a lost peer cannot leave an outcome unknown.
//!   Only shared variables are committed by their peers, under a lock (`proto/host/shared.rs`).
//! - P2. **Nothing that arrives is trusted.** Each layer checks what it knows: the net proves keys
//!   and bounds sizes, the protocol checks who may say what when, programs are verified, and the
//!   gate of each executor admits only messages that a correct process sends.
//! - P3. **Every wait has a limit and an owner.** All limits follow from one failure timeout.
//! - P4. **Each process cuts a program for itself**, and the digests of the cuts are compared.

/// The version of the protocol, as a literal. Raise it whenever bytes of frames or of links change,
/// or what they mean.
macro_rules! protocol_version {
    () => {
        4
    };
}

mod address;
mod body;
mod cluster;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod net;
mod node;
mod notices;
mod origins;
mod participant;
mod program;
mod proto;
mod rate_meter;
mod remote_device;
mod remote_step;
mod serve;
mod server;
mod session;
mod shared;
mod workers;

pub use address::PeerAddress;
pub(crate) use cluster::ClusterOptions;
#[cfg(feature = "testing")]
pub(crate) use cluster::DecisionHook;
pub(crate) use net::LinkTestKind;
pub use net::{JoinToken, LinkReport, NodeId, NodeKey, Profile};
pub use serve::{Peer, PeerOptions, PeerStatus, QueueStatus, SharedStatus};
pub(crate) use session::RemoteDevices;
#[cfg(feature = "testing")]
pub use {fuzz::FuzzTarget, net::BareQuic, net::visit};

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::time::Duration;

/// The shortest and the longest failure timeout. Leases on locks last at most as long as it.
pub(crate) const FAILURE_TIMEOUTS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(600)];

/// Maximum bytes of one payload, a tensor or a program, for all layers.
pub(crate) const MAX_BODY: u64 = 4 << 30;

/// Returns text of another process without control characters, which could change a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a random number, for names that nobody should guess or choose twice.
fn random_number() -> Result<u64> {
    use ring::rand::SecureRandom;
    let mut bytes = [0; 8];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Diagnostic::new("the system has no random numbers").of_kind(ErrorKind::ResourceExhausted))?;
    Ok(u64::from_le_bytes(bytes))
}
