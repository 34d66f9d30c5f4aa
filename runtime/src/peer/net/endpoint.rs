//! The endpoint: a socket, a thread, and the links of a node.

use super::admission::{self, NotAdmitted, not_allowed};
use super::connect_error::{Attempt, in_words};
use super::driving::SharedRuntime;
use super::key::{NodeId, NodeKey};
use super::link::{Established, Link, LinkId, canonical, lock};
use super::link_test::{LinkReport, LinkTestKind};
use super::lookout::Lookout;
use super::probe::is_refused;
use super::profile::NetSettings;
use super::socket::{self, BatchLimit, SocketBuffers};
use super::tls::{CheckNode, PROTOCOL, Tls};
use super::token::{JoinToken, TokenBook};
use super::{CloseCode, NetEvents, NetOptions};
use crate::peer::FAILURE_TIMEOUTS;
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use quinn::{
    AsyncUdpSocket, ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, Runtime,
    ServerConfig, VarInt,
};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// The name that TLS wants. Keys name nodes, and it is never sent.
const SERVER_NAME: &str = "anabranch";

/// How long a shutdown waits until the other sides have heard of it.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// The endpoint of a node, with its links and the thread on which they run.
///
/// [`shutdown`](Net::shutdown), or dropping it, closes the links and ends the thread.
pub(crate) struct Net {
    core: Arc<NetCore>,
    addr: SocketAddr,
    /// The thread of the net keeps it alive.
    runtime: Weak<SharedRuntime>,
    thread: Mutex<Option<NetThread>>,
    thread_id: ThreadId,
}

struct NetThread {
    stop: oneshot::Sender<()>,
    handle: JoinHandle<()>,
}

/// All of a [`Net`] but its thread. In tests it runs on another runtime, and another socket.
pub(super) struct NetCore {
    own: NodeId,
    endpoint: Endpoint,
    tls: Tls,
    settings: NetSettings,
    buffers: SocketBuffers,
    max_handshakes: usize,
    max_links: usize,
    events: Arc<dyn NetEvents>,
    runtime: Handle,
    pub(super) lookout: Arc<Lookout>,
    links: Mutex<HashMap<LinkId, Link>>,
    /// Signals that a link has ended.
    link_ended: Notify,
    next_link: AtomicU64,
    handshakes: Mutex<Handshakes>,
    tokens: Arc<Mutex<TokenBook>>,
}

impl Net {
    /// Opens the socket and starts the thread.
    ///
    /// # Errors
    ///
    /// If the address is in use, or the system lacks a resource.
    pub(crate) fn bind(key: &NodeKey, options: NetOptions, events: Arc<dyn NetEvents>) -> Result<Arc<Net>> {
        Net::bind_with_protocol(key, options, events, PROTOCOL)
    }

    pub(super) fn bind_with_protocol(
        key: &NodeKey,
        options: NetOptions,
        events: Arc<dyn NetEvents>,
        protocol: &str,
    ) -> Result<Arc<Net>> {
        let fails = |error: std::io::Error| {
            Diagnostic::new(format!("the network thread cannot start: {error}")).of_kind(ErrorKind::ResourceExhausted)
        };
        let [shortest, longest] = FAILURE_TIMEOUTS;
        if options.failure_timeout < shortest || options.failure_timeout > longest {
            let message = format!("a failure timeout of {:?} is not possible", options.failure_timeout);
            return Err(Diagnostic::new(message).help(format!("it is between {shortest:?} and {longest:?}")));
        }
        let settings = NetSettings::new(options.profile, options.failure_timeout);
        let tls = Tls::new(key, protocol)?;
        let (socket, buffers) = socket::open(options.listen, settings.socket_buffer)?;
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(fails)?;
        let runtime = SharedRuntime::new(runtime);
        let core = {
            let _entered = runtime.runtime().enter();
            let quic = Arc::new(quinn::TokioRuntime);
            let socket = Arc::new(BatchLimit::new(quic.wrap_udp_socket(socket).map_err(fails)?, settings.max_mtu));
            NetCore::new(key, tls, settings, options, events, Transport { socket, runtime: quic, buffers })?
        };
        let lookout = Arc::clone(&core.lookout);
        core.runtime.spawn(async move { lookout.look_out().await });
        let addr = core.endpoint.local_addr().map_err(fails)?;
        let (stop, stopped) = oneshot::channel();
        let running = Arc::clone(&core);
        let weak = Arc::downgrade(&runtime);
        let handle = thread::Builder::new()
            .name("anabranch-net".to_owned())
            .spawn(move || {
                runtime.run(async move {
                    // A sender that was dropped means the same.
                    let _ = stopped.await;
                    running.shut_down().await;
                });
            })
            .map_err(fails)?;
        let thread_id = handle.thread().id();
        let thread = Mutex::new(Some(NetThread { stop, handle }));
        Ok(Arc::new(Net { core, addr, runtime: weak, thread, thread_id }))
    }

