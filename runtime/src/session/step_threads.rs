//! The threads that compute a step, if they are not the caller's.
//!
//! Kernels are split for the threads of the pool that they run in: rayon's own, unless a step runs
//! on others.
//!
//! - A step that may wait for a queue has a team to itself in any session.
//! - A session with a [limit](crate::SessionBuilder::threads) has *teams* of that many threads.
//!   Each running step has a team to itself, so no step waits for another step of unknown duration.
//!   An idle team is kept for the next step.
//! - A thread of a rayon pool that waits for part of its own work meanwhile runs other work of the
//!   pool. If that is another call, which waits for a variable that the step below it on the stack
//!   assigns, both wait forever. So do a step that needs threads of the pool and calls on all of
//!   these threads that wait for its variables. So a step that assigns something runs on threads
//!   that only run steps that hold their locks, and the caller's thread waits for it without
//!   running other work.

use crate::device;
use anabranch_dsl::Result;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The threads of a session with a limit.
#[derive(Debug)]
pub(crate) struct Teams {
    /// The id of the session, unique in the process.
    id: u64,
    /// The number of threads of each team.
    n: usize,
    idle: Mutex<Vec<ThreadPool>>,
}

/// The maximum number of idle teams that a session keeps.
const MAX_IDLE: usize = 16;

thread_local! {
    /// The id of the teams to which this thread belongs, 0 for other threads.
    static TEAMS: Cell<u64> = const { Cell::new(0) };
}

impl Teams {
    /// Creates teams of `n` threads, none of which has started.
    pub(crate) fn new(n: usize) -> Teams {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Teams { id: NEXT.fetch_add(1, Ordering::Relaxed), n, idle: Mutex::default() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<ThreadPool>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of teams without a step.
    #[cfg(test)]
    pub(crate) fn n_idle(&self) -> usize {
        self.idle().len()
    }

    /// Takes an idle team, or starts one.
    fn take(&self) -> Result<ThreadPool> {
        if let Some(team) = self.idle().pop() {
            return Ok(team);
        }
        let id = self.id;
        let team =
            ThreadPoolBuilder::new().num_threads(self.n).thread_name(move |i| format!("session {id} thread {i}"));
        let team = team.start_handler(move |_| TEAMS.set(id)).build();
        team.map_err(|e| device::no_threads("the threads of a session", e))
    }

    /// Keeps a team for the next step.
    fn give_back(&self, team: ThreadPool) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(team);
        }
    }
}

/// Runs a step whose kernels may be split for several threads.
///
/// If its session has `teams`, the step runs on one of them. If it holds locks, it runs on threads
/// that take up no other work in the meantime.
pub(crate) fn run<R: Send>(
    teams: Option<&Teams>,
    holds_locks: bool,
    step: impl FnOnce() -> Result<R> + Send,
) -> Result<R> {
    // A kernel that calls a function waits for it. Devices have threads of their own, whose number
    // respects the limit.
    if device::is_thread_of_device() || teams.is_some_and(|teams| teams.id == TEAMS.get()) {
        return step();
    }
    if let Some(teams) = teams {
        let team = teams.take()?;
        let outcome = run_on(&team, step);
        teams.give_back(team);
        return outcome;
    }
    match holds_locks.then(threads).flatten() {
        Some(threads) => run_on(threads, step),
        None => step(),
    }
}

/// Runs a step that may wait for a queue, however long. Its threads run nothing else meanwhile.
pub(crate) fn run_waiting<R: Send>(teams: Option<&Teams>, step: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    static WAITING: OnceLock<Teams> = OnceLock::new();
    let teams = teams.unwrap_or_else(|| WAITING.get_or_init(|| Teams::new(rayon::current_num_threads())));
    run(Some(teams), true, step)
}

/// Runs a step on other threads. The calling thread waits and runs no other work in the meantime.
fn run_on<R: Send>(threads: &ThreadPool, step: impl FnOnce() -> R + Send) -> R {
    if rayon::current_thread_index().is_none() {
        return threads.install(step);
    }
    // The new thread belongs to no pool, so it waits without running other work.
    let outcome = std::thread::scope(|scope| scope.spawn(|| threads.install(step)).join());
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the threads of steps with locks, or `None` if the system cannot start them.
fn threads() -> Option<&'static ThreadPool> {
    static THREADS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let name = |i| format!("step thread {i}");
    let start = || {
        // As many as rayon's own, if the caller's thread does not belong to another pool. 0 stands
        // for the default.
        let n = if rayon::current_thread_index().is_none() { rayon::current_num_threads() } else { 0 };
        ThreadPoolBuilder::new().num_threads(n).thread_name(name).build().ok()
    };
    THREADS.get_or_init(start).as_ref()
}
