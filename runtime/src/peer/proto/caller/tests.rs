//! Times of a session at its owner: when a peer is lost, and what is said of it.

use super::{BeginError, Caller, CallerInput, CallerOptions, CallerOutput, KnownPeer, LinkLoss};
use super::{PeerFrame, ProgramOffer, ProgramState, RequestResult, SharedAccess, StepPlan, outcome_alone};
use crate::peer::proto::frame::{CallerFrame, Digest, Hello, PeerKey, ProcessNumber, ProgramNumber, SessionId};
use crate::peer::proto::frame::{
    LockNumber, PartMessage, RequestNumber, SessionLimits, StepFault, StepMessage, StepNumber, StepProgress,
};
use crate::peer::proto::frame::{WireError, WireErrorKind, WireFrame};
use crate::peer::proto::{LinkNumber, Time};
use anabranch_dsl::{Bytes, HostTensor};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
const PEER: ProcessNumber = ProcessNumber(1);
const LINK: LinkNumber = LinkNumber(1);
const PROGRAM: ProgramNumber = ProgramNumber(0);
const NODE: u32 = 7;
/// The digest of the cut of the session's process.
const CUT: Digest = Digest([3; 32]);

const LIMITS: SessionLimits = SessionLimits {
    programs: 9,
    program_bytes: 1 << 30,
    value_bytes: 1 << 30,
    body_bytes: 1 << 30,
    steps: 9,
    load_ms: 60_000,
    step_ms: 30_000,
};

/// A session with one peer, which a test plays.
struct PlayedPeers {
    caller: Caller,
    now: Time,
    out: Vec<CallerOutput>,
}

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

impl PlayedPeers {
    /// Connects to the peer and opens the session at it.
    fn open() -> PlayedPeers {
        let mut played = PlayedPeers::with_peers(1);
        played.caller.open(played.now, &mut played.out);
        played.frame(CallerFrame::Opened { attempt: 1, limits: LIMITS });
        assert!(played.caller.is_ready(&[PEER]));
        played
    }

    /// Connects to two peers and opens the session at them.
    fn open_with_two() -> PlayedPeers {
        let mut played = PlayedPeers::with_peers(2);
        played.caller.open(played.now, &mut played.out);
        played.frame(CallerFrame::Opened { attempt: 1, limits: LIMITS });
        played.other_frame(CallerFrame::Opened { attempt: 1, limits: LIMITS });
        assert!(played.caller.is_ready(&[PEER, ProcessNumber(2)]));
        played
    }

    /// Connects to peers.
    fn with_peers(n: u8) -> PlayedPeers {
        let options = CallerOptions {
            session: SessionId(1),
            failure_timeout: TIMEOUT,
            busy_timeout: Duration::from_secs(1_000),
            buffered_bytes: 10_000,
        };
        let addr = SocketAddr::from(([10, 0, 0, 1], 7700));
        let peer = |i: u8| KnownPeer { name: format!("/peer:{}", i - 1), node: PeerKey([i; 32]), addr };
        let caller = Caller::new(PeerKey([9; 32]), options, (1..=n).map(peer).collect());
        let mut played = PlayedPeers { caller, now: Time::ZERO, out: Vec::new() };
        for i in 1..=n {
            let hello = Hello { name: "a".to_owned(), incarnation: 1, devices: Vec::new() };
            played.input(CallerInput::Linked { link: LinkNumber(i.into()), node: PeerKey([i; 32]), hello });
        }
        played
    }

    fn input(&mut self, input: CallerInput) {
        self.caller.handle(self.now, input, &mut self.out);
    }

    fn frame(&mut self, frame: CallerFrame) {
        self.frame_on(LINK, frame);
    }

    /// Receives a frame of the second peer.
    fn other_frame(&mut self, frame: CallerFrame) {
        self.frame_on(LinkNumber(2), frame);
    }

    fn frame_on(&mut self, link: LinkNumber, frame: CallerFrame) {
        self.input(CallerInput::Frame { link, frame: WireFrame::ToCaller { session: SessionId(1), frame } });
    }

    fn heartbeat(&mut self, steps: Vec<StepProgress>, received: u64) {
        self.frame(CallerFrame::Heartbeat { steps, received });
    }

