//! The bytes of a link: frames of its three streams of frames, and headers of the chunks of bodies.
//!
//! All integers are little-endian. The first stream of each side is its control stream, the second
//! and the third, once the other side is admitted, those of its signals and of its values. All are
//! sequences of frames: four bytes of length and kind, then the content. Signals are the frames of
//! the link itself, except the greeting and the closing, and those of the application that must not
//! wait for others. Values are frames of the application for which nothing else waits.
//!
//! | kind | content |
//! |---|---|
//! | 0 application | bytes of the layer above, at most [`MAX_FRAME`] |
//! | 1 greeting | the first frame of each side: [`Greeting`] |
//! | 2 credit | [`Credit`], how much of all bodies was received since the link began |
//! | 3 ping, 4 pong | a number that the pong repeats |
//! | 5 closing | the last frame: a code and a reason |
//! | 6 test request | its number, and how many bytes the other side should send as a test body |
//! | 7 test result | the number in the head of a test body, and how long its reception took |
//! | 8 cancelled | [`Cancellation`]: a body that was sent in part, and does not arrive |
//!
//! All other streams carry one chunk of a body each: a [`ChunkHeader`], for the first chunk of a
//! transfer the [`TransferHead`], then the bytes. The number of a chunk determines its offset and
//! length, so chunks neither overlap nor leave gaps.

use crate::peer::printable;
use bytes::Bytes;
use std::time::Duration;

/// The maximum length of an application frame.
pub(crate) const MAX_FRAME: usize = 64 << 10;

/// The length of a frame's prefix: its length in 24 bits, then its kind.
pub(super) const PREFIX: usize = 4;

/// The length of all chunks of a body except the last, which has what remains.
pub(super) const CHUNK: u64 = 2 << 20;

/// The maximum length of a body.
pub(crate) use crate::peer::MAX_BODY;

/// The maximum length of the reason with which a link is closed.
pub(super) const MAX_REASON: usize = 512;

/// A frame that cannot be read, as an explanation.
pub(super) type Malformed = String;

/// The first frame of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Bytes of bodies that may be on their way to this side.
    pub(super) window: u64,
    /// The maximum sum of the lengths of bodies that are being received.
    pub(super) open_bytes: u64,
    /// The maximum number of bodies that are being received.
    pub(super) open_transfers: u32,
    /// A proof of a join token.
    pub(super) proof: Option<[u8; 32]>,
}

/// Totals of the bodies that one side has received on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    /// Bytes of chunks that were read, or sent for bodies that were cancelled.
    pub(super) bytes: u64,
    /// Bodies that were handed to the application, or cancelled.
    pub(super) transfers: u64,
    /// The sum of their lengths.
    pub(super) transfer_bytes: u64,
}

/// The end of a transfer whose body was sent in part and does not arrive. Streams of its chunks may
/// be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cancellation {
    pub(super) transfer: u64,
    /// The length of the body.
    pub(super) total: u64,
    /// The number of chunks for which a stream was opened.
    pub(super) chunks: u32,
}

impl Cancellation {
    /// Returns the bytes of the chunks, or an error if there are no such chunks.
    pub(super) fn bytes(&self) -> Result<u64, Malformed> {
        let Cancellation { total, chunks, .. } = *self;
        match total <= MAX_BODY && chunks > 0 && chunks <= chunks_of(total) {
            true => Ok(total.min(u64::from(chunks) * CHUNK)),
            false => Err(format!("a body of {total} bytes was cancelled after {chunks} chunks")),
        }
    }
}

/// A frame of one of the streams of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame<'a> {
    Application(&'a [u8]),
    Greeting(Greeting),
    Credit(Credit),
    Ping(u64),
    Pong(u64),
    Closing { code: u32, reason: String },
    TestRequest { number: u64, bytes: u64 },
    TestResult { number: u64, elapsed: Duration },
    Cancelled(Cancellation),
}

/// Returns the prefix of an application frame.
pub(super) fn application_prefix(len: usize) -> [u8; PREFIX] {
    prefix(0, len)
}

fn prefix(kind: u8, len: usize) -> [u8; PREFIX] {
    debug_assert!(len <= MAX_FRAME);
    (len as u32 | u32::from(kind) << 24).to_le_bytes()
}

