//! Limits of a session at a peer.

use super::{Admission, Host, HostInput, HostLimits, HostOutput, LoadedAs, RequestKey, StepEnd};
use crate::peer::proto::codec::{BodyUse, Destination};
use crate::peer::proto::frame::WireFrame;
use crate::peer::proto::frame::{CallerFrame, Digest, Hello, LinkFrame, Open, PeerFrame, PeerKey, ProcessEntry};
use crate::peer::proto::frame::{OWNER, ProcessNumber, ProgramNumber, RequestNumber, SessionId, Start, StepNumber};
use crate::peer::proto::frame::{PartMessage, StepMessage, ValueId, WireErrorKind};
use crate::peer::proto::{LinkNumber, Time};
use anabranch_dsl::{Bytes, HostTensor};
use std::net::SocketAddr;
use std::time::Duration;

const OWNER_LINK: LinkNumber = LinkNumber(1);

fn key(n: u8) -> PeerKey {
    PeerKey([n; 32])
}

/// A peer at which a session is open.
struct PlayedOwner {
    host: Host,
    now: Time,
    out: Vec<HostOutput>,
}

impl PlayedOwner {
    /// The owner has introduced itself.
    fn greeted(limits: HostLimits) -> PlayedOwner {
        let hello = || Hello { name: "a".to_owned(), incarnation: 1, devices: Vec::new() };
        let mut played = PlayedOwner { host: Host::new(key(0), hello(), limits), now: Time::ZERO, out: Vec::new() };
        played.input(HostInput::Linked { link: OWNER_LINK, node: key(1), is_introduced: false });
        let frame = WireFrame::Link(LinkFrame::Hello(hello()));
        played.input(HostInput::Frame { link: OWNER_LINK, frame, body: 0 });
        played
    }

    fn open(limits: HostLimits) -> PlayedOwner {
        let mut played = PlayedOwner::greeted(limits);
        let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: n < 2 };
        played.frame(PeerFrame::Open(Open {
            attempt: 1,
            you: ProcessNumber(1),
            processes: vec![entry(1), entry(0)],
            failure_timeout_ms: 1_000,
            first_step: StepNumber(1),
        }));
        played
    }

    fn input(&mut self, input: HostInput) {
        self.host.handle(self.now, input, &mut self.out);
    }

    fn frame(&mut self, frame: PeerFrame) {
        let frame = WireFrame::ToPeer { session: SessionId(1), frame };
        self.input(HostInput::Frame { link: OWNER_LINK, frame, body: 0 });
    }

    fn pass_to(&mut self, until: Time) {
        while let Some(next) = self.host.next_deadline().filter(|next| *next <= until) {
            self.now = next;
            self.input(HostInput::Tick);
        }
        self.now = until;
    }

    fn register(&mut self) {
        let program = ProgramNumber(0);
        self.frame(PeerFrame::Register { program, digest: Digest([0; 32]), len: 2 });
        self.frame(PeerFrame::Upload { program, bytes: vec![1, 2].into() });
    }

    /// Returns the program that the host has begun to load.
    fn loading(&mut self) -> super::ProgramKey {
        let key = self.out.iter().find_map(|output| match output {
            HostOutput::Load { key, .. } => Some(*key),
            _ => None,
        });
        key.expect("a program is loaded")
    }

    /// Returns the error with which a program was refused.
    fn refused(&self) -> Option<&super::WireError> {
        self.out.iter().find_map(|output| match output {
            HostOutput::Send {
                frame: WireFrame::ToCaller { frame: CallerFrame::Refused { error, .. }, .. }, ..
            } => Some(error),
            _ => None,
        })
    }
}

#[test]
fn a_program_that_loads_for_too_long_is_refused_and_its_loading_ends() {
    let limits = HostLimits { load_time: Duration::from_secs(60), work: 1, ..HostLimits::default() };
    let mut played = PlayedOwner::open(limits);
    played.register();
    let key = played.loading();
    played.pass_to(Duration::from_millis(59_999));
    assert_eq!(played.refused(), None);
    played.pass_to(Duration::from_secs(60));
    let error = played.refused().expect("the program is refused");
    assert_eq!(error.kind, WireErrorKind::ResourceExhausted);
    assert_eq!(error.message, "the program did not load within 60.0 s, the limit of the peer");
    assert!(played.out.iter().any(|output| matches!(output, HostOutput::Unload { key: of } if *of == key)));
    // What still runs counts against the limits of its owner.
    assert_eq!((played.host.usage().programs, played.host.usage().program_bytes, played.host.usage().work), (0, 0, 1));
    played.out.clear();
    played.register();
    assert!(played.refused().is_some(), "the limit is one piece of work");
    played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
    played.out.clear();
    played.register();
    assert_ne!(played.loading(), key);
}

