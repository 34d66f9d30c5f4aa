//! How fast the thread of a save writes: it rests between pieces, so that the steps beside it keep
//! the processor.
//!
//! Resting ends when somebody waits for the save, or when a save has rested for as long as it may:
//! for half of the time between the two saves before it, so that a run which saves often need not
//! wait. It changes when bytes are written, never which.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The wishes of the owner of a save, which the thread that writes it follows.
#[derive(Debug, Default)]
pub(crate) struct SaveControl {
    is_abandoned: AtomicBool,
    is_hurried: AtomicBool,
}

impl SaveControl {
    /// Asks for the end of the save. The thread, if it rests, is to be unparked.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Asks for a save without rests. The thread, if it rests, is to be unparked.
    pub fn hurry(&self) {
        self.is_hurried.store(true, Ordering::Relaxed);
    }

    fn allows_rest(&self) -> bool {
        !self.is_abandoned.load(Ordering::Relaxed) && !self.is_hurried.load(Ordering::Relaxed)
    }
}

/// The pace of a save.
pub(crate) struct Pace {
    control: Arc<SaveControl>,
    /// The rest for each unit of work.
    rest_per_work: f64,
    /// The rest that is still owed.
    owed: Cell<Duration>,
    /// How much longer it may rest.
    allowed: Cell<Duration>,
}

/// The shortest rest: shorter ones are put together, since a thread does not wake to the
/// microsecond. A save that owes less in all is not slowed down.
const SHORTEST_REST: Duration = Duration::from_millis(20);

/// The longest work that counts. A write that takes longer waits for the disk, and no core works.
const LONGEST_WORK: Duration = Duration::from_millis(50);

impl Pace {
    /// Returns the pace of a thread that works for a share of the time, and rests for `allowed` in
    /// all.
    pub fn new(control: Arc<SaveControl>, share: f64, allowed: Duration) -> Pace {
        Pace { control, rest_per_work: 1.0 / share - 1.0, owed: Cell::default(), allowed: Cell::new(allowed) }
    }

    /// Returns whether the save is to end without a checkpoint.
    pub fn is_abandoned(&self) -> bool {
        self.control.is_abandoned.load(Ordering::Relaxed)
    }

    /// Calls `work`, and then rests if enough rest is owed.
    fn work<R>(&self, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let owed = start.elapsed().min(LONGEST_WORK).mul_f64(self.rest_per_work) + self.owed.get();
        let allowed = self.allowed.get();
        self.owed.set(owed.min(allowed));
        if owed >= SHORTEST_REST && !allowed.is_zero() {
            let rest = self.owed.take();
            self.rest(rest);
            self.allowed.set(allowed - rest);
        }
        result
    }

    fn rest(&self, time: Duration) {
        let start = Instant::now();
        while let Some(left) = time.checked_sub(start.elapsed())
            && !left.is_zero()
            && self.control.allows_rest()
        {
            thread::park_timeout(left);
        }
    }
}

/// A file that is written at a pace.
pub(crate) struct PacedWriter<'a, W> {
    pub inner: W,
    pub pace: &'a Pace,
}

impl<W: Write> Write for PacedWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pace.work(|| self.inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pace with so long rests that a test which waits for one does not end.
    fn slow(control: &Arc<SaveControl>) -> Pace {
        Pace::new(control.clone(), 1e-12, Duration::MAX)
    }

    #[test]
    fn who_waits_ends_the_rest() {
        let control = Arc::new(SaveControl::default());
        let pace = slow(&control);
        let writer = thread::spawn(move || {
            let mut file = PacedWriter { inner: Vec::new(), pace: &pace };
            (0..100).for_each(|i| file.write_all(&[i; 1000]).unwrap());
            file.inner.len()
        });
        control.hurry();
        writer.thread().unpark();
        assert_eq!(writer.join().unwrap(), 100_000);
    }

    #[test]
    fn an_abandoned_save_does_not_rest() {
        let control = Arc::new(SaveControl::default());
        control.abandon();
        let pace = slow(&control);
        assert!(pace.is_abandoned());
        pace.work(|| ());
    }

    #[test]
    fn a_save_rests_for_no_longer_than_it_may() {
        for allowed in [1, 30].map(Duration::from_millis) {
            // Each work would be followed by hours.
            let pace = Pace::new(Arc::default(), 1e-12, allowed);
            (0..100).for_each(|_| pace.work(|| ()));
            assert_eq!((pace.owed.get(), pace.allowed.get()), (Duration::ZERO, Duration::ZERO));
        }
    }

    #[test]
    fn without_rests_nothing_is_owed() {
        let pace = Pace::new(Arc::default(), 1.0, Duration::MAX);
        assert_eq!(pace.work(|| (0..10_000).map(std::hint::black_box).sum::<u64>()), 49_995_000);
        assert_eq!(pace.owed.get(), Duration::ZERO);
    }
}
