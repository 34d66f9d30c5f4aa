//! Random frames, most of them near to what the victims expect.

use super::super::frame::{PartMessage, PrintStream, RequestNumber, Start, StatusReport, StepFault, StepMessage};
use super::super::frame::{SharedUse, StepProgress, ValueId, WireError, WireErrorKind};
use super::super::random::Rng;
use super::*;
use anabranch_dsl::Bytes;

impl Rng {
    /// Returns a number that is probably in use, or is extreme.
    fn number(&mut self) -> u64 {
        match self.below(12) {
            0 => u64::MAX - self.below(2) as u64,
            1 => self.next(),
            _ => self.below(6) as u64,
        }
    }

    fn numbers(&mut self) -> Vec<u64> {
        (0..self.below(4)).map(|_| self.number()).collect()
    }

    fn process(&mut self) -> ProcessNumber {
        ProcessNumber(self.number() as u32)
    }

    fn text(&mut self) -> String {
        "é".repeat([0, 3, 300][self.below(3)])
    }

    fn error(&mut self) -> WireError {
        let kind = if self.below(2) == 0 { WireErrorKind::Cancelled } else { WireErrorKind::Internal };
        let labels = (0..self.below(3)).map(|_| (Some(self.number() as u32), self.text())).collect();
        WireError { labels, ..WireError::new(kind, self.text()).help("help") }
    }

    fn tensor(&mut self) -> HostTensor {
        let n = if self.below(8) == 0 { self.below(6_000) } else { self.below(5) };
        match self.below(4) {
            0 => HostTensor::new(vec![n], vec![true; n]),
            1 => HostTensor::new(vec![1, n], vec![1.5f32; n]),
            2 => HostTensor::new(vec![n, 0], Vec::<i64>::new()),
            _ => HostTensor::new(vec![n], vec![7u8; n]),
        }
    }

    /// Returns a process that probably is the sender.
    fn sender(&mut self, likely: u32) -> ProcessNumber {
        if self.below(16) == 0 { self.process() } else { ProcessNumber(likely) }
    }

    fn message(&mut self, step: StepNumber, from: u32) -> StepMessage {
        let message = match self.below(3) {
            0 => PartMessage::Credit { of: 1, tag: self.numbers(), finished: self.number() },
            _ => PartMessage::Value { edge: self.number() as u32, tag: self.numbers(), tensor: self.tensor() },
        };
        StepMessage { step, from: self.sender(from), from_part: 0, to_part: 1, message }
    }

    fn pairs(&mut self) -> Vec<(u32, ValueId)> {
        let n = self.below(8) / 6;
        (0..n).map(|_| (self.number() as u32, ValueId(self.number()))).collect()
    }

    /// Returns a random frame about shared variables.
    fn shared_frame(&mut self) -> PeerFrame {
        let (request, lock) = (RequestNumber(self.number()), LockNumber(self.number()));
        match self.below(6) {
            0..3 => {
                let names = ["a", "b", "é", ""];
                let mut first = self.below(2);
                let mut shared = |rng: &mut Rng| {
                    let name = names[first.min(3)].to_owned();
                    first += [0, 1, 1, 1, 2][rng.below(5)];
                    let initial = (rng.below(4) > 0).then(|| ValueId(rng.number()));
                    SharedUse {
                        name,
                        ty: ["f32[]", "i64[]"][usize::from(rng.below(8) == 0)].to_owned(),
                        is_read: rng.below(2) == 0,
                        is_assigned: rng.below(2) == 0,
                        value: ValueId(100 + rng.next() % 1_000),
                        initial,
                    }
                };
                let uses = (0..1 + self.below(2)).map(|_| shared(self)).collect();
                PeerFrame::Acquire { request, lock: (self.below(3) > 0).then_some(lock), uses }
            }
            3 => {
                let values = (0..1 + self.below(2)).map(|_| (self.below(3) as u32, ValueId(self.number()))).collect();
                PeerFrame::Prepare { request, lock, is_alone: self.below(2) == 0, values }
            }
            4 => PeerFrame::Decide { request, lock, commits: self.below(3) > 0 },
            _ if self.below(3) > 0 => PeerFrame::Unlock { lock },
            _ => PeerFrame::Renew { locks: vec![lock] },
        }
    }

