//! The sessions of a host, and the links to their participants.

use super::{CallerFrame, Host, HostLink, HostOutput, LinkNumber, Open, ProgramKey, SessionSlot};
use super::{exhausted, invalid, reply};
use crate::peer::FAILURE_TIMEOUTS;
use crate::peer::proto::Time;
use crate::peer::proto::frame::{Digest, OWNER, PeerKey, ProcessEntry, ProcessNumber, ProgramNumber, RequestNumber};
use crate::peer::proto::frame::{SessionId, SessionLimits, StepNumber, StepProgress, ValueId, WireError};
use crate::peer::proto::frame::{WireErrorKind, prefix};
use crate::peer::proto::host::step::{EarlyFrames, HostStep};
use anabranch_dsl::memory::ByteGauge;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before the first, and at most before another, attempt to reach a process.
fn redial(failure_timeout: Duration) -> [Duration; 2] {
    [(failure_timeout / 200).min(Duration::from_millis(50)), (failure_timeout / 10).min(Duration::from_secs(1))]
}

/// A session at a host.
#[derive(Debug)]
pub(super) struct HostSession {
    pub(super) id: SessionId,
    pub(super) owner: PeerKey,
    /// The link that opened the session.
    pub(super) link: LinkNumber,
    pub(super) you: ProcessNumber,
    pub(super) members: Vec<SessionMember>,
    /// The last attempt of the owner to open the session.
    attempt: u64,
    /// When opening, or restoring links, fails.
    opening: Option<Time>,
    /// Whether all links were up once.
    is_open: bool,
    pub(super) failure_timeout: Duration,
    heartbeat_at: Time,
    pub(super) programs: BTreeMap<ProgramNumber, HostProgram>,
    pub(super) program_bytes: u64,
    pub(super) values: BTreeMap<ValueId, StoredValue>,
    /// The bytes of the values, and of those that were released while steps read them.
    pub(super) value_bytes: u64,
    pub(super) released: BTreeMap<ValueId, StoredValue>,
    /// The requests that are being answered, with their values.
    pub(super) requests: BTreeMap<RequestNumber, Option<ValueId>>,
    pub(super) last_started: StepNumber,
    pub(super) steps: BTreeMap<StepNumber, HostStep>,
    /// Frames of steps that have not begun. `None` if they were too many.
    pub(super) early: BTreeMap<StepNumber, Option<EarlyFrames>>,
    /// The first and the last of the steps whose frames were too many to wait.
    pub(super) refused_early: Option<[StepNumber; 2]>,
    /// What has arrived for steps, and was not taken by them.
    pub(super) arrivals: Arc<ByteGauge>,
    /// What waits to be sent.
    pub(super) outgoing: Arc<ByteGauge>,
    /// The memory that its steps use.
    pub(super) working: Arc<ByteGauge>,
}

/// A process of a session.
#[derive(Debug)]
pub(super) struct SessionMember {
    pub(super) entry: ProcessEntry,
    pub(super) link: Option<LinkNumber>,
    dial: DialState,
    /// Why the last attempt to reach the process failed.
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum DialState {
    None,
    Dialing { wait: Duration },
    Waiting { until: Time, wait: Duration },
}

/// A program of a session.
#[derive(Debug)]
pub(super) struct HostProgram {
    pub(super) digest: Digest,
    pub(super) phase: ProgramPhase,
    pub(super) bytes: u64,
    /// When loading fails, until the program is loaded.
    pub(super) loads_until: Option<Time>,
}

impl HostProgram {
    /// Returns whether the owner was asked for its bytes.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.phase, ProgramPhase::Wanted)
    }
}

/// How far a program of a session is.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramPhase {
    /// The owner was asked for the bytes.
    Wanted,
    Loading(ProgramKey),
    Loaded(ProgramKey),
}

/// A value of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredValue {
    pub(super) bytes: u64,
    pub(super) is_stored: bool,
    /// The running steps that read it.
    pub(super) n_readers: u32,
}

impl HostSession {
    pub(super) fn next_deadline(&self) -> Time {
        let redials = self.members.iter().filter_map(|member| match member.dial {
            DialState::Waiting { until, .. } if self.opening.is_some() => Some(until),
            _ => None,
        });
        let steps = self.steps.values().filter_map(HostStep::next_deadline);
        let loads = self.programs.values().filter_map(|program| program.loads_until);
        redials.chain(steps).chain(loads).chain(self.opening).fold(self.heartbeat_at, Time::min)
    }

