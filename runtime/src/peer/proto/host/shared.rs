//! The shared variables of a host, their locks, and the commits of steps that assign them.
//!
//! A shared variable belongs to the peer, apart from all sessions. Its value never changes: a
//! commit replaces it by another one. A session gets the newest value under an id of its own, so a
//! step reads it like any other value.
//!
//! Invariants:
//!
//! - L1. A lock is granted when all of its variables are free, in the order of arrival for each
//!   variable. It locks all of its variables at once. Callers lock at several peers in the order of
//!   the peers' keys, so locks cannot wait for each other in a circle.
//! - L2. A lock is a lease. It ends with its session, and when it was not renewed for the failure
//!   timeout of the session. A commit without its lock changes nothing.
//! - L3. A lock that is prepared has handed over its new values, and does not expire. It ends when
//!   its owner decides, or with its session. Then nothing is committed if the step assigns shared
//!   variables of this peer only. Otherwise another peer may have committed: the variables are *in
//!   doubt* until the owner is back and tells its decision, or until they are assigned without
//!   being read. A step that reads one of them fails.
//! - L4. A commit takes effect once: it ends its lock, or its doubt.

use super::session::HostSession;
use super::{CallerFrame, Host, HostOutput, PeerKey, SessionId, SessionSlot, Time, WireError, WireErrorKind};
use super::{exhausted, invalid, reply};
use crate::peer::proto::codec::MAX_ENTRIES;
use crate::peer::proto::frame::{LockNumber, RequestNumber, SharedEntry, SharedUse, ValueId, prefix};
use crate::peer::proto::host::session::StoredValue;
use std::collections::{BTreeMap, BTreeSet};

/// A value of a shared variable. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SharedValue(pub(crate) u64);

/// A lock of a session at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LockKey {
    session: SessionSlot,
    lock: LockNumber,
}

/// The shared variables of a host.
#[derive(Debug, Default)]
pub(super) struct SharedStore {
    vars: BTreeMap<String, SharedVar>,
    locks: BTreeMap<LockKey, SharedLock>,
    /// The locks that are not granted, in the order of arrival.
    waiting: Vec<WaitingLock>,
    doubts: Vec<DoubtfulCommit>,
    /// The bytes of all values, also of those that are not committed.
    bytes: u64,
}

#[derive(Debug)]
struct SharedVar {
    ty: String,
    value: NumberedValue,
    commits: u64,
    is_in_doubt: bool,
    /// The number of locks that only read it, and whether one assigns it.
    locked: (usize, bool),
}

#[derive(Clone, Copy, Debug)]
struct NumberedValue {
    value: SharedValue,
    bytes: u64,
}

#[derive(Debug)]
struct SharedLock {
    owner: PeerKey,
    /// The names, and whether they are assigned.
    uses: Vec<(String, bool)>,
    /// When the lock expires, unless it is prepared.
    until: Time,
    prepared: Option<PreparedCommit>,
}

#[derive(Debug)]
struct PreparedCommit {
    is_alone: bool,
    values: Vec<(String, NumberedValue)>,
}

#[derive(Debug)]
struct WaitingLock {
    key: LockKey,
    request: RequestNumber,
    uses: Vec<SharedUse>,
}

/// A commit whose owner was lost before it told its decision.
#[derive(Debug)]
struct DoubtfulCommit {
    owner: PeerKey,
    session: SessionId,
    lock: LockNumber,
    values: Vec<(String, NumberedValue)>,
}

impl SharedStore {
    /// Returns whether a variable is locked in a way that excludes another use.
    fn is_locked(&self, name: &str, to_assign: bool) -> bool {
        let locked = self.vars.get(name).map(|var| var.locked);
        locked.is_some_and(|(readers, is_assigned)| is_assigned || (to_assign && readers > 0))
    }

    fn insert_lock(&mut self, key: LockKey, lock: SharedLock) {
        for (name, is_assigned) in &lock.uses {
            let (readers, is_exclusive) = &mut self.vars.get_mut(name).expect("a locked variable exists").locked;
            *is_exclusive |= *is_assigned;
            *readers += usize::from(!is_assigned);
        }
        self.locks.insert(key, lock);
    }

    fn remove_lock(&mut self, key: LockKey) -> Option<SharedLock> {
        let lock = self.locks.remove(&key)?;
        for (name, is_assigned) in &lock.uses {
            let (readers, is_exclusive) = &mut self.vars.get_mut(name).expect("a locked variable exists").locked;
            *is_exclusive &= !is_assigned;
            *readers -= usize::from(!is_assigned);
        }
        Some(lock)
    }