    /// Returns the address of the socket.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the settings in words, to be printed at the start.
    pub(crate) fn settings(&self) -> String {
        self.core.settings.to_string()
    }

    /// Returns what this machine should be set to for fast links, if anything.
    pub(crate) fn warning(&self) -> Option<String> {
        self.core.buffers.warning()
    }

    /// Accepts one node that proves this token.
    ///
    /// # Errors
    ///
    /// If too many tokens are in use.
    pub(crate) fn accept_token(&self, token: JoinToken) -> Result<()> {
        lock(&self.core.tokens).add(token)
    }

    /// Connects to a node, and waits until there is a link.
    ///
    /// The node must have the key `expected`, or else an allowed one, or else know the token. If
    /// this node is not allowed there, the token invites it.
    ///
    /// # Errors
    ///
    /// If nothing answers, if the other side does not admit this node, or if it is another node.
    pub(crate) fn connect(&self, addr: SocketAddr, expected: Option<NodeId>, token: Option<JoinToken>) -> Result<Link> {
        if thread::current().id() == self.thread_id {
            return Err(Diagnostic::new("the network thread cannot wait for a connection").of_kind(ErrorKind::Internal));
        }
        let (done, result) = mpsc::sync_channel(1);
        let core = Arc::clone(&self.core);
        self.core.runtime.spawn(async move {
            let _ = done.send(core.connect(addr, expected, token).await);
        });
        result.recv().unwrap_or_else(|_| Err(shut_down()))
    }

    /// Connects to a node like [`connect`](Self::connect), and calls `done` on the thread of the
    /// net.
    pub(crate) fn connect_later(
        &self,
        addr: SocketAddr,
        expected: NodeId,
        token: Option<JoinToken>,
        done: Box<dyn FnOnce(Result<Link>) + Send>,
    ) {
        let core = Arc::clone(&self.core);
        self.core.runtime.spawn(async move { done(core.connect(addr, Some(expected), token).await) });
    }

    /// Calls `f` on the thread of the net after a time, unless the net is shut down before.
    pub(crate) fn after(&self, duration: Duration, f: Box<dyn FnOnce() + Send>) {
        self.core.runtime.spawn(async move {
            tokio::time::sleep(duration).await;
            f();
        });
    }

