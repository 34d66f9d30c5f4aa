//! Steps that change variables, called from a thread pool of the caller's.
//!
//! A thread of a rayon pool that waits for a part of its own work takes up other work of the pool in the meantime. If that is another call, which wants
//! to lock a variable that the step below it holds, both wait forever. So such a step runs on threads that have nothing else to do
//! than steps whose variables are locked already, and the caller's thread waits for it without taking up anything.

use crate::device;
use crate::state::Guard;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::resume_unwind;
use std::sync::OnceLock;

/// The locked variables of a step, lent to another thread.
struct Lent<'a, 'g>(&'a mut [Guard<'g>]);

// SAFETY: a guard is bound to its thread because it must be dropped there. Only the reference goes to another thread, in `run`, which returns after that one
// has ended; a guard cannot be taken out of it, as there is no other to put in its place. What the guards give access to may be sent.
unsafe impl Send for Lent<'_, '_> {}

/// Runs a step on locked variables, where nothing else can be taken up by the thread that runs it.
pub(crate) fn run<R: Send>(guards: &mut [Guard<'_>], step: impl FnOnce(&mut [Guard<'_>]) -> R + Send) -> R {
    let is_in_pool = rayon::current_thread_index().is_some() && !device::is_thread_of_device();
    let Some(threads) = is_in_pool.then(threads).flatten() else { return step(guards) };
    let lent = Lent(guards);
    let run = move || {
        // All of it is moved here: of a field alone the compiler would not know that it may be sent.
        let Lent(guards) = { lent };
        step(guards)
    };
    // The new thread belongs to no pool, so it waits for one without taking up anything.
    let outcome = std::thread::scope(|scope| scope.spawn(|| threads.install(run)).join());
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The threads of such steps; none if the system gives none.
fn threads() -> Option<&'static ThreadPool> {
    static THREADS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let name = |i| format!("step thread {i}");
    THREADS.get_or_init(|| ThreadPoolBuilder::new().thread_name(name).build().ok()).as_ref()
}
