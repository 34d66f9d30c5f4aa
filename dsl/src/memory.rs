//! Checks that the system has enough memory before a large allocation. Without the check, Rust's
//! collections abort the process if there is too little.
//!
//! The check tests whether the system would reserve this amount. Like the allocator of a plan, it
//! ignores memory that other processes may allocate later. So a system that overcommits memory may
//! still end the process.

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
        _ if bytes < LARGE => Ok(()),
        Ok(n) if reserve(n) => Ok(()),
        _ => Err(OutOfMemory { bytes }),
    }
}