    /// Runs the net on this thread until `poll` is ready, or for the given time. Returns `None` at
    /// once if this thread cannot or should not do so; it then waits in another way.
    pub(crate) fn drive<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<T>>,
        at_most: Duration,
    ) -> Option<Option<T>> {
        let mut begins = true;
        let poll = |context: &mut Context<'_>| {
            // Outside of the runtime, to wake the task that looks would cost a system call.
            if std::mem::take(&mut begins) {
                self.core.lookout.expect();
            }
            poll(context)
        };
        self.runtime.upgrade()?.drive(poll, at_most)
    }

    /// Says that this thread has waited in another way, since [`drive`](Self::drive) returned at
    /// once.
    pub(crate) fn waited(&self) {
        if let Some(runtime) = self.runtime.upgrade() {
            runtime.waited();
        }
    }

    /// Says that this thread waits in another way than by [`drive`](Self::drive).
    pub(crate) fn give_back(&self) {
        if let Some(runtime) = self.runtime.upgrade() {
            runtime.give_back();
        }
    }

    /// Tests how fast a link is, and waits for the result.
    ///
    /// # Errors
    ///
    /// If the link ends meanwhile.
    pub(crate) fn test_link(&self, link: &Link, kind: LinkTestKind) -> Result<LinkReport> {
        if thread::current().id() == self.thread_id {
            return Err(Diagnostic::new("the network thread cannot wait for a test").of_kind(ErrorKind::Internal));
        }
        let (done, result) = mpsc::sync_channel(1);
        let (link, buffers) = (link.clone(), self.core.buffers);
        self.core.runtime.spawn(async move {
            let _ = done.send(link.test(kind, buffers).await);
        });
        result.recv().unwrap_or_else(|_| Err(shut_down()))
    }

    #[cfg(test)]
    pub(super) fn core_for_tests(&self) -> std::sync::Weak<NetCore> {
        Arc::downgrade(&self.core)
    }

    /// Closes all links, reports them as lost, and ends the thread. Takes little more than a tenth
    /// of the failure timeout at most.
    pub(crate) fn shutdown(&self) {
        let Some(thread) = lock(&self.thread).take() else { return };
        let _ = thread.stop.send(());
        if let Some(runtime) = self.runtime.upgrade() {
            runtime.close();
        }
        // An event may have dropped the last handle; the thread then ends by itself.
        if thread::current().id() != self.thread_id {
            let _ = thread.handle.join();
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net({} at {})", self.core.own.short(), self.addr)
    }
}

fn shut_down() -> Diagnostic {
    Diagnostic::new("the network was shut down").of_kind(ErrorKind::Cancelled)
}

/// The part of an endpoint that tests replace.
pub(super) struct Transport {
    pub(super) socket: Arc<dyn AsyncUdpSocket>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) buffers: SocketBuffers,
}

/// The most links of one node that it has dialed, so that one node cannot use up all links.
const MAX_LINKS_OF_NODE: usize = 64;

