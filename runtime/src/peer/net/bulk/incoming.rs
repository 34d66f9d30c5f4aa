//! Receiving bodies: chunks are read as they arrive and copied to their place.

use super::super::AdmittedBody;
use super::super::link::{FrameLane, Link, lock};
use super::super::profile::{MAX_CHUNK_STREAMS, NetSettings};
use super::super::wire::{CHUNK, Cancellation, ChunkHeader, ControlFrame, Credit, TransferHead, chunks_of};
use super::{LONG_BODY, OPEN_BYTES, OPEN_TRANSFERS, UNREPORTED};
use crate::peer::body::BodyBuffer;
use bytes::{Bytes, BytesMut};
use quinn::{ReadError, RecvStream};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// A body that is being received.
pub(super) struct IncomingBody {
    head: Bytes,
    /// The memory, unless it is a test or dropped.
    body: Option<BodyBuffer>,
    /// Counts the bytes as they arrive.
    counter: Option<Arc<AtomicU64>>,
    is_test: bool,
    total: u64,
    /// Whether a chunk is being read or was.
    claimed: Vec<bool>,
    /// The number of chunks that were not read to their end.
    missing: u32,
    /// The bytes that were read.
    read: u64,
    begun_at: Instant,
}

impl IncomingBody {
    /// Creates a body of which nothing has arrived, with memory for all of it.
    pub(super) fn new(header: &ChunkHeader, head: Bytes, admitted: AdmittedBody) -> Result<IncomingBody, String> {
        let chunks = chunks_of(header.total);
        let AdmittedBody { element, counter } = admitted;
        Ok(IncomingBody {
            head,
            body: match element {
                Some(element) if !header.is_test => Some(BodyBuffer::with_capacity(header.total, element)?),
                _ => None,
            },
            counter,
            is_test: header.is_test,
            total: header.total,
            claimed: vec![false; chunks as usize],
            missing: chunks,
            read: 0,
            begun_at: Instant::now(),
        })
    }
}

/// The bodies that a link is receiving, and what was reported of them to the other side.
pub(in super::super) struct IncomingBodies {
    open: HashMap<u64, IncomingBody>,
    /// The transfers that have begun and wait for the frames before them.
    waiting: HashSet<u64>,
    /// The newest of the transfers that were cancelled, of which chunks may still arrive.
    cancelled: BTreeSet<u64>,
    /// The bytes of chunks whose headers were read, of transfers that have not ended.
    announced_of: HashMap<u64, u64>,
    /// All transfers below have begun.
    begun_below: u64,
    /// The transfers above it that have begun.
    begun: BTreeSet<u64>,
    window: u64,
    /// The bytes after which the other side is told what has arrived.
    report_after: u64,
    /// Bytes of chunks whose headers were read.
    announced: u64,
    /// Lengths of the transfers that have begun.
    begun_bytes: u64,
    received: Credit,
    reported: Credit,
    /// The number of chunk streams that are being read.
    readers: u32,
}

/// The maximum number of chunks that are being read. That of a stream that was reset lasts until
/// the reason is known.
const MAX_READERS: u32 = 4 * MAX_CHUNK_STREAMS;

/// The number of cancelled transfers of which late chunks are known.
const MAX_CANCELLED: usize = 1024;

/// The maximum number of transfers that begin before an earlier one does.
const MAX_BEGUN_EARLY: usize = 1 << 16;

/// The step that follows the end of a chunk.
pub(super) enum AfterChunk {
    Nothing,
    Deliver(IncomingBody),
}

impl IncomingBodies {
    /// Creates the state of a link. The other side sends at most the smaller of both windows
    /// before it waits for a report.
    pub(in super::super) fn new(window: u64, other_window: u64) -> IncomingBodies {
        // Less than a chunk has no room in any window.
        let used = window.min(other_window).max(CHUNK);
        IncomingBodies {
            report_after: used / UNREPORTED,
            open: HashMap::new(),
            waiting: HashSet::new(),
            cancelled: BTreeSet::new(),
            announced_of: HashMap::new(),
            begun_below: 0,
            begun: BTreeSet::new(),
            window,
            announced: 0,
            begun_bytes: 0,
            received: Credit::default(),
            reported: Credit::default(),
            readers: 0,
        }
    }

