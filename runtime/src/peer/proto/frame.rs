//! The frames that processes exchange.
//!
//! A [`WireFrame`] is about a link, or goes to a peer ([`PeerFrame`]), or goes to the owner of a
//! session ([`CallerFrame`]). A process that serves its devices and also owns sessions can thus
//! tell which of its two sides a frame is for.
//!
//! Invariants:
//!
//! - A frame holds at most one payload: a tensor `T`, or the bytes `B` of a program. In memory
//!   these are the payloads themselves. In an encoded head they are descriptions (`codec`).
//! - Step numbers and value ids are counted up in each session and never reused, so a number alone
//!   tells a late frame from a current one.
//! - A source location never crosses. Labels name nodes of the graph by number.
//!
//! This module must not know sockets, graphs or devices.

use crate::peer::printable;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Loc};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Defines an id as a number.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub(crate) struct $name(pub(crate) $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A session: a random number that its owner chose.
    SessionId(u64)
}
number! {
    /// Index of a process in the table of a session. The owner is 0.
    ProcessNumber(u32)
}
number! {
    /// A program of a session.
    ProgramNumber(u32)
}
number! {
    /// A step of a session. Later steps have higher numbers.
    StepNumber(u64)
}
number! {
    /// A value of a variable at a peer. A value never changes.
    ValueId(u64)
}
number! {
    /// A request of a session that is answered once.
    RequestNumber(u64)
}
number! {
    /// A lock of a session on shared variables of a peer. Numbers are never reused.
    LockNumber(u64)
}

/// The process that owns a session.
pub(crate) const OWNER: ProcessNumber = ProcessNumber(0);

/// The public key of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct PeerKey(pub(crate) [u8; 32]);

impl fmt::Display for PeerKey {
    /// Writes the first 8 hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A digest of a program, or of the way in which a process cuts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Digest(pub(crate) [u8; 32]);

/// A frame. The defaults are the payloads in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum WireFrame<T = HostTensor, B = Arc<[u8]>> {
    Link(LinkFrame),
    /// From the owner of a session, or from a participant, to a peer.
    ToPeer {
        session: SessionId,
        frame: PeerFrame<T, B>,
    },
    /// From a peer to the owner of a session.
    ToCaller {
        session: SessionId,
        frame: CallerFrame<T>,
    },
}

impl<T, B> WireFrame<T, B> {
    /// Returns the step that needs the value in the frame, if it is for one.
    pub(crate) fn step(&self) -> Option<StepNumber> {
        match self {
            WireFrame::ToPeer { frame: PeerFrame::Input { step, .. }, .. }
            | WireFrame::ToPeer { frame: PeerFrame::Message(StepMessage { step, .. }), .. }
            | WireFrame::ToCaller { frame: CallerFrame::Output { step, .. }, .. }
            | WireFrame::ToCaller { frame: CallerFrame::Message(StepMessage { step, .. }), .. } => Some(*step),
            _ => None,
        }
    }
}

/// The most bytes of a value that waits for no larger one.
const URGENT_BYTES: u64 = 64;

/// The other frames that a frame waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOrder {
    /// It waits for other urgent ones alone: it says that a step goes on or a lock is held, or is a
    /// message of a step with a decision, a number or a credit.
    Urgent,
    /// It is a larger value of a step, for which nothing else waits.
    Value,
    /// It stays in order with all frames but those above.
    InOrder,
}

impl WireFrame {
    /// Returns which other frames the frame waits for.
    pub(crate) fn order(&self) -> FrameOrder {
        match self {
            WireFrame::ToCaller { frame: CallerFrame::Heartbeat { .. }, .. }
            | WireFrame::ToPeer { frame: PeerFrame::Renew { .. }, .. } => FrameOrder::Urgent,
            WireFrame::ToCaller { frame: CallerFrame::Message(message), .. }
            | WireFrame::ToPeer { frame: PeerFrame::Message(message), .. } => match &message.message {
                PartMessage::Value { tensor, .. } if tensor.n_bytes() > URGENT_BYTES => FrameOrder::Value,
                PartMessage::Value { .. } | PartMessage::Credit { .. } => FrameOrder::Urgent,
            },
            _ => FrameOrder::InOrder,
        }
    }
}