impl NetCore {
    /// Creates the endpoint. The caller is in the context of the runtime that will drive it.
    pub(super) fn new(
        key: &NodeKey,
        tls: Tls,
        settings: NetSettings,
        options: NetOptions,
        events: Arc<dyn NetEvents>,
        transport: Transport,
    ) -> Result<Arc<NetCore>> {
        let tokens = Arc::new(Mutex::new(TokenBook::default()));
        for token in options.tokens {
            lock(&tokens).add(token)?;
        }
        let server = tls.server(check_client(&events, &tokens))?;
        let mut server = ServerConfig::with_crypto(Arc::new(server));
        server
            .transport_config(Arc::new(settings.transport(true)))
            .migration(false)
            .max_incoming(options.max_handshakes)
            .incoming_buffer_size(64 << 10)
            .incoming_buffer_size_total(4 << 20);
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(settings.max_mtu).map_err(|error| {
            Diagnostic::new(format!("packets of {} bytes: {error}", settings.max_mtu)).of_kind(ErrorKind::Internal)
        })?;
        let Transport { socket, runtime, buffers } = transport;
        let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime).map_err(|error| {
            Diagnostic::new(format!("the socket cannot be used: {error}")).of_kind(ErrorKind::ResourceExhausted)
        })?;
        let core = Arc::new(NetCore {
            own: key.id(),
            endpoint,
            tls,
            settings,
            buffers,
            max_handshakes: options.max_handshakes.max(1),
            max_links: options.max_links,
            events,
            runtime: Handle::current(),
            lookout: Arc::default(),
            links: Mutex::default(),
            link_ended: Notify::new(),
            next_link: AtomicU64::new(0),
            handshakes: Mutex::default(),
            tokens,
        });
        core.runtime.spawn(accept_all(Arc::clone(&core)));
        Ok(core)
    }

    /// Connects to a node, as [`Net::connect`] does.
    pub(super) async fn connect(
        self: &Arc<NetCore>,
        addr: SocketAddr,
        expected: Option<NodeId>,
        token: Option<JoinToken>,
    ) -> Result<Link> {
        if lock(&self.links).len() >= self.max_links {
            return Err(Diagnostic::new(format!("this node has {} links, its maximum", self.max_links))
                .of_kind(ErrorKind::ResourceExhausted));
        }
        let attempt = Attempt { addr, settings: &self.settings, is_dialing: true };
        let limit = self.settings.connect_timeout();
        let config = self.client_config(expected, token.is_some())?;
        let connecting =
            self.endpoint.connect_with(config, addr, SERVER_NAME).map_err(|error| attempt.cannot(error))?;
        let greeted = async {
            let connection = connecting.await.map_err(NotAdmitted::Lost)?;
            let closing = connection.clone();
            let must_prove = match expected {
                Some(_) => false,
                None => !admission::node_of(&connection).is_ok_and(|node| self.events.allows(&node)),
            };
            let greeted = admission::greet(connection, self.own, token.as_ref(), must_prove, &self.settings).await;
            greeted.inspect_err(|error| refuse(&closing, error))
        };
        let error = match timeout(limit, greeted).await {
            Ok(Ok(established)) => return Ok(self.begin_link(established)),
            Ok(Err(NotAdmitted::Lost(ConnectionError::TimedOut))) | Err(_) => None,
            Ok(Err(error)) => Some(in_words(&attempt, error)),
        };
        match error {
            Some(error) => Err(error),
            None if self.settings.probes && is_refused(addr).await => Err(attempt.nobody()),
            None => Err(attempt.no_answer()),
        }
    }

    fn client_config(&self, expected: Option<NodeId>, has_token: bool) -> Result<ClientConfig> {
        let events = Arc::clone(&self.events);
        let check: CheckNode = Arc::new(move |node| match expected {
            Some(expected) if node == expected => Ok(()),
            Some(expected) => Err(format!("the node has the key {node}, not {expected}")),
            // A node that is not allowed must prove to know the token before it becomes a link.
            None if has_token || events.allows(&node) => Ok(()),
            None => Err(format!("the node has the key {node}, which is not allowed here")),
        });
        let mut config = ClientConfig::new(Arc::new(self.tls.client(check)?));
        config.transport_config(Arc::new(self.settings.transport(false)));
        Ok(config)
    }

    /// Answers one connection: makes it a link, or refuses it.
    async fn accept(self: Arc<NetCore>, incoming: Incoming) {
        let addr = canonical(incoming.remote_address());
        let attempt = Attempt { addr, settings: &self.settings, is_dialing: false };
        let answered = async {
            let connection = incoming.accept().map_err(NotAdmitted::Lost)?.await.map_err(NotAdmitted::Lost)?;
            let closing = connection.clone();
            let is_allowed = |node: &NodeId| {
                let links = lock(&self.links).values().filter(|link| link.node() == *node).count();
                match links < MAX_LINKS_OF_NODE {
                    true => Ok(self.events.allows(node)),
                    false => Err(format!("node {node} has {links} links here, the maximum")),
                }
            };
            let answered = admission::answer(connection, self.own, &self.tokens, is_allowed, &self.settings).await;
            answered.inspect_err(|error| refuse(&closing, error))
        };
        match timeout(self.settings.connect_timeout(), answered).await {
            Ok(Ok((established, has_joined))) => {
                if has_joined {
                    self.events.joined(&established.node);
                }
                self.begin_link(established);
            }
            Ok(Err(error)) => self.events.refused(addr, &in_words(&attempt, error)),
            Err(_) => self.events.refused(addr, &attempt.no_answer()),
        }
    }

    fn begin_link(self: &Arc<NetCore>, established: Established) -> Link {
        let id = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let events = Arc::clone(&self.events);
        let drivers = (self.runtime.clone(), Arc::clone(&self.lookout));
        let (link, receive) = Link::new(id, established, events, self.settings, drivers);
        lock(&self.links).insert(id, link.clone());
        let core = Arc::clone(self);
        link.start(receive, move || {
            lock(&core.links).remove(&id);
            core.link_ended.notify_waiters();
        });
        link
    }

    /// Closes all links and waits, within limits, until the other sides know.
    pub(super) async fn shut_down(&self) {
        let reason = "its process shuts down";
        let links: Vec<Link> = lock(&self.links).values().cloned().collect();
        for link in links {
            link.close(CloseCode::SHUTDOWN, reason);
        }
        let all_ended = async {
            loop {
                let ended = self.link_ended.notified();
                if lock(&self.links).is_empty() {
                    return;
                }
                ended.await;
            }
        };
        let _ = timeout(self.settings.close_timeout() + DRAIN_TIMEOUT, all_ended).await;
        self.endpoint.close(VarInt::from_u32(CloseCode::SHUTDOWN.0), reason.as_bytes());
        let _ = timeout(DRAIN_TIMEOUT, self.endpoint.wait_idle()).await;
    }
}

