//! A cluster on virtual time: processes, connections, and what goes wrong with them.

use super::user::User;
use super::work::PartRun;
use super::{Rng, Seen, mix};
use crate::peer::proto::caller::{CallerInput, LinkLoss};
use crate::peer::proto::codec::{Announced, Destination, announce, decode, encode};
use crate::peer::proto::frame::{
    CallerFrame, Hello, LinkFrame, PeerFrame, PeerKey, ProcessNumber, SessionId, StepNumber, WireFrame,
};
use crate::peer::proto::frame::{FrameOrder, ValueId};
use crate::peer::proto::host::{
    Admission, Host, HostInput, HostLimits, HostOutput, ProgramKey, SessionSlot, SharedValue,
};
use crate::peer::proto::{LinkNumber, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) fn ms(ms: usize) -> Duration {
    Duration::from_millis(ms as u64)
}

/// An event of the simulation. Most belong to one incarnation of a process.
#[derive(Debug)]
pub(super) enum ClusterEvent {
    Frame { connection: usize, to: usize, head: Vec<u8>, body: Option<Vec<u8>> },
    Lost { connection: usize, side: usize, loss: LinkLoss },
    Dial { from: usize, incarnation: u64, to: usize, by: Dialer },
    Host { node: usize, incarnation: u64, input: HostInput },
    Advance { node: usize, incarnation: u64, run: u64 },
    User { node: usize, incarnation: u64 },
    Tick { node: usize, incarnation: u64 },
    Replay { from: usize, to: usize, link: LinkNumber },
    Disturb,
}

/// Who asked for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dialer {
    Owner,
    Host { session: SessionSlot, process: ProcessNumber },
}

/// A connection between two processes.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sides: [Side; 2],
    pub(super) is_cut: bool,
    latency: usize,
    /// When the last control frame in each direction arrives. Control frames keep their order.
    last_arrival: [Time; 2],
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) node: usize,
    pub(super) incarnation: u64,
    link: LinkNumber,
    pub(super) is_lost: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct NodeModel {
    pub(super) key: PeerKey,
    pub(super) addr: SocketAddr,
    pub(super) incarnation: u64,
    pub(super) host: Host,
    pub(super) user: Option<User>,
    /// Each link's connection, and the side of it that this process is.
    pub(super) links: BTreeMap<LinkNumber, (usize, usize)>,
    pub(super) runs: BTreeMap<u64, PartRun>,
    /// The values of variables, with their contents.
    pub(super) values: BTreeMap<(SessionSlot, ValueId), i64>,
    /// The values of shared variables, with their contents.
    pub(super) shared: BTreeMap<SharedValue, i64>,
    /// The last known content of each shared variable.
    pub(super) counters: BTreeMap<String, i64>,
    /// The programs that the process has cut in another way than their owner.
    pub(super) wrong_cuts: BTreeSet<ProgramKey>,
    /// The process handles nothing before this time.
    pub(super) frozen_until: Time,
    /// Whether the process begins nothing new.
    pub(super) leaves: bool,
    pub(super) tick_at: Option<Time>,
}

/// A node, its incarnation, and the name of a counter.
pub(super) type CounterKey = (usize, u64, String);

/// The whole simulation.
#[derive(Debug)]
pub(super) struct ClusterModel {
    pub(super) rng: Rng,
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), ClusterEvent>,
    n_events: u64,
    pub(super) nodes: Vec<NodeModel>,
    pub(super) connections: Vec<Connection>,
    next_link: u64,
    pub(super) next_run: u64,
    /// Pairs of nodes that cannot reach each other until some time.
    pub(super) blocked: BTreeMap<(usize, usize), Time>,
    /// Messages between peers that were delivered, to be replayed after a reconnection.
    old: Vec<(usize, usize, WireFrame)>,
    /// For each counter at an incarnation of a node: the increments that sessions know to have
    /// happened, and those of which they do not know.
    pub(super) increments: BTreeMap<CounterKey, (i64, i64)>,
    /// For the node of each session: the increments at several peers that it has decided, and whose
    /// outcome at a counter it does not know. The peer learns of the decision if it lives.
    pub(super) owed: BTreeMap<(usize, CounterKey), i64>,
    /// Chooses the decisions after which a connection is cut. The schedules without are as before.
    pub(super) cuts: Rng,
    /// The steps that each participant has ended and stored.
    pub(super) kept: BTreeMap<(SessionId, StepNumber), Vec<ProcessNumber>>,
    pub(super) limits: HostLimits,
    pub(super) disturbances: usize,
    /// When everything that went wrong so far is over, except that processes notice it later.
    pub(super) calm_from: Time,
    pub(super) seen: Seen,
    pub(super) hash: u64,
    pub(super) trace: Option<Vec<String>>,
    pub(super) wrong: Option<String>,
}

