//! How many threads may compute kernels at once.

use super::helpers::{n_cores, wake_for_freed_place};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit of the threads that compute the kernels of a call, or of a device.
///
/// The threads that run the steps count, too. They may be more than the limit: then nobody helps
/// them.
#[derive(Debug)]
pub(crate) struct ThreadLimit {
    n: usize,
    at_work: AtomicUsize,
}

thread_local! {
    /// The limit for kernels of this thread. There is also one of all threads of the process.
    static LIMIT: RefCell<Option<Arc<ThreadLimit>>> = const { RefCell::new(None) };
    /// Whether this thread counts as one at work.
    static IS_AT_WORK: Cell<bool> = const { Cell::new(false) };
}

impl ThreadLimit {
    /// Creates a limit of `n` threads.
    pub(crate) fn new(n: usize) -> ThreadLimit {
        ThreadLimit { n, at_work: AtomicUsize::new(0) }
    }

    /// Sets the limit for all kernels of the calling thread from now on.
    pub(crate) fn enter(self: Arc<Self>) {
        LIMIT.set(Some(self));
    }

    /// Runs `f` with this limit for its kernels.
    pub(crate) fn within<R>(self: Arc<Self>, f: impl FnOnce() -> R) -> R {
        let was_at_work = IS_AT_WORK.replace(false);
        let _before = Restored { limit: LIMIT.replace(Some(self)), is_at_work: was_at_work };
        f()
    }

    /// Counts one thread more if the limit allows it.
    fn admit(&self) -> bool {
        let more = |n| (n < self.n).then_some(n + 1);
        // See `wake_for_freed_place`.
        self.at_work.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }
}

/// Sets the limit and state that the thread had before when it is dropped.
struct Restored {
    limit: Option<Arc<ThreadLimit>>,
    is_at_work: bool,
}

impl Drop for Restored {
    fn drop(&mut self) {
        LIMIT.set(self.limit.take());
        IS_AT_WORK.set(self.is_at_work);
    }
}

/// Returns the number of threads that may compute the kernels of the calling thread.
pub(crate) fn n_threads() -> usize {
    let limit = LIMIT.with_borrow(|limit| limit.as_ref().map(|limit| limit.n));
    limit.or_else(size_of_pool).unwrap_or_else(n_cores)
}

/// Returns whether the calling thread computes parts of a kernel.
#[cfg(debug_assertions)]
pub(crate) fn is_at_work() -> bool {
    IS_AT_WORK.get()
}

/// Returns the number of threads of the rayon pool to which the calling thread belongs.
fn size_of_pool() -> Option<usize> {
    rayon::current_thread_index().map(|_| rayon::current_num_threads())
}

/// A thread that computes parts. It counts as one at work, unless it has counted before.
pub(super) struct AtWork {
    counted: Option<(&'static ThreadLimit, Restored)>,
    limit: Option<Arc<ThreadLimit>>,
}

impl AtWork {
    /// Counts the calling thread, which has work for others. `all` is the limit of all threads.
    pub(super) fn caller(all: &'static ThreadLimit) -> AtWork {
        let limit = LIMIT.with_borrow(Clone::clone);
        if IS_AT_WORK.get() {
            return AtWork { counted: None, limit };
        }
        let limit = limit.or_else(|| size_of_pool().map(|n| Arc::new(ThreadLimit::new(n))));
        let count = |limit: &ThreadLimit| limit.at_work.fetch_add(1, Ordering::Relaxed);
        count(all);
        limit.as_deref().map(count);
        AtWork::begin(all, limit)
    }

    /// Counts the calling thread as a helper of work with a limit, or returns `None` if there are
    /// enough threads.
    pub(super) fn helper(all: &'static ThreadLimit, limit: &Option<Arc<ThreadLimit>>) -> Option<AtWork> {
        if !all.admit() {
            return None;
        }
        if limit.as_ref().is_some_and(|limit| !limit.admit()) {
            all.at_work.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(AtWork::begin(all, limit.clone()))
    }

    fn begin(all: &'static ThreadLimit, limit: Option<Arc<ThreadLimit>>) -> AtWork {
        let before = Restored { limit: LIMIT.replace(limit.clone()), is_at_work: IS_AT_WORK.replace(true) };
        AtWork { counted: Some((all, before)), limit }
    }

    /// Returns the limit of the work, besides that of all threads.
    pub(super) fn limit(&self) -> &Option<Arc<ThreadLimit>> {
        &self.limit
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if let Some((all, _)) = &self.counted {
            all.at_work.fetch_sub(1, Ordering::SeqCst);
            self.limit.as_ref().map(|limit| limit.at_work.fetch_sub(1, Ordering::SeqCst));
            wake_for_freed_place();
        }
    }
}
