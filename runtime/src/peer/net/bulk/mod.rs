//! Bodies: tensors and other large values, sent in chunks beside the control stream.
//!
//! - Each chunk is a stream of its own. QUIC sends chunks of higher priority first, packet by
//!   packet, and the loss of a packet delays only its chunk.
//! - A side sends only what the other side has room for: a window of bytes that it has not read
//!   yet, a number of transfers, and the sum of their lengths. The greetings state the limits.
//!   So QUIC's own windows never fill up with bodies, and frames of control always pass.
//! - Who receives checks all of it. A chunk that exists twice or not at all, a transfer without an
//!   end, or more than the limits allow is a violation and ends the link.
//! - The bytes of a chunk are copied once, from the packet to their place in the body.
//! - A body can be cancelled. The streams of its chunks are reset, and no further chunk is sent.
//!   The other side is told so. It frees the memory, and counts the transfer and its chunks as
//!   received.

#[cfg(any(test, feature = "testing"))]
pub(super) mod hostile;
pub(super) mod incoming;
pub(super) mod outgoing;

/// The purpose of bodies, in numbers of the layer above. Those of one purpose can be cancelled
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyPurpose {
    pub(crate) session: u64,
    pub(crate) step: Option<u64>,
}

/// The maximum number of bodies that one link receives at a time.
pub(super) const OPEN_TRANSFERS: u32 = 256;

/// The maximum sum of the lengths of the bodies that one link receives at a time. A body has at
/// most half of that, so that it can begin although ends of some others are not reported yet.
pub(super) const OPEN_BYTES: u64 = 2 * super::wire::MAX_BODY;

/// The share of a limit that may be free again without having been reported.
pub(super) const UNREPORTED: u64 = 8;

/// The length from which the end of a body is reported at once.
pub(super) const LONG_BODY: u64 = 256 << 10;
