//! A process that offers its devices to sessions of other processes.

use super::address::PeerAddress;
use super::net::{JoinToken, LinkReport, LinkTestKind, Net, NetOptions, NodeId, NodeKey, Profile};
use super::node::Node;
use super::proto::frame::{DeviceEntry, GpuLimits, Hello, StatusReport};
use super::proto::host::HostLimits;
use super::server::{OfferedDevice, Server};
use super::{FAILURE_TIMEOUTS, printable, random_number};
#[cfg(feature = "gpu")]
use crate::device::DeviceSource;
use crate::device::{CpuDevice, Device, DeviceId, DeviceInfo};
use anabranch_dsl::device::{DeviceKind, DeviceName};
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a [`Peer`].
#[must_use]
pub struct PeerOptions {
    key: NodeKey,
    name: String,
    listen: SocketAddr,
    allowed: Vec<NodeId>,
    tokens: Vec<JoinToken>,
    cpus: u32,
    threads: Option<usize>,
    #[cfg(feature = "gpu")]
    gpus: Vec<crate::gpu::GpuAdapter>,
    profile: Profile,
    failure_timeout: Duration,
    limits: HostLimits,
    on_event: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerOptions").field("name", &self.name).field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// The maximum number of CPU devices of a peer.
const MAX_CPUS: u32 = 60;

impl PeerOptions {
    /// Creates the settings of a peer that listens on all addresses of this machine, at a free
    /// port, and offers one CPU device. Nobody may connect to it yet.
    pub fn new(key: NodeKey) -> PeerOptions {
        PeerOptions {
            key,
            name: "a peer".to_owned(),
            listen: SocketAddr::from(([0, 0, 0, 0], 0)),
            allowed: Vec::new(),
            tokens: Vec::new(),
            cpus: 1,
            threads: None,
            #[cfg(feature = "gpu")]
            gpus: Vec::new(),
            profile: Profile::default(),
            failure_timeout: Duration::from_secs(10),
            limits: HostLimits::default(),
            on_event: Box::new(|_| ()),
        }
    }

    /// Sets the name, for messages.
    pub fn name(self, name: &str) -> PeerOptions {
        PeerOptions { name: name.to_owned(), ..self }
    }

    /// Sets the address at which the peer listens, over UDP.
    pub fn listen(self, addr: SocketAddr) -> PeerOptions {
        PeerOptions { listen: addr, ..self }
    }

    /// Lets the node with this key open sessions. Whoever may do so can run any graph on the
    /// devices of this peer, within its limits.
    pub fn allow(mut self, node: NodeId) -> PeerOptions {
        self.allowed.push(node);
        self
    }

    /// Lets one node whose key is not known open sessions: the first that proves to know the token.
    pub fn token(mut self, token: JoinToken) -> PeerOptions {
        self.tokens.push(token);
        self
    }

    /// Sets the number of CPU devices, which share the cores of this machine.
    pub fn cpus(self, n: u32) -> PeerOptions {
        PeerOptions { cpus: n, ..self }
    }

    /// Limits the threads of all CPU devices together.
    pub fn threads(self, n: usize) -> PeerOptions {
        PeerOptions { threads: Some(n), ..self }
    }

    /// Offers a GPU.
    #[cfg(feature = "gpu")]
    pub fn gpu(mut self, adapter: &crate::gpu::GpuAdapter) -> PeerOptions {
        self.gpus.push(adapter.clone());
        self
    }

    /// Sets the kind of network. All processes of a session should have the same.
    pub fn profile(self, profile: Profile) -> PeerOptions {
        PeerOptions { profile, ..self }
    }

    /// Sets how long another process may fail to respond, from 0.1 to 600 seconds. The default is
    /// 10 s, and a link on which nothing arrives is lost after half of it.
    pub fn failure_timeout(self, timeout: Duration) -> PeerOptions {
        PeerOptions { failure_timeout: timeout, ..self }
    }

    /// Limits the bytes of variables that each session may keep at this peer, and those of all
    /// shared variables together. The default is 16 GiB.
    pub fn memory(mut self, bytes: u64) -> PeerOptions {
        self.limits.value_bytes = bytes;
        self.limits.shared_bytes = bytes;
        self
    }