#[test]
fn programs_of_one_owner_wait_for_each_other_while_they_load() {
    let limits = HostLimits { loads: 2, load_bytes: 10, program_bytes: 5_000, ..HostLimits::default() };
    let mut played = PlayedOwner::open(limits);
    let register = |played: &mut PlayedOwner, n: u8, len: u8| {
        let program = ProgramNumber(n.into());
        played.frame(PeerFrame::Register { program, digest: Digest([n; 32]), len: len.into() });
        played.frame(PeerFrame::Upload { program, bytes: vec![n; len.into()].into() });
    };
    // Returns what begins to load: the program, and the memory that it may take.
    let begun = |played: &mut PlayedOwner| {
        let loads = played.out.drain(..).filter_map(|output| match output {
            HostOutput::Load { key, bytes, room, .. } => Some((key, bytes[0], room)),
            _ => None,
        });
        loads.collect::<Vec<_>>()
    };
    (1..=6).for_each(|n| register(&mut played, n, if n == 4 { 20 } else { 4 }));
    let [(first, 1, 4_996), (second, 2, _)] = begun(&mut played)[..] else { panic!("two programs load at once") };
    assert_eq!(played.host.usage().work, 6);
    // Who waits can give up.
    played.frame(PeerFrame::Unregister { program: ProgramNumber(3) });
    assert!(played.out.is_empty(), "it was not begun: {:?}", played.out);
    assert_eq!((played.host.usage().work, played.host.library_usage()), (5, (5, 0)));
    let loaded = |played: &mut PlayedOwner, key| {
        played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
        begun(played)
    };
    // A large one loads alone, and is not overtaken.
    assert_eq!(loaded(&mut played, first), []);
    let [(large, 4, _)] = loaded(&mut played, second)[..] else { panic!("the large program loads alone") };
    let failed = Err(super::invalid("it is none"));
    played.input(HostInput::Loaded { key: large, outcome: failed });
    let rest: Vec<u8> = begun(&mut played).into_iter().map(|(_, n, _)| n).collect();
    assert_eq!(rest, [5, 6]);
    // A program counts while it loads.
    played.input(HostInput::LinkLost { link: OWNER_LINK, reason: "lost".to_owned() });
    assert_eq!(played.host.usage().work, 2);
}

#[test]
fn a_program_that_takes_too_much_memory_is_refused() {
    let mut played = PlayedOwner::open(HostLimits { program_bytes: 5_000, ..HostLimits::default() });
    played.register();
    let key = played.loading();
    let loaded = |bytes| Ok(LoadedAs { cut: Digest([0; 32]), bytes });
    played.input(HostInput::Loaded { key, outcome: loaded(4_999) });
    let error = played.refused().expect("it takes two bytes more for its encoding");
    assert_eq!(error.kind, WireErrorKind::ResourceExhausted, "{error:?}");
    assert_eq!((played.host.usage().programs, played.host.usage().program_bytes), (0, 0));
    // The library still has it, so that it is refused before it is loaded.
    played.out.clear();
    played.register();
    assert!(played.refused().is_some());
    assert_eq!(played.host.usage().program_bytes, 0);
}

