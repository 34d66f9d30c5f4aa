//! A process that speaks another version of the protocol, for tests of processes.

use super::AdmittedBody;
use super::tls::PROTOCOL;
use super::{Link, LinkLost, Net, NetEvents, NetOptions, NodeId, NodeKey, Profile};
use crate::peer::body::BodyBuffer;
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Passes on why the link was lost.
struct Visitor(Mutex<Sender<LinkLost>>);

impl NetEvents for Visitor {
    fn allows(&self, _: &NodeId) -> bool {
        false
    }

    fn connected(&self, _: &Link) {}

    fn frame(&self, _: &Link, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn bulk_begins(&self, _: &Link, _: &[u8], _: u64) -> Result<AdmittedBody, String> {
        Ok(AdmittedBody { element: Some(1), counter: None })
    }

    fn bulk(&self, _: &Link, _: &[u8], _: BodyBuffer) -> Result<(), String> {
        Ok(())
    }

    fn lost(&self, _: &Link, why: LinkLost) {
        let _ = super::link::lock(&self.0).send(why);
    }
}

/// Connects to a node on this machine with another protocol than this version's, or sends it a
/// first frame of another version. Returns why the node closed the connection.
///
/// # Errors
/// Fails if the node does not accept the connection, or does not close it.
#[doc(hidden)]
pub fn visit(key: &NodeKey, node: NodeId, addr: SocketAddr, protocol: Option<&str>, frame: Vec<u8>) -> Result<String> {
    let (sender, lost) = channel();
    let options = NetOptions { profile: Profile::Loopback, ..NetOptions::default() };
    let limit: Duration = options.failure_timeout;
    let events = Arc::new(Visitor(Mutex::new(sender)));
    let net = Net::bind_with_protocol(key, options, events, protocol.unwrap_or(PROTOCOL))?;
    net.connect(addr, Some(node), None)?.send_all(vec![frame]);
    match lost.recv_timeout(limit) {
        Ok(LinkLost::Closed { reason, .. }) => Ok(reason),
        other => {
            let message = format!("the node did not close the connection: {other:?}");
            Err(Diagnostic::new(message).of_kind(ErrorKind::DeadlineExceeded))
        }
    }
}
