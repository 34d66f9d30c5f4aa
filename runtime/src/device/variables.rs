//! The current values of the variables of a session, and how steps see and change them.
//!
//! A session gives each variable that it uses a cell. Steps are transactions:
//!
//! - A step reads a *snapshot*: the values of all its variables at one moment, shared and
//!   immutable. A step that assigns nothing takes its snapshot at its begin. It waits for another
//!   step at most during its commit, and delays a commit at most while it takes the snapshot.
//! - A step that assigns something holds *step locks* from before its snapshot to its end: shared
//!   for a variable that it only reads, exclusive for one that it assigns. So such steps exclude
//!   each other if one assigns a variable that the other reads or assigns.
//! - New values are written at the *commit*, after all work that can fail has succeeded. The commit
//!   locks the values of all assigned variables, for as long as it writes them. A value that nobody
//!   else holds is updated in place; otherwise the commit writes new memory, and the holder keeps
//!   the old value.
//!
//! Steps are serializable. The order is that of their *points*: the commit of a step that assigns
//! something, and the snapshot of any other step. A commit and a snapshot lock all values that they
//! touch at once, so a snapshot has all new values of an earlier commit and none of a later one.
//! The step locks keep the values that an assigning step has read until its commit.
//!
//! A step that uses a queue holds step locks even if it assigns nothing. While it waits, it gives
//! them up ([`YieldingLocks`]). When it goes on, it acquires them again. If another step has then
//! assigned one of its variables, its snapshot is no longer that of its commit, so it starts again.
//!
//! A step that uses a queue and assigns something commits twice: first its variables and then its
//! queues. In between it is in the [`CommitGate`] of its session, which a snapshot of variables and
//! queues closes. So such a snapshot has all of a commit or nothing.
//!
//! Step locks are acquired in the order of the variables' identities, and so are locks of values.
//! No step lock is acquired in the gate or while a value is locked, and no value is locked by those
//! who enter or close the gate, so steps cannot deadlock. The exception is a call from inside a
//! step, by its print callback: it must use no variable that the step uses or another step waits
//! for, and take nothing from a queue whose elements such a step has.
//!
//! A step that fails, is stopped or panics before its commit changes nothing, and its locks stay
//! usable.
//!
//! A variable has one *home* for each session: the device on which the first function that uses it
//! is placed. From then on its value is a buffer of that device, every function accesses it there,
//! and the host receives it only on request. Before, and if only the interpreter has used the
//! variable, its value is on the host.
//!
//! This module must not know graphs, functions or engines.

use super::step_lock::StepLock;
use super::{Device, DeviceBuffer, DeviceId, MemorySpace};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::var::DropWatcher;
use anabranch_dsl::{AnyVar, DType, HostTensor, Result, Type};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// The value of one variable in one session.
#[derive(Debug)]
pub(crate) struct VarCell {
    /// The identity of the variable.
    id: u64,
    /// Held by steps that assign variables.
    step: StepLock,
    /// The number of commits that have written the value.
    version: AtomicU64,
    /// A buffer of the home, or of the host without one. Locked only while a snapshot or a commit
    /// accesses it. A commit takes the value out while it writes.
    value: RwLock<Option<DeviceBuffer>>,
    /// Set while the value is locked.
    home: OnceLock<Arc<dyn Device>>,
}

impl VarCell {
    fn read(&self) -> RwLockReadGuard<'_, Option<DeviceBuffer>> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<DeviceBuffer>> {
        self.value.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity of the variable.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn snapshot(&self) -> DeviceBuffer {
        value_in(&self.read()).clone()
    }

    /// Returns the current value on the host.
    pub(crate) fn get(&self) -> Result<HostTensor> {
        self.fetch(self.snapshot())
    }

