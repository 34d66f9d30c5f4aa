//! Checks that the system has enough memory before a large allocation. Without the check, Rust's
//! collections abort the process if there is too little.
//!
//! The check tests whether the system would reserve this amount. Like the allocator of a plan, it
//! ignores memory that other processes may allocate later. So a system that overcommits memory may
//! still end the process.
//!
//! A thread that computes for others [limits](with_limit) what it takes for a single value.

use std::cell::Cell;
use std::fmt;

/// The minimum size in bytes for a check. The allocator has room for less, and the check takes
/// time.
const LARGE: u128 = 1 << 26;

/// The help of errors about values that do not fit in memory.
pub const SMALLER: &str = "use smaller tensors, for example a smaller batch";

/// The error that there is no memory for this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The number of bytes.
    pub bytes: u128,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} bytes are needed", self.bytes)
    }
}

thread_local! {
    static LIMIT: Cell<u128> = const { Cell::new(u128::MAX) };
}

/// Runs `f`. On this thread, checks for more than `limit` bytes then fail.
///
/// ```
/// use anabranch::dsl::memory;
///
/// memory::with_limit(1 << 20, || {
///     assert!(memory::check(1 << 20).is_ok());
///     assert!(memory::check((1 << 20) + 1).is_err());
/// });
/// assert!(memory::check((1 << 20) + 1).is_ok());
/// ```
pub fn with_limit<R>(limit: u128, f: impl FnOnce() -> R) -> R {
    struct Restore(u128);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(limit.min(LIMIT.get())));
    f()
}

/// Checks that the system has memory for this many bytes.
///
/// ```
/// use anabranch::dsl::memory;
///
/// assert!(memory::check(1 << 10).is_ok());
/// let error = memory::check(1 << 80).unwrap_err();
/// assert_eq!(error.to_string(), "out of memory: 1208925819614629174706176 bytes are needed");
/// ```
pub fn check(bytes: u128) -> Result<(), OutOfMemory> {
    let reserve = |n: usize| Vec::<u8>::new().try_reserve_exact(n).is_ok();
    match usize::try_from(bytes) {
        _ if bytes > LIMIT.get() => Err(OutOfMemory { bytes }),
        _ if bytes < LARGE => Ok(()),
        Ok(n) if reserve(n) => Ok(()),
        _ => Err(OutOfMemory { bytes }),
    }
}
