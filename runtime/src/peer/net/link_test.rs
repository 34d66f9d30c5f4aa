//! A test of a link: its round-trip time, its throughput both ways, and a verdict.
//!
//! The test runs beside everything else on the link, with the lowest priority.

use super::bulk::outgoing::OutgoingBody;
use super::key::NodeId;
use super::link::{Link, LinkStats, lock};
use super::profile::Profile;
use super::socket::SocketBuffers;
use super::wire::ControlFrame;
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How exact the test of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkTestKind {
    /// Takes about ten round trips and ten milliseconds, or the time of 40 KB if that is longer.
    /// The rates of fast links are found too low.
    Brief,
    /// Takes a fraction of a second on a fast network.
    Thorough,
}

impl LinkTestKind {
    /// Returns the number of pings, of which the fastest counts.
    fn n_pings(self) -> usize {
        match self {
            LinkTestKind::Brief => 4,
            LinkTestKind::Thorough => 16,
        }
    }

    /// Returns the lengths of the first test body and of the longest.
    fn lengths(self, profile: Profile) -> [u64; 2] {
        match (self, profile) {
            (LinkTestKind::Brief, _) => [4 << 10, 4 << 20],
            (LinkTestKind::Thorough, Profile::Wan) => [64 << 10, 4 << 20],
            (LinkTestKind::Thorough, _) => [64 << 10, 16 << 20],
        }
    }

    /// Returns how long a test body should take.
    fn long_enough(self, round_trip: Duration) -> Duration {
        match self {
            LinkTestKind::Brief => Duration::from_millis(3) + round_trip,
            LinkTestKind::Thorough => Duration::from_millis(100) + 4 * round_trip,
        }
    }

    /// Returns for how many failure timeouts the test waits for an answer.
    fn patience(self) -> u32 {
        match self {
            LinkTestKind::Brief => 1,
            LinkTestKind::Thorough => 4,
        }
    }
}

/// The maximum length of a test body that another node may ask for.
const MAX_TEST: u64 = 64 << 20;

/// The part of the number of a test body that says that the receiver asked for it. So it differs
/// from those that the sender counts for itself.
const REQUESTED: u64 = 1 << 63;

/// Tests in progress on a link.
#[derive(Default)]
pub(super) struct LinkTests {
    number: u64,
    pings: HashMap<u64, oneshot::Sender<()>>,
    /// Test bodies that this side sent for itself.
    sent: HashMap<u64, oneshot::Sender<Duration>>,
    /// Test bodies that this side asked for.
    requested: HashMap<u64, oneshot::Sender<Duration>>,
    /// The test body that the other side asked for.
    serving: Option<u64>,
}

impl LinkTests {
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(super) fn pong(&mut self, number: u64) {
        if let Some(done) = self.pings.remove(&number) {
            // A receiver that is gone has run out of time.
            let _ = done.send(());
        }
    }

    pub(super) fn result(&mut self, number: u64, elapsed: Duration) {
        if let Some(done) = self.sent.remove(&number) {
            let _ = done.send(elapsed);
        } else if self.serving == Some(number) {
            self.serving = None;
        }
    }

    pub(super) fn clear(&mut self) {
        self.pings.clear();
        self.sent.clear();
        self.requested.clear();
    }
}

/// The results of the test of a link: how fast it is, and whether that is what it should be.
///
/// ```
/// use anabranch::Session;
/// use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
///
/// let key = NodeKey::generate()?;
/// let options = PeerOptions::new(NodeKey::generate()?).listen("127.0.0.1:0".parse().unwrap());
/// let peer = Peer::serve(options.profile(Profile::Loopback).allow(key.id()))?;
/// let builder = Session::builder().node_key(key).network(Profile::Loopback);
/// let session = builder.peer(peer.address()).build()?;
/// for report in session.test_links()? {
///     println!("{report}"); // round trip 90.1µs, 10.31 Gbit/s there, and so on
///     assert!(report.sent_per_second > 0.0);
/// }
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LinkReport {
    /// The other end of the link.
    pub node: NodeId,
    /// The lowest round-trip time of a frame of a few bytes.
    pub round_trip: Duration,
    /// Bytes per second from this process to the other.
    pub sent_per_second: f64,
    /// Bytes per second from the other process to this one.
    pub received_per_second: f64,
    buffers: SocketBuffers,
    /// The counters of the link after the test.
    stats: LinkStats,
    profile: Profile,
}

impl LinkReport {
    /// Returns the time that a small message takes, for placement.
    pub(crate) fn latency(&self) -> Duration {
        self.round_trip / 2
    }

