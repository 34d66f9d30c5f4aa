//! Short waits without sleeping.

use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps. To wake a sleeping thread takes tens of microseconds
/// on a virtual machine.
const SPIN: Duration = Duration::from_micros(100);

/// Looks for a value for a short time, and lets other threads run meanwhile.
pub(crate) fn spin<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() > SPIN {
            return None;
        }
        std::thread::yield_now();
    }
}