    /// Lets time pass to its next deadline, at most to `until`.
    fn pass_to(&mut self, until: Time) {
        while let Some(next) = self.caller.next_deadline().filter(|next| *next <= until) {
            assert!(next > self.now, "a deadline stays");
            self.now = next;
            self.input(CallerInput::Tick);
        }
        self.now = until;
    }

    fn is_lost(&self) -> bool {
        self.caller.link(PEER).is_none()
    }

    /// Registers a program with some bytes.
    fn register(&mut self, n_bytes: usize) {
        let offer = ProgramOffer { bytes: &vec![0; n_bytes].into(), digest: Digest([0; 32]), cut: CUT };
        let state = self.caller.register(PEER, PROGRAM, offer, self.now, &mut self.out);
        assert!(matches!(state, Ok(ProgramState::Loading { .. })), "{state:?}");
    }

    fn begin(&mut self) -> StepNumber {
        self.register(9);
        self.frame(CallerFrame::Registered { program: PROGRAM, cut: CUT });
        let plan = StepPlan {
            name: "train".to_owned(),
            participants: vec![PEER],
            run_last: vec![(PEER, NODE)],
            ..StepPlan::default()
        };
        let step = self.caller.begin(self.now, plan, &mut self.out).expect("the peer is ready");
        self.caller.end_local(self.now, step, Ok(()), &mut self.out);
        step
    }

    /// Returns the error of the step or the request that has failed, once.
    fn error(&mut self) -> Option<WireError> {
        let errors = self.out.drain(..).filter_map(|output| match output {
            CallerOutput::StepDone { outcome: Err(fault), .. } => Some(fault.error),
            CallerOutput::RequestDone { outcome: Err(error), .. } => Some(error),
            _ => None,
        });
        let errors: Vec<WireError> = errors.collect();
        assert!(errors.len() <= 1, "one error is enough: {errors:?}");
        errors.into_iter().next()
    }
}

fn progress(step: StepNumber, done: u64, is_busy: bool, last: Option<u32>) -> StepProgress {
    StepProgress { step, done, is_busy, last }
}

/// Asserts that an error names the peer, says what is wrong with it, which operation is concerned,
/// and what waited.
#[track_caller]
fn assert_says(error: &WireError, predicate: &str, operation: (Option<u32>, &str), waited: &str) {
    assert_eq!(error.kind, WireErrorKind::Unavailable, "{error:?}");
    let subject = "`/peer:0` (01010101, 10.0.0.1:7700) ";
    assert!(error.message.starts_with(subject) && error.message[subject.len()..].starts_with(predicate), "{error:?}");
    assert!(error.labels.iter().any(|(node, text)| *node == operation.0 && text.contains(operation.1)), "{error:?}");
    assert!(error.labels.iter().any(|(_, text)| text.contains(waited)), "{error:?}");
}

#[test]
fn opening_again_does_not_keep_a_silent_peer() {
    let mut played = PlayedPeers::open();
    for second in 1..=12 {
        played.pass_to(at(second));
        played.caller.open(played.now, &mut played.out);
        assert_eq!(played.is_lost(), second >= 10, "after {second} s");
    }
}

#[test]
fn a_peer_is_silent_only_if_no_part_of_a_body_arrives_either() {
    let mut played = PlayedPeers::open();
    for second in 1..=60 {
        played.pass_to(at(second));
        // A body at 64 kbit/s, behind which all frames of the peer wait.
        played.input(CallerInput::Received { link: LINK, bytes: second * 8_000 });
    }
    assert!(!played.is_lost(), "a body arrives");
    played.begin();
    for second in 61..=69 {
        played.pass_to(at(second));
        played.input(CallerInput::Received { link: LINK, bytes: 60 * 8_000 });
    }
    // The answer to the registration was heard at 60 s.
    assert!(!played.is_lost());
    played.pass_to(at(70));
    assert!(played.is_lost(), "nothing arrives");
    let error = played.error().expect("the step fails");
    assert_says(
        &error,
        "is stuck: it is connected, but sent nothing for 10.0 s",
        (Some(NODE), "waited for"),
        "`train`",
    );
}

