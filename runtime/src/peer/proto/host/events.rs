//! The events of a host, and the actions that it requests.

use super::SharedValue;
use crate::peer::proto::codec::{BodyUse, Destination};
use crate::peer::proto::frame::{Digest, Hello, PeerKey, ProcessNumber, RequestNumber, SessionId, WireFrame};
use crate::peer::proto::frame::{
    Start, StatusReport, StepFault, StepMessage, StepNumber, TestedSpeed, ValueId, WireError,
};
use crate::peer::proto::payload::{MAX_BODY, MAX_WAITING};
use crate::peer::proto::{LinkNumber, Time};
use anabranch_dsl::HostTensor;
use anabranch_dsl::memory::{ByteGauge, HeldBytes};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The limits of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostLimits {
    /// How long a link lasts that no session uses, to a node that sessions introduced.
    pub(crate) idle_link: Duration,
    /// Sessions of one owner.
    pub(crate) sessions: usize,
    /// Loads, steps and requests that run for one owner.
    pub(crate) work: usize,
    /// Programs of a session, and the memory that they take.
    pub(crate) programs: usize,
    pub(crate) program_bytes: u64,
    /// Programs of one owner that load at once, and the bytes of their encoding. One that is larger
    /// loads alone.
    pub(crate) loads: usize,
    pub(crate) load_bytes: u64,
    /// How long a program may take to load.
    pub(crate) load_time: Duration,
    /// How long a step may take.
    pub(crate) step_time: Duration,
    /// Programs that no session uses any more, and their bytes.
    pub(crate) idle_programs: usize,
    pub(crate) idle_program_bytes: u64,
    /// Values of a session, and their bytes.
    pub(crate) values: usize,
    pub(crate) value_bytes: u64,
    /// Shared variables of the peer, and the bytes of their values.
    pub(crate) shared: usize,
    pub(crate) shared_bytes: u64,
    /// Bytes of what has arrived for the steps of a session, and that they have not taken.
    pub(crate) buffered_bytes: u64,
    /// Bytes of the values of a session that wait to be sent.
    pub(crate) outgoing_bytes: u64,
    /// Steps of a session that run, and the bytes that they use.
    pub(crate) steps: usize,
    pub(crate) step_bytes: u64,
    /// Links to nodes that sessions introduced: those of one owner, and all.
    pub(crate) introduced_links: [usize; 2],
    /// Bytes of one payload, and of the payloads of one node and for its sessions that are being
    /// received.
    pub(crate) body_bytes: u64,
    pub(crate) incoming_bytes: u64,
}

impl HostLimits {
    /// The limits of a process that does no work for others.
    pub(crate) const NONE: HostLimits = HostLimits {
        idle_link: Duration::ZERO,
        sessions: 0,
        work: 0,
        programs: 0,
        program_bytes: 0,
        loads: 0,
        load_bytes: 0,
        load_time: Duration::ZERO,
        step_time: Duration::ZERO,
        idle_programs: 0,
        idle_program_bytes: 0,
        values: 0,
        value_bytes: 0,
        shared: 0,
        shared_bytes: 0,
        buffered_bytes: 0,
        outgoing_bytes: 0,
        steps: 0,
        step_bytes: 0,
        introduced_links: [0; 2],
        body_bytes: 0,
        incoming_bytes: 0,
    };
}

impl Default for HostLimits {
    fn default() -> HostLimits {
        HostLimits {
            idle_link: Duration::from_secs(10),
            sessions: 8,
            work: 256,
            programs: 256,
            program_bytes: 1 << 30,
            loads: 16,
            load_bytes: 32 << 20,
            load_time: Duration::from_secs(300),
            step_time: Duration::from_secs(3_600),
            idle_programs: 64,
            idle_program_bytes: 256 << 20,
            values: 65_536,
            value_bytes: 16 << 30,
            shared: 4_096,
            shared_bytes: 16 << 30,
            buffered_bytes: MAX_WAITING,
            outgoing_bytes: MAX_WAITING,
            steps: 32,
            step_bytes: 16 << 30,
            introduced_links: [256, 512],
            body_bytes: MAX_BODY,
            incoming_bytes: 2 * MAX_BODY,
        }
    }
}

/// A session at a host. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionSlot(pub(crate) u64);

/// A program that a host has loaded, perhaps for several sessions. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProgramKey(pub(crate) u64);

/// A step at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StepKey {
    pub(crate) session: SessionSlot,
    pub(crate) step: StepNumber,
}

/// A request at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestKey {
    pub(crate) session: SessionSlot,
    pub(crate) request: RequestNumber,
}