    /// Returns the bytes per second of the slower direction, for placement.
    pub(crate) fn bandwidth(&self) -> f64 {
        self.sent_per_second.min(self.received_per_second)
    }

    /// Returns the bytes that the system granted to the socket of this process, for received
    /// packets and for packets to send.
    pub fn socket_buffers(&self) -> (usize, usize) {
        (self.buffers.receive, self.buffers.send)
    }

    /// Returns the judgement of the link in a sentence: that all is well, or what is wrong and what
    /// to do.
    pub fn verdict(&self) -> String {
        let stats = &self.stats;
        if let Some(warning) = self.buffers.warning() {
            return warning;
        }
        if stats.sent_packets > 1000 && stats.lost_packets * 50 > stats.sent_packets {
            let percent = 100.0 * stats.lost_packets as f64 / stats.sent_packets as f64;
            return format!("{percent:.1} % of the packets are lost: the network or the other node is overloaded");
        }
        let limit = match self.profile {
            Profile::Loopback => Duration::from_millis(2),
            Profile::Lan => Duration::from_millis(10),
            Profile::Wan => Duration::MAX,
        };
        if self.round_trip > limit {
            let rtt = self.round_trip;
            return format!("a round trip of {rtt:.1?} is long for the profile `{}`: choose another", self.profile);
        }
        let expected = self.profile.slowest_rate();
        let directions = [(self.sent_per_second, "there"), (self.received_per_second, "back")];
        if let Some((rate, direction)) = directions.into_iter().find(|(rate, _)| *rate < expected) {
            return format!(
                "{} {direction} is slow for the profile `{}`, which expects {} at least: the network or one of the nodes \
                 is busy, or choose another profile",
                bits_per_second(rate),
                self.profile,
                bits_per_second(expected)
            );
        }
        "the link is as fast as its profile expects".to_owned()
    }
}

/// Returns a rate in bytes per second for messages, in bits.
fn bits_per_second(bytes: f64) -> String {
    match bytes * 8e-6 {
        megabits if megabits < 100.0 => format!("{megabits:.2} Mbit/s"),
        megabits => format!("{:.2} Gbit/s", megabits / 1_000.0),
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round trip {:.1?}, {} there, {} back, packets of {} bytes, {} of {} lost, socket \
             buffers of {} KiB: {}",
            self.round_trip,
            bits_per_second(self.sent_per_second),
            bits_per_second(self.received_per_second),
            self.stats.mtu,
            self.stats.lost_packets,
            self.stats.sent_packets,
            self.buffers.receive.min(self.buffers.send) >> 10,
            self.verdict(),
        )
    }
}

impl Link {
    /// Tests the link. Takes a multiple of the failure timeout at most.
    pub(super) async fn test(&self, kind: LinkTestKind, buffers: SocketBuffers) -> Result<LinkReport> {
        // The other side serves one test at a time.
        let _turn = self.0.testing.lock().await;
        let is_served = !lock(&self.0.tests).requested.is_empty();
        if self.is_silent() || is_served {
            let why = if is_served { "an earlier test of it has not ended" } else { "it has ended" };
            let message = format!("the link to {} cannot be tested: {why}", self.addr());
            return Err(Diagnostic::new(message).of_kind(ErrorKind::Unavailable));
        }
        let profile = self.0.settings.profile;
        let [first, most] = kind.lengths(profile);
        let mut round_trip = Duration::MAX;
        for _ in 0..kind.n_pings() {
            round_trip = round_trip.min(self.ping(kind).await?);
        }
        // The first bodies find out how long a body must be, and let QUIC find out how much the
        // network takes at a time.
        let long_enough = kind.long_enough(round_trip);
        let mut bytes = first;
        let mut sent = self.send_test(bytes, kind).await?;
        while sent < long_enough && bytes < most {
            bytes = (4 * bytes).min(most);
            sent = self.send_test(bytes, kind).await?;
        }
        if kind == LinkTestKind::Thorough {
            sent = self.send_test(bytes, kind).await?;
        }
        let received = self.request_test(bytes, kind).await?;
        let rate = |elapsed: Duration| bytes as f64 / elapsed.as_secs_f64().max(1e-9);
        Ok(LinkReport {
            node: self.node(),
            round_trip,
            sent_per_second: rate(sent),
            received_per_second: rate(received),
            buffers,
            stats: self.stats(),
            profile,
        })
    }

