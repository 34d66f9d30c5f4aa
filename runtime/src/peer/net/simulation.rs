//! A network in memory, for tests: packets are delayed, reordered, duplicated, lost and cut off, in
//! the virtual time of a paused clock. QUIC and everything above it are the real ones.
//!
//! Nothing here waits: when no task can go on, the clock jumps to the next timer.

use super::endpoint::{NetCore, Transport};
use super::profile::NetSettings;
use super::socket::SocketBuffers;
use super::tls::{PROTOCOL, Tls};
use super::{NetEvents, NetOptions, NodeKey};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The behavior of a simulated network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) delay: Duration,
    /// The maximum of a random addition to the delay, which reorders packets.
    pub(super) jitter: Duration,
    /// The share of packets that are lost.
    pub(super) loss: f64,
    /// The share of packets that arrive twice, the second time with a delay of its own.
    pub(super) duplicates: f64,
    /// Bytes per second of each receiver.
    pub(super) rate: f64,
    /// Bytes that wait for a receiver; more are lost.
    pub(super) queue: f64,
    /// The longest packet that passes.
    pub(super) mtu: usize,
}

impl Weather {
    pub(super) const FAIR: Weather = Weather {
        delay: Duration::from_millis(1),
        jitter: Duration::ZERO,
        loss: 0.0,
        duplicates: 0.0,
        rate: 1e9,
        queue: 1e7,
        mtu: 1472,
    };
}

/// A simulated network. A clone is the same network.
#[derive(Clone, Debug)]
pub(super) struct Network(Arc<Mutex<NetworkState>>);

#[derive(Debug)]
struct NetworkState {
    weather: Weather,
    /// Packets to these addresses are lost.
    cut_off: Vec<SocketAddr>,
    random: u64,
    sent: u64,
    duplicated: u64,
    inboxes: HashMap<SocketAddr, Inbox>,
}

/// Packets that are on their way to a receiver.
#[derive(Debug, Default)]
struct Inbox {
    /// By time of arrival, then by order of sending.
    packets: BTreeMap<(Instant, u64), (SocketAddr, Vec<u8>)>,
    /// The time at which the receiver's line is free again.
    free_at: Option<Instant>,
    reader: Option<Waker>,
}

impl NetworkState {
    /// Returns a random number from 0 to 1.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, packet: &[u8]) {
        let (loss, jitter) = (self.draw(), self.draw());
        let weather = self.weather;
        if loss < weather.loss || packet.len() > weather.mtu || self.cut_off.contains(&to) {
            return;
        }
        // Drawn only if it matters, so that other networks stay the same.
        if weather.duplicates > 0.0 && self.draw() < weather.duplicates {
            self.duplicated += 1;
            let jitter = self.draw();
            self.deliver(from, to, packet, jitter);
        }
        self.deliver(from, to, packet, jitter);
    }

    /// Puts a packet on the line of its receiver. `jitter` is a number from 0 to 1.
    fn deliver(&mut self, from: SocketAddr, to: SocketAddr, packet: &[u8], jitter: f64) {
        let weather = self.weather;
        self.sent += 1;
        let Some(inbox) = self.inboxes.get_mut(&to) else { return };
        let now = Instant::now();
        let start = inbox.free_at.unwrap_or(now).max(now);
        if (start - now).as_secs_f64() * weather.rate > weather.queue {
            return;
        }
        let passed = start + Duration::from_secs_f64(packet.len() as f64 / weather.rate);
        inbox.free_at = Some(passed);
        let arrival = passed + weather.delay + weather.jitter.mul_f64(jitter);
        inbox.packets.insert((arrival, self.sent), (from, packet.to_vec()));
        if let Some(reader) = inbox.reader.take() {
            reader.wake();
        }
    }
}

impl Network {
    pub(super) fn new(seed: u64, weather: Weather) -> Network {
        Network(Arc::new(Mutex::new(NetworkState {
            weather,
            cut_off: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            sent: 0,
            duplicated: 0,
            inboxes: HashMap::new(),
        })))
    }

    /// Returns the number of packets that were sent twice.
    pub(super) fn duplicated(&self) -> u64 {
        self.0.lock().unwrap().duplicated
    }

    /// Loses all packets to these addresses from now on, and no others.
    pub(super) fn cut_off(&self, addrs: &[SocketAddr]) {
        self.0.lock().unwrap().cut_off = addrs.to_vec();
    }

    /// Opens a socket at port `port` of this network.
    pub(super) fn open(&self, port: u16) -> Arc<SimulatedSocket> {
        let addr = SocketAddr::from(([10, 0, 0, 1], port));
        self.0.lock().unwrap().inboxes.insert(addr, Inbox::default());
        Arc::new(SimulatedSocket { network: self.clone(), addr, timer: Mutex::new(Box::pin(sleep(Duration::ZERO))) })
    }

    /// Starts a node at port `port` of this network.
    pub(super) fn start(
        &self,
        port: u16,
        key: &NodeKey,
        options: NetOptions,
        events: Arc<dyn NetEvents>,
    ) -> (Arc<NetCore>, SocketAddr) {
        let socket = self.open(port);
        let addr = socket.addr;
        let settings = NetSettings { probes: false, ..NetSettings::new(options.profile, options.failure_timeout) };
        let buffers = SocketBuffers { wanted: 0, receive: 0, send: 0 };
        let transport = Transport { socket, runtime: Arc::new(quinn::TokioRuntime), buffers };
        let tls = Tls::new(key, PROTOCOL).unwrap();
        (NetCore::new(key, tls, settings, options, events, transport).unwrap(), addr)
    }
}

/// Runs a test in virtual time.
pub(super) fn simulate<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}

/// Lets virtual time pass.
pub(super) async fn pass(duration: Duration) {
    sleep(duration).await;
}

/// Returns the result of a future, and the virtual time that it took.
pub(super) async fn timed<F: Future>(future: F) -> (F::Output, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}

#[derive(Debug)]
pub(super) struct SimulatedSocket {
    network: Network,
    addr: SocketAddr,
    /// Fires at the arrival of the next packet.
    timer: Mutex<Pin<Box<Sleep>>>,
}

impl AsyncUdpSocket for SimulatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let mut network = self.network.0.lock().unwrap();
        for packet in transmit.contents.chunks(transmit.segment_size.unwrap_or(transmit.contents.len()).max(1)) {
            network.send(self.addr, transmit.destination, packet);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut network = self.network.0.lock().unwrap();
        let inbox = network.inboxes.get_mut(&self.addr).unwrap();
        let mut count = 0;
        while count < buffers.len().min(meta.len()) {
            let Some(entry) = inbox.packets.first_entry().filter(|entry| entry.key().0 <= Instant::now()) else {
                break;
            };
            let (from, packet) = entry.remove();
            buffers[count][..packet.len()].copy_from_slice(&packet);
            meta[count] = RecvMeta { addr: from, len: packet.len(), stride: packet.len(), ecn: None, dst_ip: None };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        if let Some(entry) = inbox.packets.first_key_value() {
            let mut timer = self.timer.lock().unwrap();
            timer.set(sleep_until(entry.0.0));
            if timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        inbox.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn max_transmit_segments(&self) -> usize {
        10
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
