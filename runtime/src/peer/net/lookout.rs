//! Looking for packets without sleeping, while they come one after the other.
//!
//! To wake a thread that sleeps takes about as long as a short round trip, and the sender of a
//! packet that wakes one needs twice as long for it. So the thread that drives a net looks for
//! packets for [`WINDOW`] after each frame of the layer above and each part of a body that has
//! arrived, and after a thread has begun to wait for a frame, before it sleeps.
//!
//! Invariants:
//!
//! - L1. If the system lets another thread run between two looks, the cores are busy, and the
//!   thread sleeps. To give up the core instead would be worse: only a thread that sleeps runs at
//!   once when something arrives.
//! - L2. Looking that finds nothing becomes rare: after each time, twice as many occasions pass
//!   without it, up to [`MAX_SKIPPED`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a thread looks.
const WINDOW: Duration = Duration::from_micros(200);

/// The time between two looks from which on another thread must have run.
const INTERRUPTED: Duration = Duration::from_micros(500);

/// The most occasions that pass without a look.
const MAX_SKIPPED: u32 = 64;

/// The occasions to look for packets.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    /// Frames and parts of bodies that have arrived.
    arrived: AtomicU64,
    /// Arrivals, and waits that have begun.
    occasions: AtomicU64,
    /// Whether the task that looks sleeps.
    sleeps: AtomicBool,
    occasion: Notify,
}

impl Lookout {
    /// Notes that a frame or a part of a body has arrived.
    pub(super) fn arrived(&self) {
        // The counters publish no other data, so relaxed ordering suffices.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.expect();
    }

    /// Notes that a thread begins to wait for a frame.
    pub(super) fn expect(&self) {
        self.occasions.fetch_add(1, Ordering::Relaxed);
        if self.sleeps.swap(false, Ordering::Relaxed) {
            self.occasion.notify_one();
        }
    }

    /// Looks for packets at each occasion.
    pub(super) async fn look_out(&self) {
        let mut skipping = Skipping::default();
        loop {
            self.sleeps.store(true, Ordering::Relaxed);
            self.occasion.notified().await;
            if !skipping.skips() {
                let found = self.look().await;
                skipping.looked(found);
            }
        }
    }

    /// Looks for packets until there is no occasion for some time. Returns whether something has
    /// arrived.
    async fn look(&self) -> bool {
        let before = self.arrived.load(Ordering::Relaxed);
        let mut occasions = self.occasions.load(Ordering::Relaxed);
        let mut begun = Instant::now();
        let mut last = begun;
        loop {
            tokio::task::yield_now().await;
            let now = Instant::now();
            let seen = self.occasions.load(Ordering::Relaxed);
            if seen != occasions {
                (occasions, begun) = (seen, now);
            } else if now - begun > WINDOW || now - last > INTERRUPTED {
                return self.arrived.load(Ordering::Relaxed) != before;
            }
            last = now;
        }
    }
}

/// How many occasions pass without a look.
#[derive(Debug, Default)]
struct Skipping {
    n: u32,
    left: u32,
}

impl Skipping {
    /// Returns whether this occasion passes.
    fn skips(&mut self) -> bool {
        let skips = self.left > 0;
        self.left = self.left.saturating_sub(1);
        skips
    }

    /// Notes whether a look has found something.
    fn looked(&mut self, found: bool) {
        self.n = if found { 0 } else { (2 * self.n + 1).min(MAX_SKIPPED) };
        self.left = self.n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_that_finds_nothing_becomes_rare() {
        let mut skipping = Skipping::default();
        let skipped = |skipping: &mut Skipping| (0..).take_while(|_| skipping.skips()).count();
        let mut found_nothing = || {
            skipping.looked(false);
            skipped(&mut skipping)
        };
        let counts: Vec<usize> = (0..8).map(|_| found_nothing()).collect();
        assert_eq!(counts, [1, 3, 7, 15, 31, 63, 64, 64]);
        skipping.looked(true);
        assert!(!skipping.skips(), "frames come again");
    }
}
