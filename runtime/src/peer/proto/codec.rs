//! Frames to bytes and back.
//!
//! A head is a version byte and the frame in postcard, with descriptions in place of payloads. If
//! the payload is large, it follows as the body. What arrives is not trusted:
//!
//! - A head of another version, of an unknown kind, or with bytes left over is an error.
//! - Each length is limited. Decoding takes at most a constant factor of the memory of its input.
//! - [`announce`] reads a head before its body arrives, so that the receiver can reject the body
//!   before it takes memory for it.
//!
//! | limit | |
//! |---|---|
//! | [`MAX_HEAD`] | bytes of a head |
//! | [`MAX_BODY`], [`INLINE`] | bytes of a payload, and of one in a head |
//! | [`MAX_RANK`](super::payload::MAX_RANK) | extents of a tensor |
//! | [`MAX_TEXT`] | bytes of a message, a reason, a label or a name |
//! | [`MAX_PRINT`] | bytes of one print; longer texts are split ([`pieces`]) |
//! | [`MAX_LABELS`] | labels of an error |
//! | [`MAX_POSITION`], [`MAX_TAG`] | numbers of a position, and of a tag |
//! | [`MAX_PROCESSES`], [`MAX_DEVICES`] | entries of a session's table, and devices of a process |
//! | [`MAX_VARS`], [`MAX_INPUTS`] | variables and inputs of a start |
//! | [`MAX_RELEASED`] | values of a release |
//! | [`MAX_STEPS`] | steps of a heartbeat or a report |
//! | [`MAX_SHARED`], [`MAX_LOCKS`] | shared variables of a lock, and locks of a renewal |
//! | [`MAX_SHARED_NAME`], [`MAX_SHARED_TYPE`] | bytes of the name and of the type of a shared variable |
//! | [`MAX_ENTRIES`] | shared variables and links of a report, and holders of a variable |

use super::frame::{CallerFrame, LinkFrame, MAX_LABELS, MAX_SHARED_NAME, MAX_SHARED_TYPE, MAX_TEXT, WireFrame};
use super::frame::{PartMessage, PeerFrame, ProgramNumber, RequestNumber, SessionId, StepFault, StepMessage};
use super::frame::{StepNumber, WireError};
use super::payload::{BytesHead, FrameBody, TensorHead};
use super::payload::{INLINE, MAX_BODY};
use super::payload::{describe_bytes, describe_tensor, restore_bytes, restore_tensor};
use crate::peer::body::BodyBuffer;
use std::fmt;

/// The version of the protocol.
pub(crate) const VERSION: u8 = protocol_version!();

/// Maximum bytes of a head.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// Maximum bytes of the text of a print frame.
pub(crate) const MAX_PRINT: usize = 32 << 10;
pub(crate) const MAX_POSITION: usize = 256;
pub(crate) const MAX_TAG: usize = 64;
pub(crate) const MAX_PROCESSES: usize = 256;
pub(crate) const MAX_DEVICES: usize = 64;
pub(crate) const MAX_VARS: usize = 4_096;
pub(crate) const MAX_INPUTS: usize = 4_096;
pub(crate) const MAX_RELEASED: usize = 4_096;
pub(crate) const MAX_STEPS: usize = 1_024;
pub(crate) const MAX_SHARED: usize = 256;
pub(crate) const MAX_LOCKS: usize = 4_096;
pub(crate) const MAX_ENTRIES: usize = 64;

/// A frame in an encoded head.
type HeadFrame = WireFrame<TensorHead, BytesHead>;

/// An encoded frame.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Option<FrameBody>,
}

/// A frame that cannot be encoded or decoded, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodecError(pub(crate) String);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A body that is about to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) to: Destination,
    pub(crate) used_by: BodyUse,
    /// The bytes of one element.
    pub(crate) element: usize,
}

/// The use of a body: what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyUse {
    Step(StepNumber),
    Request(RequestNumber),
    Program(ProgramNumber),
}

