//! The threads that compute the parts of kernels.
//!
//! A kernel that is worth several threads divides its work into *parts* and calls [`indices`],
//! [`chunks`] or [`join`]. The calling thread computes parts, and so do *helpers*: threads of the
//! process that do nothing else ([`helpers`]). So a step runs on the thread of its call, and a call
//! that waits keeps no other thread.
//!
//! - Parts never wait for anything but parts of their own, so threads cannot deadlock, and a thread
//!   that waits for helpers runs no other work.
//! - A kernel does not wait for a helper that sleeps: its caller computes the parts meanwhile. A
//!   helper that has had work looks for more, for [`Spin`], before it sleeps.
//! - The number of threads at work is limited by the [`ThreadLimit`] of the call or device, by the
//!   size of the rayon pool to which the calling thread belongs, and by the number of cores: no
//!   thread helps while there is a thread at work for each core.
//!
//! - Parts of [`chunks_until_stop`] are skipped once the step is to stop ([`stop`]).
//!
//! The functions receive the work as a pointer and are compiled once. Functions that are generic
//! over closures would be compiled again for each kernel, with all that divides and waits.
//!
//! The division may depend on the number of threads. It must not change a result.

mod cores;
mod helpers;
mod limit;
pub(crate) mod stop;

#[cfg(debug_assertions)]
pub(crate) use limit::is_at_work;
pub(crate) use limit::{ThreadLimit, n_threads};

use std::sync::{Mutex, PoisonError};

/// Calls `f(0)` to `f(n - 1)` in any order, on all threads that are free.
pub(crate) fn indices(n: usize, f: &(dyn Fn(usize) + Sync)) {
    helpers::run(n, f);
}

/// Calls `f((i, chunk))` for the chunks of `size` elements in any order, on all threads that are
/// free. The last chunk may be shorter.
pub(crate) fn chunks<T: Send>(data: &mut [T], size: usize, f: impl Fn((usize, &mut [T])) + Sync) {
    struct SlicePtr<T>(*mut T);
    // SAFETY: it stands for a `&mut [T]` whose disjoint chunks go to threads, and `&mut [T]` is
    // `Send`.
    unsafe impl<T: Send> Sync for SlicePtr<T> {}
    impl<T> SlicePtr<T> {
        fn at(&self, i: usize) -> *mut T {
            self.0.wrapping_add(i)
        }
    }

    let (start, len) = (SlicePtr(data.as_mut_ptr()), data.len());
    indices(len.div_ceil(size), &|i| {
        let first = i * size;
        // SAFETY: `i` is below the number of chunks, so the chunk is in `data`, which is borrowed
        // until all calls have returned. Each `i` comes once, so nothing else has its chunk.
        let chunk = unsafe { std::slice::from_raw_parts_mut(start.at(first), size.min(len - first)) };
        f((i, chunk));
    });
}

/// Calls `f` like [`chunks`], but leaves chunks as they are once the step is to stop.
pub(crate) fn chunks_until_stop<T: Send>(data: &mut [T], size: usize, f: impl Fn((usize, &mut [T])) + Sync) {
    chunks(data, size, |chunk| {
        if !stop::is_set() {
            f(chunk);
        }
    });
}