#[test]
fn a_value_that_a_peer_would_not_keep_is_not_sent() {
    let mut played = PlayedPeers::with_peers(1);
    played.caller.open(played.now, &mut played.out);
    let limits = SessionLimits { value_bytes: 10_000, body_bytes: 9_000, ..LIMITS };
    played.frame(CallerFrame::Opened { attempt: 1, limits });
    let mut store = |tensor: HostTensor| {
        let outcome = played.caller.store(PEER, tensor, (played.now, TIMEOUT), &mut played.out);
        outcome.map(drop).map_err(|error| error.message)
    };
    let bytes = |n: usize| HostTensor::new(vec![n], vec![0u8; n]);
    assert_eq!(store(bytes(9_000)), Ok(()));
    let error = |n: u32, limit: u32| {
        let name = "`/peer:0` (01010101, 10.0.0.1:7700)";
        Err(format!("a value of {n} bytes is larger than the {limit} that {name} keeps"))
    };
    assert_eq!(store(bytes(9_001)), error(9_001, 9_000));
    // Strings take more memory than on the way.
    let strings = |n: usize| HostTensor::new(vec![n], vec![Bytes::from("a"); n]);
    assert_eq!(store(strings(400)), Ok(()));
    assert_eq!(store(strings(401)), error(10_025, 10_000));
}

#[test]
fn a_request_waits_while_its_transfer_goes_on_in_either_direction() {
    for is_store in [false, true] {
        let mut played = PlayedPeers::open();
        let (tensor, time) = (HostTensor::new(vec![1 << 20], vec![0u8; 1 << 20]), (played.now, 2 * TIMEOUT));
        let (stored, value) = played.caller.store(PEER, tensor, time, &mut played.out).expect("the peer is there");
        if !is_store {
            played.frame(CallerFrame::Stored { request: stored });
            played.caller.fetch(PEER, value, time, &mut played.out).expect("the value exists");
        }
        played.out.clear();
        for second in 1..=100 {
            played.pass_to(at(second));
            match is_store {
                // The peer says what it has received.
                true => played.heartbeat(Vec::new(), second * 8_000),
                false => played.input(CallerInput::Received { link: LINK, bytes: second * 8_000 }),
            }
        }
        assert_eq!(played.error(), None);
        // The transfer stands still, and the peer answers all the same.
        for second in 101..=119 {
            played.pass_to(at(second));
            played.heartbeat(Vec::new(), if is_store { 800_000 } else { 0 });
            assert_eq!(played.error(), None, "after {second} s");
        }
        played.pass_to(at(120));
        let error = played.error().expect("the request fails");
        let waited = if is_store { "was being sent to it" } else { "was being fetched from it" };
        assert_says(&error, "is stuck: it is connected, but did not answer for 20.0 s", (None, waited), waited);
        assert!(!played.is_lost());
    }
}

#[test]
fn dead_and_unreachable_peers_are_told_apart() {
    let losses = [
        (LinkLoss::Refused, "is dead: its process does not listen any more"),
        (LinkLoss::Closed("it shuts down".to_owned()), "is dead: its process closed the connection: it shuts down"),
        (LinkLoss::TimedOut, "is unreachable: it was last heard of 2.0 s ago, and no packet comes from it"),
    ];
    for (loss, predicate) in losses {
        let mut played = PlayedPeers::open();
        let step = played.begin();
        played.pass_to(at(3));
        played.heartbeat(vec![progress(step, 5, true, Some(3))], 0);
        played.pass_to(at(5));
        played.input(CallerInput::LinkLost { link: LINK, loss });
        let error = played.error().expect("the step fails");
        assert_says(&error, predicate, (Some(3), "the last operation known to run at `/peer:0`"), "begun 5.0 s ago");
        let later = played.caller.store(PEER, HostTensor::scalar(1u8), (played.now, TIMEOUT), &mut played.out);
        let later = later.expect_err("the peer is lost");
        assert!(later.message.contains(predicate), "{later:?}");
    }
}