/// A frame about the link itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum LinkFrame {
    /// The first frame of each side.
    Hello(Hello),
    /// The sender begins nothing new. It closes the link when its steps have ended.
    Leave {
        reason: String,
    },
    /// Asks for a report.
    Status,
    StatusReport(StatusReport),
}

/// The description of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) name: String,
    /// A number that differs for each start of the process.
    pub(crate) incarnation: u64,
    pub(crate) devices: Vec<DeviceEntry>,
}

/// A device that a peer offers, with its rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceEntry {
    /// The kind in device names, for example `cpu`.
    pub(crate) kind: String,
    pub(crate) index: u32,
    /// Operations per second.
    pub(crate) flops: f64,
    /// Bytes per second.
    pub(crate) bandwidth: f64,
    /// Seconds to start a kernel.
    pub(crate) launch: f64,
    /// The sizes that it supports, if it is a GPU.
    pub(crate) limits: Option<GpuLimits>,
}

/// The sizes that a GPU supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuLimits {
    /// Bytes that a shader can bind.
    pub(crate) max_bytes: u64,
    /// Iterations of a loop of a thread, if the driver ends it after some of them.
    pub(crate) max_iterations: Option<u64>,
    /// Whether its memory may have elements of 16 bits.
    pub(crate) has_halves: bool,
}

/// The load of a peer, and the steps of the sessions that the asking node owns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusReport {
    pub(crate) usage: Usage,
    pub(crate) steps: Vec<(SessionId, StepProgress)>,
    /// Whether the asking node may not see the state. The rest is empty then.
    pub(crate) is_refused: bool,
    /// The first shared variables, by name, and the number of all.
    pub(crate) shared: Vec<SharedEntry>,
    pub(crate) n_shared: u64,
    /// The programs that are loaded, and those of them that no session uses.
    pub(crate) library: (u64, u64),
    /// The number of messages that have arrived for running steps, and that these have not handled.
    pub(crate) arrivals: u64,
    /// The first links, and the number of all.
    pub(crate) queues: Vec<LinkQueue>,
    pub(crate) n_links: u64,
}

/// A link of a peer: what waits to be sent on it, and how fast it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkQueue {
    pub(crate) node: PeerKey,
    pub(crate) round_trip_us: u64,
    pub(crate) sent_bytes: u64,
    /// Bytes sent per second, in the last seconds.
    pub(crate) sent_per_second: u64,
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) bodies: u64,
    pub(crate) body_bytes: u64,
}

/// A shared variable of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedEntry {
    pub(crate) name: String,
    pub(crate) ty: String,
    pub(crate) bytes: u64,
    /// The number of values that were committed, without the first.
    pub(crate) commits: u64,
    /// The nodes whose sessions have locked it. Several may read it.
    pub(crate) holders: Vec<PeerKey>,
    /// The number of steps that wait for a lock of it.
    pub(crate) waiting: u32,
    /// Whether it is unknown if a commit has happened.
    pub(crate) is_in_doubt: bool,
}

/// What a peer holds for all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) sessions: u64,
    pub(crate) programs: u64,
    pub(crate) program_bytes: u64,
    pub(crate) values: u64,
    pub(crate) value_bytes: u64,
    /// Steps for which frames wait until they begin.
    pub(crate) early_steps: u64,
    /// Bytes of what has arrived for steps, and that they have not taken.
    pub(crate) buffered_bytes: u64,
    /// Bytes of payloads that are being received.
    pub(crate) incoming_bytes: u64,
    pub(crate) steps: u64,
    /// Bytes that the steps of open sessions use.
    pub(crate) step_bytes: u64,
    /// Loads, steps and requests that run in this process, also those of closed sessions.
    pub(crate) work: u64,
}