impl BodyUse {
    /// Returns the step, if it is one.
    pub(crate) fn step(self) -> Option<StepNumber> {
        match self {
            BodyUse::Step(step) => Some(step),
            BodyUse::Request(_) | BodyUse::Program(_) => None,
        }
    }
}

/// The destination of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Peer(SessionId),
    Caller(SessionId),
}

/// Encodes a frame. Large payloads are not copied.
pub(crate) fn encode(frame: WireFrame) -> Result<Encoded, CodecError> {
    encode_within(frame, INLINE)
}

/// Encodes a frame whose payload becomes the body if it has more than `inline` bytes. Large
/// payloads are not copied.
pub(crate) fn encode_within(frame: WireFrame, inline: usize) -> Result<Encoded, CodecError> {
    let mut body = None;
    // Both closures of `map` write to the body. A frame has one payload, so only one is called.
    let cell = std::cell::RefCell::new(&mut body);
    let wire: HeadFrame = frame.map(
        |tensor| Ok(describe_tensor(tensor, inline, *cell.borrow_mut())),
        |bytes| Ok(describe_bytes(bytes, inline, *cell.borrow_mut())),
    )?;
    check(&wire)?;
    // Most heads fit.
    let head = postcard::to_extend(&(VERSION, &wire), Vec::with_capacity(128))
        .map_err(|error| CodecError(error.to_string()))?;
    if head.len() > MAX_HEAD {
        return Err(CodecError(format!("a head of {} bytes, of at most {MAX_HEAD}", head.len())));
    }
    Ok(Encoded { head, body })
}

/// Decodes a frame.
pub(crate) fn decode(head: &[u8], body: Option<BodyBuffer>) -> Result<WireFrame, CodecError> {
    let wire = decode_head(head)?;
    let body = std::cell::RefCell::new(body);
    let frame = wire.map(
        |tensor| restore_tensor(tensor, &mut body.borrow_mut()).map_err(CodecError),
        |bytes| restore_bytes(bytes, &mut body.borrow_mut()).map_err(CodecError),
    )?;
    match body.into_inner() {
        None => Ok(frame),
        Some(_) => Err(CodecError("a body that the head does not announce".to_owned())),
    }
}

/// Checks a head whose body of `len` bytes is about to arrive.
pub(crate) fn announce(head: &[u8], len: u64) -> Result<Announced, CodecError> {
    let wire = decode_head(head)?;
    if body_len(&wire) != Some(len) {
        return Err(CodecError(format!("a body of {len} bytes that the head does not announce")));
    }
    let element = tensor_of(&wire).map_or(Ok(1), |tensor| tensor.check().map(|(dtype, ..)| dtype.size()));
    let element = element.map_err(CodecError)?;
    let used_by = match (&wire, wire.step()) {
        (_, Some(step)) => BodyUse::Step(step),
        (WireFrame::ToPeer { frame: PeerFrame::Store { request, .. }, .. }, _)
        | (WireFrame::ToCaller { frame: CallerFrame::Fetched { request, .. }, .. }, _) => BodyUse::Request(*request),
        (WireFrame::ToPeer { frame: PeerFrame::Upload { program, .. }, .. }, _) => BodyUse::Program(*program),
        _ => return Err(CodecError("a body of a frame that has none".to_owned())),
    };
    let to = match wire {
        WireFrame::ToPeer { session, .. } => Destination::Peer(session),
        WireFrame::ToCaller { session, .. } => Destination::Caller(session),
        WireFrame::Link(_) => return Err(CodecError("a body for a link".to_owned())),
    };
    Ok(Announced { to, used_by, element })
}

/// Splits a text into pieces of at most [`MAX_PRINT`] bytes.
pub(crate) fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let piece = super::frame::prefix(text, MAX_PRINT);
        text = &text[piece.len()..];
        (!piece.is_empty()).then_some(piece)
    })
}