/// Asks about the keys of nodes that connect.
fn check_client(events: &Arc<dyn NetEvents>, tokens: &Arc<Mutex<TokenBook>>) -> CheckNode {
    let (events, tokens) = (Arc::clone(events), Arc::clone(tokens));
    Arc::new(move |node| {
        // With tokens given out, an unknown node may go on to its greeting, which has the proof.
        match events.allows(&node) || !lock(&tokens).is_empty() {
            true => Ok(()),
            false => Err(not_allowed(node)),
        }
    })
}

/// Closes a connection that does not become a link, with the reason.
fn refuse(connection: &Connection, error: &NotAdmitted) {
    let (code, reason) = match error {
        NotAdmitted::Lost(_) => return,
        NotAdmitted::Malformed(what) => (CloseCode::VIOLATION, what),
        NotAdmitted::Refused(why) => (CloseCode::REFUSED, why),
    };
    connection.close(VarInt::from_u32(code.0), super::wire::shortened(reason).as_bytes());
}

/// Accepts connections until the endpoint is closed.
async fn accept_all(core: Arc<NetCore>) {
    while let Some(incoming) = core.endpoint.accept().await {
        let network = network_of(incoming.remote_address().ip());
        let of_network = core.max_handshakes.div_ceil(NETWORKS);
        let (handshakes, from_network) = lock(&core.handshakes).count(network);
        if handshakes >= core.max_handshakes || lock(&core.links).len() >= core.max_links {
            incoming.refuse();
        } else if (handshakes >= core.max_handshakes / 2 || from_network >= of_network / 2)
            && incoming.may_retry()
            && !incoming.remote_address_validated()
        {
            // Under load, the sender first shows that its address is not forged.
            let _ = incoming.retry();
        } else if from_network >= of_network {
            // The sender tries again by itself, and may then find room.
            incoming.ignore();
        } else {
            lock(&core.handshakes).begin(network);
            let accepting = Arc::clone(&core);
            core.runtime.spawn(async move {
                let guard = HandshakeCount(Arc::clone(&accepting), network);
                accepting.accept(incoming).await;
                drop(guard);
            });
        }
    }
}

/// The number of networks that can have connections which are not admitted yet, if each has as many
/// as it may have.
const NETWORKS: usize = 4;

/// Returns the address without the part that one sender can choose.
fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() & !u128::from(u64::MAX)).into(),
        addr => addr,
    }
}

/// The connections that are not admitted yet, by network.
#[derive(Debug, Default)]
struct Handshakes(HashMap<IpAddr, usize>);

impl Handshakes {
    /// Returns the number of all connections, and of those from a network.
    fn count(&self, network: IpAddr) -> (usize, usize) {
        (self.0.values().sum(), self.0.get(&network).copied().unwrap_or(0))
    }

    fn begin(&mut self, network: IpAddr) {
        *self.0.entry(network).or_default() += 1;
    }

    fn end(&mut self, network: IpAddr) {
        if let Some(count) = self.0.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&network);
            }
        }
    }
}

/// Counts a connection that is not admitted yet.
struct HandshakeCount(Arc<NetCore>, IpAddr);

impl Drop for HandshakeCount {
    fn drop(&mut self) {
        lock(&self.0.handshakes).end(self.1);
    }
}
