//! Locks of a session on shared variables of its peers, and the commits of steps that assign them.
//!
//! A step acquires the newest values of the shared variables that it uses, with a lock if it
//! assigns one of them. It runs like any other step. Then it prepares the new values at their
//! peers, and decides. At a single peer both are sent at once.

use super::peer::{Acquisition, RequestKind, unknown_commit};
use super::{Caller, CallerOutput, LockNumber, PeerFrame, ProcessNumber, RequestNumber, RequestResult, Time, ValueId};
use super::{WireError, prefix, too_large, unavailable};
use crate::peer::proto::codec::{MAX_HEAD, MAX_LOCKS, MAX_SHARED};
use crate::peer::proto::frame::{PeerKey, SharedUse};
use std::time::Duration;

/// How a step uses a shared variable.
#[derive(Clone, Debug)]
pub(crate) struct SharedAccess {
    pub(crate) name: String,
    /// The type as text.
    pub(crate) ty: String,
    pub(crate) is_read: bool,
    pub(crate) is_assigned: bool,
    /// The session's value with which the variable is created if it does not exist.
    pub(crate) initial: Option<ValueId>,
}

/// Values of shared variables that a session has asked for.
#[derive(Debug)]
pub(crate) struct WantedLock {
    pub(crate) request: RequestNumber,
    pub(crate) lock: Option<LockNumber>,
    /// The ids of the newest values, in the order of the uses. They exist when the request has
    /// succeeded.
    pub(crate) values: Vec<ValueId>,
}

/// Returns the outcome of a commit at one peer, by those of handing over the values and of the
/// decision.
pub(crate) fn outcome_alone(
    prepared: Result<RequestResult, WireError>,
    decided: Result<RequestResult, WireError>,
) -> Result<RequestResult, WireError> {
    // A refusal says why nothing was committed.
    decided.map_err(|error| prepared.err().unwrap_or(error))
}

impl Caller {
    /// Returns the key of a peer, in whose order locks are acquired.
    pub(crate) fn key(&self, process: ProcessNumber) -> Option<PeerKey> {
        self.peer(process).map(|peer| peer.address.node)
    }

    /// Asks a peer for the newest values of shared variables, in the order of their names. If
    /// `locks` is set, locks them; then the request may wait for other sessions, for the time
    /// given.
    pub(crate) fn acquire(
        &mut self,
        process: ProcessNumber,
        (uses, locks): (&[SharedAccess], bool),
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<WantedLock, WireError> {
        let peer = self.peer(process).ok_or_else(|| unavailable("there is no such peer"))?;
        if let Some(error) = peer.why_unavailable() {
            return Err(error);
        }
        let text: usize = uses.iter().map(|shared| shared.name.len() + shared.ty.len() + 64).sum();
        if uses.len() > MAX_SHARED || text > MAX_HEAD / 2 {
            let message = format!("a step uses {} shared variables at {}, which is too many", uses.len(), peer.name());
            return Err(too_large(message).help(format!("use at most {MAX_SHARED}, or fewer larger ones")));
        }
        let mut values = Vec::new();
        let mut wanted = Vec::new();
        for SharedAccess { name, ty, is_read, is_assigned, initial } in uses.iter().cloned() {
            let value = self.new_value();
            values.push(value);
            wanted.push(SharedUse { name, ty, is_read, is_assigned, value, initial });
        }
        let lock = locks.then(|| {
            self.last_lock += 1;
            LockNumber(self.last_lock)
        });
        if let Some(lock) = lock {
            if self.peers.iter().all(|peer| peer.locks.is_empty()) {
                self.renew_at = time.0 + self.options.failure_timeout / 4;
            }
            self.peer_mut(process).expect("the process is a peer").locks.insert(lock);
        }
        let names: Vec<String> = uses.iter().map(|shared| format!("`{}`", shared.name)).collect();
        let names = prefix(&names.join(", "), 1_000).to_owned();
        let acquisition = Acquisition { lock, values: values.clone(), names };
        let request = self.request(process, RequestKind::Acquire(acquisition), time);
        self.send_to(process, PeerFrame::Acquire { request, lock, uses: wanted }, out);
        Ok(WantedLock { request, lock, values })
    }

    /// Notes the answer to [`acquire`](Self::acquire).
    pub(super) fn acquired(
        &mut self,
        process: ProcessNumber,
        lock: Option<LockNumber>,
        values: Vec<ValueId>,
        is_granted: bool,
        is_abandoned: bool,
        out: &mut Vec<CallerOutput>,
    ) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        if !is_granted {
            lock.map(|lock| peer.locks.remove(&lock));
        } else if is_abandoned {
            // Its lock was given up when it was abandoned.
            self.send_release(process, &values, out);
        } else {
            peer.values.extend(values);
        }
    }

