//! A host and the owner of a session that receive hostile frames: the body of fuzz targets, and of
//! a test with random frames.
//!
//! Whatever arrives, in any order and from any link, neither panics, and both stay within their
//! limits. A link whose other side breaks the protocol is closed; here it connects again at once.

use super::caller::{Caller, CallerInput, CallerOptions, CallerOutput, KnownPeer, LinkLoss, ProgramOffer};
use super::caller::{SharedAccess, StepPlan};
use super::codec::{Announced, Destination, Encoded, announce, decode, encode};
use super::frame::TestedSpeed;
use super::frame::{CallerFrame, Digest, Hello, LinkFrame, Open, PeerFrame, PeerKey, ProcessEntry, WireFrame};
use super::frame::{LockNumber, ProcessNumber, ProgramNumber, RequestNumber, SessionId, SessionLimits, StepNumber};
use super::host::{Admission, Host, HostInput, HostLimits, HostOutput, LoadedAs, StepEnd};
use super::random::Rng;
use super::{LinkNumber, Time};
use anabranch_dsl::HostTensor;
use std::net::SocketAddr;
use std::time::Duration;

/// The session of the host, and that of the owner.
const SESSIONS: [SessionId; 2] = [SessionId(1), SessionId(2)];

const LIMITS: HostLimits = HostLimits {
    idle_link: Duration::from_secs(10),
    sessions: 2,
    work: 8,
    programs: 3,
    program_bytes: 40_000,
    loads: 2,
    load_bytes: 20_000,
    load_time: Duration::from_secs(1),
    step_time: Duration::from_secs(60),
    idle_programs: 2,
    idle_program_bytes: 20_000,
    values: 8,
    value_bytes: 40_000,
    shared: 4,
    shared_bytes: 60_000,
    buffered_bytes: 20_000,
    outgoing_bytes: 20_000,
    steps: 3,
    step_bytes: 20_000,
    introduced_links: [2, 3],
    body_bytes: 30_000,
    incoming_bytes: 60_000,
};

/// A host and an owner with links to hostile processes.
#[derive(Debug)]
struct Victims {
    now: Time,
    host: Host,
    caller: Caller,
    /// The links of the host: to the owner of its session, to another participant, to a stranger.
    links: [LinkNumber; 3],
    /// The links of the owner to its peers.
    peer_links: [LinkNumber; 2],
    last_link: u64,
    attempt: u64,
    /// The number of outputs, which decides which work ends.
    n_outputs: usize,
    reached: Reached,
    /// The numbers that a frame may use to be taken seriously: the next step of the host, and the
    /// last step and request of the owner.
    next_step: u64,
    last_step: u64,
    last_request: u64,
    /// The locks that the owner has asked for.
    wanted: Vec<(RequestNumber, ProcessNumber, LockNumber)>,
    /// Whether the session of the host was opened.
    is_open: bool,
}

/// What the frames reached, to see that they say something.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    decoded: usize,
    rejected: usize,
    begun: usize,
    delivered: usize,
    stored: usize,
    closed: usize,
    committed: usize,
    failed: usize,
    /// Locks that were granted, at the host and at the owner.
    locked: usize,
    shared: usize,
}

fn key(n: u8) -> PeerKey {
    PeerKey([n; 32])
}

fn hello() -> Hello {
    Hello { name: "hostile".to_owned(), incarnation: 1, devices: Vec::new() }
}

impl Victims {
    fn new() -> Victims {
        let addr = SocketAddr::from(([10, 0, 0, 1], 1));
        let peer = |n: u8| KnownPeer { name: format!("peer{n}"), node: key(n), addr };
        let timeout = Duration::from_secs(1);
        let options = CallerOptions {
            session: SESSIONS[1],
            failure_timeout: timeout,
            busy_timeout: timeout * 5,
            buffered_bytes: LIMITS.buffered_bytes,
        };
        let mut victims = Victims {
            now: Time::ZERO,
            host: Host::new(key(0), hello(), LIMITS),
            caller: Caller::new(key(9), options, vec![peer(1), peer(2)]),
            links: [LinkNumber(0); 3],
            peer_links: [LinkNumber(0); 2],
            last_link: 0,
            attempt: 0,
            n_outputs: 0,
            reached: Reached::default(),
            next_step: 1,
            last_step: 0,
            last_request: 0,
            wanted: Vec::new(),
            is_open: false,
        };
        for index in [2, 1, 0] {
            victims.link(index);
        }
        for index in 0..2 {
            victims.link_peer(index);
        }
        victims
    }