    pub(in super::super) fn clear(&mut self) {
        self.open.clear();
    }

    /// Counts a chunk that arrives, and checks the window.
    pub(super) fn announce(&mut self, header: &ChunkHeader) -> Result<(), String> {
        self.announced += header.len();
        *self.announced_of.entry(header.transfer).or_default() += header.len();
        if self.announced - self.reported.bytes > self.window {
            return Err(format!("more than {} bytes of bodies on their way", self.window));
        }
        Ok(())
    }

    /// Records the beginning of a transfer, before its memory is taken.
    pub(super) fn begin(&mut self, transfer: u64, total: u64) -> Result<(), String> {
        if transfer < self.begun_below || !self.begun.insert(transfer) {
            return Err(format!("transfer {transfer} began twice"));
        }
        while self.begun.remove(&self.begun_below) {
            self.begun_below += 1;
        }
        let begun = self.begun_below + self.begun.len() as u64;
        self.begun_bytes += total;
        self.waiting.insert(transfer);
        if begun - self.reported.transfers > u64::from(OPEN_TRANSFERS)
            || self.begun_bytes - self.reported.transfer_bytes > OPEN_BYTES
            || self.begun.len() > MAX_BEGUN_EARLY
        {
            return Err("more bodies at a time than were allowed".to_owned());
        }
        Ok(())
    }

    /// Adds a body whose transfer has begun.
    pub(super) fn open(&mut self, header: &ChunkHeader, body: IncomingBody) {
        self.waiting.remove(&header.transfer);
        self.open.insert(header.transfer, body);
    }

    fn has_begun(&self, transfer: u64) -> bool {
        transfer < self.begun_below || self.begun.contains(&transfer)
    }

    /// Returns whether a transfer was cancelled.
    pub(super) fn is_cancelled(&self, transfer: u64) -> bool {
        self.cancelled.contains(&transfer)
    }

    /// Ends a transfer that was cancelled, unless it has ended. Returns its body if it is open.
    pub(super) fn cancel(&mut self, cancelled: &Cancellation) -> Result<Option<IncomingBody>, String> {
        let Cancellation { transfer, total, .. } = *cancelled;
        let sent = cancelled.bytes()?;
        let body = self.open.remove(&transfer);
        if body.is_none() && self.has_begun(transfer) && !self.waiting.contains(&transfer) {
            return Ok(None);
        }
        if !self.has_begun(transfer) {
            self.begin(transfer, total)?;
        }
        self.waiting.remove(&transfer);
        let announced = self.announced_of.remove(&transfer).unwrap_or(0);
        let read = body.as_ref().map_or(0, |body| body.read);
        if announced > sent || body.as_ref().is_some_and(|body| body.total != total) {
            return Err("it cancelled another body than it had sent".to_owned());
        }
        self.announced += sent - announced;
        self.received.bytes += sent - read;
        self.received.transfers += 1;
        self.received.transfer_bytes += total;
        self.cancelled.insert(transfer);
        if self.cancelled.len() > MAX_CANCELLED {
            self.cancelled.pop_first();
        }
        Ok(body)
    }