/// A frame to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PeerFrame<T = HostTensor, B = Arc<[u8]>> {
    Open(Open),
    Close,
    /// Registers a program of `len` bytes with this digest. The peer may have it from an earlier
    /// registration of the same owner.
    Register {
        program: ProgramNumber,
        digest: Digest,
        len: u64,
    },
    /// The bytes of a program, after the peer has asked for them.
    Upload {
        program: ProgramNumber,
        bytes: B,
    },
    Unregister {
        program: ProgramNumber,
    },
    Store {
        request: RequestNumber,
        value: ValueId,
        tensor: T,
    },
    Fetch {
        request: RequestNumber,
        value: ValueId,
    },
    Release {
        values: Vec<ValueId>,
    },
    /// Asks the peer to test its link to another process.
    TestLink {
        request: RequestNumber,
        process: ProcessNumber,
    },
    Start(Start),
    Input {
        step: StepNumber,
        index: u32,
        tensor: T,
    },
    Abort {
        step: StepNumber,
        reason: String,
    },
    Message(StepMessage<T>),
    /// Asks for the newest values of shared variables. With a lock, waits until it is granted.
    Acquire {
        request: RequestNumber,
        lock: Option<LockNumber>,
        uses: Vec<SharedUse>,
    },
    /// Renews locks before they expire.
    Renew {
        locks: Vec<LockNumber>,
    },
    /// Names new values of the variables of a lock, by the index of the use. From then on the lock
    /// does not expire. `is_alone` says that the step assigns shared variables of no other peer.
    Prepare {
        request: RequestNumber,
        lock: LockNumber,
        is_alone: bool,
        values: Vec<(u32, ValueId)>,
    },
    /// Ends a lock that is prepared: its new values are in effect, or are dropped.
    Decide {
        request: RequestNumber,
        lock: LockNumber,
        commits: bool,
    },
    /// Ends a lock that is not prepared, or the wait for it.
    Unlock {
        lock: LockNumber,
    },
}

/// The speed of a link, as a test has found it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TestedSpeed {
    /// The seconds that a small message takes.
    pub(crate) latency: f64,
    /// Bytes per second of the slower direction.
    pub(crate) bandwidth: f64,
}

impl TestedSpeed {
    /// Returns whether a link can have this speed.
    pub(crate) fn is_possible(&self) -> bool {
        let TestedSpeed { latency, bandwidth } = *self;
        latency.is_finite() && latency >= 0.0 && bandwidth.is_finite() && bandwidth > 0.0
    }
}

/// A frame to the owner of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum CallerFrame<T = HostTensor> {
    /// All needed links are up.
    Opened {
        attempt: u64,
        limits: SessionLimits,
    },
    OpenFailed {
        attempt: u64,
        error: WireError,
    },
    /// The peer needs the bytes of a program.
    Wanted {
        program: ProgramNumber,
    },
    Registered {
        program: ProgramNumber,
        cut: Digest,
    },
    Refused {
        program: ProgramNumber,
        error: WireError,
    },
    Stored {
        request: RequestNumber,
    },
    Fetched {
        request: RequestNumber,
        tensor: T,
    },
    /// How fast a link of the peer is.
    LinkTested {
        request: RequestNumber,
        speed: TestedSpeed,
    },
    RequestFailed {
        request: RequestNumber,
        error: WireError,
    },
    /// The answer to [`PeerFrame::Acquire`]: the session has the newest values, and the lock.
    Acquired {
        request: RequestNumber,
    },
    Prepared {
        request: RequestNumber,
    },
    Decided {
        request: RequestNumber,
    },
    /// The sender is alive, and this is the progress of the steps that it runs.
    Heartbeat {
        steps: Vec<StepProgress>,
        /// Bytes of bodies that have arrived from the owner. They rise while a slow transfer goes
        /// on.
        received: u64,
    },
    /// The sender has no link to a process of the session any more.
    Unlinked {
        process: ProcessNumber,
    },
    Message(StepMessage<T>),
    Output {
        step: StepNumber,
        index: u32,
        tensor: T,
    },
    Print {
        step: StepNumber,
        number: u64,
        stream: PrintStream,
        text: String,
    },
    /// The participant has ended after sending this many outputs. Its assignments are stored.
    Ended {
        step: StepNumber,
        outputs: u32,
    },
    /// The participant has ended by a failure. It has stored nothing.
    Failed {
        step: StepNumber,
        failure: StepFault,
    },
}