#[test]
fn a_step_that_takes_longer_than_the_peer_allows_fails_and_is_stopped() {
    let limits = HostLimits { step_time: Duration::from_secs(60), ..HostLimits::default() };
    let mut played = PlayedOwner::open(limits);
    played.register();
    let key = played.loading();
    played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
    played.now = Duration::from_secs(100);
    let deadlines = [None, Some(200_000), Some(1_000)];
    for (step, deadline_ms) in (1..).map(StepNumber).zip(deadlines) {
        let participants = vec![OWNER, ProcessNumber(1)];
        let program = ProgramNumber(0);
        let (vars, assigns, inputs) = (Vec::new(), Vec::new(), Vec::new());
        played.frame(PeerFrame::Start(Start { step, program, participants, deadline_ms, vars, assigns, inputs }));
    }
    let mut ended = Vec::new();
    for second in [101, 159, 160, 500] {
        played.pass_to(Duration::from_secs(second));
        for output in played.out.drain(..) {
            match output {
                HostOutput::Send { frame: WireFrame::ToCaller { frame, .. }, .. } => {
                    let CallerFrame::Failed { step, failure } = frame else { continue };
                    ended.push((second, step.0, failure.error.kind, failure.error.message));
                }
                HostOutput::Stop { key, .. } => assert_eq!(ended.last().map(|end| end.1), Some(key.step.0)),
                _ => {}
            }
        }
    }
    let slow = "the step took longer than 60.0 s, the limit of the peer".to_owned();
    let late = "the deadline of the call has passed".to_owned();
    let expected = [
        (101, 3, WireErrorKind::DeadlineExceeded, late),
        (160, 1, WireErrorKind::ResourceExhausted, slow.clone()),
        (160, 2, WireErrorKind::ResourceExhausted, slow),
    ];
    assert_eq!(ended, expected);
}

#[test]
fn values_that_were_asked_for_count_until_they_are_sent() {
    let mut played = PlayedOwner::open(HostLimits { outgoing_bytes: 50_000, ..HostLimits::default() });
    let tensor = HostTensor::new(vec![5_000], vec![1.0f32; 5_000]);
    let (value, request) = (ValueId(1), RequestNumber);
    played.frame(PeerFrame::Store { request: request(1), value, tensor: tensor.clone() });
    let slot = played.host.by_id[&SessionId(1)];
    played.input(HostInput::Stored { key: RequestKey { session: slot, request: request(1) }, outcome: Ok(()) });
    played.out.clear();
    let fetch = |n: u64, played: &mut PlayedOwner| {
        played.frame(PeerFrame::Fetch { request: request(n), value });
        let key = RequestKey { session: slot, request: request(n) };
        played.input(HostInput::Fetched { key, outcome: Ok(tensor.clone()) });
        let answer = played.out.drain(..).next_back().expect("the host answers");
        match answer {
            HostOutput::SendValue { held, .. } => Ok(held.expect("the value is not small")),
            HostOutput::Send { frame: WireFrame::ToCaller { frame, .. }, .. } => Err(frame),
            other => panic!("{other:?}"),
        }
    };
    let held = [fetch(2, &mut played).expect("there is room"), fetch(3, &mut played).expect("there is room")];
    let refused = fetch(4, &mut played).expect_err("60,000 bytes would wait");
    let CallerFrame::RequestFailed { error, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind, WireErrorKind::ResourceExhausted, "{error:?}");
    drop(held);
    fetch(5, &mut played).expect("the others were sent");
}

#[test]
fn a_link_that_is_lost_before_its_greeting_is_dialed_again_soon() {
    let mut played = PlayedOwner::greeted(HostLimits::default());
    let entry = |n: u8, addr: Option<SocketAddr>| ProcessEntry { node: key(n), addr, is_needed: true };
    played.frame(PeerFrame::Open(Open {
        attempt: 1,
        you: ProcessNumber(1),
        processes: vec![entry(1, None), entry(0, None), entry(2, Some(SocketAddr::from(([10, 0, 0, 2], 1))))],
        failure_timeout_ms: 1_000,
        first_step: StepNumber(1),
    }));
    let dialed = |played: &mut PlayedOwner| {
        let found = played.out.iter().find_map(|output| match output {
            HostOutput::Dial { session, process, .. } => Some((*session, *process)),
            _ => None,
        });
        played.out.clear();
        found
    };
    let (session, process) = dialed(&mut played).expect("the other peer is dialed");
    let link = LinkNumber(2);
    played.input(HostInput::Linked { link, node: key(2), is_introduced: false });
    played.input(HostInput::Dialed { session, process, outcome: Ok(()) });
    assert_eq!(dialed(&mut played), None);
    played.input(HostInput::LinkLost { link, reason: "timed out".to_owned() });
    played.pass_to(Duration::from_millis(100));
    assert_eq!(dialed(&mut played), Some((session, process)));
}