    /// Connects to the host again. The owner opens its session.
    fn link(&mut self, index: usize) {
        self.last_link += 1;
        let link = LinkNumber(self.last_link);
        self.links[index] = link;
        self.inform_host(HostInput::Linked { link, node: key(index as u8 + 1), is_introduced: false });
        self.inform_host(HostInput::Frame { link, frame: WireFrame::Link(LinkFrame::Hello(hello())), body: 0 });
        if index == 0 {
            self.next_step = 1;
            let entry = |n: u8| ProcessEntry { node: key(n), addr: None, is_needed: n < 2 };
            let processes = vec![entry(1), entry(0), entry(2)];
            let you = ProcessNumber(1);
            let first_step = StepNumber(1);
            let open = Open { attempt: 1, you, processes, failure_timeout_ms: 1_000, first_step };
            let program = ProgramNumber(0);
            let register = PeerFrame::Register { program, digest: Digest([9; 32]), len: 2 };
            let upload = PeerFrame::Upload { program, bytes: vec![1, 2].into() };
            self.is_open = false;
            self.send(link, PeerFrame::Open(open));
            // Another node may have opened a session with the same id.
            if self.is_open {
                self.send(link, register);
                self.send(link, upload);
            }
        }
    }

    fn send(&mut self, link: LinkNumber, frame: PeerFrame) {
        self.inform_host(HostInput::Frame { link, frame: WireFrame::ToPeer { session: SESSIONS[0], frame }, body: 0 });
    }

    /// Connects to the owner again, and opens its session.
    fn link_peer(&mut self, index: usize) {
        self.last_link += 1;
        let link = LinkNumber(self.last_link);
        self.peer_links[index] = link;
        self.with_caller(|caller, now, out| {
            caller.handle(now, CallerInput::Linked { link, node: key(index as u8 + 1), hello: hello() }, out);
            caller.open(now, out);
        });
        let limits = SessionLimits {
            programs: 9,
            program_bytes: 9_000,
            value_bytes: 90_000,
            body_bytes: 90_000,
            steps: 9,
            load_ms: 9,
            step_ms: 60_000,
        };
        for link in self.peer_links {
            let frame = CallerFrame::Opened { attempt: self.attempt, limits };
            self.answer(link, frame);
        }
        for (process, link) in (1..).map(ProcessNumber).zip(self.peer_links) {
            let program = ProgramNumber(0);
            let offer = ProgramOffer { bytes: &vec![0; 9].into(), digest: Digest([0; 32]), cut: Digest([0; 32]) };
            self.with_caller(|caller, now, out| {
                let _ = caller.register(process, program, offer, now, out);
            });
            self.answer(link, CallerFrame::Registered { program, cut: Digest([0; 32]) });
        }
        self.act();
    }

    fn answer(&mut self, link: LinkNumber, frame: CallerFrame) {
        let frame = WireFrame::ToCaller { session: SESSIONS[1], frame };
        self.with_caller(|caller, now, out| caller.handle(now, CallerInput::Frame { link, frame }, out));
    }

    /// Lets the user of the owner begin something.
    fn act(&mut self) {
        let peers = [ProcessNumber(1), ProcessNumber(2)];
        let mut wanted = None;
        self.with_caller(|caller, now, out| {
            let patience = Duration::from_secs(2);
            let plan = StepPlan {
                participants: peers.to_vec(),
                deadline: Some(Duration::from_secs(1)),
                assigns: vec![(peers[0], 0)],
                inputs: vec![(peers[1], 0, HostTensor::scalar(1.0f32))],
                ..StepPlan::default()
            };
            if caller.in_flight() > 16 {
                return;
            }
            if let Ok(step) = caller.begin(now, plan, out) {
                caller.end_local(now, step, Ok(()), out);
            }
            if let Ok((_, value)) = caller.store(peers[0], HostTensor::scalar(2i64), (now, patience), out) {
                let _ = caller.fetch(peers[0], value, (now, patience), out);
                let _ = caller.test_link([peers[0], peers[0]], (now, patience), out);
            }
            let (name, ty) = ("a".to_owned(), "f32[]".to_owned());
            let access = SharedAccess { name, ty, is_read: true, is_assigned: true, initial: None };
            wanted = caller.acquire(peers[1], (&[access], true), (now, patience), out).ok();
        });
        if let Some(wanted) = wanted {
            self.last_request = wanted.request.0;
            self.wanted.push((wanted.request, peers[1], wanted.lock.expect("a lock was asked for")));
        }
    }

