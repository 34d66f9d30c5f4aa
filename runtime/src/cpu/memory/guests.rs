//! The memory of programs of other processes: what stacks and lists grow to while a program runs,
//! and what programs keep between their runs.
//!
//! A peer knows what a program needs before it runs, except for stacks and lists. Their memory
//! counts in the [budget](within) of the step as it grows, up to the end of the run.
//!
//! A program keeps the memory of a run for the next one, and so do results that were dropped. Those
//! of this process are its own affair. A peer has programs of many sessions, which nobody counts
//! while they do not run, so all of them together keep at most [`MAX_KEPT`] bytes.

use crate::byte_gauge::{ByteGauge, HeldBytes};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The budget of the run on this thread, and what its stacks and lists hold of it.
struct RunBudget {
    gauge: Arc<ByteGauge>,
    held: Vec<HeldBytes>,
}

thread_local! {
    static RUN: RefCell<Option<RunBudget>> = const { RefCell::new(None) };
}

/// Runs `f`. What stacks and lists grow by on this thread counts in the budget until the end.
pub(crate) fn within<R>(gauge: &Arc<ByteGauge>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<RunBudget>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RUN.set(self.0.take());
        }
    }
    let _restore = Restore(RUN.replace(Some(RunBudget { gauge: gauge.clone(), held: Vec::new() })));
    f()
}

/// Counts bytes by which a stack or list grows. Returns false if that is more than the budget of
/// the run allows.
pub(crate) fn hold_growth(bytes: usize) -> bool {
    RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return true };
        let held = run.gauge.hold(bytes as u64);
        let fits = held.is_some();
        run.held.extend(held);
        fits
    })
}

/// The maximum number of bytes that programs of other processes keep in this one.
const MAX_KEPT: u64 = 256 << 20;

static KEPT: AtomicU64 = AtomicU64::new(0);

/// Bytes that programs of other processes keep. Those of this process are not counted.
#[derive(Debug)]
pub(crate) struct KeptMemory {
    is_of_guest: bool,
}

impl KeptMemory {
    pub(crate) fn new(is_of_guest: bool) -> KeptMemory {
        KeptMemory { is_of_guest }
    }

    /// Counts bytes, unless they would be too many. Returns whether they may be kept.
    pub(crate) fn keep(&self, bytes: u64) -> bool {
        // The counter publishes no other data, so relaxed ordering suffices.
        let add = |kept: u64| kept.checked_add(bytes).filter(|&sum| sum <= MAX_KEPT);
        !self.is_of_guest || KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Counts bytes no longer that were kept.
    pub(crate) fn release(&self, bytes: u64) {
        if self.is_of_guest {
            KEPT.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
