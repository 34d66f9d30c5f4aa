//! Randomness as a function of numbers: permutations and random numbers that depend on a seed, an
//! epoch and an index alone, so that threads and resumed runs agree on them.

/// Returns a hash of two numbers whose bits are independent of theirs. The finalizer is that of
/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(b.wrapping_mul(0xd1b5_4a32_d192_ed03));
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

/// A random permutation of `0..n`, computed element by element.
///
/// It is a Feistel network with a hash as its round function (Luby and Rackoff 1988) on the
/// smallest even number of bits that holds `n`; numbers outside the range are mapped again until
/// they are inside ("cycle walking", Black and Rogaway 2002), on average less than four times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    n: u64,
    half_bits: u32,
    key: u64,
}

impl Permutation {
    const ROUNDS: u64 = 6;

    pub(crate) fn new(n: u64, seed: u64, epoch: u64) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { n, half_bits: bits.div_ceil(2).max(1), key: mix(seed, epoch) }
    }

    /// Returns the image of `i`, which must be less than `n`.
    pub(crate) fn get(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "the index is in the range");
        let mask = (1_u64 << self.half_bits) - 1;
        let mut at = i;
        loop {
            let (mut left, mut right) = (at >> self.half_bits, at & mask);
            for round in 0..Permutation::ROUNDS {
                (left, right) = (right, left ^ (mix(self.key ^ round, right) & mask));
            }
            at = left << self.half_bits | right;
            if at < self.n {
                return at;
            }
        }
    }
}

/// Random numbers for one element of a dataset.
///
/// They depend on the seed, the epoch and the number of the element alone. So an element is the
/// same whichever thread computes it, and when it is computed again after a resume. The generator
/// is SplitMix64 (Steele, Lea and Flood 2014).
///
/// ```
/// use anabranch::data::Dataset;
///
/// let noisy = Dataset::range(0..10).map_random(7, |x, rng| x as f64 + rng.uniform());
/// let numbers = || noisy.iter().collect::<anabranch::Result<Vec<f64>>>();
/// assert_eq!(numbers()?, numbers()?);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct ElementRng(u64);

impl ElementRng {
    pub(crate) fn new(seed: u64, epoch: u64, element: u64) -> ElementRng {
        ElementRng(mix(mix(seed, epoch), element))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0, 0)
    }

    /// Returns a number from 0 to less than 1, with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number less than `n`.
    ///
    /// # Panics
    /// Panics if `n` is 0.
    #[track_caller]
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "there is a number less than `n`");
        // The multiplication of Lemire (2019); with 64 bits the remaining bias cannot be measured.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Returns whether an event of probability `p` happens.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_of_all_small_sizes_are_permutations() {
        for n in 1..300 {
            let permutation = Permutation::new(n, 3, n);
            let mut seen: Vec<u64> = (0..n).map(|i| permutation.get(i)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn indices_of_huge_ranges_stay_inside() {
        for n in [u64::MAX >> 1, 1 << 62, (1 << 40) + 1] {
            let permutation = Permutation::new(n, 1, 2);
            assert!((0..100).all(|i| permutation.get(n - 1 - i) < n));
        }
    }

    /// The mean and the variance of counts of a fair draw, within five standard deviations.
    #[test]
    fn every_place_is_equally_likely() {
        let (n, draws) = (10_u64, 20_000_u64);
        let mut counts = vec![0_f64; (n * n) as usize];
        for epoch in 0..draws {
            let permutation = Permutation::new(n, 5, epoch);
            (0..n).for_each(|i| counts[(i * n + permutation.get(i)) as usize] += 1.0);
        }
        let expected = draws as f64 / n as f64;
        let chi: f64 = counts.iter().map(|c| (c - expected).powi(2) / expected).sum();
        // 81 degrees of freedom.
        assert!((chi - 81.0).abs() < 5.0 * (2.0_f64 * 81.0).sqrt(), "{chi}");
    }
}
