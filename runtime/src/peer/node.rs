//! A process in the network: its links, and what connects them to the state machines.
//!
//! A [`Node`] passes what the net reports to the [`Host`] and to the session that the process owns,
//! and does what these return. Invariants:
//!
//! - N1. Each state machine has one lock. Its outputs are handled in order while it is locked, so
//!   frames leave in the order in which they were returned. Nothing that is done for an output
//!   waits: work runs on other threads.
//! - N2. The lock of the host is never taken while that of a session is held. The host may take the
//!   session's.
//! - N3. State machines get a tick at the time that they ask for.

use super::body::BodyBuffer;
use super::cluster::PeerCluster;
use super::net::{AdmittedBody, BodyPurpose, CloseCode, FrameLane, HIGHEST_PRIORITY, Link, LinkLost, LinkStats};
use super::net::{Net, NetEvents, NetOptions, NodeId, NodeKey};
use super::proto::caller::{CallerInput, LinkLoss};
use super::proto::codec::{Announced, Destination, announce, decode, encode, encode_within};
use super::proto::frame::{
    FrameOrder, Hello, LinkFrame, LinkQueue, PeerKey, SessionId, StatusReport, StepNumber, WireFrame,
};
use super::proto::host::{Admission, Host, HostInput, HostLimits, HostOutput};
use super::proto::payload::FrameBody;
use super::proto::{LinkNumber, Time};
use super::rate_meter::RateMeter;
use super::server::Server;
use anabranch_dsl::Result;
use anabranch_dsl::memory::HeldBytes;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The maximum number of links in a report.
const MAX_REPORTED_LINKS: usize = 32;

/// The code with which a process closes links that are not needed or broke the protocol.
const CLOSED_BY_PROTOCOL: CloseCode = CloseCode(256);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process with links to others.
pub(super) struct Node {
    start: Instant,
    net: OnceLock<Arc<Net>>,
    links: Mutex<BTreeMap<LinkNumber, Link>>,
    /// The bytes sent on each link, for reports.
    rates: Mutex<BTreeMap<LinkNumber, RateMeter>>,
    host: Mutex<Host>,
    /// The nodes that may connect.
    allowed: Mutex<BTreeSet<NodeId>>,
    /// What the process offers to others, if anything.
    server: OnceLock<Weak<Server>>,
    /// The session that the process owns.
    cluster: OnceLock<Weak<PeerCluster>>,
    /// The time of the next tick that is set.
    next_tick: Mutex<Option<Time>>,
    /// How other processes describe themselves, by link, and reports on their state.
    hellos: Mutex<BTreeMap<LinkNumber, Hello>>,
    reports: Mutex<VecDeque<(LinkNumber, StatusReport)>>,
    reported: Condvar,
    /// Set when all work is done after the process said that it leaves.
    is_idle: Mutex<bool>,
    idle: Condvar,
}

/// The net's handle of a node.
struct NodeEvents(Weak<Node>);

/// Returns the number of a link for the state machines.
pub(super) fn number_of(link: &Link) -> LinkNumber {
    LinkNumber(link.id().0)
}

pub(super) fn key_of(node: &NodeId) -> PeerKey {
    PeerKey(*node.as_bytes())
}

/// Returns the priority of a value by the place of its first use, between 0 and 1: what is needed
/// first is sent first.
pub(super) fn priority(first_use: f32) -> i32 {
    ((1.0 - 2.0 * first_use) * HIGHEST_PRIORITY as f32) as i32
}

/// Sends a frame. Closes the link if the frame cannot be encoded.
pub(super) fn send(link: &Link, frame: WireFrame) {
    send_together(link, [(frame, 0, None)]);
}

/// Sends a frame with the priority of its body, which counts as held until it is sent.
pub(super) fn send_value(link: &Link, frame: WireFrame, priority: i32, held: Option<HeldBytes>) {
    send_together(link, [(frame, priority, held)]);
}

/// Returns what the body of a frame is sent for.
fn purpose_of(frame: &WireFrame) -> Option<BodyPurpose> {
    let (WireFrame::ToPeer { session, .. } | WireFrame::ToCaller { session, .. }) = frame else { return None };
    Some(BodyPurpose { session: session.0, step: frame.step().map(|step| step.0) })
}

