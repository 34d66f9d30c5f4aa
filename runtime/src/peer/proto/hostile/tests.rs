//! Random and mutated frames.

use super::super::frame::{PartMessage, PrintStream, RequestNumber, Start, StatusReport, StepFault, StepMessage};
use super::super::frame::{StepProgress, ValueId, WireError, WireErrorKind};
use super::super::simulation::Rng;
use super::*;
use anabranch_dsl::corpus;

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

    /// Returns a random frame. Most of them are near to what the victims expect on this link.
    fn frame(&mut self, victims: &Victims, link: u8) -> WireFrame {
        let session = SESSIONS[usize::from(self.below(16) == 0)];
        let (likely, wild) = (self.below(32) > 0, self.number());
        let step = StepNumber(if likely { victims.next_step.wrapping_add([0, 0, 1, 2][self.below(4)]) } else { wild });
        let running = StepNumber(if likely { victims.next_step.saturating_sub(self.below(2) as u64) } else { wild });
        let own_step = StepNumber(if likely { victims.last_step.saturating_sub(self.below(2) as u64) } else { wild });
        let own_request = RequestNumber(if likely { victims.last_request } else { wild });
        let choice = match self.below(40) {
            0 => self.below(6),
            _ if self.below(3) == 0 => 22 + self.below(14),
            // Only the owner may command.
            _ if link != 0 => 19,
            _ => 6 + self.below(16),
        };
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
                PeerFrame::Register { program, digest: Digest([0; 32]), bytes: vec![0; len].into() }
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
            18 => PeerFrame::Abort { step: running, reason: self.text() },
            5..22 => PeerFrame::Message(self.message(running, [0, 2, 3][usize::from(link) % 3])),
            other => {
                let limits = SessionLimits {
                    programs: 1,
                    program_bytes: 1,
                    value_bytes: 1,
                    body_bytes: 1,
                    steps: 1,
                    load_ms: self.number(),
                };
                let failure = StepFault { position: Some(self.numbers()), error: self.error() };
                let frame = match other {
                    22 => CallerFrame::Opened { attempt: self.number(), limits },
                    23 => CallerFrame::OpenFailed { attempt: self.number(), error: self.error() },
                    24 => CallerFrame::Registered { program, cut: Digest([1; 32]) },
                    25 => CallerFrame::Refused { program, error: self.error() },
                    26 => CallerFrame::Stored { request: own_request },
                    27 if self.below(4) == 0 => CallerFrame::Fetched { request: own_request, tensor: self.tensor() },
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

    /// Changes some bytes.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(4) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = [0, 1, 127, 128, 255][self.below(5)],
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, self.next() as u8),
            }
        }
    }
}

fn receive(rng: &mut Rng, victims: &mut Victims) {
    let link = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2 * u8::from(rng.below(8) == 0)][rng.below(10)];
    let (mut head, mut body) = match rng.below(16) {
        0 => ((0..rng.below(80)).map(|_| rng.next() as u8).collect(), None),
        _ => {
            let encoded = encode(rng.frame(victims, link)).expect("a random frame can be encoded");
            (encoded.head, encoded.body.map(|body| body.as_ref().to_vec()))
        }
    };
    match rng.below(4) {
        0 if rng.below(2) == 0 => rng.mutate(&mut head),
        1 if rng.below(8) == 0 => body = None,
        1 if rng.below(8) == 0 => drop(body.as_mut().map(|body| rng.mutate(body))),
        _ => {}
    }
    if rng.below(2) == 0
        && let Some(version) = head.first_mut()
    {
        *version = super::super::codec::VERSION;
    }
    victims.receive(link, &head, body.as_deref());
    if rng.below(16) == 0 {
        victims.disturb(rng.next() as u8);
    }
}

#[test]
fn hostile_frames_neither_panic_nor_exceed_limits() {
    let cases: usize = match std::env::var("ANABRANCH_FRAMES") {
        Ok(n) => n.parse().expect("`ANABRANCH_FRAMES` is a number"),
        Err(_) if std::env::var_os("ANABRANCH_SLOW").is_some() => 1_000_000,
        Err(_) => 50_000,
    };
    use rayon::prelude::*;
    let per_host = 200;
    let first = corpus::seed();
    let reached = (0..cases.div_ceil(per_host) as u64).into_par_iter().map(|host| {
        let (mut rng, mut victims) = (Rng(first ^ (host << 20)), Victims::new());
        (0..per_host).for_each(|_| receive(&mut rng, &mut victims));
        victims.reached
    });
    let reached = reached.reduce(Reached::default, |a, b| Reached {
        decoded: a.decoded + b.decoded,
        rejected: a.rejected + b.rejected,
        begun: a.begun + b.begun,
        delivered: a.delivered + b.delivered,
        stored: a.stored + b.stored,
        closed: a.closed + b.closed,
        committed: a.committed + b.committed,
        failed: a.failed + b.failed,
    });
    println!("{reached:?}");
    let Reached { decoded, rejected, begun, delivered, stored, closed, committed, failed } = reached;
    let rare = [begun, delivered, stored, closed, failed].into_iter().min().unwrap_or_default();
    let enough = decoded > cases / 3 && rejected > cases / 20 && rare > cases / 2_000 && committed > 0;
    assert!(enough, "{reached:?} is too little to say anything");
}

