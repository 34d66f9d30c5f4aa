//! Seeded mutations of valid inputs.

/// A generator of random numbers: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014).
pub struct Mutator {
    state: u64,
}

/// Bytes at the ends of ranges: of flags, of small numbers and of 7-bit groups.
const EDGES: [u8; 8] = [0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0xff];

impl Mutator {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `n`, or 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Writes one of the seeds to `out`, with one to four changes. Most inputs have one, since more
    /// are seldom valid.
    pub fn mutate(&mut self, seeds: &[Vec<u8>], out: &mut Vec<u8>) {
        let seed = self.below(seeds.len());
        out.clear();
        out.extend_from_slice(&seeds[seed]);
        let more = self.below(2) * self.below(4);
        for _ in 0..1 + more {
            let (at, kind) = (self.below(out.len()), self.below(12));
            match kind {
                _ if out.is_empty() => out.push(self.next() as u8),
                0..=2 => out[at] ^= 1 << self.below(8),
                3 | 4 => out[at] = EDGES[self.below(EDGES.len())],
                5 => out[at] = out[at].wrapping_add(1),
                6 => out[at] = out[at].wrapping_sub(1),
                7 => out.insert(at, self.next() as u8),
                8 => {
                    let end = out.len().min(at + 1 + self.below(8));
                    out.drain(at..end);
                }
                9 => {
                    let from = self.below(out.len());
                    let copied = out[from..out.len().min(from + 1 + self.below(16))].to_vec();
                    out.splice(at..at, copied);
                }
                10 => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    out.truncate(at);
                    out.extend_from_slice(&other[from..]);
                }
                _ => out.truncate(at),
            }
        }
    }
}