    /// Returns the number of bodies that are being received, and the sum of their lengths.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn n_open(&self) -> (usize, u64) {
        (self.open.len(), self.open.values().map(|body| body.total).sum())
    }

    /// Returns the bytes that have arrived.
    pub(in super::super) fn received_bytes(&self) -> u64 {
        self.received.bytes
    }

    /// Returns whether the transfer of a chunk has begun, and claims the chunk.
    pub(super) fn claim(&mut self, header: &ChunkHeader) -> Result<bool, String> {
        if let Some(body) = self.open.get_mut(&header.transfer) {
            let is_same = body.total == header.total && body.is_test == header.is_test;
            let claimed = body.claimed.get_mut(header.chunk as usize).filter(|claimed| is_same && !**claimed);
            let Some(claimed) = claimed else {
                return Err(format!("chunk {} of transfer {} arrived twice or differs", header.chunk, header.transfer));
            };
            *claimed = true;
            let end = header.offset() + header.len();
            // Chunks are sent in order, so those before it have arrived or are in the window.
            if end > body.read + self.window {
                return Err(format!("chunk {} of transfer {} arrived too early", header.chunk, header.transfer));
            }
            return Ok(true);
        }
        match self.has_begun(header.transfer) && !self.waiting.contains(&header.transfer) {
            // Its reader goes no further.
            true if self.is_cancelled(header.transfer) => Ok(true),
            true => {
                Err(format!("a chunk of transfer {}, which has ended or been announced otherwise", header.transfer))
            }
            false => Ok(false),
        }
    }

    /// Copies bytes of a claimed chunk.
    pub(super) fn write(&mut self, transfer: u64, at: u64, bytes: &[u8]) {
        // Those of a cancelled transfer were counted.
        let Some(incoming) = self.open.get_mut(&transfer) else { return };
        self.received.bytes += bytes.len() as u64;
        incoming.read += bytes.len() as u64;
        if let Some(counter) = &incoming.counter {
            counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        if let Some(body) = &mut incoming.body {
            body.write(at as usize, bytes);
        }
    }

    /// Counts a chunk that was read to its end.
    pub(super) fn end_chunk(&mut self, header: &ChunkHeader) -> AfterChunk {
        let Some(body) = self.open.get_mut(&header.transfer) else { return AfterChunk::Nothing };
        body.missing -= 1;
        if body.missing > 0 {
            return AfterChunk::Nothing;
        }
        self.announced_of.remove(&header.transfer);
        self.open.remove(&header.transfer).map_or(AfterChunk::Nothing, AfterChunk::Deliver)
    }

    /// Returns what to report to the other side, if that is worth a frame.
    pub(super) fn report(&mut self, ended: Option<u64>) -> Option<Credit> {
        if let Some(total) = ended {
            self.received.transfers += 1;
            self.received.transfer_bytes += total;
        }
        let due = ended.is_some_and(|total| total >= LONG_BODY)
            || self.received.bytes - self.reported.bytes >= self.report_after
            || self.received.transfers - self.reported.transfers >= u64::from(OPEN_TRANSFERS) / UNREPORTED
            || self.received.transfer_bytes - self.reported.transfer_bytes >= OPEN_BYTES / UNREPORTED;
        if due {
            self.reported = self.received;
        }
        due.then_some(self.reported)
    }
}

/// Accepts the streams of frames beside the control stream, and then those of chunks. Ends with the
/// connection.
pub(in super::super) async fn receive_streams(link: Link) {
    // Streams are accepted in the order in which the other side opened them.
    for lane in FrameLane::BESIDE {
        let Ok(stream) = link.0.connection.accept_uni().await else { return };
        let reader = link.clone();
        link.0.runtime.spawn(async move { reader.read_frames(stream, lane).await });
    }
    while let Ok(stream) = link.0.connection.accept_uni().await {
        let reader = link.clone();
        let readers = {
            let mut incoming = lock(&link.0.incoming);
            incoming.readers += 1;
            incoming.readers
        };
        if readers > MAX_READERS {
            return link.violated("it reset streams of bodies without a reason".to_owned());
        }
        link.0.runtime.spawn(async move {
            let outcome = receive_chunk(&reader, PieceReader { stream, rest: Bytes::new() }).await;
            lock(&reader.0.incoming).readers -= 1;
            if let Err(Some(violation)) = outcome {
                reader.violated(violation);
            }
        });
    }
}

/// Ends the link if bodies have begun, and none of their bytes arrive for the failure timeout.
pub(in super::super) async fn watch_progress(link: Link) {
    let interval = NetSettings::idle_timeout(&link.0.settings);
    let mut before = None;
    let mut stalled = 0;
    loop {
        tokio::time::sleep(interval).await;
        let now = {
            let incoming = lock(&link.0.incoming);
            (incoming.readers > 0 || !incoming.open.is_empty()).then_some((incoming.received, incoming.announced))
        };
        stalled = if now.is_some() && now == before { stalled + 1 } else { 0 };
        if stalled >= 3 {
            return link.violated("a body began and did not end".to_owned());
        }
        before = now;
    }
}

