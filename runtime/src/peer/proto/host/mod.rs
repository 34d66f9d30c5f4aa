//! A peer process: all of its links, and the sessions that other nodes opened at it.
//!
//! [`Host::handle`] takes what happened and returns what to do: frames to send, work to begin. Each
//! process has one host, also a process that only owns sessions: the host exchanges the first
//! frames of all links.
//!
//! Invariants:
//!
//! - H1. A session obeys only the link that opened it. A message of a step must come from a link to
//!   the node of the process that it names as its sender, or it is dropped. No frame can name
//!   another owner's session, and no owner can make one peer accuse another: they share one link
//!   for the sessions of all owners.
//! - H2. A message or input for a step waits until the step begins and takes it. The bytes that
//!   wait are limited per session, and a step fails for which more arrive. Starts arrive in order,
//!   so a step below the last that started is over, and what arrives for it is dropped. If things
//!   arrive for too many steps, those for the lowest ones wait, and the others fail.
//! - H3. A participant's values are stored if and only if it reports that it ended. A step that was
//!   stopped stores nothing.
//! - H4. A lost link ends the sessions that it opened at once. All of their state is dropped. If it
//!   leads to another participant, the steps that use it fail, and their owner hears why. Later
//!   steps use the newest link to a participant: it opened it because it has lost the older one.
//! - H5. Everything that a session holds is limited ([`HostLimits`]). Work that is still running
//!   for closed sessions counts against the limits of its owner. So does what nodes send and open
//!   that are known only from its sessions.
//! - H6. A session is bound to one number ([`SessionSlot`]) that is never reused, so late results
//!   of local work never reach a newer session.
//! - H7. Shared variables and loaded programs belong to no session. `shared.rs` and `programs.rs`
//!   have their invariants.
//! - H8. The outputs are a function of the inputs. Nothing depends on the order of a hash table.
//!
//! What the process does with an output: it sends frames in the order in which they were returned.
//! It keeps the results of a step until [`HostOutput::Finish`] says whether to store them. After
//! [`HostOutput::DropSession`] it drops all values and programs of the session, and the results of
//! work that is still running for it.

mod events;
mod incoming;
mod programs;
mod session;
mod shared;
mod step;
#[cfg(test)]
mod tests;
mod values;

use super::codec::{Destination, MAX_STEPS};
use super::frame::{CallerFrame, Hello, LinkFrame, Open, PeerFrame, PeerKey, ProcessNumber, ProgramNumber, WireFrame};
use super::frame::{SessionId, Start, StatusReport, StepFault, StepMessage};
use super::frame::{StepNumber, StepProgress, Usage, WireError, WireErrorKind};
use super::{LinkNumber, Time};
use crate::peer::printable;
pub(crate) use events::{Begin, HostArrival, HostInput, HostLimits, HostOutput, LoadedAs};
pub(crate) use events::{ProgramKey, RequestKey, SessionSlot, StepEnd, StepKey};
pub(crate) use incoming::Admission;
use programs::ProgramLibrary;
use session::HostSession;
use shared::SharedStore;
pub(crate) use shared::SharedValue;
use std::collections::BTreeMap;

/// Local work that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkKey {
    Load(ProgramKey),
    Step(StepKey),
    Request(RequestKey),
}

#[derive(Debug)]
struct HostLink {
    node: PeerKey,
    name: Option<String>,
    is_introduced: bool,
    /// The bodies that are being received, by session: the node that they count for, and their
    /// bytes.
    incoming: BTreeMap<SessionId, (PeerKey, u64)>,
    /// Bytes of bodies that have arrived.
    received_bytes: u64,
    /// When the last session that used the link ended.
    idle_since: Option<Time>,
}

/// The state of a peer process.
#[derive(Debug)]
pub(crate) struct Host {
    node: PeerKey,
    hello: Hello,
    limits: HostLimits,
    links: BTreeMap<LinkNumber, HostLink>,
    sessions: BTreeMap<SessionSlot, HostSession>,
    by_id: BTreeMap<SessionId, SessionSlot>,
    /// The local work that is running, with its owner.
    work: BTreeMap<WorkKey, PeerKey>,
    shared: SharedStore,
    library: ProgramLibrary,
    next_number: u64,
    /// Why the process leaves, and whether it has reported that its work is done.
    leaving: Option<(String, bool)>,
}

