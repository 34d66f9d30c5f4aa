//! The peers that the environment of the process names.

use super::SessionBuilder;
use crate::peers::{NodeKey, PeerAddress, Profile};
use anabranch_dsl::{Diagnostic, Result};
use std::ffi::OsString;
use std::time::Duration;

/// The variable with the addresses of peers.
const PEERS: &str = "ANABRANCH_PEERS";

/// The variable with the path of the session's key.
const NODE_KEY: &str = "ANABRANCH_NODE_KEY";

/// The variable with the failure timeout, in seconds.
const FAILURE_TIMEOUT: &str = "ANABRANCH_FAILURE_TIMEOUT";

impl SessionBuilder {
    /// Adds the peers that the environment names, as `anabranch launch` sets it. Without these
    /// variables nothing changes.
    ///
    /// | variable | value |
    /// |---|---|
    /// | `ANABRANCH_PEERS` | addresses of [peers](Self::peer), separated by commas |
    /// | `ANABRANCH_NODE_KEY` | the path of the session's [key](Self::node_key) |
    /// | `ANABRANCH_FAILURE_TIMEOUT` | the [failure timeout](Self::failure_timeout) in seconds |
    ///
    /// If peers but no key are named, the key is that of this user's sessions
    /// ([`NodeKey::user_path`]), so that a peer which has admitted it once admits it again. It is
    /// made when it is missing. If there is no place for it, the session has a new key.
    ///
    /// If all peers of the session are then on loopback addresses, its [network](Self::network) is
    /// [`Loopback`](Profile::Loopback).
    ///
    /// # Errors
    /// Fails if an address or the time is invalid, or a key cannot be read.
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
        if let Some(seconds) = variable(FAILURE_TIMEOUT) {
            let seconds = seconds.to_string_lossy();
            let timeout = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let invalid = || Diagnostic::new(format!("`{seconds}` is not a number of seconds"));
            self = self.failure_timeout(timeout.ok_or_else(|| in_variable(FAILURE_TIMEOUT, invalid()))?);
        }
        if let Some(path) = variable(NODE_KEY) {
            let key = NodeKey::load(path).map_err(|error| in_variable(NODE_KEY, error))?;
            self = self.node_key(key);
        } else if !self.cluster.peers.is_empty()
            && self.cluster.key.is_none()
            && let Some(path) = NodeKey::user_path_in("session", variable)
        {
            match NodeKey::load_or_generate(&path) {
                Ok(key) => self = self.node_key(key),
                Err(error) if path.exists() => return Err(error),
                // There is no place for a key.
                Err(_) => {}
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{FAILURE_TIMEOUT, NODE_KEY, PEERS, SessionBuilder};
    use crate::peers::{NodeKey, Profile};
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn peers_and_their_network_come_from_the_variables() {
        let id = NodeKey::generate().expect("the system has random numbers").id();
        let builder = |peers: &str, key: Option<&str>| {
            SessionBuilder::default().peers_of(|name| match name {
                PEERS => Some(peers.into()),
                NODE_KEY => key.map(Into::into),
                FAILURE_TIMEOUT | "XDG_CONFIG_HOME" | "HOME" | "APPDATA" => None,
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
    #[test]
    fn the_failure_timeout_comes_from_a_variable() {
        let of = |seconds: &str| {
            let of = |name: &str| (name == FAILURE_TIMEOUT).then(|| seconds.into());
            SessionBuilder::default().peers_of(of)
        };
        assert_eq!(of("2.5").expect("this is a time").cluster.failure_timeout, Duration::from_millis(2_500));
        for wrong in ["soon", "-1", "NaN"] {
            let error = of(wrong).expect_err("this is no time");
            assert_eq!(error.message, format!("`{wrong}` is not a number of seconds"));
            assert!(error.to_string().contains(FAILURE_TIMEOUT), "{error}");
        }
    }

    #[test]
    fn sessions_of_a_user_have_one_key() {
        let id = NodeKey::generate().expect("the system has random numbers").id();
        let folder = std::env::temp_dir().join(format!("anabranch-user-{}", id.short()));
        let key = |peers: &str, folder: &Path| {
            let builder = SessionBuilder::default().peers_of(|name| match name {
                PEERS => Some(peers.into()),
                "XDG_CONFIG_HOME" => Some(folder.into()),
                _ => None,
            })?;
            Ok::<_, anabranch_dsl::Diagnostic>(builder.cluster.key.map(|key| key.id()))
        };
        let peers = format!("{id}@127.0.0.1:1");
        assert_eq!(key("", &folder).expect("no key is needed"), None);
        assert!(!folder.exists(), "without peers, no key is made");
        let first = key(&peers, &folder).expect("the key is made");
        assert_eq!(key(&peers, &folder).expect("the key is there"), first);
        let path = folder.join("anabranch").join("session.key");
        assert_eq!(first, Some(NodeKey::load(&path).expect("the key is there").id()));
        std::fs::write(&path, "no key").expect("the folder can be written");
        assert!(key(&peers, &folder).is_err(), "a key is not replaced");
        // A file in place of the folder.
        assert_eq!(key(&peers, &path).expect("another key serves"), None);
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    }
}