    /// Returns a random frame. Most of them are near to what the victims expect on this link.
    pub(super) fn frame(&mut self, victims: &Victims, link: u8) -> WireFrame {
        let session = SESSIONS[usize::from(self.below(16) == 0)];
        let (likely, wild) = (self.below(32) > 0, self.number());
        let step = StepNumber(if likely { victims.next_step.wrapping_add([0, 0, 1, 2][self.below(4)]) } else { wild });
        let running = StepNumber(if likely { victims.next_step.saturating_sub(self.below(2) as u64) } else { wild });
        let own_step = StepNumber(if likely { victims.last_step.saturating_sub(self.below(2) as u64) } else { wild });
        let own_request = RequestNumber(if likely { victims.last_request } else { wild });
        let choice = match self.below(40) {
            0 => self.below(6),
            _ if self.below(3) == 0 => 22 + self.below(17),
            // Only the owner may command.
            _ if link != 0 => 19,
            _ => 6 + self.below(16),
        };
        if link == 0 && (6..22).contains(&choice) && self.below(3) == 0 {
            return WireFrame::ToPeer { session, frame: self.shared_frame() };
        }
        let program = ProgramNumber((self.below(6) / 4) as u32);
        let request = RequestNumber(self.number());
        let value = ValueId(self.number());
        let index = self.number() as u32;
        let frame = match choice {
            0 => return WireFrame::Link(LinkFrame::Hello(hello())),
            1 => return WireFrame::Link(LinkFrame::Leave { reason: self.text() }),
            2 => return WireFrame::Link(LinkFrame::Status),
            3 => return WireFrame::Link(LinkFrame::StatusReport(StatusReport::default())),
            4 => {
                let entry = |rng: &mut Rng| {
                    let addr = SocketAddr::from(([10, 0, 0, 1], 1));
                    let (node, is_needed) = (key(rng.below(5) as u8), rng.below(2) == 0);
                    ProcessEntry { node, addr: (rng.below(2) == 0).then_some(addr), is_needed }
                };
                let mut processes: Vec<ProcessEntry> = (0..self.below(5)).map(|_| entry(self)).collect();
                if self.below(2) == 0 {
                    let fixed = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: false };
                    processes = vec![fixed(1 + self.below(3) as u8), fixed(0), fixed(4)];
                }
                let (you, timeout) = (ProcessNumber(self.below(3) as u32), self.number() as u32);
                let attempt = self.number();
                PeerFrame::Open(Open { attempt, you, processes, failure_timeout_ms: timeout, first_step: step })
            }
            5 if self.below(8) == 0 => PeerFrame::Close,
            6 | 7 => {
                let len = [0, 100, 9_000][self.below(3)];
                match choice {
                    6 => PeerFrame::Register { program, digest: Digest([self.below(4) as u8; 32]), len: len as u64 },
                    _ => PeerFrame::Upload { program, bytes: vec![0; len].into() },
                }
            }
            8 if self.below(8) == 0 => PeerFrame::Unregister { program },
            9 | 10 => PeerFrame::Store { request, value, tensor: self.tensor() },
            11 => PeerFrame::Fetch { request, value },
            12 => PeerFrame::Release { values: self.numbers().into_iter().map(ValueId).collect() },
            13..17 => {
                let mut participants: Vec<ProcessNumber> = (0..self.below(4)).map(|_| self.process()).collect();
                if self.below(3) > 0 {
                    participants = (0..2 + self.below(2) as u32).map(ProcessNumber).collect();
                }
                let deadline_ms = (self.below(2) == 0).then(|| self.number() as u32);
                let (vars, assigns) = (self.pairs(), self.pairs());
                let inputs = self.numbers().into_iter().map(|index| index as u32).collect();
                PeerFrame::Start(Start { step, program, participants, deadline_ms, vars, assigns, inputs })
            }
            17 => PeerFrame::Input { step: running, index, tensor: self.tensor() },
            19 if self.below(4) == 0 => PeerFrame::TestLink { request, process: self.process() },
            18 => PeerFrame::Abort { step: running, reason: self.text() },
            5..22 => PeerFrame::Message(self.message(running, [0, 2, 3][usize::from(link) % 3])),
            other => {
                let ms = self.number();
                let limits = SessionLimits {
                    programs: 1,
                    program_bytes: 1,
                    value_bytes: 1,
                    body_bytes: 1,
                    steps: 1,
                    load_ms: ms,
                    step_ms: ms,
                };
                let failure = StepFault { position: Some(self.numbers()), error: self.error() };
                let frame = match other {
                    22 => CallerFrame::Opened { attempt: self.number(), limits },
                    23 => CallerFrame::OpenFailed { attempt: self.number(), error: self.error() },
                    24 => CallerFrame::Registered { program, cut: Digest([1; 32]) },
                    25 => CallerFrame::Refused { program, error: self.error() },
                    26 => CallerFrame::Stored { request: own_request },
                    27 if self.below(4) == 0 => CallerFrame::Fetched { request: own_request, tensor: self.tensor() },
                    28 if self.below(4) == 0 => {
                        let speed =
                            TestedSpeed { latency: self.number() as f64 - 1.0, bandwidth: self.number() as f64 };
                        CallerFrame::LinkTested { request: own_request, speed }
                    }
                    28 => CallerFrame::RequestFailed { request: own_request, error: self.error() },
                    29 => {
                        let progress = StepProgress {
                            step: own_step,
                            done: self.number(),
                            is_busy: self.below(2) == 0,
                            last: Some(index),
                        };
                        CallerFrame::Heartbeat { steps: vec![progress], received: self.number() }
                    }
                    30 => CallerFrame::Unlinked { process: self.process() },
                    31 => CallerFrame::Output { step: own_step, index, tensor: self.tensor() },
                    32 => CallerFrame::Ended { step: own_step, outputs: index % 2 },
                    36 => CallerFrame::Acquired { request: own_request },
                    37 => CallerFrame::Prepared { request: own_request },
                    38 => CallerFrame::Decided { request: own_request },
                    33 if self.below(4) == 0 => CallerFrame::Failed { step: own_step, failure },
                    _ if self.below(2) == 0 => CallerFrame::Message(self.message(own_step, 1 + u32::from(link) % 2)),
                    _ => {
                        let (number, text) = (self.below(2) as u64, self.text());
                        CallerFrame::Print { step: own_step, number, stream: PrintStream::Stderr, text }
                    }
                };
                return WireFrame::ToCaller { session: SESSIONS[1], frame };
            }
        };
        WireFrame::ToPeer { session, frame }
    }
}

