//! Threads, memory and panics.

use anabranch::data::Dataset;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

#[test]
fn no_more_is_computed_ahead_than_said() {
    let (begun, taken) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (count, seen) = (begun.clone(), taken.clone());
    let data = Dataset::range(0..500).map(move |x| {
        let begun = count.fetch_add(1, Ordering::SeqCst) + 1;
        // One element more is delivered, but not counted as taken yet.
        assert!(begun - seen.load(Ordering::SeqCst) <= 6 + 1, "{begun}");
        x
    });
    for (x, expected) in data.prefetch(3, 6).iter().zip(0..) {
        assert_eq!(x.unwrap(), expected);
        taken.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(begun.load(Ordering::SeqCst), 500);
}

#[test]
fn a_pass_that_is_dropped_ends_its_threads() {
    let alive = Arc::new(());
    let held = alive.clone();
    let data = Dataset::range(0..1000).map(move |x| (x, Arc::strong_count(&held))).prefetch(4, 8);
    for n in [0, 1, 17] {
        let mut pass = data.iter();
        assert_eq!(pass.by_ref().take(n).filter(|x| x.is_ok()).count(), n);
        drop(pass);
    }
    drop(data);
    // The threads, which would hold the function, have ended.
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn datasets_in_datasets_leave_no_thread() {
    let alive = Arc::new(());
    let mut data = Dataset::range(0..3);
    for _ in 0..5 {
        let held = alive.clone();
        let inner = data.clone();
        data = Dataset::range(0..3).prefetch(2, 2).interleave(2, 1, move |_| {
            let _ = &held;
            Ok(inner.prefetch(1, 1))
        });
    }
    let mut pass = data.iter();
    assert!(pass.by_ref().take(20).all(|x| x.is_ok()));
    drop((pass, data));
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_panic_reaches_the_consumer_in_its_place() {
    let data = Dataset::range(0..10).map(|x| if x == 4 { panic!("four") } else { x });
    for data in [data.clone(), data.prefetch(3, 3), data.filter(|_| true).map_parallel(2, Ok)] {
        let mut pass = data.iter();
        assert_eq!(pass.by_ref().take(4).map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let panic = catch_unwind(AssertUnwindSafe(|| pass.next())).expect_err("the function panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"four"));
    }
}

#[test]
fn a_long_pipeline_takes_little_memory_for_each_element() {
    // Ten million elements would not fit if they were held.
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 10_000_000 } else { 200_000 };
    let data = Dataset::range(0..n).shuffle(1, 3).filter(|x| x % 2 == 0).map(|x| x + 1).batch(1000);
    let sum: i64 = data.iter().map(|batch| batch.unwrap().iter().sum::<i64>()).sum();
    assert_eq!(sum, (0..n).step_by(2).map(|x| x + 1).sum::<i64>());
}
