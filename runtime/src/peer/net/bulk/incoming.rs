//! Receiving bodies: chunks are read as they arrive and copied to their place.

use super::super::link::{FrameLane, Link, lock};
use super::super::profile::NetSettings;
use super::super::wire::{ChunkHeader, ControlFrame, Credit, TransferHead, chunks_of};
use super::{LONG_BODY, OPEN_BYTES, OPEN_TRANSFERS, UNREPORTED};
use crate::peer::body::BodyBuffer;
use bytes::{Bytes, BytesMut};
use quinn::{ReadError, RecvStream};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// A body that is being received.
pub(super) struct IncomingBody {
    head: Bytes,
    /// The memory, except for a test.
    body: Option<BodyBuffer>,
    is_test: bool,
    total: u64,
    /// Whether a chunk is being read or was.
    claimed: Vec<bool>,
    /// The number of chunks that were not read to their end.
    missing: u32,
    begun_at: Instant,
}

impl IncomingBody {
    /// Creates a body of which nothing has arrived, with memory for all of it, aligned for elements
    /// of this many bytes.
    pub(super) fn new(header: &ChunkHeader, head: Bytes, element: usize) -> Result<IncomingBody, String> {
        let chunks = chunks_of(header.total);
        Ok(IncomingBody {
            head,
            body: if header.is_test { None } else { Some(BodyBuffer::zeroed(header.total, element)?) },
            is_test: header.is_test,
            total: header.total,
            claimed: vec![false; chunks as usize],
            missing: chunks,
            begun_at: Instant::now(),
        })
    }
}

/// The bodies that a link is receiving, and what was reported of them to the other side.
pub(in super::super) struct IncomingBodies {
    open: HashMap<u64, IncomingBody>,
    /// All transfers below have begun.
    begun_below: u64,
    /// The transfers above it that have begun.
    begun: BTreeSet<u64>,
    window: u64,
    /// Bytes of chunks whose headers were read.
    announced: u64,
    /// Lengths of the transfers that have begun.
    begun_bytes: u64,
    received: Credit,
    reported: Credit,
    /// The number of chunk streams that are being read.
    readers: u32,
}

/// The maximum number of transfers that begin before an earlier one does.
const MAX_BEGUN_EARLY: usize = 1 << 16;

/// The step that follows the end of a chunk.
pub(super) enum AfterChunk {
    Nothing,
    Deliver(IncomingBody),
}

impl IncomingBodies {
    pub(in super::super) fn new(window: u64) -> IncomingBodies {
        IncomingBodies {
            open: HashMap::new(),
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
        if self.announced - self.reported.bytes > self.window {
            return Err(format!("more than {} bytes of bodies on their way", self.window));
        }
        Ok(())
    }

    /// Records the beginning of a transfer, before its memory is taken.
    pub(super) fn begin(&mut self, header: &ChunkHeader) -> Result<(), String> {
        let transfer = header.transfer;
        if transfer < self.begun_below || !self.begun.insert(transfer) {
            return Err(format!("transfer {transfer} began twice"));
        }
        while self.begun.remove(&self.begun_below) {
            self.begun_below += 1;
        }
        let begun = self.begun_below + self.begun.len() as u64;
        self.begun_bytes += header.total;
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
        self.open.insert(header.transfer, body);
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
            return Ok(true);
        }
        match header.transfer < self.begun_below || self.begun.contains(&header.transfer) {
            true => {
                Err(format!("a chunk of transfer {}, which has ended or been announced otherwise", header.transfer))
            }
            false => Ok(false),
        }
    }