/// Reads one chunk. `Err(None)` is the end of the connection, or of interest in the chunk.
async fn receive_chunk(link: &Link, mut pieces: PieceReader) -> Result<(), Option<String>> {
    let header = match pieces.exactly(ChunkHeader::LEN).await {
        Ok(bytes) => ChunkHeader::decode(&bytes)?,
        // The transfer was cancelled, as the other side says elsewhere.
        Err(PieceError::Reset) => return Ok(()),
        Err(error) => return Err(error.violation()),
    };
    match receive_chunk_of(link, &header, pieces).await {
        Err(PieceError::Reset) => {
            // The signal that says so may arrive later than the end of the stream.
            wait_until(link, || Ok(lock(&link.0.incoming).is_cancelled(header.transfer))).await
        }
        outcome => outcome.map_err(PieceError::violation),
    }
}

async fn receive_chunk_of(link: &Link, header: &ChunkHeader, mut pieces: PieceReader) -> Result<(), PieceError> {
    let is_cancelled = || lock(&link.0.incoming).is_cancelled(header.transfer);
    if is_cancelled() {
        return Ok(());
    }
    lock(&link.0.incoming).announce(header)?;
    if header.chunk == 0 {
        let head = TransferHead::decode(&pieces.exactly(TransferHead::LEN).await?)?;
        let bytes = pieces.exactly(head.head_len as usize).await?;
        if is_cancelled() {
            return Ok(());
        }
        lock(&link.0.incoming).begin(header.transfer, header.total)?;
        let is_awaited = || lock(&link.0.incoming).waiting.contains(&header.transfer);
        wait_until(link, || Ok(link.0.received_frames.load(Ordering::Relaxed) >= head.frames_before || !is_awaited()))
            .await?;
        if !is_awaited() {
            return Ok(());
        }
        begin(link, header, bytes)?;
    }
    wait_until(link, || lock(&link.0.incoming).claim(header)).await?;

    let mut at = header.offset();
    let end = at + header.len();
    while at < end {
        let mut batch: [Bytes; 32] = Default::default();
        let count = pieces.some(&mut batch).await?;
        link.0.lookout.arrived();
        let credit = {
            let mut incoming = lock(&link.0.incoming);
            if incoming.is_cancelled(header.transfer) {
                return Ok(());
            }
            for piece in &batch[..count] {
                if piece.len() as u64 > end - at {
                    return Err("a chunk is longer than its header says".to_owned().into());
                }
                incoming.write(header.transfer, at, piece);
                at += piece.len() as u64;
            }
            incoming.report(None)
        };
        if let Some(credit) = credit {
            link.send_control(&ControlFrame::Credit(credit));
        }
    }
    pieces.end().await?;
    if link.is_silent() {
        return Ok(());
    }
    let after = lock(&link.0.incoming).end_chunk(header);
    let ended = match after {
        AfterChunk::Nothing => None,
        AfterChunk::Deliver(body) => {
            match body.body {
                None if body.is_test => link.test_received(&body.head, body.begun_at.elapsed())?,
                None => {}
                Some(memory) => link.0.events.bulk(link, &body.head, memory)?,
            }
            Some(header.total)
        }
    };
    report(link, ended);
    Ok(())
}

/// Counts a transfer of this length that has ended, if one has, and reports to the other side what
/// has arrived.
fn report(link: &Link, ended: Option<u64>) {
    let credit = lock(&link.0.incoming).report(ended);
    if let Some(credit) = credit {
        link.send_control(&ControlFrame::Credit(credit));
    }
}

/// Handles the end of a transfer that the other side has cancelled.
pub(in super::super) fn cancel(link: &Link, cancelled: &Cancellation) -> Result<(), String> {
    let body = lock(&link.0.incoming).cancel(cancelled)?;
    if let Some(body) = body.filter(|body| body.body.is_some()) {
        link.0.events.bulk_cancelled(link, &body.head, body.total);
    }
    report(link, None);
    link.0.progressed.notify_waiters();
    Ok(())
}

