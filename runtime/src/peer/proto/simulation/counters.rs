//! Increments of counters that sessions share at peers, at one peer or at two of them.
//!
//! A counter at one incarnation of a node begins at 0. It rises by 1 with each commit. Its value is
//! at least the number of increments that sessions know to have happened, and at most that plus
//! those of which they do not know.

use super::cluster::{ClusterModel, CounterKey, ms};
use super::work::{stamp_of, tensor_of};
use crate::peer::proto::caller::{RequestResult, SharedAccess, WantedLock, outcome_alone};
use crate::peer::proto::frame::{LockNumber, ProcessNumber, RequestNumber, ValueId, WireError, WireErrorKind};

/// The outcome of a request.
type Answered = Result<RequestResult, WireError>;

/// An increment of counters at one or two peers, all or none.
#[derive(Debug)]
pub(super) struct Increment {
    owners: Vec<CounterOwner>,
}

/// The part of an increment at one peer.
#[derive(Debug)]
struct CounterOwner {
    process: ProcessNumber,
    name: String,
    /// Values to release at the end.
    held: Vec<ValueId>,
    lock: Option<LockNumber>,
    counter: Option<CounterKey>,
    phase: CounterPhase,
    /// The outcome of handing over the value, if it is committed at once.
    prepared: Option<Answered>,
    /// Whether the counter was incremented, if that is known.
    is_done: Option<bool>,
}

/// How far an increment is at a peer. Most phases wait for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterPhase {
    Idle,
    Initial(RequestNumber, ValueId),
    Acquiring(RequestNumber, ValueId),
    Acquired(ValueId),
    Reading(RequestNumber),
    Writing(RequestNumber, ValueId),
    Written(ValueId),
    Preparing(RequestNumber),
    Prepared,
    Deciding(RequestNumber),
    /// Prepared and decided at once.
    Both(RequestNumber, RequestNumber),
    Done,
}

/// Returns whether an error says that a commit may have happened.
fn is_of_unknown_commit(error: &WireError) -> bool {
    error.message.starts_with("it is unknown")
}

impl CounterPhase {
    fn awaits(self, request: RequestNumber) -> bool {
        match self {
            CounterPhase::Initial(number, _)
            | CounterPhase::Acquiring(number, _)
            | CounterPhase::Reading(number)
            | CounterPhase::Writing(number, _)
            | CounterPhase::Preparing(number)
            | CounterPhase::Deciding(number) => number == request,
            CounterPhase::Both(prepare, decide) => prepare == request || decide == request,
            _ => false,
        }
    }
}

impl ClusterModel {
    /// Lets the user of a node begin an increment.
    pub(super) fn increment(&mut self, node: usize) {
        let n = self.user(node).peers.len();
        if self.user(node).increments.len() >= 3 {
            return;
        }
        let mut processes: Vec<ProcessNumber> =
            (0..1 + self.rng.below(2)).map(|_| ProcessNumber(1 + self.rng.below(n) as u32)).collect();
        processes.sort_unstable();
        processes.dedup();
        let owner = |(process, name): (ProcessNumber, usize)| CounterOwner {
            process,
            name: ["a", "b"][name].to_owned(),
            held: Vec::new(),
            lock: None,
            counter: None,
            phase: CounterPhase::Idle,
            prepared: None,
            is_done: None,
        };
        let owners = processes.into_iter().map(|process| (process, self.rng.below(2))).map(owner).collect();
        self.go_on(node, Increment { owners });
    }

