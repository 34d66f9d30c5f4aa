//! The programs of the sessions of a host, and the library of those that are loaded.
//!
//! A program that is loaded stays in the library after its last session, until the library needs
//! the space. A registration of the same program then needs neither its bytes nor another load.
//!
//! Invariants:
//!
//! - G1. Programs are found by their owner, their digest and the process that runs them. The bytes
//!   contain the devices, the placement and the options, so these are equal, too. No owner can use,
//!   or learn of, a program of another one.
//! - G2. A digest is of the bytes that the owner has sent to this peer.
//! - G3. The programs without sessions are bounded in number and bytes. Those that were used least
//!   recently go first. Programs are shared; everything that a step changes belongs to the step.
//! - G4. What programs take while they load is bounded for each owner, by their number and the
//!   bytes of their encoding: others wait. One that is larger than these bytes loads alone.

use super::session::{HostProgram, ProgramPhase};
use super::{CallerFrame, Host, HostOutput, PeerKey, ProcessNumber, ProgramKey, ProgramNumber, SessionSlot, WorkKey};
use super::{exhausted, invalid, reply};
use crate::peer::proto::Time;
use crate::peer::proto::frame::{Digest, WireError};
use crate::peer::proto::host::events::LoadedAs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The owner of a program, its digest, and the process that runs it.
type LibraryKey = (PeerKey, Digest, ProcessNumber);

/// The programs of a host that are loaded or are being loaded.
#[derive(Debug, Default)]
pub(super) struct ProgramLibrary {
    programs: BTreeMap<ProgramKey, LibraryProgram>,
    by_digest: BTreeMap<LibraryKey, ProgramKey>,
    /// The programs that the process loads, with their owners and the bytes of their encoding.
    loading: BTreeMap<ProgramKey, (PeerKey, u64)>,
    /// Those that wait for these, in the order of arrival.
    queue: VecDeque<QueuedLoad>,
    /// Rises with each release of a program.
    n_released: u64,
}

#[derive(Debug)]
struct LibraryProgram {
    key: LibraryKey,
    /// Of its encoding, and what it takes in addition once it is loaded.
    bytes: u64,
    /// The digest of the cut, once the program is loaded.
    cut: Option<Digest>,
    users: BTreeSet<(SessionSlot, ProgramNumber)>,
    /// When the last user released it, in releases.
    released: u64,
}

/// A program that waits until others of its owner are loaded.
#[derive(Debug)]
struct QueuedLoad {
    key: ProgramKey,
    owner: PeerKey,
    process: ProcessNumber,
    digest: Digest,
    bytes: Arc<[u8]>,
}

/// Returns the error of a program that takes more memory than a session may use for programs.
fn too_much_memory(limit: u64) -> WireError {
    exhausted(format!("the programs of the session take more than the {limit} bytes that the peer allows"))
        .help("divide the function, or drop functions that are not called any more")
}

impl ProgramLibrary {
    /// Returns the number and the bytes of the programs that no session uses.
    fn idle(&self) -> (usize, u64) {
        let idle = self.programs.values().filter(|program| program.users.is_empty());
        idle.fold((0, 0), |(n, bytes), program| (n + 1, bytes + program.bytes))
    }
}

impl Host {
    pub(super) fn register(
        &mut self,
        now: Time,
        slot: SessionSlot,
        program: ProgramNumber,
        digest: Digest,
        len: u64,
        out: &mut Vec<HostOutput>,
    ) {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let refusal = if session.programs.contains_key(&program) {
            Some(invalid("the program is registered already"))
        } else if session.programs.len() >= self.limits.programs || work >= self.limits.work {
            Some(exhausted(format!("a session can register at most {} programs at the peer", self.limits.programs)))
        } else if len > self.limits.program_bytes - session.program_bytes {
            Some(exhausted("the programs of the session are larger than the peer allows"))
        } else {
            None
        };
        if let Some(error) = refusal {
            return reply(session, CallerFrame::Refused { program, error }, out);
        }
        session
            .programs
            .insert(program, HostProgram { digest, phase: ProgramPhase::Wanted, bytes: len, loads_until: None });
        session.program_bytes += len;
        if !self.use_loaded(now, slot, program, out) {
            reply(&self.sessions[&slot], CallerFrame::Wanted { program }, out);
        }
    }

