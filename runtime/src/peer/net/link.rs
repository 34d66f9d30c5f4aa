//! A link: one connection to another node, with frames in order on each of three lanes, and bodies.
//!
//! - Each [lane](FrameLane) is a stream, and waits for no other, whatever the other side reads. All
//!   lanes have higher priorities than bodies.
//! - Sending never waits; [`Link::wait_for_room`] does. A frame is written into QUIC by the sending
//!   thread if nothing waits before it; otherwise it is queued, and a task writes the queue.
//! - Frames of a lane arrive in the order in which they were sent. Bodies arrive after the frames
//!   before them on the control lane.
//! - `lost` is called once, after `connected`, and no other event of the link follows it.
//! - The first reason for the end of a link is the one that is reported.

use super::bulk::BodyPurpose;
use super::bulk::incoming::IncomingBodies;
use super::bulk::outgoing::{BodyQueue, OutgoingBody};
use super::key::NodeId;
use super::link_test::LinkTests;
use super::lookout::Lookout;
use super::probe::is_refused;
use super::profile::NetSettings;
use super::wire::{ControlFrame, FrameSplitter, Greeting, MAX_BODY, MAX_FRAME, PREFIX, application_prefix, shortened};
use super::{CloseCode, LinkLost, NetEvents};
use crate::peer::printable;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The maximum number of bytes of frames that wait because the other side does not read.
const MAX_QUEUED: usize = 16 << 20;

/// How often a sender that waits looks for room.
const ROOM_CHECK: Duration = Duration::from_millis(1);

/// The number of reads after which a reader lets other tasks run.
const READS_AT_ONCE: usize = 16;

/// A stream of frames in each direction of a link. The variants are in the order in which a side
/// opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameLane {
    /// Frames that must stay in order, from the greeting on.
    Control,
    /// Small frames that wait for nothing but each other, and frames of the link itself.
    Signals,
    /// Values of steps that are too small for a body. Many may wait.
    Values,
}

impl FrameLane {
    const ALL: [FrameLane; 3] = [FrameLane::Control, FrameLane::Signals, FrameLane::Values];

    /// The lanes that a side opens once it has admitted the other.
    pub(super) const BESIDE: [FrameLane; 2] = [FrameLane::Signals, FrameLane::Values];

    /// Returns the priority of the stream. Bodies have lower ones.
    pub(super) fn priority(self) -> i32 {
        match self {
            FrameLane::Signals => i32::MAX,
            FrameLane::Control => i32::MAX - 1,
            FrameLane::Values => i32::MAX - 2,
        }
    }
}

impl fmt::Display for FrameLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameLane::Control => "control stream",
            FrameLane::Signals => "stream of signals",
            FrameLane::Values => "stream of values",
        })
    }
}

/// The number of a link, unique within a [`Net`](super::Net).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// Counters of a link, for logs and statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LinkStats {
    /// The smoothed round-trip time.
    pub(crate) rtt: Duration,
    /// The lowest round-trip time that was seen.
    pub(crate) min_rtt: Duration,
    /// Bytes that may be sent before an acknowledgment.
    pub(crate) congestion_window: u64,
    /// How often congestion was detected.
    pub(crate) congestion_events: u64,
    /// Packets that were sent.
    pub(crate) sent_packets: u64,
    /// Packets that were lost and sent again.
    pub(crate) lost_packets: u64,
    /// The UDP payload in use.
    pub(crate) mtu: u16,
    /// Bytes sent in UDP packets.
    pub(crate) sent_bytes: u64,
    /// Bytes received in UDP packets.
    pub(crate) received_bytes: u64,
    /// Frames of the layer above that were sent on the control stream.
    pub(crate) sent_frames: u64,
    /// Frames of the layer above that were received on the control stream.
    pub(crate) received_frames: u64,
    /// Bytes of bodies that have arrived, also of those that have not arrived as a whole.
    pub(crate) received_body_bytes: u64,
    /// Bytes of frames that wait to be sent.
    pub(crate) queued_bytes: usize,
    /// Bodies that wait to be sent or are being sent, and their bytes.
    pub(crate) queued_bodies: usize,
    pub(crate) queued_body_bytes: u64,
}