    /// Removes the locks for which `is_over` holds.
    fn remove_locks(&mut self, is_over: impl Fn(&LockKey, &SharedLock) -> bool) -> Vec<(LockKey, SharedLock)> {
        let over = self.locks.iter().filter(|(key, lock)| is_over(key, lock));
        let over: Vec<LockKey> = over.map(|(key, _)| *key).collect();
        over.into_iter().filter_map(|key| Some((key, self.remove_lock(key)?))).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.locks.values().filter(|lock| lock.prepared.is_none()).map(|lock| lock.until).min()
    }

    fn drop_values(&mut self, values: impl IntoIterator<Item = NumberedValue>, out: &mut Vec<HostOutput>) {
        for NumberedValue { value, bytes } in values {
            self.bytes -= bytes;
            out.push(HostOutput::DropShared { value });
        }
    }

    /// Puts new values into effect. The first `n_earlier` doubts are of commits before this one, so
    /// their values do not count any more.
    fn commit(&mut self, values: Vec<(String, NumberedValue)>, n_earlier: usize, out: &mut Vec<HostOutput>) {
        for (name, new) in values {
            let var = self.vars.get_mut(&name).expect("a shared variable is never removed");
            let old = std::mem::replace(&mut var.value, new);
            var.commits += 1;
            let earlier = self.doubts[..n_earlier].iter_mut();
            let superseded = earlier.flat_map(|doubt| doubt.values.extract_if(.., |(of, _)| *of == name));
            let superseded: Vec<NumberedValue> = superseded.map(|(_, value)| value).collect();
            self.drop_values(superseded.into_iter().chain([old]), out);
            self.settle_doubt(&name);
        }
        self.doubts.retain(|doubt| !doubt.values.is_empty());
    }

    /// Notes whether a commit of a variable is still in doubt.
    fn settle_doubt(&mut self, name: &str) {
        let mut doubtful = self.doubts.iter().flat_map(|doubt| &doubt.values);
        let is_in_doubt = doubtful.any(|(of, _)| of == name);
        self.vars.get_mut(name).expect("a shared variable is never removed").is_in_doubt = is_in_doubt;
    }

    /// Ends a commit in doubt. Returns whether there was one.
    fn resolve(
        &mut self,
        owner: PeerKey,
        session: SessionId,
        lock: LockNumber,
        commits: bool,
        out: &mut Vec<HostOutput>,
    ) -> bool {
        let is_it = |doubt: &DoubtfulCommit| (doubt.owner, doubt.session, doubt.lock) == (owner, session, lock);
        let Some(at) = self.doubts.iter().position(is_it) else { return false };
        let values = self.doubts.remove(at).values;
        if commits {
            self.commit(values, at, out);
            return true;
        }
        for (name, value) in values {
            self.drop_values([value], out);
            self.settle_doubt(&name);
        }
        true
    }

    /// Returns the number of commits at several peers that are in doubt or may come to be.
    fn n_doubtful(&self) -> usize {
        let prepared = self.locks.values().filter_map(|lock| lock.prepared.as_ref());
        self.doubts.len() + prepared.filter(|prepared| !prepared.is_alone).count()
    }

    /// Returns the number of variables.
    pub(super) fn len(&self) -> usize {
        self.vars.len()
    }

    /// Returns the state of the first variables.
    pub(super) fn report(&self) -> Vec<SharedEntry> {
        let entry = |(name, var): (&String, &SharedVar)| {
            let holds = |lock: &&SharedLock| lock.uses.iter().any(|(locked, _)| locked == name);
            let waits = |lock: &&WaitingLock| lock.uses.iter().any(|shared| shared.name == *name);
            SharedEntry {
                name: name.clone(),
                ty: prefix(&var.ty, 64).to_owned(),
                bytes: var.value.bytes,
                commits: var.commits,
                holders: self.locks.values().filter(holds).map(|lock| lock.owner).take(4).collect(),
                waiting: self.waiting.iter().filter(waits).count() as u32,
                is_in_doubt: var.is_in_doubt,
            }
        };
        self.vars.iter().map(entry).take(MAX_ENTRIES).collect()
    }
}

impl Host {
    /// Returns the current value of each shared variable, and how often it was assigned.
    #[cfg(test)]
    pub(crate) fn shared_values(&self) -> Vec<(String, SharedValue, u64)> {
        self.shared.vars.iter().map(|(name, var)| (name.clone(), var.value.value, var.commits)).collect()
    }