    /// Limits the bytes that the steps of each session may use at once at this peer: for the values
    /// that are computed and have not been used, and for kernels that run. The default is 16 GiB.
    pub fn step_memory(mut self, bytes: u64) -> PeerOptions {
        self.limits.step_bytes = bytes;
        self
    }

    /// Limits how long a program of a session may take to load. The default is five minutes.
    pub fn load_time(mut self, limit: Duration) -> PeerOptions {
        self.limits.load_time = limit;
        self
    }

    /// Limits how long a step of a session may take. The default is one hour.
    pub fn step_time(mut self, limit: Duration) -> PeerOptions {
        self.limits.step_time = limit;
        self
    }

    /// Sets a receiver of what an operator may want to see: who joined, and who was refused. It is
    /// called on a thread of its own. If events come faster than it takes them, it hears how many
    /// were left out.
    pub fn on_event(self, receive: impl Fn(&str) + Send + Sync + 'static) -> PeerOptions {
        PeerOptions { on_event: Box::new(receive), ..self }
    }
}

/// A process that offers its devices to sessions of other processes, until it is dropped.
///
/// A session uses it by its [address](Peer::address). Both processes prove their keys to each
/// other, and all traffic is encrypted (QUIC with TLS 1.3).
///
/// ```
/// use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
/// use anabranch::{Session, prelude::*};
///
/// // In one process:
/// let (key_of_peer, key_of_session) = (NodeKey::generate()?, NodeKey::generate()?);
/// let listen = "127.0.0.1:0".parse().unwrap();
/// let options = PeerOptions::new(key_of_peer).listen(listen).profile(Profile::Loopback);
/// let peer = Peer::serve(options.allow(key_of_session.id()))?;
///
/// // In another:
/// let session = Session::builder()
///     .node_key(key_of_session)
///     .network(Profile::Loopback)
///     .peer(peer.address())
///     .build()?;
/// let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0) + 1.0)?;
/// assert_eq!(f.call([1.0, 2.0])?.as_slice(), [3.0, 5.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct Peer {
    node: Arc<Node>,
    _server: Arc<Server>,
    address: PeerAddress,
    devices: Vec<DeviceName>,
    /// How long loading a program and a step may take.
    time_limits: [Duration; 2],
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("address", &self.address).field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Peer {
    /// Begins to serve. The work is done on threads of the peer.
    ///
    /// # Errors
    /// Fails if the address is in use, if a device cannot be opened, or if there are no devices or
    /// more than 60 CPU devices.
    pub fn serve(options: PeerOptions) -> Result<Peer> {
        if options.cpus > MAX_CPUS {
            let message = format!("a peer can have at most {MAX_CPUS} CPU devices, not {}", options.cpus);
            return Err(Diagnostic::new(message).help("all CPU devices share the cores of one machine"));
        }
        let (devices, offered) = devices(&options)?;
        if devices.is_empty() {
            return Err(Diagnostic::new("a peer needs at least one device").help("set `cpus` to at least 1"));
        }
        let entry = |(info, limits): &(DeviceInfo, Option<GpuLimits>)| DeviceEntry {
            kind: info.name.kind().name().to_owned(),
            index: info.name.index(),
            flops: info.flops,
            bandwidth: info.bandwidth,
            launch: info.launch,
            limits: *limits,
        };
        let hello = Hello {
            name: options.name.clone(),
            incarnation: random_number()?,
            devices: offered.iter().map(entry).collect(),
        };
        let net = NetOptions {
            listen: Some(options.listen),
            profile: options.profile,
            failure_timeout: options.failure_timeout,
            tokens: options.tokens,
            ..NetOptions::default()
        };
        let names = offered.iter().map(|(info, _)| info.name).collect();
        let prepared = |node: &Arc<Node>| {
            options.allowed.iter().for_each(|&allowed| node.allow(allowed));
            let server = Server::new(node, devices, options.on_event);
            node.serve(&server);
            server
        };
        let limits = HostLimits { idle_link: options.failure_timeout, ..options.limits };
        let time_limits = [limits.load_time, limits.step_time];
        let (node, server) = Node::bind_with(&options.key, net, hello, limits, prepared)?;
        let address = PeerAddress::new(options.key.id(), node.net().local_addr());
        Ok(Peer { node, _server: server, address, devices: names, time_limits })
    }

    /// Returns the key of the peer and where it listens. A peer that listens on all addresses of
    /// its machine does not know which of them others can reach: use [`PeerAddress::new`] with
    /// that.
    pub fn address(&self) -> PeerAddress {
        self.address.clone()
    }

    /// Returns the names of the devices that it offers, as they are called here.
    pub fn devices(&self) -> &[DeviceName] {
        &self.devices
    }

    /// Returns the settings of its network, and a warning if the system grants less than they ask
    /// for.
    pub fn network(&self) -> (String, Option<String>) {
        let net: &Arc<Net> = self.node.net();
        (net.settings(), net.warning())
    }

    /// Returns the limits of time of what the peer does for sessions, for people.
    pub fn time_limits(&self) -> String {
        let [load, step] = self.time_limits;
        format!("a program of a session loads within {load:?}, and a step ends within {step:?}")
    }

    /// Lets one more node whose key is not known open sessions.
    pub fn accept_token(&self, token: JoinToken) -> Result<()> {
        self.node.net().accept_token(token)
    }

    /// Tells all sessions that the peer leaves, waits until they need nothing more from it, for
    /// `at_most` that long, and ends. Steps that it takes part in end first, with all processes.
    pub fn leave(self, reason: &str, at_most: Duration) {
        self.node.leave(reason, at_most);
    }
}

impl Drop for Peer {
    /// Closes all links, which ends all sessions and steps.
    fn drop(&mut self) {
        self.node.net().shutdown();
    }
}

/// A device that a peer offers: its name and rates, and the limits of a GPU.
type OfferedInfo = (DeviceInfo, Option<GpuLimits>);

/// Opens the devices that a peer offers.
fn devices(options: &PeerOptions) -> Result<(Vec<OfferedDevice>, Vec<OfferedInfo>)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(cores) / options.cpus.max(1) as usize;
    let cpu = |index: u32| {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(DeviceId::from_index(index as usize), None, threads));
        (OfferedDevice { kind: DeviceKind::Cpu, index, device }, (DeviceInfo::cpu(index), None))
    };
    #[cfg_attr(not(feature = "gpu"), expect(unused_mut, reason = "GPUs are added to it"))]
    let mut all: Vec<(OfferedDevice, OfferedInfo)> = (0..options.cpus).map(cpu).collect();
    #[cfg(feature = "gpu")]
    for (adapter, index) in options.gpus.iter().zip(0..) {
        let name = DeviceName::local(DeviceKind::Gpu, index);
        let device = crate::gpu::GpuDevice::new(DeviceId::from_index(all.len()), name, adapter)?;
        let crate::device::gpu_support::SizeLimits { max_bytes, max_iterations, has_halves } = device.size_limits();
        let limits = GpuLimits { max_bytes, max_iterations: max_iterations.map(|n| n as u64), has_halves };
        let device = OfferedDevice { kind: DeviceKind::Gpu, index, device: Arc::new(device) };
        all.push((device, (adapter.info(name), Some(limits))));
    }
    Ok(all.into_iter().unzip())
}

