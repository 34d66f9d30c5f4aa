//! Histograms as TensorBoard counts them.
//!
//! Source: `tensorboard/plugins/histogram/summary_v2.py` of TensorBoard 2.21, `_buckets`.

/// The number of buckets: TensorBoard's `DEFAULT_BUCKET_COUNT`.
pub(crate) const N_BUCKETS: usize = 30;

/// A bucket: its left edge, its right edge, and its count.
pub(crate) type Bucket = [f64; 3];

/// Counts values in buckets of equal width between the smallest and the largest one. Values that
/// are not finite are left out. If all are equal, the last bucket has all, and both edges of each
/// are that value. Without values all numbers are 0.
pub(crate) fn buckets(values: &[f64]) -> [Bucket; N_BUCKETS] {
    let values = || values.iter().copied().filter(|x| x.is_finite());
    let (min, max) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    if min > max {
        return [[0.0; 3]; N_BUCKETS];
    }
    if min == max {
        let mut all = [[max, max, 0.0]; N_BUCKETS];
        all[N_BUCKETS - 1][2] = values().count() as f64;
        return all;
    }
    // Half of each number, since the range may overflow.
    let (start, width) = (min / 2.0, (max / 2.0 - min / 2.0) / N_BUCKETS as f64);
    let edge = |i: usize| if i == N_BUCKETS { max } else { (start + width * i as f64) * 2.0 };
    let mut all: [Bucket; N_BUCKETS] = std::array::from_fn(|i| [edge(i), edge(i + 1), 0.0]);
    for x in values() {
        let i = (((x / 2.0 - start) / width).floor() as usize).min(N_BUCKETS - 1);
        all[i][2] += 1.0;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finite_value_is_counted_once() {
        let values = [0.0, 0.5, 1.0, f64::NAN, f64::INFINITY, 3.0];
        let buckets = buckets(&values);
        assert_eq!(buckets.iter().map(|bucket| bucket[2]).sum::<f64>(), 4.0);
        assert_eq!([buckets[0][0], buckets[0][2], buckets[29][1], buckets[29][2]], [0.0, 1.0, 3.0, 1.0]);
        assert!(buckets.windows(2).all(|pair| pair[0][1] == pair[1][0]));
        assert_eq!(buckets[5], [0.5, 0.6000000000000001, 1.0]);
    }

    #[test]
    fn the_largest_range_does_not_overflow() {
        let buckets = buckets(&[f64::MIN, 0.0, f64::MAX]);
        assert!(buckets.iter().flatten().all(|x| x.is_finite()));
        let counts = buckets.map(|bucket| bucket[2]);
        assert_eq!([counts[0], counts[14] + counts[15], counts[29]], [1.0; 3]);
    }

    #[test]
    fn equal_values_are_in_the_last_bucket() {
        let equal = buckets(&[2.5; 4]);
        assert_eq!([equal[0], equal[29]], [[2.5, 2.5, 0.0], [2.5, 2.5, 4.0]]);
        assert_eq!(buckets(&[f64::NAN]), [[0.0; 3]; N_BUCKETS]);
    }
}
