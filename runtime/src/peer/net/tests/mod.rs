//! Tests of links: two nets of this process, over the loopback interface.

mod bulk;
mod frames;
mod hostile;
mod identity;
mod simulated;
mod tokens;

use super::{AdmittedBody, CloseCode, Link, LinkLost, Net, NetEvents, NetOptions, NodeId, NodeKey, Profile};
use crate::peer::body::BodyBuffer;
use anabranch_dsl::Diagnostic;
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The maximum time that a test waits for an event that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// An event of a net, recorded.
#[derive(Debug)]
enum NetEvent {
    Joined(NodeId),
    Refused(Diagnostic),
    Connected(Link),
    Frame(Vec<u8>),
    Begins(Vec<u8>, u64),
    Bulk(Vec<u8>, Vec<u8>),
    Cancelled(Vec<u8>, u64),
    Lost(LinkLost),
}

/// What a recorder answers to a frame or to the beginning of a body.
type Answer = Box<dyn Fn(&Link, &[u8]) -> Result<(), String> + Send + Sync>;

/// Records the events of a net.
struct EventRecorder {
    allowed: Mutex<HashSet<NodeId>>,
    events: Mutex<Sender<NetEvent>>,
    on_frame: Answer,
    on_begin: Answer,
}

impl EventRecorder {
    fn record(&self, event: NetEvent) {
        // A test that is over does not read the rest.
        let _ = self.events.lock().unwrap().send(event);
    }
}

impl NetEvents for EventRecorder {
    fn allows(&self, node: &NodeId) -> bool {
        self.allowed.lock().unwrap().contains(node)
    }

    fn joined(&self, node: &NodeId) {
        self.allowed.lock().unwrap().insert(*node);
        self.record(NetEvent::Joined(*node));
    }

    fn refused(&self, _: SocketAddr, why: &Diagnostic) {
        self.record(NetEvent::Refused(why.clone()));
    }

    fn connected(&self, link: &Link) {
        self.record(NetEvent::Connected(link.clone()));
    }

    fn frame(&self, link: &Link, head: &[u8]) -> Result<(), String> {
        (self.on_frame)(link, head)?;
        self.record(NetEvent::Frame(head.to_vec()));
        Ok(())
    }

    fn bulk_begins(&self, link: &Link, head: &[u8], len: u64) -> Result<AdmittedBody, String> {
        (self.on_begin)(link, head)?;
        self.record(NetEvent::Begins(head.to_vec(), len));
        Ok(AdmittedBody { element: Some(1), counter: None })
    }

    fn bulk(&self, _: &Link, head: &[u8], body: BodyBuffer) -> Result<(), String> {
        self.record(NetEvent::Bulk(head.to_vec(), body.into_elements()));
        Ok(())
    }

    fn bulk_cancelled(&self, _: &Link, head: &[u8], len: u64) {
        self.record(NetEvent::Cancelled(head.to_vec(), len));
    }

    fn lost(&self, _: &Link, why: LinkLost) {
        self.record(NetEvent::Lost(why));
    }
}

/// A node of a test: its net and its recorded events.
struct TestNode {
    net: Arc<Net>,
    recorder: Arc<EventRecorder>,
    events: Receiver<NetEvent>,
    id: NodeId,
}

/// How a node of a test differs from others.
struct Setup {
    key: NodeKey,
    options: NetOptions,
    protocol: &'static str,
    on_frame: Answer,
    on_begin: Answer,
}

impl Default for Setup {
    fn default() -> Setup {
        let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Setup {
            key: NodeKey::generate().unwrap(),
            options: NetOptions { listen, profile: Profile::Loopback, ..NetOptions::default() },
            protocol: super::tls::PROTOCOL,
            on_frame: Box::new(|_, _| Ok(())),
            on_begin: Box::new(|_, _| Ok(())),
        }
    }
}

impl Setup {
    fn start(self) -> TestNode {
        let (sender, events) = channel();
        let recorder = Arc::new(EventRecorder {
            allowed: Mutex::default(),
            events: Mutex::new(sender),
            on_frame: self.on_frame,
            on_begin: self.on_begin,
        });
        let events_of: Arc<dyn NetEvents> = recorder.clone();
        let net = Net::bind_with_protocol(&self.key, self.options, events_of, self.protocol).unwrap();
        TestNode { net, recorder, events, id: self.key.id() }
    }
}

impl TestNode {
    fn allow(&self, other: &TestNode) {
        self.recorder.allowed.lock().unwrap().insert(other.id);
    }

    fn addr(&self) -> SocketAddr {
        self.net.local_addr()
    }

    #[track_caller]
    fn next(&self) -> NetEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// Returns the link that is reported next.
    #[track_caller]
    fn linked(&self) -> Link {
        match self.next() {
            NetEvent::Connected(link) => link,
            other => panic!("{other:?} instead of a link"),
        }
    }

    /// Returns the frame that is reported next.
    #[track_caller]
    fn frame(&self) -> Vec<u8> {
        match self.next() {
            NetEvent::Frame(head) => head,
            other => panic!("{other:?} instead of a frame"),
        }
    }

    /// Returns the next body, whatever comes before it.
    #[track_caller]
    fn body(&self) -> (Vec<u8>, Vec<u8>) {
        loop {
            match self.next() {
                NetEvent::Bulk(head, body) => return (head, body),
                NetEvent::Lost(why) => panic!("{why:?} instead of a body"),
                _ => {}
            }
        }
    }

    /// Returns how the link ended, whatever comes before that.
    #[track_caller]
    fn lost(&self) -> LinkLost {
        loop {
            if let NetEvent::Lost(why) = self.next() {
                return why;
            }
        }
    }

    /// Returns why a connection was not admitted.
    #[track_caller]
    fn refused(&self) -> Diagnostic {
        match self.next() {
            NetEvent::Refused(why) => why,
            other => panic!("{other:?} instead of a refusal"),
        }
    }
}

/// Links two nodes. Returns the link as each of them has it.
#[track_caller]
fn link_nodes(client: &TestNode, server: &TestNode) -> (Link, Link) {
    server.allow(client);
    let link = client.net.connect(server.addr(), Some(server.id), None).unwrap();
    assert_eq!(client.linked().id(), link.id());
    (link, server.linked())
}

/// Two linked nodes, and the link as each of them has it.
fn linked_pair() -> (TestNode, TestNode, Link, Link) {
    let (client, server) = (Setup::default().start(), Setup::default().start());
    let (there, back) = link_nodes(&client, &server);
    (client, server, there, back)
}

/// Bytes that differ from place to place.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
