//! Sending bodies: which chunk is next, and whether the other side has room for it.

use super::super::link::Link;
use super::super::link::lock;
use super::super::wire::{Cancellation, ChunkHeader, Credit, Greeting, TransferHead, chunks_of};
use super::BodyPurpose;
use bytes::Bytes;
use quinn::{SendStream, VarInt, WriteError};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use tokio::sync::watch;

/// The maximum number of bodies that wait to be sent on a link: more than the inputs of all steps
/// that a peer runs for a session.
const MAX_QUEUED_BODIES: usize = 1 << 18;

/// The bits of a stream's priority that order the chunks of bodies of equal priority.
const ORDER_BITS: u32 = 21;

/// The highest priority of a body that the priorities of streams distinguish. Its negative is the
/// lowest. Beyond, bodies are begun in the right order, and their first chunks sent in turn.
pub(crate) const HIGHEST_PRIORITY: i32 = (1 << (30 - ORDER_BITS)) - 1;

/// Returns the priority of the stream of a chunk: the lower, the later it was begun.
fn stream_priority(body_priority: i32, chunk: u64) -> i32 {
    let order = (1 << ORDER_BITS) - 1 - (chunk % (1 << ORDER_BITS)) as i32;
    (body_priority.clamp(-HIGHEST_PRIORITY, HIGHEST_PRIORITY) << ORDER_BITS) + order
}

/// A body that is sent or waits to be.
pub(in super::super) struct OutgoingBody {
    priority: i32,
    /// The order of `send_bulk`.
    sequence: u64,
    is_test: bool,
    head: Vec<u8>,
    frames_before: u64,
    body: Bytes,
    purpose: Option<BodyPurpose>,
    /// Becomes true when the body is cancelled, if it has begun and has a purpose.
    cancelled: Option<watch::Receiver<bool>>,
    /// The number of the transfer, if it has begun.
    transfer: u64,
    next_chunk: u32,
}

impl OutgoingBody {
    pub(in super::super) fn new(head: Vec<u8>, frames_before: u64, body: Bytes, priority: i32) -> OutgoingBody {
        OutgoingBody {
            priority,
            sequence: 0,
            is_test: false,
            head,
            frames_before,
            body,
            purpose: None,
            cancelled: None,
            transfer: 0,
            next_chunk: 0,
        }
    }

    pub(in super::super) fn for_purpose(self, purpose: BodyPurpose) -> OutgoingBody {
        OutgoingBody { purpose: Some(purpose), ..self }
    }

    /// A body that the other side only measures.
    pub(in super::super) fn test(number: u64, body: Bytes) -> OutgoingBody {
        let head = number.to_le_bytes().to_vec();
        OutgoingBody { is_test: true, ..OutgoingBody::new(head, 0, body, i32::MIN) }
    }

    fn len(&self) -> u64 {
        self.body.len() as u64
    }

    fn header(&self) -> ChunkHeader {
        ChunkHeader {
            is_test: self.is_test,
            transfer: self.transfer,
            chunk: self.next_chunk,
            total: self.body.len() as u64,
        }
    }
}

// Heaps yield the highest priority, and of equal ones the oldest.
impl Ord for OutgoingBody {
    fn cmp(&self, other: &OutgoingBody) -> Ordering {
        (self.priority, Reverse(self.sequence)).cmp(&(other.priority, Reverse(other.sequence)))
    }
}

