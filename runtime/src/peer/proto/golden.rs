//! The bytes of one frame of each kind, which belong to the version of the protocol.

use super::codec::{Encoded, VERSION, decode, encode};
use super::frame::*;
use anabranch_dsl::HostTensor;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

/// Returns the frames that follow in a list with one frame of each kind. Each `match` is complete,
/// so a new kind does not compile before it has its place.
fn after(frame: &WireFrame) -> Option<WireFrame> {
    let session = SessionId(1);
    let to_peer = |frame| WireFrame::ToPeer { session, frame };
    let to_caller = |frame| WireFrame::ToCaller { session, frame };
    Some(match frame {
        WireFrame::Link(frame) => match after_link(frame) {
            Some(next) => WireFrame::Link(next),
            None => to_peer(first_to_peer()),
        },
        WireFrame::ToPeer { frame, .. } => match after_to_peer(frame) {
            Some(next) => to_peer(next),
            None => to_caller(first_to_caller()),
        },
        WireFrame::ToCaller { frame, .. } => to_caller(after_to_caller(frame)?),
    })
}

const REQUEST: RequestNumber = RequestNumber(2);
const LOCK: LockNumber = LockNumber(3);
const STEP: StepNumber = StepNumber(4);
const PROGRAM: ProgramNumber = ProgramNumber(5);
const VALUE: ValueId = ValueId(6);
const NODE: PeerKey = PeerKey([7; 32]);

fn error() -> WireError {
    let kind = WireErrorKind::ResourceExhausted;
    WireError::new(kind, "message").help("help").at(Some(8), "here").at(None, "note")
}

fn tensor() -> HostTensor {
    HostTensor::new(vec![1, 2], vec![1i64, -1])
}

fn progress() -> StepProgress {
    StepProgress { step: STEP, done: 9, is_busy: true, last: Some(10) }
}

fn message(message: PartMessage) -> StepMessage {
    StepMessage { step: STEP, from: ProcessNumber(2), from_part: 11, to_part: 12, message }
}

fn first() -> WireFrame {
    let limits = GpuLimits { max_bytes: 1 << 30, max_iterations: Some(1_000), has_halves: true };
    let device =
        DeviceEntry { kind: "gpu".to_owned(), index: 1, flops: 1.0, bandwidth: 2.0, launch: 0.5, limits: Some(limits) };
    WireFrame::Link(LinkFrame::Hello(Hello { name: "name".to_owned(), incarnation: 1, devices: vec![device] }))
}

fn after_link(frame: &LinkFrame) -> Option<LinkFrame> {
    Some(match frame {
        LinkFrame::Hello(_) => LinkFrame::Leave { reason: "reason".to_owned() },
        LinkFrame::Leave { .. } => LinkFrame::Status,
        LinkFrame::Status => {
            let usage = Usage {
                sessions: 1,
                programs: 2,
                program_bytes: 3,
                values: 4,
                value_bytes: 5,
                early_steps: 6,
                buffered_bytes: 7,
                incoming_bytes: 8,
                steps: 9,
                step_bytes: 10,
                work: 11,
            };
            let shared = SharedEntry {
                name: "n".to_owned(),
                ty: "i64[]".to_owned(),
                bytes: 8,
                commits: 1,
                holders: vec![NODE],
                waiting: 2,
                is_in_doubt: true,
            };
            let queue = LinkQueue {
                node: NODE,
                round_trip_us: 1,
                sent_bytes: 2,
                sent_per_second: 3,
                sent_packets: 4,
                lost_packets: 5,
                frame_bytes: 6,
                bodies: 7,
                body_bytes: 8,
            };
            LinkFrame::StatusReport(StatusReport {
                usage,
                steps: vec![(SessionId(1), progress())],
                is_refused: false,
                shared: vec![shared],
                n_shared: 1,
                library: (2, 1),
                arrivals: 3,
                queues: vec![queue],
                n_links: 1,
            })
        }
        LinkFrame::StatusReport(_) => return None,
    })
}

fn first_to_peer() -> PeerFrame {
    let addr = SocketAddr::from(([10, 0, 0, 1], 7_700));
    PeerFrame::Open(Open {
        attempt: 1,
        you: ProcessNumber(1),
        processes: vec![ProcessEntry { node: NODE, addr: Some(addr), is_needed: true }],
        failure_timeout_ms: 10_000,
        first_step: STEP,
    })
}