#[test]
fn a_step_for_which_too_much_arrives_fails_and_the_session_goes_on() {
    let mut played = PlayedOwner::open(HostLimits { buffered_bytes: 10_000, ..HostLimits::default() });
    played.register();
    let key = played.loading();
    played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
    let start = |played: &mut PlayedOwner, step: u64| {
        played.frame(PeerFrame::Start(Start {
            step: StepNumber(step),
            program: ProgramNumber(0),
            participants: vec![OWNER, ProcessNumber(1)],
            deadline_ms: None,
            vars: Vec::new(),
            assigns: Vec::new(),
            inputs: vec![0, 1, 2],
        }));
    };
    let send = |played: &mut PlayedOwner, step: u64, index: u32, tensor: HostTensor| {
        played.frame(PeerFrame::Input { step: StepNumber(step), index, tensor });
    };
    let input = |played: &mut PlayedOwner, step: u64, index: u32| {
        send(played, step, index, HostTensor::new(vec![8_000], vec![0u8; 8_000]));
    };
    // Returns what was delivered, and the error of the step that has failed.
    let outcome = |played: &mut PlayedOwner| {
        let (mut delivered, mut failed) = (Vec::new(), None);
        for output in played.out.drain(..) {
            match output {
                HostOutput::Deliver { held, .. } => delivered.push(held),
                HostOutput::Send {
                    frame: WireFrame::ToCaller { frame: CallerFrame::Failed { failure, .. }, .. },
                    ..
                } => failed = Some(failure.error),
                _ => {}
            }
        }
        (delivered, failed)
    };
    let message = "more than 10000 bytes have arrived for steps that have not taken them";
    // What the step takes does not count any more.
    start(&mut played, 1);
    for index in 0..3 {
        input(&mut played, 1, index);
        let (delivered, failed) = outcome(&mut played);
        assert_eq!((delivered.len(), failed), (1, None));
    }
    // What it leaves does.
    start(&mut played, 2);
    input(&mut played, 2, 0);
    let (waiting, failed) = outcome(&mut played);
    assert_eq!((waiting.len(), failed), (1, None));
    assert!(played.host.usage().buffered_bytes > 8_000);
    input(&mut played, 2, 1);
    let (delivered, failed) = outcome(&mut played);
    assert_eq!((delivered.len(), failed.expect("the step fails").message), (0, message.to_owned()));
    // So does what arrives before its step.
    drop(waiting);
    input(&mut played, 3, 0);
    input(&mut played, 3, 1);
    start(&mut played, 3);
    assert_eq!(outcome(&mut played).1.expect("the step fails").message, message);
    start(&mut played, 4);
    input(&mut played, 4, 0);
    assert_eq!(outcome(&mut played).0.len(), 1);
    assert_eq!(played.host.usage().buffered_bytes, 0);
    // Strings take more memory than bytes of a frame.
    start(&mut played, 5);
    let strings = HostTensor::new(vec![1_000], vec![Bytes::default(); 1_000]);
    assert!(strings.n_bytes() < 9_000);
    send(&mut played, 5, 0, strings);
    assert_eq!(outcome(&mut played).1.expect("the step fails").message, message);
}

#[test]
fn a_value_that_is_released_counts_until_the_steps_that_read_it_have_ended() {
    let mut played = PlayedOwner::open(HostLimits::default());
    played.register();
    let key = played.loading();
    played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
    let value = ValueId(7);
    let tensor = HostTensor::new(vec![800], vec![0u8; 800]);
    played.frame(PeerFrame::Store { request: RequestNumber(0), value, tensor });
    let stored = played.out.drain(..).find_map(|output| match output {
        HostOutput::StoreValue { key, .. } => Some(key),
        _ => None,
    });
    played.input(HostInput::Stored { key: stored.expect("a value is stored"), outcome: Ok(()) });
    for step in [1, 2] {
        played.frame(PeerFrame::Start(Start {
            step: StepNumber(step),
            program: ProgramNumber(0),
            participants: vec![OWNER, ProcessNumber(1)],
            deadline_ms: None,
            vars: vec![(0, value)],
            assigns: Vec::new(),
            inputs: Vec::new(),
        }));
    }
    played.frame(PeerFrame::Release { values: vec![value] });
    assert_eq!(played.host.values(SessionId(1)), Some(vec![]), "a step that begins now has no such value");
    for (step, left) in [(1, 800), (2, 0)] {
        assert_eq!(played.host.usage().value_bytes, 800);
        let key = played.host.step_key(SessionId(1), StepNumber(step)).expect("the session is open");
        played.input(HostInput::StepEnded { key, outcome: Ok(StepEnd::default()) });
        assert_eq!(played.host.usage().value_bytes, left);
    }
}

