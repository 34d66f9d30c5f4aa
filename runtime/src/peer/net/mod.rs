//! Links between nodes: QUIC connections that carry frames in order, and bodies beside them.
//!
//! A [`Net`] owns a UDP socket and one thread, `anabranch-net`, on which everything of it runs; a
//! thread that waits for the net may lend a hand. It knows bytes. It must never know what they
//! mean: frames of a protocol, tensors, sessions or graphs. A [`Link`] is one connection to another
//! node, which its key names.
//!
//! | file | subject |
//! |---|---|
//! | `key.rs`, `token.rs`, `tls.rs` | who a node is, how it is invited, how TLS checks both |
//! | `profile.rs`, `socket.rs` | the settings of QUIC and of the socket |
//! | `endpoint.rs`, `admission.rs`, `connect_error.rs` | from an address to a link, or to an error |
//! | `driving.rs`, `lookout.rs` | the threads that drive a net, and when they sleep |
//! | `link.rs`, `wire.rs` | frames |
//! | `bulk/` | bodies |
//! | `link_test.rs` | how fast a link is |
//! | `probe.rs` | whether a process still listens at an address |
//!
//! - Both sides of every link have proven their keys by TLS 1.3. Each was allowed by the other
//!   side's [`NetEvents::allows`], was expected at its address, or has proven a join token. There
//!   is no other mode.
//! - Nothing waits without a limit, and nothing grows without one. The time limits follow from
//!   [`NetOptions::failure_timeout`]. The limits of sizes are constants of this table:
//!
//! | limit | value |
//! |---|---|
//! | frame, head of a body | 64 KiB |
//! | body | 4 GiB |
//! | bodies received at a time on a link | 256, 8 GiB |
//! | bytes of bodies on their way to a link | 4, 32 or 64 MiB, by profile |
//! | frames that wait to be sent on a link | 16 MiB |
//! | bodies that wait to be sent on a link | 262,144 |
//! | connections that are not admitted yet | [`NetOptions::max_handshakes`], 4 KiB each |
//! | links | [`NetOptions::max_links`] |
//! | join tokens | 64 |
//!
//! - What arrives never panics. An offence against the rules ends the link with an explanation.

mod admission;
#[cfg(any(test, feature = "testing"))]
mod bare;
mod bulk;
mod connect_error;
mod driving;
mod endpoint;
#[cfg(any(test, feature = "testing"))]
pub(super) mod hostile;
mod key;
mod link;
mod link_test;
mod lookout;
#[cfg(test)]
mod measure;
mod probe;
mod profile;
#[cfg(test)]
mod simulation;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod token;
#[cfg(feature = "testing")]
mod visitor;
mod wire;

pub(crate) use bulk::{BodyPurpose, outgoing::HIGHEST_PRIORITY};
pub(crate) use endpoint::Net;
pub use key::{NodeId, NodeKey};
pub(crate) use link::{FrameLane, Link, LinkStats};
pub use link_test::LinkReport;
pub(crate) use link_test::LinkTestKind;
pub use profile::Profile;
pub use token::JoinToken;
#[cfg(feature = "testing")]
pub use {bare::BareQuic, visitor::visit};

use super::body::BodyBuffer;
use anabranch_dsl::Diagnostic;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The settings of a [`Net`].
#[derive(Clone, Debug)]
pub(crate) struct NetOptions {
    /// The address at which other nodes connect. Without one, any free port of all addresses.
    pub(crate) listen: Option<SocketAddr>,
    /// The kind of network.
    pub(crate) profile: Profile,
    /// How long a node may fail to respond until its links are lost, at most. All other time
    /// limits follow from it.
    pub(crate) failure_timeout: Duration,
    /// The maximum number of connections that are not admitted yet.
    pub(crate) max_handshakes: usize,
    /// The maximum number of links.
    pub(crate) max_links: usize,
    /// Tokens that admit nodes whose keys are not known.
    pub(crate) tokens: Vec<JoinToken>,
}

impl Default for NetOptions {
    fn default() -> NetOptions {
        NetOptions {
            listen: None,
            profile: Profile::default(),
            failure_timeout: Duration::from_secs(10),
            max_handshakes: 64,
            max_links: 1024,
            tokens: Vec::new(),
        }
    }
}

/// The layer above, as a [`Net`] calls it. Calls come from the thread of the net and must not
/// block. They may send on links, but must not wait for other events.
///
/// For each link, `connected` comes first, and `lost` comes last and once. An error of a method
/// ends the link as a violation.
pub(crate) trait NetEvents: Send + Sync {
    /// Returns whether the node may connect, or be connected to. Asked in the TLS handshake.
    fn allows(&self, node: &NodeId) -> bool;

    /// A node that was not allowed has proven a join token. It should be allowed from now on.
    fn joined(&self, node: &NodeId) {
        let _ = node;
    }

    /// A node tried to connect and was not admitted, or did not admit this one.
    fn refused(&self, addr: SocketAddr, why: &Diagnostic) {
        let _ = (addr, why);
    }

    /// There is a link, dialed by this or by the other side.
    fn connected(&self, link: &Link);

    /// A frame has arrived.
    fn frame(&self, link: &Link, head: &[u8]) -> Result<(), String>;

    /// The first bytes of a body of `len` bytes have arrived. No memory was taken for it yet. An
    /// error ends the link.
    fn bulk_begins(&self, link: &Link, head: &[u8], len: u64) -> Result<AdmittedBody, String>;

    /// A body has arrived.
    fn bulk(&self, link: &Link, head: &[u8], body: BodyBuffer) -> Result<(), String>;

    /// The other side has cancelled a body that has begun and not ended.
    fn bulk_cancelled(&self, link: &Link, head: &[u8], len: u64) {
        let _ = (link, head, len);
    }

    /// The link has ended.
    fn lost(&self, link: &Link, why: LinkLost);
}

/// The answer of the layer above to a body that has begun to arrive.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedBody {
    /// The bytes of one of its elements, for which the memory is aligned. Without it, the body is
    /// dropped as it arrives, and nothing more is said of it.
    pub(crate) element: Option<usize>,
    /// Counts the bytes as they arrive.
    pub(crate) counter: Option<Arc<AtomicU64>>,
}

/// The number with which a link is closed. The layer above defines those from 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CloseCode(pub(crate) u32);

impl CloseCode {
    /// The process shuts down.
    pub(crate) const SHUTDOWN: CloseCode = CloseCode(0);
    /// A rule was broken.
    pub(crate) const VIOLATION: CloseCode = CloseCode(1);
    /// The node is not admitted.
    pub(crate) const REFUSED: CloseCode = CloseCode(2);
}

/// The reason for the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkLost {
    /// The other side closed it.
    Closed {
        /// The number that the other side gave.
        code: CloseCode,
        /// The explanation that the other side gave.
        reason: String,
    },
    /// Nothing arrives from the other side: its process is stopped, or its machine or the network
    /// is down.
    TimedOut,
    /// The process of the other side does not listen any more: its machine has answered so.
    Refused,
    /// This side closed it, since a rule was broken.
    Violation(String),
    /// This side closed it on request.
    Local,
}