    /// Returns a value of the variable on the host.
    pub(crate) fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        match value.space() {
            MemorySpace::Host => Ok(value.into_host()),
            MemorySpace::Device(_) => self.home.get().expect("the value is at home").fetch(value),
        }
    }

    /// Stores a value for the variable on its home.
    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        let value = value.compacted().unwrap_or(value);
        match self.home.get() {
            Some(home) => home.store(value),
            None => Ok(DeviceBuffer::from_host(value)),
        }
    }

    /// Makes a device the home, unless there is one. Returns whether the device is the home.
    fn settle(&self, device: &Arc<dyn Device>) -> Result<bool> {
        let mut value = self.write();
        if self.home.get().is_none() {
            *value = Some(device.store(value_in(&value).clone().into_host())?);
            self.home.get_or_init(|| device.clone());
        }
        Ok(self.home.get().is_some_and(|home| home.id() == device.id()))
    }

    /// Returns whether the variable has a home.
    pub(crate) fn is_settled(&self) -> bool {
        self.home.get().is_some()
    }

    /// Makes a device the home, with the value that it has there, unless there is one.
    #[cfg(feature = "peers")]
    pub(crate) fn settle_at(&self, device: Arc<dyn Device>, at_home: DeviceBuffer) {
        let mut value = self.write();
        if self.home.get().is_none() {
            *value = Some(at_home);
            self.home.get_or_init(|| device);
        }
    }
}

/// Returns the value in a cell that no commit writes.
fn value_in(locked: &Option<DeviceBuffer>) -> &DeviceBuffer {
    locked.as_ref().expect("a commit returns the values that it takes out")
}

/// The values of all variables that a session has used and that still have a handle.
#[derive(Debug, Default)]
pub(crate) struct VarStore {
    cells: Mutex<HashMap<u64, Arc<VarCell>>>,
    /// The paths of variables for placement rules, by identity.
    paths: Mutex<HashMap<u64, String>>,
}

impl DropWatcher for VarStore {
    /// Drops the value, so that a session does not grow with every model that it has seen.
    fn dropped(&self, id: u64) {
        let cell = self.lock_cells().remove(&id);
        let path = self.paths().remove(&id);
        drop((cell, path));
    }
}

impl VarStore {
    fn lock_cells(&self) -> MutexGuard<'_, HashMap<u64, Arc<VarCell>>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the paths of variables, by identity. No handle of a variable may be dropped while
    /// they are locked.
    pub(crate) fn paths(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the paths of variables, for placement rules.
    pub(crate) fn name(self: &Arc<VarStore>, vars: &[(String, AnyVar)]) {
        for (path, var) in vars {
            var.watch(self.watcher());
            self.paths().insert(var.id(), path.clone());
        }
    }

    fn watcher(self: &Arc<VarStore>) -> Weak<dyn DropWatcher> {
        Arc::<VarStore>::downgrade(self)
    }

    /// Returns the cell of a variable. A new cell has the variable's initial value.
    pub(crate) fn cell(self: &Arc<VarStore>, var: &AnyVar) -> Arc<VarCell> {
        let new = || {
            var.watch(self.watcher());
            let value = RwLock::new(Some(DeviceBuffer::from_host(var.init().clone())));
            Arc::new(VarCell {
                id: var.id(),
                step: StepLock::default(),
                version: AtomicU64::new(0),
                value,
                home: OnceLock::new(),
            })
        };
        self.lock_cells().entry(var.id()).or_insert_with(new).clone()
    }

    /// Returns the cells of variables as a set, with the access that a step has to each.
    pub(crate) fn set<'a>(self: &Arc<VarStore>, vars: impl IntoIterator<Item = (&'a AnyVar, VarAccess)>) -> VarSet {
        let mut cells = Vec::new();
        let mut access = Vec::new();
        for (var, a) in vars {
            cells.push(self.cell(var));
            access.push(a);
        }
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|&i| cells[i].id);
        let mut ranks = vec![0; order.len()];
        order.iter().enumerate().for_each(|(rank, &i)| ranks[i] = rank);
        let assigns = access.contains(&VarAccess::Assign);
        VarSet { cells, access, order, ranks, assigns, gate: None, is_in_gate: AtomicBool::new(false) }
    }
}

/// Keeps commits of variables and queues apart from snapshots of both.
#[derive(Debug, Default)]
pub(crate) struct CommitGate(StepLock);

/// A closed gate, or the place of a commit in an open one, until it is dropped.
pub(crate) struct GatePass<'a>(&'a CommitGate, VarAccess);

impl CommitGate {
    fn pass(&self, access: VarAccess) -> GatePass<'_> {
        self.0.acquire(access, None);
        GatePass(self, access)
    }

    /// Enters, as soon as the gate is open.
    pub(crate) fn enter(&self) -> GatePass<'_> {
        self.pass(VarAccess::Read)
    }

    /// Closes the gate, as soon as nobody is in it.
    pub(crate) fn close(&self) -> GatePass<'_> {
        self.pass(VarAccess::Assign)
    }
}

