//! Assignment of arena memory to buffers: best fit over their live ranges.

use crate::cpu::memory::ALIGN;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

/// A buffer to be placed: its bytes and the first and last point at which it is live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) live: (u32, u32),
}

/// Free memory below the current end of the arena.
#[derive(Default)]
struct Free {
    by_start: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    end: usize,
}

impl Free {
    fn take(&mut self, size: usize) -> usize {
        if let Some(&(found, start)) = self.by_size.range((size, 0)..).next() {
            self.remove(start, found);
            if found > size {
                self.insert(start + size, found - size);
            }
            return start;
        }
        // Extend the arena. If the last free block reaches its end, start there.
        let mut start = self.end;
        if let Some((&s, &n)) = self.by_start.last_key_value()
            && s + n == self.end
        {
            self.remove(s, n);
            start = s;
        }
        self.end = start + size;
        start
    }

    fn give(&mut self, mut start: usize, mut size: usize) {
        if let Some((&s, &n)) = self.by_start.range(..start).next_back()
            && s + n == start
        {
            self.remove(s, n);
            (start, size) = (s, n + size);
        }
        if let Some(&n) = self.by_start.get(&(start + size)) {
            self.remove(start + size, n);
            size += n;
        }
        self.insert(start, size);
    }

    fn insert(&mut self, start: usize, size: usize) {
        self.by_start.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove(&mut self, start: usize, size: usize) {
        self.by_start.remove(&start);
        self.by_size.remove(&(size, start));
    }
}

/// Assigns a region to every request. Requests that are live at the same time do not overlap.
///
/// Also returns the total number of bytes.
pub(crate) fn allocate(requests: &[Request]) -> (Vec<Range<usize>>, usize) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (requests[i].live.0, Reverse(requests[i].bytes), i));
    let mut free = Free::default();
    let mut ends: BinaryHeap<Reverse<(u32, usize, usize)>> = BinaryHeap::new();
    let mut regions = vec![0..0; requests.len()];
    for i in order {
        let Request { bytes, live } = requests[i];
        while let Some(&Reverse((end, start, size))) = ends.peek() {
            if end >= live.0 {
                break;
            }
            ends.pop();
            free.give(start, size);
        }
        if bytes > 0 {
            let size = bytes.next_multiple_of(ALIGN);
            let start = free.take(size);
            regions[i] = start..start + bytes;
            ends.push(Reverse((live.1, start, size)));
        }
    }
    (regions, free.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(requests: &[Request]) -> usize {
        let (regions, end) = allocate(requests);
        for (i, (a, x)) in requests.iter().zip(&regions).enumerate() {
            assert_eq!(x.len(), a.bytes);
            assert!(x.end <= end && x.start.is_multiple_of(ALIGN));
            for (b, y) in requests[..i].iter().zip(&regions) {
                let together = a.live.0 <= b.live.1 && b.live.0 <= a.live.1;
                assert!(!together || x.end <= y.start || y.end <= x.start, "{a:?} at {x:?} and {b:?} at {y:?}");
            }
        }
        end
    }

    #[test]
    fn memory_is_used_again() {
        let chain: Vec<Request> = (0..100).map(|i| Request { bytes: 1000, live: (2 * i, 2 * i + 2) }).collect();
        assert_eq!(check(&chain), 2 * 1024);
    }

    #[test]
    fn buffers_that_live_together_are_apart() {
        // A fixed sequence of pseudo-random requests.
        let mut state = 1u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let requests: Vec<Request> = (0..300)
            .map(|_| {
                let start = next(1000) as u32;
                Request { bytes: next(5000) as usize, live: (start, start + next(50) as u32) }
            })
            .collect();
        let end = check(&requests);
        let peak = (0..1100u32)
            .map(|t| requests.iter().filter(|r| r.live.0 <= t && t <= r.live.1).map(|r| r.bytes).sum::<usize>())
            .max();
        assert!(end < 2 * peak.unwrap_or(0), "{end} bytes for a peak of {peak:?}");
    }
}
