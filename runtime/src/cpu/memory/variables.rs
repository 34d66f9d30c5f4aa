//! The current values of the variables of a session, in host memory.
//!
//! A session gives each variable that it uses a cell with a lock. Before a step reads its first
//! variable, it locks all variables of its graph in the order of their identities, for writing if
//! it assigns them and otherwise for reading. A step holds the locks until it has changed the last
//! variable. So steps are serializable and cannot deadlock.
//!
//! A step that panics changes nothing, since variables change at its very end. The locks that it
//! held stay usable.

use crate::cpu::memory::results::ResultPool;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::var::DropWatcher;
use anabranch_dsl::{AnyVar, HostTensor};
use std::collections::HashMap;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult, Weak,
};
use std::time::Duration;

/// The value of one variable in one session.
#[derive(Debug)]
pub(crate) struct VarCell {
    /// The identity of the variable.
    id: u64,
    value: RwLock<HostTensor>,
}

impl VarCell {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, HostTensor> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the cell if no other step holds it.
    fn try_lock(&self, write: bool) -> Option<Guard<'_>> {
        fn got<T>(outcome: TryLockResult<T>) -> Option<T> {
            match outcome {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
        if write { got(self.value.try_write()).map(Guard::Write) } else { got(self.value.try_read()).map(Guard::Read) }
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, HostTensor> {
        self.value.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of all variables that a session has used and that still have a handle, and the memory
/// of results.
#[derive(Debug, Default)]
pub(crate) struct VarStore {
    cells: Mutex<HashMap<u64, Arc<VarCell>>>,
    /// The paths of variables for placement rules, by identity.
    paths: Mutex<HashMap<u64, String>>,
    /// Memory of results that callers have dropped.
    pub(crate) results: Arc<ResultPool>,
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
            Arc::new(VarCell { id: var.id(), value: RwLock::new(var.init().clone()) })
        };
        self.lock_cells().entry(var.id()).or_insert_with(new).clone()
    }

    /// Returns the cells of variables, in their order.
    pub(crate) fn cells<'a>(self: &Arc<VarStore>, vars: impl IntoIterator<Item = &'a AnyVar>) -> Vec<Arc<VarCell>> {
        vars.into_iter().map(|var| self.cell(var)).collect()
    }
}

/// A variable locked for a step.
pub(crate) enum Guard<'a> {
    Read(RwLockReadGuard<'a, HostTensor>),
    Write(RwLockWriteGuard<'a, HostTensor>),
}

impl Guard<'_> {
    pub(crate) fn tensor(&self) -> &HostTensor {
        match self {
            Guard::Read(g) => g,
            Guard::Write(g) => g,
        }
    }

    /// Returns the tensor for writing.
    ///
    /// # Panics
    /// Panics if the variable is locked for reading.
    pub(crate) fn tensor_mut(&mut self) -> &mut HostTensor {
        match self {
            Guard::Write(g) => g,
            Guard::Read(_) => panic!("a variable is assigned that was locked for reading"),
        }
    }
}

/// Locks cells, the `i`-th for writing if `writes[i]`. Returns the guards in the order of the
/// cells.
pub(crate) fn lock<'a>(cells: &'a [Arc<VarCell>], order: &[usize], writes: &[bool]) -> Vec<Guard<'a>> {
    if cells.is_empty() {
        return Vec::new();
    }
    let mut guards: Vec<Option<Guard<'a>>> = cells.iter().map(|_| None).collect();
    for &i in order {
        guards[i] = Some(if writes[i] { Guard::Write(cells[i].write()) } else { Guard::Read(cells[i].read()) });
    }
    guards.into_iter().map(|g| g.expect("the order has every cell")).collect()
}

/// Locks cells like [`lock`], unless `stop` is set before all are free.
pub(crate) fn lock_unless<'a>(
    cells: &'a [Arc<VarCell>],
    order: &[usize],
    writes: &[bool],
    stop: &StopFlag,
) -> Option<Vec<Guard<'a>>> {
    let mut guards: Vec<Option<Guard<'a>>> = cells.iter().map(|_| None).collect();
    for &i in order {
        let guard = loop {
            if let Some(guard) = cells[i].try_lock(writes[i]) {
                break guard;
            }
            if stop.is_set() {
                return None;
            }
            std::thread::sleep(BETWEEN_TRIES);
        };
        guards[i] = Some(guard);
    }
    Some(guards.into_iter().map(|g| g.expect("the order has every cell")).collect())
}

/// The time between attempts to lock a variable, in a step that may be stopped.
const BETWEEN_TRIES: Duration = Duration::from_micros(200);

/// Returns the order in which cells are locked.
pub(crate) fn lock_order(cells: &[Arc<VarCell>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_key(|&i| cells[i].id);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_paths_of_dropped_variables_are_dropped() {
        let state = Arc::new(VarStore::default());
        let var = |name| AnyVar::new(name, HostTensor::scalar(1.0f32));
        let (named, dropped) = (var("named"), var("dropped"));
        state.name(&[("model.named".to_owned(), named.clone()), ("model.dropped".to_owned(), dropped.clone())]);
        let cells = state.cells([&named, &dropped]);
        *state.cell(&named).write() = HostTensor::scalar(2.0f32);
        drop(dropped);
        assert_eq!(state.lock_cells().keys().collect::<Vec<_>>(), [&named.id()]);
        assert_eq!(state.paths().values().collect::<Vec<_>>(), ["model.named"]);
        assert_eq!(*state.cell(&named).read(), HostTensor::scalar(2.0f32));
        // A running step keeps its cells. The variable may outlive the session.
        assert_eq!(*cells[1].read(), HostTensor::scalar(1.0f32));
        drop(state);
        drop(named);
    }
}
