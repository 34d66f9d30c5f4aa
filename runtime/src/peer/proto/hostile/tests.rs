//! Random and mutated frames.

use super::super::codec::{BodyUse, VERSION, encode_within};
use super::super::frame::{OWNER, PartMessage, RequestNumber, SharedUse, Start, StepMessage, ValueId, WireError};
use super::super::payload::INLINE;
use super::super::random::Rng;
use super::frames::string_frames;
use super::*;
use anabranch_dsl::corpus;

impl Rng {
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

impl Victims {
    /// Lets the user of the owner begin a step, which both peers complete as they should.
    fn complete_step(&mut self) {
        self.act();
        let step = StepNumber(self.last_step);
        for link in self.peer_links {
            self.answer(link, CallerFrame::Ended { step, outputs: 0 });
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
        *version = VERSION;
    }
    victims.receive(link, &head, body.as_deref());
    match rng.below(64) {
        0..4 => victims.disturb(rng.next() as u8),
        4 => victims.complete_step(),
        _ => {}
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
        locked: a.locked + b.locked,
        shared: a.shared + b.shared,
    });
    println!("{reached:?}");
    let Reached { decoded, rejected, begun, delivered, stored, closed, committed, failed, locked, shared } = reached;
    let rare = [begun, delivered, stored, closed, committed, failed, locked, shared].into_iter().min();
    let enough = decoded > cases / 3 && rejected > cases / 20 && rare.unwrap_or_default() > cases / 4_000;
    assert!(enough, "{reached:?} is too little to say anything");
}

#[test]
fn frames_survive_encoding() {
    let (mut rng, victims) = (Rng(corpus::seed()), Victims::new());
    // Payloads in a head, unless they are large, and all as bodies.
    let mut bodies = [0, 0];
    for _ in 0..20_000 {
        let frame = rng.frame(&victims, 0);
        for (n, inline) in bodies.iter_mut().zip([INLINE, 0]) {
            let encoded = encode_within(frame.clone(), inline).expect("a random frame can be encoded");
            let body = encoded.body.map(|body| body.as_ref().to_vec().into());
            *n += usize::from(body.is_some());
            assert_eq!(decode(&encoded.head, body), Ok(frame.clone()));
        }
    }
    assert!(bodies[0] > 100 && bodies[1] > 2 * bodies[0], "{bodies:?} bodies are too few");
    let (mut bodies, mut heads) = (0, 0);
    for frame in string_frames() {
        let encoded = encode(frame.clone()).expect("a frame can be encoded");
        let body = encoded.body.map(|body| body.as_ref().to_vec().into());
        *(if body.is_some() { &mut bodies } else { &mut heads }) += 1;
        assert_eq!(decode(&encoded.head, body), Ok(frame));
    }
    assert!(bodies >= 6 && heads >= 18, "{bodies} bodies and {heads} heads with strings");
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
    assert_eq!(error(&head, None), format!("protocol version 9, not {VERSION}"));
    assert_eq!(error(&[], None), "an empty head");
    assert_eq!(error(&[bools.head.clone(), vec![0]].concat(), None), "1 bytes after the frame");
    assert_eq!(error(&bools.head, Some(vec![0; 9_000])), "a body that the head does not announce");
    let large = store(HostTensor::new(vec![5_000], vec![1.0f32; 5_000]));
    assert_eq!(error(&large.head, None), "the body is missing");
    assert_eq!(error(&large.head, Some(vec![0; 4])), "a body of 4 bytes, not 20000");
    assert!(announce(&large.head, 4).is_err() && announce(&bools.head, 2).is_err());
    let announced =
        Announced { to: Destination::Peer(SESSIONS[0]), used_by: BodyUse::Request(RequestNumber(1)), element: 4 };
    assert_eq!(announce(&large.head, 20_000), Ok(announced));
}

#[test]
fn errors_cross_without_locations() {
    use anabranch_dsl::{Diagnostic, ErrorKind, Loc};
    let node = Loc { file: "<node>", line: 4, column: 1 };
    let control = WireError::new(crate::peer::proto::frame::WireErrorKind::Internal, "a\u{1b}[2Jb\nc")
        .help("\u{7}d")
        .at(None, "e\rf");
    let shown = control.into_diagnostic(|_| Loc::UNKNOWN);
    assert_eq!((&shown.message[..], shown.help.as_deref()), ("a [2Jb\nc", Some(" d")));
    assert_eq!(shown.labels[0].1, "e f");
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
    // Returns whether the link was closed, and whether the message waits for its step.
    let mut message = |link: usize, from: u32| {
        let message = PartMessage::Credit { of: 0, tag: Vec::new(), finished: 1 };
        let (step, from) = (StepNumber(1), ProcessNumber(from));
        let message = StepMessage { step, from, from_part: 0, to_part: 0, message };
        let before = victims.host.usage().buffered_bytes;
        let is_closed = is_closed_for(&mut victims, link, PeerFrame::Message(message));
        (is_closed, victims.host.usage().buffered_bytes > before)
    };
    assert_eq!(message(1, 2), (false, true), "the link of process 2 may send in its name");
    for from in [0, 1, 7] {
        assert_eq!(message(1, from), (false, false), "the owner may have lied to process 2");
    }
    assert_eq!(message(2, 2), (false, false), "a stranger may not");
    assert_eq!(message(0, 0), (false, true));
    assert!(message(0, 2).0, "the owner has made the table");
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

/// The answers of a host to the owner of the session with this link.
fn answers(victims: &mut Victims, link: usize, session: SessionId, frame: PeerFrame) -> Vec<CallerFrame> {
    let frame = WireFrame::ToPeer { session, frame };
    let input = HostInput::Frame { link: victims.links[link], frame, body: 0 };
    let (mut out, mut frames) = (Vec::new(), Vec::new());
    victims.host.handle(victims.now, input, &mut out);
    for output in out {
        match output {
            HostOutput::Send { frame: WireFrame::ToCaller { frame, .. }, .. } => frames.push(frame),
            HostOutput::StoreValue { key, .. } => {
                let mut out = Vec::new();
                victims.host.handle(victims.now, HostInput::Stored { key, outcome: Ok(()) }, &mut out);
            }
            _ => {}
        }
    }
    frames
}

fn acquire(lock: u64, initial: u64, is_read: bool) -> PeerFrame {
    let (name, ty) = ("n".to_owned(), "i64[]".to_owned());
    let (value, initial) = (ValueId(lock + 1_000), Some(ValueId(initial)));
    let shared = SharedUse { name, ty, is_read, is_assigned: true, value, initial };
    PeerFrame::Acquire { request: RequestNumber(lock), lock: Some(LockNumber(lock)), uses: vec![shared] }
}

/// Opens a second session at the host, on another link.
fn open_second(victims: &mut Victims, session: SessionId) {
    let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: n < 3 };
    let (you, processes) = (ProcessNumber(1), vec![entry(3), entry(0)]);
    let open = Open { attempt: 1, you, processes, failure_timeout_ms: 1_000, first_step: StepNumber(1) };
    let answers = answers(victims, 2, session, PeerFrame::Open(open));
    assert!(matches!(answers[..], [CallerFrame::Opened { .. }]), "{answers:?}");
}

fn store(value: u64) -> PeerFrame {
    PeerFrame::Store { request: RequestNumber(value), value: ValueId(value), tensor: HostTensor::scalar(1i64) }
}

#[test]
fn a_lock_that_is_not_renewed_expires_and_its_commit_changes_nothing() {
    let (mut victims, second) = (Victims::new(), SessionId(7));
    open_second(&mut victims, second);
    answers(&mut victims, 0, SESSIONS[0], store(1));
    answers(&mut victims, 2, second, store(1));
    let granted = |lock| CallerFrame::Acquired { request: RequestNumber(lock) };
    assert_eq!(answers(&mut victims, 0, SESSIONS[0], acquire(5, 1, true)), [granted(5)]);
    assert_eq!(answers(&mut victims, 2, second, acquire(6, 1, true)), [], "the variable is locked");
    let tick = |victims: &mut Victims, ms: u64| {
        victims.now += Duration::from_millis(ms);
        let mut out = Vec::new();
        victims.host.handle(victims.now, HostInput::Tick, &mut out);
        let is_grant = |output: &HostOutput| {
            matches!(
                output,
                HostOutput::Send { frame: WireFrame::ToCaller { frame: CallerFrame::Acquired { .. }, .. }, .. }
            )
        };
        out.iter().filter(|output| is_grant(output)).count()
    };
    assert_eq!(tick(&mut victims, 900), 0);
    answers(&mut victims, 0, SESSIONS[0], PeerFrame::Renew { locks: vec![LockNumber(5)] });
    assert_eq!(tick(&mut victims, 900), 0, "the lease was renewed");
    assert_eq!(tick(&mut victims, 200), 1, "the lease has expired");
    let before = victims.host.shared_values();
    let prepare = PeerFrame::Prepare {
        request: RequestNumber(9),
        lock: LockNumber(5),
        is_alone: true,
        values: vec![(0, ValueId(1))],
    };
    let refused = answers(&mut victims, 0, SESSIONS[0], prepare);
    let [CallerFrame::RequestFailed { error, .. }] = &refused[..] else { panic!("{refused:?}") };
    assert!(error.message.contains("the lease of the step's locks has expired"), "{error:?}");
    let decide = PeerFrame::Decide { request: RequestNumber(10), lock: LockNumber(5), commits: true };
    assert!(matches!(answers(&mut victims, 0, SESSIONS[0], decide)[..], [CallerFrame::RequestFailed { .. }]));
    assert_eq!(victims.host.shared_values(), before);
}

#[test]
fn a_decision_about_a_lock_that_was_not_prepared_ends_the_lock() {
    let (mut victims, second) = (Victims::new(), SessionId(7));
    open_second(&mut victims, second);
    answers(&mut victims, 0, SESSIONS[0], store(1));
    answers(&mut victims, 2, second, store(1));
    answers(&mut victims, 0, SESSIONS[0], acquire(5, 1, true));
    assert_eq!(answers(&mut victims, 2, second, acquire(6, 1, true)), [], "the variable is locked");
    let decide = PeerFrame::Decide { request: RequestNumber(10), lock: LockNumber(5), commits: true };
    let mut out = Vec::new();
    let frame = WireFrame::ToPeer { session: SESSIONS[0], frame: decide };
    victims.host.handle(victims.now, HostInput::Frame { link: victims.links[0], frame, body: 0 }, &mut out);
    let frames = out.iter().filter_map(|output| match output {
        HostOutput::Send { frame: WireFrame::ToCaller { session, frame }, .. } => Some((*session, frame)),
        _ => None,
    });
    let frames: Vec<_> = frames.collect();
    let [(_, CallerFrame::RequestFailed { .. }), (to, CallerFrame::Acquired { .. })] = &frames[..] else {
        panic!("{frames:?}")
    };
    assert_eq!(*to, second, "nobody else holds the variable");
}

#[test]
fn a_commit_of_a_lost_session_is_in_doubt_until_the_session_is_back_or_the_variable_is_set() {
    for sets in [false, true] {
        let (mut victims, second) = (Victims::new(), SessionId(7));
        open_second(&mut victims, second);
        answers(&mut victims, 0, SESSIONS[0], store(1));
        answers(&mut victims, 2, second, store(1));
        answers(&mut victims, 0, SESSIONS[0], acquire(5, 1, true));
        let prepare = |lock: u64, is_alone: bool| PeerFrame::Prepare {
            request: RequestNumber(9),
            lock: LockNumber(lock),
            is_alone,
            values: vec![(0, ValueId(1))],
        };
        assert_eq!(answers(&mut victims, 0, SESSIONS[0], prepare(5, false)).len(), 1);
        let link = victims.links[0];
        victims.inform_host(HostInput::LinkLost { link, reason: "lost".to_owned() });
        assert_eq!(victims.host.lock_counts(), [0, 0, 1]);
        let refused = answers(&mut victims, 2, second, acquire(6, 1, true));
        let [CallerFrame::RequestFailed { error, .. }] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(error.message, "the value of the shared variable `n` is in doubt");
        let commits = |victims: &Victims| victims.host.shared_values()[0].2;
        if sets {
            assert_eq!(answers(&mut victims, 2, second, acquire(8, 1, false)).len(), 1);
            answers(&mut victims, 2, second, prepare(8, true));
            let decide = PeerFrame::Decide { request: RequestNumber(10), lock: LockNumber(8), commits: true };
            answers(&mut victims, 2, second, decide);
        } else {
            victims.link(0);
            let decide = PeerFrame::Decide { request: RequestNumber(10), lock: LockNumber(5), commits: true };
            let decided = CallerFrame::Decided { request: RequestNumber(10) };
            assert_eq!(answers(&mut victims, 0, SESSIONS[0], decide.clone()), [decided]);
            let again = answers(&mut victims, 0, SESSIONS[0], decide);
            assert!(matches!(again[..], [CallerFrame::RequestFailed { .. }]), "a commit happens once: {again:?}");
        }
        assert_eq!((commits(&victims), victims.host.lock_counts()), (1, [0, 0, 0]));
        assert_eq!(answers(&mut victims, 2, second, acquire(11, 1, true)).len(), 1);
        // Of the values of the variable, only the current one is kept.
        assert_eq!(victims.host.shared_usage(), (1, 8));
    }
}

#[test]
fn a_program_is_loaded_once_for_each_owner() {
    let (mut victims, second) = (Victims::new(), SessionId(7));
    open_second(&mut victims, second);
    let (program, digest) = (ProgramNumber(3), Digest([9; 32]));
    let register = |program| PeerFrame::Register { program, digest, len: 2 };
    // The owner has loaded a program with this digest.
    let known = answers(&mut victims, 0, SESSIONS[0], register(program));
    assert_eq!(known, [CallerFrame::Registered { program, cut: Digest([0; 32]) }]);
    // Another owner learns nothing of it, and must send the bytes.
    assert_eq!(answers(&mut victims, 2, second, register(program)), [CallerFrame::Wanted { program }]);
    let upload = |len: usize| PeerFrame::Upload { program, bytes: vec![1; len].into() };
    let refused = answers(&mut victims, 2, second, upload(3));
    assert!(matches!(refused[..], [CallerFrame::Refused { .. }]), "the length is another one: {refused:?}");
    answers(&mut victims, 2, second, register(program));
    assert_eq!(answers(&mut victims, 2, second, upload(2)), [], "the program is being loaded");
    assert_eq!(victims.host.library_usage(), (2, 0));
    // A program that no session uses stays.
    let link = victims.links[0];
    victims.inform_host(HostInput::LinkLost { link, reason: "lost".to_owned() });
    assert_eq!(victims.host.library_usage(), (2, 1));
    victims.link(0);
    assert_eq!((victims.host.library_usage(), victims.host.usage().programs), ((2, 0), 2));
}

#[test]
fn a_variable_is_in_doubt_as_long_as_one_of_its_commits_is() {
    for commits in [false, true] {
        let (mut victims, second) = (Victims::new(), SessionId(7));
        open_second(&mut victims, second);
        let prepare = |lock: u64| PeerFrame::Prepare {
            request: RequestNumber(9),
            lock: LockNumber(lock),
            is_alone: false,
            values: vec![(0, ValueId(1))],
        };
        // Both sessions assign the variable, the second without reading it, and are lost.
        answers(&mut victims, 0, SESSIONS[0], store(1));
        answers(&mut victims, 0, SESSIONS[0], acquire(5, 1, true));
        answers(&mut victims, 0, SESSIONS[0], prepare(5));
        let lose = |victims: &mut Victims, link: usize| {
            let link = victims.links[link];
            victims.inform_host(HostInput::LinkLost { link, reason: "lost".to_owned() });
        };
        lose(&mut victims, 0);
        answers(&mut victims, 2, second, store(1));
        answers(&mut victims, 2, second, acquire(6, 1, false));
        assert!(matches!(answers(&mut victims, 2, second, prepare(6))[..], [CallerFrame::Prepared { .. }]));
        lose(&mut victims, 2);
        assert_eq!(victims.host.lock_counts(), [0, 0, 2]);
        victims.link(0);
        victims.link(2);
        open_second(&mut victims, second);
        let decide = |lock: u64, commits: bool| PeerFrame::Decide {
            request: RequestNumber(10),
            lock: LockNumber(lock),
            commits,
        };
        answers(&mut victims, 0, SESSIONS[0], decide(5, commits));
        answers(&mut victims, 0, SESSIONS[0], store(1));
        let refused = answers(&mut victims, 0, SESSIONS[0], acquire(7, 1, true));
        assert!(matches!(refused[..], [CallerFrame::RequestFailed { .. }]), "the second is in doubt: {refused:?}");
        answers(&mut victims, 2, second, decide(6, true));
        assert_eq!(victims.host.shared_values()[0].2, 1 + u64::from(commits));
        let granted = answers(&mut victims, 0, SESSIONS[0], acquire(8, 1, true));
        assert!(matches!(granted[..], [CallerFrame::Acquired { .. }]), "{granted:?}");
        assert_eq!((victims.host.shared_usage(), victims.host.lock_counts()), ((1, 8), [1, 0, 0]));
    }
}
