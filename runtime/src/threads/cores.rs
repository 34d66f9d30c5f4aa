//! The cores on which threads run.
//!
//! A system with few cores may wake a thread on the core of the thread that wakes it, though
//! another core is idle. Then both take turns, until the system moves one of them after
//! milliseconds. So helpers are kept off the core of the caller. Only Linux lets us do it.

#[cfg(target_os = "linux")]
pub(super) use linux::{ThreadOnCores, current};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{ThreadOnCores, current};

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::{MaybeUninit, size_of};

    /// Returns the core on which the calling thread runs, if it is known.
    pub(in crate::threads) fn current() -> Option<usize> {
        // SAFETY: the function has no preconditions. It returns -1 if the system lacks it.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    /// A thread, and the cores on which it may run.
    pub(in crate::threads) struct ThreadOnCores {
        thread: libc::pid_t,
        allowed: libc::cpu_set_t,
    }

    impl ThreadOnCores {
        /// Returns the calling thread, or `None` if the system does not tell its cores.
        pub(in crate::threads) fn this() -> Option<ThreadOnCores> {
            let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed();
            // SAFETY: the function has no preconditions.
            let thread = unsafe { libc::gettid() };
            // SAFETY: the pointer is valid for writes of the size that is passed.
            let outcome = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), allowed.as_mut_ptr()) };
            // SAFETY: a set of zeros is a set without cores, and the function has written cores.
            (outcome == 0).then(|| ThreadOnCores { thread, allowed: unsafe { allowed.assume_init() } })
        }

        /// Keeps the thread off a core from now on, if there is another one.
        pub(in crate::threads) fn keep_off(&self, core: usize) {
            let mut cores = self.allowed;
            // SAFETY: the functions access the bits of the set, if `core` is one of them.
            let is_empty = unsafe {
                libc::CPU_CLR(core, &mut cores);
                libc::CPU_COUNT(&cores) == 0
            };
            if !is_empty {
                // SAFETY: the pointer is valid for reads of the size that is passed. If the thread
                // is no more, or may not be moved, nothing happens.
                unsafe { libc::sched_setaffinity(self.thread, size_of::<libc::cpu_set_t>(), &raw const cores) };
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    /// Returns `None`: the core is not known.
    pub(in crate::threads) fn current() -> Option<usize> {
        None
    }

    /// A thread whose cores are not known.
    pub(in crate::threads) enum ThreadOnCores {}

    impl ThreadOnCores {
        /// Returns `None`.
        pub(in crate::threads) fn this() -> Option<ThreadOnCores> {
            None
        }

        /// Does nothing.
        pub(in crate::threads) fn keep_off(&self, _: usize) {
            match *self {}
        }
    }
}