impl PartialOrd for OutgoingBody {
    fn partial_cmp(&self, other: &OutgoingBody) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OutgoingBody {
    fn eq(&self, other: &OutgoingBody) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OutgoingBody {}

/// A chunk to be sent now.
pub(super) struct OutgoingChunk {
    /// The priority of its stream.
    priority: i32,
    /// Becomes true when the body is cancelled.
    cancelled: Option<watch::Receiver<bool>>,
    /// The header, for a first chunk the head, and the bytes.
    pub(super) pieces: [Bytes; 3],
}

/// A transfer that has begun and may be cancelled.
struct CancellableTransfer {
    purpose: BodyPurpose,
    /// The transfer as it would be cancelled now.
    state: Cancellation,
    cancel: watch::Sender<bool>,
}

/// The bodies that a link has to send, and the room that the other side has for them.
///
/// - `begun` holds the transfers of which some chunks were sent, `waiting` those without any.
/// - What was sent minus what the other side reported never exceeds a limit.
pub(in super::super) struct BodyQueue {
    waiting: BinaryHeap<OutgoingBody>,
    begun: BinaryHeap<OutgoingBody>,
    /// The transfers with a purpose of which a chunk is not sent or not acknowledged.
    cancellable: Vec<CancellableTransfer>,
    sequence: u64,
    /// The number of chunks that were sent.
    chunks: u64,
    /// Bytes of chunks, transfers begun, and the sum of their lengths.
    sent: Credit,
    /// The same, as the other side has reported them.
    credit: Credit,
    window: u64,
    open_bytes: u64,
    open_transfers: u64,
    is_closed: bool,
}

impl BodyQueue {
    /// Returns the number of bodies that are not sent as a whole, and their bytes.
    pub(in super::super) fn depth(&self) -> (usize, u64) {
        let bodies = self.waiting.iter().chain(&self.begun);
        bodies.fold((0, 0), |(n, bytes), body| (n + 1, bytes + body.body.len() as u64))
    }

    pub(in super::super) fn new(greeting: &Greeting, send_limit: u64) -> BodyQueue {
        BodyQueue {
            waiting: BinaryHeap::new(),
            begun: BinaryHeap::new(),
            cancellable: Vec::new(),
            sequence: 0,
            chunks: 0,
            sent: Credit::default(),
            credit: Credit::default(),
            window: greeting.window.min(send_limit),
            open_bytes: greeting.open_bytes,
            open_transfers: u64::from(greeting.open_transfers),
            is_closed: false,
        }
    }

    pub(in super::super) fn push(&mut self, mut body: OutgoingBody) -> Result<(), String> {
        if self.is_closed {
            return Ok(());
        }
        if self.waiting.len() == MAX_QUEUED_BODIES {
            return Err(format!("more than {MAX_QUEUED_BODIES} bodies wait to be sent"));
        }
        body.sequence = self.sequence;
        self.sequence += 1;
        self.waiting.push(body);
        Ok(())
    }

    /// Adds what the other side has received. Totals that were never sent are a violation.
    pub(in super::super) fn add_credit(&mut self, credit: Credit) -> Result<(), String> {
        let between = |low: u64, value: u64, high: u64| (low..=high).contains(&value);
        let is_valid = between(self.credit.bytes, credit.bytes, self.sent.bytes)
            && between(self.credit.transfers, credit.transfers, self.sent.transfers)
            && between(self.credit.transfer_bytes, credit.transfer_bytes, self.sent.transfer_bytes);
        if !is_valid {
            return Err("it reported bodies that were not sent".to_owned());
        }
        self.credit = credit;
        Ok(())
    }

    /// Forgets the bodies of some purposes. Returns what to tell the other side of those that have
    /// begun.
    pub(in super::super) fn cancel(&mut self, is_cancelled: impl Fn(BodyPurpose) -> bool) -> Vec<Cancellation> {
        let cut = self.cancellable.extract_if(.., |transfer| is_cancelled(transfer.purpose));
        // Without receivers, all of it has arrived.
        let cut = cut.filter(|transfer| transfer.cancel.send(true).is_ok());
        let cut = cut.map(|transfer| transfer.state).collect();
        let is_kept = |body: &OutgoingBody| !body.purpose.is_some_and(&is_cancelled);
        self.waiting.retain(is_kept);
        self.begun.retain(is_kept);
        cut
    }

    pub(in super::super) fn clear(&mut self) {
        self.is_closed = true;
        self.waiting.clear();
        self.begun.clear();
        self.cancellable.clear();
    }

    /// Returns whether there is a chunk to send and room for it.
    fn has_next(&self) -> bool {
        self.choice().is_some()
    }

    /// Returns whether the next chunk begins a transfer, if there is one that may be sent.
    fn choice(&self) -> Option<bool> {
        let waiting = self.waiting.peek().filter(|body| self.may_begin(body));
        let (body, begins) = match (waiting, self.begun.peek()) {
            (Some(waiting), Some(begun)) if waiting > begun => (waiting, true),
            // A transfer that has begun takes room, so it must be able to end.
            (_, Some(begun)) => (begun, false),
            (Some(waiting), None) => (waiting, true),
            (None, None) => return None,
        };
        let in_flight = self.sent.bytes - self.credit.bytes;
        (in_flight + body.header().len() <= self.window).then_some(begins)
    }

    fn may_begin(&self, body: &OutgoingBody) -> bool {
        let open = self.sent.transfer_bytes - self.credit.transfer_bytes;
        self.sent.transfers - self.credit.transfers < self.open_transfers && open + body.len() <= self.open_bytes
    }

    pub(super) fn next(&mut self) -> Option<OutgoingChunk> {
        let begins = self.choice()?;
        let mut body = if begins { self.waiting.pop()? } else { self.begun.pop()? };
        let mut head = Bytes::new();
        if begins {
            body.transfer = self.sent.transfers;
            self.sent.transfers += 1;
            self.sent.transfer_bytes += body.len();
            if let Some(purpose) = body.purpose {
                self.cancellable.retain(|transfer| !transfer.cancel.is_closed());
                let (cancel, cancelled) = watch::channel(false);
                body.cancelled = Some(cancelled);
                let state = Cancellation { transfer: body.transfer, total: body.len(), chunks: 0 };
                self.cancellable.push(CancellableTransfer { purpose, state, cancel });
            }
        }
        let header = body.header();
        let mut prefix = header.encode();
        if header.chunk == 0 {
            let head_len = body.head.len() as u32;
            prefix.extend(TransferHead { frames_before: body.frames_before, head_len }.encode());
            head = std::mem::take(&mut body.head).into();
        }
        let (offset, len) = (header.offset() as usize, header.len() as usize);
        let chunk = OutgoingChunk {
            priority: stream_priority(body.priority, self.chunks),
            cancelled: body.cancelled.clone(),
            pieces: [prefix.into(), head, body.body.slice(offset..offset + len)],
        };
        self.chunks += 1;
        self.sent.bytes += len as u64;
        body.next_chunk += 1;
        if let Some(transfer) = self.cancellable.iter_mut().find(|of| of.state.transfer == body.transfer) {
            transfer.state.chunks = body.next_chunk;
        }
        if body.next_chunk < chunks_of(header.total) {
            self.begun.push(body);
        }
        Some(chunk)
    }
}

/// Sends chunks while there are some and the other side has room. Ends with the connection.
pub(in super::super) async fn send_bodies(link: Link) {
    // A stream that was opened for a chunk that there was no longer.
    let mut spare = None;
    loop {
        while !lock(&link.0.body_queue).has_next() {
            link.0.body_queued.notified().await;
        }
        let mut stream = match spare.take() {
            Some(stream) => stream,
            None => match link.0.connection.open_uni().await {
                Ok(stream) => stream,
                Err(_) => return,
            },
        };
        // Meanwhile bodies may have been cancelled, or one of higher priority may have been queued,
        // for which there is no room. The other side would take the end of this stream for a chunk.
        let next = lock(&link.0.body_queue).next();
        let Some(mut chunk) = next else {
            spare = Some(stream);
            continue;
        };
        if stream.set_priority(chunk.priority).is_err() {
            return;
        }
        let written = unless_cancelled(stream.write_all_chunks(&mut chunk.pieces), chunk.cancelled.clone()).await;
        match written {
            Some(Ok(())) => {}
            // The other side knows already that the body is cancelled.
            Some(Err(WriteError::Stopped(_))) => continue,
            Some(Err(_)) => return,
            None => {
                let _ = stream.reset(CANCELLED);
                continue;
            }
        }
        let _ = stream.finish();
        if chunk.cancelled.is_some() {
            link.0.runtime.spawn(reset_if_cancelled(stream, chunk.cancelled));
        }
    }
}

/// The code with which the streams of a cancelled body are reset.
const CANCELLED: VarInt = VarInt::from_u32(0);

/// Waits for a future, and returns its result unless a body is cancelled before.
async fn unless_cancelled<T>(future: impl Future<Output = T>, cancelled: Option<watch::Receiver<bool>>) -> Option<T> {
    let cancelled = async {
        if let Some(mut cancelled) = cancelled
            && cancelled.wait_for(|is_cancelled| *is_cancelled).await.is_ok()
        {
            return;
        }
        // It cannot be cancelled, or the link has ended.
        std::future::pending().await
    };
    let (mut future, mut cancelled) = (pin!(future), pin!(cancelled));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => cancelled.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Resets the stream of a chunk if its body is cancelled before the other side has all of it.
async fn reset_if_cancelled(mut stream: SendStream, cancelled: Option<watch::Receiver<bool>>) {
    if unless_cancelled(stream.stopped(), cancelled).await.is_none() {
        let _ = stream.reset(CANCELLED);
    }
}