#[test]
fn a_stuck_peer_and_a_slow_peer_are_told_apart() {
    let mut played = PlayedPeers::open();
    let step = played.begin();
    for second in 1..=20 {
        played.pass_to(at(second));
        played.heartbeat(vec![progress(step, 1 + second, true, Some(3))], 0);
    }
    // It is slow: whoever stops the step can say so.
    let slow = played.caller.why_slow(played.now, step);
    assert!(slow[0].1.contains("`/peer:0` (01010101, 10.0.0.1:7700) is slow"), "{slow:?}");
    assert_eq!(slow[1], (Some(3), "the last operation known to run at `/peer:0`".to_owned()));
    assert_eq!(played.error(), None);
    // Now it waits for something that never comes.
    for second in 21..=40 {
        played.pass_to(at(second));
        played.heartbeat(vec![progress(step, 21, false, Some(4))], 0);
        assert_eq!(played.error(), None, "after {second} s");
    }
    played.pass_to(at(41));
    played.frame(CallerFrame::Failed { step, failure: StepFault::new(WireErrorKind::Cancelled, "aborted") });
    let error = played.error().expect("the step fails");
    let predicate = "is stuck: it answers, but no process of the step made progress for 20.0 s";
    assert_says(&error, predicate, (Some(4), "the last operation"), "waited for the end of its part");
    assert!(!played.is_lost(), "other steps may go on");
}

#[test]
fn a_peer_that_is_busy_beyond_its_own_limit_is_stuck() {
    let mut played = PlayedPeers::open();
    let step = played.begin();
    // The peer stops a step after 30 s, and has twice the failure timeout to say so.
    for second in 1..50 {
        played.pass_to(at(second));
        played.heartbeat(vec![progress(step, 0, true, None)], 0);
        assert_eq!(played.error(), None, "after {second} s");
    }
    played.pass_to(at(51));
    played.frame(CallerFrame::Failed { step, failure: StepFault::new(WireErrorKind::Cancelled, "aborted") });
    let error = played.error().expect("the step fails");
    let predicate = "is stuck: it answers, but no process of the step made progress for 50.0 s";
    assert_says(&error, predicate, (Some(NODE), "waited for"), "waited for the end of its part");
}

#[test]
fn the_error_of_a_step_that_took_too_long_names_the_peer() {
    let mut played = PlayedPeers::open();
    let step = played.begin();
    played.pass_to(at(3));
    played.heartbeat(vec![progress(step, 5, true, Some(3))], 0);
    let failure = StepFault::new(WireErrorKind::ResourceExhausted, "the step took longer than 3.0 s");
    played.frame(CallerFrame::Failed { step, failure });
    let error = played.error().expect("the step fails");
    assert_eq!((error.kind, &error.message[..27]), (WireErrorKind::ResourceExhausted, "the step took longer than 3"));
    let label = |text: &str| error.labels.iter().any(|(_, label)| label.contains(text));
    assert!(label("the last operation known to run at `/peer:0`") && label("`train`"), "{error:?}");
}

#[test]
fn a_wait_for_locks_ends_at_its_limit_and_names_the_variables() {
    let mut played = PlayedPeers::open();
    let access = |name: &str| SharedAccess {
        name: name.to_owned(),
        ty: "i64[]".to_owned(),
        is_read: true,
        is_assigned: true,
        initial: None,
    };
    let (uses, time) = ([access("a"), access("b")], (played.now, Duration::from_secs(60)));
    let asked = played.caller.acquire(PEER, (&uses, true), time, &mut played.out).expect("the peer is there");
    played.out.clear();
    for second in 1..60 {
        played.pass_to(at(second));
        // A transfer is no reason to wait longer.
        played.heartbeat(Vec::new(), 8_000 * second);
        assert!(played.out.iter().all(|output| !matches!(output, CallerOutput::RequestDone { .. })));
    }
    played.out.clear();
    played.pass_to(at(60));
    let gives_up = |output: &CallerOutput| {
        let CallerOutput::Send { frame: WireFrame::ToPeer { frame, .. }, .. } = output else { return false };
        matches!(frame, PeerFrame::Unlock { lock } if Some(*lock) == asked.lock)
    };
    assert!(played.out.iter().any(gives_up), "{:?}", played.out);
    let error = played.error().expect("the request fails");
    assert_eq!(error.kind, WireErrorKind::ResourceExhausted);
    assert_eq!(
        error.message,
        "the call waited 60.0 s for the locks of `a`, `b` at `/peer:0` (01010101, 10.0.0.1:7700), the limit"
    );
    assert!(!played.is_lost());
}

