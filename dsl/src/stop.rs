//! Stopping a run from another thread.

use crate::{Diagnostic, ErrorKind, Loc};
use std::sync::atomic::{AtomicU8, Ordering};

/// A flag that asks a run to stop, with the reason.
///
/// Another thread may set it. Engines check it between operations and before each iteration of a
/// loop.
///
/// ```
/// use anabranch::dsl::interp::StopFlag;
/// use anabranch::ErrorKind;
///
/// let flag = StopFlag::new();
/// assert_eq!(flag.get(), None);
/// flag.stop(ErrorKind::Cancelled);
/// assert_eq!(flag.get(), Some(ErrorKind::Cancelled));
/// ```
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct StopFlag(AtomicU8);

const CANCELLED: u8 = 1;
const DEADLINE_EXCEEDED: u8 = 2;
const ABANDONED: u8 = 3;

impl StopFlag {
    /// Creates a flag that is not set.
    pub const fn new() -> StopFlag {
        StopFlag(AtomicU8::new(0))
    }

    /// Sets the flag. If it is set already, the first reason is kept, unless the run was
    /// [abandoned](Self::abandon).
    ///
    /// # Panics
    /// Panics if the kind is not a reason to stop.
    pub fn stop(&self, kind: ErrorKind) {
        let code = match kind {
            ErrorKind::Cancelled => CANCELLED,
            ErrorKind::DeadlineExceeded => DEADLINE_EXCEEDED,
            _ => panic!("{kind:?} is not a reason to stop"),
        };
        // The flag publishes no other data, so relaxed ordering suffices. A flag that is set keeps
        // its reason.
        let set = |old| matches!(old, 0 | ABANDONED).then_some(code);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// Sets the flag because the run has failed, and the rest of it should end. Unlike a reason to
    /// [stop](Self::stop), this is no wish of the caller: the run may [begin
    /// again](Self::begin_again).
    pub fn abandon(&self) {
        let _ = self.0.compare_exchange(0, ABANDONED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Clears the flag if the run was [abandoned](Self::abandon) and the caller has not stopped it.
    /// All that looks at the flag for the abandoned run must have ended.
    pub fn begin_again(&self) {
        let _ = self.0.compare_exchange(ABANDONED, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether the flag is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Returns the address of the flag for generated code: a byte that is 0 until the flag is set.
    ///
    /// The kind is written atomically.
    pub fn address(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Returns the reason, if the flag is set.
    pub fn get(&self) -> Option<ErrorKind> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            DEADLINE_EXCEEDED => Some(ErrorKind::DeadlineExceeded),
            _ => Some(ErrorKind::Cancelled),
        }
    }
}

/// Returns the error for a stopped run of `graph`, which is the same in every engine.
///
/// `loops` are the running loops, innermost first. If there are none, `at` is the location of the
/// operation that was running or would have run next.
pub fn stopped(kind: ErrorKind, graph: &str, loops: impl IntoIterator<Item = Loc>, at: Loc) -> Diagnostic {
    let message = match kind {
        ErrorKind::DeadlineExceeded => format!("the call of `{graph}` did not end before its deadline"),
        _ => format!("the call of `{graph}` was cancelled"),
    };
    let mut error = Diagnostic::new(message).of_kind(kind);
    for place in loops {
        let label = if error.labels.is_empty() { "this loop was running" } else { "inside this one" };
        error = error.at(place, label);
    }
    if error.labels.is_empty() {
        error = error.at(at, "the run stopped here");
    }
    match kind {
        ErrorKind::DeadlineExceeded => error.help("no variable has changed; call again with a later deadline"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_run_begins_again_unless_it_was_stopped() {
        let flag = StopFlag::new();
        flag.abandon();
        assert_eq!(flag.get(), Some(ErrorKind::Cancelled));
        flag.begin_again();
        assert!(!flag.is_set());
        flag.abandon();
        flag.stop(ErrorKind::DeadlineExceeded);
        flag.begin_again();
        assert_eq!(flag.get(), Some(ErrorKind::DeadlineExceeded));
        flag.abandon();
        assert_eq!(flag.get(), Some(ErrorKind::DeadlineExceeded));
    }
}