fn decode_head(head: &[u8]) -> Result<HeadFrame, CodecError> {
    match head.first() {
        Some(&VERSION) if head.len() <= MAX_HEAD => {}
        Some(&VERSION) => return Err(CodecError(format!("a head of {} bytes, of at most {MAX_HEAD}", head.len()))),
        Some(version) => return Err(CodecError(format!("protocol version {version}, not {VERSION}"))),
        None => return Err(CodecError("an empty head".to_owned())),
    }
    let (wire, rest) = postcard::take_from_bytes::<HeadFrame>(&head[1..]).map_err(|e| CodecError(e.to_string()))?;
    if !rest.is_empty() {
        return Err(CodecError(format!("{} bytes after the frame", rest.len())));
    }
    check(&wire)?;
    Ok(wire)
}

/// Checks all lengths.
fn check(frame: &HeadFrame) -> Result<(), CodecError> {
    let within = |what: &str, len: usize, max: usize| match len <= max {
        true => Ok(()),
        false => Err(CodecError(format!("{len} {what}, of at most {max}"))),
    };
    let text = |text: &str| within("bytes of text", text.len(), MAX_TEXT);
    let error = |error: &WireError| {
        text(&error.message)?;
        error.help.as_deref().map_or(Ok(()), text)?;
        within("labels", error.labels.len(), MAX_LABELS)?;
        error.labels.iter().try_for_each(|(_, label)| text(label))
    };
    let fault = |fault: &StepFault| {
        within("numbers of a position", fault.position.as_ref().map_or(0, Vec::len), MAX_POSITION)?;
        error(&fault.error)
    };
    let tag = |message: &StepMessage<TensorHead>| match &message.message {
        PartMessage::Value { tag, .. } | PartMessage::Credit { tag, .. } => {
            within("numbers of a tag", tag.len(), MAX_TAG)
        }
    };
    if let Some(tensor) = tensor_of(frame) {
        tensor.check().map_err(CodecError)?;
    }
    if body_len(frame).is_some_and(|len| len == 0 || len > MAX_BODY) {
        return Err(CodecError("a body of this length is not sent".to_owned()));
    }
    match frame {
        WireFrame::Link(LinkFrame::Hello(hello)) => {
            text(&hello.name)?;
            within("devices", hello.devices.len(), MAX_DEVICES)?;
            hello.devices.iter().try_for_each(|device| text(&device.kind))
        }
        WireFrame::Link(LinkFrame::Leave { reason }) => text(reason),
        WireFrame::Link(LinkFrame::Status) => Ok(()),
        WireFrame::Link(LinkFrame::StatusReport(report)) => {
            within("steps", report.steps.len(), MAX_STEPS)?;
            within("shared variables", report.shared.len(), MAX_ENTRIES)?;
            within("links", report.queues.len(), MAX_ENTRIES)?;
            report.shared.iter().try_for_each(|entry| {
                within("bytes of a name", entry.name.len(), MAX_SHARED_NAME)?;
                within("bytes of a type", entry.ty.len(), MAX_SHARED_TYPE)?;
                within("holders", entry.holders.len(), MAX_ENTRIES)
            })
        }
        WireFrame::ToPeer { frame, .. } => match frame {
            PeerFrame::Open(open) => within("processes", open.processes.len(), MAX_PROCESSES),
            PeerFrame::Release { values } => within("values", values.len(), MAX_RELEASED),
            PeerFrame::Start(start) => {
                within("processes", start.participants.len(), MAX_PROCESSES)?;
                within("variables", start.vars.len() + start.assigns.len(), MAX_VARS)?;
                within("inputs", start.inputs.len(), MAX_INPUTS)
            }
            PeerFrame::Abort { reason, .. } => text(reason),
            PeerFrame::Message(message) => tag(message),
            PeerFrame::Acquire { uses, .. } => {
                within("shared variables", uses.len(), MAX_SHARED)?;
                uses.iter().try_for_each(|shared| {
                    within("bytes of a name", shared.name.len(), MAX_SHARED_NAME)?;
                    within("bytes of a type", shared.ty.len(), MAX_SHARED_TYPE)
                })
            }
            PeerFrame::Renew { locks } => within("locks", locks.len(), MAX_LOCKS),
            PeerFrame::Prepare { values, .. } => within("shared variables", values.len(), MAX_SHARED),
            PeerFrame::Close
            | PeerFrame::Decide { .. }
            | PeerFrame::Unlock { .. }
            | PeerFrame::Register { .. }
            | PeerFrame::Upload { .. }
            | PeerFrame::Unregister { .. }
            | PeerFrame::Store { .. }
            | PeerFrame::Fetch { .. }
            | PeerFrame::TestLink { .. }
            | PeerFrame::Input { .. } => Ok(()),
        },
        WireFrame::ToCaller { frame, .. } => match frame {
            CallerFrame::OpenFailed { error: e, .. }
            | CallerFrame::Refused { error: e, .. }
            | CallerFrame::RequestFailed { error: e, .. } => error(e),
            CallerFrame::Failed { failure, .. } => fault(failure),
            CallerFrame::Heartbeat { steps, .. } => within("steps", steps.len(), MAX_STEPS),
            CallerFrame::Message(message) => tag(message),
            CallerFrame::Print { text, .. } => within("bytes of text", text.len(), MAX_PRINT),
            CallerFrame::Opened { .. }
            | CallerFrame::Wanted { .. }
            | CallerFrame::Registered { .. }
            | CallerFrame::Stored { .. }
            | CallerFrame::Fetched { .. }
            | CallerFrame::LinkTested { .. }
            | CallerFrame::Acquired { .. }
            | CallerFrame::Prepared { .. }
            | CallerFrame::Decided { .. }
            | CallerFrame::Unlinked { .. }
            | CallerFrame::Output { .. }
            | CallerFrame::Ended { .. } => Ok(()),
        },
    }
}