    pub(super) fn progress(&self) -> Vec<StepProgress> {
        self.steps.values().map(|step| step.progress).collect()
    }

    /// Returns the others that take part, except the owner.
    fn peers(&self) -> impl Iterator<Item = (ProcessNumber, &SessionMember)> {
        let you = self.you;
        let members = (0..).map(ProcessNumber).zip(&self.members);
        members.filter(move |&(process, _)| process != OWNER && process != you)
    }
}

impl Host {
    /// Opens a session, or restores the links of one.
    pub(super) fn open(
        &mut self,
        now: Time,
        link: LinkNumber,
        id: SessionId,
        open: Open,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let owner = self.links[&link].node;
        let nodes: BTreeSet<PeerKey> = open.processes.iter().map(|entry| entry.node).collect();
        let is_you = |entry: &ProcessEntry| entry.node == self.node;
        if open.processes.first().is_none_or(|entry| entry.node != owner)
            || open.you == OWNER
            || !open.processes.get(open.you.0 as usize).is_some_and(is_you)
        {
            return Err("a session whose table of processes is wrong".to_owned());
        }
        let failed = |error: WireError, out: &mut Vec<HostOutput>| {
            let frame = CallerFrame::OpenFailed { attempt: open.attempt, error };
            out.push(HostOutput::Send { link, frame: super::WireFrame::ToCaller { session: id, frame } });
            Ok(())
        };
        if nodes.len() < open.processes.len() {
            return failed(invalid("two processes of the session have the same key"), out);
        }
        let slot = match self.by_id.get(&id).copied() {
            Some(slot) if self.sessions[&slot].owner != owner => {
                return failed(invalid("the session id is in use"), out);
            }
            Some(slot) if self.sessions[&slot].link == link => Some(slot),
            Some(slot) => {
                self.drop_session(now, slot, "the owner has reconnected", out);
                None
            }
            None => None,
        };
        let failure_timeout = Duration::from_millis(open.failure_timeout_ms.into());
        let failure_timeout = failure_timeout.clamp(FAILURE_TIMEOUTS[0], FAILURE_TIMEOUTS[1]);
        if let Some(slot) = slot {
            return self.reopen(now, slot, open, failure_timeout, out);
        }
        if let Some((reason, _)) = &self.leaving {
            let message = format!("the peer is leaving: {}", prefix(reason, 1_000));
            return failed(WireError::new(WireErrorKind::Cancelled, message), out);
        }
        if self.sessions.values().filter(|session| session.owner == owner).count() >= self.limits.sessions {
            return failed(
                exhausted(format!("the peer serves at most {} sessions of a node", self.limits.sessions)),
                out,
            );
        }
        if self.work_of(owner) >= self.limits.work {
            return failed(exhausted("work of closed sessions is still running at the peer"), out);
        }
        let slot = SessionSlot(self.next_number());
        let member = |(process, &entry): (u32, &ProcessEntry)| SessionMember {
            entry,
            link: (process == OWNER.0).then_some(link),
            dial: DialState::None,
            reason: None,
        };
        let session = HostSession {
            id,
            owner,
            link,
            you: open.you,
            members: (0..).zip(&open.processes).map(member).collect(),
            attempt: open.attempt,
            opening: Some(now + failure_timeout),
            is_open: false,
            failure_timeout,
            heartbeat_at: now + failure_timeout / 4,
            programs: BTreeMap::new(),
            program_bytes: 0,
            values: BTreeMap::new(),
            value_bytes: 0,
            released: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_started: before(open.first_step),
            steps: BTreeMap::new(),
            early: BTreeMap::new(),
            refused_early: None,
            arrivals: ByteGauge::new(self.limits.buffered_bytes),
            outgoing: ByteGauge::new(self.limits.outgoing_bytes),
            working: ByteGauge::new(self.limits.step_bytes),
        };
        self.sessions.insert(slot, session);
        self.by_id.insert(id, slot);
        self.note_idle_links(now);
        self.connect(now, slot, out);
        Ok(())
    }

