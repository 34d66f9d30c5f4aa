//! Stopping kernels that take long.
//!
//! A plan runs its kernels within [`within`]. A kernel whose time is not bounded by the bytes that
//! it reads and writes, such as a matmul, asks [`is_set`] between its parts and, if they are large,
//! in them. Once the flag is set, it leaves the rest of its result as it is, and the plan fails
//! before anything reads it.
//!
//! Only results that are plain numbers may be left: nothing may rely on them for safety. All other
//! work is done to its end, since it may be a copy for a print, a file or a queue.

use anabranch_dsl::interp::StopFlag;
use std::cell::Cell;

thread_local! {
    /// The flag of the plan whose kernels this thread computes, or null.
    static FLAG: Cell<*const StopFlag> = const { Cell::new(std::ptr::null()) };
}

/// The flag of a thread, for threads that compute parts of its kernel.
#[derive(Clone, Copy)]
pub(super) struct KernelStop(*const StopFlag);

// SAFETY: it stands for a `&StopFlag`, which may be sent.
unsafe impl Send for KernelStop {}
// SAFETY: as above.
unsafe impl Sync for KernelStop {}

/// Sets the flag that the thread had before when it is dropped.
struct FlagBefore(*const StopFlag);

impl Drop for FlagBefore {
    fn drop(&mut self) {
        FLAG.set(self.0);
    }
}

impl KernelStop {
    /// Returns the flag of the calling thread.
    pub(super) fn of_this_thread() -> KernelStop {
        KernelStop(FLAG.get())
    }

    /// Runs `f` with this flag for its kernels.
    ///
    /// # Safety
    /// The flag must outlive the call.
    pub(super) unsafe fn within<R>(self, f: impl FnOnce() -> R) -> R {
        let _before = FlagBefore(FLAG.replace(self.0));
        f()
    }
}

/// Runs `f`, whose kernels end early once `flag` is set.
pub(crate) fn within<R>(flag: &StopFlag, f: impl FnOnce() -> R) -> R {
    // SAFETY: the flag is borrowed until the call ends.
    unsafe { KernelStop(flag).within(f) }
}

/// Returns whether the kernels of the calling thread should end.
pub(crate) fn is_set() -> bool {
    // SAFETY: a flag that is not null is borrowed by the `within` that has set it.
    unsafe { FLAG.get().as_ref() }.is_some_and(StopFlag::is_set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::element::to_buffer;
    use crate::threads::{self, ThreadLimit, n_threads};
    use anabranch_dsl::{Buffer, DType, ErrorKind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns the number of chunks that are computed if the first that begin set the flag.
    fn computed() -> usize {
        let (flag, n) = (StopFlag::new(), AtomicUsize::new(0));
        within(&flag, || {
            threads::chunks_until_stop(&mut [0_u8; 10_000], 1, |_| {
                flag.stop(ErrorKind::Cancelled);
                n.fetch_add(1, Ordering::Relaxed);
            });
        });
        n.into_inner()
    }

    #[test]
    fn chunks_that_have_not_begun_are_skipped_by_every_thread() {
        threads::testing::meet();
        for _ in 0..100 {
            assert!((1..=n_threads()).contains(&computed()));
        }
        assert_eq!(Arc::new(ThreadLimit::new(1)).within(computed), 1);
    }

    #[test]
    fn copies_are_complete_after_a_stop() {
        let flag = StopFlag::new();
        flag.stop(ErrorKind::Cancelled);
        let bytes = vec![1_u8; 1 << 21];
        assert!(matches!(within(&flag, || to_buffer(DType::U8, &bytes)), Buffer::U8(copied) if copied == bytes));
    }

    #[test]
    fn a_flag_counts_for_its_call_alone() {
        let (outer, inner) = (StopFlag::new(), StopFlag::new());
        inner.stop(ErrorKind::Cancelled);
        assert!(!is_set());
        within(&outer, || {
            within(&inner, || assert!(is_set()));
            assert!(!is_set());
        });
        assert!(!is_set());
    }
}