impl Drop for GatePass<'_> {
    fn drop(&mut self) {
        self.0.0.release(self.1);
    }
}

/// The access of a step to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarAccess {
    Read,
    Assign,
}

/// Returns a value whose strings do not keep large blocks of memory.
fn compacted(value: DeviceBuffer) -> DeviceBuffer {
    let is_strings = matches!(value.ty(), Type::Tensor(ty) if ty.dtype == DType::Bytes);
    if !is_strings || value.space() != MemorySpace::Host {
        return value;
    }
    let value = value.into_host();
    DeviceBuffer::from_host(value.compacted().unwrap_or(value))
}

/// The variables of a graph, in its order.
#[derive(Debug)]
pub(crate) struct VarSet {
    cells: Vec<Arc<VarCell>>,
    access: Vec<VarAccess>,
    /// The indices of the variables in the order of their identities.
    order: Vec<usize>,
    /// The position of each variable in that order.
    ranks: Vec<usize>,
    /// Whether some variable is assigned.
    assigns: bool,
    /// The gate that a commit enters, and leaves with the step locks at the latest.
    gate: Option<Arc<CommitGate>>,
    /// Whether a commit is in the gate. It holds the step lock of an assigned variable, so it is
    /// the only one.
    is_in_gate: AtomicBool,
}

/// The step locks of a step that assigns something, until they are dropped.
pub(crate) struct StepLocks<'a>(&'a VarSet);

impl Drop for StepLocks<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The step locks of a step that may wait for a queue, which gives them up while it waits.
#[derive(Debug)]
pub(crate) struct YieldingLocks {
    vars: Arc<VarSet>,
    /// The versions of all variables when the locks were acquired first.
    versions: PerVar<u64>,
    are_held: Mutex<bool>,
}

/// The state of the variables of a step that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockResumption {
    /// No other step has assigned one.
    Unchanged,
    /// Another step has assigned one, so the step must start again.
    Changed,
    /// The step was stopped before the locks were free.
    Stopped,
}

impl YieldingLocks {
    /// Acquires the locks, unless `stop` is set before all are free.
    pub(crate) fn acquire(vars: Arc<VarSet>, stop: Option<&StopFlag>) -> Option<YieldingLocks> {
        if !vars.acquire(stop) {
            return None;
        }
        let versions = vars.versions();
        Some(YieldingLocks { vars, versions, are_held: Mutex::new(true) })
    }

    fn are_held(&self) -> MutexGuard<'_, bool> {
        self.are_held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the gate of commits, when all of a commit is done. The locks stay, since they also
    /// order what follows the commits of steps.
    pub(crate) fn leave_gate(&self) {
        if *self.are_held() {
            self.vars.leave_gate();
        }
    }

    /// Gives up the locks.
    pub(crate) fn give_up(&self) {
        let mut are_held = self.are_held();
        if std::mem::replace(&mut *are_held, false) {
            self.vars.release();
        }
    }

    /// Acquires the locks again, unless `stop` is set before all are free.
    pub(crate) fn resume(&self, stop: Option<&StopFlag>) -> LockResumption {
        let mut are_held = self.are_held();
        if !*are_held {
            if !self.vars.acquire(stop) {
                return LockResumption::Stopped;
            }
            *are_held = true;
        }
        match self.vars.versions() == self.versions {
            true => LockResumption::Unchanged,
            false => LockResumption::Changed,
        }
    }
}

impl Drop for YieldingLocks {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Entries of the variables of a step.
pub(super) type PerVar<T> = SmallVec<[T; 2]>;

impl VarSet {
    /// Returns the set of a step whose commit of variables is a part of a larger one: it enters the
    /// gate, and is there until the step locks are released.
    pub(crate) fn with_gate(self, gate: Arc<CommitGate>) -> VarSet {
        VarSet { gate: Some(gate), ..self }
    }

    /// Returns whether a step assigns some variable.
    pub(crate) fn assigns(&self) -> bool {
        self.assigns
    }

    /// Acquires all step locks, unless `stop` is set before all are free. Only a step that assigns
    /// something needs them.
    pub(crate) fn lock(&self, stop: Option<&StopFlag>) -> Option<StepLocks<'_>> {
        self.acquire(stop).then(|| StepLocks(self))
    }

