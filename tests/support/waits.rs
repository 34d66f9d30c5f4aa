//! Waits of tests for calls that wait.

use anabranch::Session;

/// Looks again and again until `is_there`.
///
/// # Panics
/// Panics if that takes very long.
pub fn until(description: impl std::fmt::Debug, mut is_there: impl FnMut() -> bool) {
    for _ in 0..20_000_000 {
        if is_there() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{description:?} did not happen");
}

/// Ends all waits for the queues of a session when a test panics, so that it fails and does not
/// wait for its threads.
pub struct EndWaits<'a>(pub &'a Session);

impl Drop for EndWaits<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close_queues();
        }
    }
}