    /// Handles the answer to a request of an increment. Returns whether it is of one.
    pub(super) fn increment_answered(&mut self, node: usize, request: RequestNumber, outcome: &Answered) -> bool {
        let awaits = |increment: &Increment| increment.owners.iter().any(|owner| owner.phase.awaits(request));
        let Some(at) = self.user(node).increments.iter().position(awaits) else { return false };
        let mut increment = self.user(node).increments.remove(at);
        let index = increment.owners.iter().position(|owner| owner.phase.awaits(request)).expect("one awaits it");
        let owner = &mut increment.owners[index];
        let process = owner.process;
        match (owner.phase, outcome) {
            (CounterPhase::Both(prepare, decide), outcome) if prepare == request => {
                owner.prepared = Some(outcome.clone());
                owner.phase = CounterPhase::Deciding(decide);
            }
            (CounterPhase::Deciding(_), outcome) => {
                owner.phase = CounterPhase::Done;
                let is_alone = owner.prepared.is_some();
                let outcome = match owner.prepared.take() {
                    Some(prepared) => outcome_alone(prepared, outcome.clone()),
                    None => outcome.clone(),
                };
                let counter = owner.counter.clone().expect("the counter was acquired");
                let is_unknown = outcome.as_ref().is_err_and(is_of_unknown_commit);
                if is_unknown && !is_alone {
                    *self.owed.entry((node, counter.clone())).or_default() += 1;
                }
                let (known, unknown) = self.increments.entry(counter).or_default();
                if !is_unknown {
                    *unknown -= 1;
                }
                *known += i64::from(outcome.is_ok());
                owner.is_done = (!is_unknown).then_some(outcome.is_ok());
                self.seen.increments += usize::from(outcome.is_ok());
                self.seen.unknown += usize::from(is_unknown);
            }
            (_, Err(error)) => {
                if error.kind == WireErrorKind::Invalid {
                    self.wrong(format!("an increment fails: {}", error.message));
                }
                return self.give_up(node, increment);
            }
            (CounterPhase::Initial(_, initial), Ok(_)) => {
                owner.held.push(initial);
                let access = SharedAccess {
                    name: owner.name.clone(),
                    ty: "i64[]".to_owned(),
                    is_read: true,
                    is_assigned: true,
                    initial: Some(initial),
                };
                let wait = 20 + self.rng.below(3_000);
                let acquired = self
                    .call(node, |caller, now, out| caller.acquire(process, (&[access], true), (now, ms(wait)), out));
                let Ok(WantedLock { request, lock, values }) = acquired else { return self.give_up(node, increment) };
                let owner = &mut increment.owners[index];
                (owner.lock, owner.phase) = (lock, CounterPhase::Acquiring(request, values[0]));
            }
            (CounterPhase::Acquiring(_, value), Ok(_)) => {
                owner.held.push(value);
                owner.phase = CounterPhase::Acquired(value);
                let peer = self.user(node).peers[process.0 as usize - 1];
                let incarnation = self.nodes[peer].incarnation;
                let owner = &mut increment.owners[index];
                owner.counter = Some((peer, incarnation, owner.name.clone()));
            }
            (CounterPhase::Reading(_), Ok(value)) => {
                let RequestResult::Value(value) = value else { panic!("a fetch yields a value") };
                let value = stamp_of(value);
                let wait = 200 + self.rng.below(2_000);
                let stored = self
                    .call(node, |caller, now, out| caller.store(process, tensor_of(value + 1), (now, ms(wait)), out));
                let Ok((request, value)) = stored else { return self.give_up(node, increment) };
                increment.owners[index].phase = CounterPhase::Writing(request, value);
            }
            (CounterPhase::Writing(_, value), Ok(_)) => {
                owner.held.push(value);
                owner.phase = CounterPhase::Written(value);
            }
            (CounterPhase::Preparing(_), Ok(_)) => owner.phase = CounterPhase::Prepared,
            (phase, Ok(_)) => self.wrong(format!("an increment is answered in the phase {phase:?}")),
        }
        self.go_on(node, increment)
    }