    /// Acquires all step locks, or none if `stop` is set before all are free. Returns whether they
    /// were acquired.
    fn acquire(&self, stop: Option<&StopFlag>) -> bool {
        for (n, &i) in self.order.iter().enumerate() {
            if !self.cells[i].step.acquire(self.access[i], stop) {
                self.order[..n].iter().for_each(|&i| self.cells[i].step.release(self.access[i]));
                return false;
            }
        }
        true
    }

    /// Leaves the gate, if a commit has entered it.
    fn leave_gate(&self) {
        if let Some(gate) = &self.gate
            && self.is_in_gate.swap(false, Ordering::Relaxed)
        {
            gate.0.release(VarAccess::Read);
        }
    }

    fn release(&self) {
        self.leave_gate();
        self.order.iter().for_each(|&i| self.cells[i].step.release(self.access[i]));
    }

    /// Returns the number of commits that have written each variable.
    fn versions(&self) -> PerVar<u64> {
        self.cells.iter().map(|cell| cell.version.load(Ordering::Relaxed)).collect()
    }

    /// Returns the home of each variable that has one.
    pub(crate) fn homes(&self) -> Vec<Option<DeviceId>> {
        (0..self.cells.len()).map(|i| self.home(i)).collect()
    }

    fn home(&self, i: usize) -> Option<DeviceId> {
        self.cells[i].home.get().map(|home| home.id())
    }

