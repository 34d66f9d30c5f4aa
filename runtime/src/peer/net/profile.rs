//! The kinds of networks, and the settings of QUIC for each of them.
//!
//! Every time limit is derived from one number, the failure timeout of the user.

use super::wire::CHUNK;
use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The kind of network between the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// All nodes are on this machine.
    Loopback,
    /// A local network: below a millisecond, 1 to 100 Gbit/s, jumbo frames if they work.
    #[default]
    Lan,
    /// The internet: up to 200 ms and a gigabit per second.
    Wan,
}

/// The settings that a profile and a failure timeout determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetSettings {
    pub(super) profile: Profile,
    /// How long a link may fail to respond before it is lost.
    pub(super) failure_timeout: Duration,
    /// The largest UDP payload that is tried.
    pub(super) max_mtu: u16,
    /// The UDP payload that works without a trial.
    pub(super) initial_mtu: u16,
    /// The round-trip time that is assumed before one is measured.
    pub(super) initial_rtt: Duration,
    /// Bytes that may be sent before the first acknowledgment.
    pub(super) initial_window: u64,
    /// Bytes of bodies on their way to this node, for each link.
    pub(super) bulk_window: u64,
    /// The size of the socket's buffers.
    pub(super) socket_buffer: usize,
    /// Whether a machine that is silent is asked if the process still listens. Networks of tests
    /// have no machines.
    pub(super) probes: bool,
}

/// Bytes of the receive window that bodies cannot fill. Frames that are not read fill at most the
/// windows of two of the three lanes, 4 MiB each, so signals always fit.
const CONTROL_WINDOW: u64 = 12 << 20;

/// The window of a connection that has not been admitted yet: its greeting and little more.
pub(super) const STRANGER_WINDOW: u32 = 4 << 10;

/// The maximum number of streams that carry chunks to this node at a time.
pub(super) const MAX_CHUNK_STREAMS: u32 = 512;

impl NetSettings {
    pub(super) fn new(profile: Profile, failure_timeout: Duration) -> NetSettings {
        let (max_mtu, initial_mtu, rtt_ms, initial_window, bulk_window, socket_buffer) = match profile {
            // A small window stays within the socket's buffer, where packets would be lost.
            Profile::Loopback => (LOOPBACK_MTU, LOOPBACK_MTU, 10, 1 << 20, 4 << 20, 8 << 20),
            // 9000 bytes of an Ethernet jumbo frame, less the headers of IPv4 and UDP.
            Profile::Lan => (8972, 1200, 20, 1 << 20, 32 << 20, 8 << 20),
            // 1500 bytes, less those of IPv6 and UDP.
            Profile::Wan => (1452, 1200, 100, 128 << 10, 64 << 20, 16 << 20),
        };
        NetSettings {
            profile,
            failure_timeout,
            max_mtu,
            initial_mtu,
            initial_rtt: Duration::from_millis(rtt_ms),
            initial_window,
            bulk_window,
            socket_buffer,
            probes: true,
        }
    }

    /// How long a link may be silent. It is lost at most one keep-alive interval later.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.failure_timeout.mul_f64(0.45)
    }

    /// How often a link that is otherwise silent sends something.
    pub(super) fn keep_alive(&self) -> Duration {
        self.failure_timeout.mul_f64(0.09)
    }

    /// How long connecting may take, from the first packet to the greeting of the other side.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.failure_timeout.mul_f64(0.5)
    }

    /// How long a link that this side ends waits for the other side to read the reason.
    pub(super) fn close_timeout(&self) -> Duration {
        self.failure_timeout.mul_f64(0.1)
    }

    /// Bytes of bodies that may be sent and not yet acknowledged: half of what QUIC takes, so that
    /// a frame of control never waits for them.
    pub(super) fn send_limit(&self) -> u64 {
        self.bulk_window
    }

    /// Returns the settings of QUIC for connections that this node opens, or accepts if `stranger`:
    /// those have small windows until they are admitted.
    pub(super) fn transport(&self, stranger: bool) -> TransportConfig {
        let mut config = TransportConfig::default();
        let idle = IdleTimeout::try_from(self.idle_timeout()).unwrap_or(IdleTimeout::from(VarInt::MAX));
        let receive_window = if stranger { VarInt::from_u32(STRANGER_WINDOW) } else { self.receive_window() };
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.max_mtu);
        let mut congestion = CubicConfig::default();
        congestion.initial_window(self.initial_window);
        let mut acks = AckFrequencyConfig::default();
        acks.ack_eliciting_threshold(VarInt::from_u32(10));
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(self.streams(stranger))
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(Some(self.keep_alive()))
            // A chunk with its head always fits.
            .stream_receive_window(VarInt::from_u32(2 * CHUNK as u32))
            .receive_window(receive_window)
            .send_window(2 * self.send_limit() + CONTROL_WINDOW)
            // Without fairness, QUIC ends a stream that it has begun before one of higher priority.
            // Chunks have different priorities, so they are sent one after the other all the same.
            .send_fairness(true)
            .initial_rtt(self.initial_rtt)
            .initial_mtu(self.initial_mtu)
            .mtu_discovery_config(Some(mtu))
            .ack_frequency_config(Some(acks))
            .datagram_receive_buffer_size(None)
            .congestion_controller_factory(Arc::new(congestion));
        config
    }

    /// The window of an admitted connection.
    pub(super) fn receive_window(&self) -> VarInt {
        // Headers of chunks count, too: less than a sixteenth of their bodies, or of the streams.
        let headers = self.bulk_window / 16 + u64::from(MAX_CHUNK_STREAMS) * (8 << 10);
        VarInt::from_u64(self.bulk_window + headers + CONTROL_WINDOW).unwrap_or(VarInt::MAX)
    }

    /// The number of streams that the other side may have open: those of frames and of chunks.
    pub(super) fn streams(&self, stranger: bool) -> VarInt {
        VarInt::from_u32(if stranger { 1 } else { MAX_CHUNK_STREAMS + 3 })
    }
}

/// The UDP payload of links within this machine. Four packets are sent at once, as many as fit.
///
/// Four are no multiple of a page. On Zen 3, the kernel's copy takes seven times as long where the
/// target is up to 31 bytes farther from the start of its page than the source. With whole pages
/// that holds for all packets, as large allocations begin 16 bytes after the start of a page.
const LOOPBACK_MTU: u16 = 16_320;

impl Profile {
    /// Returns the bytes per second in each direction below which a link is slow: 1 Gbit/s within
    /// a machine, half of that on a local network, and 10 Mbit/s over the internet.
    pub(super) fn slowest_rate(self) -> f64 {
        match self {
            Profile::Loopback => 125e6,
            Profile::Lan => 62.5e6,
            Profile::Wan => 1.25e6,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Profile::Loopback => "loopback",
            Profile::Lan => "lan",
            Profile::Wan => "wan",
        })
    }
}

impl fmt::Display for NetSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "profile {}: packets up to {} bytes, {} MiB of bodies in flight, first window {} KiB, socket buffers \
             {} MiB; a failure timeout of {:?} makes: keep-alive every {:?}, a link lost after {:?} of silence, \
             connecting within {:?}, closing within {:?}",
            self.profile,
            self.max_mtu,
            mib(self.bulk_window),
            self.initial_window >> 10,
            mib(self.socket_buffer as u64),
            self.failure_timeout,
            self.keep_alive(),
            self.idle_timeout(),
            self.connect_timeout(),
            self.close_timeout(),
        )
    }
}