/// Returns the outcomes of requests that are done.
fn answers(played: &mut PlayedPeers) -> BTreeMap<RequestNumber, Result<RequestResult, WireError>> {
    let done = |output| match output {
        CallerOutput::RequestDone { request, outcome } => Some((request, outcome)),
        _ => None,
    };
    played.out.drain(..).filter_map(done).collect()
}

/// Acquires the lock of a variable at a peer.
fn acquire(played: &mut PlayedPeers, process: ProcessNumber) -> LockNumber {
    let (name, ty) = ("a".to_owned(), "i64[]".to_owned());
    let access = SharedAccess { name, ty, is_read: true, is_assigned: true, initial: None };
    let time = (played.now, TIMEOUT);
    let wanted = played.caller.acquire(process, (&[access], true), time, &mut played.out).expect("the peer is there");
    played.frame_on(LinkNumber(process.0.into()), CallerFrame::Acquired { request: wanted.request });
    wanted.lock.expect("a lock was asked for")
}

#[test]
fn a_lock_that_was_granted_when_its_call_had_ended_is_given_up() {
    for (is_locked, is_answered) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut played = PlayedPeers::open();
        let (name, ty) = ("a".to_owned(), "i64[]".to_owned());
        let access = SharedAccess { name, ty, is_read: true, is_assigned: is_locked, initial: None };
        let time = (played.now, TIMEOUT);
        let asked = played.caller.acquire(PEER, (&[access], is_locked), time, &mut played.out);
        let wanted = asked.expect("the peer is there");
        let (request, value) = (wanted.request, wanted.values[0]);
        if is_answered {
            played.frame(CallerFrame::Acquired { request });
        }
        // The call has not seen the answer.
        played.caller.give_up(PEER, request, wanted.lock, wanted.values, &mut played.out);
        if !is_answered {
            played.frame(CallerFrame::Acquired { request });
        }
        let frames = played.out.iter().filter_map(|output| match output {
            CallerOutput::Send { frame: WireFrame::ToPeer { frame, .. }, .. } => Some(frame),
            _ => None,
        });
        let frames: Vec<&PeerFrame> = frames.collect();
        let n_unlocks = frames.iter().filter(|frame| matches!(frame, PeerFrame::Unlock { .. })).count();
        let released = |frame: &&&PeerFrame| matches!(frame, PeerFrame::Release { values } if values[..] == [value]);
        let n_released = frames.iter().filter(released).count();
        assert_eq!((n_unlocks, n_released), (usize::from(is_locked), 1), "{frames:?}");
        assert_eq!((played.caller.values(PEER), played.caller.in_flight()), (vec![], 0));
        // Nothing is renewed any more.
        played.out.clear();
        played.now = TIMEOUT / 2;
        played.input(CallerInput::Tick);
        assert!(played.out.is_empty(), "{:?}", played.out);
    }
}

#[test]
fn a_commit_at_one_peer_that_was_lost_is_unknown_unless_the_peer_refused_it() {
    for (is_refused, expected) in [(false, "it is unknown whether the step has changed"), (true, "no memory")] {
        let mut played = PlayedPeers::open();
        let lock = acquire(&mut played, PEER);
        let asked = played.caller.commit_alone(PEER, lock, Vec::new(), (played.now, TIMEOUT), &mut played.out);
        let [prepare, decide] = asked.expect("the peer is there");
        if is_refused {
            let error = WireError::new(WireErrorKind::ResourceExhausted, "no memory");
            played.frame(CallerFrame::RequestFailed { request: prepare, error });
        }
        played.input(CallerInput::LinkLost { link: LINK, loss: LinkLoss::TimedOut });
        let mut answers = answers(&mut played);
        let [prepared, decided] = [prepare, decide].map(|request| answers.remove(&request).expect("it is answered"));
        let error = outcome_alone(prepared, decided).expect_err("the peer was lost");
        assert!(error.message.starts_with(expected), "{error:?}");
    }
}

