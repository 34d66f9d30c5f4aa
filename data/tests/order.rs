//! What stages deliver, and in which order.

use crate::{all, values};
use anabranch::data::{BatchPadding, Dataset};
use anabranch::{Array, Diagnostic, ErrorKind};

#[test]
fn a_shuffle_of_elements_with_indices_is_a_permutation_of_all() {
    let data = Dataset::range(0..1000).shuffle(10, 4);
    let mut epochs: Vec<Vec<i64>> = (0..3).map(|epoch| values(&data, epoch)).collect();
    assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
    for order in &mut epochs {
        // Elements move further than a window.
        assert!(order.iter().zip(0..).any(|(x, i)| (x - i).abs() > 500));
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1000));
    }
}

#[test]
fn a_shuffle_of_a_stream_permutes_windows() {
    let data = Dataset::range(0..25).filter(|_| true).shuffle(10, 4);
    let order = values(&data, 0);
    let windows: Vec<Vec<i64>> = order
        .chunks(10)
        .map(|w| {
            let mut w = w.to_vec();
            w.sort_unstable();
            w
        })
        .collect();
    assert_eq!(windows, [(0..10).collect::<Vec<_>>(), (10..20).collect(), (20..25).collect()]);
    assert_ne!(
        order[..10].iter().map(|x| x % 10).collect::<Vec<_>>(),
        order[10..20].iter().map(|x| x % 10).collect::<Vec<_>>()
    );
}

#[test]
fn parts_are_disjoint_and_complete() {
    for source in [Dataset::range(0..23), Dataset::range(0..23).filter(|_| true)] {
        let parts: Vec<Vec<i64>> = (0..4).map(|i| values(&source.shard(i, 4), 0)).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6, 6, 5]);
        let mut together = parts.concat();
        together.sort_unstable();
        assert!(together.into_iter().eq(0..23));
    }
    assert_eq!(Dataset::range(0..23).shard(3, 4).len(), Some(5));
}

#[test]
fn repetitions_are_epochs() {
    let once = Dataset::range(0..10).shuffle(10, 1);
    let expected: Vec<i64> = (0..3).flat_map(|epoch| values(&once, epoch)).collect();
    assert_eq!(values(&once.repeat(3), 0), expected);
    assert_eq!(values(&once.filter(|_| true).repeat(3), 0), expected);
    assert_eq!(values(&once.repeat_endlessly().take(30), 0), expected);
    // The next epoch continues to count.
    assert_eq!(values(&once.repeat(3), 1), (3..6).flat_map(|epoch| values(&once, epoch)).collect::<Vec<_>>());
    assert!(values(&Dataset::range(0..0).repeat_endlessly(), 0).is_empty());
    assert!(values(&Dataset::range(0..5).filter(|_| false).repeat_endlessly(), 0).is_empty());
    assert!(values(&Dataset::range(0..5).filter(|_| true).repeat(0), 0).is_empty());
}

#[test]
fn interleaved_datasets_take_turns() {
    let data = Dataset::range(1..5).interleave(2, 2, |x| Ok(Dataset::new(vec![x; x as usize + 1])));
    // 1 and 2 are open; 3 takes the place of 1 and 4 that of 2.
    assert_eq!(values(&data, 0), [1, 1, 2, 2, 3, 3, 2, 4, 3, 3, 4, 4, 4, 4]);
}

#[test]
fn a_stream_is_read_once_for_its_cache() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    for by_index in [false, true] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let source = Dataset::range(0..10);
        let data = if by_index { source } else { source.filter(|_| true) }
            .map(move |x| {
                counted.fetch_add(1, Ordering::Relaxed);
                x
            })
            .cache()
            .shuffle(10, 1);
        let orders: Vec<_> = (0..3).map(|epoch| values(&data, epoch)).collect();
        assert_ne!(orders[0], orders[1]);
        assert_eq!(calls.load(Ordering::Relaxed), 10, "{by_index}");
    }
}

#[test]
fn a_cache_takes_memory_for_the_elements_that_are_taken() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    for n in [10_000, 100_000_000_000, i64::MAX] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let data = Dataset::range(0..n).map(move |x| {
            counted.fetch_add(1, Ordering::Relaxed);
            x
        });
        let data = data.cache();
        assert_eq!(data.len(), Some(n as u64));
        for epoch in 0..2 {
            assert_eq!(values(&data.take(3), epoch), [0, 1, 2]);
            let across_chunks = data.skip(5_118).take(4);
            assert_eq!(values(&across_chunks, epoch), [5_118, 5_119, 5_120, 5_121]);
            assert_eq!(values(&data.skip(n as u64 - 2), epoch), [n - 2, n - 1]);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 9, "{n}");
    }
}