/// Opens a session at a peer, or tells it new addresses and asks it to restore lost links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// The number of this attempt, for the answer.
    pub(crate) attempt: u64,
    /// The receiver.
    pub(crate) you: ProcessNumber,
    /// All processes. The owner is the first.
    pub(crate) processes: Vec<ProcessEntry>,
    pub(crate) failure_timeout_ms: u32,
    /// Steps with lower numbers will not begin.
    pub(crate) first_step: StepNumber,
}

/// How a step uses a shared variable of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SharedUse {
    /// The name, unique at the peer.
    pub(crate) name: String,
    /// The type as text. It must be that with which the variable was created.
    pub(crate) ty: String,
    pub(crate) is_read: bool,
    pub(crate) is_assigned: bool,
    /// The id under which the session gets the newest value.
    pub(crate) value: ValueId,
    /// The session's value with which the variable is created if it does not exist.
    pub(crate) initial: Option<ValueId>,
}

/// A process of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessEntry {
    pub(crate) node: PeerKey,
    /// The address at which other peers reach the process. The owner needs none.
    pub(crate) addr: Option<SocketAddr>,
    /// Whether the receiver needs a link to the process. It does not if the process is lost.
    pub(crate) is_needed: bool,
}

/// What a peer grants a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionLimits {
    pub(crate) programs: u32,
    pub(crate) program_bytes: u64,
    pub(crate) value_bytes: u64,
    /// The largest payload.
    pub(crate) body_bytes: u64,
    pub(crate) steps: u32,
    /// How long a program may take to load.
    pub(crate) load_ms: u64,
    /// How long a step may take.
    pub(crate) step_ms: u64,
}

/// Begins a step at a participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) step: StepNumber,
    pub(crate) program: ProgramNumber,
    /// All processes that take part, in ascending order. The owner always does.
    pub(crate) participants: Vec<ProcessNumber>,
    pub(crate) deadline_ms: Option<u32>,
    /// The variables that the step reads, with their values.
    pub(crate) vars: Vec<(u32, ValueId)>,
    /// The variables that the step assigns, with the ids of the new values.
    pub(crate) assigns: Vec<(u32, ValueId)>,
    /// The inputs of the graph that arrive as [`PeerFrame::Input`].
    pub(crate) inputs: Vec<u32>,
}

/// A message from a part of a program to a part in another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepMessage<T = HostTensor> {
    pub(crate) step: StepNumber,
    pub(crate) from: ProcessNumber,
    pub(crate) from_part: u32,
    pub(crate) to_part: u32,
    pub(crate) message: PartMessage<T>,
}

/// The contents of a [`StepMessage`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PartMessage<T = HostTensor> {
    Value { edge: u32, tag: Vec<u64>, tensor: T },
    Credit { of: u32, tag: Vec<u64>, finished: u64 },
}

impl StepMessage {
    /// Returns the bytes that the message takes while it waits, apart from a constant.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let (tag, tensor) = match &self.message {
            PartMessage::Value { tag, tensor, .. } => (tag, tensor.memory_bytes()),
            PartMessage::Credit { tag, .. } => (tag, 0),
        };
        tensor + size_of_val(&tag[..]) as u64
    }
}

/// How far a participant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepProgress {
    pub(crate) step: StepNumber,
    /// A count that rises with each operation done.
    pub(crate) done: u64,
    /// Whether an operation is running. Otherwise the participant waits for messages.
    pub(crate) is_busy: bool,
    /// The node of the operation that was begun last.
    pub(crate) last: Option<u32>,
}

/// The stream of a print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PrintStream {
    Stdout,
    Stderr,
}

/// The failure of a step in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepFault {
    /// The position of the operation that failed, if one did. Positions compare lexicographically.
    pub(crate) position: Option<Vec<u64>>,
    pub(crate) error: WireError,
}

/// An error that crosses processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireError {
    pub(crate) kind: WireErrorKind,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// Nodes of the graph with explanations. A label without a node is a note.
    pub(crate) labels: Vec<(Option<u32>, String)>,
}

/// The kind of a [`WireError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireErrorKind {
    Invalid,
    AssertionFailed,
    DeadlineExceeded,
    Cancelled,
    ResourceExhausted,
    Unavailable,
    Internal,
}