    /// Commits the variables of a lock that was granted.
    fn commit(&mut self, request: RequestNumber) {
        let Some(at) = self.wanted.iter().position(|wanted| wanted.0 == request) else { return };
        let (_, process, lock) = self.wanted.swap_remove(at);
        let is_alone = request.0.is_multiple_of(2);
        self.reached.locked += 1;
        self.with_caller(|caller, now, out| {
            let time = (now, Duration::from_secs(2));
            if is_alone {
                let _ = caller.commit_alone(process, lock, Vec::new(), time, out);
            } else if caller.prepare(process, lock, Vec::new(), time, out).is_ok() {
                let _ = caller.decide(process, lock, true, time, out);
            }
        });
    }

    fn with_caller(&mut self, f: impl FnOnce(&mut Caller, Time, &mut Vec<CallerOutput>)) {
        let mut out = Vec::new();
        f(&mut self.caller, self.now, &mut out);
        let (mut closed, mut done) = (Vec::new(), Vec::new());
        for output in out {
            match output {
                CallerOutput::Send { frame, .. } => {
                    if let WireFrame::ToPeer { frame: PeerFrame::Open(open), .. } = &frame {
                        self.attempt = open.attempt;
                    }
                    if let WireFrame::ToPeer { frame: PeerFrame::Start(start), .. } = &frame {
                        self.last_step = start.step.0;
                    }
                    if let WireFrame::ToPeer { frame: PeerFrame::Store { request, .. }, .. } = &frame {
                        self.last_request = request.0;
                    }
                    encode(frame).expect("what an owner sends can be encoded");
                }
                CallerOutput::CloseLink { link, .. } => closed.push(link),
                CallerOutput::RequestDone { request, outcome: Ok(_) } => done.push(request),
                CallerOutput::StepDone { outcome: Ok(_), .. } => self.reached.committed += 1,
                CallerOutput::StepDone { outcome: Err(_), .. } => self.reached.failed += 1,
                _ => {}
            }
        }
        self.reached.closed += closed.len();
        done.into_iter().for_each(|request| self.commit(request));
        for link in closed {
            let index = self.peer_links.iter().position(|&known| known == link);
            self.link_peer(index.expect("only links that exist are closed"));
        }
    }

    fn inform_host(&mut self, input: HostInput) {
        let mut out = Vec::new();
        self.host.handle(self.now, input, &mut out);
        self.check();
        let mut closed = Vec::new();
        let mut inputs = Vec::new();
        for output in out {
            self.n_outputs += 1;
            if let HostOutput::Begin(begin) = &output {
                self.reached.begun += 1;
                self.next_step = begin.start.step.0.saturating_add(1);
            }
            self.reached.delivered += usize::from(matches!(output, HostOutput::Deliver { .. }));
            self.reached.shared += usize::from(matches!(output, HostOutput::ShareValue { .. }));
            self.reached.stored += usize::from(matches!(output, HostOutput::StoreValue { .. }));
            let opened =
                |frame: &WireFrame| matches!(frame, WireFrame::ToCaller { frame: CallerFrame::Opened { .. }, .. });
            self.is_open |= matches!(&output, HostOutput::Send { frame, .. } if opened(frame));
            let ends = !self.n_outputs.is_multiple_of(3);
            match output {
                HostOutput::Send { frame, .. } | HostOutput::SendValue { frame, .. } => {
                    drop(encode(frame).expect("what a host sends can be encoded"))
                }
                HostOutput::Report { report, .. } => {
                    let frame = WireFrame::Link(LinkFrame::StatusReport(report));
                    drop(encode(frame).expect("what a host sends can be encoded"));
                }
                HostOutput::CloseLink { link, .. } => closed.push(link),
                HostOutput::Load { key, .. } if !self.n_outputs.is_multiple_of(7) => {
                    inputs
                        .push(HostInput::Loaded { key, outcome: Ok(LoadedAs { cut: Digest([0; 32]), bytes: 1_000 }) });
                }
                HostOutput::StoreValue { key, .. } if ends => inputs.push(HostInput::Stored { key, outcome: Ok(()) }),
                HostOutput::FetchValue { key, .. } if ends => {
                    inputs.push(HostInput::Fetched { key, outcome: Ok(HostTensor::scalar(1u8)) });
                }
                HostOutput::TestLink { key, .. } if ends => {
                    let speed = TestedSpeed { latency: 1.0, bandwidth: 1.0 };
                    inputs.push(HostInput::LinkTested { key, outcome: Ok(speed) });
                }
                HostOutput::Begin(begin) if ends && self.n_outputs.is_multiple_of(2) => {
                    let assigned = begin.start.assigns.iter().map(|&(variable, value)| (variable, value.0 % 20_000));
                    let end = StepEnd { outputs: 0, assigned: assigned.collect() };
                    inputs.push(HostInput::StepEnded { key: begin.key, outcome: Ok(end) });
                }
                _ => {}
            }
        }
        inputs.into_iter().for_each(|input| self.inform_host(input));
        self.reached.closed += closed.len();
        for link in closed {
            if let Some(index) = self.links.iter().position(|&known| known == link) {
                self.link(index);
            }
        }
    }