/// Returns the tensor of a frame.
fn tensor_of<T, B>(frame: &WireFrame<T, B>) -> Option<&T> {
    match frame {
        WireFrame::ToPeer { frame: PeerFrame::Store { tensor, .. } | PeerFrame::Input { tensor, .. }, .. }
        | WireFrame::ToCaller {
            frame: CallerFrame::Fetched { tensor, .. } | CallerFrame::Output { tensor, .. }, ..
        } => Some(tensor),
        WireFrame::ToPeer { frame: PeerFrame::Message(message), .. }
        | WireFrame::ToCaller { frame: CallerFrame::Message(message), .. } => match &message.message {
            PartMessage::Value { tensor, .. } => Some(tensor),
            PartMessage::Credit { .. } => None,
        },
        _ => None,
    }
}

fn body_len(frame: &HeadFrame) -> Option<u64> {
    match frame {
        WireFrame::ToPeer { frame: PeerFrame::Upload { bytes, .. }, .. } => bytes.body_len(),
        _ => tensor_of(frame)?.body_len(),
    }
}

impl<T, B> WireFrame<T, B> {
    /// Replaces the payload.
    fn map<T2, B2>(
        self,
        tensor: impl FnOnce(T) -> Result<T2, CodecError>,
        bytes: impl FnOnce(B) -> Result<B2, CodecError>,
    ) -> Result<WireFrame<T2, B2>, CodecError> {
        Ok(match self {
            WireFrame::Link(frame) => WireFrame::Link(frame),
            WireFrame::ToPeer { session, frame } => WireFrame::ToPeer { session, frame: frame.map(tensor, bytes)? },
            WireFrame::ToCaller { session, frame } => WireFrame::ToCaller { session, frame: frame.map(tensor)? },
        })
    }
}