    /// Lets a session use a program of the library. Returns whether the library has it.
    fn use_loaded(&mut self, now: Time, slot: SessionSlot, program: ProgramNumber, out: &mut Vec<HostOutput>) -> bool {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let state = session.programs.get_mut(&program).expect("the program is registered");
        let Some(&key) = self.library.by_digest.get(&(session.owner, state.digest, session.you)) else { return false };
        let loaded = self.library.programs.get_mut(&key).expect("the index names programs of the library");
        let more = loaded.bytes.saturating_sub(state.bytes);
        if more > self.limits.program_bytes - session.program_bytes {
            let state = session.programs.remove(&program).expect("the program is registered");
            session.program_bytes -= state.bytes;
            reply(session, CallerFrame::Refused { program, error: too_much_memory(self.limits.program_bytes) }, out);
            return true;
        }
        session.program_bytes += more;
        state.bytes += more;
        loaded.users.insert((slot, program));
        match loaded.cut {
            None => {
                state.phase = ProgramPhase::Loading(key);
                state.loads_until = Some(now.saturating_add(self.limits.load_time));
            }
            Some(cut) => {
                state.phase = ProgramPhase::Loaded(key);
                reply(session, CallerFrame::Registered { program, cut }, out);
            }
        }
        true
    }

    pub(super) fn upload(
        &mut self,
        now: Time,
        slot: SessionSlot,
        program: ProgramNumber,
        bytes: Arc<[u8]>,
        out: &mut Vec<HostOutput>,
    ) {
        let work = self.work_of(self.sessions[&slot].owner);
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        // Otherwise it was unregistered in the meantime.
        let Some(state) = session.programs.get(&program) else { return };
        if !matches!(state.phase, ProgramPhase::Wanted) {
            return;
        }
        let error = match bytes.len() as u64 {
            len if len != state.bytes => invalid(format!("a program of {len} bytes, not of {}", state.bytes)),
            _ if work >= self.limits.work => exhausted("too many programs are being loaded at once"),
            len => {
                let key = (session.owner, state.digest, session.you);
                if self.use_loaded(now, slot, program, out) {
                    return;
                }
                self.next_number += 1;
                let number = ProgramKey(self.next_number);
                let loading = LibraryProgram { key, bytes: len, cut: None, users: BTreeSet::new(), released: 0 };
                self.library.programs.insert(number, loading);
                self.library.by_digest.insert(key, number);
                self.use_loaded(now, slot, program, out);
                let (owner, digest, process) = key;
                self.work.insert(WorkKey::Load(number), owner);
                self.library.queue.push_back(QueuedLoad { key: number, owner, process, digest, bytes });
                return self.load_next(out);
            }
        };
        session.program_bytes -= state.bytes;
        session.programs.remove(&program);
        reply(session, CallerFrame::Refused { program, error }, out);
    }

    /// Begins to load the programs for which there is room.
    fn load_next(&mut self, out: &mut Vec<HostOutput>) {
        // Programs of one owner do not overtake each other.
        let mut waiting = BTreeSet::new();
        for load in std::mem::take(&mut self.library.queue) {
            let len = load.bytes.len() as u64;
            let running = self.library.loading.values().filter(|(owner, _)| *owner == load.owner);
            let (n, bytes) = running.fold((0, 0u64), |(n, bytes), (_, len)| (n + 1, bytes.saturating_add(*len)));
            let has_room = n < self.limits.loads && bytes.saturating_add(len) <= self.limits.load_bytes;
            if waiting.contains(&load.owner) || (n > 0 && !has_room) {
                waiting.insert(load.owner);
                self.library.queue.push_back(load);
                continue;
            }
            let QueuedLoad { key, owner, process, digest, bytes } = load;
            let users = self.library.programs.get(&key).into_iter().flat_map(|loading| &loading.users);
            let room = users.map(|(slot, _)| self.limits.program_bytes - self.sessions[slot].program_bytes);
            let room = room.max().unwrap_or_default();
            self.library.loading.insert(key, (owner, len));
            out.push(HostOutput::Load { key, process, digest, bytes, room });
        }
    }