    /// Copies bytes of a claimed chunk.
    pub(super) fn write(&mut self, transfer: u64, at: u64, bytes: &[u8]) {
        self.received.bytes += bytes.len() as u64;
        if let Some(body) = self.open.get_mut(&transfer).and_then(|body| body.body.as_mut()) {
            body.bytes_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Counts a chunk that was read to its end.
    pub(super) fn end_chunk(&mut self, header: &ChunkHeader) -> AfterChunk {
        let Some(body) = self.open.get_mut(&header.transfer) else { return AfterChunk::Nothing };
        body.missing -= 1;
        if body.missing > 0 {
            return AfterChunk::Nothing;
        }
        self.open.remove(&header.transfer).map_or(AfterChunk::Nothing, AfterChunk::Deliver)
    }

    /// Returns what to report to the other side, if that is worth a frame.
    pub(super) fn report(&mut self, ended: Option<u64>) -> Option<Credit> {
        if let Some(total) = ended {
            self.received.transfers += 1;
            self.received.transfer_bytes += total;
        }
        let due = ended.is_some_and(|total| total >= LONG_BODY)
            || self.received.bytes - self.reported.bytes >= self.window / UNREPORTED
            || self.received.transfers - self.reported.transfers >= u64::from(OPEN_TRANSFERS) / UNREPORTED;
        if due {
            self.reported = self.received;
        }
        due.then_some(self.reported)
    }
}

/// Accepts the stream of signals, and then those of chunks. Ends with the connection.
pub(in super::super) async fn receive_streams(link: Link) {
    // Streams are accepted in the order in which the other side opened them.
    let Ok(signals) = link.0.connection.accept_uni().await else { return };
    let reader = link.clone();
    link.0.runtime.spawn(async move { reader.read_frames(signals, FrameLane::Signals).await });
    while let Ok(stream) = link.0.connection.accept_uni().await {
        let reader = link.clone();
        lock(&link.0.incoming).readers += 1;
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
    let header = ChunkHeader::decode(&pieces.exactly(ChunkHeader::LEN).await?)?;
    lock(&link.0.incoming).announce(&header)?;
    if header.chunk == 0 {
        let head = TransferHead::decode(&pieces.exactly(TransferHead::LEN).await?)?;
        let bytes = pieces.exactly(head.head_len as usize).await?;
        lock(&link.0.incoming).begin(&header)?;
        wait_until(link, || Ok(link.0.received_frames.load(Ordering::Relaxed) >= head.frames_before)).await?;
        begin(link, &header, bytes)?;
    }
    wait_until(link, || lock(&link.0.incoming).claim(&header)).await?;

    let mut at = header.offset();
    let end = at + header.len();
    while at < end {
        let mut batch: [Bytes; 32] = Default::default();
        let count = pieces.some(&mut batch).await?;
        let credit = {
            let mut incoming = lock(&link.0.incoming);
            for piece in &batch[..count] {
                if piece.len() as u64 > end - at {
                    return Err(Some("a chunk is longer than its header says".to_owned()));
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
        return Err(None);
    }
    let after = lock(&link.0.incoming).end_chunk(&header);
    let ended = match after {
        AfterChunk::Nothing => None,
        AfterChunk::Deliver(body) => {
            match body.body {
                None => link.test_received(&body.head, body.begun_at.elapsed())?,
                Some(memory) => link.0.events.bulk(link, &body.head, memory)?,
            }
            Some(header.total)
        }
    };
    let credit = lock(&link.0.incoming).report(ended);
    if let Some(credit) = credit {
        link.send_control(&ControlFrame::Credit(credit));
    }
    Ok(())
}

/// Takes the memory of a body, if the layer above agrees.
fn begin(link: &Link, header: &ChunkHeader, head: Bytes) -> Result<(), String> {
    let element = match header.is_test {
        true => 1,
        false => link.0.events.bulk_begins(link, &head, header.total)?,
    };
    let body = IncomingBody::new(header, head, element)?;
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
    async fn exactly(&mut self, len: usize) -> Result<Bytes, Option<String>> {
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
                Ok(None) => return Err(Some("a chunk ended early".to_owned())),
                Err(error) => return Err(read_failure(error)),
            }
        }
    }

    /// Reads what is there, at least one piece.
    async fn some(&mut self, pieces: &mut [Bytes; 32]) -> Result<usize, Option<String>> {
        if !self.rest.is_empty() {
            pieces[0] = std::mem::take(&mut self.rest);
            return Ok(1);
        }
        match self.stream.read_chunks(pieces).await {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(Some("a chunk ended early".to_owned())),
            Err(error) => Err(read_failure(error)),
        }
    }

    /// Checks that nothing follows.
    async fn end(&mut self) -> Result<(), Option<String>> {
        if self.rest.is_empty() {
            match self.stream.read_chunk(1, true).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) => return Err(read_failure(error)),
            }
        }
        Err(Some("a chunk is longer than its header says".to_owned()))
    }
}

fn read_failure(error: ReadError) -> Option<String> {
    match error {
        ReadError::ConnectionLost(_) => None,
        error => Some(format!("a chunk was not sent to its end: {error}")),
    }
}