/// Returns the length of a frame's content from its prefix, or an error if it is too long.
pub(super) fn content_len(prefix: [u8; PREFIX]) -> Result<usize, Malformed> {
    let len = u32::from_le_bytes(prefix) & 0x00ff_ffff;
    match len as usize {
        len if len <= MAX_FRAME => Ok(len),
        len => Err(format!("a frame of {len} bytes is longer than the maximum of {MAX_FRAME}")),
    }
}

impl<'a> ControlFrame<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; PREFIX];
        let kind = match self {
            ControlFrame::Application(content) => {
                bytes.extend_from_slice(content);
                0
            }
            ControlFrame::Greeting(greeting) => {
                bytes.extend_from_slice(&greeting.window.to_le_bytes());
                bytes.extend_from_slice(&greeting.open_bytes.to_le_bytes());
                bytes.extend_from_slice(&greeting.open_transfers.to_le_bytes());
                bytes.extend(greeting.proof.into_iter().flatten());
                1
            }
            ControlFrame::Credit(credit) => {
                for total in [credit.bytes, credit.transfers, credit.transfer_bytes] {
                    bytes.extend_from_slice(&total.to_le_bytes());
                }
                2
            }
            ControlFrame::Ping(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                3
            }
            ControlFrame::Pong(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                4
            }
            ControlFrame::Closing { code, reason } => {
                bytes.extend_from_slice(&code.to_le_bytes());
                bytes.extend_from_slice(shortened(reason).as_bytes());
                5
            }
            ControlFrame::TestRequest { number, bytes: len } => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&len.to_le_bytes());
                6
            }
            ControlFrame::TestResult { number, elapsed } => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&nanoseconds(*elapsed).to_le_bytes());
                7
            }
            ControlFrame::Cancelled(cancelled) => {
                bytes.extend_from_slice(&cancelled.transfer.to_le_bytes());
                bytes.extend_from_slice(&cancelled.total.to_le_bytes());
                bytes.extend_from_slice(&cancelled.chunks.to_le_bytes());
                8
            }
        };
        let prefix = prefix(kind, bytes.len() - PREFIX);
        bytes[..PREFIX].copy_from_slice(&prefix);
        bytes
    }

    /// Reads a frame: its prefix and all of its content.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<ControlFrame<'a>, Malformed> {
        let (&[.., kind], content) = bytes.split_first_chunk::<PREFIX>().ok_or("a frame without a prefix")?;
        let mut fields = Fields(content);
        let frame = match kind {
            0 => return Ok(ControlFrame::Application(content)),
            1 => ControlFrame::Greeting(Greeting {
                window: fields.u64()?,
                open_bytes: fields.u64()?,
                open_transfers: fields.u32()?,
                proof: if fields.0.is_empty() { None } else { Some(fields.take()?) },
            }),
            2 => ControlFrame::Credit(Credit {
                bytes: fields.u64()?,
                transfers: fields.u64()?,
                transfer_bytes: fields.u64()?,
            }),
            3 => ControlFrame::Ping(fields.u64()?),
            4 => ControlFrame::Pong(fields.u64()?),
            5 => {
                let code = fields.u32()?;
                let text = std::mem::take(&mut fields.0);
                let text = text.get(..MAX_REASON).unwrap_or(text);
                ControlFrame::Closing { code, reason: printable(&String::from_utf8_lossy(text)) }
            }
            6 => ControlFrame::TestRequest { number: fields.u64()?, bytes: fields.u64()? },
            7 => ControlFrame::TestResult { number: fields.u64()?, elapsed: Duration::from_nanos(fields.u64()?) },
            8 => {
                let (transfer, total) = (fields.u64()?, fields.u64()?);
                ControlFrame::Cancelled(Cancellation { transfer, total, chunks: fields.u32()? })
            }
            kind => return Err(format!("a frame of the unknown kind {kind}")),
        };
        match fields.0 {
            [] => Ok(frame),
            rest => Err(format!("a frame of kind {kind} with {} bytes too many", rest.len())),
        }
    }
}