impl ClusterModel {
    pub(super) fn new(seed: u64, limits: HostLimits, with_trace: bool) -> ClusterModel {
        ClusterModel {
            rng: Rng(seed),
            now: ms(1_000),
            queue: BTreeMap::new(),
            n_events: 0,
            nodes: Vec::new(),
            connections: Vec::new(),
            next_link: 0,
            next_run: 0,
            blocked: BTreeMap::new(),
            old: Vec::new(),
            increments: BTreeMap::new(),
            owed: BTreeMap::new(),
            cuts: Rng(mix(seed, 2)),
            kept: BTreeMap::new(),
            limits,
            disturbances: 0,
            calm_from: Time::ZERO,
            seen: Seen::default(),
            hash: seed,
            trace: with_trace.then(Vec::new),
            wrong: None,
        }
    }

    pub(super) fn add_node(&mut self) -> usize {
        let index = self.nodes.len();
        let key = PeerKey([index as u8 + 1; 32]);
        self.nodes.push(NodeModel {
            key,
            addr: SocketAddr::from(([10, 0, 0, index as u8], 4433)),
            incarnation: 1,
            host: self.new_host(index, key, 1),
            user: None,
            links: BTreeMap::new(),
            runs: BTreeMap::new(),
            values: BTreeMap::new(),
            shared: BTreeMap::new(),
            counters: BTreeMap::new(),
            wrong_cuts: BTreeSet::new(),
            frozen_until: Time::ZERO,
            leaves: false,
            tick_at: None,
        });
        index
    }