/// Maximum bytes of a text in an error, a reason or a name of a device.
pub(crate) const MAX_TEXT: usize = 4_096;

/// Maximum bytes of the name of a shared variable.
pub(crate) const MAX_SHARED_NAME: usize = anabranch_dsl::var::MAX_SHARED_NAME;

/// Maximum bytes of the type of a shared variable as text.
pub(crate) const MAX_SHARED_TYPE: usize = 1_024;

/// Maximum number of labels of an error.
pub(crate) const MAX_LABELS: usize = 8;

/// Returns the longest prefix of at most `max` bytes that ends at a character boundary.
pub(crate) fn prefix(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

impl WireError {
    pub(crate) fn new(kind: WireErrorKind, message: impl AsRef<str>) -> WireError {
        WireError { kind, message: prefix(message.as_ref(), MAX_TEXT).to_owned(), help: None, labels: Vec::new() }
    }

    /// Adds an explanation, at a node of the graph if it is about one.
    pub(crate) fn at(mut self, node: Option<u32>, text: impl AsRef<str>) -> WireError {
        if self.labels.len() < MAX_LABELS {
            self.labels.push((node, prefix(text.as_ref(), MAX_TEXT).to_owned()));
        }
        self
    }

    /// Sets what to do about the error.
    pub(crate) fn help(self, help: impl AsRef<str>) -> WireError {
        WireError { help: Some(prefix(help.as_ref(), MAX_TEXT).to_owned()), ..self }
    }

    /// Converts an error for another process. `node` returns the node whose number a location is.
    /// The texts of all other labels cross as notes.
    pub(crate) fn from_diagnostic(error: &Diagnostic, node: impl Fn(Loc) -> Option<u32>) -> WireError {
        let kind = match error.kind {
            ErrorKind::Invalid => WireErrorKind::Invalid,
            ErrorKind::AssertionFailed => WireErrorKind::AssertionFailed,
            ErrorKind::DeadlineExceeded => WireErrorKind::DeadlineExceeded,
            ErrorKind::Cancelled => WireErrorKind::Cancelled,
            ErrorKind::ResourceExhausted => WireErrorKind::ResourceExhausted,
            ErrorKind::Unavailable => WireErrorKind::Unavailable,
            _ => WireErrorKind::Internal,
        };
        let labels = error.labels.iter().take(MAX_LABELS);
        WireError {
            kind,
            message: prefix(&error.message, MAX_TEXT).to_owned(),
            help: error.help.as_deref().map(|help| prefix(help, MAX_TEXT).to_owned()),
            labels: labels.map(|(loc, text)| (node(*loc), prefix(text, MAX_TEXT).to_owned())).collect(),
        }
    }

    /// Converts an error of another process. `loc` returns the location of a node.
    pub(crate) fn into_diagnostic(self, loc: impl Fn(u32) -> Loc) -> Diagnostic {
        let kind = match self.kind {
            WireErrorKind::Invalid => ErrorKind::Invalid,
            WireErrorKind::AssertionFailed => ErrorKind::AssertionFailed,
            WireErrorKind::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            WireErrorKind::Cancelled => ErrorKind::Cancelled,
            WireErrorKind::ResourceExhausted => ErrorKind::ResourceExhausted,
            WireErrorKind::Unavailable => ErrorKind::Unavailable,
            WireErrorKind::Internal => ErrorKind::Internal,
        };
        let lines = |text: &str| text.lines().map(printable).collect::<Vec<_>>().join("\n");
        let labels = self.labels.iter().map(|(node, text)| (node.map_or(Loc::UNKNOWN, &loc), lines(text)));
        let mut error = Diagnostic::new(lines(&self.message)).of_kind(kind);
        (error.labels, error.help) = (labels.collect(), self.help.as_deref().map(lines));
        error
    }
}

impl StepFault {
    /// Creates a failure that is not of an operation.
    pub(crate) fn new(kind: WireErrorKind, message: impl AsRef<str>) -> StepFault {
        StepFault { position: None, error: WireError::new(kind, message) }
    }
}