/// Sends frames, each in its [order](FrameOrder), and those in order in one packet if they fit.
/// Where many frames wait, all values that are not urgent are sent as bodies: of these, more may
/// wait.
fn send_together(link: &Link, frames: impl IntoIterator<Item = (WireFrame, i32, Option<HeldBytes>)>) {
    let mut heads = Vec::new();
    let mut room = link.room();
    for (frame, priority, held) in frames {
        let (order, purpose) = (frame.order(), purpose_of(&frame));
        let may_wait = room > 0 || order == FrameOrder::Urgent;
        let encoded = if may_wait { encode(frame) } else { encode_within(frame, 0) };
        room = room.saturating_sub(encoded.as_ref().map_or(0, |encoded| encoded.head.len()));
        match encoded {
            Ok(encoded) => match encoded.body {
                None => match order {
                    FrameOrder::Urgent => link.send_beside(&encoded.head, FrameLane::Signals),
                    FrameOrder::Value => link.send_beside(&encoded.head, FrameLane::Values),
                    FrameOrder::InOrder => heads.push(encoded.head),
                },
                Some(body) => {
                    // A body follows the frames before it.
                    link.send_all(std::mem::take(&mut heads));
                    link.send_bulk(encoded.head, bytes_of(body, held), priority, purpose);
                }
            },
            Err(error) => {
                return link.close(CLOSED_BY_PROTOCOL, &format!("a frame cannot be encoded: {error}"));
            }
        }
    }
    link.send_all(heads);
}

/// Returns the bytes of a body without copying them.
fn bytes_of(body: FrameBody, held: Option<HeldBytes>) -> Bytes {
    struct HeldBody(FrameBody, #[expect(dead_code, reason = "it is dropped with the body")] Option<HeldBytes>);

    impl AsRef<[u8]> for HeldBody {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref()
        }
    }
    Bytes::from_owner(HeldBody(body, held))
}

impl Node {
    /// Joins the network with a key. `hello` describes the process to others.
    pub(super) fn bind(key: &NodeKey, options: NetOptions, hello: Hello, limits: HostLimits) -> Result<Arc<Node>> {
        Node::bind_with(key, options, hello, limits, |_| ()).map(|(node, ())| node)
    }

    /// Joins the network like [`bind`](Self::bind), after a preparation of the node.
    pub(super) fn bind_with<T>(
        key: &NodeKey,
        options: NetOptions,
        hello: Hello,
        limits: HostLimits,
        prepare: impl FnOnce(&Arc<Node>) -> T,
    ) -> Result<(Arc<Node>, T)> {
        let node = Arc::new(Node {
            start: Instant::now(),
            net: OnceLock::new(),
            links: Mutex::default(),
            rates: Mutex::default(),
            host: Mutex::new(Host::new(key_of(&key.id()), hello, limits)),
            allowed: Mutex::default(),
            server: OnceLock::new(),
            cluster: OnceLock::new(),
            next_tick: Mutex::new(None),
            hellos: Mutex::default(),
            reports: Mutex::default(),
            reported: Condvar::new(),
            is_idle: Mutex::new(false),
            idle: Condvar::new(),
        });
        let prepared = prepare(&node);
        let net = Net::bind(key, options, Arc::new(NodeEvents(Arc::downgrade(&node))))?;
        let _ = node.net.set(net);
        Ok((node, prepared))
    }

    pub(super) fn net(&self) -> &Arc<Net> {
        // The first events may come before `bind` has returned.
        self.net.wait()
    }

    pub(super) fn allow(&self, node: NodeId) {
        lock(&self.allowed).insert(node);
    }