    async fn ping(&self, kind: LinkTestKind) -> Result<Duration> {
        let (done, pong) = oneshot::channel();
        let number = {
            let mut tests = lock(&self.0.tests);
            let number = tests.next();
            tests.pings.insert(number, done);
            number
        };
        let start = Instant::now();
        self.send_control(&ControlFrame::Ping(number));
        self.answer(pong, kind).await?;
        Ok(start.elapsed())
    }

    async fn send_test(&self, bytes: u64, kind: LinkTestKind) -> Result<Duration> {
        let (done, result) = oneshot::channel();
        let number = {
            let mut tests = lock(&self.0.tests);
            let number = tests.next();
            tests.sent.insert(number, done);
            number
        };
        self.queue_body(OutgoingBody::test(number, zeros(bytes)));
        self.answer(result, kind).await
    }

    async fn request_test(&self, bytes: u64, kind: LinkTestKind) -> Result<Duration> {
        let (done, result) = oneshot::channel();
        let number = {
            let mut tests = lock(&self.0.tests);
            let number = tests.next() | REQUESTED;
            tests.requested.insert(number, done);
            number
        };
        self.send_control(&ControlFrame::TestRequest { number, bytes });
        self.answer(result, kind).await
    }

    async fn answer<T>(&self, result: oneshot::Receiver<T>, kind: LinkTestKind) -> Result<T> {
        match timeout(kind.patience() * self.0.settings.failure_timeout, result).await {
            Ok(Ok(value)) if !self.is_silent() => Ok(value),
            Ok(_) => Err(Diagnostic::new(format!("the link to {} ended during its test", self.addr()))),
            Err(_) => Err(Diagnostic::new(format!("the test of the link to {} took too long", self.addr()))
                .of_kind(ErrorKind::DeadlineExceeded)),
        }
    }

    /// Sends the test body that the other side asked for.
    pub(super) fn serve_test(&self, number: u64, bytes: u64) -> Result<(), String> {
        if bytes > MAX_TEST || number & REQUESTED == 0 {
            return Err(format!("it asked for a test of {bytes} bytes with the number {number}"));
        }
        if lock(&self.0.tests).serving.replace(number).is_some() {
            return Err("it asked for two tests at a time".to_owned());
        }
        self.queue_body(OutgoingBody::test(number, zeros(bytes)));
        Ok(())
    }

    /// Reports a test body that has arrived.
    pub(super) fn test_received(&self, head: &[u8], elapsed: Duration) -> Result<(), String> {
        let number = u64::from_le_bytes(head.try_into().map_err(|_| "a test body with a wrong head")?);
        if let Some(done) = lock(&self.0.tests).requested.remove(&number) {
            let _ = done.send(elapsed);
        }
        self.send_control(&ControlFrame::TestResult { number, elapsed });
        Ok(())
    }
}

/// Returns the body of a test. All share their memory.
fn zeros(bytes: u64) -> Bytes {
    static ZEROS: OnceLock<Bytes> = OnceLock::new();
    ZEROS.get_or_init(|| vec![0; MAX_TEST as usize].into()).slice(..bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(profile: Profile, [sent_per_second, received_per_second]: [f64; 2]) -> LinkReport {
        LinkReport {
            node: NodeId::from([1; 32]),
            round_trip: Duration::from_micros(100),
            sent_per_second,
            received_per_second,
            buffers: SocketBuffers { wanted: 1, receive: 1, send: 1 },
            stats: LinkStats::default(),
            profile,
        }
    }

    #[test]
    fn a_link_that_is_slow_in_one_direction_is_not_as_fast_as_expected() {
        let fine = "the link is as fast as its profile expects";
        for profile in [Profile::Loopback, Profile::Lan, Profile::Wan] {
            let (fast, slow) = (profile.slowest_rate(), profile.slowest_rate() * 0.9);
            assert_eq!(report(profile, [fast, fast]).verdict(), fine);
            let there = report(profile, [slow, fast]).verdict();
            assert!(there.contains(" there is slow for the profile"), "{there}");
            let back = report(profile, [fast, slow]).verdict();
            assert!(back.contains(" back is slow for the profile"), "{back}");
        }
        let slow = report(Profile::Lan, [30e6, 1e3]);
        let text = slow.to_string();
        assert!(text.contains("0.24 Gbit/s there, 0.01 Mbit/s back"), "{text}");
        let verdict = "0.24 Gbit/s there is slow for the profile `lan`, which expects 0.50 Gbit/s at least";
        assert!(slow.verdict().starts_with(verdict), "{text}");
    }
}