/// The state of a peer, as it reports it to a node that may open sessions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The name of the peer.
    pub name: String,
    /// The devices that it offers.
    pub devices: Vec<String>,
    /// The sessions that are open, of all owners.
    pub sessions: u64,
    /// The programs of these sessions.
    pub programs: u64,
    /// The programs that are loaded, and those of them that no session uses. They are kept in case
    /// a session of the same owner registers them again.
    pub loaded_programs: (u64, u64),
    /// The values of variables, and their bytes.
    pub values: (u64, u64),
    /// The steps in flight.
    pub steps: u64,
    /// The bytes that the steps of open sessions use.
    pub step_bytes: u64,
    /// The programs that are being loaded, and the steps and requests that run, also for sessions
    /// that are closed.
    pub work: u64,
    /// Bytes of inputs and messages that wait until their step takes them.
    pub buffered_bytes: u64,
    /// The number of steps for which messages wait until they begin.
    pub waiting_steps: u64,
    /// The number of messages that have arrived for steps in flight, and that these have not
    /// handled.
    pub waiting_messages: u64,
    /// The number of shared variables.
    pub shared_variables: u64,
    /// The first of them, by name.
    pub shared: Vec<SharedStatus>,
    /// The number of links to nodes that are connected.
    pub links: u64,
    /// The first of them, and what waits to be sent on each.
    pub queues: Vec<QueueStatus>,
    /// The steps of the asking node's sessions: their numbers, the operations that they have begun,
    /// and whether an operation is running. Otherwise the step waits for messages.
    pub own_steps: Vec<(u64, u64, bool)>,
    /// The smoothed round-trip time of the link between the asking node and the peer.
    pub round_trip: Duration,
    /// The packets that the asking node has sent on this link, and those that were lost.
    pub packets: (u64, u64),
    /// The results of a test of the link, if one was asked for.
    pub link: Option<LinkReport>,
}