    /// Makes devices the homes of the variables that have none. Returns whether all variables are
    /// at home on these devices now: another thread may have been faster.
    pub(crate) fn settle<'a>(&self, devices: impl IntoIterator<Item = &'a Arc<dyn Device>>) -> Result<bool> {
        let mut settled = true;
        for (cell, device) in self.cells.iter().zip(devices) {
            settled &= cell.settle(device)?;
        }
        Ok(settled)
    }

    /// Assigns all variables in a step of its own.
    pub(crate) fn assign(&self, new: impl IntoIterator<Item = HostTensor>) -> Result<()> {
        let _locks = self.lock(None);
        self.store_and_commit(new)
    }

    /// Assigns all variables in a step of its own, which does `also` at the same moment. It assigns
    /// nothing if that fails. No step that uses queues commits in between.
    pub(crate) fn assign_with(
        &self,
        new: impl IntoIterator<Item = HostTensor>,
        gate: &CommitGate,
        also: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _locks = self.lock(None);
        self.store_and(new, || gate.close(), also)
    }

    /// Takes a snapshot: returns what `open` makes of the values of the variables at one moment.
    ///
    /// A step calls it once, at its begin. If it assigns something, it holds its step locks, which
    /// keep the values.
    pub(crate) fn snapshot<T>(&self, open: impl Fn(&DeviceBuffer) -> T) -> PerVar<T> {
        if self.cells.is_empty() {
            return PerVar::new();
        }
        let open = |locked: &Option<DeviceBuffer>| open(value_in(locked));
        if self.cells.len() == 1 || self.assigns {
            return self.cells.iter().map(|cell| open(&cell.read())).collect();
        }
        let locked: PerVar<_> = self.order.iter().map(|&i| self.cells[i].read()).collect();
        self.ranks.iter().map(|&rank| open(&locked[rank])).collect()
    }

    /// Returns the values of the variables at one moment, each with its cell, which
    /// [fetches](VarCell::fetch) it.
    pub(crate) fn hold(&self) -> Vec<(Arc<VarCell>, DeviceBuffer)> {
        self.cells.iter().cloned().zip(self.snapshot(DeviceBuffer::clone)).collect()
    }

    /// Returns what [`hold`](Self::hold) does, and what `read` returns at the same moment.
    pub(crate) fn hold_with<R>(&self, read: impl FnOnce() -> R) -> (Vec<(Arc<VarCell>, DeviceBuffer)>, R) {
        let locked: Vec<_> = self.order.iter().map(|&i| self.cells[i].read()).collect();
        let also = read();
        let values = self.ranks.iter().map(|&rank| value_in(&locked[rank]).clone());
        (self.cells.iter().cloned().zip(values).collect(), also)
    }

    /// Returns the values of the variables at one moment, on the host.
    pub(crate) fn to_host(&self) -> Result<Vec<HostTensor>> {
        self.hold().into_iter().map(|(cell, value)| cell.fetch(value)).collect()
    }

    /// Commits new values from the host to the assigned variables.
    pub(crate) fn store_and_commit(&self, new: impl IntoIterator<Item = HostTensor>) -> Result<()> {
        self.store_and(new, || (), || Ok(()))
    }

    /// Commits new values from the host to the assigned variables, if `also` succeeds when these
    /// are locked. `enter` is called before.
    fn store_and<G>(
        &self,
        new: impl IntoIterator<Item = HostTensor>,
        enter: impl Fn() -> G,
        also: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let VarSet { cells, access, .. } = self;
        let new: Vec<(usize, HostTensor)> =
            new.into_iter().enumerate().filter(|(i, _)| access[*i] == VarAccess::Assign).collect();
        loop {
            let homes = self.homes();
            let stored = new.iter().map(|(i, value)| cells[*i].store(value.clone()));
            let stored: Vec<DeviceBuffer> = stored.collect::<Result<_>>()?;
            let _entered = enter();
            let mut locked = self.lock_assigned();
            // A function may have placed a variable after its new value was stored.
            if locked.iter().all(|(i, _)| homes[*i] == self.home(*i)) {
                also()?;
                locked.iter_mut().zip(stored).for_each(|((_, cell), value)| **cell = Some(value));
                return Ok(());
            }
        }
    }

    /// Commits new values to assigned variables.
    pub(crate) fn commit(&self, new: impl IntoIterator<Item = (usize, DeviceBuffer)>) {
        let mut values: PerVar<Option<DeviceBuffer>> = self.cells.iter().map(|_| None).collect();
        new.into_iter().for_each(|(i, value)| values[i] = Some(value));
        for (i, cell) in &mut self.lock_assigned() {
            if let Some(value) = values[*i].take() {
                **cell = Some(compacted(value));
            }
        }
    }

    /// Locks the values of the assigned variables, all at once. Returns them with their indices, in
    /// the order of the graph.
    pub(super) fn lock_assigned(&self) -> PerVar<(usize, LockedValue<'_>)> {
        if !self.assigns {
            return PerVar::new();
        }
        if let Some(gate) = &self.gate
            && !self.is_in_gate.swap(true, Ordering::Relaxed)
        {
            gate.0.acquire(VarAccess::Read, None);
        }
        let assigned = self.order.iter().filter(|&&i| self.access[i] == VarAccess::Assign);
        let lock = |&i: &usize| {
            let value = self.cells[i].write();
            // The step lock publishes it to steps that compare versions.
            self.cells[i].version.fetch_add(1, Ordering::Relaxed);
            (i, value)
        };
        let mut locked: PerVar<_> = assigned.map(lock).collect();
        locked.sort_unstable_by_key(|(i, _)| *i);
        locked
    }
}

/// The value of an assigned variable during the commit. A writer that takes it out returns it, or
/// another one, before the lock is released.
pub(super) type LockedValue<'a> = RwLockWriteGuard<'a, Option<DeviceBuffer>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn var(name: &str) -> AnyVar {
        AnyVar::new(name, HostTensor::scalar(1.0f32))
    }

    #[test]
    fn values_and_paths_of_dropped_variables_are_dropped() {
        let state = Arc::new(VarStore::default());
        let (named, dropped) = (var("named"), var("dropped"));
        state.name(&[("model.named".to_owned(), named.clone()), ("model.dropped".to_owned(), dropped.clone())]);
        let set = state.set([(&named, VarAccess::Assign), (&dropped, VarAccess::Read)]);
        set.commit([(0, DeviceBuffer::from_host(HostTensor::scalar(2.0f32)))]);
        drop(dropped);
        assert_eq!(state.lock_cells().keys().collect::<Vec<_>>(), [&named.id()]);
        assert_eq!(state.paths().values().collect::<Vec<_>>(), ["model.named"]);
        assert_eq!(state.cell(&named).get(), Ok(HostTensor::scalar(2.0f32)));
        // A running step keeps its cells. The variable may outlive the session.
        assert_eq!(set.to_host().map(|v| v[1].clone()), Ok(HostTensor::scalar(1.0f32)));
        drop(state);
        drop(named);
    }
}