    /// Sets what the process offers. Nothing must have arrived yet.
    pub(super) fn serve(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Sets the session of the process.
    pub(super) fn own(&self, cluster: &Arc<PeerCluster>) {
        let _ = self.cluster.set(Arc::downgrade(cluster));
    }

    pub(super) fn now(&self) -> Time {
        self.start.elapsed()
    }

    pub(super) fn link(&self, number: LinkNumber) -> Option<Link> {
        lock(&self.links).get(&number).cloned()
    }

    /// Reads how many bytes per second were sent on a link.
    fn sent_per_second(&self, link: LinkNumber, stats: &LinkStats) -> u64 {
        let (now, mut rates) = (self.now(), lock(&self.rates));
        rates.get_mut(&link).map_or(0, |rate| rate.read(now, stats.sent_bytes))
    }

    /// Adds to a report the links of this process, and what waits in their queues.
    fn with_queues(&self, report: StatusReport) -> StatusReport {
        let (links, n_links) = {
            let links = lock(&self.links);
            let first: Vec<Link> = links.values().take(MAX_REPORTED_LINKS).cloned().collect();
            (first, links.len() as u64)
        };
        let queue = |link: &Link| {
            let stats = link.stats();
            LinkQueue {
                node: key_of(&link.node()),
                round_trip_us: stats.rtt.as_micros() as u64,
                sent_bytes: stats.sent_bytes,
                sent_per_second: self.sent_per_second(number_of(link), &stats),
                sent_packets: stats.sent_packets,
                lost_packets: stats.lost_packets,
                frame_bytes: stats.queued_bytes as u64,
                bodies: stats.queued_bodies as u64,
                body_bytes: stats.queued_body_bytes,
            }
        };
        let arrivals = self.server().map_or(0, |server| server.arrivals() as u64);
        StatusReport { arrivals, queues: links.iter().map(queue).collect(), n_links, ..report }
    }

    /// Sends a frame on a link, unless the link is lost.
    pub(super) fn send(&self, number: LinkNumber, frame: WireFrame) {
        if let Some(link) = self.link(number) {
            send(&link, frame);
        }
    }

    /// Sends frames in order, except on links that are lost. Takes them out of the vector.
    pub(super) fn send_all(&self, frames: &mut Vec<(LinkNumber, WireFrame)>) {
        let mut frames = frames.drain(..).peekable();
        while let Some((number, first)) = frames.next() {
            let rest = std::iter::from_fn(|| frames.next_if(|(of, _)| *of == number)).map(|(_, frame)| frame);
            let together = std::iter::once(first).chain(rest).map(|frame| (frame, 0, None));
            match self.link(number) {
                Some(link) => send_together(&link, together),
                None => together.for_each(drop),
            }
        }
    }

    /// Forgets the bodies of a session that wait to be sent, or those of one of its steps.
    fn cancel_bodies(&self, session: SessionId, step: Option<StepNumber>) {
        let links: Vec<Link> = lock(&self.links).values().cloned().collect();
        for link in links {
            link.cancel_bodies(|purpose| {
                purpose.session == session.0 && step.is_none_or(|step| purpose.step == Some(step.0))
            });
        }
    }

    pub(super) fn close_link(&self, number: LinkNumber, reason: &str) {
        if let Some(link) = self.link(number) {
            link.close(CLOSED_BY_PROTOCOL, reason);
        }
    }

    pub(super) fn cluster(&self) -> Option<Arc<PeerCluster>> {
        self.cluster.get()?.upgrade()
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.get()?.upgrade()
    }

    /// Passes an event to the host, and does what it returns.
    pub(super) fn host(self: &Arc<Node>, input: HostInput) {
        let mut host = lock(&self.host);
        let mut inputs = VecDeque::from([input]);
        let mut outputs = Vec::new();
        while let Some(input) = inputs.pop_front() {
            host.handle(self.now(), input, &mut outputs);
            for output in outputs.drain(..) {
                self.on_output(output, &mut inputs);
            }
        }
        let deadline = host.next_deadline();
        drop(host);
        self.set_tick(deadline);
    }

    fn on_output(self: &Arc<Node>, output: HostOutput, inputs: &mut VecDeque<HostInput>) {
        match output {
            HostOutput::Report { link, report } => {
                self.send(link, WireFrame::Link(LinkFrame::StatusReport(self.with_queues(report))));
            }
            HostOutput::Send { link, frame } => self.send(link, frame),
            HostOutput::SendValue { link, frame, held } => {
                if let Some(link) = self.link(link) {
                    send_value(&link, frame, 0, held);
                }
            }
            HostOutput::CancelBodies { session, step } => self.cancel_bodies(session, step),
            HostOutput::CloseLink { link, reason } => self.close_link(link, &reason),
            HostOutput::Greeted { link, node, hello } => {
                lock(&self.hellos).insert(link, hello.clone());
                if let Some(cluster) = self.cluster() {
                    cluster.on_input(CallerInput::Linked { link, node, hello });
                }
            }
            HostOutput::Leaving { link, reason } => {
                if let Some(cluster) = self.cluster() {
                    let frame = WireFrame::Link(LinkFrame::Leave { reason });
                    cluster.on_input(CallerInput::Frame { link, frame });
                }
            }
            HostOutput::StatusReported { link, report } => {
                let mut reports = lock(&self.reports);
                reports.push_back((link, report));
                let excess = reports.len().saturating_sub(64);
                reports.drain(..excess);
                drop(reports);
                self.reported.notify_all();
            }
            HostOutput::Dial { session, process, node, addr } => {
                let (this, id) = (Arc::downgrade(self), NodeId::from(node.0));
                let done = move |link: Result<Link>| {
                    let Some(this) = this.upgrade() else { return };
                    let outcome = link.map(|_| ()).map_err(|error| error.message);
                    this.host(HostInput::Dialed { session, process, outcome });
                };
                self.net().connect_later(addr, id, None, Box::new(done));
            }
            HostOutput::Idle => {
                *lock(&self.is_idle) = true;
                self.idle.notify_all();
            }
            work => {
                // Without a server, the process is ending.
                if let Some(server) = self.server() {
                    server.on_output(work, inputs);
                }
            }
        }
    }

    /// Sets a tick for this time, unless there is an earlier one.
    pub(super) fn set_tick(self: &Arc<Node>, at: Option<Time>) {
        let Some(at) = at else { return };
        let mut next = lock(&self.next_tick);
        if next.is_some_and(|next| next <= at) {
            return;
        }
        *next = Some(at);
        drop(next);
        let this = Arc::downgrade(self);
        // Times in the past are due a little later, so that a deadline that stays does not spin.
        let wait = at.saturating_sub(self.now()).max(Duration::from_millis(1));
        let tick = move || {
            let Some(this) = this.upgrade() else { return };
            let mut next = lock(&this.next_tick);
            // A tick for an earlier time may have been set since, and has then made this one again.
            if *next != Some(at) {
                return;
            }
            *next = None;
            drop(next);
            this.tick();
        };
        self.net().after(wait, Box::new(tick));
    }

    fn tick(self: &Arc<Node>) {
        let links: Vec<Link> = lock(&self.links).values().cloned().collect();
        for link in links {
            let (link, stats) = (number_of(&link), link.stats());
            self.sent_per_second(link, &stats);
            let bytes = stats.received_body_bytes;
            self.host(HostInput::Received { link, bytes });
            if let Some(cluster) = self.cluster() {
                cluster.on_input(CallerInput::Received { link, bytes });
            }
        }
        if let Some(server) = self.server() {
            for progress in server.progress() {
                self.host(progress);
            }
        }
        self.host(HostInput::Tick);
        if let Some(cluster) = self.cluster() {
            cluster.on_input(CallerInput::Tick);
        }
    }

    /// Says that the process begins nothing new, and waits until its work is done.
    pub(super) fn leave(self: &Arc<Node>, reason: &str, at_most: Duration) {
        self.host(HostInput::Leave { reason: reason.to_owned() });
        let idle = lock(&self.is_idle);
        let wait = self.idle.wait_timeout_while(idle, at_most, |idle| !*idle);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks a process for its state.
    pub(super) fn status(&self, link: &Link, at_most: Duration) -> Option<(Hello, StatusReport)> {
        let number = number_of(link);
        let mut reports = lock(&self.reports);
        send(link, WireFrame::Link(LinkFrame::Status));
        let is_missing =
            |reports: &mut VecDeque<(LinkNumber, StatusReport)>| reports.iter().all(|(of, _)| *of != number);
        let wait = self.reported.wait_timeout_while(reports, at_most, is_missing);
        reports = wait.unwrap_or_else(PoisonError::into_inner).0;
        let at = reports.iter().position(|(of, _)| *of == number)?;
        let (_, report) = reports.remove(at)?;
        // The description came before, since frames keep their order.
        Some((lock(&self.hellos).get(&number)?.clone(), report))
    }

    fn on_frame(self: &Arc<Node>, link: &Link, head: &[u8], body: Option<BodyBuffer>) -> Result<(), String> {
        let len = body.as_ref().map_or(0, |body| body.bytes().len()) as u64;
        let frame = decode(head, body).map_err(|error| error.to_string())?;
        let link = number_of(link);
        match frame {
            WireFrame::ToCaller { .. } => {
                if let Some(cluster) = self.cluster() {
                    cluster.on_input(CallerInput::Frame { link, frame });
                }
            }
            frame => self.host(HostInput::Frame { link, frame, body: len }),
        }
        Ok(())
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(net) = self.net.get() {
            net.shutdown();
        }
    }
}

impl NodeEvents {
    fn node(&self) -> Option<Arc<Node>> {
        self.0.upgrade()
    }
}

impl NetEvents for NodeEvents {
    fn allows(&self, node: &NodeId) -> bool {
        self.node().is_some_and(|this| {
            let allowed = lock(&this.allowed).contains(node);
            allowed || lock(&this.host).introduced(&key_of(node))
        })
    }

    fn joined(&self, node: &NodeId) {
        if let Some(this) = self.node() {
            this.allow(*node);
            if let Some(server) = this.server() {
                server.joined(*node);
            }
        }
    }

    fn refused(&self, addr: SocketAddr, why: &anabranch_dsl::Diagnostic) {
        if let Some(server) = self.node().and_then(|this| this.server()) {
            server.refused(addr, why);
        }
    }

    fn connected(&self, link: &Link) {
        let Some(this) = self.node() else { return };
        lock(&this.rates).insert(number_of(link), RateMeter::new(this.now()));
        lock(&this.links).insert(number_of(link), link.clone());
        // Only a process that serves drops links that no session of others needs.
        let is_introduced = this.server.get().is_some() && !lock(&this.allowed).contains(&link.node());
        this.host(HostInput::Linked { link: number_of(link), node: key_of(&link.node()), is_introduced });
    }

    fn frame(&self, link: &Link, head: &[u8]) -> Result<(), String> {
        self.node().map_or(Ok(()), |this| this.on_frame(link, head, None))
    }

    fn bulk_begins(&self, link: &Link, head: &[u8], len: u64) -> Result<AdmittedBody, String> {
        let dropped = AdmittedBody { element: None, counter: None };
        let Some(this) = self.node() else { return Ok(dropped) };
        let Announced { to, used_by, element } = announce(head, len).map_err(|error| error.to_string())?;
        if let Destination::Caller(session) = to
            && this.cluster().is_none_or(|cluster| cluster.session() != session)
        {
            return Err("this process does not own the session".to_owned());
        }
        let step = used_by.step();
        let (admission, key) = {
            let mut host = lock(&this.host);
            let admission = host.admit(number_of(link), to, len)?;
            let key = match to {
                Destination::Peer(session) => step.and_then(|step| host.step_key(session, step)),
                Destination::Caller(_) => None,
            };
            (admission, key)
        };
        if let (Admission::Dropped, Destination::Peer(session)) = (admission, to) {
            this.host(HostInput::Discarded { link: number_of(link), session, used_by });
            return Ok(dropped);
        }
        let counter = match to {
            Destination::Peer(_) => this.server().zip(key).map(|(server, key)| server.received_by(key)),
            Destination::Caller(_) => this.cluster().zip(step).and_then(|(cluster, step)| cluster.received_by(step)),
        };
        Ok(AdmittedBody { element: Some(element), counter })
    }

    fn bulk(&self, link: &Link, head: &[u8], body: BodyBuffer) -> Result<(), String> {
        self.node().map_or(Ok(()), |this| this.on_frame(link, head, Some(body)))
    }

    fn bulk_cancelled(&self, link: &Link, head: &[u8], len: u64) {
        let Some(this) = self.node() else { return };
        if let Ok(Announced { to, .. }) = announce(head, len) {
            this.host(HostInput::Cancelled { link: number_of(link), to, len });
        }
    }

    fn lost(&self, link: &Link, why: LinkLost) {
        let Some(this) = self.node() else { return };
        let number = number_of(link);
        lock(&this.links).remove(&number);
        lock(&this.rates).remove(&number);
        lock(&this.hellos).remove(&number);
        let (reason, loss) = match why {
            LinkLost::Closed { reason, .. } => (format!("it was closed: {reason}"), LinkLoss::Closed(reason)),
            LinkLost::TimedOut => ("no packet arrives".to_owned(), LinkLoss::TimedOut),
            LinkLost::Refused => ("its process does not listen any more".to_owned(), LinkLoss::Refused),
            LinkLost::Violation(what) => (what.clone(), LinkLoss::Local(what)),
            LinkLost::Local => ("it was closed here".to_owned(), LinkLoss::Local("it is shutting down".to_owned())),
        };
        this.host(HostInput::LinkLost { link: number, reason });
        if let Some(cluster) = this.cluster() {
            cluster.on_input(CallerInput::LinkLost { link: number, loss });
        }
    }
}