#[test]
fn a_decision_for_a_peer_that_was_lost_says_that_the_outcome_is_unknown() {
    for commits in [true, false] {
        let mut played = PlayedPeers::open_with_two();
        let lock = acquire(&mut played, PEER);
        let time = (played.now, TIMEOUT);
        let request = played.caller.prepare(PEER, lock, Vec::new(), time, &mut played.out).expect("the peer is there");
        played.frame(CallerFrame::Prepared { request });
        played.input(CallerInput::LinkLost { link: LINK, loss: LinkLoss::TimedOut });
        let decided = played.caller.decide(PEER, lock, commits, time, &mut played.out);
        let error = decided.expect_err("the peer was lost");
        assert_eq!(error.message.starts_with("it is unknown whether the step has changed"), commits, "{error:?}");
    }
}

#[test]
fn all_calls_that_wait_for_a_program_hear_why_it_was_refused() {
    let mut played = PlayedPeers::open();
    played.register(9);
    let error = WireError::new(WireErrorKind::ResourceExhausted, "no memory");
    played.frame(CallerFrame::Refused { program: PROGRAM, error: error.clone() });
    let refused = ProgramState::Refused { error };
    // A call that comes later hears it, too, if no other has.
    let offer = ProgramOffer { bytes: &vec![0; 9].into(), digest: Digest([0; 32]), cut: CUT };
    assert_eq!(played.caller.register(PEER, PROGRAM, offer, played.now, &mut played.out), Ok(refused.clone()));
    for _ in 0..2 {
        assert_eq!(played.caller.program(PEER, PROGRAM), Some(&refused));
        played.caller.tell_refusals(PROGRAM);
    }
    played.out.clear();
    played.register(9);
    let registers = |output: &CallerOutput| {
        matches!(output, CallerOutput::Send { frame: WireFrame::ToPeer { frame: PeerFrame::Register { .. }, .. }, .. })
    };
    assert!(played.out.iter().any(registers), "the next call tries again: {:?}", played.out);
    // A program that loads or has loaded stays.
    played.caller.tell_refusals(PROGRAM);
    played.frame(CallerFrame::Registered { program: PROGRAM, cut: CUT });
    played.caller.tell_refusals(PROGRAM);
    assert_eq!(played.caller.register(PEER, PROGRAM, offer, played.now, &mut played.out), Ok(ProgramState::Ready));
}

#[test]
fn values_of_shared_variables_are_acquired_again_when_their_peer_was_lost() {
    let mut played = PlayedPeers::open();
    played.begin();
    let (name, ty) = ("a".to_owned(), "i64[]".to_owned());
    let access = SharedAccess { name, ty, is_read: true, is_assigned: false, initial: None };
    let time = (played.now, TIMEOUT);
    let wanted = played.caller.acquire(PEER, (&[access], false), time, &mut played.out).expect("the peer is there");
    played.frame(CallerFrame::Acquired { request: wanted.request });
    let stored = played.caller.store(PEER, HostTensor::scalar(1i64), time, &mut played.out);
    let (request, own) = stored.expect("the peer is there");
    played.frame(CallerFrame::Stored { request });
    played.input(CallerInput::LinkLost { link: LINK, loss: LinkLoss::TimedOut });
    for is_back in [false, true] {
        if is_back {
            let hello = Hello { name: "a".to_owned(), incarnation: 1, devices: Vec::new() };
            played.input(CallerInput::Linked { link: LinkNumber(3), node: PeerKey([1; 32]), hello });
            played.caller.open(played.now, &mut played.out);
            played.frame_on(LinkNumber(3), CallerFrame::Opened { attempt: 2, limits: LIMITS });
        }
        let mut plan = StepPlan {
            participants: vec![PEER],
            reads: vec![(PEER, 4, wanted.values[0])],
            shared: vec![4],
            ..StepPlan::default()
        };
        // The peer has the value, so nothing tells the user to set it again.
        let error = played.caller.begin(played.now, plan.clone(), &mut played.out).expect_err("the peer was lost");
        let BeginError::Unavailable(error) = error else { panic!("{error:?}") };
        assert_eq!(error.kind, WireErrorKind::Unavailable);
        let why = if is_back { "was lost while the call was beginning" } else { "is unreachable" };
        assert!(error.message.contains(why), "{error:?}");
        // Values of the session itself are lost.
        plan.reads.push((PEER, 5, own));
        let error = played.caller.begin(played.now, plan, &mut played.out).expect_err("the peer was lost");
        assert_eq!(error, BeginError::LostVariables(vec![(PEER, 5)]));
    }
}