impl Host {
    pub(crate) fn new(node: PeerKey, hello: Hello, limits: HostLimits) -> Host {
        let limits = HostLimits { steps: limits.steps.min(MAX_STEPS), ..limits };
        Host {
            node,
            hello,
            limits,
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            by_id: BTreeMap::new(),
            work: BTreeMap::new(),
            shared: SharedStore::default(),
            library: ProgramLibrary::default(),
            next_number: 0,
            leaving: None,
        }
    }

    /// Returns the key of a step of a session that is open.
    pub(crate) fn step_key(&self, session: SessionId, step: StepNumber) -> Option<StepKey> {
        Some(StepKey { session: *self.by_id.get(&session)?, step })
    }

    /// Returns what the host holds.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage =
            Usage { sessions: self.sessions.len() as u64, work: self.work.len() as u64, ..Usage::default() };
        for session in self.sessions.values() {
            usage.programs += session.programs.len() as u64;
            usage.program_bytes += session.program_bytes;
            usage.values += session.values.len() as u64;
            usage.value_bytes += session.value_bytes;
            usage.early_steps += session.early.len() as u64;
            usage.buffered_bytes += session.arrivals.held();
            usage.steps += session.steps.len() as u64;
            usage.step_bytes += session.working.held();
        }
        usage.incoming_bytes =
            self.links.values().flat_map(|link| link.incoming.values()).map(|(_, bytes)| bytes).sum();
        usage
    }

    /// Returns the values of a session.
    #[cfg(test)]
    pub(crate) fn values(&self, session: SessionId) -> Option<Vec<super::frame::ValueId>> {
        let session = &self.sessions[self.by_id.get(&session)?];
        let stored = session.values.values().map(|value| value.bytes).sum::<u64>();
        let released = session.released.values().map(|value| value.bytes).sum::<u64>();
        assert_eq!(stored + released, session.value_bytes);
        assert!(session.early.keys().all(|&step| step > session.last_started));
        Some(session.values.keys().copied().collect())
    }

    /// Returns when the host next needs [`HostInput::Tick`].
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let idle = self.links.values().filter_map(|link| link.idle_since).map(|since| since + self.limits.idle_link);
        let locks = self.shared.next_deadline();
        idle.chain(self.sessions.values().map(HostSession::next_deadline)).chain(locks).min()
    }

    /// Handles an event. Appends what is to be done.
    pub(crate) fn handle(&mut self, now: Time, input: HostInput, out: &mut Vec<HostOutput>) {
        match input {
            HostInput::Linked { link, node, is_introduced } => self.linked(now, link, node, is_introduced, out),
            HostInput::Frame { link, frame, body } => {
                if !self.links.contains_key(&link) {
                    return;
                }
                if let WireFrame::ToPeer { session, .. } = &frame {
                    self.body_ended(link, *session, body);
                }
                if let Err(reason) = self.on_frame(now, link, frame, out) {
                    out.push(HostOutput::CloseLink { link, reason: reason.clone() });
                    self.link_lost(now, link, &reason, out);
                }
            }
            HostInput::Cancelled { link, to, len } => {
                if let Destination::Peer(session) = to {
                    self.body_ended(link, session, len);
                }
            }
            HostInput::Discarded { link, session, used_by } => self.discarded(link, session, used_by, out),
            HostInput::LinkLost { link, reason } => self.link_lost(now, link, &reason, out),
            HostInput::Received { link, bytes } => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.received_bytes = bytes;
                }
            }
            HostInput::Dialed { session, process, outcome } => self.dialed(now, session, process, outcome, out),
            HostInput::Loaded { key, outcome } => self.loaded(now, key, outcome, out),
            HostInput::Stored { key, outcome } => self.stored(key, outcome, out),
            HostInput::Fetched { key, outcome } => self.fetched(key, outcome, out),
            HostInput::LinkTested { key, outcome } => self.link_tested(key, outcome, out),
            HostInput::Progressed { key, done, is_busy, last } => {
                self.progressed(key.session, StepProgress { step: key.step, done, is_busy, last });
            }
            HostInput::StepEnded { key, outcome } => self.step_ended(key, outcome, out),
            HostInput::Leave { reason } => self.leave(reason, out),
            HostInput::Tick => self.tick(now, out),
        }
        if let Some((_, is_reported @ false)) = &mut self.leaving
            && self.work.is_empty()
            && self.sessions.is_empty()
        {
            *is_reported = true;
            out.push(HostOutput::Idle);
        }
    }

    fn linked(&mut self, now: Time, link: LinkNumber, node: PeerKey, is_introduced: bool, out: &mut Vec<HostOutput>) {
        let idle_since = is_introduced.then_some(now);
        self.links.insert(
            link,
            HostLink { node, name: None, is_introduced, incoming: BTreeMap::new(), received_bytes: 0, idle_since },
        );
        if is_introduced && !self.has_room_for(link, &node) {
            let reason = "the sessions that introduced the node have too many links";
            out.push(HostOutput::CloseLink { link, reason: reason.to_owned() });
            return self.link_lost(now, link, reason, out);
        }
        // A session may have introduced the node and wait for this link.
        self.note_idle_links(now);
        out.push(HostOutput::Send { link, frame: WireFrame::Link(LinkFrame::Hello(self.hello.clone())) });
        if let Some((reason, _)) = &self.leaving {
            out.push(HostOutput::Send { link, frame: WireFrame::Link(LinkFrame::Leave { reason: reason.clone() }) });
        }
    }

    fn on_frame(
        &mut self,
        now: Time,
        link: LinkNumber,
        frame: WireFrame,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let node = self.links[&link].node;
        match frame {
            WireFrame::Link(LinkFrame::Hello(hello)) => {
                let state = self.links.get_mut(&link).expect("the link exists");
                if state.name.replace(printable(&hello.name)).is_some() {
                    return Err("the process introduced itself twice".to_owned());
                }
                out.push(HostOutput::Greeted { link, node, hello });
                self.use_newest(link, node);
                self.connect_all(now, out);
                Ok(())
            }
            _ if self.links[&link].name.is_none() => Err("a frame before the first".to_owned()),
            WireFrame::Link(LinkFrame::Leave { reason }) => {
                out.push(HostOutput::Leaving { link, reason });
                Ok(())
            }
            WireFrame::Link(LinkFrame::Status) => {
                // A node that sessions introduced sees nothing of others.
                out.push(match self.links[&link].is_introduced {
                    true => {
                        let report = StatusReport { is_refused: true, ..StatusReport::default() };
                        HostOutput::Send { link, frame: WireFrame::Link(LinkFrame::StatusReport(report)) }
                    }
                    false => HostOutput::Report { link, report: self.status(node) },
                });
                Ok(())
            }
            WireFrame::Link(LinkFrame::StatusReport(report)) => {
                out.push(HostOutput::StatusReported { link, report });
                Ok(())
            }
            WireFrame::ToPeer { session, frame } => self.on_session_frame(now, link, session, frame, out),
            // The owner's side of this process has it.
            WireFrame::ToCaller { .. } => Ok(()),
        }
    }

    fn on_session_frame(
        &mut self,
        now: Time,
        link: LinkNumber,
        id: SessionId,
        frame: PeerFrame,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        let node = self.links[&link].node;
        let slot = self.by_id.get(&id).copied();
        match (frame, slot) {
            (PeerFrame::Open(open), _) if self.links[&link].is_introduced => {
                let error = WireError::new(WireErrorKind::Invalid, "this node may not open sessions at the peer")
                    .help("the operator of the peer must allow its key");
                let frame = CallerFrame::OpenFailed { attempt: open.attempt, error };
                out.push(HostOutput::Send { link, frame: WireFrame::ToCaller { session: id, frame } });
                Ok(())
            }
            (PeerFrame::Open(open), _) => self.open(now, link, id, open, out),
            // The session has been closed or dropped.
            (_, None) => Ok(()),
            (PeerFrame::Message(message), Some(slot)) => self.on_message(slot, (link, node), message, out),
            (frame, Some(slot)) => {
                let session = &self.sessions[&slot];
                if session.link != link {
                    // A late frame on an older link of the owner.
                    return if session.owner == node {
                        Ok(())
                    } else {
                        Err("this session has another owner".to_owned())
                    };
                }
                self.on_owner_frame(now, slot, frame, out)
            }
        }
    }

    fn on_owner_frame(
        &mut self,
        now: Time,
        slot: SessionSlot,
        frame: PeerFrame,
        out: &mut Vec<HostOutput>,
    ) -> Result<(), String> {
        match frame {
            PeerFrame::Close => self.drop_session(now, slot, "the session is closed", out),
            PeerFrame::Register { program, digest, len } => self.register(now, slot, program, digest, len, out),
            PeerFrame::Upload { program, bytes } => self.upload(now, slot, program, bytes, out),
            PeerFrame::Unregister { program } => self.unregister(slot, program, out),
            PeerFrame::Store { request, value, tensor } => self.store(slot, request, value, tensor, out),
            PeerFrame::Fetch { request, value } => self.fetch(slot, request, value, out),
            PeerFrame::TestLink { request, process } => self.test_link(slot, request, process, out),
            PeerFrame::Release { values } => self.release(slot, values, out),
            PeerFrame::Start(start) => return self.start(now, slot, start, out),
            PeerFrame::Input { step, index, tensor } => {
                self.arrived(slot, step, HostArrival::Input { index, tensor }, out);
            }
            PeerFrame::Abort { step, reason } => self.abort(slot, step, &reason, out),
            PeerFrame::Acquire { request, lock, uses } => self.acquire(now, slot, request, lock, uses, out),
            PeerFrame::Renew { locks } => self.renew(now, slot, &locks),
            PeerFrame::Prepare { request, lock, is_alone, values } => {
                self.prepare(slot, (request, lock), is_alone, &values, out);
            }
            PeerFrame::Decide { request, lock, commits } => self.decide(now, slot, (request, lock), commits, out),
            PeerFrame::Unlock { lock } => self.unlock(now, slot, lock, out),
            PeerFrame::Open(_) | PeerFrame::Message(_) => unreachable!("handled for all links"),
        }
        Ok(())
    }

    /// Reports what the host holds. The process adds its queues.
    fn status(&self, node: PeerKey) -> StatusReport {
        let own = self.sessions.values().filter(|session| session.owner == node);
        let steps = own.flat_map(|session| session.progress().into_iter().map(|step| (session.id, step)));
        let (loaded, idle) = self.library_usage();
        StatusReport {
            usage: self.usage(),
            steps: steps.take(MAX_STEPS).collect(),
            shared: self.shared.report(),
            n_shared: self.shared.len() as u64,
            library: (loaded as u64, idle as u64),
            ..StatusReport::default()
        }
    }

    fn link_lost(&mut self, now: Time, link: LinkNumber, reason: &str, out: &mut Vec<HostOutput>) {
        let Some(lost) = self.links.remove(&link) else { return };
        let slots: Vec<SessionSlot> = self.sessions.keys().copied().collect();
        for slot in slots {
            if self.sessions[&slot].link == link {
                self.drop_session(now, slot, "the link to the owner is lost", out);
            } else {
                self.unlink(now, slot, link, &lost, reason, out);
            }
        }
    }

    fn leave(&mut self, reason: String, out: &mut Vec<HostOutput>) {
        if self.leaving.is_some() {
            return;
        }
        for &link in self.links.keys() {
            out.push(HostOutput::Send { link, frame: WireFrame::Link(LinkFrame::Leave { reason: reason.clone() }) });
        }
        self.leaving = Some((reason, false));
    }

    fn tick(&mut self, now: Time, out: &mut Vec<HostOutput>) {
        self.expire_locks(now, out);
        let slots: Vec<SessionSlot> = self.sessions.keys().copied().collect();
        for slot in slots {
            self.tick_session(now, slot, out);
        }
        let idle = |link: &HostLink| link.idle_since.is_some_and(|since| since + self.limits.idle_link <= now);
        let idle: Vec<LinkNumber> = self.links.iter().filter(|(_, state)| idle(state)).map(|(&link, _)| link).collect();
        for link in idle {
            let reason = "no session uses the link";
            out.push(HostOutput::CloseLink { link, reason: reason.to_owned() });
            self.link_lost(now, link, reason, out);
        }
    }

    /// Notes which of the introduced links are idle.
    fn note_idle_links(&mut self, now: Time) {
        for (number, link) in self.links.iter_mut().filter(|(_, link)| link.is_introduced) {
            let used = self.sessions.values().any(|session| {
                session.link == *number || session.members.iter().any(|member| member.entry.node == link.node)
            });
            link.idle_since = if used { None } else { link.idle_since.or(Some(now)) };
        }
    }

    /// Returns the number of work items that run for an owner.
    fn work_of(&self, owner: PeerKey) -> usize {
        self.work.values().filter(|&&of| of == owner).count()
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

/// Sends a frame to the owner of a session.
fn reply(session: &HostSession, frame: CallerFrame, out: &mut Vec<HostOutput>) {
    out.push(HostOutput::Send { link: session.link, frame: WireFrame::ToCaller { session: session.id, frame } });
}

fn exhausted(message: impl AsRef<str>) -> WireError {
    WireError::new(WireErrorKind::ResourceExhausted, message)
}

fn invalid(message: impl AsRef<str>) -> WireError {
    WireError::new(WireErrorKind::Invalid, message)
}
