//! Variables that sessions share at a peer.
//!
//! The values of a [`SharedVariable`] belong to its peer. A step gets the newest ones as a
//! [`SharedSnapshot`], which locks the variables if the step assigns one of them, and commits them
//! at their peers. `proto/host/shared.rs` says what holds there.
//!
//! Invariants:
//!
//! - Locks are acquired in the order of the peers' keys, and at each peer in the order of the
//!   names, all at once. So steps of different sessions cannot wait for each other in a circle.
//! - A snapshot that is dropped before its commit gives up its locks, and nothing changes.
//! - A snapshot of several peers is locked at all of them at once, also if it assigns nothing. So
//!   its values are those before a commit or after it.
//! - A commit at one peer has happened or not. One at several peers is prepared at all of them
//!   first. If a peer is lost before the decision, none of them commits. If it is lost afterwards,
//!   the error says that the outcome is unknown.

use super::cluster::{ClusterState, PeerCluster, ValueHandle, from_wire};
use super::node::lock;
use super::proto::Time;
use super::proto::caller::{CallerOutput, RequestResult, SharedAccess, WantedLock, outcome_alone};
use super::proto::frame::{LockNumber, PeerKey, ProcessNumber, RequestNumber, ValueId, WireError};
use super::remote_device::{RemoteHandle, RemoteValue, RemoteValues};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::{AnyVar, Diagnostic, HostTensor, Result, TensorType, Type};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A shared variable at a peer, as one session uses it.
pub(super) struct SharedVariable {
    cluster: Arc<PeerCluster>,
    process: ProcessNumber,
    name: String,
    ty: TensorType,
    /// The initial value, until the variable is known to exist.
    initial: Mutex<Option<HostTensor>>,
}

impl fmt::Debug for SharedVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shared variable `{}` of process {}", self.name, self.process)
    }
}

/// The use of a shared variable in a step, with its number in the graph.
#[derive(Clone, Debug)]
pub(super) struct StepUse {
    pub(super) number: u32,
    pub(super) variable: Arc<SharedVariable>,
    pub(super) is_read: bool,
    pub(super) is_assigned: bool,
    /// The value with which the variable is created if it was lost.
    pub(super) initial: Option<ValueId>,
}

/// The newest values of the shared variables of a step, and their locks.
#[derive(Debug, Default)]
pub(super) struct SharedSnapshot {
    owners: Vec<OwnerSnapshot>,
}

/// The part of a snapshot at one peer.
#[derive(Debug)]
struct OwnerSnapshot {
    cluster: Arc<PeerCluster>,
    process: ProcessNumber,
    /// The lock, until it is given up or decided.
    lock: Option<LockNumber>,
    is_prepared: bool,
    /// The number of each variable in the graph, in the order of the uses, with the newest value.
    values: Vec<(u32, ValueHandle)>,
}

impl SharedVariable {
    pub(super) fn new(cluster: &Arc<PeerCluster>, process: ProcessNumber, name: &str, var: &AnyVar) -> SharedVariable {
        SharedVariable {
            cluster: cluster.clone(),
            process,
            name: name.to_owned(),
            ty: var.ty().clone(),
            initial: Mutex::new(Some(var.init().clone())),
        }
    }

    /// Returns the value that stands for the variable in the store of a session.
    pub(super) fn remote_value(self: &Arc<SharedVariable>) -> RemoteValue {
        let n_bytes = tensor_bytes_of(&self.ty);
        RemoteValue { ty: Type::Tensor(self.ty.clone()), n_bytes, handle: RemoteHandle::Shared(self.clone()) }
    }

    /// Returns the use by a step that only reads it, or only assigns this value.
    fn use_alone(self: &Arc<SharedVariable>, new: Option<ValueId>) -> StepUse {
        let (is_read, is_assigned) = (new.is_none(), new.is_some());
        StepUse { number: 0, variable: self.clone(), is_read, is_assigned, initial: new }
    }

    /// Returns the newest value.
    pub(super) fn get(self: &Arc<SharedVariable>) -> Result<HostTensor> {
        let snapshot = SharedSnapshot::acquire(vec![self.use_alone(None)], &StopFlag::new())?;
        let (_, value) = &snapshot.owners[0].values[0];
        self.cluster.fetch(value, &Type::Tensor(self.ty.clone()))
    }

    /// Assigns a value, in a step of its own. A variable that was lost exists again.
    fn set(self: &Arc<SharedVariable>, value: HostTensor) -> Result<()> {
        let new = self.cluster.store(self.process, &value, None)?;
        let snapshot = SharedSnapshot::acquire(vec![self.use_alone(Some(new.value))], &StopFlag::new())?;
        snapshot.commit(&[(0, new.value)])
    }
}

impl RemoteValues for Arc<SharedVariable> {
    fn store(&self, value: HostTensor) -> Result<RemoteValue> {
        self.set(value)?;
        Ok(self.remote_value())
    }

    fn fetch(&self, _: &RemoteValue) -> Result<HostTensor> {
        self.get()
    }
}

fn tensor_bytes_of(ty: &TensorType) -> u64 {
    Type::Tensor(ty.clone()).element().n_bytes().unwrap_or(0) as u64
}