/// An event at a host.
#[derive(Debug)]
pub(crate) enum HostInput {
    /// A link exists. `is_introduced` says that the node is known only from sessions.
    Linked {
        link: LinkNumber,
        node: PeerKey,
        is_introduced: bool,
    },
    /// A frame arrived, with a body of this many bytes that [`Host::admit`] has admitted.
    Frame {
        link: LinkNumber,
        frame: WireFrame,
        body: u64,
    },
    /// A body that [`Host::admit`](super::Host::admit) has admitted does not arrive as a whole.
    Cancelled {
        link: LinkNumber,
        to: Destination,
        len: u64,
    },
    /// A body that [`Host::admit`](super::Host::admit) has dropped begins to arrive.
    Discarded {
        link: LinkNumber,
        session: SessionId,
        used_by: BodyUse,
    },
    LinkLost {
        link: LinkNumber,
        reason: String,
    },
    /// The bytes of bodies that have arrived on a link, for the next heartbeat.
    Received {
        link: LinkNumber,
        bytes: u64,
    },
    /// The outcome of [`HostOutput::Dial`]. The link itself is reported by `Linked`.
    Dialed {
        session: SessionSlot,
        process: ProcessNumber,
        outcome: Result<(), String>,
    },
    /// The outcome of [`HostOutput::Load`].
    Loaded {
        key: ProgramKey,
        outcome: Result<LoadedAs, WireError>,
    },
    Stored {
        key: RequestKey,
        outcome: Result<(), WireError>,
    },
    Fetched {
        key: RequestKey,
        outcome: Result<HostTensor, WireError>,
    },
    LinkTested {
        key: RequestKey,
        outcome: Result<TestedSpeed, WireError>,
    },
    /// The progress of a step, for the next heartbeat.
    Progressed {
        key: StepKey,
        done: u64,
        is_busy: bool,
        last: Option<u32>,
    },
    /// A step has ended. Its outputs and prints have been sent.
    StepEnded {
        key: StepKey,
        outcome: Result<StepEnd, StepFault>,
    },
    /// Begin nothing new, and report when all work is done and all sessions have ended: their
    /// owners end them when they need nothing more from this process.
    Leave {
        reason: String,
    },
    Tick,
}

/// A program that was loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedAs {
    /// How this process cuts it.
    pub(crate) cut: Digest,
    /// The memory that it takes, in addition to that of its encoding.
    pub(crate) bytes: u64,
}

/// The results of a step at a participant.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepEnd {
    /// Number of outputs sent.
    pub(crate) outputs: u32,
    /// The variables assigned, with the bytes of their new values.
    pub(crate) assigned: Vec<(u32, u64)>,
}

/// An action requested of the process.
#[derive(Debug)]
pub(crate) enum HostOutput {
    Send {
        link: LinkNumber,
        frame: WireFrame,
    },
    /// Send a report, with the links and queues of the process.
    Report {
        link: LinkNumber,
        report: StatusReport,
    },
    /// Send a value that counts as waiting until it is sent.
    SendValue {
        link: LinkNumber,
        frame: WireFrame,
        held: Option<HeldBytes>,
    },
    /// Forget the bodies of a session that wait to be sent, or those of one of its steps.
    CancelBodies {
        session: SessionId,
        step: Option<StepNumber>,
    },
    /// Close a link whose other side broke the protocol, or that is not used. The host treats it as
    /// lost.
    CloseLink {
        link: LinkNumber,
        reason: String,
    },
    /// The other side of a link has introduced itself.
    Greeted {
        link: LinkNumber,
        node: PeerKey,
        hello: Hello,
    },
    /// The other side of a link will begin nothing new.
    Leaving {
        link: LinkNumber,
        reason: String,
    },
    StatusReported {
        link: LinkNumber,
        report: StatusReport,
    },
    Dial {
        session: SessionSlot,
        process: ProcessNumber,
        node: PeerKey,
        addr: SocketAddr,
    },
    Load {
        key: ProgramKey,
        /// This process in the program.
        process: ProcessNumber,
        digest: Digest,
        bytes: Arc<[u8]>,
        /// The memory that it may take, in addition to that of its encoding.
        room: u64,
    },
    /// Drop a program, or end its loading as soon as possible. The end of loading must still be
    /// reported.
    Unload {
        key: ProgramKey,
    },
    StoreValue {
        key: RequestKey,
        value: ValueId,
        tensor: HostTensor,
    },
    FetchValue {
        key: RequestKey,
        value: ValueId,
    },
    TestLink {
        key: RequestKey,
        link: LinkNumber,
    },
    DropValues {
        session: SessionSlot,
        values: Vec<ValueId>,
    },
    /// Keep a session's value as one of a shared variable, too.
    ShareValue {
        session: SessionSlot,
        value: ValueId,
        to: SharedValue,
    },
    /// Keep a value of a shared variable as one of a session, too.
    LendValue {
        from: SharedValue,
        session: SessionSlot,
        value: ValueId,
    },
    DropShared {
        value: SharedValue,
    },
    Begin(Box<Begin>),
    /// Something that arrived for a step. It counts as waiting until the step takes it.
    Deliver {
        key: StepKey,
        arrival: HostArrival,
        held: HeldBytes,
    },
    /// End a step early. Its end must still be reported.
    Stop {
        key: StepKey,
        reason: WireError,
    },
    /// The step is over. Store the new values of these variables, or none of them.
    Finish {
        key: StepKey,
        keep: Option<Vec<(u32, ValueId)>>,
    },
    DropSession {
        session: SessionSlot,
    },
    /// After `Leave`: all work is done, and no session is open.
    Idle,
}

/// A step to begin.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(crate) key: StepKey,
    pub(crate) session: SessionId,
    pub(crate) program: ProgramKey,
    /// This process.
    pub(crate) you: ProcessNumber,
    /// The links to the other participants.
    pub(crate) routes: Vec<(ProcessNumber, LinkNumber)>,
    /// The values of the session that wait to be sent.
    pub(crate) outgoing: Arc<ByteGauge>,
    /// The memory that the steps of the session use.
    pub(crate) working: Arc<ByteGauge>,
    pub(crate) start: Start,
    #[expect(dead_code, reason = "the host stops the step at the deadline")]
    pub(crate) deadline: Option<Time>,
}

/// What arrives for a running step.
#[derive(Debug)]
pub(crate) enum HostArrival {
    Message(StepMessage),
    Input { index: u32, tensor: HostTensor },
}