    /// Restores the links of an open session. Steps that are running go on.
    fn reopen(
        &mut self,
        now: Time,
        slot: SessionSlot,
        open: Open,
        failure_timeout: Duration,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let session = self.sessions.get_mut(&slot).expect("the session is open");
        let same = open.processes.len() == session.members.len() && open.you == session.you;
        if !same || open.processes.iter().zip(&session.members).any(|(new, old)| new.node != old.entry.node) {
            return Err("a session opened again with other processes".to_owned());
        }
        for (member, entry) in session.members.iter_mut().zip(open.processes) {
            member.entry = entry;
        }
        session.failure_timeout = failure_timeout;
        session.attempt = open.attempt;
        session.opening = Some(now + failure_timeout);
        session.skip(before(open.first_step));
        self.connect(now, slot, out);
        Ok(())
    }

    /// Looks for links that sessions wait for.
    pub(super) fn connect_all(&mut self, now: Time, out: &mut Vec<HostOutput>) {
        let opening: Vec<SessionSlot> =
            self.sessions.iter().filter(|(_, session)| session.opening.is_some()).map(|(&slot, _)| slot).collect();
        for slot in opening {
            self.connect(now, slot, out);
        }
    }

    /// Uses links that exist, dials processes with higher numbers, and reports when all links are
    /// up.
    fn connect(&mut self, now: Time, slot: SessionSlot, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let you = session.you;
        let [first_wait, _] = redial(session.failure_timeout);
        let mut missing = false;
        for (process, member) in (0..).map(ProcessNumber).zip(&mut session.members) {
            if process == you || member.link.is_some() || !member.entry.is_needed {
                member.dial = DialState::None;
                continue;
            }
            let up = self.links.iter().rfind(|(_, link)| link.node == member.entry.node && link.name.is_some());
            if let Some((&link, _)) = up {
                member.link = Some(link);
                member.dial = DialState::None;
                continue;
            }
            missing = true;
            let Some(addr) = member.entry.addr.filter(|_| you < process) else {
                // The other side dials.
                member.dial = DialState::None;
                continue;
            };
            let (wait, is_due) = match member.dial {
                DialState::None => (first_wait, true),
                DialState::Dialing { wait } => (wait, false),
                DialState::Waiting { until, wait } => (wait, until <= now),
            };
            if is_due {
                member.dial = DialState::Dialing { wait };
                out.push(HostOutput::Dial { session: slot, process, node: member.entry.node, addr });
            }
        }
        if !missing {
            session.opening = None;
            session.is_open = true;
            session.members.iter_mut().for_each(|member| member.dial = DialState::None);
            let limits = SessionLimits {
                programs: self.limits.programs as u32,
                program_bytes: self.limits.program_bytes,
                value_bytes: self.limits.value_bytes,
                body_bytes: self.limits.body_bytes,
                steps: self.limits.steps as u32,
                load_ms: whole_millis(self.limits.load_time),
                step_ms: whole_millis(self.limits.step_time),
            };
            reply(session, CallerFrame::Opened { attempt: session.attempt, limits }, out);
        }
    }

    pub(super) fn dialed(
        &mut self,
        now: Time,
        slot: SessionSlot,
        process: ProcessNumber,
        outcome: Result<(), String>,
        out: &mut Vec<HostOutput>,
    ) {
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        let Some(member) = session.members.get_mut(process.0 as usize) else { return };
        let DialState::Dialing { wait } = member.dial else { return };
        // After a success, the other side has some time to introduce itself.
        let [_, longest] = redial(session.failure_timeout);
        let until = now + if outcome.is_ok() { longest } else { wait };
        member.dial = DialState::Waiting { until, wait: (wait * 2).min(longest) };
        member.reason = outcome.err();
        if session.opening.is_some() {
            self.connect(now, slot, out);
        }
    }

    /// Sets the link over which later steps reach a node, after the node has introduced itself on
    /// it. Links that are missing are left to [`connect`](Self::connect).
    pub(super) fn use_newest(&mut self, link: LinkNumber, node: PeerKey) {
        for session in self.sessions.values_mut() {
            let members = session.members.iter_mut().skip(1);
            for member in members.filter(|member| member.entry.node == node && member.link.is_some()) {
                member.link = Some(link);
            }
        }
    }