impl SharedSnapshot {
    /// Gets the newest values of shared variables. Locks all of them if one is assigned, or while
    /// it gets those of several peers. Waits for the locks of other sessions, as long as the peer
    /// lets a step run or until the call is stopped.
    pub(super) fn acquire(mut uses: Vec<StepUse>, stop: &StopFlag) -> Result<SharedSnapshot> {
        uses.sort_by(|a, b| a.variable.name.cmp(&b.variable.name));
        let assigns = uses.iter().any(|shared| shared.is_assigned);
        let mut by_owner: BTreeMap<(Option<PeerKey>, ProcessNumber), Vec<StepUse>> = BTreeMap::new();
        for shared in uses {
            let SharedVariable { cluster, process, name, .. } = &*shared.variable;
            let key = cluster.with(|state, _, _| state.caller.key(*process));
            let of_owner = by_owner.entry((key, *process)).or_default();
            if of_owner.last().is_some_and(|other| other.variable.name == *name) {
                let message = format!("two variables of the function are shared under the name `{name}`");
                return Err(Diagnostic::new(message).help("use clones of one variable"));
            }
            of_owner.push(shared);
        }
        let mut snapshot = SharedSnapshot { owners: Vec::new() };
        let locks = assigns || by_owner.len() > 1;
        for ((_, process), uses) in by_owner {
            snapshot.owners.push(OwnerSnapshot::acquire(process, &uses, locks, stop)?);
        }
        if !assigns {
            snapshot.owners.iter_mut().for_each(OwnerSnapshot::unlock);
        }
        Ok(snapshot)
    }

    /// Returns the newest value of a variable, by its number in the graph.
    pub(super) fn value(&self, number: u32) -> Option<ValueId> {
        let mut values = self.owners.iter().flat_map(|owner| &owner.values);
        values.find(|(of, _)| *of == number).map(|(_, handle)| handle.value)
    }