fn after_to_peer(frame: &PeerFrame) -> Option<PeerFrame> {
    let lock = LOCK;
    let request = REQUEST;
    let program = PROGRAM;
    Some(match frame {
        PeerFrame::Open(_) => PeerFrame::Close,
        PeerFrame::Close => PeerFrame::Register { program, digest: Digest([1; 32]), len: 2 },
        PeerFrame::Register { .. } => PeerFrame::Upload { program, bytes: vec![1, 2].into() },
        PeerFrame::Upload { .. } => PeerFrame::Unregister { program },
        PeerFrame::Unregister { .. } => PeerFrame::Store { request, value: VALUE, tensor: tensor() },
        PeerFrame::Store { .. } => PeerFrame::Fetch { request, value: VALUE },
        PeerFrame::Fetch { .. } => PeerFrame::Release { values: vec![VALUE] },
        PeerFrame::Release { .. } => PeerFrame::TestLink { request, process: ProcessNumber(2) },
        PeerFrame::TestLink { .. } => PeerFrame::Start(Start {
            step: STEP,
            program,
            participants: vec![OWNER, ProcessNumber(1)],
            deadline_ms: Some(1_000),
            vars: vec![(1, VALUE)],
            assigns: vec![(2, ValueId(7))],
            inputs: vec![3],
        }),
        PeerFrame::Start(_) => PeerFrame::Input { step: STEP, index: 3, tensor: tensor() },
        PeerFrame::Input { .. } => PeerFrame::Abort { step: STEP, reason: "reason".to_owned() },
        PeerFrame::Abort { .. } => {
            PeerFrame::Message(message(PartMessage::Value { edge: 1, tag: vec![2, 300], tensor: tensor() }))
        }
        PeerFrame::Message(StepMessage { message: PartMessage::Value { .. }, .. }) => {
            PeerFrame::Message(message(PartMessage::Credit { of: 1, tag: vec![2], finished: 3 }))
        }
        PeerFrame::Message(StepMessage { message: PartMessage::Credit { .. }, .. }) => {
            let shared = SharedUse {
                name: "n".to_owned(),
                ty: "i64[]".to_owned(),
                is_read: true,
                is_assigned: false,
                value: VALUE,
                initial: Some(ValueId(7)),
            };
            PeerFrame::Acquire { request, lock: Some(lock), uses: vec![shared] }
        }
        PeerFrame::Acquire { .. } => PeerFrame::Renew { locks: vec![lock] },
        PeerFrame::Renew { .. } => PeerFrame::Prepare { request, lock, is_alone: true, values: vec![(0, VALUE)] },
        PeerFrame::Prepare { .. } => PeerFrame::Decide { request, lock, commits: true },
        PeerFrame::Decide { .. } => PeerFrame::Unlock { lock },
        PeerFrame::Unlock { .. } => return None,
    })
}

fn first_to_caller() -> CallerFrame {
    let limits = SessionLimits {
        programs: 1,
        program_bytes: 2,
        value_bytes: 3,
        body_bytes: 4,
        steps: 5,
        load_ms: 6,
        step_ms: 7,
    };
    CallerFrame::Opened { attempt: 1, limits }
}

fn after_to_caller(frame: &CallerFrame) -> Option<CallerFrame> {
    let request = REQUEST;
    let program = PROGRAM;
    Some(match frame {
        CallerFrame::Opened { .. } => CallerFrame::OpenFailed { attempt: 1, error: error() },
        CallerFrame::OpenFailed { .. } => CallerFrame::Wanted { program },
        CallerFrame::Wanted { .. } => CallerFrame::Registered { program, cut: Digest([2; 32]) },
        CallerFrame::Registered { .. } => CallerFrame::Refused { program, error: error() },
        CallerFrame::Refused { .. } => CallerFrame::Stored { request },
        CallerFrame::Stored { .. } => CallerFrame::Fetched { request, tensor: tensor() },
        CallerFrame::Fetched { .. } => {
            CallerFrame::LinkTested { request, speed: TestedSpeed { latency: 0.5, bandwidth: 1e9 } }
        }
        CallerFrame::LinkTested { .. } => CallerFrame::RequestFailed { request, error: error() },
        CallerFrame::RequestFailed { .. } => CallerFrame::Acquired { request },
        CallerFrame::Acquired { .. } => CallerFrame::Prepared { request },
        CallerFrame::Prepared { .. } => CallerFrame::Decided { request },
        CallerFrame::Decided { .. } => CallerFrame::Heartbeat { steps: vec![progress()], received: 1 },
        CallerFrame::Heartbeat { .. } => CallerFrame::Unlinked { process: ProcessNumber(2) },
        CallerFrame::Unlinked { .. } => {
            CallerFrame::Message(message(PartMessage::Credit { of: 1, tag: vec![2], finished: 3 }))
        }
        CallerFrame::Message(_) => CallerFrame::Output { step: STEP, index: 1, tensor: tensor() },
        CallerFrame::Output { .. } => {
            CallerFrame::Print { step: STEP, number: 1, stream: PrintStream::Stderr, text: "text".to_owned() }
        }
        CallerFrame::Print { .. } => CallerFrame::Ended { step: STEP, outputs: 1 },
        CallerFrame::Ended { .. } => {
            CallerFrame::Failed { step: STEP, failure: StepFault { position: Some(vec![1, 2]), error: error() } }
        }
        CallerFrame::Failed { .. } => return None,
    })
}

#[test]
fn frames_of_one_version_have_the_same_bytes() {
    let mut now = format!("version {VERSION}\n");
    for frame in std::iter::successors(Some(first()), after) {
        let shown = format!("{frame:?}");
        let Encoded { head, body } = encode(frame.clone()).expect("the frame can be encoded");
        assert!(body.is_none() && decode(&head, None).as_ref() == Ok(&frame), "{shown}");
        let mut hex = String::new();
        head.iter().for_each(|byte| write!(hex, "{byte:02x}").expect("a string takes all text"));
        writeln!(now, "{hex} {shown}").expect("a string takes all text");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/frames.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &now).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("the file can be read").replace("\r\n", "\n");
    // The rest of a line is for its reader.
    let bytes = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    assert!(
        golden.lines().next() == now.lines().next() && bytes(&golden) == bytes(&now),
        "frames have other bytes, so processes of the version before cannot read them: raise `protocol_version` in \
         `peer/mod.rs`, and then BLESS=1 writes the bytes as they are now\n{now}",
    );
}
