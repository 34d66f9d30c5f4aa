//! The step lock of a variable: shared or exclusive, and tied to no thread.
//!
//! A step that waits for a queue gives up its locks, and any of its threads may do so. So a lock is
//! acquired and released by calls, and not by guards of the standard library.

use super::variables::VarAccess;
use anabranch_dsl::interp::StopFlag;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A lock that many readers or one writer hold.
#[derive(Debug, Default)]
pub(super) struct StepLock {
    state: Mutex<LockState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct LockState {
    n_readers: u32,
    has_writer: bool,
    /// Writers that wait. New readers wait for them, so that they are not starved.
    n_waiting_writers: u32,
}

/// The time after which a waiting step looks again whether it was stopped.
const PATIENCE: Duration = Duration::from_millis(1);

impl StepLock {
    fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the lock, unless `stop` is set before it is free. Returns whether it was acquired.
    pub(super) fn acquire(&self, access: VarAccess, stop: Option<&StopFlag>) -> bool {
        let mut state = self.state();
        let is_writer = access == VarAccess::Assign;
        state.n_waiting_writers += u32::from(is_writer);
        let is_free = |state: &LockState| match is_writer {
            true => !state.has_writer && state.n_readers == 0,
            false => !state.has_writer && state.n_waiting_writers == 0,
        };
        let mut acquired = true;
        while !is_free(&state) {
            state = match stop {
                None => self.freed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(stop) if stop.is_set() => {
                    acquired = false;
                    break;
                }
                Some(_) => self.freed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        state.n_waiting_writers -= u32::from(is_writer);
        match (acquired, is_writer) {
            // Readers may have waited for this writer.
            (false, _) => self.freed.notify_all(),
            (true, true) => state.has_writer = true,
            (true, false) => state.n_readers += 1,
        }
        acquired
    }

    /// Releases the lock, which the caller has acquired with this access.
    pub(super) fn release(&self, access: VarAccess) {
        let mut state = self.state();
        match access {
            VarAccess::Assign => state.has_writer = false,
            VarAccess::Read => state.n_readers -= 1,
        }
        drop(state);
        self.freed.notify_all();
    }
}
