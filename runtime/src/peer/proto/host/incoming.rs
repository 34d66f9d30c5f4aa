//! Links that nodes open at a host, and bodies before they have arrived.
//!
//! Invariants:
//!
//! - I1. A node that is known only from sessions has nothing of its own. Its links and what it
//!   sends count for the owners of these sessions, so whoever is admitted gains nothing by
//!   introducing others.
//! - I2. A body for which there is no room is dropped as it arrives, and what waits for it fails.
//!   Its sender has done nothing wrong: it does not know what others send.

use super::session::{HostProgram, HostSession};
use super::step::no_room_for_body;
use super::{CallerFrame, Destination, Host, HostOutput, LinkNumber, PeerKey, SessionId, reply};
use crate::peer::proto::codec::BodyUse;
use std::collections::BTreeSet;

/// The answer to a body that is about to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Kept,
    /// There is no room for it, or nobody waits for it.
    Dropped,
}

impl HostSession {
    fn has_member(&self, node: &PeerKey) -> bool {
        self.members.iter().any(|member| member.entry.node == *node)
    }
}

impl Host {
    /// Returns whether a session has introduced a node, and the node may open a link.
    pub(crate) fn introduced(&self, node: &PeerKey) -> bool {
        self.sessions.values().any(|session| session.has_member(node)) && self.has_room_for(LinkNumber(u64::MAX), node)
    }

    /// Returns whether a node that sessions have introduced may have this link. These sessions may
    /// have ended.
    pub(super) fn has_room_for(&self, link: LinkNumber, node: &PeerKey) -> bool {
        let introduced = || self.links.iter().filter(|(number, state)| **number != link && state.is_introduced);
        let [of_owner, of_all] = self.limits.introduced_links;
        if introduced().count() >= of_all {
            return false;
        }
        let owners = self.sessions.values().filter(|session| session.has_member(node)).map(|session| session.owner);
        let owners: BTreeSet<PeerKey> = owners.collect();
        let has_room = |owner: &PeerKey| {
            let sessions = self.sessions.values().filter(|session| session.owner == *owner);
            let nodes = sessions.flat_map(|session| session.members.iter().map(|member| member.entry.node));
            let nodes: BTreeSet<PeerKey> = nodes.collect();
            introduced().filter(|(_, state)| nodes.contains(&state.node)).count() < of_owner
        };
        owners.is_empty() || owners.iter().any(has_room)
    }

    /// Decides whether to keep a body of this many bytes that a link is about to send, before
    /// memory is taken for it.
    ///
    /// # Errors
    /// Fails if the other side breaks the protocol.
    pub(crate) fn admit(&mut self, link: LinkNumber, to: Destination, len: u64) -> Result<Admission, String> {
        let Destination::Peer(session) = to else { return Ok(Admission::Kept) };
        let Some(state) = self.links.get(&link) else { return Err("the link is closed".to_owned()) };
        if state.name.is_none() {
            return Err("a frame before the first".to_owned());
        }
        if len > self.limits.body_bytes {
            return Err(format!("a payload of {len} bytes is more than this peer receives"));
        }
        let payer = match state.is_introduced {
            false => state.node,
            true => {
                let slot = self.by_id.get(&session);
                let session = slot.map(|slot| &self.sessions[slot]).filter(|session| session.has_member(&state.node));
                let Some(session) = session else { return Ok(Admission::Dropped) };
                session.owner
            }
        };
        let payer = state.incoming.get(&session).map_or(payer, |(payer, _)| *payer);
        let incoming = self.links.values().flat_map(|link| link.incoming.values());
        let of_payer = incoming.filter(|(of, _)| *of == payer);
        let bytes = of_payer.fold(len, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if bytes > self.limits.incoming_bytes {
            return Ok(Admission::Dropped);
        }
        let state = self.links.get_mut(&link).expect("the link is open");
        state.incoming.entry(session).or_insert((payer, 0)).1 += len;
        Ok(Admission::Kept)
    }

    /// Notes that a body that was kept has arrived or does not arrive any more.
    pub(super) fn body_ended(&mut self, link: LinkNumber, session: SessionId, len: u64) {
        let Some(state) = self.links.get_mut(&link) else { return };
        if let Some((_, bytes)) = state.incoming.get_mut(&session) {
            *bytes = bytes.saturating_sub(len);
            if *bytes == 0 {
                state.incoming.remove(&session);
            }
        }
    }

    /// Fails what waits for a body that was dropped.
    pub(super) fn discarded(
        &mut self,
        link: LinkNumber,
        session: SessionId,
        used_by: BodyUse,
        out: &mut Vec<HostOutput>,
    ) {
        let (Some(state), Some(&slot)) = (self.links.get(&link), self.by_id.get(&session)) else { return };
        let session = &self.sessions[&slot];
        let error = no_room_for_body(self.limits.incoming_bytes);
        match used_by {
            BodyUse::Step(step) if session.has_member(&state.node) => self.body_discarded(slot, step, error, out),
            BodyUse::Request(request) if session.link == link => {
                reply(session, CallerFrame::RequestFailed { request, error }, out);
            }
            BodyUse::Program(program) if session.link == link => {
                let is_awaited = |state: &HostProgram| state.is_wanted();
                if session.programs.get(&program).is_some_and(is_awaited) {
                    reply(session, CallerFrame::Refused { program, error }, out);
                    self.unregister(slot, program, out);
                }
            }
            _ => {}
        }
    }
}
