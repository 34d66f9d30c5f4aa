//! The memory that programs of other processes keep between their runs.
//!
//! A program keeps the memory of a run for the next one, and so do results that were dropped. Those
//! of this process are its own affair. A peer has programs of many sessions, which nobody counts
//! while they do not run, so all of them together keep at most [`MAX_KEPT`] bytes. What a run takes
//! counts in its budget (`dsl/src/memory.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

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