    /// Asks for what an increment needs next. Returns true.
    fn go_on(&mut self, node: usize, mut increment: Increment) -> bool {
        let is_alone = increment.owners.len() == 1;
        let all = |increment: &Increment, is: fn(CounterPhase) -> bool| increment.owners.iter().all(|o| is(o.phase));
        if let Some(index) = increment.owners.iter().position(|owner| owner.phase == CounterPhase::Idle)
            && increment.owners[..index].iter().all(|owner| matches!(owner.phase, CounterPhase::Acquired(_)))
        {
            let process = increment.owners[index].process;
            let stored = self.call(node, |caller, now, out| caller.store(process, tensor_of(0), (now, ms(900)), out));
            let Ok((request, value)) = stored else { return self.give_up(node, increment) };
            increment.owners[index].phase = CounterPhase::Initial(request, value);
        } else if all(&increment, |phase| matches!(phase, CounterPhase::Acquired(_))) {
            for index in 0..increment.owners.len() {
                let CounterOwner { process, phase: CounterPhase::Acquired(value), .. } = increment.owners[index] else {
                    unreachable!("all are acquired")
                };
                let fetched = self.call(node, |caller, now, out| caller.fetch(process, value, (now, ms(900)), out));
                let Ok(request) = fetched else { return self.give_up(node, increment) };
                increment.owners[index].phase = CounterPhase::Reading(request);
            }
        } else if all(&increment, |phase| matches!(phase, CounterPhase::Written(_))) {
            for index in 0..increment.owners.len() {
                let CounterOwner { process, lock: Some(lock), phase: CounterPhase::Written(value), .. } =
                    increment.owners[index]
                else {
                    unreachable!("all are locked and written")
                };
                let values = vec![(0, value)];
                if is_alone {
                    let asked = self
                        .call(node, |caller, now, out| caller.commit_alone(process, lock, values, (now, ms(900)), out));
                    let Ok([prepare, decide]) = asked else { return self.give_up(node, increment) };
                    let owner = &mut increment.owners[index];
                    (owner.lock, owner.phase) = (None, CounterPhase::Both(prepare, decide));
                    let counter = owner.counter.clone().expect("the counter was acquired");
                    self.increments.entry(counter).or_default().1 += 1;
                    continue;
                }
                let prepared =
                    self.call(node, |caller, now, out| caller.prepare(process, lock, values, (now, ms(900)), out));
                let Ok(prepare) = prepared else { return self.give_up(node, increment) };
                increment.owners[index].phase = CounterPhase::Preparing(prepare);
            }
        } else if all(&increment, |phase| phase == CounterPhase::Prepared) && self.rng.below(3) > 0 {
            self.decide(node, &mut increment);
        }
        if all(&increment, |phase| phase == CounterPhase::Done) {
            let is_done = |done: bool| increment.owners.iter().any(|owner| owner.is_done == Some(done));
            if is_done(true) && is_done(false) {
                self.wrong(format!("one half of an increment has happened, and the other has not: {increment:?}"));
            }
            self.release_increment(node, increment);
        } else {
            self.user(node).increments.push(increment);
        }
        true
    }

    /// Goes on with increments whose user has taken some time to decide.
    pub(super) fn decide_late(&mut self, node: usize) {
        let is_late = |increment: &Increment| increment.owners.iter().all(|o| o.phase == CounterPhase::Prepared);
        let user = self.user(node);
        if let Some(at) = user.increments.iter().position(is_late) {
            let increment = user.increments.remove(at);
            self.go_on(node, increment);
        }
    }

    /// Decides that an increment at several peers happens.
    fn decide(&mut self, node: usize, increment: &mut Increment) {
        let lock = |owner: &mut CounterOwner| (owner.process, owner.lock.take().expect("the counter is locked"));
        let locks: Vec<(ProcessNumber, LockNumber)> = increment.owners.iter_mut().map(lock).collect();
        let decided = self.call(node, |caller, now, out| caller.decide_all(&locks, (now, ms(900)), out));
        let Ok(requests) = decided else {
            increment.owners.iter_mut().for_each(|owner| owner.phase = CounterPhase::Done);
            return;
        };
        for (owner, request) in increment.owners.iter_mut().zip(requests) {
            let counter = owner.counter.clone().expect("the counter was acquired");
            // It has happened when the peer answers.
            self.increments.entry(counter).or_default().1 += 1;
            match request {
                Ok(decide) => owner.phase = CounterPhase::Deciding(decide),
                Err(error) => self.wrong(format!("a peer that holds a lock is not told: {}", error.message)),
            }
        }
        self.cut_one_of(node, increment);
    }

