//! Addresses of peers, as users write them.

use super::net::{JoinToken, NodeId};
use anabranch_dsl::{Diagnostic, Result};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The address of a peer: its key, and where it listens.
///
/// Its text is `KEY@HOST:PORT`, as `anabranch peer` prints it. The key proves that the peer is the
/// right one, so no name or certificate is needed.
///
/// ```
/// use anabranch::peers::{NodeKey, PeerAddress};
///
/// let id = NodeKey::generate()?.id();
/// let address: PeerAddress = format!("{id}@127.0.0.1:7700").parse()?;
/// assert_eq!(address.node(), id);
/// assert!("127.0.0.1:7700".parse::<PeerAddress>().is_err());
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct PeerAddress {
    node: NodeId,
    addr: SocketAddr,
    token: Option<JoinToken>,
}

impl PeerAddress {
    /// Creates the address of the peer with a key, which listens at `addr`.
    pub fn new(node: NodeId, addr: SocketAddr) -> PeerAddress {
        PeerAddress { node, addr, token: None }
    }

    /// Sets a token with which the peer admits this process although it does not know its key.
    pub fn with_token(self, token: JoinToken) -> PeerAddress {
        PeerAddress { token: Some(token), ..self }
    }

    /// Returns the public key of the peer.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns where the peer listens.
    pub fn socket_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn token(&self) -> Option<JoinToken> {
        self.token.clone()
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.node, self.addr)
    }
}

impl FromStr for PeerAddress {
    type Err = Diagnostic;

    /// Parses an address. The host may be a name, which is looked up now.
    fn from_str(text: &str) -> Result<PeerAddress> {
        let Some((node, at)) = text.split_once('@') else {
            return Err(Diagnostic::new(format!("`{text}` is not the address of a peer: it has no `@`"))
                .help("write KEY@HOST:PORT, as the peer prints it"));
        };
        let node = node.parse()?;
        let addrs = at.to_socket_addrs().map_err(|error| {
            Diagnostic::new(format!("`{at}` is not a host and a port: {error}"))
                .help("write KEY@HOST:PORT, as the peer prints it")
        })?;
        // A peer that listens on all addresses of a machine is usually reached by IPv4.
        let mut addrs: Vec<SocketAddr> = addrs.collect();
        addrs.sort_by_key(SocketAddr::is_ipv6);
        let Some(&addr) = addrs.first() else {
            return Err(Diagnostic::new(format!("the host of `{at}` has no address")));
        };
        Ok(PeerAddress::new(node, addr))
    }
}