/// A connection to another node. A clone is the same link.
#[derive(Clone)]
pub(crate) struct Link(pub(super) Arc<LinkState>);

/// The streams and facts that the greetings of both sides established.
pub(super) struct Established {
    pub(super) connection: Connection,
    pub(super) node: NodeId,
    /// The streams of [`FrameLane::ALL`].
    pub(super) send: [SendStream; 3],
    /// The control stream of the other side.
    pub(super) receive: RecvStream,
    /// The greeting of the other side.
    pub(super) greeting: Greeting,
}

pub(super) struct LinkState {
    id: LinkId,
    node: NodeId,
    pub(super) connection: Connection,
    pub(super) events: Arc<dyn NetEvents>,
    pub(super) settings: NetSettings,
    pub(super) runtime: Handle,
    pub(super) lookout: Arc<Lookout>,
    /// The streams of [`FrameLane::ALL`].
    lanes: [FrameStream; 3],
    /// Frames of the control stream that were handed to the layer above.
    pub(super) received_frames: AtomicU64,
    pub(super) body_queue: Mutex<BodyQueue>,
    /// Wakes the task that sends bodies.
    pub(super) body_queued: Notify,
    pub(super) incoming: Mutex<IncomingBodies>,
    /// Wakes the readers of chunks that wait for frames or for the first chunk of their transfer.
    pub(super) progressed: Notify,
    pub(super) tests: Mutex<LinkTests>,
    /// Held by the test that this side makes.
    pub(super) testing: tokio::sync::Mutex<()>,
    /// The reason for the end, if this side ends the link or the other side announced it.
    end: Mutex<Option<LinkLost>>,
    /// Whether no event may follow but `lost`.
    silent: AtomicBool,
}

/// Locks a mutex. What it guards is consistent even after a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of frames to the other side.
struct FrameStream {
    outbox: Mutex<Outbox>,
    /// Wakes the task that writes the queue.
    queued: Notify,
}

/// The frames that wait to be written to a stream.
struct Outbox {
    stream: SendStream,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// Frames of the layer above that were written or queued.
    sent_frames: u64,
    is_closed: bool,
}

impl FrameStream {
    fn new(stream: SendStream) -> FrameStream {
        let outbox = Outbox { stream, queue: VecDeque::new(), queued_bytes: 0, sent_frames: 0, is_closed: false };
        FrameStream { outbox: Mutex::new(outbox), queued: Notify::new() }
    }

    /// Writes pieces, or queues them if the stream takes no more. They hold this many frames of the
    /// layer above. Returns whether the queue is within its limit.
    fn write(&self, pieces: &mut [Bytes], frames: u64) -> bool {
        let mut outbox = lock(&self.outbox);
        if outbox.is_closed || pieces.is_empty() {
            return true;
        }
        outbox.sent_frames += frames;
        let is_first = outbox.queue.is_empty();
        let written = match is_first {
            true => outbox.write_now(pieces),
            false => Ok(0),
        };
        let Ok(written) = written else {
            // The connection has ended, and the link is about to be reported as lost.
            outbox.close();
            return true;
        };
        if written == pieces.len() {
            return true;
        }
        for piece in &mut pieces[written..] {
            outbox.queued_bytes += piece.len();
            outbox.queue.push_back(std::mem::take(piece));
        }
        if is_first {
            self.queued.notify_one();
        }
        let is_within = outbox.queued_bytes <= MAX_QUEUED;
        if !is_within {
            outbox.close();
        }
        is_within
    }

    /// Writes queued frames as QUIC takes them.
    async fn flush(&self) {
        loop {
            self.queued.notified().await;
            let written = poll_fn(|context| lock(&self.outbox).poll_write(context)).await;
            if written.is_err() {
                return;
            }
        }
    }
}