/// Returns frames with tensors of strings, of which some are bodies.
pub(super) fn string_frames() -> Vec<WireFrame> {
    let strings = |shape: &[usize], of: fn(usize) -> Bytes| {
        let n = shape.iter().product();
        HostTensor::new(shape.to_vec(), (0..n).map(of).collect::<Vec<Bytes>>())
    };
    let tensors = [
        strings(&[], |_| Bytes::from("one")),
        strings(&[2, 2], |i| Bytes::from(["", "a", "\u{e9}\0", "\n"][i])),
        strings(&[3, 0], |_| Bytes::from("none")),
        // 5 and 15 KB: many strings, and a long one.
        strings(&[600], |i| Bytes::from(vec![b'x'; i % 16])),
        strings(&[2], |i| Bytes::from(vec![b'y'; 15_000 * i])),
    ];
    let frames = tensors.into_iter().flat_map(|tensor| {
        let (session, step, request) = (SESSIONS[0], StepNumber(1), RequestNumber(1));
        let message = PartMessage::Value { edge: 1, tag: vec![2], tensor: tensor.clone() };
        let message = StepMessage { step, from: ProcessNumber(2), from_part: 0, to_part: 1, message };
        let to_peer = [
            PeerFrame::Store { request, value: ValueId(1), tensor: tensor.clone() },
            PeerFrame::Input { step, index: 0, tensor: tensor.clone() },
            PeerFrame::Message(message.clone()),
        ];
        let to_caller = [
            CallerFrame::Fetched { request, tensor: tensor.clone() },
            CallerFrame::Output { step, index: 0, tensor },
            CallerFrame::Message(message),
        ];
        let to_peer = to_peer.into_iter().map(move |frame| WireFrame::ToPeer { session, frame });
        to_peer.chain(to_caller.into_iter().map(|frame| WireFrame::ToCaller { session: SESSIONS[1], frame }))
    });
    frames.collect()
}
