//! The rate of a count that rises.

use super::proto::Time;
use std::time::Duration;

/// The shortest time over which a rate is measured.
const SHORTEST: Duration = Duration::from_secs(1);

/// Measures how fast a count rises, over the time between two readings.
#[derive(Debug)]
pub(super) struct RateMeter {
    since: Time,
    count: u64,
    /// The rate of the last time that was long enough.
    per_second: Option<u64>,
}

impl RateMeter {
    /// Begins at a count of 0.
    pub(super) fn new(now: Time) -> RateMeter {
        RateMeter { since: now, count: 0, per_second: None }
    }

    /// Reads the count. Returns its rate between the last two readings that were at least a second
    /// apart, or since the beginning if there were none.
    pub(super) fn read(&mut self, now: Time, count: u64) -> u64 {
        let elapsed = now.saturating_sub(self.since);
        let risen = count.saturating_sub(self.count) as f64;
        let per_second = (risen / elapsed.max(Duration::from_millis(1)).as_secs_f64()) as u64;
        if elapsed >= SHORTEST {
            *self = RateMeter { since: now, count, per_second: Some(per_second) };
        }
        self.per_second.unwrap_or(per_second)
    }
}

#[test]
fn a_rate_is_that_of_the_last_seconds() {
    let ms = Duration::from_millis;
    let mut meter = RateMeter::new(ms(10_000));
    let rates = [(10_500, 100), (12_000, 400), (12_900, 9_000), (14_000, 1_400), (24_000, 1_400)];
    let rates = rates.map(|(now, count)| meter.read(ms(now), count));
    assert_eq!(rates, [200, 200, 200, 500, 0]);
}
