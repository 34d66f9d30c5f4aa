//! The step lock of a variable: shared or exclusive, and tied to no thread.
//!
//! A step that waits for a queue gives up its locks, and any of its threads may do so. So a lock is
//! acquired and released by calls, and not by guards of the standard library.
//!
//! The lock is granted in the order in which it was requested, so nobody waits for requests that
//! came later. Readers that follow each other have it at once. Steps acquire their locks in the
//! order of the variables, so they cannot deadlock: whoever waits for a lock waits for steps that
//! hold it, or wait for it, and these wait for later locks only.

use super::variables::VarAccess;
use anabranch_dsl::interp::StopFlag;
use std::collections::VecDeque;
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
    /// The tickets of those that wait, in the order in which they came.
    waiting: VecDeque<u64>,
    next_ticket: u64,
}

impl LockState {
    /// Returns whether those who hold the lock admit another one.
    fn admits(&self, access: VarAccess) -> bool {
        match access {
            VarAccess::Assign => !self.has_writer && self.n_readers == 0,
            VarAccess::Read => !self.has_writer,
        }
    }

    fn grant(&mut self, access: VarAccess) {
        match access {
            VarAccess::Assign => self.has_writer = true,
            VarAccess::Read => self.n_readers += 1,
        }
    }
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
        if state.waiting.is_empty() && state.admits(access) {
            state.grant(access);
            return true;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(ticket);
        let acquired = loop {
            if state.waiting.front() == Some(&ticket) && state.admits(access) {
                state.grant(access);
                break true;
            }
            state = match stop {
                None => self.freed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(stop) if stop.is_set() => break false,
                Some(_) => self.freed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner).0,
            };
        };
        state.waiting.retain(|other| *other != ticket);
        let is_awaited = !state.waiting.is_empty();
        drop(state);
        // The next one may be a reader that has waited for this one only.
        if is_awaited {
            self.freed.notify_all();
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
        let is_awaited = !state.waiting.is_empty();
        drop(state);
        if is_awaited {
            self.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::ErrorKind;
    use std::sync::mpsc;
    use std::thread;

    /// Waits until `n` others wait for the lock.
    fn await_waiting(lock: &StepLock, n: usize) {
        while lock.state().waiting.len() < n {
            thread::yield_now();
        }
    }

    /// Acquires the lock for the first one, lets the others wait for it one after the other, and
    /// returns the order in which they got it.
    fn order_of(first: VarAccess, others: &[VarAccess]) -> Vec<usize> {
        let lock = StepLock::default();
        assert!(lock.acquire(first, None));
        let (got, order) = mpsc::channel();
        thread::scope(|scope| {
            for (i, &access) in others.iter().enumerate() {
                let (lock, got) = (&lock, got.clone());
                scope.spawn(move || {
                    assert!(lock.acquire(access, None));
                    got.send(i).expect("the order is received");
                    lock.release(access);
                });
                await_waiting(lock, i + 1);
            }
            lock.release(first);
        });
        drop(got);
        order.into_iter().collect()
    }

    #[test]
    fn a_reader_gets_the_lock_before_writers_that_came_later() {
        use VarAccess::{Assign, Read};
        assert_eq!(order_of(Assign, &[Read, Assign, Assign]), [0, 1, 2]);
        assert_eq!(order_of(Assign, &[Assign, Read, Assign, Read]), [0, 1, 2, 3]);
        assert_eq!(order_of(Read, &[Assign, Read, Assign]), [0, 1, 2]);
    }

    #[test]
    fn readers_that_follow_each_other_have_the_lock_at_once() {
        let lock = StepLock::default();
        assert!(lock.acquire(VarAccess::Assign, None));
        let all_have_it = std::sync::Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert!(lock.acquire(VarAccess::Read, None));
                    all_have_it.wait();
                    lock.release(VarAccess::Read);
                });
            }
            await_waiting(&lock, 3);
            lock.release(VarAccess::Assign);
        });
    }

    #[test]
    fn those_behind_a_writer_that_is_stopped_go_on() {
        let (lock, stop) = (StepLock::default(), StopFlag::new());
        assert!(lock.acquire(VarAccess::Read, None));
        thread::scope(|scope| {
            let writer = scope.spawn(|| lock.acquire(VarAccess::Assign, Some(&stop)));
            await_waiting(&lock, 1);
            let reader = scope.spawn(|| lock.acquire(VarAccess::Read, None));
            await_waiting(&lock, 2);
            stop.stop(ErrorKind::Cancelled);
            assert!(!writer.join().expect("it does not panic"), "the flag ends the wait");
            assert!(reader.join().expect("it does not panic"));
        });
        assert_eq!(lock.state().n_readers, 2);
        assert!(!lock.acquire(VarAccess::Assign, Some(&stop)));
    }
}