    pub(super) fn loaded(
        &mut self,
        now: Time,
        key: ProgramKey,
        outcome: Result<LoadedAs, WireError>,
        out: &mut Vec<HostOutput>,
    ) {
        if self.work.remove(&WorkKey::Load(key)).is_none() {
            return;
        }
        self.library.loading.remove(&key);
        self.load_next(out);
        // Programs that loaded too late are not kept: the next registration has the limit again.
        if outcome.is_ok() {
            let users = self.library.programs.get(&key).map(|loading| loading.users.clone()).unwrap_or_default();
            users.iter().for_each(|&(slot, _)| self.check_loads(now, slot, out));
        }
        // Otherwise its last user gave it up in the meantime, or all were too late.
        let Some(loaded) = self.library.programs.get_mut(&key) else { return };
        if let Ok(LoadedAs { cut, bytes }) = outcome {
            loaded.cut = Some(cut);
            loaded.bytes = loaded.bytes.saturating_add(bytes);
        }
        let users: Vec<_> = loaded.users.iter().copied().collect();
        if outcome.is_err() {
            let key = self.library.programs.remove(&key).expect("the program is in the library").key;
            self.library.by_digest.remove(&key);
        }
        for (slot, program) in users {
            let session = self.sessions.get_mut(&slot).expect("users are sessions that exist");
            let state = session.programs.get_mut(&program).expect("users have the program");
            state.phase = ProgramPhase::Loaded(key);
            state.loads_until = None;
            let frame = match &outcome {
                Ok(LoadedAs { bytes, .. }) if *bytes > self.limits.program_bytes - session.program_bytes => {
                    let error = too_much_memory(self.limits.program_bytes);
                    reply(session, CallerFrame::Refused { program, error }, out);
                    self.unregister(slot, program, out);
                    continue;
                }
                Ok(LoadedAs { cut, bytes }) => {
                    state.bytes += bytes;
                    session.program_bytes += bytes;
                    CallerFrame::Registered { program, cut: *cut }
                }
                Err(error) => {
                    session.program_bytes -= state.bytes;
                    session.programs.remove(&program);
                    CallerFrame::Refused { program, error: error.clone() }
                }
            };
            reply(session, frame, out);
        }
        self.drop_idle_programs(out);
    }

    pub(super) fn unregister(&mut self, slot: SessionSlot, program: ProgramNumber, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        if let Some(state) = session.programs.remove(&program) {
            session.program_bytes -= state.bytes;
            self.release_programs(slot, [(program, state)], out);
        }
    }

    /// Refuses the programs that take too long to load.
    pub(super) fn check_loads(&mut self, now: Time, slot: SessionSlot, out: &mut Vec<HostOutput>) {
        let session = self.sessions.get_mut(&slot).expect("the session exists");
        let is_due = |state: &HostProgram| state.loads_until.is_some_and(|until| until <= now);
        let due = session.programs.iter().filter(|(_, state)| is_due(state));
        let due: Vec<ProgramNumber> = due.map(|(&program, _)| program).collect();
        due.into_iter().for_each(|program| self.refuse_slow(slot, program, out));
    }

    /// Refuses a program that took too long to load. Its loading ends if no other session waits.
    fn refuse_slow(&mut self, slot: SessionSlot, program: ProgramNumber, out: &mut Vec<HostOutput>) {
        let limit = self.limits.load_time.as_secs_f64();
        let error = exhausted(format!("the program did not load within {limit:.1} s, the limit of the peer"))
            .help("divide the function into smaller ones, or raise the limit where the peer is started");
        reply(&self.sessions[&slot], CallerFrame::Refused { program, error }, out);
        self.unregister(slot, program, out);
    }

    /// Notes that a session uses programs no more.
    pub(super) fn release_programs(
        &mut self,
        slot: SessionSlot,
        programs: impl IntoIterator<Item = (ProgramNumber, HostProgram)>,
        out: &mut Vec<HostOutput>,
    ) {
        for (program, state) in programs {
            let (ProgramPhase::Loading(key) | ProgramPhase::Loaded(key)) = state.phase else { continue };
            let library = &mut self.library;
            library.n_released += 1;
            let released = library.programs.get_mut(&key).expect("programs in use are in the library");
            released.users.remove(&(slot, program));
            released.released = library.n_released;
            if released.users.is_empty() && released.cut.is_none() {
                // Nobody waits for it, so its loading ends.
                let dropped = library.programs.remove(&key).expect("the program is in the library");
                library.by_digest.remove(&dropped.key);
                let n_queued = library.queue.len();
                library.queue.retain(|load| load.key != key);
                match library.queue.len() < n_queued {
                    true => drop(self.work.remove(&WorkKey::Load(key))),
                    false => out.push(HostOutput::Unload { key }),
                }
            }
        }
        self.drop_idle_programs(out);
    }

    fn drop_idle_programs(&mut self, out: &mut Vec<HostOutput>) {
        let (mut n, mut bytes) = self.library.idle();
        while n > self.limits.idle_programs || bytes > self.limits.idle_program_bytes {
            let programs = self.library.programs.iter();
            let idle = programs.filter(|(_, program)| program.users.is_empty());
            let Some((&key, _)) = idle.min_by_key(|(_, program)| program.released) else { return };
            let dropped = self.library.programs.remove(&key).expect("the program is in the library");
            self.library.by_digest.remove(&dropped.key);
            (n, bytes) = (n - 1, bytes - dropped.bytes);
            out.push(HostOutput::Unload { key });
        }
    }

    /// Returns the number of programs in the library, and how many of them no session uses.
    pub(crate) fn library_usage(&self) -> (usize, usize) {
        (self.library.programs.len(), self.library.idle().0)
    }
}
