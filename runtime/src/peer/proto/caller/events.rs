//! The events of a session at its owner, and the actions that it requests.

use crate::peer::proto::frame::{Digest, Hello, PeerKey, PrintStream, ProcessNumber, ProgramNumber, WireFrame};
use crate::peer::proto::frame::{
    RequestNumber, SessionId, StepFault, StepMessage, StepNumber, TestedSpeed, ValueId, WireError,
};
use crate::peer::proto::{LinkNumber, Time};
use anabranch_dsl::HostTensor;
use anabranch_dsl::memory::HeldBytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerOptions {
    /// A random number.
    pub(crate) session: SessionId,
    /// How long a peer may be silent, and half of how long a transfer may stand still.
    pub(crate) failure_timeout: Duration,
    /// How long a step may go on without progress while some operation is running. Peers limit
    /// their own operations, too.
    pub(crate) busy_timeout: Duration,
    /// Bytes of what has arrived for the steps of the session, and that they have not taken.
    pub(crate) buffered_bytes: u64,
}

/// A peer of a session.
#[derive(Clone, Debug)]
pub(crate) struct KnownPeer {
    /// A name for messages.
    pub(crate) name: String,
    pub(crate) node: PeerKey,
    pub(crate) addr: SocketAddr,
}

/// An event at the owner of a session.
#[derive(Debug)]
pub(crate) enum CallerInput {
    /// A link is up, and the process at its other side has introduced itself.
    Linked {
        link: LinkNumber,
        node: PeerKey,
        hello: Hello,
    },
    /// A frame of a link. Frames of other sessions are ignored.
    Frame {
        link: LinkNumber,
        frame: WireFrame,
    },
    LinkLost {
        link: LinkNumber,
        loss: LinkLoss,
    },
    /// The bytes of bodies that have arrived on a link.
    Received {
        link: LinkNumber,
        bytes: u64,
    },
    Tick,
}

/// Why a link is lost.
#[derive(Clone, Debug)]
pub(crate) enum LinkLoss {
    /// The other side closed it.
    Closed(String),
    /// Nothing arrives from the other side: its process is stopped, or its machine or the network
    /// is down.
    TimedOut,
    /// The machine of the other side answers that no process listens, or a new one does.
    Refused,
    /// This side closed it.
    Local(String),
}

/// An action requested of the process.
#[derive(Debug)]
pub(crate) enum CallerOutput {
    Send {
        link: LinkNumber,
        frame: WireFrame,
    },
    /// Close a link. The caller treats it as lost.
    CloseLink {
        link: LinkNumber,
        reason: String,
    },
    /// All peers have answered to [`Caller::open`]. Those that failed are named, with the reason.
    Opened {
        failed: Vec<(ProcessNumber, WireError)>,
    },
    /// The state of a program has changed ([`Caller::program`]).
    #[cfg_attr(not(test), expect(dead_code, reason = "a process looks at all programs that it waits for"))]
    ProgramChanged {
        process: ProcessNumber,
        program: ProgramNumber,
    },
    RequestDone {
        request: RequestNumber,
        outcome: Result<RequestResult, WireError>,
    },
    /// What arrived for a step, in order. It counts as waiting until the step takes it.
    Arrived {
        step: StepNumber,
        arrival: CallerArrival,
        held: Option<HeldBytes>,
    },
    /// A step is done. The new values of variables are those to commit.
    StepDone {
        step: StepNumber,
        outcome: Result<Vec<NewValue>, StepFault>,
    },
    #[expect(dead_code, reason = "the steps and requests of the peer fail with the error")]
    PeerLost {
        process: ProcessNumber,
        error: WireError,
    },
}

/// The result of a request to a peer.
#[derive(Clone, Debug)]
pub(crate) enum RequestResult {
    Done,
    /// The value that was fetched.
    Value(HostTensor),
    /// The speed of the link that was tested.
    Speed(TestedSpeed),
}

/// What arrives for a step at the owner of its session.
#[derive(Debug)]
pub(crate) enum CallerArrival {
    Message(StepMessage),
    Output {
        process: ProcessNumber,
        index: u32,
        tensor: HostTensor,
    },
    Print {
        stream: PrintStream,
        text: String,
    },
    /// The participant has ended, and all of its outputs have arrived.
    Ended {
        process: ProcessNumber,
    },
    /// The step fails. It is being aborted everywhere.
    Failed {
        process: ProcessNumber,
        failure: StepFault,
    },
}

/// A program to register at a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramOffer<'a> {
    pub(crate) bytes: &'a Arc<[u8]>,
    pub(crate) digest: Digest,
    /// The digest of the cut of this process, which the peer's must equal.
    pub(crate) cut: Digest,
}

/// The state of a program at a peer, as it is loaded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgramState {
    Loading {
        begun: Time,
    },
    /// The peer has cut the program like this process.
    Ready,
    Refused {
        error: WireError,
    },
}

/// The new value of a variable at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewValue {
    pub(crate) process: ProcessNumber,
    pub(crate) variable: u32,
    pub(crate) value: ValueId,
}