    /// Abandons a request whose answer nobody needs any more. A lock that it asks for is given up.
    pub(crate) fn abandon(&mut self, request: RequestNumber, out: &mut Vec<CallerOutput>) {
        let Some(pending) = self.requests.get_mut(&request) else { return };
        pending.is_abandoned = true;
        if let (&RequestKind::Acquire(Acquisition { lock: Some(lock), .. }), process) = (&pending.kind, pending.process)
        {
            self.unlock(process, lock, out);
        }
    }

    /// Gives up a request, and the lock and the values that it is for, whether or not the peer has
    /// answered.
    pub(crate) fn give_up(
        &mut self,
        process: ProcessNumber,
        request: RequestNumber,
        lock: Option<LockNumber>,
        values: Vec<ValueId>,
        out: &mut Vec<CallerOutput>,
    ) {
        self.abandon(request, out);
        if let Some(lock) = lock {
            self.unlock(process, lock, out);
        }
        self.release(process, values, out);
    }

    /// Hands over the new values of a lock's variables, by the index of the use, and commits them.
    /// The step assigns shared variables of no other peer. [`outcome_alone`] tells the outcome by
    /// those of the two requests.
    pub(crate) fn commit_alone(
        &mut self,
        process: ProcessNumber,
        lock: LockNumber,
        values: Vec<(u32, ValueId)>,
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<[RequestNumber; 2], WireError> {
        let prepared = self.hand_over(process, lock, true, values, time, out)?;
        let decided = self.decide(process, lock, true, time, out)?;
        Ok([prepared, decided])
    }

    /// Hands over the new values of a lock's variables, by the index of the use. The step assigns
    /// shared variables of other peers, too.
    pub(crate) fn prepare(
        &mut self,
        process: ProcessNumber,
        lock: LockNumber,
        values: Vec<(u32, ValueId)>,
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<RequestNumber, WireError> {
        self.hand_over(process, lock, false, values, time, out)
    }

    fn hand_over(
        &mut self,
        process: ProcessNumber,
        lock: LockNumber,
        is_alone: bool,
        values: Vec<(u32, ValueId)>,
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<RequestNumber, WireError> {
        self.check_lock(process, lock)?;
        if !is_alone {
            self.decisions.insert((process, lock), None);
        }
        let request = self.request(process, RequestKind::Prepare { is_alone }, time);
        self.send_to(process, PeerFrame::Prepare { request, lock, is_alone, values }, out);
        Ok(request)
    }

    /// Decides a commit that several peers have prepared: all of them commit it. Returns the
    /// requests, or why a peer cannot be told any more.
    ///
    /// # Errors
    /// If one of the peers has lost its lock in the meantime, none of them commits. Returns that
    /// peer.
    pub(crate) fn decide_all(
        &mut self,
        locks: &[(ProcessNumber, LockNumber)],
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<Vec<Result<RequestNumber, WireError>>, (ProcessNumber, WireError)> {
        let lost = locks.iter().find_map(|&(process, lock)| Some((process, self.check_lock(process, lock).err()?)));
        if let Some((process, error)) = lost {
            for &(process, lock) in locks {
                if let Ok(request) = self.decide(process, lock, false, time, out) {
                    self.abandon(request, out);
                }
            }
            let waited = "the call was committing its shared variables, and has changed none of them";
            return Err((process, error.at(None, waited)));
        }
        Ok(locks.iter().map(|&(process, lock)| self.decide(process, lock, true, time, out)).collect())
    }

    /// Commits or drops the new values of a lock that is prepared, and ends the lock. If the peer
    /// is lost, the decision about a commit at several peers is told when it is back, so the error
    /// says that the outcome is unknown.
    pub(crate) fn decide(
        &mut self,
        process: ProcessNumber,
        lock: LockNumber,
        commits: bool,
        time: (Time, Duration),
        out: &mut Vec<CallerOutput>,
    ) -> Result<RequestNumber, WireError> {
        match self.decisions.get_mut(&(process, lock)) {
            // The peer may have lost the session in the meantime. Then it has kept the values.
            Some(decision) => {
                *decision = Some(commits);
                if let Some(error) = self.peer(process).and_then(|peer| peer.why_unavailable()) {
                    return Err(if commits { unknown_commit(error) } else { error });
                }
            }
            None => self.check_lock(process, lock)?,
        }
        self.peer_mut(process).expect("the process is a peer").locks.remove(&lock);
        let request = self.request(process, RequestKind::Decide(lock), time);
        self.send_to(process, PeerFrame::Decide { request, lock, commits }, out);
        Ok(request)
    }

    /// Returns whether a peer lets the session ask for one more lock.
    pub(crate) fn has_lock_room(&self, process: ProcessNumber) -> bool {
        let Some(peer) = self.peer(process) else { return true };
        let limit = peer.limits.map_or(u32::MAX, |limits| limits.steps);
        // The first is tried in any case.
        peer.locks.is_empty() || peer.locks.len() < limit as usize
    }

    fn check_lock(&self, process: ProcessNumber, lock: LockNumber) -> Result<(), WireError> {
        let peer = self.peer(process).ok_or_else(|| unavailable("there is no such peer"))?;
        match peer.why_unavailable() {
            Some(error) => Err(error),
            None if peer.locks.contains(&lock) => Ok(()),
            None => Err(unavailable(format!("the locks of the step were lost with {}", peer.name()))),
        }
    }

    /// Ends a lock that is not prepared.
    pub(crate) fn unlock(&mut self, process: ProcessNumber, lock: LockNumber, out: &mut Vec<CallerOutput>) {
        let peer = self.peer_mut(process).expect("the process is a peer");
        if peer.locks.remove(&lock) {
            self.send_to(process, PeerFrame::Unlock { lock }, out);
        }
    }

    /// Tells a peer that has opened the session again what became of commits at several peers.
    pub(super) fn tell_decisions(&mut self, process: ProcessNumber, out: &mut Vec<CallerOutput>) {
        let of_peer = self.decisions.iter().filter(|((of, _), _)| *of == process);
        let of_peer = of_peer.filter_map(|(&(_, lock), decision)| Some((lock, (*decision)?)));
        let of_peer: Vec<(LockNumber, bool)> = of_peer.collect();
        for (lock, commits) in of_peer {
            let request = self.request(process, RequestKind::Decide(lock), (Time::ZERO, Duration::MAX));
            self.requests.get_mut(&request).expect("the request was made").is_abandoned = true;
            self.send_to(process, PeerFrame::Decide { request, lock, commits }, out);
        }
    }

    pub(super) fn renew_locks(&mut self, now: Time, out: &mut Vec<CallerOutput>) {
        if now < self.renew_at || self.peers.iter().all(|peer| peer.locks.is_empty()) {
            return;
        }
        self.renew_at = now + self.options.failure_timeout / 4;
        for process in self.processes() {
            let peer = self.peer(process).expect("the process is a peer");
            let locks: Vec<LockNumber> = peer.locks.iter().copied().collect();
            for locks in locks.chunks(MAX_LOCKS) {
                self.send_to(process, PeerFrame::Renew { locks: locks.to_vec() }, out);
            }
        }
    }
}