    /// Checks that the host is within its limits.
    fn check(&self) {
        let usage = self.host.usage();
        let n = usage.sessions;
        let within = n <= 3 * LIMITS.sessions as u64
            && usage.work <= 3 * LIMITS.work as u64
            && usage.programs <= n * LIMITS.programs as u64
            && usage.program_bytes <= n * LIMITS.program_bytes
            && usage.values <= n * LIMITS.values as u64
            && usage.value_bytes <= n * LIMITS.value_bytes
            && usage.buffered_bytes <= n * LIMITS.buffered_bytes
            && usage.steps <= n * LIMITS.steps as u64
            && usage.incoming_bytes <= 3 * LIMITS.incoming_bytes;
        let ((vars, bytes), [locks, waiting, doubts]) = (self.host.shared_usage(), self.host.lock_counts());
        let within = within
            && vars <= LIMITS.shared
            && bytes <= LIMITS.shared_bytes
            && (locks + waiting) as u64 <= n * LIMITS.steps as u64
            && doubts <= LIMITS.shared
            && self.host.library_usage().1 <= LIMITS.idle_programs + usage.work as usize;
        assert!(within, "{usage:?}, {vars} shared variables with {bytes} bytes, {locks} locks, {waiting} waiting");
    }

    /// Receives an encoded frame on a link of the host, or of the owner.
    fn receive(&mut self, link: u8, head: &[u8], body: Option<&[u8]>) {
        let len = body.map_or(0, |body| body.len() as u64);
        let on_host = self.links[usize::from(link) % 3];
        if body.is_some() {
            match announce(head, len) {
                Ok(Announced { to, used_by, .. }) => match (self.host.admit(on_host, to, len), to) {
                    (Ok(Admission::Kept), _) => {}
                    (Ok(Admission::Dropped), Destination::Peer(session)) => {
                        return self.inform_host(HostInput::Discarded { link: on_host, session, used_by });
                    }
                    _ => return,
                },
                Err(_) => return,
            }
        }
        match decoded_again(head, body) {
            Some(frame) => {
                self.reached.decoded += 1;
                self.frame(link, frame, len);
            }
            None => self.reached.rejected += 1,
        }
    }

    fn frame(&mut self, link: u8, frame: WireFrame, body: u64) {
        let on_host = self.links[usize::from(link) % 3];
        if let WireFrame::ToCaller { .. } | WireFrame::Link(LinkFrame::Leave { .. }) = &frame {
            let link = self.peer_links[usize::from(link) % 2];
            let frame = frame.clone();
            self.with_caller(|caller, now, out| caller.handle(now, CallerInput::Frame { link, frame }, out));
        }
        self.inform_host(HostInput::Frame { link: on_host, frame, body });
    }

    /// Lets some time pass, or a link be lost.
    fn disturb(&mut self, what: u8) {
        match what % 8 {
            0..5 => self.now += Duration::from_millis(u64::from(what)),
            5 => {
                let link = self.links[usize::from(what / 8) % 3];
                self.inform_host(HostInput::LinkLost { link, reason: "lost".to_owned() });
                self.link(usize::from(what / 8) % 3);
            }
            6 => {
                let index = usize::from(what / 8) % 2;
                let link = self.peer_links[index];
                let loss = LinkLoss::TimedOut;
                self.with_caller(|caller, now, out| caller.handle(now, CallerInput::LinkLost { link, loss }, out));
                self.link_peer(index);
            }
            _ => self.act(),
        }
        self.inform_host(HostInput::Tick);
        self.with_caller(|caller, now, out| caller.handle(now, CallerInput::Tick, out));
    }
}

