//! The values of the sessions of a host.

use super::session::{HostSession, StoredValue};
use super::{CallerFrame, Host, HostOutput, RequestKey, SessionSlot, WorkKey, exhausted, invalid, reply};
use crate::peer::proto::frame::{
    ProcessNumber, RequestNumber, TestedSpeed, ValueId, WireError, WireErrorKind, WireFrame,
};
use crate::peer::proto::payload::hold_outgoing;
use anabranch_dsl::HostTensor;

impl Host {
    pub(super) fn store(
        &mut self,
        slot: SessionSlot,
        request: RequestNumber,
        value: ValueId,
        tensor: HostTensor,
        out: &mut Vec<HostOutput>,
    ) {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let bytes = tensor.memory_bytes();
        let refusal = if session.has_value(value) || session.requests.contains_key(&request) {
            Some(invalid("the number of the value or of the request is in use"))
        } else if session.values.len() >= self.limits.values || bytes > self.limits.value_bytes - session.value_bytes {
            Some(exhausted(format!("the session's variables exceed the {} bytes at the peer", self.limits.value_bytes)))
        } else if work >= self.limits.work {
            Some(exhausted("too many requests at once"))
        } else {
            None
        };
        if let Some(error) = refusal {
            return reply(session, CallerFrame::RequestFailed { request, error }, out);
        }
        session.values.insert(value, StoredValue { bytes, is_stored: false, n_readers: 0 });
        session.value_bytes += bytes;
        session.requests.insert(request, Some(value));
        let key = RequestKey { session: slot, request };
        self.work.insert(WorkKey::Request(key), session.owner);
        out.push(HostOutput::StoreValue { key, value, tensor });
    }

    pub(super) fn stored(&mut self, key: RequestKey, outcome: Result<(), WireError>, out: &mut Vec<HostOutput>) {
        let Some(session) = self.answer(key) else { return };
        let (request, value) = (key.request, session.requests.remove(&key.request).flatten());
        let value = value.expect("the request stores a value");
        match (outcome, session.values.get_mut(&value)) {
            (Ok(()), Some(state)) => {
                state.is_stored = true;
                reply(session, CallerFrame::Stored { request }, out);
            }
            (Ok(()), None) => {
                out.push(HostOutput::DropValues { session: key.session, values: vec![value] });
                let error = WireError::new(WireErrorKind::Cancelled, "the value was released");
                reply(session, CallerFrame::RequestFailed { request, error }, out);
            }
            (Err(error), _) => {
                session.drop_value(value);
                reply(session, CallerFrame::RequestFailed { request, error }, out);
            }
        }
    }

    pub(super) fn fetch(
        &mut self,
        slot: SessionSlot,
        request: RequestNumber,
        value: ValueId,
        out: &mut Vec<HostOutput>,
    ) {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let refusal = if !session.values.get(&value).is_some_and(|state| state.is_stored) {
            Some(invalid("the peer does not have the value"))
        } else if session.requests.contains_key(&request) {
            Some(invalid("the number of the request is in use"))
        } else if work >= self.limits.work {
            Some(exhausted("too many requests at once"))
        } else {
            None
        };
        if let Some(error) = refusal {
            return reply(session, CallerFrame::RequestFailed { request, error }, out);
        }
        session.requests.insert(request, Some(value));
        let key = RequestKey { session: slot, request };
        self.work.insert(WorkKey::Request(key), session.owner);
        out.push(HostOutput::FetchValue { key, value });
    }

    pub(super) fn fetched(
        &mut self,
        key: RequestKey,
        outcome: Result<HostTensor, WireError>,
        out: &mut Vec<HostOutput>,
    ) {
        let Some(session) = self.answer(key) else { return };
        let request = key.request;
        session.requests.remove(&request);
        let held = outcome.and_then(|tensor| Ok((hold_outgoing(&session.outgoing, &tensor)?, tensor)));
        match held {
            Ok((held, tensor)) => {
                let frame =
                    WireFrame::ToCaller { session: session.id, frame: CallerFrame::Fetched { request, tensor } };
                out.push(HostOutput::SendValue { link: session.link, frame, held });
            }
            Err(error) => reply(session, CallerFrame::RequestFailed { request, error }, out),
        }
    }

    pub(super) fn test_link(
        &mut self,
        slot: SessionSlot,
        request: RequestNumber,
        process: ProcessNumber,
        out: &mut Vec<HostOutput>,
    ) {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let link = session.members.get(process.0 as usize).and_then(|member| member.link);
        let refusal = match link {
            Some(_) if session.requests.contains_key(&request) => invalid("the number of the request is in use"),
            Some(_) if work >= self.limits.work => exhausted("too many requests at once"),
            Some(_) if session.requests.values().any(Option::is_none) => {
                exhausted("the session tests another link at the peer")
            }
            Some(link) => {
                session.requests.insert(request, None);
                let key = RequestKey { session: slot, request };
                self.work.insert(WorkKey::Request(key), session.owner);
                return out.push(HostOutput::TestLink { key, link });
            }
            None => WireError::new(WireErrorKind::Unavailable, format!("there is no link to process {process}")),
        };
        reply(session, CallerFrame::RequestFailed { request, error: refusal }, out);
    }

    pub(super) fn link_tested(
        &mut self,
        key: RequestKey,
        outcome: Result<TestedSpeed, WireError>,
        out: &mut Vec<HostOutput>,
    ) {
        let Some(session) = self.answer(key) else { return };
        let request = key.request;
        session.requests.remove(&request);
        let frame = match outcome {
            Ok(speed) => CallerFrame::LinkTested { request, speed },
            Err(error) => CallerFrame::RequestFailed { request, error },
        };
        reply(session, frame, out);
    }

    /// Notes that work for a request is done. Returns its session if it is still open.
    fn answer(&mut self, key: RequestKey) -> Option<&mut HostSession> {
        self.work.remove(&WorkKey::Request(key))?;
        self.sessions.get_mut(&key.session)
    }

    pub(super) fn release(&mut self, slot: SessionSlot, values: Vec<ValueId>, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let stored: Vec<ValueId> = values.into_iter().filter(|&value| session.drop_value(value)).collect();
        if !stored.is_empty() {
            out.push(HostOutput::DropValues { session: slot, values: stored });
        }
    }
}

impl HostSession {
    /// Forgets a value, which counts until no running step reads it. Returns whether it was stored.
    fn drop_value(&mut self, value: ValueId) -> bool {
        let Some(state) = self.values.remove(&value) else { return false };
        let is_stored = state.is_stored;
        match state.n_readers {
            0 => self.value_bytes -= state.bytes,
            _ => _ = self.released.insert(value, state),
        }
        is_stored
    }
}