impl Outbox {
    /// Writes pieces, before which none waits, until QUIC takes no more. Returns how many it has
    /// taken; the next one may be shorter than before.
    fn write_now(&mut self, pieces: &mut [Bytes]) -> Result<usize, WriteError> {
        let context = &mut Context::from_waker(Waker::noop());
        let mut n = 0;
        while n < pieces.len() {
            match pin!(self.stream.write_chunks(&mut pieces[n..])).poll(context) {
                Poll::Ready(written) => n += written?.chunks,
                Poll::Pending => break,
            }
        }
        Ok(n)
    }

    /// Writes until the queue is empty or QUIC takes no more.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), WriteError>> {
        let mut pieces: [Bytes; 16] = Default::default();
        while !self.queue.is_empty() {
            let count = self.queue.len().min(pieces.len());
            for (piece, queued) in pieces.iter_mut().zip(&self.queue) {
                *piece = queued.clone();
            }
            let written = ready!(pin!(self.stream.write_chunks(&mut pieces[..count])).poll(context))?;
            self.queued_bytes -= written.bytes;
            self.queue.drain(..written.chunks);
            if let (Some(first), Some(rest)) = (self.queue.front_mut(), pieces[..count].get(written.chunks)) {
                // The only piece that may have been written in part.
                *first = rest.clone();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Link {
    /// Creates the link of an admitted connection. Nothing is received before [`start`].
    pub(super) fn new(
        id: LinkId,
        established: Established,
        events: Arc<dyn NetEvents>,
        settings: NetSettings,
        (runtime, lookout): (Handle, Arc<Lookout>),
    ) -> (Link, RecvStream) {
        let Established { connection, node, send, receive, greeting } = established;
        let state = LinkState {
            id,
            node,
            connection,
            events,
            settings,
            runtime,
            lookout,
            lanes: send.map(FrameStream::new),
            received_frames: AtomicU64::new(0),
            body_queue: Mutex::new(BodyQueue::new(&greeting, settings.send_limit())),
            body_queued: Notify::new(),
            incoming: Mutex::new(IncomingBodies::new(settings.bulk_window, greeting.window)),
            progressed: Notify::new(),
            tests: Mutex::default(),
            testing: tokio::sync::Mutex::default(),
            end: Mutex::new(None),
            silent: AtomicBool::new(false),
        };
        (Link(Arc::new(state)), receive)
    }

    /// Announces the link, and runs it until it is reported as lost. Then `ended` is called.
    pub(super) fn start(&self, receive: RecvStream, ended: impl FnOnce() + Send + 'static) {
        let state = &self.0;
        state.events.connected(self);
        let mut tasks = vec![
            state.runtime.spawn(super::bulk::outgoing::send_bodies(self.clone())),
            state.runtime.spawn(super::bulk::incoming::receive_streams(self.clone())),
            state.runtime.spawn(super::bulk::incoming::watch_progress(self.clone())),
        ];
        tasks.extend(FrameLane::ALL.map(|lane| {
            let link = self.clone();
            state.runtime.spawn(async move { link.lane(lane).flush().await })
        }));
        let link = self.clone();
        state.runtime.spawn(async move {
            link.read_frames(receive, FrameLane::Control).await;
            let error = link.0.connection.closed().await;
            link.0.silent.store(true, Ordering::Relaxed);
            for task in tasks {
                task.abort();
            }
            link.0.lanes.iter().for_each(|lane| lock(&lane.outbox).close());
            link.release_bodies();
            let mut why = link.end_reason(error);
            if why == LinkLost::TimedOut && link.0.settings.probes && is_refused(link.addr()).await {
                why = LinkLost::Refused;
            }
            link.0.events.lost(&link, why);
            ended();
        });
    }

    /// Returns the number of the link.
    pub(crate) fn id(&self) -> LinkId {
        self.0.id
    }

    /// Returns the node at the other end.
    pub(crate) fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns the address of the node at the other end.
    pub(crate) fn addr(&self) -> SocketAddr {
        canonical(self.0.connection.remote_address())
    }

    /// Sends one frame; see [`send_all`](Self::send_all).
    #[cfg(test)]
    pub(crate) fn send(&self, head: Vec<u8>) {
        self.send_all(vec![head]);
    }

    /// Sends frames of at most [`MAX_FRAME`] bytes each, in one packet if they are small. Frames of
    /// a link arrive in order. Never waits: if the other side does not read and the queue is full,
    /// the link is closed.
    pub(crate) fn send_all(&self, heads: Vec<Vec<u8>>) {
        let count = heads.len() as u64;
        let mut pieces: SmallVec<[Bytes; 4]> = SmallVec::new();
        let n_bytes = heads.iter().map(|head| PREFIX + head.len().min(4096)).sum();
        let mut small = Vec::with_capacity(n_bytes);
        for head in heads {
            if head.len() > MAX_FRAME {
                return self.violated(format!("a frame of {} bytes was to be sent, more than {MAX_FRAME}", head.len()));
            }
            small.extend_from_slice(&application_prefix(head.len()));
            // One small copy is cheaper than two pieces.
            if head.len() <= 4096 {
                small.extend_from_slice(&head);
            } else {
                pieces.push(std::mem::take(&mut small).into());
                pieces.push(head.into());
            }
        }
        if !small.is_empty() {
            pieces.push(small.into());
        }
        self.write(FrameLane::Control, &mut pieces, count);
    }

    /// Sends a frame of at most [`MAX_FRAME`] bytes on a lane beside the control stream: it may
    /// arrive before frames of other lanes that were sent before it, or after later ones. Never
    /// waits, as [`send_all`](Self::send_all).
    pub(crate) fn send_beside(&self, head: &[u8], lane: FrameLane) {
        if head.len() > MAX_FRAME {
            return self.violated(format!("a frame of {} bytes was to be sent, more than {MAX_FRAME}", head.len()));
        }
        self.write(lane, &mut [Bytes::from(ControlFrame::Application(head).encode())], 1);
    }

    /// Waits while more than half of the frames that may wait to be sent do, unless `is_stopped`.
    /// Who sends many frames calls this before, so that the link is not lost because they are sent
    /// faster than they arrive. Returns at once on a thread of the net, which sends what waits.
    pub(crate) fn wait_for_room(&self, is_stopped: impl Fn() -> bool) {
        while !self.has_room() && !is_stopped() && Handle::try_current().is_err() {
            std::thread::sleep(ROOM_CHECK);
        }
    }

    /// Returns whether at most half of the frames wait that may wait to be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Returns how many bytes of frames may wait in addition, so that on each lane at most half of
    /// those wait that may.
    pub(crate) fn room(&self) -> usize {
        let queued = self.0.lanes.iter().map(|lane| lock(&lane.outbox).queued_bytes);
        (MAX_QUEUED / 2).saturating_sub(queued.max().unwrap_or(0))
    }

    fn lane(&self, lane: FrameLane) -> &FrameStream {
        &self.0.lanes[lane as usize]
    }

    /// Sends a frame of the link itself.
    pub(super) fn send_control(&self, frame: &ControlFrame<'_>) {
        self.write(FrameLane::Signals, &mut [Bytes::from(frame.encode())], 0);
    }

    /// Writes or queues pieces, which hold this many frames of the layer above.
    fn write(&self, lane: FrameLane, pieces: &mut [Bytes], frames: u64) {
        if !self.lane(lane).write(pieces, frames) {
            self.violated(format!("more than {MAX_QUEUED} bytes wait to be sent: the other side does not read"));
        }
    }

    /// Sends a head of at most [`MAX_FRAME`] bytes and a body of at most [`MAX_BODY`]. Bodies of
    /// higher priority are sent first; within a priority they are begun in order. A body arrives
    /// after the frames that were sent before it, and perhaps after later ones. One with a purpose
    /// can be [cancelled](Self::cancel_bodies).
    pub(crate) fn send_bulk(&self, head: Vec<u8>, body: Bytes, priority: i32, purpose: Option<BodyPurpose>) {
        if head.len() > MAX_FRAME || body.len() as u64 > MAX_BODY {
            let (head, body) = (head.len(), body.len());
            return self.violated(format!(
                "a head of {head} bytes and a body of {body} were to be sent, more than {MAX_FRAME} or {MAX_BODY}"
            ));
        }
        let frames_before = lock(&self.lane(FrameLane::Control).outbox).sent_frames;
        let body = OutgoingBody::new(head, frames_before, body, priority);
        self.queue_body(match purpose {
            Some(purpose) => body.for_purpose(purpose),
            None => body,
        });
    }

    /// Forgets the bodies of some purposes that wait to be sent. Those that were sent in part do
    /// not arrive either.
    pub(crate) fn cancel_bodies(&self, is_cancelled: impl Fn(BodyPurpose) -> bool) {
        let cut = lock(&self.0.body_queue).cancel(is_cancelled);
        for cancelled in cut {
            self.send_control(&ControlFrame::Cancelled(cancelled));
        }
        self.0.body_queued.notify_one();
    }

    pub(super) fn queue_body(&self, body: OutgoingBody) {
        if self.is_silent() {
            return;
        }
        match lock(&self.0.body_queue).push(body) {
            Ok(()) => self.0.body_queued.notify_one(),
            Err(reason) => self.violated(reason),
        }
    }

    /// Closes the link once the other side has received the frames that were sent before, or after
    /// a tenth of the failure timeout. Bodies that have not arrived are dropped.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        if !self.set_end(LinkLost::Local) {
            return;
        }
        self.0.silent.store(true, Ordering::Relaxed);
        // After the frames that were sent before.
        let closing = ControlFrame::Closing { code: code.0, reason: reason.to_owned() };
        self.write(FrameLane::Control, &mut [Bytes::from(closing.encode())], 0);
        lock(&self.lane(FrameLane::Control).outbox).is_closed = true;
        self.release_bodies();
        let (connection, reason) = (self.0.connection.clone(), shortened(reason).to_owned());
        let at_most = self.0.settings.close_timeout();
        self.0.runtime.spawn(async move {
            // The other side closes the connection when it has read the frame.
            let _ = tokio::time::timeout(at_most, connection.closed()).await;
            connection.close(VarInt::from_u32(code.0), reason.as_bytes());
        });
    }

    /// Closes the link at once, since one side broke a rule.
    pub(super) fn violated(&self, what: String) {
        if self.set_end(LinkLost::Violation(what.clone())) {
            self.0.silent.store(true, Ordering::Relaxed);
            self.0.connection.close(VarInt::from_u32(CloseCode::VIOLATION.0), shortened(&what).as_bytes());
        }
    }

    /// Returns counters of the link.
    pub(crate) fn stats(&self) -> LinkStats {
        let stats = self.0.connection.stats();
        let (queued_bodies, queued_body_bytes) = lock(&self.0.body_queue).depth();
        let queued_bytes = self.0.lanes.iter().map(|lane| lock(&lane.outbox).queued_bytes).sum();
        LinkStats {
            rtt: stats.path.rtt,
            min_rtt: stats.path.min_rtt,
            congestion_window: stats.path.cwnd,
            congestion_events: stats.path.congestion_events,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            mtu: stats.path.current_mtu,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            sent_frames: lock(&self.lane(FrameLane::Control).outbox).sent_frames,
            received_body_bytes: lock(&self.0.incoming).received_bytes(),
            received_frames: self.0.received_frames.load(Ordering::Relaxed),
            queued_bytes,
            queued_bodies,
            queued_body_bytes,
        }
    }

    /// Returns whether the link has ended or is about to: nothing that arrives counts any more.
    pub(super) fn is_silent(&self) -> bool {
        self.0.silent.load(Ordering::Relaxed)
    }

    /// Records the reason for the end. Returns false if there was one.
    fn set_end(&self, why: LinkLost) -> bool {
        let mut end = lock(&self.0.end);
        let is_first = end.is_none() && self.0.connection.close_reason().is_none();
        if is_first {
            *end = Some(why);
        }
        is_first
    }

    fn end_reason(&self, error: ConnectionError) -> LinkLost {
        if let Some(why) = lock(&self.0.end).take() {
            return why;
        }
        match error {
            ConnectionError::ApplicationClosed(close) => LinkLost::Closed {
                code: CloseCode(close.error_code.into_inner().try_into().unwrap_or(u32::MAX)),
                reason: printable(shortened(&String::from_utf8_lossy(&close.reason))),
            },
            ConnectionError::TimedOut => LinkLost::TimedOut,
            // The other process was replaced by one that does not know this connection.
            ConnectionError::Reset => LinkLost::Refused,
            ConnectionError::LocallyClosed => LinkLost::Local,
            error => LinkLost::Violation(printable(&error.to_string())),
        }
    }

    /// Frees the bodies of a link that ends, even while handles to it remain.
    fn release_bodies(&self) {
        lock(&self.0.body_queue).clear();
        lock(&self.0.incoming).clear();
        lock(&self.0.tests).clear();
        self.0.progressed.notify_waiters();
    }

    /// Reads a stream of frames to its end, and ends the link if that is against the rules.
    pub(super) async fn read_frames(&self, stream: RecvStream, lane: FrameLane) {
        if let Err(violation) = read_lane(self, stream, lane).await {
            self.violated(violation);
        }
    }

    /// Handles a frame of one of the streams of frames.
    fn handle(&self, bytes: &[u8], lane: FrameLane) -> Result<(), String> {
        let frame = ControlFrame::decode(bytes)?;
        if self.is_silent() && !matches!(frame, ControlFrame::Closing { .. }) {
            return Ok(());
        }
        match frame {
            ControlFrame::Application(head) => {
                self.0.events.frame(self, head)?;
                self.0.lookout.arrived();
                if lane == FrameLane::Control {
                    self.0.received_frames.fetch_add(1, Ordering::Relaxed);
                    self.0.progressed.notify_waiters();
                }
            }
            ControlFrame::Credit(credit) => {
                lock(&self.0.body_queue).add_credit(credit)?;
                self.0.body_queued.notify_one();
            }
            ControlFrame::Closing { code, reason } => {
                self.set_end(LinkLost::Closed { code: CloseCode(code), reason });
                self.0.silent.store(true, Ordering::Relaxed);
                self.0.connection.close(VarInt::from_u32(code), b"");
            }
            ControlFrame::Greeting(_) => return Err("a second greeting".to_owned()),
            ControlFrame::Ping(number) => self.send_control(&ControlFrame::Pong(number)),
            ControlFrame::Pong(number) => lock(&self.0.tests).pong(number),
            ControlFrame::TestRequest { number, bytes } => self.serve_test(number, bytes)?,
            ControlFrame::TestResult { number, elapsed } => lock(&self.0.tests).result(number, elapsed),
            ControlFrame::Cancelled(cancelled) => super::bulk::incoming::cancel(self, &cancelled)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({}, node {})", self.0.id.0, self.0.node.short())
    }
}

impl Outbox {
    /// Drops the queue. An orderly close only sets `is_closed`, until the queue is written.
    fn close(&mut self) {
        self.is_closed = true;
        self.queue.clear();
        self.queued_bytes = 0;
    }
}

/// Reads a stream of frames to its end. An error is a violation.
async fn read_lane(link: &Link, mut stream: RecvStream, lane: FrameLane) -> Result<(), String> {
    let mut frames = FrameSplitter::default();
    let mut reads = 0;
    loop {
        match stream.read_chunk(MAX_FRAME, true).await {
            Ok(Some(chunk)) => frames.split(chunk.bytes, |frame| link.handle(frame, lane))?,
            Ok(None) => return Err(format!("the {lane} ended without a reason")),
            Err(ReadError::ConnectionLost(_)) => return Ok(()),
            Err(error) => return Err(format!("the {lane} failed: {error}")),
        }
        reads += 1;
        if reads % READS_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Returns an IPv4 address as such, also if an IPv6 socket received from it.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