/// Decodes a frame, and checks that its encoding means the same.
fn decoded_again(head: &[u8], body: Option<&[u8]>) -> Option<WireFrame> {
    let frame = decode(head, body.map(|body| body.to_vec().into())).ok()?;
    if let Some(body) = body {
        announce(head, body.len() as u64).expect("the head of a frame announces its body");
    }
    let encoded = |frame: WireFrame| encode(frame).expect("a frame that was decoded can be encoded");
    let again = encoded(frame.clone());
    let body = again.body.as_ref().map(|body| body.as_ref().to_vec().into());
    let third = encoded(decode(&again.head, body).expect("a frame that was encoded can be decoded"));
    assert_eq!(again.head, third.head, "{frame:?}");
    Some(frame)
}

/// Decodes arbitrary bytes: the length of a head, the head, and what follows as the body. Returns
/// whether they are a frame.
///
/// # Panics
/// Panics if the frame has two meanings.
pub(crate) fn fuzz_frame(input: &[u8]) -> bool {
    let Some((&len, rest)) = input.split_first_chunk::<2>() else { return false };
    let (head, body) = rest.split_at(rest.len().min(u16::from_le_bytes(len).into()));
    decoded_again(head, (!body.is_empty()).then_some(body)).is_some()
}

/// Returns inputs of [`fuzz_frame`] that are frames.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let (mut rng, victims) = (Rng(1), Victims::new());
    let encoded = |_| encode(rng.frame(&victims, 0)).expect("a random frame can be encoded");
    let input = |Encoded { head, body }: Encoded| {
        let body = body.as_ref().map_or(&[][..], |body| body.as_ref());
        [&(head.len() as u16).to_le_bytes()[..], &head, body].concat()
    };
    let strings = string_frames().into_iter().map(|frame| encode(frame).expect("a frame can be encoded"));
    // Long ones would be most of the work, and say no more.
    (0..2_000).map(encoded).chain(strings).map(input).filter(|input| input.len() < 20_000).collect()
}

/// Receives what arbitrary bytes describe: a list of frames and disturbances. Returns whether some
/// were frames.
///
/// # Panics
/// Panics if a frame brings a host or the owner of a session into a wrong state.
pub(crate) fn fuzz_protocol(mut input: &[u8]) -> bool {
    let mut victims = Victims::new();
    // A byte says what follows: the link, whether there is a body, and the lengths.
    while let [what, rest @ ..] = input {
        input = rest;
        if what >> 7 == 1 {
            victims.disturb(*what);
            continue;
        }
        let mut take = |n: usize| {
            let (taken, rest) = input.split_at(n.min(input.len()));
            input = rest;
            taken
        };
        let n = usize::from(take(1).first().copied().unwrap_or_default());
        let head = take(n);
        let body = (what & 4 > 0).then(|| {
            let n = usize::from(take(1).first().copied().unwrap_or_default());
            take(n * 64)
        });
        victims.receive(what & 3, head, body);
    }
    victims.reached.decoded > 0
}

/// Returns inputs of [`fuzz_protocol`] that are frames and some disturbances.
pub(crate) fn protocols() -> Vec<Vec<u8>> {
    let (mut rng, victims) = (Rng(1), Victims::new());
    let mut inputs = Vec::new();
    while inputs.len() < 500 {
        let mut input = Vec::new();
        for _ in 0..1 + rng.below(12) {
            let link = [0, 0, 0, 1, 2][rng.below(5)];
            let encoded = encode(rng.frame(&victims, link)).expect("a random frame can be encoded");
            match u8::try_from(encoded.head.len()) {
                Ok(len) if encoded.body.is_none() => input.extend([&[link, len][..], &encoded.head].concat()),
                _ => input.push(128 + rng.below(128) as u8),
            }
        }
        inputs.push(input);
    }
    // Those without a body, at the peer and at the owner.
    for frame in string_frames() {
        let link = u8::from(matches!(frame, WireFrame::ToCaller { .. }));
        let encoded = encode(frame).expect("a frame can be encoded");
        if let (Ok(len), None) = (u8::try_from(encoded.head.len()), &encoded.body) {
            inputs.push([&[link, len][..], &encoded.head].concat());
        }
    }
    inputs
}

mod frames;
use frames::string_frames;
#[cfg(test)]
mod tests;