#[test]
fn batches_have_a_first_axis() {
    let data =
        Dataset::range(0..7).map(|x| (x as f32, [x, x + 1], Array::new([1, 2], vec![x as u8; 2]), x.to_string()));
    let batches = values(&data.batch(3), 0);
    let shapes: Vec<_> = batches.iter().map(|(a, b, c, d)| (a.shape(), b.shape(), c.shape(), d.len())).collect();
    assert_eq!(shapes[0], (&[3][..], &[3, 2][..], &[3, 1, 2][..], 3));
    assert_eq!(shapes[2], (&[1][..], &[1, 2][..], &[1, 1, 2][..], 1));
    assert_eq!((batches.len(), data.batch(3).len(), data.batch_exact(3).len()), (3, Some(3), Some(2)));
    assert_eq!(values(&data.batch_exact(3), 0).len(), 2);
}

#[test]
fn arrays_are_filled_up_in_each_axis() {
    let arrays = vec![Array::new([1, 2], vec![1, 2]), Array::new([2, 1], vec![3, 4]), Array::new([0, 3], vec![])];
    let batch = &values(&Dataset::new(arrays.clone()).padded_batch(3, BatchPadding::zeros().value(0, -1.0)), 0)[0];
    assert_eq!(batch.shape(), [3, 2, 3]);
    assert_eq!(batch.to_vec(), [1, 2, -1, -1, -1, -1, 3, -1, -1, 4, -1, -1, -1, -1, -1, -1, -1, -1]);
    let fixed = &values(&Dataset::new(arrays.clone()).padded_batch(2, BatchPadding::zeros().extents(0, [3, 4])), 0)[0];
    assert_eq!(fixed.shape(), [2, 3, 4]);
    for huge in [[usize::MAX / 2, 3], [1 << 50, 2]] {
        let padding = BatchPadding::zeros().extents(0, huge);
        let error = Dataset::new(arrays.clone()).padded_batch(2, padding).iter().next().unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    }
    let errors = all(&Dataset::new(arrays).padded_batch(3, BatchPadding::zeros().extents(0, [3, 1])), 0);
    assert!(errors[0].as_ref().unwrap_err().contains("element 0 of a batch has the shape [1, 2]"), "{errors:?}");
}

#[test]
fn elements_of_different_shapes_are_no_batch() {
    let errors = all(&Dataset::new(vec![vec![1.0_f32], vec![1.0, 2.0]]).batch(2), 0);
    assert!(errors[0].as_ref().unwrap_err().contains("element 1 of a batch has the shape [2]"), "{errors:?}");
}

#[test]
fn a_broken_element_is_an_error_in_its_place() {
    let data = Dataset::range(0..5).try_map(|x| if x == 2 { Err(Diagnostic::new("two")) } else { Ok(x) });
    assert_eq!(all(&data, 0), [Ok(0), Ok(1), Err("two".to_owned()), Ok(3), Ok(4)]);
    assert_eq!(all(&data.prefetch(2, 3), 0), all(&data, 0));
    assert_eq!(all(&data.batch(2).map(|b| b.to_vec()), 0), [Ok(vec![0, 1]), Err("two".to_owned()), Ok(vec![4])]);
    let mut skipping = data.skip_errors().epoch(0);
    assert_eq!(skipping.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 3, 4]);
    assert_eq!(skipping.skipped(), 1);
}

#[test]
fn rows_of_arrays_are_elements() {
    let (x, y) = (Array::new([3, 2], vec![1, 2, 3, 4, 5, 6]), Array::new([3], vec![7.0, 8.0, 9.0]));
    let rows = values(&Dataset::rows((x.clone(), y.clone())).unwrap(), 0);
    assert_eq!(rows[1], (Array::new([2], vec![3, 4]), Array::new([], vec![8.0])));
    let batch = &values(&Dataset::rows((x.clone(), y)).unwrap().batch(3), 0)[0];
    assert_eq!(batch.0, x);
    let error = Dataset::rows((x, Array::new([2], vec![0.0; 2]))).unwrap_err();
    assert!(error.message.contains("different numbers of rows: 3 and 2"), "{error}");
}

#[test]
fn equal_datasets_within_a_dataset_have_different_random_numbers_and_orders() {
    let noise = || Dataset::range(0..50).map_random(7, |_, rng| rng.bits());
    let order = || Dataset::range(0..50).shuffle(50, 7).map(|i| i as u64);
    for inner in [noise(), order()] {
        let joined = |data: Dataset<u64>| data.epoch(1).collect::<anabranch::Result<Vec<u64>>>().unwrap();
        let (one, two) = (inner.clone(), inner);
        let flat = joined(Dataset::range(0..3).flat_map(move |_| Ok(one.clone())));
        let woven = joined(Dataset::range(0..3).interleave(3, 1, move |_| Ok(two.clone())));
        assert!(flat[..50] != flat[50..100] && flat[50..100] != flat[100..]);
        // Both open the same datasets.
        let of = |k: usize| woven.iter().skip(k).step_by(3).copied().collect::<Vec<_>>();
        assert_eq!([of(0), of(1), of(2)].concat(), flat);
    }
}