#[test]
fn bytes_of_a_fuzzer_do_not_panic() {
    let (mut rng, victims) = (Rng(corpus::seed()), Victims::new());
    for _ in 0..2_000 {
        let mut input = Vec::new();
        for _ in 0..rng.below(12) {
            let encoded = encode(rng.frame(&victims, 0)).expect("a random frame can be encoded");
            input.extend([rng.next() as u8, encoded.head.len() as u8]);
            input.extend(encoded.head);
        }
        if !input.is_empty() {
            rng.mutate(&mut input);
        }
        fuzz_frame(&input);
    }
}

#[test]
fn frames_survive_encoding() {
    let (mut rng, victims) = (Rng(corpus::seed()), Victims::new());
    let mut bodies = 0;
    for _ in 0..20_000 {
        let frame = rng.frame(&victims, 0);
        let encoded = encode(frame.clone()).expect("a random frame can be encoded");
        let body = encoded.body.map(|body| body.as_ref().to_vec().into());
        bodies += usize::from(body.is_some());
        assert_eq!(decode(&encoded.head, body), Ok(frame));
    }
    assert!(bodies > 100, "{bodies} bodies are too few");
}

#[test]
fn frames_that_say_something_wrong_are_rejected() {
    let store = |tensor: HostTensor| {
        let frame = PeerFrame::Store { request: RequestNumber(1), value: ValueId(1), tensor };
        encode(WireFrame::ToPeer { session: SESSIONS[0], frame }).expect("the frame can be encoded")
    };
    let error =
        |head: &[u8], body: Option<Vec<u8>>| decode(head, body.map(Into::into)).expect_err("the frame is wrong").0;
    let bools = store(HostTensor::new(vec![2], vec![true, false]));
    let mut head = bools.head.clone();
    *head.last_mut().unwrap() = 2;
    assert_eq!(error(&head, None), "a boolean that is neither 0 nor 1");
    head[0] = 9;
    assert_eq!(error(&head, None), "protocol version 9, not 1");
    assert_eq!(error(&[], None), "an empty head");
    assert_eq!(error(&[bools.head.clone(), vec![0]].concat(), None), "1 bytes after the frame");
    assert_eq!(error(&bools.head, Some(vec![0; 9_000])), "a body that the head does not announce");
    let large = store(HostTensor::new(vec![5_000], vec![1.0f32; 5_000]));
    assert_eq!(error(&large.head, None), "the body is missing");
    assert_eq!(error(&large.head, Some(vec![0; 4])), "a body of 4 bytes, not 20000");
    assert!(announce(&large.head, 4).is_err() && announce(&bools.head, 2).is_err());
    let announced = Announced { to: Destination::Peer(SESSIONS[0]), element: 4 };
    assert_eq!(announce(&large.head, 20_000), Ok(announced));
}

#[test]
fn errors_cross_without_locations() {
    use anabranch_dsl::{Diagnostic, ErrorKind, Loc};
    let node = Loc { file: "<node>", line: 4, column: 1 };
    let long = "é".repeat(3_000);
    let error = Diagnostic::new(long.clone()).at(node, "here").at(Loc::caller(), "there").help("help");
    let error = error.of_kind(ErrorKind::AssertionFailed);
    let wire = WireError::from_diagnostic(&error, |loc| (loc == node).then_some(3));
    assert_eq!(wire.labels, [(Some(3), "here".to_owned()), (None, "there".to_owned())]);
    assert!(wire.message.len() <= 4_096 && long.starts_with(&wire.message));
    let back = wire.into_diagnostic(|node| Loc { file: "graph", line: node, column: 1 });
    assert_eq!(back.kind, ErrorKind::AssertionFailed);
    assert_eq!(back.labels[0].0, Loc { file: "graph", line: 3, column: 1 });
    assert!(!back.labels[1].0.is_known() && back.help.as_deref() == Some("help"));
}