    /// Returns the numbers of locks that are granted, of locks that wait, and of doubts.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn lock_counts(&self) -> [usize; 3] {
        [self.shared.locks.len(), self.shared.waiting.len(), self.shared.doubts.len()]
    }

    /// Returns the number of commits of a session that are in doubt.
    #[cfg(test)]
    pub(crate) fn doubts_of(&self, session: SessionId) -> usize {
        self.shared.doubts.iter().filter(|doubt| doubt.session == session).count()
    }

    /// Returns the number of shared variables and the bytes of their values.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared_usage(&self) -> (usize, u64) {
        (self.shared.vars.len(), self.shared.bytes)
    }

    pub(super) fn acquire(
        &mut self,
        now: Time,
        slot: SessionSlot,
        request: RequestNumber,
        lock: Option<LockNumber>,
        uses: Vec<SharedUse>,
        out: &mut Vec<HostOutput>,
    ) {
        let of_session = |key: &LockKey| key.session == slot;
        let n_locks = self.shared.locks.keys().filter(|key| of_session(key)).count()
            + self.shared.waiting.iter().filter(|waiting| of_session(&waiting.key)).count();
        let key = lock.map(|lock| LockKey { session: slot, lock });
        let is_used = |key: LockKey| {
            self.shared.locks.contains_key(&key) || self.shared.waiting.iter().any(|waiting| waiting.key == key)
        };
        let refusal = if !uses.is_sorted_by(|a, b| a.name < b.name) || uses.iter().any(|shared| shared.name.is_empty())
        {
            Some(invalid("the shared variables of a lock are not in the order of their names"))
        } else if lock.is_none() && uses.iter().any(|shared| shared.is_assigned) {
            Some(invalid("a step assigns shared variables without a lock"))
        } else if key.is_some_and(is_used) {
            Some(invalid("the number of the lock is in use"))
        } else if n_locks >= self.limits.steps {
            Some(exhausted("too many steps of the session lock shared variables at once"))
        } else {
            None
        };
        match (refusal, key) {
            (Some(error), _) => {
                reply(&self.sessions[&slot], CallerFrame::RequestFailed { request, error }, out);
            }
            (None, Some(key)) => {
                self.shared.waiting.push(WaitingLock { key, request, uses });
                self.grant_locks(now, out);
            }
            (None, None) => {
                let frame = match self.lend(slot, &uses, out) {
                    Ok(()) => CallerFrame::Acquired { request },
                    Err(error) => CallerFrame::RequestFailed { request, error },
                };
                reply(&self.sessions[&slot], frame, out);
            }
        }
    }

    /// Grants the locks whose variables are free.
    fn grant_locks(&mut self, now: Time, out: &mut Vec<HostOutput>) {
        // The variables for which an earlier lock waits, and whether it assigns them.
        let mut awaited: BTreeMap<String, bool> = BTreeMap::new();
        for waiting in std::mem::take(&mut self.shared.waiting) {
            let is_free = waiting.uses.iter().all(|shared| {
                !self.shared.is_locked(&shared.name, shared.is_assigned)
                    && awaited.get(&shared.name).is_none_or(|assigns| !assigns && !shared.is_assigned)
            });
            if !is_free {
                for shared in &waiting.uses {
                    *awaited.entry(shared.name.clone()).or_default() |= shared.is_assigned;
                }
                self.shared.waiting.push(waiting);
                continue;
            }
            let WaitingLock { key, request, uses } = waiting;
            let lent = self.lend(key.session, &uses, out);
            let session = &self.sessions[&key.session];
            let frame = match lent {
                Ok(()) => {
                    let uses = uses.into_iter().map(|shared| (shared.name, shared.is_assigned)).collect();
                    let until = now + session.failure_timeout;
                    let lock = SharedLock { owner: session.owner, uses, until, prepared: None };
                    self.shared.insert_lock(key, lock);
                    CallerFrame::Acquired { request }
                }
                Err(error) => CallerFrame::RequestFailed { request, error },
            };
            reply(session, frame, out);
        }
    }

    /// Gives a session the newest values of variables, and creates those that do not exist.
    fn lend(&mut self, slot: SessionSlot, uses: &[SharedUse], out: &mut Vec<HostOutput>) -> Result<(), WireError> {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let shared = &mut self.shared;
        let mut ids = BTreeSet::new();
        let (mut n_new, mut new_bytes, mut lent_bytes) = (0, 0u64, 0u64);
        for SharedUse { name, ty, is_read, value, initial, .. } in uses {
            if session.has_value(*value) || !ids.insert(*value) {
                return Err(invalid("the id of a new value is in use"));
            }
            let bytes = match (shared.vars.get(name), initial.and_then(|initial| session.stored(initial))) {
                (Some(var), _) if var.ty != *ty => {
                    let message = format!("the shared variable `{name}` is {}, and this session's is {ty}", var.ty);
                    return Err(invalid(message).help("all sessions must create it with values of one type"));
                }
                (Some(var), _) if var.is_in_doubt && *is_read => {
                    let message = format!("the value of the shared variable `{name}` is in doubt");
                    return Err(WireError::new(WireErrorKind::Unavailable, message).help(
                        "a session was lost while it committed at several peers: set the variable, or wait until that \
                         session is back",
                    ));
                }
                (Some(var), _) => var.value.bytes,
                (None, Some(bytes)) => {
                    (n_new, new_bytes) = (n_new + 1, new_bytes.saturating_add(bytes));
                    bytes
                }
                (None, None) => {
                    let message = format!("the value of the shared variable `{name}` was lost: its peer has restarted");
                    return Err(WireError::new(WireErrorKind::Unavailable, message).help("set it again"));
                }
            };
            lent_bytes = lent_bytes.saturating_add(bytes);
        }
        if shared.vars.len() + n_new > self.limits.shared || new_bytes > self.limits.shared_bytes - shared.bytes {
            let (n, bytes) = (self.limits.shared, self.limits.shared_bytes);
            return Err(exhausted(format!("the peer keeps at most {n} shared variables, with {bytes} bytes")));
        }
        if session.values.len() + uses.len() > self.limits.values
            || lent_bytes > self.limits.value_bytes - session.value_bytes
        {
            let message = format!("the session's variables exceed the {} bytes at the peer", self.limits.value_bytes);
            return Err(exhausted(message));
        }
        for SharedUse { name, ty, value, initial, .. } in uses {
            if !shared.vars.contains_key(name) {
                let from = initial.expect("a variable that does not exist has an initial value");
                let bytes = session.stored(from).expect("the initial value was found");
                self.next_number += 1;
                let to = SharedValue(self.next_number);
                out.push(HostOutput::ShareValue { session: slot, value: from, to });
                shared.bytes += bytes;
                let value = NumberedValue { value: to, bytes };
                shared.vars.insert(
                    name.clone(),
                    SharedVar { ty: ty.clone(), value, commits: 0, is_in_doubt: false, locked: (0, false) },
                );
            }
            let NumberedValue { value: from, bytes } = shared.vars[name].value;
            session.values.insert(*value, StoredValue { bytes, is_stored: true, n_readers: 0 });
            session.value_bytes += bytes;
            out.push(HostOutput::LendValue { from, session: slot, value: *value });
        }
        Ok(())
    }

    pub(super) fn renew(&mut self, now: Time, slot: SessionSlot, locks: &[LockNumber]) {
        let until = now + self.sessions[&slot].failure_timeout;
        for &lock in locks {
            if let Some(lock) = self.shared.locks.get_mut(&LockKey { session: slot, lock }) {
                lock.until = until;
            }
        }
    }

    pub(super) fn prepare(
        &mut self,
        slot: SessionSlot,
        (request, lock): (RequestNumber, LockNumber),
        is_alone: bool,
        values: &[(u32, ValueId)],
        out: &mut Vec<HostOutput>,
    ) {
        let frame = match self.try_prepare(slot, lock, is_alone, values, out) {
            Ok(()) => CallerFrame::Prepared { request },
            Err(error) => CallerFrame::RequestFailed { request, error },
        };
        reply(&self.sessions[&slot], frame, out);
    }

    fn try_prepare(
        &mut self,
        slot: SessionSlot,
        lock: LockNumber,
        is_alone: bool,
        values: &[(u32, ValueId)],
        out: &mut Vec<HostOutput>,
    ) -> Result<(), WireError> {
        let session = &self.sessions[&slot];
        let n_doubtful = self.shared.n_doubtful();
        let held = self.shared.locks.get_mut(&LockKey { session: slot, lock }).ok_or_else(expired)?;
        if held.prepared.is_some() {
            return Err(invalid("the lock is prepared already"));
        }
        if !is_alone && n_doubtful >= self.limits.shared {
            return Err(exhausted("too many commits at several peers are in doubt"));
        }
        let mut named = BTreeMap::new();
        let mut bytes = 0u64;
        for &(index, value) in values {
            let Some((name, true)) = held.uses.get(index as usize) else {
                return Err(invalid("the lock does not cover a variable that the step assigns"));
            };
            let len = session.stored(value).ok_or_else(|| invalid("the peer does not have the value"))?;
            bytes = bytes.saturating_add(len);
            if named.insert(name.clone(), (value, len)).is_some() {
                return Err(invalid("a step assigns a shared variable twice"));
            }
        }
        if bytes > self.limits.shared_bytes - self.shared.bytes {
            let message = format!("the shared variables exceed the {} bytes at the peer", self.limits.shared_bytes);
            return Err(exhausted(message));
        }
        self.shared.bytes += bytes;
        let next_number = &mut self.next_number;
        let share = |(name, (value, bytes)): (String, (ValueId, u64))| {
            *next_number += 1;
            let to = SharedValue(*next_number);
            out.push(HostOutput::ShareValue { session: slot, value, to });
            (name, NumberedValue { value: to, bytes })
        };
        held.prepared = Some(PreparedCommit { is_alone, values: named.into_iter().map(share).collect() });
        Ok(())
    }

    pub(super) fn decide(
        &mut self,
        now: Time,
        slot: SessionSlot,
        (request, lock): (RequestNumber, LockNumber),
        commits: bool,
        out: &mut Vec<HostOutput>,
    ) {
        let key = LockKey { session: slot, lock };
        let HostSession { owner, id, .. } = self.sessions[&slot];
        let is_prepared = self.shared.locks.get(&key).is_some_and(|lock| lock.prepared.is_some());
        let is_done = match is_prepared {
            true => {
                let held = self.shared.remove_lock(key).expect("the lock is prepared");
                let values = held.prepared.expect("the lock is prepared").values;
                match commits {
                    true => {
                        let n_earlier = self.shared.doubts.len();
                        self.shared.commit(values, n_earlier, out);
                    }
                    false => self.shared.drop_values(values.into_iter().map(|(_, value)| value), out),
                }
                true
            }
            false => {
                // The session has forgotten the lock.
                self.shared.remove_lock(key);
                self.shared.resolve(owner, id, lock, commits, out) || !commits
            }
        };
        let frame = match is_done {
            true => CallerFrame::Decided { request },
            false => CallerFrame::RequestFailed { request, error: expired() },
        };
        reply(&self.sessions[&slot], frame, out);
        self.grant_locks(now, out);
    }

    pub(super) fn unlock(&mut self, now: Time, slot: SessionSlot, lock: LockNumber, out: &mut Vec<HostOutput>) {
        let key = LockKey { session: slot, lock };
        for waiting in self.shared.waiting.extract_if(.., |waiting| waiting.key == key) {
            let error = WireError::new(WireErrorKind::Cancelled, "the session does not wait for the lock any more");
            let frame = CallerFrame::RequestFailed { request: waiting.request, error };
            reply(&self.sessions[&slot], frame, out);
        }
        if self.shared.locks.get(&key).is_some_and(|held| held.prepared.is_none()) {
            self.shared.remove_lock(key);
        }
        self.grant_locks(now, out);
    }

    /// Ends the locks of a session that has ended.
    pub(super) fn end_locks(
        &mut self,
        now: Time,
        slot: SessionSlot,
        (owner, session): (PeerKey, SessionId),
        out: &mut Vec<HostOutput>,
    ) {
        let shared = &mut self.shared;
        shared.waiting.retain(|waiting| waiting.key.session != slot);
        for (LockKey { lock, .. }, held) in shared.remove_locks(|key, _| key.session == slot) {
            let Some(PreparedCommit { is_alone, values }) = held.prepared else { continue };
            if is_alone || values.is_empty() {
                shared.drop_values(values.into_iter().map(|(_, value)| value), out);
                continue;
            }
            for (name, _) in &values {
                shared.vars.get_mut(name).expect("a shared variable is never removed").is_in_doubt = true;
            }
            shared.doubts.push(DoubtfulCommit { owner, session, lock, values });
        }
        self.grant_locks(now, out);
    }

    /// Ends the locks that were not renewed.
    pub(super) fn expire_locks(&mut self, now: Time, out: &mut Vec<HostOutput>) {
        let expired = self.shared.remove_locks(|_, lock| lock.prepared.is_none() && lock.until <= now);
        if !expired.is_empty() {
            self.grant_locks(now, out);
        }
    }
}

impl HostSession {
    /// Returns the bytes of a value that is stored.
    fn stored(&self, value: ValueId) -> Option<u64> {
        self.values.get(&value).filter(|state| state.is_stored).map(|state| state.bytes)
    }
}

fn expired() -> WireError {
    WireError::new(WireErrorKind::Unavailable, "the lease of the step's locks has expired, so it changes nothing")
        .help("the peer heard nothing from the session for the failure timeout: call the function again")
}