impl<T, B> PeerFrame<T, B> {
    fn map<T2, B2>(
        self,
        f: impl FnOnce(T) -> Result<T2, CodecError>,
        g: impl FnOnce(B) -> Result<B2, CodecError>,
    ) -> Result<PeerFrame<T2, B2>, CodecError> {
        Ok(match self {
            PeerFrame::Register { program, digest, len } => PeerFrame::Register { program, digest, len },
            PeerFrame::Upload { program, bytes } => PeerFrame::Upload { program, bytes: g(bytes)? },
            PeerFrame::Store { request, value, tensor } => PeerFrame::Store { request, value, tensor: f(tensor)? },
            PeerFrame::Input { step, index, tensor } => PeerFrame::Input { step, index, tensor: f(tensor)? },
            PeerFrame::Message(message) => PeerFrame::Message(message.map(f)?),
            PeerFrame::Open(open) => PeerFrame::Open(open),
            PeerFrame::Close => PeerFrame::Close,
            PeerFrame::Unregister { program } => PeerFrame::Unregister { program },
            PeerFrame::Fetch { request, value } => PeerFrame::Fetch { request, value },
            PeerFrame::Release { values } => PeerFrame::Release { values },
            PeerFrame::TestLink { request, process } => PeerFrame::TestLink { request, process },
            PeerFrame::Start(start) => PeerFrame::Start(start),
            PeerFrame::Abort { step, reason } => PeerFrame::Abort { step, reason },
            PeerFrame::Acquire { request, lock, uses } => PeerFrame::Acquire { request, lock, uses },
            PeerFrame::Renew { locks } => PeerFrame::Renew { locks },
            PeerFrame::Prepare { request, lock, is_alone, values } => {
                PeerFrame::Prepare { request, lock, is_alone, values }
            }
            PeerFrame::Decide { request, lock, commits } => PeerFrame::Decide { request, lock, commits },
            PeerFrame::Unlock { lock } => PeerFrame::Unlock { lock },
        })
    }
}

impl<T> CallerFrame<T> {
    fn map<T2>(self, f: impl FnOnce(T) -> Result<T2, CodecError>) -> Result<CallerFrame<T2>, CodecError> {
        Ok(match self {
            CallerFrame::Fetched { request, tensor } => CallerFrame::Fetched { request, tensor: f(tensor)? },
            CallerFrame::Output { step, index, tensor } => CallerFrame::Output { step, index, tensor: f(tensor)? },
            CallerFrame::Message(message) => CallerFrame::Message(message.map(f)?),
            CallerFrame::Opened { attempt, limits } => CallerFrame::Opened { attempt, limits },
            CallerFrame::OpenFailed { attempt, error } => CallerFrame::OpenFailed { attempt, error },
            CallerFrame::Wanted { program } => CallerFrame::Wanted { program },
            CallerFrame::Registered { program, cut } => CallerFrame::Registered { program, cut },
            CallerFrame::Refused { program, error } => CallerFrame::Refused { program, error },
            CallerFrame::Stored { request } => CallerFrame::Stored { request },
            CallerFrame::LinkTested { request, speed } => CallerFrame::LinkTested { request, speed },
            CallerFrame::RequestFailed { request, error } => CallerFrame::RequestFailed { request, error },
            CallerFrame::Acquired { request } => CallerFrame::Acquired { request },
            CallerFrame::Prepared { request } => CallerFrame::Prepared { request },
            CallerFrame::Decided { request } => CallerFrame::Decided { request },
            CallerFrame::Heartbeat { steps, received } => CallerFrame::Heartbeat { steps, received },
            CallerFrame::Unlinked { process } => CallerFrame::Unlinked { process },
            CallerFrame::Print { step, number, stream, text } => CallerFrame::Print { step, number, stream, text },
            CallerFrame::Ended { step, outputs } => CallerFrame::Ended { step, outputs },
            CallerFrame::Failed { step, failure } => CallerFrame::Failed { step, failure },
        })
    }
}

impl<T> StepMessage<T> {
    fn map<T2>(self, f: impl FnOnce(T) -> Result<T2, CodecError>) -> Result<StepMessage<T2>, CodecError> {
        let StepMessage { step, from, from_part, to_part, message } = self;
        let message = match message {
            PartMessage::Value { edge, tag, tensor } => PartMessage::Value { edge, tag, tensor: f(tensor)? },
            PartMessage::Credit { of, tag, finished } => PartMessage::Credit { of, tag, finished },
        };
        Ok(StepMessage { step, from, from_part, to_part, message })
    }
}