    /// Handles the loss of a link that does not lead to the owner.
    pub(super) fn unlink(
        &mut self,
        now: Time,
        slot: SessionSlot,
        link: LinkNumber,
        lost: &HostLink,
        reason: &str,
        out: &mut Vec<HostOutput>,
    ) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let lost_node = |member: &SessionMember| member.entry.node == lost.node;
        let Some(process) = session.members.iter().position(lost_node) else { return };
        let member = &mut session.members[process];
        let name = named(lost.name.as_deref(), &member.entry);
        let message = format!("lost the link to {name}: {}", prefix(reason, 1_000));
        if member.link.is_some_and(|newer| newer != link) {
            // Later steps use the newer link.
            return self.fail_steps_over(slot, link, &message, out);
        }
        let was_used = member.link.take().is_some();
        member.reason = Some(prefix(reason, 1_000).to_owned());
        let (process, is_opening) = (ProcessNumber(process as u32), session.opening.is_some());
        if !is_opening {
            member.dial = DialState::None;
            if was_used {
                reply(session, CallerFrame::Unlinked { process }, out);
            }
        } else if !matches!(member.dial, DialState::Dialing { .. }) {
            // Also if it was lost before the other side had introduced itself.
            let [wait, _] = redial(session.failure_timeout);
            member.dial = DialState::Waiting { until: now + wait, wait };
        }
        self.fail_steps_over(slot, link, &message, out);
        if is_opening {
            self.connect(now, slot, out);
        }
    }

    pub(super) fn tick_session(&mut self, now: Time, slot: SessionSlot, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        if session.heartbeat_at <= now {
            session.heartbeat_at = now + session.failure_timeout / 4;
            let session = &self.sessions[&slot];
            let received = self.links[&session.link].received_bytes;
            reply(session, CallerFrame::Heartbeat { steps: session.progress(), received }, out);
        }
        self.check_deadlines(now, slot, out);
        self.check_loads(now, slot, out);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        match session.opening {
            Some(deadline) if deadline <= now => {
                session.opening = None;
                let missing = session.peers().filter(|(_, member)| member.link.is_none() && member.entry.is_needed);
                let missing: Vec<String> = missing.map(|(_, member)| why_missing(member)).collect();
                let error = exhausted_link(&self.hello.name, &missing);
                session.members.iter_mut().for_each(|member| member.dial = DialState::None);
                let (is_open, attempt) = (session.is_open, session.attempt);
                reply(&self.sessions[&slot], CallerFrame::OpenFailed { attempt, error }, out);
                if !is_open {
                    self.drop_session(now, slot, "the session did not open", out);
                }
            }
            Some(_) => self.connect(now, slot, out),
            None => {}
        }
    }

    /// Drops a session and everything that it holds.
    pub(super) fn drop_session(&mut self, now: Time, slot: SessionSlot, reason: &str, out: &mut Vec<HostOutput>) {
        let Some(session) = self.sessions.remove(&slot) else { return };
        self.by_id.remove(&session.id);
        for (&step, running) in &session.steps {
            if !running.is_stopped {
                let reason = WireError::new(WireErrorKind::Cancelled, reason);
                out.push(HostOutput::Stop { key: super::StepKey { session: slot, step }, reason });
            }
        }
        out.push(HostOutput::CancelBodies { session: session.id, step: None });
        out.push(HostOutput::DropSession { session: slot });
        self.release_programs(slot, session.programs, out);
        self.end_locks(now, slot, (session.owner, session.id), out);
        self.note_idle_links(now);
    }
}

/// Returns the number before that of a step.
fn before(step: StepNumber) -> StepNumber {
    StepNumber(step.0.saturating_sub(1))
}

/// Returns the name of a process for messages.
fn named(name: Option<&str>, entry: &ProcessEntry) -> String {
    let addr = entry.addr.map_or_else(|| "no address".to_owned(), |addr| addr.to_string());
    format!("{} ({}, {addr})", prefix(name.unwrap_or("a peer"), 200), entry.node)
}

fn why_missing(member: &SessionMember) -> String {
    let reason = member.reason.as_deref().unwrap_or("it did not connect in time");
    format!("{}: {}", named(None, &member.entry), prefix(reason, 200))
}

fn exhausted_link(name: &str, missing: &[String]) -> WireError {
    let message = format!("`{}` has no link to {}", prefix(name, 200), missing.join(", nor to "));
    WireError::new(WireErrorKind::Unavailable, message)
        .help("peers connect to each other: check that their addresses can be reached from all of them")
}

/// Returns the milliseconds of a time, or the most that a frame can say.
fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