#[test]
fn a_commit_of_which_a_peer_was_lost_before_the_decision_changes_nothing() {
    const OTHER: ProcessNumber = ProcessNumber(2);
    for is_back in [None, Some(false), Some(true)] {
        let mut played = PlayedPeers::open_with_two();
        let locks = [(PEER, acquire(&mut played, PEER)), (OTHER, acquire(&mut played, OTHER))];
        let time = (played.now, TIMEOUT);
        for (process, lock) in locks {
            let prepared = played.caller.prepare(process, lock, Vec::new(), time, &mut played.out);
            let request = prepared.expect("the peers are there");
            played.frame_on(LinkNumber(process.0.into()), CallerFrame::Prepared { request });
        }
        if let Some(is_back) = is_back {
            played.input(CallerInput::LinkLost { link: LINK, loss: LinkLoss::TimedOut });
            if is_back {
                let hello = Hello { name: "a".to_owned(), incarnation: 2, devices: Vec::new() };
                played.input(CallerInput::Linked { link: LinkNumber(3), node: PeerKey([1; 32]), hello });
                played.caller.open(played.now, &mut played.out);
                played.frame_on(LinkNumber(3), CallerFrame::Opened { attempt: 2, limits: LIMITS });
                played.other_frame(CallerFrame::Opened { attempt: 2, limits: LIMITS });
            }
        }
        played.out.clear();
        let decided = played.caller.decide_all(&locks, time, &mut played.out);
        match (is_back, decided) {
            (None, Ok(requests)) => assert!(requests.iter().all(Result::is_ok), "{requests:?}"),
            (Some(_), Err((process, error))) => {
                assert_eq!((process, error.kind), (PEER, WireErrorKind::Unavailable));
                let changes_nothing = |label: &(Option<u32>, String)| label.1.contains("has changed none of them");
                assert!(error.labels.iter().any(changes_nothing), "{error:?}");
            }
            (_, decided) => panic!("{decided:?}"),
        }
        let told = played.out.iter().filter_map(|output| match output {
            CallerOutput::Send { link, frame: WireFrame::ToPeer { frame: PeerFrame::Decide { commits, .. }, .. } } => {
                Some((link.0, *commits))
            }
            _ => None,
        });
        let expected = match is_back {
            None => vec![(1, true), (2, true)],
            Some(false) => vec![(2, false)],
            // It has dropped the session, or does not know the lock.
            Some(true) => vec![(3, false), (2, false)],
        };
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(played.caller.in_flight(), if is_back.is_none() { 2 } else { 0 });
    }
}

#[test]
fn a_session_knows_how_many_locks_it_may_ask_for() {
    let mut played = PlayedPeers::open();
    for _ in 0..LIMITS.steps {
        assert!(played.caller.has_lock_room(PEER));
        acquire(&mut played, PEER);
    }
    assert!(!played.caller.has_lock_room(PEER));
    played.caller.unlock(PEER, LockNumber(1), &mut played.out);
    assert!(played.caller.has_lock_room(PEER));
}

#[test]
fn a_program_has_time_to_arrive_and_then_to_load() {
    let mut played = PlayedPeers::open();
    played.register(1 << 20);
    for second in 1..=200 {
        played.pass_to(at(second));
        played.heartbeat(Vec::new(), 8_000 * second.min(100));
        let state = played.caller.program(PEER, PROGRAM);
        // The limit of the peer, 60 s, and twice the failure timeout after the last bytes.
        let is_loading = matches!(state, Some(ProgramState::Loading { .. }));
        assert_eq!(is_loading, second < 180, "after {second} s: {state:?}");
    }
    let Some(ProgramState::Refused { error }) = played.caller.program(PEER, PROGRAM) else { panic!("it is refused") };
    assert!(error.message.contains("`/peer:0`") && error.message.contains("did not load"), "{error:?}");
}