/// Calls both, at once if a thread is free, and returns their results.
pub(crate) fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    let (mut of_a, mut of_b) = (None, None);
    {
        let (mut a, mut b) = (Some(a), Some(b));
        let mut call_a = || of_a = a.take().map(|a| a());
        let mut call_b = || of_b = b.take().map(|b| b());
        let calls: [Mutex<&mut (dyn FnMut() + Send)>; 2] = [Mutex::new(&mut call_a), Mutex::new(&mut call_b)];
        indices(2, &|i| calls[i].lock().unwrap_or_else(PoisonError::into_inner)());
    }
    (of_a.expect("each closure is called once"), of_b.expect("each closure is called once"))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::collections::HashSet;
    use std::thread;

    /// Divides work again and again, until a helper has computed a part of it.
    pub(crate) fn meet() {
        while n_threads() > 1 {
            let seen = Mutex::new(HashSet::new());
            let n_seen = || {
                let mut seen = seen.lock().expect("no part panics");
                seen.insert(thread::current().id());
                seen.len()
            };
            indices(2, &|_| (0..1000).take_while(|_| n_seen() < 2).for_each(|_| thread::yield_now()));
            if n_seen() == 2 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::memory::{self, ByteGauge, OutOfMemory};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[test]
    fn a_helper_takes_part() {
        testing::meet();
    }

    #[test]
    fn work_within_work_is_done_once() {
        let n = AtomicUsize::new(0);
        let count = |n_inner| indices(n_inner, &|_| _ = n.fetch_add(1, Ordering::Relaxed));
        for _ in 0..200 {
            indices(7, &|i| indices(i, &|_| count(5)));
        }
        assert_eq!(n.into_inner(), 200 * 21 * 5);
    }

    #[test]
    fn work_of_many_threads_at_once_is_done_once() {
        std::thread::scope(|scope| {
            for seed in 0..8 {
                scope.spawn(move || {
                    for n in (0..200).map(|i| (i * 7 + seed * 13) % 50) {
                        let calls: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                        indices(n, &|i| _ = calls[i].fetch_add(1, Ordering::Relaxed));
                        assert!(calls.into_iter().all(|calls| calls.into_inner() == 1));
                    }
                });
            }
        });
    }

    /// Returns the largest number of threads that computed parts at the same time.
    fn most_at_once() -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        indices(4, &|_| {
            // Parts within parts have the same limit.
            indices(4, &|_| {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                (0..20).for_each(|_| std::thread::yield_now());
                now.fetch_sub(1, Ordering::Relaxed);
            });
        });
        most.into_inner()
    }

    #[test]
    fn a_limit_of_a_call_holds() {
        for n in [1, 2] {
            let limit = Arc::new(ThreadLimit::new(n));
            limit.within(|| {
                assert_eq!(n_threads(), n);
                (0..50).for_each(|_| assert!(most_at_once() <= n));
            });
        }
    }

    #[test]
    fn a_limit_is_that_of_all_threads_that_share_it() {
        let limit = Arc::new(ThreadLimit::new(2));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    limit.clone().enter();
                    for _ in 0..50 {
                        indices(8, &|_| {
                            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                            (0..20).for_each(|_| std::thread::yield_now());
                            now.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        // A caller that comes second finds the other with a helper.
        assert!(most.into_inner() <= 3);
    }

    #[test]
    fn memory_that_helpers_take_counts_in_the_budget_of_the_caller() {
        testing::meet();
        for n in 0..100 {
            let budget = ByteGauge::new(n as u64);
            memory::within(Some(budget.clone()), || {
                let held: Vec<_> = (0..n).map(|_| Mutex::new(None)).collect();
                let hold = || memory::try_hold(1).expect("the budget allows it");
                indices(n, &|i| *held[i].lock().expect("no part panics") = hold());
                assert_eq!(memory::try_hold(1).map(drop), Err(OutOfMemory { bytes: 1 }));
            });
            assert_eq!(budget.held(), 0);
        }
    }

    #[test]
    fn a_pool_of_the_caller_limits_its_calls() {
        for n in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("there are threads");
            let (threads, most) = pool.install(|| (n_threads(), most_at_once()));
            assert_eq!(threads, n);
            assert!(most <= n);
        }
    }

    #[test]
    fn a_panic_of_a_helper_is_that_of_the_caller_and_helpers_live_on() {
        for i in 0..100 {
            let outcome = std::panic::catch_unwind(|| indices(20, &|part| assert_ne!(part, i % 20, "on purpose")));
            assert!(outcome.is_err());
        }
        testing::meet();
    }

    #[test]
    fn a_thread_has_its_limit_again_after_a_panic() {
        let before = n_threads();
        let call = || Arc::new(ThreadLimit::new(before + 1)).within(|| indices(2, &|_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(call).is_err());
        assert_eq!(n_threads(), before);
    }

    /// A payload of a panic whose destructor panics.
    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn of_two_panics_one_is_that_of_the_caller_and_the_other_does_nothing() {
        if n_threads() < 2 {
            return;
        }
        for _ in 0..20 {
            let both_compute = std::sync::Barrier::new(2);
            let both_panic = || {
                indices(2, &|_| {
                    both_compute.wait();
                    std::panic::panic_any(PanicsAgain);
                });
            };
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(both_panic)).expect_err("both panic");
            assert!(panic.is::<PanicsAgain>());
            std::mem::forget(panic);
        }
        testing::meet();
    }

    /// All helpers sleep while two callers have all threads of a limit. When one of these ends, a
    /// helper comes to the other one, whose first part waits for it.
    #[test]
    fn a_helper_that_a_limit_turned_away_comes_when_a_thread_ends() {
        if n_threads() < 2 {
            return;
        }
        let limit = Arc::new(ThreadLimit::new(2));
        // Calls `part(0)` on the thread of the caller, and `part(1)` on any.
        let call = |part: &(dyn Fn(usize) + Sync)| limit.clone().within(|| indices(2, part));
        let channel = || {
            let (sender, receiver) = mpsc::channel();
            (sender, Mutex::new(receiver))
        };
        let receive = |from: &Mutex<mpsc::Receiver<()>>| {
            let from = from.lock().expect("no part panics");
            from.recv_timeout(Duration::from_secs(60)).expect("it is sent");
        };
        let ((begun, begins), (end, ends), (helped, helps)) = (channel(), channel(), channel());
        let send = |to: &mpsc::Sender<()>| to.send(()).expect("it is received");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                call(&|i| {
                    if i == 0 {
                        send(&begun);
                        receive(&ends);
                    }
                });
            });
            receive(&begins);
            scope.spawn(|| {
                call(&|i| match i {
                    0 => {
                        send(&begun);
                        receive(&helps);
                    }
                    _ => send(&helped),
                });
            });
            receive(&begins);
            while !helpers::all_sleep() {
                std::thread::yield_now();
            }
            send(&end);
        });
    }

    #[test]
    fn each_chunk_comes_once_and_the_last_is_shorter() {
        for (len, size) in [(0, 3), (1, 3), (6, 3), (1000, 7)] {
            let mut data = vec![0; len];
            chunks(&mut data, size, |(i, chunk)| {
                assert_eq!(chunk.len(), size.min(len - i * size));
                chunk.iter_mut().for_each(|x| *x += i + 1);
            });
            assert_eq!(data, (0..len).map(|at| at / size + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_of_one_part_is_that_of_all() {
        let outcome = std::panic::catch_unwind(|| chunks(&mut [0; 100], 1, |(i, _)| assert_ne!(i, 50)));
        assert!(outcome.is_err());
        let outcome = std::panic::catch_unwind(|| join(|| 1, || -> i32 { panic!("on purpose") }));
        assert!(outcome.is_err());
    }

    #[test]
    fn both_results_of_a_join_come_back() {
        assert_eq!(join(|| 1, || "b".to_owned()), (1, "b".to_owned()));
    }
}
