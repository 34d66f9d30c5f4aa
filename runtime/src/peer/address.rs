//! Addresses of peers, as users write them.

use super::net::{JoinToken, NodeId};
use anabranch_dsl::{Diagnostic, Result};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The address of a peer: its key, and where it listens.
///
/// Its text is `KEY@HOST:PORT`, as `anabranch peer` prints it, or `KEY@HOST:PORT#TOKEN` with a join
/// token. The key proves that the peer is the right one, so no name or certificate is needed. Who
/// reads a token can use it: messages show an address [without it](Self::without_token).
///
/// ```
/// use anabranch::peers::{JoinToken, NodeKey, PeerAddress};
/// use std::time::Duration;
///
/// let id = NodeKey::generate()?.id();
/// let address: PeerAddress = format!("{id}@127.0.0.1:7700").parse()?;
/// assert_eq!(address.node(), id);
/// assert!("127.0.0.1:7700".parse::<PeerAddress>().is_err());
/// let token = JoinToken::generate(Duration::from_secs(600))?;
/// let invitation: PeerAddress = format!("{id}@127.0.0.1:7700#{token}").parse()?;
/// assert_eq!(invitation.to_string(), address.clone().with_token(token).to_string());
/// assert_eq!(invitation.without_token().to_string(), address.to_string());
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

    /// Returns the address without its token.
    pub fn without_token(&self) -> PeerAddress {
        PeerAddress::new(self.node, self.addr)
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
        write!(f, "{}@{}", self.node, self.addr)?;
        self.token.iter().try_for_each(|token| write!(f, "#{token}"))
    }
}

impl FromStr for PeerAddress {
    type Err = Diagnostic;

    /// Parses an address. The host may be a name, which is looked up now.
    fn from_str(text: &str) -> Result<PeerAddress> {
        let (text, token) = match text.split_once('#') {
            Some((text, token)) => (text, Some(token.parse()?)),
            None => (text, None),
        };
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
        Ok(PeerAddress { node, addr, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::net::NodeKey;
    use std::time::Duration;

    #[test]
    fn an_address_with_a_token_is_read_as_it_is_printed() -> Result<()> {
        let address = PeerAddress::new(NodeKey::generate()?.id(), SocketAddr::from(([127, 0, 0, 1], 7700)));
        let token = JoinToken::generate(Duration::from_secs(60))?;
        let text = address.clone().with_token(token.clone()).to_string();
        assert_eq!(text, format!("{address}#{token}"));
        let again: PeerAddress = text.parse()?;
        assert!(again.token() == Some(token) && again.to_string() == text);
        assert_eq!(again.without_token().to_string(), address.to_string());
        assert!(address.to_string().parse::<PeerAddress>()?.token().is_none());
        for wrong in [format!("{address}#"), format!("{text}0"), format!("{text}#"), text.replace('#', "")] {
            assert!(wrong.parse::<PeerAddress>().is_err(), "{wrong}");
        }
        // The error of a wrong address shows no secret.
        let secret = text.rsplit('-').next().unwrap_or_default();
        let error = text.replace('@', "/").parse::<PeerAddress>().expect_err("it has no `@`");
        assert!(!error.to_string().contains(secret), "{error}");
        Ok(())
    }
}