/// The state of a shared variable at a peer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SharedStatus {
    /// The name.
    pub name: String,
    /// The type.
    pub ty: String,
    /// The bytes of the value.
    pub bytes: u64,
    /// How often it was assigned.
    pub commits: u64,
    /// The first digits of the keys of the nodes whose calls have locked it. Calls that only read
    /// it share a lock.
    pub locked_by: Vec<String>,
    /// The number of calls that wait for a lock.
    pub waiting: u32,
    /// Whether it is unknown if a commit has happened. Then nobody can read the variable.
    pub is_in_doubt: bool,
}

/// The link of a peer to a node, and what waits to be sent on it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The first digits of the node's key.
    pub node: String,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The bytes sent, and those sent per second in the last seconds.
    pub sent: (u64, u64),
    /// The packets sent, and those that were lost.
    pub packets: (u64, u64),
    /// The bytes of small messages.
    pub message_bytes: u64,
    /// The number of large values, and their bytes.
    pub values: (u64, u64),
}

impl PeerStatus {
    /// Asks a peer for its state.
    ///
    /// # Errors
    /// Fails if the peer cannot be reached, does not allow the key, or does not answer. A peer that
    /// knows the key only as that of another peer of a session tells nothing.
    ///
    /// ```no_run
    /// use anabranch::peers::{NodeKey, PeerStatus, Profile};
    /// use std::time::Duration;
    ///
    /// let key = NodeKey::load("session.key")?;
    /// let address = "8f3a…@10.0.0.2:7700".parse()?;
    /// println!("{}", PeerStatus::ask(&key, &address, Profile::Lan, Duration::from_secs(10))?);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn ask(key: &NodeKey, address: &PeerAddress, profile: Profile, timeout: Duration) -> Result<PeerStatus> {
        PeerStatus::ask_on(key, address, profile, timeout, false)
    }

    /// Asks a peer for its state like [`ask`](Self::ask), and then tests the link to it. That takes
    /// a fraction of a second on a fast network.
    ///
    /// # Errors
    /// Fails like `ask`, or if the link ends during the test.
    pub fn ask_and_test_link(
        key: &NodeKey,
        address: &PeerAddress,
        profile: Profile,
        timeout: Duration,
    ) -> Result<PeerStatus> {
        PeerStatus::ask_on(key, address, profile, timeout, true)
    }

    fn ask_on(
        key: &NodeKey,
        address: &PeerAddress,
        profile: Profile,
        timeout: Duration,
        tests_link: bool,
    ) -> Result<PeerStatus> {
        let [shortest, longest] = FAILURE_TIMEOUTS;
        let failure_timeout = timeout.clamp(shortest, longest);
        let net = NetOptions { profile, failure_timeout, ..NetOptions::default() };
        let hello = Hello { name: "a visitor".to_owned(), incarnation: random_number()?, devices: Vec::new() };
        let node = Node::bind(key, net, hello, HostLimits::NONE)?;
        let link = node.net().connect(address.socket_addr(), Some(address.node()), address.token())?;
        let answer = node.status(&link, timeout);
        let (hello, state) = answer.ok_or_else(|| {
            let message = format!("the peer {} does not answer", address.without_token());
            Diagnostic::new(message).of_kind(ErrorKind::Unavailable)
        })?;
        let StatusReport { usage, steps, is_refused, shared, n_shared, library, arrivals, queues, n_links } = state;
        if is_refused {
            let message = format!("the peer {} does not tell this node its state", address.without_token());
            let help = format!("it knows {} from a session only: allow the key there", key.id());
            return Err(Diagnostic::new(message).of_kind(ErrorKind::Unavailable).help(help));
        }
        let report = if tests_link { Some(node.net().test_link(&link, LinkTestKind::Thorough)?) } else { None };
        let shared = shared.into_iter().map(|entry| SharedStatus {
            name: printable(&entry.name),
            ty: printable(&entry.ty),
            bytes: entry.bytes,
            commits: entry.commits,
            locked_by: entry.holders.iter().map(ToString::to_string).collect(),
            waiting: entry.waiting,
            is_in_doubt: entry.is_in_doubt,
        });
        let queues = queues.into_iter().map(|queue| QueueStatus {
            node: queue.node.to_string(),
            round_trip: Duration::from_micros(queue.round_trip_us),
            sent: (queue.sent_bytes, queue.sent_per_second),
            packets: (queue.sent_packets, queue.lost_packets),
            message_bytes: queue.frame_bytes,
            values: (queue.bodies, queue.body_bytes),
        });
        let stats = link.stats();
        Ok(PeerStatus {
            name: printable(&hello.name),
            devices: hello.devices.iter().map(|of| format!("/{}:{}", printable(&of.kind), of.index)).collect(),
            sessions: usage.sessions,
            programs: usage.programs,
            loaded_programs: library,
            values: (usage.values, usage.value_bytes),
            steps: usage.steps,
            step_bytes: usage.step_bytes,
            work: usage.work,
            buffered_bytes: usage.buffered_bytes,
            waiting_steps: usage.early_steps,
            waiting_messages: arrivals,
            shared_variables: n_shared,
            shared: shared.collect(),
            links: n_links,
            queues: queues.collect(),
            own_steps: steps.iter().map(|(_, step)| (step.step.0, step.done, step.is_busy)).collect(),
            round_trip: stats.rtt,
            packets: (stats.sent_packets, stats.lost_packets),
            link: report,
        })
    }
}

impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.devices.join(", "))?;
        let (loaded, idle) = self.loaded_programs;
        writeln!(f, "  sessions {}, programs {} ({loaded} loaded, {idle} idle)", self.sessions, self.programs)?;
        writeln!(
            f,
            "  values {} ({} bytes), shared variables {}",
            self.values.0, self.values.1, self.shared_variables
        )?;
        writeln!(f, "  loads, steps and requests running {}", self.work)?;
        writeln!(
            f,
            "  steps in flight {}, with {} bytes in use and {} messages to handle; {} steps to begin, with {} bytes of \
             messages",
            self.steps, self.step_bytes, self.waiting_messages, self.waiting_steps, self.buffered_bytes
        )?;
        for SharedStatus { name, ty, bytes, commits, locked_by, waiting, is_in_doubt } in &self.shared {
            write!(f, "  shared `{name}` {ty}: {bytes} bytes, assigned {commits} times")?;
            if !locked_by.is_empty() || *waiting > 0 {
                write!(f, ", locked by {}, {waiting} calls wait", locked_by.join(" and "))?;
            }
            writeln!(f, "{}", if *is_in_doubt { ", in doubt" } else { "" })?;
        }
        for (shown, all, what) in
            [(self.shared.len(), self.shared_variables, "shared variables"), (self.queues.len(), self.links, "links")]
        {
            if (shown as u64) < all {
                writeln!(f, "  shows {shown} of {all} {what}")?;
            }
        }
        for QueueStatus { node, round_trip, sent, packets, message_bytes, values } in &self.queues {
            let ((n, bytes), (sent_bytes, rate), (sent, lost)) = (*values, *sent, *packets);
            writeln!(
                f,
                "  to {node}: round trip {round_trip:.1?}, {sent_bytes} bytes sent, {:.2} Mbit/s, {lost} of {sent} \
                 packets lost; {message_bytes} bytes of messages and {n} values ({bytes} bytes) wait",
                rate as f64 * 8e-6
            )?;
        }
        for (step, begun, is_busy) in &self.own_steps {
            let does = if *is_busy { "runs an operation" } else { "waits for messages" };
            writeln!(f, "  step {step} {does}, after {begun} operations")?;
        }
        if let Some(report) = &self.link {
            return write!(f, "  link: {report}");
        }
        let (sent, lost) = self.packets;
        write!(f, "  link: round trip {:?}, {lost} of {sent} packets lost", self.round_trip)
    }
}