    /// Sometimes cuts the connection to one of the peers of an increment, with all that is on its
    /// way.
    fn cut_one_of(&mut self, node: usize, increment: &Increment) {
        if self.cuts.below(6) > 0 {
            return;
        }
        let process = increment.owners[self.cuts.below(increment.owners.len())].process;
        let link = self.user(node).caller.link(process);
        if let Some(&(connection, _)) = link.and_then(|link| self.nodes[node].links.get(&link)) {
            self.note(|| format!("the link of node{node} to process {process} is cut after a decision"));
            self.cut(connection);
            self.disturbed_until(self.now);
        }
    }

    /// Checks that a peer, which has no commit of a session in doubt, has all increments that the
    /// session has decided.
    pub(super) fn check_decided(&mut self, node: usize, peer: usize) {
        let incarnation = self.nodes[peer].incarnation;
        let of_peer = |((of, counter), owed): (&(usize, CounterKey), &i64)| {
            ((*of, counter.0, counter.1) == (node, peer, incarnation)).then(|| (counter.clone(), *owed))
        };
        let owed: Vec<(CounterKey, i64)> = self.owed.iter().filter_map(of_peer).collect();
        for (counter, owed) in owed {
            let known = self.increments.get(&counter).map_or(0, |(known, _)| *known);
            let content = self.nodes[peer].counters.get(&counter.2).copied().unwrap_or_default();
            self.seen.settled += 1;
            if content < known + owed {
                self.wrong(format!(
                    "half of an increment is lost: the counter {counter:?} is {content}, though {known} increments \
                     are known and node{node} has decided {owed} more"
                ));
            }
        }
    }

    /// Ends an increment that cannot happen. Returns true.
    fn give_up(&mut self, node: usize, increment: Increment) -> bool {
        for owner in &increment.owners {
            let (process, Some(lock)) = (owner.process, owner.lock) else { continue };
            let is_prepared = matches!(owner.phase, CounterPhase::Preparing(_) | CounterPhase::Prepared);
            self.call(node, |caller, now, out| match is_prepared {
                true => {
                    if let Ok(request) = caller.decide(process, lock, false, (now, ms(900)), out) {
                        caller.abandon(request, out);
                    }
                }
                false => caller.unlock(process, lock, out),
            });
        }
        self.release_increment(node, increment);
        true
    }

    fn release_increment(&mut self, node: usize, increment: Increment) {
        for CounterOwner { process, mut held, phase, .. } in increment.owners {
            match phase {
                CounterPhase::Initial(request, value)
                | CounterPhase::Acquiring(request, value)
                | CounterPhase::Writing(request, value) => {
                    held.push(value);
                    self.call(node, |caller, _, out| caller.abandon(request, out));
                }
                CounterPhase::Reading(request) | CounterPhase::Preparing(request) => {
                    self.call(node, |caller, _, out| caller.abandon(request, out));
                }
                _ => {}
            }
            self.call(node, |caller, _, out| caller.release(process, held, out));
        }
    }

    /// Checks the counters of a node.
    pub(super) fn check_counters(&mut self, node: usize) {
        let [_, waiting, doubts] = self.nodes[node].host.lock_counts();
        self.seen.waited += waiting;
        self.seen.doubts += doubts;
        for (name, value, commits) in self.nodes[node].host.shared_values() {
            let state = &mut self.nodes[node];
            let Some(&content) = state.shared.get(&value) else {
                return self.wrong(format!("node{node} has no value of the counter {name}"));
            };
            let before = state.counters.insert(name.clone(), content);
            let counter = (node, state.incarnation, name);
            let (known, unknown) = self.increments.get(&counter).copied().unwrap_or_default();
            let is_next = before.map_or(content == 0, |before| content == before || content == before + 1);
            if !is_next || content != commits as i64 || content < known || content > known + unknown {
                self.wrong(format!(
                    "the counter {counter:?} goes from {before:?} to {content} after {commits} commits, of which \
                     {known} are known, and {unknown} may have happened"
                ));
            }
        }
    }
}