/// The link to another peer, which all sessions share.
const SHARED_LINK: LinkNumber = LinkNumber(2);

impl PlayedOwner {
    /// Another peer has connected, and the session knows it as process 2.
    fn open_with_peer() -> PlayedOwner {
        let mut played = PlayedOwner::greeted(HostLimits::default());
        played.input(HostInput::Linked { link: SHARED_LINK, node: key(2), is_introduced: false });
        let hello = Hello { name: "b".to_owned(), incarnation: 1, devices: Vec::new() };
        played.input(HostInput::Frame { link: SHARED_LINK, frame: WireFrame::Link(LinkFrame::Hello(hello)), body: 0 });
        let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: true };
        played.frame(PeerFrame::Open(Open {
            attempt: 1,
            you: ProcessNumber(1),
            processes: vec![entry(1), entry(0), entry(2)],
            failure_timeout_ms: 1_000,
            first_step: StepNumber(1),
        }));
        played.register();
        let key = played.loading();
        played.input(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
        played.out.clear();
        played
    }

    /// The other peer sends a message of a step in the name of a process.
    fn message(&mut self, step: u64, from: u32) {
        let message = PartMessage::Credit { of: 0, tag: Vec::new(), finished: 1 };
        let (step, from) = (StepNumber(step), ProcessNumber(from));
        let message = StepMessage { step, from, from_part: 0, to_part: 0, message };
        let frame = WireFrame::ToPeer { session: SessionId(1), frame: PeerFrame::Message(message) };
        self.input(HostInput::Frame { link: SHARED_LINK, frame, body: 0 });
    }

    /// Starts a step with all processes. Returns how many messages it gets, or its error.
    fn start_with_peer(&mut self, step: u64) -> Result<usize, String> {
        self.out.clear();
        self.frame(PeerFrame::Start(Start {
            step: StepNumber(step),
            program: ProgramNumber(0),
            participants: vec![OWNER, ProcessNumber(1), ProcessNumber(2)],
            deadline_ms: None,
            vars: Vec::new(),
            assigns: Vec::new(),
            inputs: Vec::new(),
        }));
        let error = self.out.iter().find_map(|output| match output {
            HostOutput::Send {
                frame: WireFrame::ToCaller { frame: CallerFrame::Failed { failure, .. }, .. }, ..
            } => Some(failure.error.message.clone()),
            _ => None,
        });
        let delivered = self.out.iter().filter(|output| matches!(output, HostOutput::Deliver { .. })).count();
        if let Some(key) = self.host.step_key(SessionId(1), StepNumber(step)) {
            self.input(HostInput::StepEnded { key, outcome: Ok(StepEnd::default()) });
        }
        error.map_or(Ok(delivered), Err)
    }

    fn is_shared_link_closed(&self) -> bool {
        self.out.iter().any(|output| matches!(output, HostOutput::CloseLink { link: SHARED_LINK, .. }))
    }
}

#[test]
fn a_message_in_a_wrong_name_is_dropped_and_the_link_stays() {
    let mut played = PlayedOwner::open_with_peer();
    // Their owner may have told the two peers different tables of processes.
    for from in [0, 1, 7] {
        played.message(1, from);
    }
    assert!(!played.is_shared_link_closed(), "{:?}", played.out);
    assert_eq!(played.start_with_peer(1), Ok(0));
}

