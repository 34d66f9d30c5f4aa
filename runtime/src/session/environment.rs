//! The peers that the environment of the process names.

use super::SessionBuilder;
use crate::peers::{NodeKey, PeerAddress, Profile};
use anabranch_dsl::{Diagnostic, Result};
use std::ffi::OsString;

/// The variable with the addresses of peers.
const PEERS: &str = "ANABRANCH_PEERS";

/// The variable with the path of the session's key.
const NODE_KEY: &str = "ANABRANCH_NODE_KEY";

impl SessionBuilder {
    /// Adds the peers that the environment names, as `anabranch launch` sets it. Without these
    /// variables nothing changes.
    ///
    /// | variable | value |
    /// |---|---|
    /// | `ANABRANCH_PEERS` | addresses of [peers](Self::peer), separated by commas |
    /// | `ANABRANCH_NODE_KEY` | the path of the session's [key](Self::node_key) |
    ///
    /// If all peers of the session are then on loopback addresses, its [network](Self::network) is
    /// [`Loopback`](Profile::Loopback).
    ///
    /// # Errors
    /// Fails if an address is invalid or the key cannot be read.
    ///
    /// ```
    /// use anabranch::{Session, prelude::*};
    ///
    /// let session = Session::builder().peers_of_environment()?.build()?;
    /// // The first peer, or this process if it was started by itself.
    /// let has_peer = session.devices().iter().any(|device| device.peer() == "0");
    /// let device = if has_peer { "/peer:0/cpu:0" } else { "/cpu:0" };
    /// let f = session.function(move |x: Tensor| on(device, || x * 2.0))?;
    /// assert_eq!(f.call(2.0)?, 4.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn peers_of_environment(self) -> Result<SessionBuilder> {
        self.peers_of(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Returns the number of peers that were added.
    ///
    /// ```
    /// assert_eq!(anabranch::Session::builder().n_peers(), 0);
    /// ```
    pub fn n_peers(&self) -> usize {
        self.cluster.peers.len()
    }

    fn peers_of(mut self, variable: impl Fn(&str) -> Option<OsString>) -> Result<SessionBuilder> {
        let in_variable = |name: &str, error: Diagnostic| {
            let help = format!("the environment variable {name} says so");
            if error.help.is_none() { error.help(help) } else { error }
        };
        if let Some(peers) = variable(PEERS) {
            for peer in peers.to_string_lossy().split(',').map(str::trim).filter(|peer| !peer.is_empty()) {
                let peer: PeerAddress = peer.parse().map_err(|error| in_variable(PEERS, error))?;
                self = self.peer(peer);
            }
            let peers = &self.cluster.peers;
            if !peers.is_empty() && peers.iter().all(|peer| peer.socket_addr().ip().is_loopback()) {
                self = self.network(Profile::Loopback);
            }
        }
        if let Some(path) = variable(NODE_KEY) {
            let key = NodeKey::load(path).map_err(|error| in_variable(NODE_KEY, error))?;
            self = self.node_key(key);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{NODE_KEY, PEERS, SessionBuilder};
    use crate::peers::{NodeKey, Profile};

    #[test]
    fn peers_and_their_network_come_from_the_variables() {
        let id = NodeKey::generate().expect("the system has random numbers").id();
        let builder = |peers: &str, key: Option<&str>| {
            SessionBuilder::default().peers_of(|name| match name {
                PEERS => Some(peers.into()),
                NODE_KEY => key.map(Into::into),
                other => panic!("{other} is not documented"),
            })
        };
        let local = builder(&format!("{id}@127.0.0.1:1, {id}@127.0.0.1:2,"), None).expect("both are addresses");
        assert_eq!((local.cluster.peers.len(), local.cluster.profile), (2, Profile::Loopback));
        let mixed = builder(&format!("{id}@127.0.0.1:1,{id}@192.0.2.1:2"), None).expect("both are addresses");
        assert_eq!((mixed.cluster.peers.len(), mixed.cluster.profile), (2, Profile::Lan));
        let none = builder("", None).expect("no peers are fine");
        assert_eq!((none.cluster.peers.len(), none.cluster.profile), (0, Profile::Lan));
        assert!(builder("127.0.0.1:1", None).is_err());
        let error = builder("", Some("/no/such/key")).expect_err("there is no such file");
        assert!(error.message.contains("/no/such/key"), "{error}");
    }
}