/// Takes the memory of a body, if the layer above agrees.
fn begin(link: &Link, header: &ChunkHeader, head: Bytes) -> Result<(), String> {
    let admitted = match header.is_test {
        true => AdmittedBody { element: None, counter: None },
        false => link.0.events.bulk_begins(link, &head, header.total)?,
    };
    let body = IncomingBody::new(header, head, admitted)?;
    lock(&link.0.incoming).open(header, body);
    link.0.progressed.notify_waiters();
    Ok(())
}

/// Waits until `condition` holds. It is checked whenever the link progresses.
async fn wait_until(link: &Link, mut condition: impl FnMut() -> Result<bool, String>) -> Result<(), Option<String>> {
    loop {
        let progressed = link.0.progressed.notified();
        if link.is_silent() {
            return Err(None);
        }
        if condition()? {
            return Ok(());
        }
        progressed.await;
    }
}

/// A stream of bytes, read in pieces without copying where possible.
struct PieceReader {
    stream: RecvStream,
    /// Bytes that were read and not used.
    rest: Bytes,
}

impl PieceReader {
    /// Reads exactly `len` bytes.
    async fn exactly(&mut self, len: usize) -> Result<Bytes, PieceError> {
        let mut collected = BytesMut::new();
        loop {
            let wanted = len - collected.len();
            if self.rest.len() >= wanted {
                let last = self.rest.split_to(wanted);
                if collected.is_empty() {
                    return Ok(last);
                }
                collected.extend_from_slice(&last);
                return Ok(collected.freeze());
            }
            collected.extend_from_slice(&std::mem::take(&mut self.rest));
            match self.stream.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => self.rest = chunk.bytes,
                Ok(None) => return Err("a chunk ended early".to_owned().into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what is there, at least one piece.
    async fn some(&mut self, pieces: &mut [Bytes; 32]) -> Result<usize, PieceError> {
        if !self.rest.is_empty() {
            pieces[0] = std::mem::take(&mut self.rest);
            return Ok(1);
        }
        match self.stream.read_chunks(pieces).await {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err("a chunk ended early".to_owned().into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that nothing follows.
    async fn end(&mut self) -> Result<(), PieceError> {
        if self.rest.is_empty() {
            match self.stream.read_chunk(1, true).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err("a chunk is longer than its header says".to_owned().into())
    }
}

/// Why the bytes of a stream are not read to their end.
enum PieceError {
    /// The connection has ended, or nobody is interested.
    Ended,
    /// The other side has reset the stream.
    Reset,
    Violation(String),
}

impl PieceError {
    fn violation(self) -> Option<String> {
        match self {
            PieceError::Ended | PieceError::Reset => None,
            PieceError::Violation(what) => Some(what),
        }
    }
}

impl From<ReadError> for PieceError {
    fn from(error: ReadError) -> PieceError {
        match error {
            ReadError::ConnectionLost(_) => PieceError::Ended,
            ReadError::Reset(_) => PieceError::Reset,
            error => PieceError::Violation(format!("a chunk was not sent to its end: {error}")),
        }
    }
}

impl From<String> for PieceError {
    fn from(what: String) -> PieceError {
        PieceError::Violation(what)
    }
}

impl From<Option<String>> for PieceError {
    fn from(what: Option<String>) -> PieceError {
        what.map_or(PieceError::Ended, PieceError::Violation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_no_window_allows_yet_is_a_violation() {
        let window = 4 * CHUNK;
        let mut bodies = IncomingBodies::new(window, window);
        let header = |chunk| ChunkHeader { is_test: false, transfer: 0, chunk, total: 100 * CHUNK };
        let body = IncomingBody::new(&header(0), Bytes::new(), AdmittedBody { element: Some(4), counter: None });
        bodies.begin(0, 100 * CHUNK).unwrap();
        bodies.open(&header(0), body.unwrap());
        assert_eq!(bodies.claim(&header(0)), Ok(true));
        assert_eq!(bodies.claim(&header(3)), Ok(true));
        assert!(bodies.claim(&header(4)).is_err_and(|error| error.contains("too early")));
        bodies.write(0, 0, &[1; CHUNK as usize]);
        assert_eq!(bodies.claim(&header(2)), Ok(true));
    }
}