#[test]
fn messages_of_too_many_steps_fail_the_last_of_these_steps_and_the_link_stays() {
    let mut played = PlayedOwner::open_with_peer();
    // A participant lies about steps that are far away. The next ones are not hurt.
    (0..256).for_each(|n| played.message(1_000_000 + n, 2));
    for step in 1..=3 {
        played.message(step, 2);
        assert_eq!(played.start_with_peer(step), Ok(1));
    }
    // An owner does not start its steps here.
    (4..=300).for_each(|step| played.message(step, 2));
    assert!(!played.is_shared_link_closed(), "{:?}", played.out);
    assert_eq!(played.host.usage().early_steps, 256);
    assert_eq!(played.start_with_peer(259), Ok(1));
    // Later messages of these steps are dropped, too.
    played.message(260, 2);
    let error = "messages of more than 256 steps came before the steps began".to_owned();
    assert_eq!(played.start_with_peer(260), Err(error));
    assert!(!played.is_shared_link_closed(), "{:?}", played.out);
    // When all of these are over, everything is as before.
    assert!(played.start_with_peer(1_000_255).is_err());
    played.message(1_000_256, 2);
    assert_eq!(played.start_with_peer(1_000_256), Ok(1));
}

/// Links a node that only sessions know, which introduces itself.
fn introduce(played: &mut PlayedOwner, link: LinkNumber, node: PeerKey) {
    played.input(HostInput::Linked { link, node, is_introduced: true });
    let hello = Hello { name: "c".to_owned(), incarnation: 1, devices: Vec::new() };
    played.input(HostInput::Frame { link, frame: WireFrame::Link(LinkFrame::Hello(hello)), body: 0 });
}

#[test]
fn what_introduced_nodes_send_counts_for_the_owner_of_the_session() {
    let mut played = PlayedOwner::greeted(HostLimits { incoming_bytes: 100, ..HostLimits::default() });
    let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: n < 2 };
    played.frame(PeerFrame::Open(Open {
        attempt: 1,
        you: ProcessNumber(1),
        processes: vec![entry(1), entry(0), entry(2), entry(3)],
        failure_timeout_ms: 1_000,
        first_step: StepNumber(1),
    }));
    let (to, other) = (Destination::Peer(SessionId(1)), Destination::Peer(SessionId(9)));
    let [second, third, stranger] = [2, 3, 4].map(LinkNumber);
    introduce(&mut played, second, key(2));
    introduce(&mut played, third, key(3));
    let mut admit = |link: LinkNumber, to: Destination, len: u64| played.host.admit(link, to, len);
    assert_eq!(admit(second, other, 1), Ok(Admission::Dropped), "there is no such session");
    assert_eq!(admit(second, to, 60), Ok(Admission::Kept));
    assert_eq!(admit(third, to, 60), Ok(Admission::Dropped), "both send for one owner");
    assert_eq!(admit(OWNER_LINK, to, 40), Ok(Admission::Kept), "so does the owner");
    assert_eq!(admit(OWNER_LINK, to, 1), Ok(Admission::Dropped));
    // A node that the operator admits has its own share.
    played.input(HostInput::Linked { link: LinkNumber(5), node: key(5), is_introduced: false });
    let hello = Hello { name: "d".to_owned(), incarnation: 1, devices: Vec::new() };
    let frame = WireFrame::Link(LinkFrame::Hello(hello));
    played.input(HostInput::Frame { link: LinkNumber(5), frame, body: 0 });
    assert_eq!(played.host.admit(LinkNumber(5), other, 100), Ok(Admission::Kept));
    // A body that arrives, is cancelled, or is lost with its link, does not count any more.
    played.input(HostInput::Cancelled { link: OWNER_LINK, to, len: 40 });
    assert_eq!(played.host.usage().incoming_bytes, 160);
    played.input(HostInput::LinkLost { link: second, reason: "lost".to_owned() });
    assert_eq!(played.host.admit(third, to, 100), Ok(Admission::Kept));
    assert!(played.host.admit(stranger, to, 1).is_err(), "there is no such link");
    // Nobody is accused.
    assert!(played.out.iter().all(|output| !matches!(output, HostOutput::CloseLink { .. })), "{:?}", played.out);
}