/// Sends a frame for the session of the host. Returns whether the link was closed.
fn is_closed_for(victims: &mut Victims, link: usize, frame: PeerFrame) -> bool {
    let before = victims.links[link];
    victims.frame(link as u8, WireFrame::ToPeer { session: SESSIONS[0], frame }, 0);
    victims.links[link] != before
}

#[test]
fn only_the_link_that_opened_a_session_commands_it() {
    let mut victims = Victims::new();
    let usage = victims.host.usage();
    assert_eq!((usage.sessions, usage.programs), (1, 1));
    let start = Start {
        step: StepNumber(1),
        program: ProgramNumber(0),
        participants: vec![OWNER, ProcessNumber(1)],
        deadline_ms: None,
        vars: Vec::new(),
        assigns: Vec::new(),
        inputs: Vec::new(),
    };
    let frames = [
        PeerFrame::Close,
        PeerFrame::Unregister { program: ProgramNumber(0) },
        PeerFrame::Store { request: RequestNumber(1), value: ValueId(1), tensor: HostTensor::scalar(1.0f32) },
        PeerFrame::Start(start),
        PeerFrame::Abort { step: StepNumber(1), reason: String::new() },
    ];
    for frame in frames {
        // Another participant, and a stranger.
        for link in [1, 2] {
            assert!(is_closed_for(&mut victims, link, frame.clone()), "{frame:?}");
        }
    }
    assert_eq!(victims.host.usage(), usage);
}

#[test]
fn a_message_must_come_from_the_process_that_it_names() {
    let mut victims = Victims::new();
    let mut message = |link: usize, from: u32| {
        let message = PartMessage::Credit { of: 0, tag: Vec::new(), finished: 1 };
        let (step, from) = (StepNumber(1), ProcessNumber(from));
        let message = StepMessage { step, from, from_part: 0, to_part: 0, message };
        is_closed_for(&mut victims, link, PeerFrame::Message(message))
    };
    assert!(!message(1, 2), "the link of process 2 may send in its name");
    assert!(message(1, 0) && message(1, 1) && message(1, 7));
    assert!(message(2, 2), "a stranger may not");
    assert!(!message(0, 0) && message(0, 2));
}

#[test]
fn the_id_of_a_session_cannot_be_taken_over() {
    let mut victims = Victims::new();
    let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: false };
    let open = |processes: Vec<ProcessEntry>| {
        let you = ProcessNumber(1);
        PeerFrame::Open(Open { attempt: 1, you, processes, failure_timeout_ms: 1_000, first_step: StepNumber(1) })
    };
    let usage = victims.host.usage();
    // In the name of the owner, and in its own name.
    assert!(is_closed_for(&mut victims, 2, open(vec![entry(1), entry(0)])));
    assert!(!is_closed_for(&mut victims, 2, open(vec![entry(3), entry(0)])));
    assert_eq!(victims.host.usage(), usage);
    assert!(!is_closed_for(&mut victims, 0, PeerFrame::Fetch { request: RequestNumber(1), value: ValueId(9) }));
}

#[test]
fn messages_of_a_step_that_was_skipped_are_dropped() {
    let mut victims = Victims::new();
    let message = |step: u64| {
        let message = PartMessage::Credit { of: 0, tag: Vec::new(), finished: 1 };
        let (step, from) = (StepNumber(step), ProcessNumber(2));
        PeerFrame::Message(StepMessage { step, from, from_part: 0, to_part: 0, message })
    };
    for step in 1..4 {
        assert!(!is_closed_for(&mut victims, 1, message(step)));
    }
    let waiting = victims.host.usage().buffered_bytes;
    let start = Start {
        step: StepNumber(2),
        program: ProgramNumber(7),
        participants: vec![OWNER, ProcessNumber(1)],
        deadline_ms: None,
        vars: Vec::new(),
        assigns: Vec::new(),
        inputs: Vec::new(),
    };
    // The program is unknown, so step 2 fails. Step 1 cannot begin any more. Step 3 can.
    assert!(!is_closed_for(&mut victims, 0, PeerFrame::Start(start)));
    assert_eq!(victims.host.usage().buffered_bytes, waiting / 3);
    // A late message is dropped.
    assert!(!is_closed_for(&mut victims, 1, message(1)));
    assert_eq!(victims.host.usage().buffered_bytes, waiting / 3);
    assert_eq!(victims.host.usage().steps, 0);
}