    pub(super) fn new_host(&self, index: usize, key: PeerKey, incarnation: u64) -> Host {
        let hello = Hello { name: format!("node{index}"), incarnation, devices: Vec::new() };
        Host::new(key, hello, self.limits)
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.3} {}", self.now.as_secs_f64(), text()));
        }
    }

    pub(super) fn wrong(&mut self, what: String) {
        self.note(|| format!("WRONG: {what}"));
        self.wrong.get_or_insert(what);
    }

    pub(super) fn at(&mut self, time: Time, event: ClusterEvent) {
        self.n_events += 1;
        self.queue.insert((time.max(self.now), self.n_events), event);
    }

    pub(super) fn after(&mut self, delay: usize, event: ClusterEvent) {
        self.at(self.now + ms(delay), event);
    }

    /// Handles the next event. Returns whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some(((time, number), event)) = self.queue.pop_first() else { return false };
        self.now = time;
        if self.n_events > 100_000 {
            let next: Vec<String> = self.queue.iter().take(5).map(|event| format!("{event:?}")).collect();
            self.wrong(format!("the simulation does not end: {event:?} {next:?}"));
            return false;
        }
        if let Some(node) = self.node_of(&event)
            && self.nodes[node].frozen_until > self.now
        {
            // With its number, it comes before events that were planned later.
            self.queue.insert((self.nodes[node].frozen_until, number), event);
            return true;
        }
        self.handle(event);
        self.wrong.is_none()
    }

    fn node_of(&self, event: &ClusterEvent) -> Option<usize> {
        match event {
            ClusterEvent::Frame { connection, to, .. } => Some(self.connections[*connection].sides[*to].node),
            ClusterEvent::Lost { connection, side, .. } => Some(self.connections[*connection].sides[*side].node),
            ClusterEvent::Host { node, .. } | ClusterEvent::Advance { node, .. } | ClusterEvent::User { node, .. } => {
                Some(*node)
            }
            ClusterEvent::Tick { node, .. } => Some(*node),
            ClusterEvent::Dial { .. } | ClusterEvent::Replay { .. } | ClusterEvent::Disturb => None,
        }
    }

    fn handle(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Frame { connection, to, head, body } => self.deliver(connection, to, &head, body),
            ClusterEvent::Lost { connection, side, loss } => {
                let side = &mut self.connections[connection].sides[side];
                let (node, incarnation, link) = (side.node, side.incarnation, side.link);
                if std::mem::replace(&mut side.is_lost, true) || self.nodes[node].incarnation != incarnation {
                    return;
                }
                self.nodes[node].links.remove(&link);
                self.note(|| format!("node{node} loses link {}: {loss:?}", link.0));
                self.inform_host(node, HostInput::LinkLost { link, reason: format!("{loss:?}") });
                self.inform_caller(node, CallerInput::LinkLost { link, loss });
            }
            ClusterEvent::Dial { from, incarnation, to, by } if self.nodes[from].incarnation == incarnation => {
                self.dial(from, to, by);
            }
            ClusterEvent::Host { node, incarnation, input } if self.nodes[node].incarnation == incarnation => {
                self.inform_host(node, input);
            }
            ClusterEvent::Advance { node, incarnation, run } if self.nodes[node].incarnation == incarnation => {
                self.advance(node, run);
            }
            ClusterEvent::User { node, incarnation } if self.nodes[node].incarnation == incarnation => {
                self.user_acts(node)
            }
            ClusterEvent::Tick { node, incarnation } if self.nodes[node].incarnation == incarnation => {
                // Another tick may have been planned instead.
                if self.nodes[node].tick_at.take_if(|at| *at <= self.now).is_none() {
                    return;
                }
                self.report_progress(node);
                self.inform_host(node, HostInput::Tick);
                self.inform_caller(node, CallerInput::Tick);
                self.plan_tick(node);
            }
            ClusterEvent::Replay { from, to, link } => self.replay(from, to, link),
            ClusterEvent::Disturb => self.disturb(),
            // Of an earlier incarnation.
            _ => {}
        }
    }

    /// Sees to it that a process gets the next tick that it needs.
    pub(super) fn plan_tick(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        let user = state.user.as_ref().filter(|user| !user.is_dead);
        let caller = user.and_then(|user| user.caller.next_deadline());
        let Some(next) = state.host.next_deadline().into_iter().chain(caller).min() else { return };
        if state.tick_at.is_none_or(|at| next < at) {
            state.tick_at = Some(next);
            let incarnation = state.incarnation;
            self.at(next, ClusterEvent::Tick { node, incarnation });
        }
    }

    pub(super) fn inform_host(&mut self, node: usize, input: HostInput) {
        let mut out = Vec::new();
        let registers =
            |frame: &WireFrame| matches!(frame, WireFrame::ToPeer { frame: PeerFrame::Register { .. }, .. });
        let is_register = matches!(&input, HostInput::Frame { frame, .. } if registers(frame));
        self.nodes[node].host.handle(self.now, input, &mut out);
        let registered =
            |frame: &WireFrame| matches!(frame, WireFrame::ToCaller { frame: CallerFrame::Registered { .. }, .. });
        let is_reply = |output: &HostOutput| matches!(output, HostOutput::Send { frame, .. } if registered(frame));
        self.seen.reused += usize::from(is_register && out.iter().any(is_reply));
        self.check_usage(node);
        out.into_iter().for_each(|output| self.host_acts(node, output));
        self.check_counters(node);
        self.plan_tick(node);
    }

    pub(super) fn inform_caller(&mut self, node: usize, input: CallerInput) {
        let Some(user) = self.nodes[node].user.as_mut().filter(|user| !user.is_dead) else { return };
        let mut out = Vec::new();
        user.caller.handle(self.now, input, &mut out);
        out.into_iter().for_each(|output| self.caller_acts(node, output));
        self.plan_tick(node);
    }

    fn check_usage(&mut self, node: usize) {
        let (usage, limits) = (self.nodes[node].host.usage(), self.limits);
        let sessions = usage.sessions;
        self.seen.buffered += usize::from(usage.buffered_bytes > 0);
        if usage.buffered_bytes > limits.buffered_bytes * sessions
            || usage.value_bytes > limits.value_bytes * sessions
            || usage.programs > limits.programs as u64 * sessions
            || usage.steps > limits.steps as u64 * sessions
            || self.nodes[node].host.shared_usage().1 > limits.shared_bytes
            || self.nodes[node].host.library_usage().1 > limits.idle_programs + usage.work as usize
        {
            self.wrong(format!("node{node} exceeds its limits: {usage:?}"));
        }
    }

    /// Returns whether a link works in both directions.
    pub(super) fn is_up(&self, node: usize, link: LinkNumber) -> bool {
        self.nodes[node].links.get(&link).is_some_and(|&(connection, _)| !self.connections[connection].is_cut)
    }

    fn is_blocked(&self, a: usize, b: usize) -> bool {
        self.blocked.get(&(a.min(b), a.max(b))).is_some_and(|&until| until > self.now)
    }

    fn dial(&mut self, from: usize, to: usize, by: Dialer) {
        let key = self.nodes[from].key;
        // Owners are known to all peers. Peers must be introduced to each other.
        let is_owner = self.nodes[from].user.is_some();
        let outcome = if self.is_blocked(from, to) {
            Err("timed out".to_owned())
        } else if !is_owner && !self.nodes[to].host.introduced(&key) {
            self.seen.strangers += 1;
            Err("access denied".to_owned())
        } else {
            Ok(())
        };
        if outcome.is_ok() {
            let connection = self.connections.len();
            let mut side = |node: usize| {
                self.next_link += 1;
                let link = LinkNumber(self.next_link);
                self.nodes[node].links.insert(link, (connection, usize::from(node == to)));
                Side { node, incarnation: self.nodes[node].incarnation, link, is_lost: false }
            };
            let sides = [side(from), side(to)];
            let (links, latency) = ([sides[0].link, sides[1].link], 1 + self.rng.below(30));
            self.connections.push(Connection { sides, is_cut: false, latency, last_arrival: [self.now; 2] });
            self.note(|| format!("node{from} connects to node{to}: links {} {}", links[0].0, links[1].0));
            let peer_key = self.nodes[to].key;
            self.inform_host(from, HostInput::Linked { link: links[0], node: peer_key, is_introduced: !is_owner });
            self.inform_host(to, HostInput::Linked { link: links[1], node: key, is_introduced: !is_owner });
            self.after(300, ClusterEvent::Replay { from, to, link: links[0] });
        }
        match by {
            Dialer::Owner => {}
            Dialer::Host { session, process } => {
                self.inform_host(from, HostInput::Dialed { session, process, outcome })
            }
        }
    }

    /// Sends messages of earlier steps again, as a process might after a reconnection.
    fn replay(&mut self, from: usize, to: usize, link: LinkNumber) {
        let old = std::mem::take(&mut self.old);
        for (a, b, frame) in old {
            if (a, b) != (from, to) {
                self.old.push((a, b, frame));
            } else if let WireFrame::ToPeer { session, frame: PeerFrame::Message(message) } = &frame {
                let running =
                    self.nodes[to].runs.values().any(|run| (run.session, run.step) == (*session, message.step));
                let mut users = self.nodes.iter().filter_map(|node| node.user.as_ref());
                if !running && !users.any(|user| user.is_running(*session, message.step)) {
                    self.seen.replayed += 1;
                    self.send(from, link, frame);
                }
            }
        }
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, node: usize, link: LinkNumber, frame: WireFrame) {
        let Some(&(connection, side)) = self.nodes[node].links.get(&link) else { return };
        let state = &mut self.connections[connection];
        let other = state.sides[1 - side].node;
        if state.is_cut {
            return;
        }
        if let WireFrame::ToPeer { frame: PeerFrame::Message(message), .. } = &frame
            && message.from.0 > 0
            && self.old.len() < 8
        {
            self.old.push((node, other, frame.clone()));
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.3} node{node} -> node{other}: {frame:?}", self.now.as_secs_f64()));
        }
        let order = frame.order();
        let encoded = match encode(frame) {
            Ok(encoded) => encoded,
            Err(error) => return self.wrong(format!("a frame cannot be encoded: {error}")),
        };
        self.hash = encoded.head.iter().fold(mix(self.hash, self.now.as_nanos() as u64), |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        self.seen.frames += 1;
        let body = encoded.body.map(|body| body.as_ref().to_vec());
        let latency = state.latency;
        let jitter = self.rng.below(latency);
        let at = match &body {
            None if order == FrameOrder::Urgent => self.now + ms(latency + jitter),
            None if order == FrameOrder::InOrder => {
                let last = &mut self.connections[connection].last_arrival[side];
                *last = (self.now + ms(latency + jitter)).max(*last);
                *last
            }
            // A value lags, or overtakes frames that are in order.
            _ => self.now + ms(latency + self.rng.below(4 * latency)),
        };
        self.at(at, ClusterEvent::Frame { connection, to: 1 - side, head: encoded.head, body });
    }

    fn deliver(&mut self, connection: usize, to: usize, head: &[u8], body: Option<Vec<u8>>) {
        let state = &self.connections[connection];
        let side = &state.sides[to];
        let (node, link) = (side.node, side.link);
        if state.is_cut || side.is_lost || self.nodes[node].incarnation != side.incarnation {
            return;
        }
        let len = body.as_ref().map_or(0, |body| body.len() as u64);
        if len > 0 {
            let admitted = announce(head, len).map_err(|error| error.to_string());
            let admitted = admitted.and_then(|Announced { to, used_by, .. }| {
                Ok((to, used_by, self.nodes[node].host.admit(link, to, len)?))
            });
            match admitted {
                Ok((_, _, Admission::Kept)) => {}
                Ok((Destination::Peer(session), used_by, Admission::Dropped)) => {
                    return self.inform_host(node, HostInput::Discarded { link, session, used_by });
                }
                other => return self.wrong(format!("a body is not admitted: {other:?}")),
            }
        }
        match decode(head, body.map(Into::into)) {
            Err(error) => self.wrong(format!("a frame cannot be decoded: {error}")),
            Ok(frame @ (WireFrame::ToCaller { .. } | WireFrame::Link(LinkFrame::Leave { .. }))) => {
                self.inform_caller(node, CallerInput::Frame { link, frame });
            }
            Ok(frame) => self.inform_host(node, HostInput::Frame { link, frame, body: len }),
        }
    }

    /// Closes a connection from one side.
    pub(super) fn close(&mut self, node: usize, link: LinkNumber, reason: &str) {
        let honest = ["no session uses", "sent nothing for", "did not open the session in time", "the peer leaves"];
        if !honest.iter().any(|text| reason.contains(text)) {
            self.wrong(format!("node{node} closes a link: {reason}"));
        }
        let Some(&(connection, side)) = self.nodes[node].links.get(&link) else { return };
        self.connections[connection].is_cut = true;
        let latency = self.connections[connection].latency;
        let loss = LinkLoss::Local(reason.to_owned());
        self.after(0, ClusterEvent::Lost { connection, side, loss });
        let loss = LinkLoss::Closed(reason.to_owned());
        self.after(latency, ClusterEvent::Lost { connection, side: 1 - side, loss });
    }

    /// Reports an output of a host that is about links.
    pub(super) fn link_acts(&mut self, node: usize, output: HostOutput) {
        match output {
            HostOutput::Send { link, frame } | HostOutput::SendValue { link, frame, .. } => {
                self.send(node, link, frame);
            }
            HostOutput::Report { link, report } => {
                self.send(node, link, WireFrame::Link(LinkFrame::StatusReport(report)));
            }
            // Messages are on their way at once.
            HostOutput::CancelBodies { .. } => {}
            HostOutput::CloseLink { link, reason } => self.close(node, link, &reason),
            HostOutput::Greeted { link, node: key, hello } => {
                self.inform_caller(node, CallerInput::Linked { link, node: key, hello });
            }
            HostOutput::Dial { session, process, node: key, .. } => {
                let Some(to) = self.nodes.iter().position(|other| other.key == key) else { return };
                let delay = 1 + self.rng.below(60);
                let incarnation = self.nodes[node].incarnation;
                let by = Dialer::Host { session, process };
                self.after(delay, ClusterEvent::Dial { from: node, incarnation, to, by });
            }
            _ => {}
        }
    }
}