#[test]
fn what_waits_for_a_body_without_room_fails_and_the_link_stays() {
    let mut played = PlayedOwner::open_with_peer();
    let session = SessionId(1);
    let discard = |played: &mut PlayedOwner, link: LinkNumber, used_by: BodyUse| {
        played.out.clear();
        played.input(HostInput::Discarded { link, session, used_by });
        let errors = played.out.iter().filter_map(|output| match output {
            HostOutput::Send { frame: WireFrame::ToCaller { frame, .. }, .. } => match frame {
                CallerFrame::RequestFailed { error, .. } | CallerFrame::Refused { error, .. } => Some(error.kind),
                CallerFrame::Failed { failure, .. } => Some(failure.error.kind),
                _ => None,
            },
            HostOutput::CloseLink { .. } => panic!("nobody broke the protocol"),
            _ => None,
        });
        errors.collect::<Vec<_>>()
    };
    let exhausted = [WireErrorKind::ResourceExhausted];
    assert_eq!(discard(&mut played, OWNER_LINK, BodyUse::Request(RequestNumber(4))), exhausted);
    assert_eq!(discard(&mut played, SHARED_LINK, BodyUse::Request(RequestNumber(4))), [], "it is not the owner");
    let program = ProgramNumber(7);
    played.frame(PeerFrame::Register { program, digest: Digest([7; 32]), len: 9_000 });
    assert_eq!(discard(&mut played, SHARED_LINK, BodyUse::Program(program)), []);
    assert_eq!(discard(&mut played, OWNER_LINK, BodyUse::Program(program)), exhausted);
    assert_eq!(played.host.usage().programs, 1);
    // A step that has begun, and one that has not.
    played.frame(PeerFrame::Start(Start {
        step: StepNumber(1),
        program: ProgramNumber(0),
        participants: vec![OWNER, ProcessNumber(1), ProcessNumber(2)],
        deadline_ms: None,
        vars: Vec::new(),
        assigns: Vec::new(),
        inputs: Vec::new(),
    }));
    assert_eq!(discard(&mut played, SHARED_LINK, BodyUse::Step(StepNumber(1))), exhausted);
    assert_eq!(discard(&mut played, SHARED_LINK, BodyUse::Step(StepNumber(2))), []);
    assert!(played.start_with_peer(2).is_err());
    assert_eq!(played.start_with_peer(3), Ok(0));
}

#[test]
fn introduced_nodes_share_the_links_of_the_owner_of_their_session() {
    let limits = HostLimits { introduced_links: [2, 3], ..HostLimits::default() };
    let mut played = PlayedOwner::greeted(limits);
    // Two owners introduce nodes.
    let link = LinkNumber(2);
    played.input(HostInput::Linked { link, node: key(2), is_introduced: false });
    let hello = Hello { name: "b".to_owned(), incarnation: 1, devices: Vec::new() };
    played.input(HostInput::Frame { link, frame: WireFrame::Link(LinkFrame::Hello(hello)), body: 0 });
    for (owner, link, nodes) in [(1, OWNER_LINK, 10..20), (2, link, 20..30)] {
        let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: n == owner };
        let frame = PeerFrame::Open(Open {
            attempt: 1,
            you: ProcessNumber(1),
            processes: [owner, 0].into_iter().chain(nodes).map(entry).collect(),
            failure_timeout_ms: 1_000,
            first_step: StepNumber(1),
        });
        let frame = WireFrame::ToPeer { session: SessionId(owner.into()), frame };
        played.input(HostInput::Frame { link, frame, body: 0 });
    }
    let opened = |played: &mut PlayedOwner, n: u8| {
        let (link, may_connect) = (LinkNumber(n.into()), played.host.introduced(&key(n)));
        played.out.clear();
        introduce(played, link, key(n));
        let is_closed = |output: &HostOutput| matches!(output, HostOutput::CloseLink { link: of, .. } if *of == link);
        assert_eq!(played.out.iter().any(is_closed), !may_connect);
        may_connect
    };
    let all: Vec<bool> = [10, 11, 12, 20, 21].map(|n| opened(&mut played, n)).to_vec();
    assert_eq!(all, [true, true, false, true, false]);
    played.input(HostInput::LinkLost { link: LinkNumber(10), reason: "lost".to_owned() });
    assert_eq!([12, 13].map(|n| opened(&mut played, n)), [true, false]);
    assert!(!played.host.introduced(&key(30)), "nobody has introduced it");
}