/// The header of each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    /// Whether the body is a test of the link, to be read and forgotten.
    pub(super) is_test: bool,
    /// The number of the transfer: 0, 1, ... in the order in which transfers begin.
    pub(super) transfer: u64,
    /// The number of the chunk in the body.
    pub(super) chunk: u32,
    /// The length of the body.
    pub(super) total: u64,
}

impl ChunkHeader {
    pub(super) const LEN: usize = 21;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ChunkHeader::LEN);
        bytes.push(u8::from(self.is_test));
        bytes.extend_from_slice(&self.transfer.to_le_bytes());
        bytes.extend_from_slice(&self.chunk.to_le_bytes());
        bytes.extend_from_slice(&self.total.to_le_bytes());
        bytes
    }

    /// Reads a header, and checks that the chunk exists.
    pub(super) fn decode(bytes: &[u8]) -> Result<ChunkHeader, Malformed> {
        let mut fields = Fields(bytes);
        let [kind] = fields.take()?;
        let header =
            ChunkHeader { is_test: kind == 1, transfer: fields.u64()?, chunk: fields.u32()?, total: fields.u64()? };
        if kind > 1 {
            return Err(format!("a transfer of the unknown kind {kind}"));
        }
        if header.total > MAX_BODY {
            return Err(format!("a body of {} bytes is longer than the maximum of {MAX_BODY}", header.total));
        }
        if header.chunk >= chunks_of(header.total) {
            return Err(format!("chunk {} of a body of {} bytes", header.chunk, header.total));
        }
        Ok(header)
    }

    /// Returns the offset of the chunk in the body.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.chunk) * CHUNK
    }

    /// Returns the length of the chunk.
    pub(super) fn len(&self) -> u64 {
        CHUNK.min(self.total - self.offset())
    }
}

/// Returns the number of chunks of a body. An empty body has one.
pub(super) fn chunks_of(total: u64) -> u32 {
    total.div_ceil(CHUNK).max(1) as u32
}

/// The part of a transfer's first chunk before the bytes, up to the head itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferHead {
    /// The number of application frames that were sent before the transfer.
    pub(super) frames_before: u64,
    /// The length of the head.
    pub(super) head_len: u32,
}

impl TransferHead {
    pub(super) const LEN: usize = 12;

    pub(super) fn encode(&self) -> Vec<u8> {
        [&self.frames_before.to_le_bytes()[..], &self.head_len.to_le_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<TransferHead, Malformed> {
        let mut fields = Fields(bytes);
        let head = TransferHead { frames_before: fields.u64()?, head_len: fields.u32()? };
        match head.head_len as usize {
            len if len <= MAX_FRAME => Ok(head),
            len => Err(format!("the head of a body has {len} bytes, more than the maximum of {MAX_FRAME}")),
        }
    }
}

/// The rest of the bytes of a frame.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (&field, rest) = self.0.split_first_chunk::<N>().ok_or("a frame that ends too early")?;
        self.0 = rest;
        Ok(field)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Frames in a stream of pieces of any length.
#[derive(Default)]
pub(super) struct FrameSplitter {
    /// The beginning of a frame whose end has not arrived.
    partial: Vec<u8>,
}

impl FrameSplitter {
    /// Calls `each` with every frame that `piece` completes, prefix included. A frame that lies
    /// within the piece is not copied.
    pub(super) fn split(
        &mut self,
        mut piece: Bytes,
        mut each: impl FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        while !piece.is_empty() {
            if self.partial.is_empty()
                && let Some(&prefix) = piece.first_chunk()
                && let len = PREFIX + content_len(prefix)?
                && piece.len() >= len
            {
                each(&piece.split_to(len))?;
                continue;
            }
            let wanted = match self.partial.first_chunk() {
                Some(&prefix) => PREFIX + content_len(prefix)?,
                None => PREFIX,
            };
            let more = piece.len().min(wanted - self.partial.len());
            self.partial.extend_from_slice(&piece.split_to(more));
            if let Some(&prefix) = self.partial.first_chunk()
                && self.partial.len() == PREFIX + content_len(prefix)?
            {
                each(&self.partial)?;
                self.partial.clear();
            }
        }
        Ok(())
    }
}

/// Returns `text` up to [`MAX_REASON`] bytes.
pub(super) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON)]
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