    /// Assigns new values, by their variables' numbers in the graph, and ends the locks.
    ///
    /// # Errors
    /// If a lock has expired or a peer was lost, nothing has changed, or the error says that this
    /// is unknown.
    pub(super) fn commit(mut self, new: &[(u32, ValueId)]) -> Result<()> {
        let of_owner = |owner: &OwnerSnapshot| -> Vec<(u32, ValueId)> {
            let value = |number: &u32| new.iter().find(|(of, _)| of == number).map(|(_, value)| *value);
            (0..).zip(&owner.values).filter_map(|(index, (number, _))| Some((index, value(number)?))).collect()
        };
        let mut assigned: Vec<(&mut OwnerSnapshot, Vec<(u32, ValueId)>)> = Vec::new();
        for owner in &mut self.owners {
            let values = of_owner(owner);
            if !values.is_empty() {
                assigned.push((owner, values));
            }
        }
        match &mut assigned[..] {
            [] => return Ok(()),
            [(owner, values)] => return owner.commit_alone(std::mem::take(values)),
            _ => {}
        }
        let mut prepares = Vec::new();
        for (owner, values) in &mut assigned {
            prepares.push(owner.prepare(std::mem::take(values)));
        }
        let prepared: Vec<Result<()>> =
            assigned.iter().zip(prepares).map(|((owner, _), request)| owner.answer(request)).collect();
        // If one has failed, the locks are given up with the snapshot.
        prepared.into_iter().collect::<Result<()>>()?;
        #[cfg(feature = "testing")]
        if let Some(hook) = assigned.first().and_then(|(owner, _)| owner.cluster.before_decisions.0.as_ref()) {
            hook();
        }
        let mut owners: Vec<&mut OwnerSnapshot> = assigned.into_iter().map(|(owner, _)| owner).collect();
        let decisions = decide_all(&mut owners)?;
        let outcomes = owners.iter().zip(decisions).map(|(owner, request)| (owner, owner.answer(request)));
        let (mut changed, mut failed) = (Vec::new(), None);
        for (owner, outcome) in outcomes {
            match outcome {
                Ok(()) => changed.push(owner.cluster.name(owner.process)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(()),
            Some(error) if changed.is_empty() => Err(error),
            Some(error) => {
                let note = format!("the shared variables at {} have changed", changed.join(" and "));
                Err(error.at(anabranch_dsl::Loc::UNKNOWN, note))
            }
        }
    }
}

/// Decides a commit that several peers of one session have prepared.
fn decide_all(owners: &mut [&mut OwnerSnapshot]) -> Result<Vec<Result<RequestNumber, WireError>>> {
    let cluster = owners[0].cluster.clone();
    // In any case, the locks are decided.
    let lock = |owner: &mut &mut OwnerSnapshot| (owner.process, owner.lock.take().expect("only locks are decided"));
    let locks: Vec<(ProcessNumber, LockNumber)> = owners.iter_mut().map(lock).collect();
    let patience = cluster.failure_timeout * 2;
    let decided = cluster.with(|state, now, out| state.caller.decide_all(&locks, (now, patience), out));
    decided.map_err(|(process, error)| cluster.error_of(process, from_wire(error)))
}

impl OwnerSnapshot {
    fn acquire(process: ProcessNumber, uses: &[StepUse], locks: bool, stop: &StopFlag) -> Result<OwnerSnapshot> {
        let cluster = uses[0].variable.cluster.clone();
        cluster.connect_to(&[process], Some(stop))?;
        let mut stored = Vec::new();
        for shared in uses {
            let value = lock(&shared.variable.initial).clone().filter(|_| shared.initial.is_none());
            stored.push(value.map(|value| cluster.store(process, &value, Some(stop))).transpose()?);
        }
        let access = |(shared, stored): (&StepUse, &Option<ValueHandle>)| SharedAccess {
            name: shared.variable.name.clone(),
            ty: shared.variable.ty.to_string(),
            is_read: shared.is_read,
            is_assigned: shared.is_assigned,
            initial: shared.initial.or(stored.as_ref().map(|handle| handle.value)),
        };
        let accesses: Vec<SharedAccess> = uses.iter().zip(&stored).map(access).collect();
        let patience = if locks { cluster.lock_timeout(process) } else { cluster.failure_timeout * 2 };
        let what = || {
            let names: Vec<String> = uses.iter().map(|shared| format!("`{}`", shared.variable.name)).collect();
            let name = cluster.name(process);
            format!("the call waited for the shared variables {} at {name}", names.join(", "))
        };
        let has_room = |state: &ClusterState| !locks || state.caller.has_lock_room(process);
        let asked = loop {
            let asked = cluster.with(|state, now, out| {
                has_room(state).then(|| state.caller.acquire(process, (&accesses, locks), (now, patience), out))
            });
            match asked {
                Some(asked) => break asked,
                // Other calls of the session end.
                None => cluster.wait_for(Some(stop), what, |state| has_room(state).then_some(()))?,
            }
        };
        let WantedLock { request, lock: number, values } =
            asked.map_err(|error| cluster.error_of(process, from_wire(error)))?;
        let answer = cluster.wait_for(Some(stop), what, |state| state.answers.remove(&request));
        let answer = answer.inspect_err(|_| cluster.give_up(process, request, number, &values))?;
        answer.map_err(|error| cluster.error_of(process, from_wire(error)))?;
        uses.iter().for_each(|shared| *lock(&shared.variable.initial) = None);
        let value = |(shared, value): (&StepUse, ValueId)| (shared.number, cluster.handle(process, value));
        let values = uses.iter().zip(values).map(value).collect();
        Ok(OwnerSnapshot { cluster: cluster.clone(), process, lock: number, is_prepared: false, values })
    }

    /// Calls a function of the protocol for the lock, with the time for an answer.
    fn ask<T>(
        &self,
        f: impl FnOnce(&mut ClusterState, LockNumber, (Time, Duration), &mut Vec<CallerOutput>) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let lock = self.lock.expect("only locks are prepared and decided");
        self.cluster.with(|state, now, out| f(state, lock, (now, self.cluster.failure_timeout * 2), out))
    }

    fn commit_alone(&mut self, values: Vec<(u32, ValueId)>) -> Result<()> {
        let process = self.process;
        let asked = self.ask(|state, lock, time, out| state.caller.commit_alone(process, lock, values, time, out));
        let [prepare, decide] = asked.map_err(|error| self.error_of(error))?;
        self.lock = None;
        let prepared = self.wait_for(prepare)?;
        outcome_alone(prepared, self.wait_for(decide)?).map(drop).map_err(|error| self.error_of(error))
    }

    fn prepare(&mut self, values: Vec<(u32, ValueId)>) -> Result<RequestNumber, WireError> {
        let process = self.process;
        let request = self.ask(|state, lock, time, out| state.caller.prepare(process, lock, values, time, out))?;
        self.is_prepared = true;
        Ok(request)
    }

    fn error_of(&self, error: WireError) -> Diagnostic {
        self.cluster.error_of(self.process, from_wire(error))
    }

    /// Waits for the answer to a request.
    fn wait_for(&self, request: RequestNumber) -> Result<Result<RequestResult, WireError>> {
        // The protocol answers when the peer does not.
        self.cluster.wait_for(None, String::new, |state| state.answers.remove(&request))
    }

    /// Waits for the answer to a request that may have failed.
    fn answer(&self, request: Result<RequestNumber, WireError>) -> Result<()> {
        let request = request.map_err(|error| self.error_of(error))?;
        self.wait_for(request)?.map(drop).map_err(|error| self.error_of(error))
    }

    /// Gives up the lock. Nothing that was prepared takes effect.
    fn unlock(&mut self) {
        let Some(lock) = self.lock else { return };
        match self.is_prepared {
            false => self.cluster.with(|state, _, out| state.caller.unlock(self.process, lock, out)),
            true => {
                let process = self.process;
                let _ = self.ask(|state, lock, time, out| {
                    let request = state.caller.decide(process, lock, false, time, out)?;
                    state.caller.abandon(request, out);
                    Ok(())
                });
            }
        }
        self.lock = None;
    }
}

impl Drop for OwnerSnapshot {
    fn drop(&mut self) {
        self.unlock();
    }
}
