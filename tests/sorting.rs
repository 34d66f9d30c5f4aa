//! Sorted elements, and the largest ones: values on every engine, and gradients.

use crate::support::{check, error_of};
use anabranch::prelude::*;

type S = Tensor<f64>;

#[test]
fn sorted_elements_and_the_largest_keep_their_places_for_the_gradient() {
    let x = [[3.0, 1.0, 2.0], [0.5, 7.0, 7.0]];
    check(|x: S| x.sorted(-1), x, &[1.0, 2.0, 3.0, 0.5, 7.0, 7.0]);
    check(|x: S| x.sorted(0), x, &[0.5, 1.0, 2.0, 3.0, 7.0, 7.0]);
    check(|x: S| x.top_k(2, 1), x, &[3.0, 2.0, 7.0, 7.0, 0.0, 2.0, 1.0, 2.0]);
    check(|x: S| x.top_k(0, 1).0.sum(), x, &[0.0]);
    let weights = || tensor([1.0, 10.0, 100.0]);
    check(|x: S| gradients((x.sorted(1) * weights()).sum(), x), x, &[100.0, 1.0, 10.0, 1.0, 10.0, 100.0]);
    check(
        |x: S| gradients((x.top_k(2, 1).0.square() * tensor([1.0, 10.0])).sum(), x),
        x,
        &[6.0, 0.0, 40.0, 0.0, 14.0, 140.0],
    );
}

/// Long enough for several threads and for every path of a sort.
#[test]
fn many_rows_are_sorted_as_on_the_host() {
    let n = 40_000;
    let x: Vec<f64> = (0..n).map(|i| f64::from(i * 7919 % 10_007) / 8.0).collect();
    let mut expected = x.clone();
    expected.chunks_mut(1000).for_each(|row| row.sort_by(f64::total_cmp));
    check(|x: S| x.reshape([40, 1000]).sorted(1), &x, &expected);
    let mut expected = x.clone();
    expected.sort_by(|a, b| b.total_cmp(a));
    check(|x: S| x.top_k(5, 0).0, &x, &expected[..5]);
}

#[test]
fn lists_of_unknown_length_are_sorted_in_loops() {
    /// Returns the median of each prefix.
    #[graph]
    fn medians(x: S) -> S {
        let (mut seen, mut out) = (List::new(()), List::new(()));
        for x in x {
            seen.push(x);
            let sorted = seen.stack().sorted(0);
            out.push(sorted.row((seen.len() - 1) / 2));
        }
        out.stack()
    }
    check(medians, [5.0, 1.0, 4.0, 2.0], &[5.0, 1.0, 4.0, 2.0]);
    check(|x| gradients(medians(x).sum(), x), [5.0, 1.0, 4.0, 2.0], &[1.0; 4]);
}

#[test]
fn too_many_are_an_error() {
    let error = error_of(|x: S| x.top_k(3, 0).0, [1.0, 2.0]).to_string();
    assert!(error.contains("slice: the range 0..3 is out of bounds for axis 0 of extent 2"), "{error}");
    let error = error_of(|x: S| x.sorted(1), [1.0, 2.0]).to_string();
    assert!(error.contains("sorted: axis 1 is out of bounds for a tensor of rank 1"), "{error}");
}