#[test]
fn a_program_that_loaded_before_the_first_call_must_be_cut_alike() {
    let mut played = PlayedPeers::open();
    // The second time is after the error was reported.
    for _ in 0..2 {
        played.register(9);
        played.frame(CallerFrame::Registered { program: PROGRAM, cut: Digest([4; 32]) });
        let plan = StepPlan { participants: vec![PEER], ..StepPlan::default() };
        let begun = played.caller.begin(played.now, plan, &mut played.out);
        assert!(matches!(begun, Err(BeginError::Unavailable(_))), "{begun:?}");
        let Some(ProgramState::Refused { error }) = played.caller.program(PEER, PROGRAM) else {
            panic!("the program is refused")
        };
        assert_eq!(error.kind, WireErrorKind::Internal);
        assert!(error.message.ends_with("divides the program in another way than this process"), "{error:?}");
        let unregister = |output: &CallerOutput| {
            let CallerOutput::Send { frame: WireFrame::ToPeer { frame, .. }, .. } = output else { return false };
            matches!(frame, PeerFrame::Unregister { .. })
        };
        assert!(played.out.drain(..).any(|output| unregister(&output)), "the peer need not keep it");
        played.caller.unregister(PROGRAM, &mut played.out);
    }
    played.begin();
}

fn message(step: StepNumber, n_bytes: usize) -> CallerFrame {
    let tensor = HostTensor::new(vec![n_bytes], vec![0u8; n_bytes]);
    let message = PartMessage::Value { edge: 0, tag: Vec::new(), tensor };
    CallerFrame::Message(StepMessage { step, from: PEER, from_part: 1, to_part: 0, message })
}

#[test]
fn a_step_for_which_too_much_arrives_fails_and_the_session_goes_on() {
    let mut played = PlayedPeers::open();
    let step = played.begin();
    // What a step has taken does not count any more.
    for _ in 0..100 {
        played.frame(message(step, 8_000));
        assert_eq!(played.error(), None);
    }
    played.frame(message(step, 8_000));
    let waiting = std::mem::take(&mut played.out);
    assert!(matches!(waiting[..], [CallerOutput::Arrived { .. }]), "{waiting:?}");
    played.frame(message(step, 8_000));
    played.frame(CallerFrame::Failed { step, failure: StepFault::new(WireErrorKind::Cancelled, "aborted") });
    let error = played.error().expect("the step fails");
    assert_eq!(error.kind, WireErrorKind::ResourceExhausted);
    assert_eq!(error.message, "more than 10000 bytes have arrived for steps that have not taken them");
    drop(waiting);
    assert!(!played.is_lost());
    let plan = StepPlan { participants: vec![PEER], ..StepPlan::default() };
    let step = played.caller.begin(played.now, plan, &mut played.out).expect("the session goes on");
    played.frame(message(step, 8_000));
    assert_eq!(played.error(), None);
}

#[test]
fn a_peer_cannot_keep_an_owner_opening_by_reports_of_lost_links() {
    let other = ProcessNumber(2);
    let mut played = PlayedPeers::open_with_two();
    played.caller.open(played.now, &mut played.out);
    played.out.clear();
    // The peer opens the session and loses the link to the other, which never answers, again and
    // again.
    let mut attempt = 2;
    for second in 1..=40 {
        played.pass_to(at(second));
        played.other_frame(CallerFrame::Heartbeat { steps: Vec::new(), received: 0 });
        played.frame(CallerFrame::Opened { attempt, limits: LIMITS });
        played.frame(CallerFrame::Unlinked { process: other });
        let opens = played.out.iter().filter(|output| matches!(output, CallerOutput::Send { .. })).count();
        // To both, as long as the other is there.
        attempt += opens as u64 / 2;
        let opened = played.out.drain(..).any(|output| matches!(output, CallerOutput::Opened { .. }));
        assert_eq!(opened, second == 20, "after {second} s");
        if opened {
            return assert!(attempt > 10, "the session was opened again");
        }
    }
    panic!("the session is being opened forever");
}
